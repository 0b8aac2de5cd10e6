//! The far end of a VXLAN tunnel, written by hand: a broken or hostile host among the peers, and a stranger (RFC 7348 section 5 has the
//! format).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use nicety_adapter::PortId;
use nicety_adapters::find;
use nicety_plane::doubles::Memo;
use nicety_plane::{End, Port, Turn};
use nicety_trials::hostile::packets;
use nicety_trials::random::Random;
use nicety_trials::rig::Rig;
use nicety_trials::working;
use nicety_uplink::{Hop, Hops, Network, VXLAN_PORT, Vni, Vxlan, VxlanSettings};

/// Datagrams of one session.
const DATAGRAMS: usize = 64;

/// Bits 0 and 1 of the first byte: the longest packet between the hosts.
pub fn run(data: &[u8]) {
    let Some((&first, rest)) = data.split_first() else { return };
    let [.., high, low] = std::process::id().to_be_bytes();
    let [own, other, stranger] = [1, 2, 3].map(|last| IpAddr::from([127, high | 1, low, last]));
    let target = SocketAddr::new(own, VXLAN_PORT);
    let (Ok(peer), Ok(foreign)) = (UdpSocket::bind((other, VXLAN_PORT)), UdpSocket::bind((stranger, 0))) else {
        return;
    };
    let hops = Hops::new(1);
    hops.set(&[Hop { address: other, networks: None }]);
    let network = |vlan, vni| Some(Network { vlan, vni: Vni::new(vni)? });
    let networks = [network(None, 1), network(Some(10), 2)].into_iter().flatten().collect();
    let mtu = [1280, 1500, 9000, 65_535][usize::from(first & 3)];
    let settings = VxlanSettings { address: own, port: VXLAN_PORT, mtu, networks };
    let (Some(entry), Ok(tunnel)) = (find("virtio-net"), Vxlan::open(settings, hops.clone(), 1)) else { return };
    if peer.set_nonblocking(true).is_err() {
        return;
    }
    let mut random = Random::of_bytes(rest);
    let mut rig = Rig::new(entry, working::MEMORY, first & 4 != 0);
    let mut guest = working::begin(entry.about.name, &mut rig, &mut Random::new(first.into()));
    let Ok(port) = Port::new(PortId(2), End::link(Box::new(tunnel)), Box::new(Memo::default()), 1 << 20) else {
        return;
    };
    let (port, mut turn) = (Arc::new(port), Turn::new());
    if rig.plane.join(Arc::clone(&port)).is_err() {
        return;
    }
    for _ in 0..DATAGRAMS {
        if random.spent() {
            break;
        }
        match random.below(8) {
            0 => rig.far.ends().outgoing.push_back(packets::any(&mut random, true)),
            1 => {
                let (packet, offload) = packets::any(&mut random, false);
                if let Some(guest) = &mut guest {
                    guest.send(&mut rig, &packet, &offload);
                    guest.attend(&mut rig);
                }
            }
            2 => {
                let mut bytes = vec![0; random.below(40) as usize];
                bytes.fill_with(|| random.below(256) as u8);
                let _ = peer.send_to(&bytes, target);
            }
            3 => _ = foreign.send_to(&datagram(&mut random), target),
            _ => _ = peer.send_to(&datagram(&mut random), target),
        }
        rig.uplink.ready();
        port.ready();
        rig.now = rig.now.after_ns(1_000_000);
        for _ in 0..3 {
            rig.step();
            while rig.plane.turn(&port, &mut turn, rig.now).unfinished {}
        }
        // What leaves is plain VXLAN of a known network, within the MTU.
        let mut bytes = [0; 65_536];
        while let Ok((len, from)) = peer.recv_from(&mut bytes) {
            assert!(len >= 8 + 14 && len + 28 <= usize::from(mtu) && from.ip() == own, "{len} bytes from {from}");
            assert!(matches!(bytes[..8], [8, 0, 0, 0, 0, 0, 1 | 2, 0]), "{:?}", &bytes[..8]);
        }
        rig.far.ends().incoming.clear();
    }
    hops.places(rig.now).iter().for_each(|place| assert_eq!(place.hop, other));
}

/// A frame with its header. Now and then one of the two is slightly wrong.
fn datagram(random: &mut Random) -> Vec<u8> {
    let (packet, _) = packets::any(random, true);
    let mut header = [8, 0, 0, 0, 0, 0, random.below(3) as u8, 0];
    if random.one_in(4) {
        let at = random.below(8) as usize;
        header[at] = random.below(256) as u8;
    }
    let mut out = [&header[..], &packet].concat();
    if random.one_in(8) {
        out.truncate(random.below(out.len() as u64 + 1) as usize);
    }
    out
}
