//! C+ mode: rings, offloads, interrupts.

use nicety_adapter::{Checksum, Segment, SegmentKind};

use crate::bench::*;

/// OWN, FS, LS.
const WHOLE: u32 = 0xb000_0000;
const LARGE_SEND: u32 = 1 << 27;
const IP_TCP: u32 = 1 << 18 | 1 << 16;
const IP_UDP: u32 = 1 << 18 | 1 << 17;

#[test]
fn a_frame_in_a_descriptor_goes_out_and_the_descriptor_comes_back_without_its_commands() {
    let mut b = Bench::opened();
    let sent = frame(PEER, 300, 7);
    b.queue(0, &sent, IP_TCP, 0);
    let out = b.transmit();
    assert_eq!(out.len(), 1);
    assert!(out[0].0 == sent);
    // FS, LS and the length; no bits that Linux would count as collisions.
    assert_eq!(b.get32(TX_RING), 0x3000_0000 | 300);
    assert_eq!(b.r16(0x3e) & 4, 4, "TxOK, at once for who asks");
}

#[test]
fn a_packet_in_pieces_waits_for_its_last_one_and_begins_anywhere_in_the_ring() {
    let mut b = Bench::opened();
    let mut index = 0;
    for round in 0..40u8 {
        let sent = frame(PEER, 900, round);
        b.put(TX_DATA, &sent);
        b.describe(index, 0xa000_0000 | 300, 0, TX_DATA);
        b.describe((index + 1) % RING, 0x8000_0000 | 300, 0, TX_DATA + 300);
        assert!(b.transmit().is_empty(), "its last piece is not there");
        b.describe((index + 2) % RING, 0x9000_0000 | 300, 0, TX_DATA + 600);
        let out = b.transmit();
        assert!(out.len() == 1 && out[0].0 == sent, "{round}");
        index = (index + 3) % RING;
    }
}

#[test]
fn a_ring_that_is_full_and_ends_early_is_sent_once() {
    let mut b = Bench::opened();
    // iPXE's ring has four descriptors, and the chip may own all of them.
    for index in 0..4 {
        b.queue(index, &frame(PEER, 100, index as u8), if index == 3 { 1 << 30 } else { 0 }, 0);
    }
    assert_eq!(b.transmit().len(), 4);
    assert!((0..4).all(|index| b.get32(TX_RING + 16 * index) >> 31 == 0));
    assert!(b.transmit().is_empty());
}

#[test]
fn checksums_of_tcp_and_udp_are_made_with_the_header_s() {
    let mut b = Bench::opened();
    for (index, (protocol, flags)) in [(6, IP_TCP), (17, IP_UDP)].into_iter().enumerate() {
        b.queue(index as u64, &ip(PEER, protocol, &[0x5a; 333]), flags, 0);
        let out = b.transmit();
        assert_eq!(verified(&out[0].0), [0x5a; 333], "protocol {protocol}");
    }
    // Another protocol than the flags name: sent unchanged.
    b.queue(2, &ip(PEER, 17, &[1; 100]), 1 << 16, 0);
    assert!(b.transmit()[0].0 == ip(PEER, 17, &[1; 100]));
}

#[test]
fn a_large_send_is_one_packet_with_its_headers_made_and_nonsense_is_dropped() {
    let mut b = Bench::opened();
    let mut packet = ip(PEER, 6, &vec![0x33; 20_000]);
    // Linux leaves a pseudo-header sum there; any value works.
    packet[50..52].copy_from_slice(&[0x12, 0x34]);
    b.queue(0, &packet, LARGE_SEND | 1448 << 16, 0);
    let out = b.transmit();
    let (frame, offload) = &out[0];
    assert_eq!(offload.segment, Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers: 54 }));
    assert_eq!(offload.checksum, Checksum::Partial { start: 34, field: 50 });
    let pseudo = [&frame[26..34], &[0, 6], &(20_020u16).to_be_bytes()].concat();
    assert_eq!(u16::from_be_bytes([frame[50], frame[51]]), rfc1071(&pseudo));
    assert_eq!(rfc1071(&frame[14..34]), 0xffff);
    b.queue(1, &packet, LARGE_SEND, 0);
    b.queue(2, &ip(PEER, 17, &[0; 3000]), LARGE_SEND | 1000 << 16, 0);
    assert!(b.transmit().is_empty());
    assert_eq!(b.counters.transmit_drops.iter().sum::<u64>(), 2);
    assert!((0..3).all(|index| b.get32(TX_RING + 16 * index) >> 31 == 0), "given back all the same");
}

#[test]
fn tags_travel_in_descriptors_with_their_bytes_swapped() {
    let mut b = Bench::opened();
    let sent = frame(PEER, 200, 1);
    // TxVlanTag, swab16(0x602a).
    b.queue(0, &sent, 0, 1 << 17 | 0x2a60);
    let mut tagged = sent.clone();
    tagged.splice(12..12, [0x81, 0, 0x60, 0x2a]);
    assert!(b.transmit()[0].0 == tagged);
    // RxVlanOn.
    b.w16(0xe0, 0x007b);
    let mut tagged = frame(MAC, 200, 1);
    tagged.splice(12..12, [0x81, 0, 0x60, 0x2a]);
    assert!(b.takes(&tagged));
    assert_eq!(b.get32(RX_RING + 4), 1 << 16 | 0x2a60);
    assert!(b.get(RX_DATA, 200) == frame(MAC, 200, 1));
}

#[test]
fn a_received_frame_says_its_length_how_it_was_addressed_and_what_of_its_checksum() {
    let mut b = Bench::opened();
    let good = tcp4(MAC, &[9; 500]);
    let mut bad = good.clone();
    bad[300] ^= 1;
    let udp = udp4(MAC, 0x1000, &[3; 100]);
    let broadcast = frame([0xff; 6], 60, 0);
    for (index, (sent, kind)) in [
        (&good, 1 << 25 | 1 << 16),
        (&bad, 1 << 25 | 1 << 16 | 1 << 13),
        (&udp, 1 << 25 | 2 << 16),
        (&broadcast, 1 << 24),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(b.takes(sent));
        let first = b.get32(RX_RING + 16 * index as u64);
        assert_eq!(first, 0x3000_0000 | kind | (sent.len() as u32 + 4), "{index}: {first:#x}");
        assert!(b.get(RX_DATA + 0x1000 * index as u64, sent.len()) == *sent);
    }
    // Without RxChkSum the chip vouches for no checksum.
    b.w16(0xe0, 0x001b);
    assert!(b.takes(&good));
    assert_eq!(b.get32(RX_RING + 64) >> 16 & 3, 0);
}

#[test]
fn a_frame_longer_than_a_buffer_lies_in_several() {
    let mut b = Bench::opened();
    let long = frame(MAC, 4000, 5);
    assert!(b.takes(&long));
    let firsts: Vec<u32> = (0..3).map(|index| b.get32(RX_RING + 16 * index)).collect();
    assert_eq!(firsts, [0x2000_0000 | 1536, 1536, 0x1200_0000 | 4004]);
    let mut came = b.get(RX_DATA, 1536);
    came.extend(b.get(RX_DATA + 0x1000, 1536));
    came.extend(b.get(RX_DATA + 0x2000, 4000 - 2 * 1536));
    assert!(came == long);
    assert!(b.takes(&frame(MAC, 4200, 5)), "dropped: too long");
    assert_eq!(b.counters.receive_drops.iter().sum::<u64>(), 1);
}

#[test]
fn a_full_ring_refuses_and_what_the_driver_writes_in_its_poll_shows_room() {
    let mut b = Bench::opened();
    for _ in 0..RING {
        assert!(b.takes(&frame(MAC, 100, 1)));
    }
    assert!(!b.takes(&frame(MAC, 100, 1)));
    b.w16(0x3e, 0x53);
    assert!(b.out.room.is_empty());
    b.post(0, 0x8000_0000 | 1536, RX_DATA);
    b.w16(0x3c, 0x80ff);
    assert!(b.out.room.contains(0));
    assert!(b.takes(&frame(MAC, 100, 1)));
    // If a driver writes nothing, a later poll still finds its buffers.
    b.out.room = Default::default();
    assert!(!b.takes(&frame(MAC, 100, 1)));
    b.post(1, 0x8000_0000 | 1536, RX_DATA);
    b.pass(2_000_000);
    assert!(b.out.room.contains(0));
}

#[test]
fn an_idle_full_ring_is_looked_at_ever_more_seldom() {
    let mut b = Bench::opened();
    (0..RING).for_each(|_| assert!(b.takes(&frame(MAC, 100, 1))));
    assert!(!b.takes(&frame(MAC, 100, 1)));
    b.w16(0x3e, 0xffff);
    b.pass(1_000_000_000);
    let mut ticks = 0;
    let end = b.now.after_ns(10_000_000_000);
    while let Some(at) = b.out.wake.take().filter(|at| *at <= end) {
        b.now = at;
        b.tick();
        ticks += 1;
    }
    assert!((50..=101).contains(&ticks), "{ticks} in ten seconds");
}

#[test]
fn a_bulk_flow_interrupts_once_in_a_while_and_not_for_what_the_driver_has_taken() {
    let mut b = Bench::opened();
    let sent = frame(MAC, 1514, 1);
    assert!(b.takes(&sent));
    assert_eq!(b.reported(), Some(true), "the first one is told at once");
    let refill = |b: &Bench, from: u64, to: u64| {
        (from..to).for_each(|i| b.post(i, 0x8000_0000 | 1536 | if i + 1 == RING { 1 << 30 } else { 0 }, RX_DATA));
    };
    // Many frames since the last interrupt: the next interrupt waits.
    (1..20).for_each(|_| assert!(b.takes(&sent)));
    b.w16(0x3e, 0xffff);
    assert_eq!(b.reported(), Some(false));
    refill(&b, 0, 20);
    assert!(b.takes(&sent));
    assert_eq!(b.reported(), Some(true));
    b.w16(0x3e, 0xffff);
    assert_eq!(b.reported(), Some(false));
    refill(&b, 20, 21);
    (21..24).for_each(|_| assert!(b.takes(&sent)));
    assert_eq!(b.reported(), None, "they wait");
    // The driver polls on, and gives its buffers back.
    refill(&b, 21, 24);
    b.pass(1_000_000);
    assert_eq!(b.reported(), None);
    (24..27).for_each(|_| assert!(b.takes(&sent)));
    b.pass(1_000_000);
    assert_eq!(b.reported(), Some(true), "these it has not");
}

#[test]
fn completions_come_with_the_next_interrupt_or_in_a_while_by_themselves() {
    let mut b = Bench::opened();
    b.queue(0, &frame(PEER, 100, 1), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    assert_eq!(b.reported(), None);
    assert!(b.takes(&frame(MAC, 100, 1)));
    assert_eq!(b.reported(), Some(true));
    assert_eq!(b.r16(0x3e), 0x0005, "received, and sent");
    b.post(0, 0x8000_0000 | 1536, RX_DATA);
    b.w16(0x3e, 0xffff);
    b.queue(1, &frame(PEER, 100, 1), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    b.reported();
    b.pass(2_000_000);
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(true), 0x0004));
    // Completions of half a ring interrupt at once.
    b.w16(0x3e, 0xffff);
    b.reported();
    (2..40).for_each(|index| b.queue(index, &frame(PEER, 100, 1), 0, 0));
    assert_eq!(b.transmit().len(), 38);
    assert_eq!(b.reported(), Some(true));
}

#[test]
fn what_cannot_be_read_comes_back_as_an_error_and_the_next_one_goes() {
    let mut b = Bench::opened();
    b.describe(0, WHOLE | 100, 0, 1 << 40);
    b.queue(1, &frame(PEER, 100, 1), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    assert_eq!(b.get32(TX_RING), 0x3000_0000 | 1 << 25 | 1 << 23 | 100);
    assert_eq!(b.get32(TX_RING + 16), 0x3000_0000 | 100);
    assert_eq!(b.r16(0x3e) & 0xc, 0xc, "sent, and an error");
}

#[test]
fn reopening_begins_at_the_first_descriptors() {
    let mut b = Bench::opened();
    b.queue(0, &frame(PEER, 100, 1), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    assert!(b.takes(&frame(MAC, 100, 1)));
    // cp_stop_hw, cp_start_hw.
    b.w8(0x37, 0);
    b.w16(0xe0, 0);
    assert!(b.takes(&frame(MAC, 100, 1)), "dropped: it is off");
    b.w16(0xe0, 0x3b);
    (0..RING).for_each(|i| b.post(i, 0x8000_0000 | 1536 | if i + 1 == RING { 1 << 30 } else { 0 }, RX_DATA));
    b.w8(0x37, 0xc);
    b.queue(0, &frame(PEER, 100, 2), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    assert!(b.takes(&frame(MAC, 100, 2)));
    assert!(b.get32(RX_RING) >> 31 == 0 && b.get(RX_DATA, 100) == frame(MAC, 100, 2));
}

#[test]
fn the_filter_wants_the_own_address_broadcast_and_what_the_hash_says() {
    let mut b = Bench::opened();
    let drops = |b: &Bench| b.counters.receive_drops.iter().sum::<u64>();
    let group = [1, 0, 0x5e, 0, 0, 1];
    for (to, passes) in [(MAC, true), ([0xff; 6], true), (PEER, false), (group, false)] {
        let before = drops(&b);
        assert!(b.takes(&frame(to, 100, 0)));
        assert_eq!(drops(&b) - before, u64::from(!passes), "{to:x?}");
    }
    // ether_crc(01:00:5e:00:00:01) >> 26 is 31: Linux's hash of 224.0.0.1.
    b.w(0x44, 0x0000_a40e);
    b.w(0x08, 1 << 31);
    let before = drops(&b);
    assert!(b.takes(&frame(group, 100, 0)));
    assert_eq!(drops(&b), before);
    b.w(0x44, 0x0000_a40f);
    assert!(b.takes(&frame(PEER, 100, 0)));
    assert_eq!(drops(&b), before, "promiscuous");
}

#[test]
fn in_c_plus_mode_too_a_frame_whose_cause_was_read_and_acknowledged_raises_it_never_again() {
    for mask in [0x80ff, 0x80ac, 0] {
        let mut b = Bench::opened();
        assert!(b.takes(&frame(MAC, 100, 1)));
        assert_eq!(b.r16(0x3e), 1);
        b.w16(0x3c, mask);
        b.w16(0x3e, 0x53);
        b.pass(10_000_000);
        b.w16(0x3c, 0x80ff);
        b.pass(1_000_000_000);
        assert_eq!((b.reported(), b.r16(0x3e)), (Some(false), 0), "mask {mask:#x}: its buffer is the driver's still");
    }
}

#[test]
fn what_comes_while_an_acknowledgement_is_under_way_is_told_again() {
    let mut b = Bench::opened();
    // cp_interrupt and cp_rx_poll: the acknowledging write arrives after the driver has read the ring.
    assert!(b.takes(&frame(MAC, 100, 1)));
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(true), 1));
    b.w16(0x3c, 0x80ac);
    b.post(0, 0x8000_0000 | 1536, RX_DATA);
    assert!(b.takes(&frame(MAC, 100, 2)));
    b.w16(0x3e, 0x53);
    b.w16(0x3c, 0x80ff);
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(true), 1), "of the second one, at the end of the poll");
    // Once only: a driver that keeps its buffers is not interrupted for ever.
    b.w16(0x3c, 0x80ac);
    b.w16(0x3e, 0x53);
    b.w16(0x3c, 0x80ff);
    b.pass(10_000_000);
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(false), 0));
    // A driver that masks nothing, or everything, never unmasks.
    for mask in [0x80ff, 0] {
        b.w16(0x3c, mask);
        b.post(1, 0x8000_0000 | 1536, RX_DATA);
        assert!(b.takes(&frame(MAC, 100, 3)));
        b.w16(0x3e, 0x53);
        b.pass(1_000_000);
        assert_eq!(b.r16(0x3e), 1);
        b.w16(0x3e, 0x53);
        b.pass(10_000_000);
        assert_eq!(b.r16(0x3e), 0);
    }
    // The same for sent frames: one was completed since ISR was read.
    b.w16(0x3c, 0x80ff);
    b.queue(0, &frame(PEER, 100, 1), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    b.pass(2_000_000);
    assert_eq!(b.r16(0x3e), 4);
    b.queue(1, &frame(PEER, 100, 1), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    b.w16(0x3e, 4);
    b.reported();
    b.pass(2_000_000);
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(true), 4));
    b.w16(0x3e, 4);
    b.pass(10_000_000);
    assert_eq!(b.r16(0x3e), 0);
}

/// RTL8169 1.21, transmit descriptor: the address is in its second half. TNPDS is at 0x20 of BAR 1.
#[test]
fn a_drivers_mistakes_are_listed_with_place_value_and_expectation() {
    let mut b = Bench::opened();
    b.queue(0, &frame(PEER, 100, 1), 0, 0);
    b.describe(1, 0xa000_0000 | 60, 0, TX_DATA);
    b.describe(2, 0x9000_0000 | 60, 0, 0xdead_0000_0000);
    assert_eq!(b.transmit().len(), 1);
    b.put(RX_RING + 8, &0xdead_1000_0000_u64.to_le_bytes());
    b.bring_one(&frame(MAC, 100, 1));
    b.w(0x20, 0xfebc_0000);
    b.transmit();
    let said: Vec<String> = b.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        said[..3],
        [
            "transmit queue 0, descriptor 2: 0xdead00000000; expected the address of a buffer in guest memory that the device may read",
            "receive queue 0, descriptor 0: 0xdead10000000; expected the address of a receive buffer in guest memory that the device \
             may write",
            "transmit queue 0: 0xfebc0000; expected a descriptor ring in guest memory (TNPDS)",
        ]
    );
}

#[test]
fn a_driver_that_is_up_and_receives_nothing_is_told_why() {
    for mut b in [Bench::opened(), Bench::opened_plain("rtl8139-plain")] {
        assert_eq!(b.nic.receive_block(), None);
        b.w(0x44, 0x0000_a400);
        assert_eq!(b.nic.receive_block(), Some("its receive filter accepts no address (RCR)"));
        b.link(false);
        assert_eq!(b.nic.receive_block(), Some("its link is down"));
        b.w8(0x37, 0x04);
        assert_eq!(b.nic.receive_block(), Some("its receiver is off (CR.RE)"));
        b.w8(0x37, 0x0c);
        b.command(3);
        assert_eq!(b.nic.receive_block(), Some("bus mastering is off (PCI command register)"));
    }
}
