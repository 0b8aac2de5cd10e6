//! Segments against etherparse (whether they parse and are whole) and smoltcp (whether their checksums are right).

use crate::packets::{Packet, Plan, build, packet, plan};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use nicety_frame::checksum::{complete, sum};
use nicety_frame::{L3Kind, L4Kind, Layout, SegmentError, SegmentKind, Segmenter};
use proptest::prelude::*;
use smoltcp::wire::{IpAddress, TcpPacket, UdpPacket};
use std::net::IpAddr;

fn kind(packet: &Packet) -> SegmentKind {
    match packet.plan.l4 {
        L4Kind::Tcp => SegmentKind::Tcp,
        L4Kind::Udp => SegmentKind::Udp,
    }
}

/// Each segment as a frame with its finished checksum.
fn frames(packet: &Packet, mss: u16) -> Vec<Vec<u8>> {
    let (head, payload) = packet.bytes.split_at(packet.payload_at);
    let layout = Layout::parse(head);
    let segmenter = Segmenter::new(head, &layout, payload.len(), mss, kind(packet)).unwrap();
    let mut frames = Vec::new();
    // Backwards: no segment may depend on an earlier one.
    for index in (0..segmenter.count()).rev() {
        let mut frame = vec![0xcc; 512];
        let segment = segmenter.segment(index, &mut frame).unwrap();
        assert_eq!(segment.last, index + 1 == segmenter.count());
        frame.truncate(segment.head_len);
        let part = &payload[segment.payload.clone()];
        complete(&mut frame, segment.checksum_start, segment.checksum_offset, sum(part)).unwrap();
        frame.extend(part);
        assert_eq!(frame.len(), segment.len());
        frames.push(frame);
    }
    assert!(segmenter.segment(segmenter.count(), &mut [0; 512]).is_none());
    assert!(segmenter.segment(0, &mut vec![0; head.len() - 1]).is_none());
    frames.reverse();
    frames
}

fn check(packet: &Packet, mss: u16) -> Result<(), TestCaseError> {
    let frames = frames(packet, mss);
    prop_assert_eq!(frames.len(), packet.plan.payload.len().div_ceil(usize::from(mss)).max(1));
    let mut rebuilt: Vec<u8> = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let (first, last) = (index == 0, index + 1 == frames.len());
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        prop_assert_eq!(&frame[..packet.l3_at], &packet.bytes[..packet.l3_at]);
        let (source, destination): (IpAddress, IpAddress) = match sliced.net.as_ref().unwrap() {
            NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                prop_assert_eq!(header.header_checksum, header.calc_header_checksum());
                prop_assert_eq!(header.identification, packet.plan.id.wrapping_add(index as u16));
                prop_assert_eq!(usize::from(header.total_len), frame.len() - packet.l3_at);
                (IpAddr::from(header.source).into(), IpAddr::from(header.destination).into())
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header().to_header();
                prop_assert_eq!(usize::from(header.payload_length), frame.len() - packet.l3_at - 40);
                (IpAddr::from(header.source).into(), IpAddr::from(header.destination).into())
            }
            NetSlice::Arp(_) => unreachable!("no ARP was built"),
        };
        match sliced.transport.as_ref().unwrap() {
            TransportSlice::Tcp(tcp) => {
                prop_assert!(TcpPacket::new_checked(tcp.slice()).unwrap().verify_checksum(&source, &destination));
                prop_assert_eq!(tcp.sequence_number(), packet.plan.sequence.wrapping_add(rebuilt.len() as u32));
                let flags = packet.plan.flags;
                prop_assert_eq!(tcp.fin(), last && flags & 1 != 0);
                prop_assert_eq!(tcp.psh(), last && flags & 8 != 0);
                prop_assert_eq!(tcp.cwr(), first && flags & 0x80 != 0);
                prop_assert_eq!((tcp.ack(), tcp.ece()), (flags & 0x10 != 0, flags & 0x40 != 0));
                prop_assert_eq!(tcp.options().len(), packet.plan.tcp_option_words * 4);
                rebuilt.extend(tcp.payload());
            }
            TransportSlice::Udp(udp) => {
                prop_assert_ne!(udp.checksum(), 0);
                prop_assert!(UdpPacket::new_checked(udp.slice()).unwrap().verify_checksum(&source, &destination));
                prop_assert_eq!(usize::from(udp.length()), frame.len() - packet.l4_at);
                rebuilt.extend(udp.payload());
            }
            other => unreachable!("{other:?} was not built"),
        }
    }
    prop_assert!(rebuilt == packet.plan.payload);
    Ok(())
}

proptest! {
    #[test]
    fn every_segment_is_a_valid_frame_and_together_they_are_the_payload(packet in packet(3000), mss in 1_u16..1600) {
        check(&packet, mss)?;
    }

    #[test]
    fn stale_lengths_and_checksums_of_the_big_packet_do_not_matter(mut packet in packet(900), junk: u16) {
        // Linux's e1000 driver hands over total length 0 and a pseudo-header sum without length (e1000_main.c,
        // e1000_tso); other drivers leave other values there.
        let layout = Layout::parse(&packet.bytes);
        let length_at = packet.l3_at + if packet.plan.l3 == L3Kind::V4 { 2 } else { 4 };
        packet.bytes[length_at..length_at + 2].copy_from_slice(&junk.to_be_bytes());
        if packet.plan.l3 == L3Kind::V4 {
            packet.bytes[packet.l3_at + 10..packet.l3_at + 12].copy_from_slice(&junk.to_be_bytes());
        }
        let at = layout.l4.unwrap().checksum_at();
        packet.bytes[at..at + 2].copy_from_slice(&junk.to_be_bytes());
        if packet.plan.l4 == L4Kind::Udp {
            packet.bytes[packet.l4_at + 4..packet.l4_at + 6].copy_from_slice(&junk.to_be_bytes());
        }
        check(&packet, 300)?;
    }

    /// Each segment equals the packet that a sender would have made: etherparse builds the outer packet around the inner one,
    /// which is cut without a tunnel.
    #[test]
    fn every_segment_through_a_tunnel_is_a_packet_of_its_own(
        mut inner in plan(3000), mut outer in plan(0), mss in 1_u16..1600, options in 0_u8..64, geneve: bool, sums: bool,
    ) {
        inner.l4 = L4Kind::Tcp;
        outer.l4 = L4Kind::Udp;
        outer.ports.1 = if geneve { 6081 } else { 4789 };
        let header = if geneve {
            [vec![options, 0, 0x65, 0x58, 0, 0, 7, 0], vec![9; 4 * usize::from(options)]].concat()
        } else {
            vec![8, 0, 0, 0, 0, 0, 7, 0]
        };
        let inner = build(inner);
        let around = |frame: &[u8], index: usize| {
            let payload = [&header, frame].concat();
            let mut packet = build(Plan { payload, id: outer.id.wrapping_add(index as u16), ..outer.clone() });
            if !sums {
                packet.bytes[packet.l4_at + 6..packet.l4_at + 8].fill(0);
            }
            packet
        };
        let big = around(&inner.bytes, 0);
        let (head, payload) = big.bytes.split_at(big.payload_at + header.len() + inner.payload_at);
        let segmenter =
            Segmenter::new(head, &Layout::parse(head), payload.len(), mss, SegmentKind::Tunnel).unwrap();
        for (index, frame) in frames(&inner, mss).iter().enumerate() {
            let mut made = vec![0xcc; 2048];
            let segment = segmenter.segment(index, &mut made).unwrap();
            made.truncate(segment.head_len);
            let part = &payload[segment.payload.clone()];
            complete(&mut made, segment.checksum_start, segment.checksum_offset, sum(part)).unwrap();
            made.extend(part);
            let mut expected = around(frame, index).bytes;
            if outer.l3 == L3Kind::V6 {
                // All segments of a flow have its flow label.
                expected[big.l3_at..big.l3_at + 4].copy_from_slice(&big.bytes[big.l3_at..big.l3_at + 4]);
            }
            prop_assert!(made == expected, "segment {index}");
        }
    }
}

fn big(l3: L3Kind, l4: L4Kind, payload_len: usize) -> Packet {
    build(Plan {
        macs: [2; 12],
        tags: vec![(false, 5)],
        l3,
        source: [10; 16],
        destination: [20; 16],
        id: 0xfff0,
        ip_option_words: 0,
        extensions: Vec::new(),
        l4,
        ports: (1, 2),
        sequence: 0xffff_f000,
        flags: 0x99,
        tcp_option_words: 3,
        payload: (0..payload_len).map(|byte| byte as u8).collect(),
    })
}

#[test]
fn a_packet_beyond_64_kib_is_segmented_and_its_counters_wrap() {
    for l3 in [L3Kind::V4, L3Kind::V6] {
        for l4 in [L4Kind::Tcp, L4Kind::Udp] {
            for payload_len in [0, 1, 1447, 1448, 1449, 65_000, 200_000] {
                check(&big(l3, l4, payload_len), 1448).unwrap();
            }
        }
    }
}

#[test]
fn what_cannot_be_segmented_is_an_error() {
    let packet = big(L3Kind::V4, L4Kind::Tcp, 0);
    let (head, layout) = (&packet.bytes[..], Layout::parse(&packet.bytes));
    let new = |head, layout: &Layout, len, mss, kind| Segmenter::new(head, layout, len, mss, kind).map(|s| s.count());
    assert_eq!(new(head, &layout, 3000, 1448, SegmentKind::Tcp), Ok(3));
    assert_eq!(new(head, &layout, 3000, 0, SegmentKind::Tcp), Err(SegmentError::ZeroSize));
    assert_eq!(new(head, &layout, 3000, 1448, SegmentKind::Udp), Err(SegmentError::Protocol));
    assert_eq!(new(head, &Layout::EMPTY, 3000, 1448, SegmentKind::Tcp), Err(SegmentError::Protocol));
    assert_eq!(new(&head[..head.len() - 1], &layout, 3000, 1448, SegmentKind::Tcp), Err(SegmentError::Headers));
    assert_eq!(new(head, &layout, 1 << 20, 1448, SegmentKind::Tcp), Err(SegmentError::TooLong));
    assert_eq!(new(head, &layout, usize::MAX, 1, SegmentKind::Tcp), Err(SegmentError::TooLong));
    assert_eq!(new(head, &layout, 100_000, 65_535, SegmentKind::Tcp), Err(SegmentError::TooLong));
    assert_eq!(new(head, &layout, 1000, 65_535, SegmentKind::Tcp), Ok(1));
    let mut forged = layout;
    forged.l4 = layout.l4.map(|l4| nicety_frame::L4 { offset: 9, ..l4 });
    assert_eq!(new(head, &forged, 3000, 1448, SegmentKind::Tcp), Err(SegmentError::Headers));
    let mut fragment = packet.bytes.clone();
    fragment[packet.l3_at + 6] = 0x20;
    let layout = Layout::parse(&fragment);
    assert_eq!(new(&fragment, &layout, 3000, 1448, SegmentKind::Tcp), Err(SegmentError::Fragment));
}
