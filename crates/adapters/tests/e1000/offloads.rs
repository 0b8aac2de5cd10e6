//! Checksums and segmentation in both directions, with descriptors as e1000_tso and e1000_tx_csum write them.

use nicety_adapter::{Checksum, Edit, Offload, Reason, Segment, SegmentKind};

use crate::bench::*;

/// A context descriptor: the fields of IP's checksum, and of the transport's.
fn context(b: &Bench, index: u64, [ip, tu]: [[u8; 4]; 2], lower: u32, headers: u8, mss: u16) {
    let address = u64::from(u32::from_le_bytes(tu)) << 32 | u64::from(u32::from_le_bytes(ip));
    b.descriptor(index, address, lower | 0x2000_0000, u32::from(mss) << 16 | u32::from(headers) << 8);
}

/// A data descriptor's fixed bits: DEXT, type D.
const DATA: u32 = 0x2010_0000;

#[test]
fn a_transport_checksum_is_made_from_the_context() {
    for (frame, at) in [(tcp4(MAC, &payload(999)), 16), (udp4(MAC, 0, &payload(999)), 6)] {
        let (mut b, frame) = (Bench::opened(), partial(frame));
        b.put(TX_DATA, &frame);
        context(&b, 0, [[0; 4], [34, 34 + at, 0, 0]], 0, 0, 0);
        b.descriptor(1, TX_DATA, 200 | DATA, 2 << 8);
        b.descriptor(2, TX_DATA + 200, (frame.len() - 200) as u32 | DATA | CMD, 2 << 8);
        b.w(TDT, 3);
        assert_eq!(verified(&b.transmit()[0]), payload(999));
        assert_eq!(b.r(TDH), 3);
    }
}

#[test]
fn an_ip_header_checksum_and_a_legacy_checksum_are_made_on_request() {
    let mut b = Bench::opened();
    let whole = partial(tcp4(MAC, &payload(100)));
    let mut frame = whole.clone();
    frame[24..26].fill(0);
    b.put(TX_DATA, &frame);
    context(&b, 0, [[14, 24, 33, 0], [34, 50, 0, 0]], 0, 0, 0);
    b.descriptor(1, TX_DATA, frame.len() as u32 | DATA | CMD, 3 << 8);
    b.w(TDT, 2);
    assert_eq!(verified(&b.transmit()[0]), payload(100));
    b.put(TX_DATA, &whole);
    // Legacy: CSO in bits 23:16 with IC, CSS in bits 15:8 of the last dword.
    b.descriptor(2, TX_DATA, frame.len() as u32 | 50 << 16 | CMD | 1 << 26, 34 << 8);
    b.w(TDT, 3);
    assert_eq!(verified(&b.transmit()[0]), payload(100));
}

/// A super-packet as e1000_tso prepares it: no lengths, no IP checksum, a pseudo-header sum without length.
fn segmented(v6: bool, tagged: bool) {
    let mut b = Bench::opened();
    let whole = if v6 { tcp6(MAC, &payload(20_000)) } else { tcp4(MAC, &payload(20_000)) };
    let mut frame = with_pseudo(whole, 0);
    let l4 = if v6 { 54 } else { 34 };
    if v6 {
        frame[18..20].fill(0);
    } else {
        frame[16..18].fill(0);
        frame[24..26].fill(0);
    }
    b.put(TX_DATA, &frame);
    // TSE, TCP, and IP for IPv4.
    let lower = 0x0500_0000 | if v6 { 0 } else { 0x0200_0000 } | 20_000;
    let headers = l4 + 20;
    let ipcse = if v6 { 0 } else { l4 - 1 };
    context(&b, 0, [[14, 24, ipcse, 0], [l4, l4 + 16, 0, 0]], lower, headers, 1448);
    let mut flags = DATA | 0x0400_0000;
    let mut upper = 3 << 8;
    if tagged {
        let ctrl = b.r(CTRL);
        b.w(CTRL, ctrl | 1 << 30);
        flags |= 1 << 30;
        upper |= 77 << 16;
    }
    let (mut at, mut i) = (0, 1);
    while at < frame.len() {
        let n = (frame.len() - at).min(4096);
        let last = at + n == frame.len();
        b.descriptor(i, TX_DATA + at as u64, n as u32 | flags | if last { CMD } else { 0 }, upper);
        (at, i) = (at + n, i + 1);
    }
    b.w(TDT, i as u32);
    let frames = b.transmit();
    assert_eq!(frames.len(), 14);
    let mut joined = Vec::new();
    for (n, mut frame) in frames.into_iter().enumerate() {
        if tagged {
            assert_eq!(frame.drain(12..16).collect::<Vec<_>>(), [0x81, 0, 0, 77]);
        }
        let tcp = &frame[usize::from(l4)..];
        assert_eq!(u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]), 100 + 1448 * n as u32);
        assert_eq!(tcp[13], if n == 13 { 0x18 } else { 0x10 }, "PSH in the last only");
        joined.extend(verified(&frame));
    }
    assert_eq!(joined, payload(20_000));
    assert_eq!((b.r(0x40f8), b.r(0x4080)), (1, 14), "TSCTC, GPTC");
    assert_eq!(b.r(0x40ec), 14, "PTC1522: all of them are of that class");
    let overhead = u32::from(headers) + 4 + if tagged { 4 } else { 0 };
    assert_eq!(b.r(0x4090), 20_000 + 14 * overhead, "GOTCL");
    let sent = b.counters.transmitted();
    assert_eq!((sent.packets, sent.frames), (1, 14));
}

#[test]
fn tcp_is_segmented_over_ipv4() {
    segmented(false, false);
}

#[test]
fn tcp_is_segmented_over_ipv6() {
    segmented(true, false);
}

#[test]
fn segments_carry_the_tag() {
    segmented(false, true);
    segmented(true, true);
}

#[test]
fn whoever_takes_the_packet_uncut_finds_its_lengths_and_sums() {
    for tag in [0, 4] {
        let mut b = Bench::opened();
        let mut ip = ipv4(6, &tcp(&payload(5000)));
        let whole = ip.clone();
        let partial = pseudo(&ip, 6, 0);
        ip[36..38].copy_from_slice(&partial.to_be_bytes());
        ip[2..4].fill(0);
        ip[10..12].fill(0);
        b.put(TX_DATA, &ethernet(0x0800, &ip));
        context(&b, 0, [[14, 24, 33, 0], [34, 50, 0, 0]], 0x0700_0000 | 5000, 54, 1448);
        let (flags, upper) = if tag == 0 { (0, 0) } else { (1 << 30, 9 << 16) };
        b.descriptor(1, TX_DATA, (14 + ip.len()) as u32 | DATA | 0x0400_0000 | CMD | flags, 3 << 8 | upper);
        let ctrl = b.r(CTRL);
        b.w(CTRL, ctrl | 1 << 30);
        b.w(TDT, 2);
        b.fetch();
        let packet = &b.batch.packets()[0];
        let head = b.batch.head(packet);
        let at = usize::from(tag);
        assert_eq!(head[14 + at..34 + at], whole[..20], "total length and header checksum");
        assert_eq!(head[50 + at..52 + at], pseudo(&whole, 6, 5020).to_be_bytes(), "the pseudo-header with the length");
        assert_eq!(packet.offload.checksum, Checksum::Partial { start: 34 + tag, field: 50 + tag });
        assert_eq!(packet.offload.segment.map(|segment| segment.headers), Some(54 + tag));
        b.complete();
    }
}

#[test]
fn an_offload_that_makes_no_sense_is_dropped() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &ethernet(0x88b5, &payload(500)));
    context(&b, 0, [[0; 4], [200, 100, 0, 0]], 0, 0, 0);
    b.descriptor(1, TX_DATA, 500 | DATA | CMD, 2 << 8);
    context(&b, 2, [[14, 24, 33, 0], [34, 50, 0, 0]], 0x0700_0000 | 5000, 54, 0);
    b.descriptor(3, TX_DATA, 500 | DATA | 0x0400_0000 | CMD, 3 << 8);
    b.w(TDT, 4);
    assert!(b.transmit().is_empty());
    assert_eq!(b.counters.transmit_drops[Reason::BadOffload as usize], 2);
    assert_eq!((b.status_of(1), b.status_of(3), b.r(0x40fc)), (1, 1, 1));
}

#[test]
fn a_segmentation_whose_headers_are_said_longer_or_shorter_than_they_are_is_dropped() {
    // With IP options too: 12 bytes of timestamps.
    for (options, headers) in [(0, 54), (12, 66)] {
        let mut segment = tcp(&[vec![1; options], payload(5000)].concat());
        segment[12] += (options as u8 / 4) << 4;
        for claimed in [0, 14, 34, 53, 54, 55, 65, 66, 67, 255] {
            let mut b = Bench::opened();
            let frame = ethernet(0x0800, &ipv4(6, &segment));
            b.put(TX_DATA, &frame);
            context(&b, 0, [[14, 24, 33, 0], [34, 50, 0, 0]], 0x0700_0000 | 5000, claimed, 1448);
            b.descriptor(1, TX_DATA, frame.len() as u32 | DATA | 0x0400_0000 | CMD, 3 << 8);
            b.w(TDT, 2);
            let (sent, dropped) = if claimed == headers { (4, 0) } else { (0, 1) };
            assert_eq!(b.transmit().len(), sent, "{claimed} of {headers}");
            assert_eq!(b.counters.transmit_drops[Reason::BadOffload as usize], dropped, "{claimed} of {headers}");
            assert_eq!((b.status_of(1), b.r(0x40fc)), (1, dropped as u32), "DD, TSCTFC");
        }
    }
}

#[test]
fn a_packet_that_asks_for_thousands_of_tiny_frames_is_dropped() {
    for (mss, sent) in [(1, 0), (2, 0), (3, 1667)] {
        let mut b = Bench::opened();
        let ip = ipv4(6, &tcp(&payload(5000)));
        b.put(TX_DATA, &ethernet(0x0800, &ip));
        context(&b, 0, [[14, 24, 33, 0], [34, 50, 0, 0]], 0x0700_0000 | 5000, 54, mss);
        b.descriptor(1, TX_DATA, (14 + ip.len()) as u32 | DATA | 0x0400_0000 | CMD, 3 << 8);
        b.w(TDT, 2);
        b.fetch();
        let frames: u32 = b.batch.packets().iter().map(nicety_adapter::Packet::frames).sum();
        assert_eq!(frames, sent, "{mss}");
        b.complete();
        assert_eq!(b.status_of(1), 1, "its descriptors come back");
    }
}

#[test]
fn received_checksums_are_judged_if_the_driver_wants() {
    let mut b = Bench::opened();
    let made = |v6: bool, damage: bool| {
        let mut frame = if v6 { tcp6(MAC, &payload(700)) } else { tcp4(MAC, &payload(700)) };
        *frame.last_mut().unwrap() ^= u8::from(damage);
        frame
    };
    b.bring_one(&made(false, false));
    assert_eq!(b.received(0).1, 0x07, "IXSM while it is off");
    b.w(RXCSUM, 0x300);
    for (i, (v6, damage)) in [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate() {
        b.bring_one(&made(v6, damage));
        let (_, status, errors, _) = b.received(i as u64 + 1);
        let ip = if v6 { 0 } else { 0x40 };
        assert_eq!((status, errors), (0x23 | ip, if damage { 0x20 } else { 0 }));
    }
    let mut frame = made(false, false);
    frame[24] ^= 1;
    b.bring_one(&frame);
    assert_eq!((b.received(5).1, b.received(5).2), (0x63, 0x40), "IPE");
    b.bring_one(&ethernet(0x0806, &[0; 28]));
    assert_eq!(b.received(6).1, 0x07, "no IP: IXSM");
}

#[test]
fn a_packet_that_is_cut_comes_with_headers_that_are_right_whatever_its_own_said() {
    let mut whole = partial(tcp4(MAC, &payload(3000)));
    whole[24] ^= 1;
    // The last case makes one frame, which gets new headers too.
    for (mss, count) in [(1000, 3), (1448, 3), (1460, 3), (3000, 1)] {
        let mut b = Bench::opened();
        b.open_receive(RX_RING, RING as u32, RCTL_LINUX | 0x0203_0020, 4096);
        b.w(RXCSUM, 0x300);
        let checksum = Checksum::Partial { start: 34, field: 50 };
        let segment = Segment { kind: SegmentKind::Tcp, mss, headers: 54 };
        b.bring(&batch_of(&[(&whole, Offload { checksum, segment: Some(segment) })]), Edit::Keep);
        let mut joined = Vec::new();
        for index in 0..count {
            let (len, status, errors, _) = b.received(index);
            assert_eq!((status, errors), (0x63, 0), "IPCS, TCPCS and no error: {index} of {count}");
            joined.extend(verified(&b.get(RX_DATA + index * 4096, usize::from(len) - 4)));
        }
        assert_eq!(b.received(count).1, 0);
        assert_eq!(joined, payload(3000));
    }
}

#[test]
fn a_long_frame_in_many_buffers_has_its_checksum_judged() {
    let mut b = Bench::opened();
    b.open_receive(RX_RING, 256, RCTL_LINUX | 0x20 | 3 << 16, 256);
    b.w(RXCSUM, 0x200);
    let frame = tcp4(MAC, &payload(8961));
    b.bring_one(&frame);
    let last = u64::div_ceil(frame.len() as u64 + 4, 256) - 1;
    assert_eq!((b.received(last).1, b.received(last).2), (0x23, 0));
}

/// The guest chooses CSS and CSO of a legacy descriptor with IC freely (317453, section 3.3.3).
#[test]
fn a_legacy_checksum_goes_to_the_transport_header_s_field_or_behind_the_headers_or_nowhere() {
    let udp = [&[0, 68, 0, 67, 0, 48, 0, 0][..], &payload(40)].concat();
    let arp = [&[0, 1, 8, 0, 6, 4, 0, 2][..], &payload(40)].concat();
    let frames = [
        (ethernet(0x0800, &ipv4(6, &tcp(&payload(40)))), 54, Some((34, 50))),
        (ethernet(0x86dd, &ipv6(17, &udp)), 62, Some((54, 60))),
        (ethernet(0x0806, &arp), 14, None),
    ];
    let mut b = Bench::opened();
    let control = b.r(CTRL);
    b.w(CTRL, control | 1 << 30);
    let mut index = 0;
    for (frame, headers, named) in &frames {
        b.put(TX_DATA, frame);
        // VLE: the chip inserts the tag after it has applied the offsets.
        let starts = [0, 6, 12, 13, 14, 20, 23, 26, 33, 34, 38, 42, 54, 55, 62, 66];
        for (css, cso, tagged) in
            starts.iter().flat_map(|css| (0..74).flat_map(move |cso| [(*css, cso, 0), (*css, cso, 1)]))
        {
            b.counters.transmit_drops.fill(0);
            let (at, shift) = (index % RING, 4 * tagged as usize);
            let lower = frame.len() as u32 | cso << 16 | CMD | 1 << 26 | tagged << 30;
            b.descriptor(at, TX_DATA, lower, css << 8 | (tagged * 7) << 16);
            index += 1;
            b.w(TDT, (index % RING) as u32);
            b.fetch();
            let (named, behind) =
                (*named == Some((css, cso)), css >= *headers && cso >= css && cso as usize + 2 <= frame.len());
            let dropped = b.counters.transmit_drops[Reason::BadOffload as usize];
            assert_eq!((b.batch.len() as u64, dropped), if named || behind { (1, 0) } else { (0, 1) }, "{css} {cso}");
            for packet in b.batch.packets() {
                let mut head = b.batch.head(packet).to_vec();
                let mut wire = cut(&b.batch).remove(0);
                let field = cso as usize + shift..cso as usize + shift + 2;
                assert!(
                    behind || wire[field.clone()] != head[field.clone()] && packet.offload.checksum != Checksum::AsIs
                );
                if named {
                    wire[field.clone()].copy_from_slice(&head[field.clone()]);
                }
                assert_eq!(wire, head, "{css} {cso}: what was judged");
                assert_eq!(shift == 4, head[12..14] == [0x81, 0]);
                head.drain(12..12 + shift);
                if behind {
                    head[cso as usize..][..2].copy_from_slice(&frame[cso as usize..][..2]);
                }
                assert!(head.starts_with(frame), "{css} {cso}: the driver's headers");
            }
            b.complete();
        }
    }
}

#[test]
fn an_ip_header_checksum_goes_to_the_field_of_an_ipv4_header_whatever_its_end_is_said_to_be() {
    let ip = ipv4(6, &tcp(&payload(100)));
    let mut frame = ethernet(0x0800, &ip);
    frame[24..26].fill(0);
    let v6 = ethernet(0x86dd, &ipv6(6, &tcp(&payload(100))));
    // FreeBSD's if_em.c (em_transmit_checksum_setup) sets IPCSE one byte behind the header.
    let right = [(&frame, [14, 24, 33]), (&frame, [14, 24, 34]), (&frame, [14, 24, 0])];
    let wrong = [
        (&frame, [14, 10, 33]),
        (&frame, [0, 6, 33]),
        (&frame, [14, 26, 33]),
        (&frame, [10, 24, 33]),
        (&frame, [34, 50, 0]),
        (&v6, [14, 24, 33]),
    ];
    for (number, (frame, places)) in right.into_iter().chain(wrong).enumerate() {
        let mut b = Bench::opened();
        b.put(TX_DATA, frame);
        context(&b, 0, [[places[0], places[1], places[2], 0], [0; 4]], 0, 0, 0);
        b.descriptor(1, TX_DATA, frame.len() as u32 | DATA | CMD, 1 << 8);
        b.w(TDT, 2);
        let expected = if number < right.len() { vec![ethernet(0x0800, &ip)] } else { Vec::new() };
        assert_eq!(b.transmit(), expected, "{places:?}");
        assert_eq!(b.counters.transmit_drops[Reason::BadOffload as usize], 1 - expected.len() as u64);
    }
}
