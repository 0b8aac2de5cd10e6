//! Faults of other models of this chip: each is harmless here.

use nicety_adapter::Reason;

use crate::bench::*;

#[test]
fn cve_2016_8910_a_ring_whose_descriptors_are_all_the_chip_s_and_empty_ends() {
    let mut b = Bench::opened();
    for index in 0..RING {
        // OWN, without FS and LS, no end of the ring, of zero bytes.
        b.put(TX_RING + 16 * index, &0x8000_0000_u32.to_le_bytes());
        b.put(TX_RING + 16 * index + 8, &TX_DATA.to_le_bytes());
    }
    b.w8(0xd9, 0x40);
    b.ends_within(5);
    assert_eq!(b.counters.transmit_drops[Reason::BadDescriptor as usize], 1);
    // And a ring of a single descriptor.
    let mut b = Bench::opened();
    b.queue(0, &frame(PEER, 60, 0), 1 << 30, 0);
    assert_eq!(b.transmit().len(), 1);
}

#[test]
fn cve_2015_5165_lengths_in_headers_beyond_a_packet_tell_nothing_of_other_memory() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &[0xee; 0x2000]);
    for (index, (header, total)) in [(0x45, 0xffff_u16), (0x4f, 60), (0x41, 40), (0x45, 0)].into_iter().enumerate() {
        for flags in [1 << 18 | 1 << 16, 1 << 18 | 1 << 17, 1 << 27 | 1000 << 16] {
            let mut packet = ip(PEER, if flags & 1 << 17 != 0 { 17 } else { 6 }, &[]);
            packet[14] = header;
            packet[16..18].copy_from_slice(&total.to_be_bytes());
            b.queue(index as u64, &packet, flags, 0);
            for (out, _) in b.transmit() {
                assert!(out.len() <= 60, "{} bytes of {}", out.len(), packet.len());
                assert!(!out.contains(&0xee), "{header:#x} {total}");
            }
            b.w8(0x37, 0);
            b.w8(0x37, 0xc);
        }
    }
}

#[test]
fn cve_2018_17958_sizes_that_no_integer_of_the_chip_holds_are_bounded() {
    // The longest descriptors, in a packet of as many as exist.
    let mut b = Bench::opened();
    for index in 0..RING {
        let place = if index == 0 { 1 << 29 } else { 0 } | if index + 1 == RING { 1 << 28 } else { 0 };
        b.describe(index, 0x8000_0000 | place | 0xffff, 0, TX_DATA);
    }
    assert!(b.transmit().is_empty());
    assert_eq!(b.counters.transmit_drops[Reason::TooLong as usize], 1);
    // A frame from outside that is longer than any limit.
    assert!(b.takes(&frame(MAC, 65_535, 0)));
    assert_eq!(b.counters.receive_drops[Reason::TooLong as usize], 1);
    // The plain mode: thirteen bits of length, and a position behind the buffer.
    let mut b = Bench::opened_plain("rtl8139-plain");
    b.w(0x10, 0x1fff);
    assert!(b.drain().is_empty());
    assert_eq!(b.counters.transmit_drops[Reason::TooLong as usize], 1);
    for capr in [0, 1, 0x7ff1, 0xffff] {
        b.w16(0x38, capr);
        b.takes(&frame(MAC, 1770, 0));
        assert!(b.r16(0x3a) < 0x8000);
    }
}

#[test]
fn cve_2021_3416_a_looped_frame_does_not_come_round_again() {
    let mut b = Bench::opened();
    b.w(0x40, 0x0306_0600);
    // The buffers are the transmit ring: looped frames become descriptors to send.
    for index in 0..RING {
        b.post(index, 0x8000_0000 | 1536, TX_RING);
    }
    let mut packet = frame(MAC, 256, 0);
    for at in (16..256).step_by(16) {
        packet[at..at + 8].copy_from_slice(&(0xb000_0000_u64 | 256).to_le_bytes());
        packet[at + 8..at + 16].copy_from_slice(&TX_DATA.to_le_bytes());
    }
    b.queue(0, &packet, 0, 0);
    b.w8(0xd9, 0x40);
    for turn in 0..100 {
        // Each call ends, and the frames that the guest feeds to itself affect nobody else.
        let (out, _) = b.turn();
        assert!(out.is_empty(), "turn {turn}: in loopback nothing leaves (RTL8139C 1.4, TCR: loopback test)");
    }
    assert_eq!(b.counters.transmitted().packets, 0);
    // Each frame arrived once, into the next descriptor (RTL8169 1.21, receive: FS, LS, PAM, the length with its check sequence).
    let received = (0..RING).take_while(|index| b.get32(RX_RING + 16 * index) >> 31 == 0).count() as u64;
    assert!(received >= 1);
    for index in 0..RING {
        let first = b.get32(RX_RING + 16 * index) & !(1 << 30);
        let expected = if index < received { 0x3200_0000 | (256 + 4) } else { 0x8000_0000 | 1536 };
        assert_eq!(first, expected, "descriptor {index} of {received}");
    }
    // struct cp_dma_stats of Linux's 8139cp.c: tx_ok, rx_ok, rx_fifo, rx_ok_phys.
    b.w(0x14, 0);
    b.w(0x10, 0x9000 | 8);
    let word = |at: u64| b.get64(0x9000 + at);
    let missed = u64::from(b.get16(0x901c));
    assert_eq!((word(8), word(40)), (received, received));
    assert_eq!(word(0), received + missed, "what was sent was received, or missed for want of room");
    assert_eq!(missed > 0, received == RING);
}

/// Other models wrote a descriptor's completion into their own registers, and started again.
#[test]
fn cve_2020_15859_rings_and_buffers_at_the_device_s_own_registers_are_no_memory() {
    // BAR 1 lies at 0xfebf0000: not the guest's memory, so DMA does not reach it.
    const OWN: u64 = 0xfebf_0000;
    let at = |b: &mut Bench| {
        b.config_write(0x14, &(OWN as u32).to_le_bytes());
    };
    let mut b = Bench::opened();
    at(&mut b);
    // Buffers of both rings, the counter dump, and then the rings themselves.
    b.describe(0, 0xb000_0000 | 60, 0, OWN + 0xd9);
    assert!(b.transmit().is_empty());
    assert_eq!(b.counters.transmit_drops[Reason::BadAddress as usize], 1);
    b.post(0, 0x8000_0000 | BUFFER as u32, OWN + 0xd9);
    b.takes(&frame(MAC, 60, 0));
    assert_eq!(b.counters.receive_drops[Reason::BadAddress as usize], 1);
    b.w(0x14, 0);
    b.w(0x10, OWN as u32 | 8);
    assert_eq!(b.r(0x10) & 8, 0, "the dump is over");
    b.w8(0x37, 0);
    b.w(0x20, OWN as u32);
    b.w(0xe4, OWN as u32);
    b.w8(0x37, 0x0c);
    assert!(b.transmit().is_empty());
    b.takes(&frame(MAC, 60, 0));
    assert!(b.nic.stall(0).is_some() && b.nic.stall(1).is_some());
    // The plain mode: a slot, and the receive buffer.
    let mut b = Bench::opened_plain("rtl8139-plain");
    at(&mut b);
    b.w(0x20, OWN as u32 + 0x10);
    b.w(0x10, 60);
    assert!(b.drain().is_empty());
    assert_eq!(b.counters.transmit_drops[Reason::BadAddress as usize], 1);
    b.w8(0x37, 0x04);
    b.w(0x30, OWN as u32);
    b.w8(0x37, 0x0c);
    b.takes(&frame(MAC, 60, 0));
    assert_eq!(b.counters.taken().frames, 0);
}

/// Other models received in the middle of a transmission, and gave a descriptor back twice.
#[test]
fn cve_2023_3019_a_loopback_whose_two_rings_are_one_is_not_re_entered() {
    let mut b = Bench::opened();
    b.w(0x40, 0x0306_0600);
    b.w8(0x37, 0);
    b.w(0xe4, TX_RING as u32);
    b.w8(0x37, 0x0c);
    for index in 0..RING {
        b.queue(index, &frame(MAC, 256, 0), 0, 0);
    }
    b.w8(0xd9, 0x40);
    b.ends_within(100);
    assert!((0..RING).all(|index| b.get32(TX_RING + 16 * index) >> 31 == 0), "each descriptor was given back");
    assert_eq!(b.counters.transmitted().packets, 0);
}

/// Another model in loopback read beyond the end of a frame shorter than its headers.
#[test]
fn cve_2025_12464_short_frames_in_loopback_are_dropped_or_padded() {
    let mut b = Bench::opened();
    b.w(0x40, 0x0306_0600);
    for len in 0..RING {
        b.queue(len, &vec![0xff; len as usize], 0, 0);
        b.put(RX_DATA + 0x1000 * len, &[0xa5; 128]);
    }
    assert!(b.transmit().is_empty());
    let taken = (0..RING).take_while(|index| b.get32(RX_RING + 16 * index) >> 31 == 0).count() as u64;
    assert_eq!(taken, RING - 14, "what has no addresses and type is dropped");
    for index in 0..taken {
        let (own, reported) = (14 + index as usize, b.get32(RX_RING + 16 * index) & 0x1fff);
        assert!(reported >= 60, "{own} bytes, {reported} told");
        let bytes = b.get(RX_DATA + 0x1000 * index, 60);
        assert!(bytes[..own.min(60)].iter().all(|byte| *byte == 0xff));
        assert!(bytes[own.min(60)..].iter().all(|byte| *byte == 0), "{own} bytes: the rest is padding");
    }
    // The plain mode.
    let mut b = Bench::opened_plain("rtl8139-plain");
    b.w(0x40, 0x0306_0680);
    for len in 0..60_u32 {
        b.put(TX_DATA + 0x800 * u64::from(len % 4), &vec![0xff; len as usize]);
        b.w(0x10 + 4 * u64::from(len % 4), len);
        assert!(b.drain().is_empty());
    }
    assert_eq!(b.r16(0x3a), 46 * (4 + 64), "46 frames of 60 bytes, each with header and check sequence");
}

#[test]
fn cve_2024_3567_a_checksum_of_what_a_packet_does_not_have_is_not_made() {
    let mut b = Bench::opened();
    for flags in [1 << 18, 1 << 17, 1 << 16, 7 << 16, 1 << 27 | 100 << 16] {
        for len in 14..80 {
            let packet = &ip(PEER, 6, &[7; 40])[..len];
            b.queue(0, packet, 1 << 30 | flags, 0);
            for (out, _) in b.transmit() {
                assert!(out.len() <= 60.max(len), "{flags:#x}: {len} bytes became {}", out.len());
            }
            // The ring starts again.
            b.w8(0x37, 0);
            b.w8(0x37, 0xc);
        }
    }
}

#[test]
fn cve_2020_16092_and_cve_2016_6834_packets_of_any_pieces_and_segments_end() {
    for (len, mss) in [(0, 0), (0, 1), (1, 1), (1460, 0), (1460, 1), (1460, 0x7ff)] {
        let mut b = Bench::opened();
        let head = ip(PEER, 6, &[]);
        b.put(TX_DATA, &head);
        b.describe(0, 0xa800_0000 | mss << 16 | head.len() as u32, 0, TX_DATA);
        for index in 1..RING {
            let last = if index + 1 == RING { 1 << 28 } else { 0 };
            b.describe(index, 0x8800_0000 | last | mss << 16 | len, 0, TX_DATA + 0x1000);
        }
        b.w8(0xd9, 0x40);
        b.ends_within(10);
        assert!((0..RING).all(|index| b.get32(TX_RING + 16 * index) >> 31 == 0), "all are the driver's again");
    }
}

#[test]
fn cve_2026_5747_rings_and_slots_that_move_between_fetch_and_completion_are_written_nowhere_else() {
    const ELSEWHERE: u64 = 0x60_0000;
    for (model, ring) in [("rtl8139", true), ("rtl8139", false), ("rtl8139-plain", false)] {
        let mut b = if ring { Bench::opened() } else { Bench::opened_plain(model) };
        b.put(ELSEWHERE, &[0x5a; 1024]);
        let sent = frame(PEER, 60, 1);
        if ring {
            b.queue(0, &sent, 0, 0);
            b.w8(0xd9, 0x40);
        } else {
            b.put(TX_DATA, &sent);
            b.w(0x10, 60);
        }
        let (out, _) = b.turn_with(|b| b.w(0x20, ELSEWHERE as u32));
        assert_eq!(out.len(), 1, "{model}: it was fetched before");
        assert!(b.get(ELSEWHERE, 1024).iter().all(|byte| *byte == 0x5a), "{model}");
        b.drain();
        assert!(b.get(ELSEWHERE, 1024).iter().all(|byte| *byte == 0x5a), "{model}: nothing of the chip's lies there");
        if !ring {
            assert_eq!(b.r(0x10) & 0xa000, 0xa000, "{model}: a slot's end is in its register");
        }
    }
}

#[test]
fn cve_timers_that_are_set_to_come_at_once_come_once_in_a_round() {
    let mut b = Bench::opened();
    b.w16(0x3c, 0x4000);
    for value in [1, 0, u32::MAX, 1] {
        b.w(0x54, value);
    }
    let (mut ticks, end) = (0, b.now.after_ns(1_000_000_000_000));
    while let Some(at) = b.out.wake.take().filter(|at| *at <= end) {
        b.now = at;
        b.tick();
        b.w16(0x3e, 0x4000);
        ticks += 1;
    }
    // 2^32 ticks of 33 MHz are 130 s.
    assert!((1..=9).contains(&ticks), "{ticks} in a thousand seconds");
}
