//! A tunnel carries frames as RFC 7348 says: between two of them, between one and a socket of the test, and between one and Linux's `vxlan`
//! device, by a cable of which every frame is looked at.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::*;
use crate::tap::{Elsewhere, inside_as, ip};
use nicety_adapter::{Counters, Edit, Frames, Offload, Pick, Reason, Time, Uplink, Wants};
use nicety_frame::{Tag, Tci};
use nicety_uplink::{Hop, Hops, Network, VXLAN_PORT, Vni, Vxlan, VxlanSettings};
use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, UdpPacket};

const MTU: u16 = 1500;

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// VLAN 10 as network 5010, and 20 as 5020.
fn settings(own: IpAddr) -> VxlanSettings {
    let networks =
        [(10, 5010), (20, 5020)].map(|(vlan, number)| Network { vlan: Some(vlan), vni: vni(number) }).to_vec();
    VxlanSettings { address: own, port: VXLAN_PORT, mtu: MTU, networks }
}

/// A tunnel at this address, with these peers. Each test has addresses of its own.
fn tunnel(own: &str, peers: &[&str]) -> Vxlan {
    let hops = Hops::new(0x5eed);
    let hop = |peer: &&str| Hop { address: peer.parse().unwrap(), networks: None };
    hops.set(&peers.iter().map(hop).collect::<Vec<_>>());
    Vxlan::open(settings(own.parse().unwrap()), hops, 0x5eed).unwrap()
}

/// The tag of a VLAN, as the switch puts it in.
fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    [&frame[..12], &Tag::customer(Tci::new(0, false, vlan)).to_bytes(), &frame[12..]].concat()
}

/// Frames of a guest in this VLAN, as the switch sends them to the tunnel.
fn deliver(uplink: &mut impl Uplink, counters: &mut Counters, vlan: u16, packets: &[(Vec<u8>, Offload)]) {
    let sender = Sender::new(packets);
    let edit = Edit::Tag(Tag::customer(Tci::new(0, false, vlan)));
    let picks: Vec<Pick> = (0..packets.len() as u16).map(|packet| Pick { edit, ..Pick::whole(packet) }).collect();
    assert_eq!(uplink.deliver(&Frames::new(&sender.batch, &picks), counters, Time::ZERO).refused(), 0);
}

/// Waits until so many frames have come in, as they were on the wire.
fn come_in(uplink: &mut impl Uplink, counters: &mut Counters, count: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < count && readable(uplink) {
        let (batch, _) = fetch(uplink, counters, Time::ZERO);
        found.extend(frames(&batch, Wants { frame_max: 1518, ..PLAIN }));
        uplink.complete(&batch);
    }
    found
}

#[test]
fn a_frame_of_a_vlan_comes_out_at_the_other_end_in_the_same_vlan() {
    let (mut one, mut other) = (tunnel("127.0.1.1", &["127.0.1.2"]), tunnel("127.0.1.2", &["127.0.1.1"]));
    let mut counters = Counters::default();
    let frame = tcp(&payload(100));
    deliver(&mut one, &mut counters, 10, &[(frame.clone(), Offload::default())]);
    assert_eq!(come_in(&mut other, &mut counters, 1), [tagged(&frame, 10)]);
    assert_eq!((counters.transmitted().frames, counters.taken().frames), (1, 1));
}

/// Both ends of a tunnel, one of which is the kernel's, in a namespace of its own. The cable is two taps without any offload: what passes is
/// what a wire would have, and is kept.
struct Wired {
    tunnel: Vxlan,
    far: Elsewhere,
    taps: [nicety_uplink::Tap; 2],
    seen: Vec<Vec<u8>>,
    counters: Counters,
}

const OWN: &str = "192.0.2.1";
const FAR: &str = "192.0.2.2";

impl Wired {
    fn new(own: &str, far: &str) -> Self {
        let plain = |name: &str, address: &str| {
            let mut tap = nicety_uplink::Tap::open(name).unwrap();
            tap.expect(false, false).unwrap();
            let _no_ipv6_here = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0");
            let bits = if address.contains(':') { 64 } else { 24 };
            ip(&format!("address add {address}/{bits} dev {name}"));
            ip(&format!("link set {name} up"));
            tap
        };
        let elsewhere = Elsewhere::new();
        let here = plain("under0", own);
        let there = elsewhere.run(|| {
            let tap = plain("under0", far);
            ip(&format!("link add vx10 type vxlan id 5010 dstport 4789 local {far} remote {own} dev under0"));
            ip("address add 10.9.8.1/24 dev vx10");
            ip("link set vx10 address 02:00:00:00:00:02 up");
            tap
        });
        let tunnel = tunnel(own, &[far]);
        Self { tunnel, far: elsewhere, taps: [here, there], seen: Vec::new(), counters: Counters::default() }
    }

    /// Carries what waits on the cable, both ways.
    fn carry(&mut self) {
        let [one, other] = &mut self.taps;
        for (from, to) in [(0, 1), (1, 0)] {
            let _ = (from, to);
        }
        let mut move_all = |from: &mut nicety_uplink::Tap, to: &mut nicety_uplink::Tap| {
            loop {
                let (batch, _) = fetch(from, &mut self.counters, Time::ZERO);
                if batch.is_empty() {
                    break;
                }
                let picks: Vec<Pick> = (0..batch.len() as u16).map(Pick::whole).collect();
                assert_eq!(to.deliver(&Frames::new(&batch, &picks), &mut self.counters, Time::ZERO).refused(), 0);
                self.seen.extend(frames(&batch, PLAIN));
                from.complete(&batch);
            }
        };
        move_all(one, other);
        move_all(other, one);
    }
}

#[test]
fn a_frame_goes_to_linux_s_vxlan_device_and_its_answer_comes_back() {
    if !inside_as("vxlan::a_frame_goes_to_linux_s_vxlan_device_and_its_answer_comes_back") {
        return;
    }
    let mut wired = Wired::new(OWN, FAR);
    let socket = wired.far.run(|| UdpSocket::bind("10.9.8.1:7").unwrap());
    socket.set_nonblocking(true).unwrap();
    let mut counters = Counters::default();
    // The kernel learns the guest's address from a request for its own.
    let request = arp([2, 0, 0, 0, 0, 1], [10, 9, 8, 2], [10, 9, 8, 1]);
    let datagram = udp(b"hello", [2, 0, 0, 0, 0, 2], [10, 9, 8, 1].into(), 7);
    deliver(&mut wired.tunnel, &mut counters, 10, &[(request, Offload::default()), (datagram, Offload::default())]);
    let mut bytes = [0; 100];
    let end = Instant::now() + Duration::from_secs(5);
    let (len, from) = loop {
        wired.carry();
        match socket.recv_from(&mut bytes) {
            Ok(received) => break received,
            Err(_) => assert!(Instant::now() < end, "nothing came"),
        }
    };
    assert_eq!((&bytes[..len], from), (&b"hello"[..], "10.9.8.2:1000".parse::<SocketAddr>().unwrap()));
    socket.send_to(b"world", from).unwrap();
    let mut found = Vec::new();
    while !found.iter().any(|frame: &Vec<u8>| frame.windows(5).any(|bytes| bytes == b"world")) {
        assert!(Instant::now() < end, "no answer came: {found:?}");
        wired.carry();
        let (batch, _) = fetch(&mut wired.tunnel, &mut counters, Time::ZERO);
        found.extend(frames(&batch, PLAIN));
        wired.tunnel.complete(&batch);
    }
    let answer = found.iter().find(|frame| frame.windows(5).any(|bytes| bytes == b"world")).unwrap();
    assert_eq!(answer[..16], *[&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &[0x81, 0, 0, 10]].concat());
    assert_eq!(counters.transmit_drops.iter().sum::<u64>() + counters.receive_drops.iter().sum::<u64>(), 0);
}

/// A request for the hardware address of `target`.
fn arp(hardware: [u8; 6], source: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let head = [&[0xff; 6][..], &hardware, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    [&head[..], &hardware, &source, &[0; 6], &target].concat()
}
