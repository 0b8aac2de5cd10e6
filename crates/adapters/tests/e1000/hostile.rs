//! Random writes, and rings without end or without memory.

use nicety_adapter::{Queue, Set};

use crate::bench::*;
use crate::storm::storm;

/// Registers with effects, which the test uses more often than the others.
const HOT: [u64; 22] = [
    0x0, 0x10, 0x20, 0xc0, 0xc4, 0xc8, 0xd0, 0x100, 0x400, 0x2800, 0x2804, 0x2808, 0x2810, 0x2818, 0x2820, 0x3800,
    0x3804, 0x3808, 0x3810, 0x3818, 0x5000, 0x5404,
];

#[test]
fn ten_thousand_random_steps_end_in_order_whatever_the_seed() {
    for seed in 0..12 {
        storm("e1000", seed, Bench::opened(), &HOT, |_, _| ());
    }
}

#[test]
fn rings_of_nothing_but_contexts_or_of_one_endless_packet_end() {
    let mut b = Bench::opened();
    let size = 0x8000_u32;
    b.w(0x3800, 0x20_0000);
    b.w(0x3808, size * 16);
    for i in 0..u64::from(size) {
        b.put(0x20_0000 + i * 16 + 8, &0x2000_0000_u32.to_le_bytes());
    }
    b.w(TDT, size - 1);
    let mut calls = 1;
    while b.fetch().more {
        calls += 1;
        assert!(calls < 100);
    }
    assert!(calls > 8, "a call walks a part of the ring");
    assert_eq!(b.r(TDH), size - 1);
    for i in 0..256 {
        b.descriptor(i, TX_DATA, 1, 0);
    }
    b.open_transmit(TX_RING, 256);
    b.w(TDT, 255);
    assert!(b.transmit().is_empty());
    assert_eq!(b.r(TDH), 255, "an endless packet is given up");
}

#[test]
fn a_ring_that_cannot_be_walked_says_so_until_it_can() {
    let mut b = Bench::opened();
    let stalled_rings = |b: &Bench| [0, 1].map(|ring| b.nic.stall(ring).map(|stall| (stall.queue, stall.why)));
    let nowhere = |queue| Some((queue, "the ring lies where no memory is"));
    // TDBAH, RDBAH: 4 GiB beyond its memory.
    for (register, number, stalls) in
        [(0x3804, 1, [None, nowhere(Queue::Transmit(0))]), (0x2804, 0, [nowhere(Queue::Receive(0)), None])]
    {
        b.w(register, 1);
        for announced in [true, false] {
            b.out.stalled = Set::default();
            b.descriptor(0, TX_DATA, CMD | 60, 0);
            let tail = b.r(TDH) + 1;
            b.w(TDT, tail);
            b.fetch();
            b.complete();
            b.bring_one(&ethernet(0x88b5, &[0; 100]));
            assert_eq!((stalled_rings(&b), b.out.stalled.contains(number)), (stalls, announced));
        }
        b.w(register, 0);
        b.fetch();
        b.complete();
        b.bring_one(&ethernet(0x88b5, &[0; 100]));
        assert_eq!(stalled_rings(&b), [None; 2], "it can be walked");
    }
    b.w(TDT, 256);
    b.fetch();
    assert_eq!(stalled_rings(&b)[1], Some((Queue::Transmit(0), "its head or tail lies beyond its end")));
    b.reset();
    assert_eq!(stalled_rings(&b), [None; 2], "a chip that was reset");
}

/// The list of guest errors as text, oldest first.
fn said(b: &Bench) -> Vec<String> {
    b.counters.errors().iter().map(ToString::to_string).collect()
}

/// Addresses and offsets are those of 317453: 3.3.3 and 3.2.3 (buffer address), 13.4.41 (TDT), 13.4.20 (IMC).
#[test]
fn a_drivers_mistakes_are_listed_with_place_value_and_expectation() {
    let mut b = Bench::opened();
    b.descriptor(0, TX_DATA, 60 | CMD, 0);
    b.descriptor(1, TX_DATA, 30, 0);
    b.descriptor(2, 0xfebc_0000, 30 | CMD, 0);
    b.w(TDT, 3);
    assert_eq!(b.transmit().len(), 1);
    b.put(RX_RING, &0xfebc_1000_u64.to_le_bytes());
    b.bring_one(&ethernet(0x88b5, &payload(60)));
    b.w(TDT, 300);
    b.fetch();
    b.bar_write(0, IMC, &[7, 0]);
    b.bar_read(0, 0x2_0000, &mut [0; 4]);
    assert_eq!(
        said(&b),
        [
            "transmit queue 0, descriptor 2: 0xfebc0000; expected the address of a buffer in guest memory that the device may read",
            "receive queue 0, descriptor 0: 0xfebc1000; expected the address of a receive buffer in guest memory that the device may \
             write",
            "TDT (bar0 0x3818): 0x12c; expected a tail within the ring (TDT below TDLEN / 16)",
            "write of 2 bytes at bar0 0x00d8: 0x7; expected a register there, and this width",
            "read of 4 bytes at bar0 0x20000; expected a register there, and this width",
        ]
    );
    assert_eq!((b.counters.guest_errors(), b.counters.bad_accesses()), (3, 2));
    assert!(b.out.stalled.contains(nicety_adapter::Outbox::GUEST_ERROR));
}

#[test]
fn a_descriptor_that_asks_for_an_impossible_checksum_or_never_ends_is_named() {
    let mut b = Bench::opened();
    // Legacy, IC: CSO (bits 16 to 23) lies behind the frame (3.3.3).
    b.descriptor(0, TX_DATA, 60 | CMD | 0x0400_0000 | 200 << 16, 14 << 8);
    b.descriptor(1, TX_DATA, 10 | CMD, 0);
    b.w(TDT, 2);
    assert!(b.transmit().is_empty());
    let said = said(&b);
    assert!(
        said[0].starts_with("transmit queue 0, descriptor 0: 0xe000fc8003c; expected checksum and segmentation"),
        "{said:?}"
    );
    assert_eq!(
        said[1],
        "transmit queue 0, descriptor 1: 0xa; expected a frame of at least 14 bytes, an Ethernet header"
    );
}
