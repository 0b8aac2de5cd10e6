//! Hostile guests: the classes of faults of other adapters' models.

use nicety_adapter::{Queue, Reason};
use nicety_memory::count;

use crate::bench::*;

/// Most accesses to guest memory by one call.
const WORK: u64 = 16_384;

#[test]
fn cve_2016_6834_a_packet_that_never_ends_stands_still_and_says_why() {
    let mut b = Bench::of("vmxnet2");
    b.lens = [8, 8, 512];
    b.lay();
    b.open();
    (0..512).for_each(|index| b.tx(index, MORE | KEEP, 0, &[(TX_DATA, 60_000); 6]));
    count::take();
    b.ring_bell();
    assert!(b.transmit().is_empty());
    let work = count::take();
    assert!(work < WORK, "{work}");
    assert!(b.out.stalled.contains(1));
    let stall = b.nic.stall(1).unwrap();
    assert_eq!((stall.queue, stall.why), (Queue::Transmit(0), "a packet fills the whole ring and has no end"));
    count::take();
    (0..100).for_each(|_| b.ring_bell());
    assert!(b.transmit().is_empty() && count::take() < 10, "it is not walked again");
    b.bring(&[&frame(60)]);
    assert_eq!(b.received(0, 0).0, DRIVER, "the other ring goes on");
    b.w(0, 0);
    b.lay();
    b.open();
    assert_eq!(b.nic.stall(1), None);
    b.queue(0, &frame(60));
    b.ring_bell();
    assert_eq!(b.sent(), [frame(60)]);
}

#[test]
fn cve_2016_6834_a_packet_of_more_pieces_than_one_can_have_is_dropped() {
    let mut b = Bench::of("vmxnet2");
    b.lens = [8, 8, 512];
    b.lay();
    b.open();
    for index in 0..400 {
        let more = if index < 399 { MORE } else { 0 };
        b.tx(index, KEEP | more, 0, &[0, 1, 2, 3, 4, 5].map(|n| (TX_DATA + 4096 * (n + index), 20)));
    }
    b.queue(400, &frame(60));
    count::take();
    b.ring_bell();
    assert_eq!(b.sent(), [frame(60)]);
    assert!(count::take() < WORK);
    assert_eq!(b.dropped(Reason::TooManyPieces), 1);
    assert_eq!([b.owner(0), b.owner(399), b.owner(400)], [DRIVER; 3]);
}

#[test]
fn cve_2016_7909_rings_without_entries_are_not_taken() {
    for at in [RX_LENGTH, TX_LENGTH] {
        let mut b = Bench::of("vmxnet2");
        b.lay();
        b.put32(DATA + at, 0);
        b.w(0, DATA);
        b.w(4, b.length());
        assert_eq!(b.r(4), 0);
        b.ring_bell();
        assert!(b.transmit().is_empty());
        b.bring(&[&frame(60)]);
        assert_eq!(b.dropped(Reason::ReceiverOff), 1);
    }
}

#[test]
fn cve_2013_4544_lengths_that_change_after_they_were_taken_change_nothing() {
    let mut b = Bench::opened("vmxnet2");
    for (at, value) in [(RX_LENGTH, u32::MAX), (TX_LENGTH, u32::MAX), (RX_OFFSET, 0), (TX_OFFSET, u32::MAX)] {
        b.put32(DATA + at, value);
    }
    b.put(DATA + MAX_FRAGS, &[0xff; 2]);
    for round in 0..40u32 {
        b.bring(&[&frame(60 + round as usize)]);
        assert_eq!(b.received(0, round % 8).2, 60 + round);
        b.post(round % 8);
        b.queue(round % 16, &frame(60));
        b.ring_bell();
        assert_eq!(b.sent().len(), 1);
    }
}

#[test]
fn cve_2021_20203_ring_lengths_whose_product_overflows_are_not_taken() {
    for (at, value) in [(RX_LENGTH, u32::MAX / 24 + 1), (RX_LENGTH_2, 1 << 31), (TX_LENGTH, 1 << 26)] {
        let mut b = Bench::of("vmxnet2");
        b.lay();
        b.put32(DATA + at, value);
        b.w(0, DATA);
        b.w(4, b.length());
        assert_eq!((b.r(4), b.counters.guest_errors()), (0, 1));
    }
}

#[test]
fn cve_2015_8744_and_2016_6835_packets_whose_headers_are_cut_are_refused() {
    let mut b = Bench::opened("vmxnet2");
    // Ethernet alone; an IP header with too great a length; a TCP header with too great a length.
    let mut ip = frame(34);
    ip[12..15].copy_from_slice(&[8, 0, 0x4f]);
    let mut tcp = frame(54);
    tcp[12..15].copy_from_slice(&[8, 0, 0x45]);
    tcp[16..24].copy_from_slice(&[0, 40, 0, 0, 0, 0, 64, 6]);
    tcp[46] = 0xf0;
    for packet in [frame(14), ip, tcp] {
        for flags in [TSO, XSUM, TSO | XSUM] {
            b.w(0, 0);
            b.lay();
            b.open();
            b.put(TX_DATA, &packet);
            b.tx(0, KEEP | flags, 1448, &[(TX_DATA, packet.len() as u16)]);
            b.ring_bell();
            assert!(b.transmit().is_empty());
            assert_eq!(b.owner(0), DRIVER);
        }
    }
    b.tx(1, KEEP | TSO, 1448, &[(TX_DATA, 13)]);
    b.tx(2, KEEP, 0, &[]);
    b.ring_bell();
    assert!(b.transmit().is_empty());
    assert_eq!((b.dropped(Reason::BadOffload), b.dropped(Reason::TooShort)), (9, 2));
}

#[test]
fn cve_2018_17962_lengths_that_add_up_to_more_than_a_packet_are_too_long() {
    let mut b = Bench::opened("vmxnet2");
    b.tx(0, KEEP | TSO, 1448, &[(TX_DATA, u16::MAX); 6]);
    b.ring_bell();
    assert!(b.transmit().is_empty());
    assert_eq!((b.dropped(Reason::TooLong), b.owner(0)), (1, DRIVER));
}

#[test]
fn cve_2023_3019_addresses_where_no_memory_is_lose_the_frame_alone() {
    let mut b = Bench::opened("vmxnet2");
    b.tx(0, KEEP, 0, &[(TX_DATA, 60), (0xfeb0_0000, 60)]);
    b.queue(1, &frame(60));
    b.ring_bell();
    assert_eq!(b.sent(), [frame(60)]);
    assert_eq!((b.dropped(Reason::BadAddress), b.owner(0)), (1, DRIVER));
    b.receive_entry(0, 0, 0xfeb0_0000, 1536, NIC);
    b.receive_entry(1, 0, 0xfeb0_0000, 4096, NIC_FRAG);
    b.bring(&[&frame(60), &frame(9000), &frame(61)]);
    assert_eq!(b.received(0, 0), (DRIVER, 0, 0), "an empty one: vmxnet_rx counts an error");
    assert_eq!(b.received(0, 1), (DRIVER, 0, 0));
    assert_eq!((b.received(1, 0).0, b.received(0, 2)), (NIC_FRAG, (DRIVER, 0, 61)));
    assert_eq!(b.dropped(Reason::BadAddress), 3);
}

#[test]
fn entries_of_other_kinds_of_addresses_or_with_more_pieces_than_fit_are_refused() {
    let mut b = Bench::opened("vmxnet");
    for (index, (kind, pieces)) in (0..).zip([(0u16, 1u16), (2, 1), (3, 1), (0xffff, 1), (1, 7), (1, 0xffff)]) {
        b.queue(index, &frame(60));
        b.put(b.entry(index) + 12, &kind.to_le_bytes());
        b.put(b.entry(index) + 14, &pieces.to_le_bytes());
    }
    b.ring_bell();
    assert!(b.transmit().is_empty());
    assert_eq!(b.dropped(Reason::BadDescriptor), 6);
}

#[test]
fn buffers_of_no_bytes_take_no_frame_and_no_for_ever() {
    let mut b = Bench::opened("vmxnet2");
    (0..8).for_each(|index| b.receive_entry(0, index, RX_DATA, 0, NIC));
    (0..32).for_each(|index| b.receive_entry(1, index, PAGES, 0, NIC_FRAG));
    count::take();
    b.bring(&[&frame(60), &frame(60)]);
    assert!(count::take() < 500);
    assert_eq!(b.dropped(Reason::TooManyPieces), 2);
}

#[test]
fn a_ring_whose_memory_went_away_stands_still() {
    let mut b = Bench::opened("vmxnet");
    b.map = nicety_memory::Map::empty();
    b.ring_bell();
    b.fetch();
    b.bring(&[&frame(60)]);
    assert!(b.out.stalled.contains(0) && b.out.stalled.contains(1));
    assert_eq!(b.nic.stall(0).unwrap().why, "the ring lies where no memory is");
    b.command(ACK);
    b.pass(10_000_000);
    b.w(0, 0);
    assert!(!b.nic.is_driven());
}

#[test]
fn without_bus_mastering_nothing_moves_and_with_it_again_all_goes_on() {
    let mut b = Bench::opened("vmxnet");
    b.config_write(4, &[3, 0]);
    b.queue(0, &frame(60));
    b.ring_bell();
    count::take();
    assert!(b.transmit().is_empty());
    assert_eq!(count::take(), 0);
    b.bring(&[&frame(60)]);
    assert_eq!(b.received(0, 0).0, NIC);
    b.config_write(4, &[7, 0]);
    assert!(b.out.work.contains(0));
    assert_eq!(b.sent(), [frame(60)]);
}

/// Names of vmxnet2_def.h and vmxnet_def.h in open-vm-tools.
#[test]
fn a_drivers_mistakes_are_listed_with_place_value_and_expectation() {
    let mut b = Bench::opened("vmxnet2");
    b.queue(0, &frame(60));
    b.tx(1, KEEP, 0, &[(TX_DATA, 30), (0xfebc_0000, 30)]);
    b.ring_bell();
    assert_eq!(b.sent(), [frame(60)]);
    b.receive_entry(0, 0, 0xfebc_1000, 1536, NIC);
    b.bring(&[&frame(60)]);
    b.command(0x8888);
    let said: Vec<String> = b.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "transmit queue 0, descriptor 1: 0xfebc0000; expected the address of a buffer in guest memory that the device may read",
            "receive queue 0, descriptor 0: 0xfebc1000; expected the address of a receive buffer in guest memory that the device may \
             write",
            "COMMAND_ADDR (bar0 0x000c): 0x8888; expected a command that there is (VMXNET_CMD_*)",
        ]
    );
}

#[test]
fn a_driver_that_is_up_and_receives_nothing_is_told_why() {
    let mut b = Bench::opened("vmxnet");
    assert_eq!(b.nic.receive_block(), None);
    b.link(false);
    assert_eq!(b.nic.receive_block(), Some("its link is down"));
    b.config_write(4, &[3, 0]);
    assert_eq!(b.nic.receive_block(), Some("bus mastering is off (PCI command register)"));
}
