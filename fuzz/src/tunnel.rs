//! The far end of a VXLAN tunnel, written by hand: a broken or hostile host among the peers, and a stranger (RFC 7348 section 5 has the
//! format).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use nicety_frame::Vni;
use nicety_trials::hostile::packets;
use nicety_trials::random::Random;
use nicety_uplink::{Hop, Hops, Network, VXLAN_PORT, Vxlan, VxlanSettings};

use crate::session::{Session, junk};

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
    let Ok(tunnel) = Vxlan::open(settings, hops.clone(), 1) else { return };
    if peer.set_nonblocking(true).is_err() {
        return;
    }
    let mut random = Random::of_bytes(rest);
    let Some(mut session) = Session::begin(Box::new(tunnel), first & 4 != 0, first) else { return };
    for _ in 0..DATAGRAMS {
        if random.spent() {
            break;
        }
        match random.below(8) {
            0 => session.wire_sends(&mut random),
            1 => session.guest_sends(&mut random),
            2 => _ = peer.send_to(&junk(&mut random), target),
            3 => _ = foreign.send_to(&datagram(&mut random), target),
            _ => _ = peer.send_to(&datagram(&mut random), target),
        }
        session.turns();
        // What leaves is plain VXLAN of a known network, within the MTU.
        let mut bytes = [0; 65_536];
        while let Ok((len, from)) = peer.recv_from(&mut bytes) {
            assert!(len >= 8 + 14 && len + 28 <= usize::from(mtu) && from.ip() == own, "{len} bytes from {from}");
            assert!(matches!(bytes[..8], [8, 0, 0, 0, 0, 0, 1 | 2, 0]), "{:?}", &bytes[..8]);
        }
    }
    hops.places(session.rig.now).iter().for_each(|place| assert_eq!(place.hop, other));
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
