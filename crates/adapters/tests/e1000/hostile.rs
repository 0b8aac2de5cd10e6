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
