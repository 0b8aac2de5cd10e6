//! Frames in both directions: rings, sizes, filters, refusals, loopback.

use nicety_adapter::Reason;

use crate::bench::*;

fn drops(b: &Bench, reason: Reason) -> (u64, u64) {
    (b.counters.transmit_drops[reason as usize], b.counters.receive_drops[reason as usize])
}

#[test]
fn a_frame_goes_out_and_its_descriptor_comes_back_when_it_is_done() {
    let mut b = Bench::opened();
    b.queue(0, &frame(900));
    b.kick();
    assert!(b.out.work.contains(0));
    assert!(!b.fetch().more);
    assert_eq!(cut(&b.batch), [frame(900)]);
    assert_eq!(b.sent(0).0, WHOLE, "not before it is done");
    b.complete();
    assert_eq!(b.sent(0), (STP | ENP, 0));
    assert_eq!(b.csr(0) & TINT, TINT);
    assert_eq!((b.csr(74), b.counters.transmitted().packets), (0xfff1, 1));
}

#[test]
fn a_frame_in_pieces_is_one_and_a_short_one_is_padded_as_csr4_says() {
    let mut b = Bench::opened();
    let whole = frame(1300);
    b.put(TX_DATA, &whole);
    b.tx(0, TX_DATA, 100, OWN | STP);
    b.tx(1, TX_DATA + 100, 7, OWN);
    b.tx(2, TX_DATA + 107, 1193, OWN | ENP);
    b.queue(3, &frame(42));
    b.kick();
    let out = b.transmit();
    assert_eq!(out[0], whole);
    assert_eq!(out[1], [&frame(42)[..], &[0; 18]].concat());
    assert_eq!([b.sent(0).0, b.sent(1).0, b.sent(2).0], [STP, 0, ENP]);
    b.wcsr(4, 0x0115);
    b.queue(4, &frame(42));
    b.kick();
    assert_eq!(b.transmit(), [frame(42)], "APAD_XMT is off");
}

#[test]
fn the_ring_wraps_and_is_never_walked_around_twice() {
    let mut b = Bench::opened();
    for first in [0, 16, 16 + 11, 32 + 11] {
        for index in first..first + 16 {
            b.queue(index % 16, &frame(60 + index as usize));
        }
        b.kick();
        let most = if first == 16 { 11 } else { 16 };
        if first == 16 {
            // The chip holds only eleven of them.
            (27..32).for_each(|index| b.tx(index % 16, 0, 0, 0));
        }
        assert!(!b.fetch().more);
        let lengths: Vec<usize> = cut(&b.batch).iter().map(Vec::len).collect();
        assert_eq!(lengths, (first as usize..first as usize + most).map(|index| 60 + index).collect::<Vec<_>>());
        b.fetch();
        assert!(b.batch.is_empty(), "all are the chip's, until they are given back");
    }
}

#[test]
fn a_chain_without_an_end_is_an_underflow_that_stops_the_transmitter() {
    let mut b = Bench::opened();
    b.tx(0, TX_DATA, 100, OWN | STP);
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.sent(0), (ERR | STP, 0xc000_0000), "BUFF, UFLO");
    assert_eq!(b.csr(0) & (TXON | TINT), TINT);
    assert_eq!(drops(&b, Reason::BadDescriptor).0, 1);
    b.wcsr(0, STOP);
    b.open();
    b.wcsr(3, 0x0040);
    b.tx(0, TX_DATA, 100, OWN | STP);
    b.kick();
    b.transmit();
    b.queue(1, &frame(70));
    b.kick();
    assert_eq!(b.transmit(), [frame(70)], "DXSUFLO: it goes on");
}

#[test]
fn without_a_link_carrier_is_lost_and_the_ring_goes_on() {
    let mut b = Bench::opened();
    b.link(false);
    b.queue(0, &frame(60));
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.sent(0), (ERR | STP | ENP, 0x0800_0000), "LCAR");
    assert_eq!(drops(&b, Reason::LinkDown).0, 1);
    b.bring_one(&frame(60));
    assert_eq!(drops(&b, Reason::ReceiverOff).1, 1);
    b.link(true);
    b.queue(1, &frame(60));
    b.kick();
    assert_eq!(b.transmit(), [frame(60)]);
}

#[test]
fn a_check_sequence_that_the_driver_made_is_not_sent_twice() {
    let mut b = Bench::new();
    b.mode = 0x0088;
    b.open();
    b.wcsr(4, 0x0115);
    let with = [&frame(100)[..], &[1, 2, 3, 4]].concat();
    b.queue(0, &with);
    b.put(TX_DATA + 4096, &frame(80));
    b.tx(1, TX_DATA + 4096, 80, WHOLE | 0x2000);
    b.kick();
    assert_eq!(b.transmit(), [frame(100), frame(80)], "DXMTFCS, and ADD_FCS against it");
}

#[test]
fn a_frame_arrives_with_its_length_and_its_match() {
    let mut b = Bench::opened();
    b.put(RX_DATA, &[0xee; 1544]);
    b.bring(&[&frame(900), &to([0xff; 6], 42)]);
    assert_eq!(b.received(0), (STP | ENP | 0x40, 904), "PAM, and the check sequence is counted");
    assert_eq!(b.get(RX_DATA, 900), frame(900));
    assert_eq!(b.get(RX_DATA + 904, 1), [0xee]);
    assert_eq!(b.received(1), (STP | ENP | 0x10, 64), "BAM, padded");
    assert_eq!(b.get(RX_DATA + 2048 + 42, 22), [0; 22]);
    assert_eq!((b.csr(0) & RINT, b.csr(72)), (RINT, 0xffe2));
}

#[test]
fn a_frame_takes_as_many_buffers_as_it_needs() {
    let mut b = Bench::opened();
    for index in 0..32 {
        b.post(index, RX_DATA + index * 2048, 500);
    }
    b.bring(&[&frame(1514), &frame(490)]);
    let states: Vec<u16> = (0..5).map(|index| b.received(index).0).collect();
    assert_eq!(states, [STP, 0, 0, ENP | 0x40, STP | ENP | 0x40]);
    assert_eq!((b.received(3).1, b.received(4).1), (1518, 494));
    let whole: Vec<u8> = (0..4).flat_map(|index| b.get(RX_DATA + index * 2048, 500)).collect();
    assert_eq!(whole[..1514], frame(1514));
}

#[test]
fn a_frame_without_buffers_waits_and_the_ring_is_looked_at_until_there_are_some() {
    let mut b = Bench::opened();
    let frames = vec![frame(60); 40];
    let refs: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let delivery = b.bring(&refs);
    assert_eq!(delivery.refusals().len(), 8);
    assert!(b.line(), "at once");
    assert_eq!(b.csr(0) & MISS, 0, "none is lost");
    b.out.room.pop();
    b.pass(300_000);
    assert!(!b.out.room.contains(0));
    b.post(0, RX_DATA, 1544);
    b.pass(1_000_000);
    assert!(b.out.room.contains(0));
    assert_eq!(b.bring_one(&frame(61)).refused(), 0);
    assert_eq!(b.received(0).1, 65);
}

#[test]
fn the_filter_wants_the_station_broadcasts_hashed_groups_and_all_if_it_is_asked() {
    let group = [0x01, 0x00, 0x5e, 0x00, 0x00, 0x01];
    let mut b = Bench::opened();
    let wants = |b: &mut Bench, destination| {
        let before = b.counters.taken().packets;
        b.bring_one(&to(destination, 60));
        b.counters.taken().packets > before
    };
    assert!(wants(&mut b, MAC) && wants(&mut b, [0xff; 6]));
    assert!(!wants(&mut b, group) && !wants(&mut b, PEER));
    b.wcsr(5, 1);
    for n in 8..12 {
        b.wcsr(n, 0xffff);
    }
    b.wcsr(5, 0);
    assert!(wants(&mut b, group) && !wants(&mut b, PEER));
    b.wcsr(5, 1);
    b.wcsr(15, 0xe080);
    b.wcsr(5, 0);
    assert!(wants(&mut b, PEER), "PROM");
    b.wcsr(5, 1);
    b.wcsr(15, 0x6080);
    (8..12).for_each(|n| b.wcsr(n, 0));
    b.wcsr(5, 0);
    assert!(!wants(&mut b, MAC) && !wants(&mut b, [0xff; 6]), "DRCVPA, DRCVBC");
}

#[test]
fn exactly_one_bit_of_the_hash_is_a_group_s() {
    let group = [0x01, 0x00, 0x5e, 0x00, 0x00, 0x01];
    let mut hits = Vec::new();
    for bit in 0..64_u16 {
        let mut b = Bench::opened();
        b.wcsr(5, 1);
        b.wcsr(8 + bit / 16, 1 << (bit % 16));
        b.wcsr(5, 0);
        b.bring_one(&to(group, 60));
        if b.counters.taken().packets == 1 {
            hits.push((bit, b.received(0).0));
        }
    }
    assert_eq!(hits, [(hash(group), STP | ENP | 0x20)], "LAFM");
}

/// The hash by polynomial division, bit by bit in wire order, with the generator of IEEE 802.3, 3.2.9.
fn hash(destination: [u8; 6]) -> u16 {
    let mut register = u32::MAX;
    for bit in (0..48).map(|n| destination[n / 8] >> (n % 8) & 1) {
        let out = (register >> 31) as u8 ^ bit;
        register = register << 1 ^ if out == 1 { 0x04c1_1db7 } else { 0 };
    }
    (0..6).map(|n| ((register >> n & 1) << n) as u16).fold(0, |hash, bit| hash | bit).reverse_bits() >> 10
}

#[test]
fn stripping_takes_pad_and_check_sequence_of_a_frame_that_says_its_length() {
    let mut b = Bench::opened();
    b.wcsr(4, 0x0d15);
    let mut short = frame(60);
    short[12..14].copy_from_slice(&[0, 20]);
    b.bring(&[&short, &frame(60)]);
    assert_eq!((b.received(0).1, b.received(1).1), (34, 64));
}

#[test]
fn the_loopback_test_of_ethtool_passes() {
    let mut b = Bench::opened();
    // pcnet32_loopback_test
    b.wcsr(0, STOP);
    b.reset();
    b.wcsr(4, 0x0915);
    b.wbcr(20, 2);
    b.rings();
    b.wcsr(0, INIT);
    assert_eq!(b.csr(0) & IDON, IDON);
    b.wcsr(0, 0);
    b.wcsr(0, STOP);
    let packets: Vec<Vec<u8>> = (0..4).map(|n| to(MAC, 75 + n)).collect();
    for (index, packet) in (0..).zip(&packets) {
        b.queue(index, packet);
    }
    let bcr = b.bcr(32);
    b.wbcr(32, bcr | 2);
    let mode = b.csr(15) & 0xfffc;
    b.wcsr(15, mode | 0x0044);
    b.wcsr(0, STRT);
    assert!(b.out.work.contains(0), "without TDMD");
    assert!(b.transmit().is_empty(), "nothing leaves");
    for (index, packet) in (0..).zip(&packets) {
        assert_eq!((b.received(index).0 & OWN, b.sent(index).0), (0, STP | ENP));
        assert_eq!(b.get(RX_DATA + index * 2048, packet.len()), *packet);
    }
    b.bring_one(&frame(60));
    assert_eq!(drops(&b, Reason::ReceiverOff).1, 1, "and nothing enters");
    assert_eq!(b.counters.transmitted().packets, 0);
}

#[test]
fn a_loopback_without_buffers_misses_frames_and_counts_them() {
    let mut b = Bench::new();
    (b.mode, b.logs) = (0x00c4, [4, 1]);
    b.open();
    for index in 0..5 {
        b.queue(index, &to(MAC, 60));
    }
    b.kick();
    b.transmit();
    assert_eq!(b.csr(0) & 0x9000, 0x8000 | MISS);
    assert_eq!(b.csr(112), 3);
}

/// 9front, sys/src/9/pc/ether79c970.c: promiscuous and ringinit.
fn restart_as_9front(b: &mut Bench) {
    const PROM: u16 = 0x8000;
    b.wcsr(0, STOP);
    let mode = b.csr(15);
    b.wcsr(15, mode | PROM);
    let [transmit, receive] = b.logs;
    (0..1 << receive).for_each(|index| b.post(index, RX_DATA + index * 2048, 1518));
    (0..1 << transmit).for_each(|index| b.tx(index, 0, 0, 0));
    b.wcsr(0, STRT | INEA);
}

#[test]
fn stop_and_start_without_init_begin_both_rings_at_their_first_descriptor() {
    for (model, style) in [("pcnet", 0), ("pcnet", 2), ("pcnet", 3), ("vlance", 2), ("flexible", 2)] {
        let mut b = Bench::of(model);
        b.style = style;
        b.open();
        (0..3).for_each(|index| b.queue(index, &frame(60)));
        b.kick();
        assert_eq!(b.transmit().len(), 3);
        b.bring(&[&frame(60)[..]; 5]);
        assert_eq!(b.received(4).0 & OWN, 0);

        restart_as_9front(&mut b);
        assert_eq!((b.csr(72), b.csr(74)), (0u16.wrapping_sub(32), 0u16.wrapping_sub(16)), "{model}: RCVRC, XMTRC");
        b.queue(0, &frame(61));
        b.kick();
        assert_eq!(b.transmit(), [frame(61)], "{model}, style {style}");
        assert_eq!(b.bring_one(&to([2, 0, 0, 0, 0, 99], 60)).refused(), 0, "{model}, style {style}");
        assert_eq!(b.received(0).0 & OWN, 0, "{model}, style {style}");
        assert_eq!(b.received(5).0 & OWN, OWN);
    }
}

#[test]
fn a_suspension_keeps_the_positions_in_both_rings() {
    let mut b = Bench::opened();
    b.queue(0, &frame(60));
    b.kick();
    b.transmit();
    b.bring(&[&frame(60)[..]; 2]);
    // pcnet32_suspend and pcnet32_clr_suspend
    b.wcsr(5, 1);
    b.wcsr(15, 0x8080);
    b.wcsr(5, 0);
    b.queue(1, &frame(60));
    b.kick();
    assert_eq!(b.transmit().len(), 1);
    b.bring_one(&frame(60));
    assert_eq!(b.received(2).0 & OWN, 0);
}

#[test]
fn suspended_nothing_moves_and_afterwards_all_does() {
    let mut b = Bench::opened();
    b.wcsr(5, 1);
    b.queue(0, &frame(60));
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.bring_one(&frame(60)).refusals().len(), 1);
    b.wcsr(5, 0);
    assert!(b.out.work.contains(0) && b.out.room.contains(0));
    assert_eq!(b.transmit(), [frame(60)]);
    assert_eq!(b.bring_one(&frame(60)).refused(), 0);
}
