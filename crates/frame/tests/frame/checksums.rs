//! Sums against smoltcp, etherparse, and the examples of the RFCs.

use crate::packets::packet;
use nicety_frame::checksum::{self, Running, Verdict, pseudo_v4, pseudo_v6, sum, update, update_long};
use nicety_frame::{L4Kind, Layout, Sum};
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::wire::IpProtocol;
use smoltcp::wire::checksum as smoltcp_checksum;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The two forms of a sum of 0.
fn same(left: u16, right: u16) -> bool {
    left == right || (left, right) == (0, 0xffff) || (left, right) == (0xffff, 0)
}

#[test]
fn the_example_of_rfc_1071_sums_to_ddf2() {
    // RFC 1071 section 3, "Numerical examples".
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(sum(&bytes).fold(), 0xddf2);
    assert_eq!(sum(&bytes).checksum(), 0x220d);
    // The same bytes in two groups of three and five, as the RFC's second table breaks at an odd boundary.
    assert_eq!(sum(&bytes[..3]).then(sum(&bytes[3..]), true).fold(), 0xddf2);
}

#[test]
fn the_example_of_rfc_1624_updates_to_zero() {
    // RFC 1624 section 4: the case that RFC 1141's equation gets wrong.
    assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
}

#[test]
fn the_largest_words_do_not_lose_a_carry() {
    for len in [2, 62, 64, 66, 1500, 65_536, 1 << 20] {
        assert_eq!(sum(&vec![0xff; len]).fold(), 0xffff, "{len}");
    }
}

#[test]
fn a_udp_checksum_of_zero_is_sent_as_ones() {
    assert_eq!(Sum::of(0xffff).checksum(), 0);
    assert_eq!(Sum::of(0xffff).transmit(), 0xffff);
    assert_eq!(Sum::of(0x1234).transmit(), !0x1234);
}

proptest! {
    #[test]
    fn sums_agree_with_smoltcp_and_etherparse(bytes in vec(any::<u8>(), 0..4000)) {
        let ours = sum(&bytes).fold();
        prop_assert!(same(ours, smoltcp_checksum::data(&bytes)));
        let theirs = etherparse::checksum::Sum16BitWords::new().add_slice(&bytes).ones_complement();
        prop_assert!(same(!ours, theirs.to_be()));
    }

    #[test]
    fn pieces_of_any_length_sum_to_the_whole(pieces in vec(vec(any::<u8>(), 0..90), 0..12)) {
        let whole = pieces.concat();
        let mut running = Running::default();
        for piece in &pieces {
            running.push(piece);
        }
        prop_assert!(same(running.total().fold(), smoltcp_checksum::data(&whole)));
    }

    #[test]
    fn pseudo_headers_agree_with_smoltcp(source: [u8; 16], destination: [u8; 16], len: u16) {
        let [a, b, c, d, ..] = source;
        let [e, f, g, h, ..] = destination;
        let (from, to) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
        let theirs = smoltcp_checksum::pseudo_header_v4(&from, &to, IpProtocol::Tcp, u32::from(len));
        prop_assert!(same(pseudo_v4(from, to, 6, u32::from(len)).fold(), theirs));
        let (from, to) = (Ipv6Addr::from(source), Ipv6Addr::from(destination));
        let theirs = smoltcp_checksum::pseudo_header_v6(&from, &to, IpProtocol::Udp, u32::from(len));
        prop_assert!(same(pseudo_v6(from, to, 17, u32::from(len)).fold(), theirs));
    }

    #[test]
    fn an_update_equals_summing_again(mut bytes in vec(any::<u8>(), 40), at in 0_usize..18, new: u16, long: u32) {
        let at = at * 2;
        // RFC 1624 assumes that something in the covered bytes is not 0.
        bytes[39] |= 1;
        let before = sum(&bytes).checksum();
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        prop_assert_eq!(update(before, old, new), sum(&bytes).checksum());
        let before = sum(&bytes).checksum();
        let old = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        bytes[at..at + 4].copy_from_slice(&long.to_be_bytes());
        bytes[39] |= 1;
        let new = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        prop_assert_eq!(update_long(before, old, new), sum(&bytes).checksum());
    }

    #[test]
    fn checksums_of_etherparse_are_good_and_filled_alike(packet in packet(1500)) {
        let layout = Layout::parse(&packet.bytes);
        prop_assert_eq!(checksum::check(&packet.bytes, &layout), Verdict::Good);
        let mut padded = packet.bytes.clone();
        padded.extend([0xa5; 7]);
        let at = layout.l4.unwrap().checksum_at();
        let theirs = u16::from_be_bytes([padded[at], padded[at + 1]]);
        padded[at..at + 2].fill(0x55);
        prop_assert_eq!(checksum::check(&padded, &layout) == Verdict::Good, theirs == 0x5555);
        let ours = checksum::fill(&mut padded, &layout).unwrap();
        prop_assert!(same(ours, theirs));
        prop_assert_eq!(checksum::check(&padded, &layout), Verdict::Good);
        prop_assert!(padded.ends_with(&[0xa5; 7]));
    }

    #[test]
    fn a_partial_checksum_is_finished_over_a_split_packet(packet in packet(600), cut in 0_usize..600) {
        let layout = Layout::parse(&packet.bytes);
        let l4 = layout.l4.unwrap();
        let len = (packet.bytes.len() - packet.l4_at) as u32;
        let mut head = packet.bytes.clone();
        let rest = head.split_off((packet.payload_at + cut).min(packet.bytes.len()));
        let theirs = u16::from_be_bytes([head[l4.checksum_at()], head[l4.checksum_at() + 1]]);
        let partial = checksum::pseudo(&head, &layout, len).unwrap().fold();
        head[l4.checksum_at()..][..2].copy_from_slice(&partial.to_be_bytes());
        let (start, offset) = (usize::from(l4.offset), usize::from(l4.kind.checksum_offset()));
        let ours = checksum::complete(&mut head, start, offset, sum(&rest)).unwrap();
        prop_assert!(same(ours, theirs));
        prop_assert!(l4.kind == L4Kind::Tcp || ours != 0);
    }
}

#[test]
fn a_datagram_without_a_checksum_is_not_bad() {
    // A frame of 60 bytes: IPv4, UDP, checksum 0, two bytes of payload, padding.
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 30, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 7, 0, 7, 0, 10, 0, 0, 1, 2]);
    frame.resize(60, 0xee);
    let layout = Layout::parse(&frame);
    assert_eq!(checksum::check(&frame, &layout), Verdict::Absent);
    frame[41] = 1;
    assert_eq!(checksum::check(&frame, &layout), Verdict::Bad);
    assert_eq!(checksum::check(&frame[..43], &layout), Verdict::Unknown);
}

#[test]
fn a_datagram_shorter_than_its_packet_is_covered_as_far_as_its_own_length_says() {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 34, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 7, 0, 7, 0, 10, 0, 0, 1, 2, 0xaa, 0xbb, 0xcc, 0xdd]);
    let (from, to) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
    smoltcp::wire::UdpPacket::new_checked(&mut frame[34..44]).unwrap().fill_checksum(&from, &to);
    let layout = Layout::parse(&frame);
    assert_eq!(checksum::check(&frame, &layout), Verdict::Good);
    let theirs = frame.clone();
    assert!(checksum::fill(&mut frame, &layout).is_some());
    assert_eq!(frame, theirs);
    frame[39] = 15;
    assert_eq!(layout.l4_total_len(&frame), None);
    assert_eq!(checksum::check(&frame, &layout), Verdict::Unknown, "longer than its packet");
}

#[test]
fn a_packet_whose_length_ends_in_its_headers_has_no_checksum_to_check() {
    // Total length 39 leaves 19 bytes for a TCP header of 20; a driver writes 0 for segmentation.
    for (total_len, verdict) in
        [(0, Verdict::Unknown), (19, Verdict::Unknown), (39, Verdict::Unknown), (40, Verdict::Bad)]
    {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, total_len, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 7, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
        frame.resize(60, 0);
        let layout = Layout::parse(&frame);
        assert_eq!(layout.l4_total_len(&frame), (total_len == 40).then_some(20));
        assert_eq!(checksum::check(&frame, &layout), verdict, "{total_len}");
        assert_eq!(checksum::fill(&mut frame, &layout).is_some(), total_len == 40);
    }
}

#[test]
fn a_request_outside_the_head_writes_nothing() {
    let mut head = [7; 40];
    for (start, offset) in [(41, 0), (40, 0), (39, 0), (20, 19), (usize::MAX, 2), (2, usize::MAX)] {
        assert_eq!(checksum::complete(&mut head, start, offset, Sum::ZERO), None);
        assert_eq!(head, [7; 40]);
    }
}
