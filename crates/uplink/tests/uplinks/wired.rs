//! A tunnel whose other end is Linux's `vxlan` device, in a namespace of its own. The cable between them is two taps without any offload: what
//! passes is what a wire would have, and is kept. Behind our end is the kernel of this namespace, as a guest in VLAN 10, by a tap with all
//! offloads.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use nicety_adapter::{Batch, Counters, Edit, Frames, Pick, Time, Uplink};
use nicety_frame::{Tag, Tci};
use nicety_uplink::{Hop, Hops, Tap, VXLAN_PORT, Vxlan, VxlanSettings};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, UdpPacket};

use crate::common::*;
use crate::elsewhere::Elsewhere;
use crate::tap::ip;
use crate::vxlan::settings;

/// See the module's page.
pub struct Wired {
    pub tunnel: Vxlan,
    pub guest: Tap,
    pub far: Elsewhere,
    pub cable: [Tap; 2],
    pub seen: Vec<Vec<u8>>,
    pub counters: Counters,
    /// The most that came from the guest in one packet.
    pub longest_sent: u32,
    pub longest_received: u32,
}

/// Our end of the tunnel.
pub const OWN: &str = "192.0.2.1";
/// The kernel's end.
pub const FAR: &str = "192.0.2.2";
/// The guest's address here.
pub const HERE: &str = "10.9.8.2";
/// The one beyond.
pub const BEYOND: &str = "10.9.8.1";
/// A test waits so long at most.
pub const SOON: Duration = Duration::from_secs(20);

fn tap(name: &str, address: &str) -> Tap {
    let tap = Tap::open(name).unwrap();
    for (key, value) in [("accept_dad", "0"), ("router_solicitations", "0")] {
        let _no_ipv6_here = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{key}"), value);
    }
    let rest = if address.contains(':') { "/64 nodad" } else { "/24" };
    ip(&format!("address add dev {name} {address}{rest}"));
    ip(&format!("link set {name} up"));
    tap
}

impl Wired {
    /// With these addresses of its ends, and this MTU of the tunnel. The cable has 1500.
    pub fn new(own: &str, far: &str, mtu: u16) -> Self {
        let cable = |address: &str| {
            let mut tap = tap("under0", address);
            tap.expect(false, false).unwrap();
            tap
        };
        let inner = if own.contains(':') { 1430 } else { 1450 };
        let elsewhere = Elsewhere::new();
        let here = cable(own);
        let there = elsewhere.run(|| {
            let tap = cable(far);
            let udp6 = if own.contains(':') { "udp6zerocsumrx" } else { "" };
            ip(format!("link add vx10 type vxlan id 5010 dstport 4789 local {far} remote {own} dev under0 {udp6}")
                .trim());
            ip(&format!("address add {BEYOND}/24 dev vx10"));
            ip(&format!("link set vx10 address 02:00:00:00:00:02 mtu {inner} up"));
            tap
        });
        let guest = tap("guest0", HERE);
        ip(&format!("link set guest0 address 02:00:00:00:00:01 mtu {inner}"));
        let hops = Hops::new(0x5eed);
        hops.set(&[Hop { address: far.parse().unwrap(), networks: None }]);
        let tunnel = Vxlan::open(VxlanSettings { mtu, ..settings(own.parse().unwrap()) }, hops, 0x5eed).unwrap();
        let (seen, counters, cable) = (Vec::new(), Counters::default(), [here, there]);
        Self { tunnel, guest, far: elsewhere, cable, seen, counters, longest_sent: 0, longest_received: 0 }
    }

    /// Moves what waits on the cable.
    pub fn pass(&mut self) {
        let [one, other] = &mut self.cable;
        let counters = &mut self.counters;
        carry(one, other, Edit::Keep, counters, |batch| self.seen.extend(frames(batch, PLAIN)));
        carry(other, one, Edit::Keep, counters, |batch| self.seen.extend(frames(batch, PLAIN)));
    }

    /// Moves what waits, everywhere.
    pub fn turn(&mut self) {
        self.pass();
        let counters = &mut self.counters;
        let longest = |batch: &Batch| batch.packets().iter().map(|packet| packet.len()).max().unwrap_or(0);
        let (sent, received) = (&mut self.longest_sent, &mut self.longest_received);
        let tag = Edit::Tag(Tag::customer(Tci::new(0, false, 10)));
        carry(&mut self.guest, &mut self.tunnel, tag, counters, |batch| *sent = longest(batch).max(*sent));
        carry(&mut self.tunnel, &mut self.guest, Edit::Untag, counters, |batch| {
            *received = longest(batch).max(*received);
        });
    }

    /// Moves what waits, until this has a result.
    pub fn until<R>(&mut self, mut done: impl FnMut(&mut Self) -> Option<R>) -> R {
        let end = Instant::now() + SOON;
        loop {
            self.turn();
            if let Some(result) = done(self) {
                return result;
            }
            assert!(Instant::now() < end, "it takes too long");
        }
    }

    /// Judges each frame that was on the cable, and returns those of VXLAN: the outer addresses, the port that sends, and the frame within.
    pub fn judged(&self) -> Vec<(IpAddr, u16, Vec<u8>)> {
        self.seen.iter().filter_map(|frame| judge(frame)).collect()
    }
}

/// Moves what waits from one uplink to the other, with this edit.
fn carry(
    from: &mut impl Uplink,
    to: &mut impl Uplink,
    edit: Edit,
    counters: &mut Counters,
    mut look: impl FnMut(&Batch),
) {
    let (batch, _) = fetch(from, counters, Time::ZERO);
    let picks: Vec<Pick> = (0..batch.len() as u16).map(|packet| Pick { edit, ..Pick::whole(packet) }).collect();
    look(&batch);
    let _refused_is_lost = to.deliver(&Frames::new(&batch, &picks), counters, Time::ZERO);
    from.complete(&batch);
}

/// Judges an outer frame by RFC 7348 section 5, and takes out what is in it.
fn judge(frame: &[u8]) -> Option<(IpAddr, u16, Vec<u8>)> {
    assert!(frame.len() <= 1514, "{} bytes on a wire", frame.len());
    let ethernet = EthernetFrame::new_checked(frame).unwrap();
    let (from, to, udp) = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
            assert!(ip.verify_checksum() && !ip.more_frags() && ip.frag_offset() == 0, "a fragment");
            if ip.next_header() != IpProtocol::Udp {
                return None;
            }
            assert!(ip.dont_frag() || ip.src_addr().to_string() == FAR);
            (IpAddr::V4(ip.src_addr()), IpAddr::V4(ip.dst_addr()), ip.payload().to_vec())
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
            assert_ne!(ip.next_header(), IpProtocol::Ipv6Frag);
            if ip.next_header() != IpProtocol::Udp {
                return None;
            }
            (IpAddr::V6(ip.src_addr()), IpAddr::V6(ip.dst_addr()), ip.payload().to_vec())
        }
        _ => return None,
    };
    let packet = UdpPacket::new_checked(&udp[..]).unwrap();
    assert!(packet.verify_checksum(&from.into(), &to.into()), "the outer checksum");
    assert_ne!(packet.checksum(), 0);
    assert_eq!(packet.dst_port(), VXLAN_PORT);
    let (header, inner) = packet.payload().split_first_chunk::<8>().unwrap();
    assert_eq!(*header, [8, 0, 0, 0, 0, 0x13, 0x92, 0]);
    let ip = EthernetFrame::new_checked(inner).unwrap();
    if ip.ethertype() == EthernetProtocol::Ipv4 {
        let ip = Ipv4Packet::new_checked(ip.payload()).unwrap();
        assert!(ip.verify_checksum());
        if ip.next_header() == IpProtocol::Tcp {
            let tcp = smoltcp::wire::TcpPacket::new_checked(ip.payload()).unwrap();
            assert!(tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()), "the inner checksum");
        }
    }
    Some((from, packet.src_port(), inner.to_vec()))
}
