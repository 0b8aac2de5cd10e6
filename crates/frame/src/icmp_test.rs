use std::vec::Vec;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetFrame, EthernetProtocol, Icmpv4Message, Icmpv4Packet, Icmpv6Packet, Icmpv6Repr, IpProtocol, Ipv4Packet,
    Ipv6Packet,
};

use super::*;

const HERE: [u8; 6] = [2, 0, 0, 0, 0, 1];
const THERE: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The head of a frame from 10.9.8.2 to 10.9.8.1, with this payload of IP.
fn v4(header: ipv4::Header<'_>, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = (Ipv4Addr::new(10, 9, 8, 2), Ipv4Addr::new(10, 9, 8, 1));
    let mut ip = [0; 60];
    let len = ipv4::Header { source, destination, dont_fragment: true, ..header }.write(&mut ip).unwrap();
    [&THERE[..], &HERE, &[8, 0], &ip[..len], payload].concat()
}

fn tcp() -> ipv4::Header<'static> {
    ipv4::Header { protocol: 6, payload_len: 1480, ..ipv4::Header::default() }
}

fn v6(header: ipv6::Header, payload: &[u8]) -> Vec<u8> {
    let [source, destination] = ["fd00::2", "fd00::1"].map(|ip| ip.parse().unwrap());
    let mut ip = [0; 40];
    ipv6::Header { source, destination, ..header }.write(&mut ip).unwrap();
    [&THERE[..], &HERE, &[0x86, 0xdd], &ip, payload].concat()
}

fn answer(head: &[u8], len: u32, mtu: u16) -> Option<Vec<u8>> {
    let (layout, mut out) = (Layout::parse(head), [0; MESSAGE_MAX]);
    let len = TooBig { head, layout: &layout, len, mtu }.answer(&mut out)?;
    Some(out[..len].to_vec())
}

#[test]
fn fragmentation_needed_has_the_mtu_and_the_packet_s_headers_and_comes_from_its_destination() {
    let segment = [7; 94];
    // A packet of 60 KiB that was to be cut into segments: the first one is quoted.
    let head = v4(ipv4::Header { payload_len: 60_000, ..tcp() }, &segment);
    let told = answer(&head, 1500, 1450).unwrap();
    let frame = EthernetFrame::new_checked(&told[..]).unwrap();
    assert_eq!((frame.src_addr().0, frame.dst_addr().0, frame.ethertype()), (THERE, HERE, EthernetProtocol::Ipv4));
    let ip = Ipv4Packet::new_checked(frame.payload()).unwrap();
    assert!(ip.verify_checksum() && ip.next_header() == IpProtocol::Icmp);
    assert_eq!((ip.src_addr(), ip.dst_addr()), ([10, 9, 8, 1].into(), [10, 9, 8, 2].into()));
    let icmp = Icmpv4Packet::new_checked(ip.payload()).unwrap();
    // RFC 1191 section 4: 16 bits without a use, then the MTU of the next hop.
    assert_eq!(ip.payload()[4..8], [0, 0, 0x05, 0xaa]);
    assert!(icmp.verify_checksum());
    assert_eq!((icmp.msg_type(), icmp.msg_code()), (Icmpv4Message::DstUnreachable, 4));
    let quoted = Ipv4Packet::new_unchecked(icmp.data());
    assert!(quoted.verify_checksum() && quoted.dont_frag());
    assert_eq!((quoted.src_addr(), quoted.total_len(), &icmp.data()[20..]), (ip.dst_addr(), 1500, &segment[..]));
    // Not more than a header of a kilobyte's jumbo frame.
    let told = answer(&v4(tcp(), &[0; 1000]), 1500, 1450).unwrap();
    assert_eq!(told.len(), 14 + 20 + 8 + 256);
}

#[test]
fn packet_too_big_has_the_mtu_and_the_packet_and_comes_from_its_destination() {
    let header = ipv6::Header { next_header: 6, payload_len: 60_000, ..ipv6::Header::default() };
    let told = answer(&v6(header, &[7; 40]), 1500, 1430).unwrap();
    let frame = EthernetFrame::new_checked(&told[..]).unwrap();
    assert_eq!((frame.src_addr().0, frame.dst_addr().0, frame.ethertype()), (THERE, HERE, EthernetProtocol::Ipv6));
    let ip = Ipv6Packet::new_checked(frame.payload()).unwrap();
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    let (from, to) = (ip.src_addr(), ip.dst_addr());
    assert_eq!((from, to), ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()));
    let Icmpv6Repr::PktTooBig { mtu, header, data } =
        Icmpv6Repr::parse(&from, &to, &icmp, &ChecksumCapabilities::default()).unwrap()
    else {
        panic!("another message")
    };
    assert_eq!((mtu, header.payload_len, header.src_addr, data), (1430, 1460, to, &[7; 40][..]));
}

/// The cases of `iptunnel_pmtud_check_icmp()` of Linux's net/ipv4/ip_tunnel_core.c.
#[test]
fn a_sender_whose_packet_may_be_cut_or_that_is_no_host_is_told_nothing() {
    let echo = ipv4::Header { protocol: 1, ..tcp() };
    assert!(answer(&v4(echo, &[8; 40]), 1500, 1450).is_some(), "an echo is no error");
    for kind in [3, 4, 5, 11, 12] {
        assert_eq!(answer(&v4(echo, &[kind; 40]), 1500, 1450), None, "type {kind} is an error");
    }
    assert_eq!(answer(&v4(echo, &[]), 1500, 1450), None, "a type that is not there");
    let part = ipv4::Header { more_fragments: true, ..tcp() };
    assert_eq!(answer(&v4(part, &[0; 40]), 1500, 1450), None, "a fragment");
    let mut may_be_cut = v4(tcp(), &[0; 40]);
    may_be_cut[20] = 0;
    assert_eq!(answer(&may_be_cut, 1500, 1450), None);
    assert_eq!(answer(&v4(tcp(), &[0; 40]), 1500, 575), None, "no host takes such an MTU");
    let with = |at: usize, bytes: &[u8]| {
        let mut head = v4(tcp(), &[0; 40]);
        head[at..at + bytes.len()].copy_from_slice(bytes);
        answer(&head, 1500, 1450)
    };
    for (at, bytes, what) in [
        (26, &[0, 0, 0, 0][..], "from nobody"),
        (26, &[127, 0, 0, 1], "from a loopback address"),
        (26, &[224, 0, 0, 1], "from a group"),
        (30, &[224, 0, 0, 1], "for a group"),
        (30, &[255; 4], "for all"),
        (0, &[0xff; 6], "for all stations"),
        (6, &[1, 0, 0, 0, 0, 1], "from a group of stations"),
        (12, &[8, 6], "no IP"),
    ] {
        assert_eq!(with(at, bytes), None, "{what}");
    }
    assert_eq!(answer(&v4(tcp(), &[])[..33], 1500, 1450), None, "a header that is not whole");
}

/// The cases of `iptunnel_pmtud_check_icmpv6()`.
#[test]
fn the_same_holds_for_ipv6_where_no_packet_may_be_cut() {
    let tcp = ipv6::Header { next_header: 6, payload_len: 1460, ..ipv6::Header::default() };
    let icmp = ipv6::Header { next_header: 58, ..tcp };
    for (kind, is_told) in [(1, false), (2, false), (127, false), (128, true), (135, true), (137, false)] {
        assert_eq!(answer(&v6(icmp, &[kind; 40]), 1500, 1430).is_some(), is_told, "type {kind}");
    }
    assert_eq!(answer(&v6(tcp, &[0; 40]), 1500, 1279), None, "no host takes such an MTU");
    let with = |at: usize, bytes: &[u8]| {
        let mut head = v6(tcp, &[0; 40]);
        head[at..at + bytes.len()].copy_from_slice(bytes);
        answer(&head, 1500, 1430)
    };
    assert!(with(22, &[0xfd]).is_some());
    for (at, bytes, what) in
        [(22, &[0; 16][..], "from nobody"), (22, &[0xff], "from a group"), (38, &[0xff, 2], "for a group")]
    {
        assert_eq!(with(at, bytes), None, "{what}");
    }
    let fragment = ipv6::Header { next_header: 44, ..tcp };
    let part = |offset: u8| v6(fragment, &[&[6, 0, 0, offset | 1, 0, 0, 0, 1][..], &[0; 40]].concat());
    assert!(answer(&part(0), 1500, 1430).is_some());
    assert_eq!(answer(&part(8), 1500, 1430), None, "a later fragment");
}
