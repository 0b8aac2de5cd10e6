//! A tunnel carries frames as RFC 7348 says: between two of them, between one and a socket of the test, and between one and Linux's `vxlan`
//! device, by a cable of which every frame is looked at.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::*;
use crate::tap::{inside_as, ip};
use crate::wired::{BEYOND, FAR, HERE, OWN, SOON, Wired};
use nicety_adapter::{Batch, Counters, Edit, Frames, HandOver, News, Offload, Pick, Reason, Time, Uplink, Wants};
use nicety_frame::{Tag, Tci, Vni};
use nicety_uplink::{Hop, Hops, Network, Passed, Traffic, VXLAN_PORT, Vxlan, VxlanError, VxlanSettings};
use rustix::net::sockopt;
use smoltcp::wire::Ipv4Packet;

pub const MTU: u16 = 1500;

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

/// A loopback address of this test and process: another run of these tests has the same ports.
fn own(test: u8, last: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{}", high | 1, test * 16 + last)
}

/// VLAN 10 as network 5010, and 20 as 5020.
pub fn settings(own: IpAddr) -> VxlanSettings {
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
pub fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
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
    let (mut one, mut other) = (tunnel(&own(1, 1), &[&own(1, 2)]), tunnel(&own(1, 2), &[&own(1, 1)]));
    let mut counters = Counters::default();
    let frame = tcp(&payload(100));
    deliver(&mut one, &mut counters, 10, &[(frame.clone(), Offload::default())]);
    assert_eq!(come_in(&mut other, &mut counters, 1), [tagged(&frame, 10)]);
    assert_eq!((counters.transmitted().frames, counters.taken().frames), (1, 1));
}

#[test]
fn a_packet_of_64_kb_is_cut_once_and_is_one_packet_again_at_the_other_end() {
    let (mut one, mut other) = (tunnel(&own(2, 1), &[&own(2, 2)]), tunnel(&own(2, 2), &[&own(2, 1)]));
    let data = payload(60_000);
    let mut counters = Counters::default();
    // A guest behind a tunnel has an MTU of 1450.
    let mut offload = tso();
    offload.segment.as_mut().unwrap().mss = 1398;
    deliver(&mut one, &mut counters, 10, &[(partial(&data), offload)]);
    let (mut packets, mut found) = (0, Vec::new());
    while found.len() < 43 && readable(&other) {
        let (batch, _) = fetch(&mut other, &mut counters, Time::ZERO);
        packets += batch.len();
        found.extend(frames(&batch, Wants { frame_max: 1464, ..PLAIN }));
        other.complete(&batch);
    }
    assert_eq!((packets, found.len()), (1, 43));
    let untagged = |frame: &Vec<u8>| {
        assert_eq!(frame[12..16], [0x81, 0, 0, 10]);
        checked_payload(&[&frame[..12], &frame[16..]].concat())
    };
    assert_eq!(found.iter().flat_map(untagged).collect::<Vec<u8>>(), data);
    assert_eq!((counters.transmitted().frames, counters.taken().frames, counters.taken().packets), (43, 43, 1));
    // Each end counts it for the other one. The tag is the switch's, and not on the way.
    let passed = Passed { frames: 43, bytes: found.iter().map(|frame| frame.len() as u64 - 4).sum(), dropped: 0 };
    let address = |last| own(2, last).parse::<IpAddr>().unwrap();
    assert_eq!(one.hops().traffic(), [(address(2), Traffic { receive: passed, ..Traffic::default() })]);
    assert_eq!(other.hops().traffic(), [(address(1), Traffic { transmit: passed, ..Traffic::default() })]);
}

#[test]
fn packets_that_a_turn_cannot_take_whole_are_left_whole_for_the_next_one() {
    let (mut one, mut other) = (tunnel(&own(12, 1), &[&own(12, 2)]), tunnel(&own(12, 2), &[&own(12, 1)]));
    let mut counters = Counters::default();
    let mut offload = tso();
    offload.segment.as_mut().unwrap().mss = 1398;
    // A turn has room for 64 KiB, and for 64 frames: these are 43 and 22.
    for bytes in [60_000, 30_000, 60_000] {
        deliver(&mut one, &mut counters, 10, &[(partial(&payload(bytes)), offload)]);
    }
    assert!(readable(&other));
    let mut turns = Vec::new();
    let mut more = true;
    while more {
        let (batch, progress) = fetch(&mut other, &mut counters, Time::ZERO);
        turns.push(batch.packets().iter().map(|packet| packet.frames()).collect::<Vec<_>>());
        more = progress.more;
        other.complete(&batch);
    }
    assert_eq!(turns, [vec![43], vec![22], vec![43]]);
}

/// The peer of a tunnel, played by the test.
fn peer(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind((address, VXLAN_PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket
}

/// A datagram of the network 5010 with this frame.
pub fn datagram(frame: &[u8]) -> Vec<u8> {
    [&[8, 0, 0, 0, 0, 0x13, 0x92, 0][..], frame].concat()
}

fn receive(socket: &UdpSocket) -> Option<(Vec<u8>, SocketAddr)> {
    let mut bytes = vec![0; 65_536];
    let (len, from) = socket.recv_from(&mut bytes).ok()?;
    bytes.truncate(len);
    Some((bytes, from))
}

#[test]
fn a_datagram_has_the_header_of_rfc_7348_the_frame_without_its_tag_and_a_port_by_its_flow() {
    let (mut tunnel, peer) = (tunnel(&own(3, 1), &[&own(3, 2)]), peer(&own(3, 2)));
    let mut counters = Counters::default();
    let frame = tcp(&payload(100));
    let flow = |port| udp(&payload(100), [2, 0, 0, 0, 0, 2], [10, 9, 8, 1].into(), port);
    deliver(
        &mut tunnel,
        &mut counters,
        10,
        &[(frame.clone(), Offload::default()), (frame.clone(), Offload::default())],
    );
    let (one, port) = receive(&peer).unwrap();
    let (other, same_port) = receive(&peer).unwrap();
    assert_eq!((&one, &other, same_port), (&datagram(&frame), &datagram(&frame), port), "a flow keeps its port");
    let mut ports = BTreeSet::new();
    for number in 0..64 {
        deliver(&mut tunnel, &mut counters, 20, &[(flow(number), Offload::default())]);
        let (bytes, from) = receive(&peer).unwrap();
        assert_eq!(bytes, [&[8, 0, 0, 0, 0, 0x13, 0x9c, 0][..], &flow(number)].concat());
        assert!(from.port() >= 49_152, "{from}");
        ports.insert(from.port());
    }
    assert!((10..=16).contains(&ports.len()), "flows have many ports: {ports:?}");
}

#[test]
fn what_is_no_frame_of_a_peer_in_a_known_network_is_dropped_with_the_reason() {
    let (mut tunnel, peer) = (tunnel(&own(4, 1), &[&own(4, 2)]), peer(&own(4, 2)));
    let stranger = UdpSocket::bind((own(4, 3), 0)).unwrap();
    let target = (&*own(4, 1), VXLAN_PORT);
    let frame = tcp(&payload(100));
    let (whole, other_network) = (datagram(&frame), [&[8, 0, 0, 0, 0, 0, 7, 0][..], &frame].concat());
    let without_flag = [&[0xf7, 0, 0, 0, 0, 0x13, 0x92, 0][..], &frame].concat();
    // With an MTU of 1500, IPv4, UDP and VXLAN leave 1464 bytes.
    let (longest, too_long) = (datagram(&tcp(&payload(1464 - 54))), datagram(&tcp(&payload(1465 - 54))));
    let own_tag = datagram(&[&frame[..12], &[0x81, 0, 0, 10], &frame[12..]].concat());
    let cases: [(&[u8], Reason); 8] = [
        (&[], Reason::NotVxlan),
        (&whole[..7], Reason::NotVxlan),
        (&without_flag, Reason::NotVxlan),
        (&other_network, Reason::UnknownNetwork),
        (&whole[..8], Reason::TooShort),
        (&whole[..8 + 13], Reason::TooShort),
        (&too_long, Reason::TooLong),
        (&own_tag, Reason::Vlan),
    ];
    let mut wanted = Counters::default();
    for (bytes, reason) in cases {
        peer.send_to(bytes, target).unwrap();
        wanted.transmit_drop(reason);
    }
    stranger.send_to(&whole, target).unwrap();
    wanted.transmit_drop(Reason::UnknownPeer);
    // Reserved bits are ignored, and the port from which a peer sends is not looked at.
    let reserved = [&[0xff, 1, 2, 3, 0, 0x13, 0x92, 0xff][..], &frame].concat();
    peer.send_to(&reserved, target).unwrap();
    UdpSocket::bind((own(4, 2), 0)).unwrap().send_to(&longest, target).unwrap();
    let mut counters = Counters::default();
    let found = come_in(&mut tunnel, &mut counters, 2);
    assert_eq!(found, [tagged(&frame, 10), tagged(&longest[8..], 10)]);
    assert_eq!(counters.transmit_drops, wanted.transmit_drops);
    // Nothing was learned of a stranger, or of another network.
    let places = tunnel.hops().places(Time::ZERO);
    assert_eq!(places.len(), 1);
    assert_eq!((places[0].vni, places[0].hop), (vni(5010), own(4, 2).parse::<IpAddr>().unwrap()));
}

#[test]
fn what_cannot_leave_is_dropped_with_the_reason() {
    let (mut one, peer) = (tunnel(&own(5, 1), &[&own(5, 2)]), peer(&own(5, 2)));
    let mut counters = Counters::default();
    let mut wanted = Counters::default();
    let frame = tcp(&payload(100));
    let own_tag = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    let plain = |frame: &[u8]| [(frame.to_vec(), Offload::default())];
    deliver(&mut one, &mut counters, 30, &plain(&frame));
    wanted.receive_drop(Reason::Filtered);
    deliver(&mut one, &mut counters, 10, &plain(&own_tag));
    wanted.receive_drop(Reason::Filtered);
    Sender::new(&plain(&frame)).deliver(&mut one, &mut counters, Time::ZERO);
    wanted.receive_drop(Reason::Filtered);
    deliver(&mut one, &mut counters, 10, &plain(&tcp(&payload(1465 - 54))));
    wanted.receive_drop(Reason::TooLong);
    // Its frames of 54 + 1448 bytes would be fragments.
    deliver(&mut one, &mut counters, 10, &[(partial(&payload(60_000)), tso())]);
    wanted.receive_drop(Reason::TooLong);
    assert_eq!(counters.receive_drops, wanted.receive_drops);
    let longest = tcp(&payload(1464 - 54));
    deliver(&mut one, &mut counters, 10, &plain(&longest));
    assert_eq!(receive(&peer).unwrap().0, datagram(&longest), "nothing else was sent");
    assert_eq!(counters.taken().frames, 1);
    let mut alone = tunnel(&own(5, 3), &[]);
    deliver(&mut alone, &mut counters, 10, &plain(&frame));
    assert_eq!(counters.receive_drops[Reason::NoReceiver as usize], 1);
    assert_eq!(alone.vacant().as_deref(), Some("it has no peers yet: name them (`peers`), or wait for the fabric's"));
}

#[test]
fn a_peer_to_which_nothing_leaves_is_named_and_the_others_are_reached() {
    // The kernel has no way from an address of the loopback interface to another host.
    const BEYOND: [&str; 5] = ["198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5"];
    let (own, near) = (own(11, 1), own(11, 2));
    let (mut tunnel, peer) = (tunnel(&own, &[BEYOND[4], &near]), peer(&near));
    let mut counters = Counters::default();
    let _first_news = tunnel.news();
    let frame = tcp(&payload(100));
    let plain = [(frame.clone(), Offload::default())];
    let hop = |address: &&str| Hop { address: address.parse().unwrap(), networks: None };
    let said = |peer: &str, news: Option<News>| {
        let Some(News::Vacant(said)) = news else { panic!("{news:?}") };
        assert!(said.starts_with(&format!("nothing leaves from {own} to {peer}: ")), "{said}");
        assert!(said.ends_with(&format!(" (for the route: ip route get {peer} from {own})")), "{said}");
        said
    };
    // Both get it, in any order of their numbers: the second time the one that is reached is the last.
    for peers in [[BEYOND[4], &*near], [&*near, BEYOND[4]]] {
        tunnel.hops().set(&[]);
        tunnel.hops().set(&peers.each_ref().map(hop));
        deliver(&mut tunnel, &mut counters, 10, &plain);
        assert_eq!(receive(&peer).unwrap().0, datagram(&frame));
        let remark = tunnel.remark().unwrap();
        assert!(
            tunnel.vacant().is_none() && remark.contains(&format!("; nothing leaves from {own} to {}: ", BEYOND[4]))
        );
        assert!(!remark.contains(&format!("to {near}")), "{remark}");
    }
    said(BEYOND[4], tunnel.news());
    assert_eq!((tunnel.news(), counters.receive_drops[Reason::UplinkRefused as usize]), (None, 0));
    assert_eq!(counters.taken().frames, 2, "what one peer got was not dropped");
    // Without the others nothing leaves at all. Of many peers the first ones are named.
    tunnel.hops().set(&BEYOND.each_ref().map(hop));
    deliver(&mut tunnel, &mut counters, 10, &plain);
    let all = said(BEYOND[0], tunnel.news());
    assert!(all.contains(BEYOND[2]) && !all.contains(BEYOND[3]) && all.contains(", and to 2 more ("), "{all}");
    assert_eq!(tunnel.vacant(), Some(all));
    assert_eq!(counters.receive_drops[Reason::UplinkRefused as usize], 1);
    // A peer that has left is not missed.
    tunnel.hops().set(&[hop(&&*near)]);
    assert_eq!((arrived(&mut tunnel, &mut counters, Time::ZERO).len(), tunnel.vacant()), (0, None));
    deliver(&mut tunnel, &mut counters, 10, &plain);
    let fits = "an MTU of 1500 leaves guests one of 1450".to_owned();
    assert_eq!((tunnel.vacant(), tunnel.remark(), tunnel.news()), (None, Some(fits.clone()), Some(News::Back(fits))));
}

/// The type, code and MTU of an ICMP message over IPv4 for the guest, which comes from the station beyond in VLAN 10.
fn icmp(frame: &[u8]) -> (u8, u8, u16) {
    let (stations, rest) = frame.split_first_chunk::<16>().unwrap();
    assert_eq!(*stations, [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 10]);
    let ip = Ipv4Packet::new_checked(&rest[2..]).unwrap();
    assert!(ip.verify_checksum());
    assert_eq!((ip.src_addr(), ip.dst_addr()), ([10, 9, 8, 1].into(), [10, 9, 8, 2].into()));
    let message = smoltcp::wire::Icmpv4Packet::new_checked(ip.payload()).unwrap();
    assert!(message.verify_checksum());
    (ip.payload()[0], ip.payload()[1], u16::from_be_bytes([ip.payload()[6], ip.payload()[7]]))
}

/// Frames that come in at this time.
pub fn arrived(uplink: &mut impl Uplink, counters: &mut Counters, now: Time) -> Vec<Vec<u8>> {
    let (batch, _) = fetch(uplink, counters, now);
    let found = frames(&batch, Wants { frame_max: 1518, ..PLAIN });
    uplink.complete(&batch);
    found
}

#[test]
fn the_sender_of_a_packet_that_is_too_long_is_told_the_mtu_by_the_address_to_which_it_sent() {
    let (mut tunnel, _peer) = (tunnel(&own(9, 1), &[&own(9, 2)]), peer(&own(9, 2)));
    let mut counters = Counters::default();
    let long = || [(tcp(&payload(1465 - 54)), Offload::default())];
    // The place of that address is not known: an answer from it would teach the switch a wrong one.
    deliver(&mut tunnel, &mut counters, 10, &long());
    assert_eq!((tunnel.wake(), counters.receive_drops[Reason::TooLong as usize]), (None, 1));
    tunnel.hops().tell(vni(5010), nicety_frame::Mac([2, 0, 0, 0, 0, 2]), own(9, 2).parse().unwrap()).unwrap();
    deliver(&mut tunnel, &mut counters, 10, &long());
    deliver(&mut tunnel, &mut counters, 10, &[(partial(&payload(60_000)), tso())]);
    assert_eq!((tunnel.wake(), counters.receive_drops[Reason::TooLong as usize]), (Some(Time::ZERO), 3));
    let told = arrived(&mut tunnel, &mut counters, Time::ZERO);
    assert_eq!(told.iter().map(|frame| icmp(frame)).collect::<Vec<_>>(), [(3, 4, 1450); 2]);
    // The packet in the message is the frame that did not fit: 1448 bytes behind 40 of headers.
    assert_eq!(told[1][46 + 2..46 + 4], 1488u16.to_be_bytes());
    assert_eq!((tunnel.wake(), counters.transmitted().frames), (None, 2), "they are counted as frames that came in");
    // In a network that the peer's address is not known in, and with a tag of its own, there is no answer.
    deliver(&mut tunnel, &mut counters, 20, &long());
    let own_tag = [&tcp(&[])[..12], &[0x81, 0, 0, 7], &tcp(&payload(1500))[12..]].concat();
    deliver(&mut tunnel, &mut counters, 10, &[(own_tag, Offload::default())]);
    assert_eq!((tunnel.wake(), counters.receive_drops[Reason::TooLong as usize]), (None, 5));
}

#[test]
fn guests_that_send_too_long_packets_without_end_are_told_a_thousand_times_a_second_at_most() {
    let (mut tunnel, _peer) = (tunnel(&own(10, 1), &[&own(10, 2)]), peer(&own(10, 2)));
    tunnel.hops().tell(vni(5010), nicety_frame::Mac([2, 0, 0, 0, 0, 2]), own(10, 2).parse().unwrap()).unwrap();
    let mut counters = Counters::default();
    let sender = Sender::new(&vec![(tcp(&payload(1465 - 54)), Offload::default()); 64]);
    let edit = Edit::Tag(Tag::customer(Tci::new(0, false, 10)));
    let picks: Vec<Pick> = (0..64).map(|packet| Pick { edit, ..Pick::whole(packet) }).collect();
    let mut told = Vec::new();
    // A batch each 100 µs, for 2 s.
    for turn in 0..20_000u64 {
        let now = Time(turn * 100_000);
        assert_eq!(tunnel.deliver(&Frames::new(&sender.batch, &picks), &mut counters, now).refused(), 0);
        let (batch, _) = fetch(&mut tunnel, &mut counters, now);
        told.push(batch.len());
        tunnel.complete(&batch);
    }
    assert_eq!(told[..3], [16, 16, 16], "a turn has 16 at most");
    let all: usize = told.iter().sum();
    assert!((2000..=2052).contains(&all), "{all} in 2 s, with a burst of 50");
    assert_eq!(counters.receive_drops[Reason::TooLong as usize], 64 * 20_000);
}

#[test]
fn a_broadcast_goes_to_each_peer_and_a_frame_for_a_station_to_the_one_behind_which_it_is() {
    let addresses = [2, 3, 4].map(|last| own(6, last));
    let [one, another, third] = &addresses;
    let mut tunnel = tunnel(&own(6, 1), &[one, another, third]);
    let peers = [one, another, third].map(|address| peer(address));
    let mut counters = Counters::default();
    let arrived = |peers: &[UdpSocket]| {
        let quick = |peer: &UdpSocket| {
            peer.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let mut found: Vec<_> =
                std::iter::from_fn(|| receive(peer)).map(|(bytes, _)| bytes[8..].to_vec()).collect();
            // Of two flows any may come first.
            found.sort();
            found
        };
        peers.iter().map(quick).collect::<Vec<_>>()
    };
    let broadcast = arp([2, 0, 0, 0, 0, 1], [10, 9, 8, 2], [10, 9, 8, 1]);
    let frame = tcp(&payload(100));
    deliver(
        &mut tunnel,
        &mut counters,
        10,
        &[(broadcast.clone(), Offload::default()), (frame.clone(), Offload::default())],
    );
    for found in arrived(&peers) {
        assert_eq!(found, [frame.clone(), broadcast.clone()], "nobody knows where the station is");
    }
    assert_eq!(counters.taken().frames, 2, "a copy is not another frame");
    // The station answers from the second host; nothing of that goes to the others.
    let answer = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &frame[12..]].concat();
    peers[1].send_to(&datagram(&answer), (own(6, 1), VXLAN_PORT)).unwrap();
    assert_eq!(come_in(&mut tunnel, &mut counters, 1), [tagged(&answer, 10)]);
    deliver(&mut tunnel, &mut counters, 10, &[(frame.clone(), Offload::default())]);
    deliver(&mut tunnel, &mut counters, 20, &[(frame.clone(), Offload::default())]);
    let found = arrived(&peers);
    assert_eq!(found[1], [frame.clone(), frame.clone()]);
    assert_eq!([&found[0], &found[2]], [&vec![frame.clone()]; 2], "in VLAN 20 nothing is known");
    // Whoever knows better is believed, until a host leaves.
    tunnel.hops().tell(vni(5010), nicety_frame::Mac([2, 0, 0, 0, 0, 2]), own(6, 4).parse().unwrap()).unwrap();
    deliver(&mut tunnel, &mut counters, 10, &[(frame.clone(), Offload::default())]);
    assert_eq!(arrived(&peers), [vec![], vec![], vec![frame.clone()]]);
    let hop = |address: &str| Hop { address: address.parse().unwrap(), networks: Some(vec![vni(5010)]) };
    tunnel.hops().set(&[hop(&own(6, 2)), hop(&own(6, 3))]);
    deliver(&mut tunnel, &mut counters, 10, &[(frame.clone(), Offload::default())]);
    assert_eq!(arrived(&peers), [vec![], vec![frame.clone()], vec![]], "it was learned behind the second one");
    deliver(&mut tunnel, &mut counters, 20, &[(frame, Offload::default())]);
    assert_eq!(counters.receive_drops[Reason::NoReceiver as usize], 1, "no host has VLAN 20 any more");
}

#[test]
fn a_tunnel_that_cannot_be_opened_says_what_to_do() {
    let open = |address: &str, port| {
        let settings = VxlanSettings { port, ..settings(address.parse().unwrap()) };
        assert!(Vxlan::check(&settings).is_err());
        Vxlan::open(settings, Hops::new(1), 1).unwrap_err()
    };
    let _here = tunnel(&own(7, 1), &[]);
    let error = open(&own(7, 1), VXLAN_PORT);
    assert!(matches!(error, VxlanError::InUse(_)));
    let wanted = format!("UDP port 4789 of {} is in use: another tunnel has it, or", own(7, 1));
    assert!(error.to_string().starts_with(&wanted), "{error}");
    let error = open("198.51.100.7", VXLAN_PORT).to_string();
    assert_eq!(
        error,
        "no interface of this host has the address 198.51.100.7: give it to one (ip address add), or correct `address`"
    );
    for address in ["0.0.0.0", "224.0.0.1", "fe80::1", "255.255.255.255", "::ffff:192.0.2.1"] {
        let error = open(address, VXLAN_PORT).to_string();
        assert!(
            error.ends_with("cannot be the end of a tunnel: give an address of one host, not link-local"),
            "{error}"
        );
    }
}

#[test]
fn another_process_goes_on_with_a_tunnel_and_what_had_come_is_not_lost() {
    let (mut tunnel, peer) = (tunnel(&own(8, 1), &[&own(8, 2)]), peer(&own(8, 2)));
    let frames_of = |number| udp(&payload(100), [2, 0, 0, 0, 0, 1], [10, 9, 8, 2].into(), number);
    for number in 0..100 {
        peer.send_to(&datagram(&frames_of(number)), (own(8, 1), VXLAN_PORT)).unwrap();
    }
    let mut counters = Counters::default();
    // One call receives what is waiting, and a turn takes a part of it.
    let mut batch = Batch::new();
    let budget = nicety_adapter::Budget { packets: 5, ..nicety_adapter::Budget::TURN };
    tunnel.fetch(nicety_adapter::PortId(1), budget, &mut batch, &mut counters, Time::ZERO);
    let mut found = frames(&batch, Wants { frame_max: 1518, ..PLAIN });
    assert_eq!(found.len(), 5);
    tunnel.complete(&batch);
    let HandOver::Parts { descriptors, state } = tunnel.hand_over() else { panic!() };
    let handed = descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect::<Vec<_>>();
    assert_eq!(handed.len(), 17);
    let hops = tunnel.hops().clone();
    let own_settings = settings(own(8, 1).parse().unwrap());
    assert!(Vxlan::go_on(own_settings.clone(), hops.clone(), 1, &state[..state.len() - 1], Vec::new()).is_err());
    assert!(Vxlan::go_on(own_settings.clone(), hops.clone(), 1, &state, Vec::new()).is_err(), "without sockets");
    let mut next = Vxlan::go_on(own_settings, hops, 1, &state, handed).unwrap();
    drop(tunnel);
    found.extend(come_in(&mut next, &mut counters, 95));
    assert_eq!(found, (0..100).map(|number| tagged(&frames_of(number), 10)).collect::<Vec<_>>());
    deliver(&mut next, &mut counters, 10, &[(tcp(b"on"), Offload::default())]);
    assert_eq!(receive(&peer).unwrap().0[8..62], tcp(b"on")[..54]);
    assert_eq!(next.news(), None, "the log knows it already");
}

#[test]
fn a_frame_goes_to_linux_s_vxlan_device_and_its_answer_comes_back() {
    if !inside_as("vxlan::a_frame_goes_to_linux_s_vxlan_device_and_its_answer_comes_back") {
        return;
    }
    let mut wired = Wired::new(OWN, FAR, MTU);
    let (near, far) = (UdpSocket::bind((HERE, 0)).unwrap(), wired.far.run(|| UdpSocket::bind((BEYOND, 7)).unwrap()));
    near.connect((BEYOND, 7)).unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    near.send(b"hello").unwrap();
    let mut bytes = [0; 100];
    let (len, from) = wired.until(|_| far.recv_from(&mut bytes).ok());
    assert_eq!((&bytes[..len], from), (&b"hello"[..], near.local_addr().unwrap()));
    far.send_to(b"world", from).unwrap();
    let len = wired.until(|_| near.recv(&mut bytes).ok());
    assert_eq!(bytes[..len], b"world"[..]);
    assert_eq!(wired.counters.transmit_drops.iter().sum::<u64>(), 0);
    assert!(wired.judged().len() >= 4, "both asked for addresses first");
    // Linux has learned where the guest is, and so have we of the other.
    let learned =
        wired.far.run(|| Command::new("bridge").args(["fdb", "show", "dev", "vx10"]).output().unwrap().stdout);
    let learned = String::from_utf8(learned).unwrap();
    assert!(learned.lines().any(|line| line.starts_with("02:00:00:00:00:01") && line.contains(OWN)), "{learned}");
    let places = wired.tunnel.hops().places(Time::ZERO);
    assert!(places.iter().any(|place| place.mac.0 == [2, 0, 0, 0, 0, 2] && place.hop.to_string() == FAR), "{places:?}");
}

/// Sends bytes by TCP between two kernels through the tunnel.
pub fn tcp_both_ways(own: &str, far: &str) -> Wired {
    const BYTES: usize = 2 << 20;
    let mut wired = Wired::new(own, far, MTU);
    let listener = wired.far.run(|| TcpListener::bind((BEYOND, 7)).unwrap());
    let beyond = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; BYTES];
        stream.read_exact(&mut bytes).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    let here = std::thread::spawn(move || {
        let mut stream = TcpStream::connect((BEYOND, 7)).unwrap();
        let (sent, mut received) = (payload(BYTES), vec![0; BYTES]);
        stream.write_all(&sent).unwrap();
        stream.read_exact(&mut received).unwrap();
        assert!(received == sent, "other bytes came back");
    });
    wired.until(|_| (here.is_finished() && beyond.is_finished()).then_some(()));
    here.join().unwrap();
    beyond.join().unwrap();
    // Packets are whole on both sides of the tunnel, and single frames in it.
    assert!(
        wired.longest_sent > 16_000 && wired.longest_received > 4000,
        "{} {}",
        wired.longest_sent,
        wired.longest_received
    );
    let judged = wired.judged();
    for address in [own, far] {
        let carried = judged.iter().filter(|(from, ..)| *from == address.parse::<IpAddr>().unwrap());
        let bytes: usize = carried.map(|(.., frame)| frame.len()).sum();
        assert!(bytes > BYTES, "{address} sent {bytes}");
    }
    assert_eq!(wired.counters.transmit_drops[Reason::TooLong as usize], 0);
    wired
}

#[test]
fn tcp_of_a_guest_passes_a_tunnel_to_linux_both_ways() {
    if inside_as("vxlan::tcp_of_a_guest_passes_a_tunnel_to_linux_both_ways") {
        tcp_both_ways(OWN, FAR);
    }
}

#[test]
fn tcp_of_a_guest_passes_a_tunnel_over_ipv6_to_linux_both_ways() {
    if inside_as("vxlan::tcp_of_a_guest_passes_a_tunnel_over_ipv6_to_linux_both_ways") {
        tcp_both_ways("fd00::1", "fd00::2");
    }
}

#[test]
fn a_way_with_a_smaller_mtu_is_named_and_what_does_not_fit_is_no_fragment() {
    if !inside_as("vxlan::a_way_with_a_smaller_mtu_is_named_and_what_does_not_fit_is_no_fragment") {
        return;
    }
    let mut wired = Wired::new(OWN, FAR, 9000);
    assert_eq!(
        wired.tunnel.news(),
        Some(News::Back(format!(
            "an MTU of 9000 leaves guests one of 8950, but the way to {FAR} has one of 1500: give the tunnel this `mtu`, and guests 1450"
        )))
    );
    let mut counters = Counters::default();
    deliver(&mut wired.tunnel, &mut counters, 10, &[(tcp(&payload(3000)), Offload::default())]);
    let mut offload = tso();
    offload.segment.as_mut().unwrap().mss = 3000;
    deliver(&mut wired.tunnel, &mut counters, 10, &[(partial(&payload(60_000)), offload)]);
    assert_eq!((counters.receive_drops[Reason::TooLong as usize], counters.taken().frames), (2, 0));
    assert_eq!(
        (wired.tunnel.news(), wired.tunnel.wake()),
        (None, None),
        "it is known, and nobody is behind the peer yet"
    );
    // It becomes narrower while the tunnel is open: the kernel knows how narrow.
    ip("link set under0 mtu 1400");
    wired.tunnel.hops().tell(vni(5010), nicety_frame::Mac([2, 0, 0, 0, 0, 2]), FAR.parse().unwrap()).unwrap();
    deliver(&mut wired.tunnel, &mut counters, 10, &[(tcp(&payload(1400)), Offload::default())]);
    deliver(&mut wired.tunnel, &mut counters, 10, &[(partial(&payload(60_000)), offload)]);
    assert_eq!((counters.receive_drops[Reason::TooLong as usize], counters.taken().frames), (4, 0));
    assert_eq!(
        wired.tunnel.news(),
        Some(News::Back(format!(
            "an MTU of 9000 leaves guests one of 8950, but the way to {FAR} has one of 1400: give the tunnel this `mtu`, and guests 1350"
        )))
    );
    let told = arrived(&mut wired.tunnel, &mut counters, Time::ZERO);
    assert_eq!(told.iter().map(|frame| icmp(frame)).collect::<Vec<_>>(), [(3, 4, 1350); 2]);
    // What fits goes on.
    deliver(&mut wired.tunnel, &mut counters, 10, &[(tcp(&payload(1300)), Offload::default())]);
    assert_eq!(counters.taken().frames, 1);
    (0..20).for_each(|_| wired.turn());
    assert!(
        wired.judged().iter().all(|(.., frame)| frame.len() < 200 || frame.len() == 1354),
        "nothing else is on the wire"
    );
}

/// Sends datagrams that are too long until this kernel, as a guest, has learned the MTU of its way to the other one.
fn learns(wired: &mut Wired, near: &UdpSocket, to: &str, mtu: &str) {
    let long = vec![7; 1440];
    wired.until(|_| {
        // An error is that the datagram is too long, which this kernel knows by now.
        let _too_long = near.send(&long);
        let text = Command::new("ip").args(["route", "get", to]).output().unwrap().stdout;
        String::from_utf8(text).unwrap().contains(mtu).then_some(())
    });
    assert!(wired.counters.receive_drops[Reason::TooLong as usize] > 0);
    assert_eq!(near.send(&long).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
}

#[test]
fn linux_as_a_guest_learns_the_mtu_of_its_way_through_a_tunnel() {
    if !inside_as("vxlan::linux_as_a_guest_learns_the_mtu_of_its_way_through_a_tunnel") {
        return;
    }
    let mut wired = Wired::new(OWN, FAR, MTU);
    // Its interface allows more than the tunnel.
    ip("link set guest0 mtu 1500");
    ip("address add fd01::2/64 dev guest0 nodad");
    wired.far.run(|| ip("address add fd01::1/64 dev vx10 nodad"));
    for (here, beyond) in [(HERE, BEYOND), ("fd01::2", "fd01::1")] {
        let address = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
        let far = wired.far.run(|| UdpSocket::bind(address(beyond, 7)).unwrap());
        let near = UdpSocket::bind(address(here, 0)).unwrap();
        near.connect(address(beyond, 7)).unwrap();
        if here == HERE {
            sockopt::set_ip_mtu_discover(&near, sockopt::Ipv4PathMtuDiscovery::DO).unwrap();
        } else {
            sockopt::set_ipv6_mtu_discover(&near, sockopt::Ipv6PathMtuDiscovery::DO).unwrap();
        }
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        near.send(b"hello").unwrap();
        let mut bytes = [0; 2000];
        wired.until(|_| far.recv(&mut bytes).ok());
        learns(&mut wired, &near, beyond, "mtu 1450");
        // The largest datagram that fits arrives whole.
        let largest = payload(1450 - if here == HERE { 28 } else { 48 });
        // The error of a message that came last is said of the next datagram.
        wired.until(|_| near.send(&largest).ok());
        let len = wired.until(|_| far.recv(&mut bytes).ok());
        assert!(bytes[..len] == largest);
    }
}

#[test]
fn a_slow_way_refuses_frames_until_it_has_room_and_a_copy_in_another_process_sends_what_waits() {
    if !inside_as("vxlan::a_slow_way_refuses_frames_until_it_has_room_and_a_copy_in_another_process_sends_what_waits") {
        return;
    }
    let mut wired = Wired::new(OWN, FAR, MTU);
    // The kernel knows its neighbour before.
    let far = wired.far.run(|| UdpSocket::bind((BEYOND, 7)).unwrap());
    far.set_nonblocking(true).unwrap();
    let near = UdpSocket::bind((HERE, 0)).unwrap();
    near.send_to(b"there?", (BEYOND, 7)).unwrap();
    let mut bytes = [0; 2000];
    wired.until(|_| far.recv(&mut bytes).ok());
    // Slower than the cable is looked at.
    let shaped =
        Command::new("tc").args("qdisc add dev under0 root tbf rate 10mbit burst 64kb limit 100mb".split(' ')).output();
    let shaped = shaped.unwrap();
    assert!(shaped.status.success(), "{}", String::from_utf8_lossy(&shaped.stderr));
    let mut counters = Counters::default();
    let datagram = |number: u16| {
        let body = [&number.to_be_bytes()[..], &payload(1298)].concat();
        udp(&body, [2, 0, 0, 0, 0, 2], [10, 9, 8, 1].into(), 7)
    };
    let edit = Edit::Tag(Tag::customer(Tci::new(0, false, 10)));
    let mut next = 0;
    let mut offer = |tunnel: &mut Vxlan, counters: &mut Counters| {
        let packets: Vec<_> = (next..next + 64).map(|number| (datagram(number), Offload::default())).collect();
        let picks: Vec<Pick> = (0..64).map(|packet| Pick { edit, ..Pick::whole(packet) }).collect();
        let delivery = tunnel.deliver(&Frames::new(&Sender::new(&packets).batch, &picks), counters, Time::ZERO);
        // One flow is in order: those that were refused are the last.
        next += 64 - delivery.refused().count_ones() as u16;
        delivery.refused() != 0
    };
    let refused = (0..200).any(|_| offer(&mut wired.tunnel, &mut counters));
    assert!(refused, "a socket holds so much: {next}");
    let HandOver::Parts { descriptors, state } = wired.tunnel.hand_over() else { panic!() };
    let own = descriptors.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    let copy = Vxlan::go_on(settings(OWN.parse().unwrap()), wired.tunnel.hops().clone(), 1, &state, own).unwrap();
    wired.tunnel = copy;
    let mut wanted = 0;
    let end = Instant::now() + SOON;
    while wanted < 1500 {
        assert!(Instant::now() < end, "{wanted} came");
        wired.turn();
        while let Ok(len) = far.recv(&mut bytes) {
            assert_eq!((len, u16::from_be_bytes([bytes[0], bytes[1]])), (1300, wanted), "all come, in order, once");
            wanted += 1;
        }
        if wired.tunnel.wake() == Some(Time::ZERO) {
            assert!((0..200).any(|_| offer(&mut wired.tunnel, &mut counters)), "it is full again");
        }
    }
    assert_eq!(counters.receive_drops.iter().sum::<u64>(), 0);
}

/// A request for the hardware address of `target`.
fn arp(hardware: [u8; 6], source: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let head = [&[0xff; 6][..], &hardware, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    [&head[..], &hardware, &source, &[0; 6], &target].concat()
}
