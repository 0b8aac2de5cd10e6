//! No frame content causes a panic (ARCHITECTURE.md, "What holds everywhere", 2).

use crate::packets::packet;
use nicety_frame::checksum::{self, Running, sum};
use nicety_frame::toeplitz::{HashKinds, Input, Table};
use nicety_frame::{
    L4Kind, Layout, SegmentKind, Segmenter, Tag, Tci, arp, crc, ethernet, group, ipv4, ipv6, tcp, udp, vlan,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Calls each function with `frame`, with its own layout and with another frame's.
fn everything(frame: &[u8], foreign: &Layout, mss: u16) {
    let own = Layout::parse(frame);
    assert!(usize::from(own.headers_len) <= frame.len());
    for layout in [&own, foreign] {
        let mut copy = frame.to_vec();
        let _ = (layout.ports(frame), layout.l4_total_len(frame), layout.tag_count());
        let _ = (group::kind(layout, frame), group::destination(layout, frame), layout.is_cut());
        if let Some(group::Message::Report(records)) = group::message(layout, frame) {
            let _ = records.count();
        }
        let _ = checksum::check(frame, layout);
        let _ = checksum::check_with(frame, layout, |_| Some(sum(frame)));
        let _ = checksum::pseudo(frame, layout, u32::MAX);
        let _ = checksum::fill(&mut copy, layout);
        if let Some(input) = Input::of(frame, layout, HashKinds::ALL) {
            let _ = Table::new(&[]).hash(input.bytes());
        }
        for kind in [SegmentKind::Tcp, SegmentKind::Udp] {
            let Ok(segmenter) = Segmenter::new(frame, layout, frame.len(), mss, kind) else { continue };
            let mut out = vec![0; segmenter.head_len()];
            for index in [0, 1, segmenter.count() - 1, segmenter.count(), usize::MAX] {
                let _ = segmenter.segment(index, &mut out);
            }
        }
    }
    let mut copy = frame.to_vec();
    let _ = checksum::complete(&mut copy, usize::from(mss), 16, sum(frame));
    let mut running = Running::after(sum(frame), frame.len());
    running.push(frame);
    let _ = crc::fcs(frame);
    let tagged = vlan::insert(&mut copy, frame.len().saturating_sub(4), Tag::customer(Tci(mss)));
    let _ = vlan::strip(&mut copy, tagged.unwrap_or(frame.len()));
    let _ = vlan::replace(&mut copy, Tag::service(Tci(mss)));
    views(frame);
    views(frame.get(14..).unwrap_or_default());
}

fn views(bytes: &[u8]) {
    let _ = (ethernet::View::parse(bytes).map(|view| view.payload().len()), arp::Packet::parse(bytes));
    let _ = ipv4::View::parse(bytes).map(|view| (view.payload().len(), view.options().len(), view.checksum_ok()));
    let _ = ipv6::View::parse(bytes).map(|view| (view.payload().len(), view.source(), view.destination()));
    let _ = tcp::View::parse(bytes).map(|view| (view.payload().len(), view.options().len()));
    let _ = udp::View::parse(bytes).map(|view| (view.payload().len(), view.is_empty()));
    let mut copy = bytes.to_vec();
    if let Ok(mut edit) = ipv4::Edit::parse(&mut copy) {
        edit.fill_checksum();
        edit.set_destination(ipv4::Ipv4Addr::BROADCAST);
    }
}

#[test]
fn frames_of_every_notable_length_are_survived() {
    for len in [0, 1, 13, 14, 17, 18, 33, 34, 59, 60, 1514, 1518, 1522, 9018, 16 << 10, 64 << 10, (64 << 10) + 14] {
        for ethertype in [[0x08, 0x00], [0x86, 0xdd], [0x81, 0x00], [0x88, 0xa8], [0x08, 0x06], [0xff, 0xff]] {
            for fill in [0x00, 0x45, 0x60, 0x06, 0x11, 0x81, 0xff] {
                let mut frame = vec![fill; len];
                for (to, from) in frame.iter_mut().skip(12).zip(ethertype) {
                    *to = from;
                }
                everything(&frame, &Layout::EMPTY, 1448);
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_survived(frame in vec(any::<u8>(), 0..300), other in packet(100), mss: u16) {
        everything(&frame, &Layout::parse(&other.bytes), mss);
    }

    #[test]
    fn damaged_and_cut_packets_are_survived(
        packet in packet(300),
        other in packet(300),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut: prop::sample::Index,
        mss: u16,
    ) {
        let mut frame = packet.bytes;
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        everything(&frame, &Layout::parse(&other.bytes), mss);
        frame.truncate(cut.index(frame.len()));
        everything(&frame, &Layout::parse(&other.bytes), mss);
    }

    #[test]
    fn forged_layouts_are_survived(frame in packet(100), numbers: [u16; 7], tcp: bool, mss: u16) {
        let mut layout = Layout::parse(&frame.bytes);
        let [l2_len, offset, len, destination_at, l4_offset, l4_len, headers_len] = numbers;
        layout.l2_len = l2_len;
        layout.headers_len = headers_len;
        if let (Some(l3), Some(l4)) = (&mut layout.l3, &mut layout.l4) {
            (l3.offset, l3.len, l3.destination_at) = (offset, len, destination_at);
            (l4.offset, l4.len) = (l4_offset, l4_len);
            l4.kind = if tcp { L4Kind::Tcp } else { L4Kind::Udp };
        }
        everything(&frame.bytes, &layout, mss);
    }
}
