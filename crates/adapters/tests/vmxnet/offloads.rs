//! Checksums and segmentation, which entries request without offsets; packets that arrive uncut.

use nicety_adapter::{Checksum, Offload, Reason, Segment, SegmentKind};

use crate::bench::*;

/// TCP over IPv4 with this payload and a partial checksum: the pseudo-header's sum, as in Linux.
fn tcp(to: [u8; 6], len: usize, tags: &[u8]) -> Vec<u8> {
    let mut packet = partial(tcp4(to, &payload(len)));
    packet.splice(12..12, tags.iter().copied());
    packet
}

/// Puts a packet into entries from 0 on, 6000 bytes each.
fn queue(b: &Bench, packet: &[u8], flags: u16, mss: u32) {
    b.put(TX_DATA, packet);
    let chunks: Vec<_> = (0..packet.len() as u32).step_by(6000).collect();
    for (index, at) in chunks.iter().enumerate().rev() {
        let more = if index + 1 < chunks.len() { MORE } else { 0 };
        let own = if index == 0 { KEEP | flags } else { 0 };
        let len = (packet.len() as u32 - at).min(6000) as u16;
        b.tx(index as u32, own | more, if index == 0 { mss } else { 0 }, &[(TX_DATA + at, len)]);
    }
}

#[test]
fn a_checksum_is_asked_for_without_a_place_and_made_from_whatever_lies_there() {
    for tags in [&[][..], &[0x81, 0, 0, 7]] {
        let mut b = Bench::opened("vmxnet");
        let packet = tcp(MAC, 700, tags);
        let field = 50 + tags.len();
        let mut spoiled = packet.clone();
        spoiled[field..field + 2].copy_from_slice(&[0xde, 0xad]);
        for sent in [packet.clone(), spoiled] {
            b.w(0, 0);
            b.lay();
            b.open();
            queue(&b, &sent, XSUM, 0);
            b.ring_bell();
            let out = b.transmit();
            let (bytes, offload) = &out[0];
            assert!(*bytes == packet, "with the pseudo-header's sum");
            let (start, field) = (34 + tags.len() as u16, field as u16);
            assert_eq!(offload.checksum, Checksum::Partial { start, field });
        }
    }
}

#[test]
fn a_checksum_of_what_is_no_whole_tcp_or_udp_is_refused() {
    let mut b = Bench::opened("vmxnet");
    let mut fragment = tcp(MAC, 100, &[]);
    fragment[20] = 0x20;
    queue(&b, &fragment, XSUM, 0);
    b.ring_bell();
    assert!(b.transmit().is_empty());
    b.queue(1, &frame(60));
    b.put(b.entry(1), &(KEEP | XSUM).to_le_bytes());
    b.ring_bell();
    assert!(b.transmit().is_empty());
    assert_eq!(b.dropped(Reason::BadOffload), 2);
    assert_eq!([b.owner(0), b.owner(1)], [DRIVER; 2], "they come back all the same");
}

#[test]
fn a_packet_of_64_kb_stays_one_with_its_request() {
    for tags in [&[][..], &[0x81, 0, 0, 7]] {
        let mut b = Bench::opened("vmxnet2");
        let packet = tcp(MAC, 60_000, tags);
        queue(&b, &packet, TSO | XSUM, 1448);
        b.ring_bell();
        let out = b.transmit();
        let headers = 54 + tags.len() as u16;
        let segment = Segment { kind: SegmentKind::Tcp, mss: 1448, headers };
        assert_eq!(out[0].1.segment, Some(segment));
        assert!(out[0].0[usize::from(headers)..] == packet[usize::from(headers)..]);
        assert_eq!(b.counters.transmitted().frames, 60_000_u64.div_ceil(1448));
    }
}

#[test]
fn a_request_to_cut_that_makes_no_sense_is_refused() {
    for mss in [0, 1, 65_536, u32::MAX] {
        let mut b = Bench::opened("vmxnet2");
        queue(&b, &tcp(MAC, 60_000, &[]), TSO, mss);
        b.ring_bell();
        assert!(b.transmit().is_empty());
        assert_eq!((b.dropped(Reason::BadOffload), b.owner(0), b.owner(10)), (1, DRIVER, DRIVER), "{mss}");
    }
}

#[test]
fn a_right_checksum_is_told_and_a_wrong_one_is_not() {
    let mut b = Bench::opened("vmxnet");
    let good = tcp4(MAC, &payload(300));
    let mut bad = good.clone();
    bad[200] ^= 1;
    b.bring(&[&good, &bad]);
    assert_eq!((b.received(0, 0).1, b.received(0, 1).1), (XSUM_OK, 0));
    assert_eq!(b.received(0, 1).0, DRIVER, "the guest decides");
}

#[test]
fn with_lpd_a_packet_that_a_neighbour_left_to_be_cut_comes_whole_and_without_it_cut() {
    let packet = tcp(MAC, 20_000, &[]);
    let checksum = Checksum::Partial { start: 34, field: 50 };
    let segment = Segment { kind: SegmentKind::Tcp, mss: 1460, headers: 54 };
    let offload = Offload { checksum, segment: Some(segment) };
    let mut b = Bench::of("vmxnet2");
    (b.lpd, b.lens) = (true, [32, 32, 16]);
    b.lay();
    b.open();
    b.bring_with(&[(&packet, offload)]);
    let (owner, flags, _) = b.received(0, 0);
    assert_eq!((owner, flags, b.frame_at(0, 0).len()), (DRIVER, WITH_FRAG | XSUM_OK, packet.len()));
    assert_eq!(b.received(0, 1).0, NIC);
    assert!(b.nic.features().contains(&"lro"));
    // Without LPD, and with LPD but too few pages.
    for (lpd, frags) in [(false, 17), (true, 2)] {
        let mut b = Bench::of("vmxnet2");
        (b.lpd, b.frags, b.lens) = (lpd, frags, [32, 32, 16]);
        b.lay();
        b.open();
        b.bring_with(&[(&packet, offload)]);
        let lens: Vec<u32> = (0..14).map(|index| b.received(0, index).2).collect();
        assert_eq!(lens, [&[1514; 13][..], &[54 + 20_000 - 13 * 1460]].concat());
        assert!((0..14).all(|index| b.received(0, index).1 == XSUM_OK));
    }
    // The first vmxnet has no such feature.
    let mut b = Bench::of("vmxnet");
    (b.lpd, b.lens) = (true, [32, 32, 16]);
    b.lay();
    b.open();
    b.bring_with(&[(&packet, offload)]);
    assert_eq!(b.received(0, 13).0, DRIVER);
}
