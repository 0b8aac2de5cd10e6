//! `Layout` against etherparse's slices.

use crate::packets::packet;
use etherparse::{NetSlice, SlicedPacket, TransportSlice, VlanSlice};
use nicety_frame::{Fragment, L3Kind, L4Kind, Layout};
use proptest::prelude::*;

fn offset_of(part: &[u8], whole: &[u8]) -> usize {
    part.as_ptr() as usize - whole.as_ptr() as usize
}

/// IPv6 with the extension headers of `chain`. The chain holds each header's bytes without the next-header field.
fn v6(first: u8, chain: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, first, 64]);
    frame.extend([1; 16]);
    frame.extend([2; 16]);
    frame.extend(chain);
    frame
}

proptest! {
    #[test]
    fn a_packet_is_laid_out_as_etherparse_slices_it(packet in packet(200)) {
        let layout = Layout::parse(&packet.bytes);
        let sliced = SlicedPacket::from_ethernet(&packet.bytes).unwrap();
        let tags: Vec<_> = layout.tags.iter().flatten().map(|tag| tag.tci.id()).collect();
        prop_assert_eq!(&tags, &sliced.vlan_ids().iter().map(|id| id.value()).collect::<Vec<_>>());
        if let Some(VlanSlice::SingleVlan(vlan)) = sliced.vlan() {
            let tci = layout.tags[0].unwrap().tci;
            prop_assert_eq!(tci.priority(), vlan.priority_code_point().value());
            prop_assert_eq!(tci.drop_eligible(), vlan.drop_eligible_indicator());
        }
        let l3 = layout.l3.unwrap();
        let payload = match sliced.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                prop_assert_eq!(l3.kind, L3Kind::V4);
                prop_assert_eq!(usize::from(l3.offset), offset_of(ip.header().slice(), &packet.bytes));
                ip.payload().clone()
            }
            NetSlice::Ipv6(ip) => {
                prop_assert_eq!(l3.kind, L3Kind::V6);
                prop_assert_eq!(usize::from(l3.offset), offset_of(ip.header().slice(), &packet.bytes));
                ip.payload().clone()
            }
            NetSlice::Arp(_) => unreachable!("no ARP was built"),
        };
        prop_assert_eq!(usize::from(l3.offset + l3.len), offset_of(payload.payload, &packet.bytes));
        prop_assert_eq!(l3.protocol, payload.ip_number.0);
        prop_assert_eq!(l3.fragment, Fragment::Whole);
        let l4 = layout.l4.unwrap();
        let (kind, header, ports) = match sliced.transport.as_ref().unwrap() {
            TransportSlice::Tcp(tcp) => {
                (L4Kind::Tcp, tcp.header_slice(), (tcp.source_port(), tcp.destination_port()))
            }
            TransportSlice::Udp(udp) => {
                (L4Kind::Udp, udp.header_slice(), (udp.source_port(), udp.destination_port()))
            }
            other => unreachable!("{other:?} was not built"),
        };
        prop_assert_eq!(l4.kind, kind);
        prop_assert_eq!(usize::from(l4.offset), offset_of(header, &packet.bytes));
        prop_assert_eq!(usize::from(l4.len), header.len());
        prop_assert_eq!(layout.ports(&packet.bytes), Some(ports));
        prop_assert_eq!(usize::from(layout.headers_len), packet.payload_at);
        prop_assert_eq!(layout.l4_total_len(&packet.bytes), Some(packet.bytes.len() - packet.l4_at));
    }

    #[test]
    fn a_head_that_is_cut_off_yields_what_is_whole(packet in packet(0), cut in 0_usize..200) {
        let whole = Layout::parse(&packet.bytes);
        let head = &packet.bytes[..cut.min(packet.bytes.len())];
        let layout = Layout::parse(head);
        prop_assert!(usize::from(layout.headers_len) <= head.len());
        prop_assert_eq!(layout.l4.is_some(), head.len() >= packet.payload_at);
        match whole.l3.unwrap().kind {
            L3Kind::V4 => prop_assert_eq!(layout.l3.is_some(), head.len() >= packet.l4_at),
            L3Kind::V6 => prop_assert_eq!(layout.l3.is_some(), head.len() >= packet.l3_at + 40),
        }
        prop_assert_eq!(layout.l2_len == whole.l2_len, head.len() >= packet.l3_at);
        prop_assert_eq!(layout.l2_len == 0, head.len() < 14);
        if head.len() >= packet.payload_at {
            prop_assert_eq!(layout, whole);
        }
    }
}

#[test]
fn only_the_first_fragment_has_an_l4_header() {
    // RFC 791 section 3.1: flags and offset share a field; "more" is bit 13, the offset counts 8 bytes.
    for (field, fragment) in [
        (0x0000_u16, Fragment::Whole),
        (0x4000, Fragment::Whole),
        (0x2000, Fragment::First),
        (0x2001, Fragment::Later),
        (0x0001, Fragment::Later),
    ] {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 1]);
        frame.extend(field.to_be_bytes());
        frame.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0; 20]);
        let layout = Layout::parse(&frame);
        assert_eq!(layout.l3.unwrap().fragment, fragment);
        assert_eq!(layout.l4.is_some(), fragment != Fragment::Later, "{field:#06x}");
    }
}

#[test]
fn a_fragment_header_of_ipv6_is_told_from_an_atomic_one() {
    // RFC 8200 section 4.5: next header, reserved, offset (13 bits) and M, identification; RFC 6946 for 0 and no M.
    for (field, fragment) in
        [(0x0000_u16, Fragment::Whole), (0x0001, Fragment::First), (0x0009, Fragment::Later), (0x0008, Fragment::Later)]
    {
        let [high, low] = field.to_be_bytes();
        let mut chain = vec![17, 0, high, low, 0, 0, 0, 7];
        chain.extend([0; 8]);
        let layout = Layout::parse(&v6(44, &chain));
        let l3 = layout.l3.unwrap();
        assert_eq!((l3.fragment, l3.protocol, l3.len), (fragment, 17, 48));
        assert_eq!(layout.l4.is_some(), fragment != Fragment::Later, "{field:#06x}");
    }
}

#[test]
fn a_routing_header_with_hops_left_names_the_final_destination() {
    // Type 0 lists the final destination last, type 4 (RFC 8754) first, type 2 (RFC 6275) has only one.
    for (routing_type, addresses, expected) in
        [(0_u8, 3_u8, 14 + 40 + 8 + 32), (4, 3, 14 + 40 + 8), (2, 1, 14 + 40 + 8)]
    {
        for (left, expected) in [(1, expected), (0, 14 + 24)] {
            let mut chain = vec![17, addresses * 2, routing_type, left, 0, 0, 0, 0];
            chain.extend(vec![9; usize::from(addresses) * 16]);
            chain.extend([0; 8]);
            let layout = Layout::parse(&v6(43, &chain));
            assert!(layout.l4.is_some());
            assert_eq!(layout.l3.unwrap().destination_at, expected, "type {routing_type}, {left} left");
        }
    }
}

#[test]
fn the_walk_over_extension_headers_ends() {
    let chain: Vec<u8> = [60_u8, 0, 0, 0, 0, 0, 0, 0].repeat(2000);
    let layout = Layout::parse(&v6(60, &chain));
    let l3 = layout.l3.unwrap();
    assert_eq!(usize::from(l3.len), 40 + 8 * nicety_frame::layout::EXTENSIONS_MAX);
    assert_eq!((l3.protocol, layout.l4), (60, None));
}

#[test]
fn any_number_of_tags_is_walked_and_the_outer_two_are_kept() {
    // Linux takes priority tags off one after another: net/core/dev.c, __netif_receive_skb_core.
    let most = nicety_frame::layout::TAGS_MAX;
    for count in [0, 1, 2, 3, 9, most] {
        let mut frame = vec![0; 12];
        (0..count).for_each(|id| frame.extend([0x81, 0, 0, id as u8]));
        frame.extend([0x08, 0, 0x45]);
        frame.extend([0; 60]);
        let layout = Layout::parse(&frame);
        let l2_len = 14 + 4 * count;
        assert_eq!((layout.tag_count(), usize::from(layout.l2_len)), (count.min(2), l2_len));
        assert_eq!(layout.l3.map(|l3| usize::from(l3.offset)), Some(l2_len));
        let ids: Vec<_> = layout.tags.iter().flatten().map(|tag| tag.tci.id()).collect();
        assert_eq!(ids, (0..count.min(2) as u16).collect::<Vec<_>>());
        assert!(!layout.is_cut());
    }
    let endless: Vec<u8> = [0x81, 0, 0, 0].repeat(30_000);
    let layout = Layout::parse(&endless);
    assert_eq!((usize::from(layout.l2_len), layout.ethertype, layout.l3), (14 + 4 * most, 0x8100, None));
    assert!(layout.is_cut());
}

#[test]
fn a_second_fragment_header_ends_the_walk() {
    // RFC 8200, section 4.1: each header at most once. Here the first is an atomic fragment's, the second a later part's.
    let chain = [&[44, 0, 0, 0, 0, 0, 0, 7][..], &[17, 0, 0, 8, 0, 0, 0, 7], &[0; 8]].concat();
    let l3 = Layout::parse(&v6(44, &chain)).l3.unwrap();
    assert_eq!((l3.protocol, l3.fragment, l3.len), (44, Fragment::Whole, 48));
}

#[test]
fn a_header_that_is_announced_and_not_whole_is_a_cut() {
    let frame = |ethertype: u16, rest: &[u8]| [&[0; 12][..], &ethertype.to_be_bytes(), rest].concat();
    for (bytes, cut) in [
        (frame(0x0800, &[0x45; 20]), false),
        (frame(0x0800, &[0x45; 19]), true),
        (frame(0x0800, &[0x65; 40]), true),
        (frame(0x86dd, &[0x60; 40]), false),
        (frame(0x86dd, &[0x60; 39]), true),
        (frame(0x8100, &[0, 0, 8]), true),
        (frame(0x88a8, &[0, 0, 8, 6]), false),
        (frame(0x0806, &[]), false),
        (frame(100, &[]), false),
    ] {
        assert_eq!(Layout::parse(&bytes).is_cut(), cut, "{bytes:02x?}");
    }
}
