//! Hostile guests: the classes of faults of other models of this chip, and a guest that makes random writes.

use nicety_adapter::{Queue, Reason, Reset};
use nicety_memory::count;

use crate::bench::*;

/// An opened adapter whose ring lengths were changed under suspension.
fn lengths(receive: u16, transmit: u16) -> Bench {
    let mut b = Bench::opened();
    b.wcsr(5, 1);
    b.wcsr(76, receive);
    b.wcsr(78, transmit);
    b.wcsr(5, 0);
    b
}

#[test]
fn cve_2016_7909_a_ring_of_length_zero_stands_still_and_says_why() {
    let mut b = lengths(0, 0);
    b.queue(0, &frame(60));
    b.kick();
    count::take();
    assert!(b.transmit().is_empty());
    b.bring_one(&frame(60));
    (24..48).chain([60, 72, 74]).for_each(|n| _ = b.csr(n));
    assert!(count::take() < 50);
    assert!(b.out.stalled.contains(0) && b.out.stalled.contains(1));
    let stall = b.nic.stall(1).unwrap();
    assert_eq!((stall.queue, stall.why), (Queue::Transmit(0), "the ring has no descriptors"));
    b.wcsr(0, STOP);
    b.open();
    b.queue(0, &frame(60));
    b.kick();
    assert_eq!(b.transmit(), [frame(60)]);
    assert_eq!(b.nic.stall(1), None);
}

#[test]
fn cve_2016_7909_rings_of_65535_are_walked_a_bounded_part_at_a_time() {
    let mut b = lengths(1, 1);
    // The chip owns every descriptor, and none begins or ends a frame.
    for index in 0..65_535 {
        b.put(TX_RING + index * 16, &[0, 0, 0x10, 0, 0xff, 0xff, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    b.kick();
    count::take();
    assert!(b.fetch().more);
    assert_eq!(b.out.excess, 1024, "what is walked is paid for");
    b.complete();
    let work = count::take();
    assert!(work < 16_384, "{work}");
}

#[test]
fn cve_2015_3209_a_chain_that_would_overflow_a_buffer_is_an_underflow() {
    let mut b = lengths(0xffe0, 0xff00);
    for index in 0..256 {
        let first = if index == 0 { STP } else { 0 };
        b.tx(index, TX_DATA, 4096, OWN | first);
    }
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.counters.transmit_drops.iter().sum::<u64>(), 1);
    assert_eq!(b.csr(0) & TXON, 0, "UFLO turns the transmitter off");
    assert!((0..256).all(|index| b.sent(index).0 & OWN == 0), "and the chain is the driver's again");
}

#[test]
fn cve_2015_3209_a_chain_with_an_end_but_too_long_is_babble() {
    let mut b = lengths(0xffe0, 0xff00);
    for index in 0..40 {
        b.tx(index, TX_DATA, 4096, OWN | if index == 0 { STP } else { 0 } | if index == 39 { ENP } else { 0 });
    }
    b.queue(40, &frame(60));
    b.kick();
    assert_eq!(b.transmit(), [frame(60)]);
    assert_eq!(b.counters.transmit_drops[Reason::TooLong as usize], 1);
    assert_eq!(b.csr(0) & BABL, BABL);
}

#[test]
fn cve_2015_7504_a_full_buffer_in_loopback_has_no_room_for_its_check_sequence_and_writes_none() {
    let mut b = Bench::new();
    b.mode = 0x00c4;
    b.open();
    // A frame as long as one buffer, and receive buffers that end at a guard.
    b.post(0, RX_DATA, 1514);
    b.put(RX_DATA + 1514, &[0xa5; 64]);
    b.post(1, RX_DATA + 8192, 16);
    b.put(RX_DATA + 8192 + 4, &[0xa5; 64]);
    b.put(TX_DATA, &to(MAC, 1514));
    b.tx(0, TX_DATA, 1514, WHOLE);
    b.kick();
    b.transmit();
    assert_eq!([b.received(0).0, b.received(1).0], [STP, ENP | 0x40], "the check sequence is in the next one");
    assert_eq!(b.get(RX_DATA + 1514, 64), [0xa5; 64]);
    assert_eq!(b.get(RX_DATA + 8192 + 4, 64), [0xa5; 64]);
}

#[test]
fn cve_2015_7512_a_frame_from_the_wire_that_is_longer_than_any_is_dropped() {
    let mut b = Bench::opened();
    b.put(RX_DATA, &[0xa5; 8192]);
    b.bring(&[&frame(4096), &frame(9018)]);
    assert_eq!(b.counters.receive_drops[Reason::TooLong as usize], 2);
    assert_eq!(b.get(RX_DATA, 8192), [0xa5; 8192]);
}

#[test]
fn cve_2018_17962_sizes_of_two_gigabytes_in_sum_are_no_sizes() {
    let mut b = lengths(0xffe0, 1);
    // The longest ring of the longest buffers: 65535 times 4096 bytes.
    for index in 0..65_535 {
        b.put(TX_RING + index * 16, &[0, 0, 0x10, 0, 0, 0xf0, 0, 0x82, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    b.kick();
    count::take();
    assert!(b.transmit().is_empty());
    assert!(count::take() < 16_384);
    let mut b = Bench::opened();
    // A receive buffer that begins in memory and ends beyond it.
    b.post(0, MEMORY as u32 - 10, 1544);
    b.bring_one(&frame(60));
    assert_eq!(b.received(0), (ERR | 0x1000 | STP | ENP, 0), "OFLO");
    assert_eq!(b.counters.receive_drops[Reason::BadAddress as usize], 1);
    b.bring_one(&frame(60));
    assert_eq!(b.received(1).1, 64, "the ring goes on");
}

#[test]
fn cve_2021_3416_a_loopback_into_its_own_rings_ends() {
    let mut b = Bench::new();
    b.mode = 0x80c4;
    b.open();
    // Received frames overwrite the transmit ring with descriptors that the chip owns.
    let ring: Vec<u8> = (0..16).flat_map(|_| [0, 0, 0x10, 0, 0xc4, 0xff, 0, 0x83, 0, 0, 0, 0, 0, 0, 0, 0]).collect();
    b.put(TX_DATA, &ring);
    for index in 0..32 {
        b.post(index, TX_RING, 1544);
    }
    for index in 0..16 {
        b.tx(index, TX_DATA, 256, WHOLE);
    }
    b.kick();
    count::take();
    for _ in 0..100 {
        b.fetch();
        b.complete();
        assert!(count::take() < 16_384);
    }
    assert!(b.counters.transmitted().packets == 0);
}

/// A loopback with rings of 64 descriptors.
fn looped() -> Bench {
    let mut b = Bench::new();
    (b.mode, b.logs) = (0x80c4, [6, 6]);
    b.open();
    b
}

/// Other models wrote a descriptor's completion into their own registers, and started again.
#[test]
fn cve_2020_15859_rings_and_buffers_at_the_device_s_own_registers_are_no_memory() {
    let mut b = Bench::opened();
    // BAR 1 lies at 0xfebf0000: not the guest's memory, so DMA does not reach it.
    b.config_write(0x14, &0xfebf_0000_u32.to_le_bytes());
    b.tx(0, 0xfebf_0010, 60, WHOLE);
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.counters.transmit_drops[Reason::BadAddress as usize], 1);
    b.post(0, 0xfebf_0010, 1544);
    b.bring_one(&frame(60));
    assert_eq!(b.counters.receive_drops[Reason::BadAddress as usize], 1);
    assert_eq!(b.received(0).0 & (OWN | ERR), ERR, "its descriptor is given back with an error");
    // UFLO has turned the transmitter off.
    b.wcsr(0, STOP);
    b.wcsr(30, 0x0000);
    b.wcsr(31, 0xfebf);
    b.wcsr(0, STRT | INEA);
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.nic.stall(1).unwrap().why, "the ring lies where no memory is");
}

/// Other models received in the middle of a transmission, and gave a descriptor back twice.
#[test]
fn cve_2023_3019_a_loopback_whose_two_rings_are_one_is_not_re_entered() {
    let mut b = looped();
    b.wcsr(0, STOP);
    b.wcsr(24, TX_RING as u16);
    b.wcsr(25, (TX_RING >> 16) as u16);
    b.wcsr(0, STRT | INEA);
    b.put(TX_DATA, &to(MAC, 256));
    for index in 0..64 {
        b.tx(index, TX_DATA, 256, WHOLE);
    }
    b.kick();
    count::take();
    let mut calls = 0;
    while b.fetch().more {
        b.complete();
        calls += 1;
        assert!(calls < 100 && count::take() < 16_384, "each call ends, and so does what they do");
    }
    b.complete();
    assert!((0..64).all(|index| b.sent(index).0 & OWN == 0), "each descriptor was given back");
    assert_eq!(b.counters.transmitted().packets, 0);
}

/// Another model in loopback read beyond the end of a frame shorter than its headers.
#[test]
fn cve_2025_12464_short_frames_in_loopback_are_dropped_or_padded() {
    let mut b = looped();
    b.put(TX_DATA, &[0xff; 64]);
    for len in 1..64 {
        b.put(RX_DATA + len * 2048, &[0xa5; 128]);
        b.tx(len - 1, TX_DATA, len, WHOLE);
    }
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.counters.transmit_drops[Reason::TooShort as usize], 13, "what has no addresses and type");
    for index in 0..50 {
        let (status, len) = b.received(index);
        let own = 14 + index;
        assert_eq!((status & (OWN | ERR | STP | ENP), len), (STP | ENP, own.max(60) + 4), "{own} bytes");
        let bytes = b.get(RX_DATA + index * 2048, 64);
        assert!(bytes[..own as usize].iter().all(|byte| *byte == 0xff));
        assert!(bytes[own as usize..].iter().all(|byte| *byte == 0), "{own} bytes: the rest is padding");
    }
    assert_eq!(b.received(50).0, OWN);
}

#[test]
fn a_buffer_that_lies_nowhere_is_an_underflow() {
    let mut b = Bench::opened();
    b.tx(0, 0xdead_0000, 60, WHOLE);
    b.kick();
    assert!(b.transmit().is_empty());
    assert_eq!(b.sent(0), (ERR | STP | ENP, 0x4000_0000), "UFLO");
    assert_eq!(b.counters.transmit_drops[Reason::BadAddress as usize], 1);
}

#[test]
fn rings_beyond_memory_stand_still_and_say_why() {
    let mut b = Bench::opened();
    b.wcsr(5, 1);
    b.wcsr(25, 0xffff);
    b.wcsr(31, 0x0100);
    b.wcsr(5, 0);
    b.kick();
    assert!(b.transmit().is_empty());
    b.bring_one(&frame(60));
    assert_eq!(b.nic.stall(0).unwrap().why, "the ring lies where no memory is");
    assert_eq!(b.nic.stall(1).unwrap().why, "the ring lies where no memory is");
}

#[test]
fn buffers_of_one_byte_cannot_make_a_frame_cost_more_than_its_share() {
    let mut b = lengths(1, 0xfff0);
    for index in 0..65_535 {
        b.put(RX_RING + index * 16, &[0, 0, 0x40, 0, 0xff, 0xff, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    count::take();
    let long = frame(1514);
    b.bring(&[&long[..]; 64]);
    let work = count::take();
    assert!(work < 16_384, "{work}");
    assert_eq!(b.counters.receive_drops[Reason::TooManyPieces as usize], 64);
}

fn storm(seed: u64) -> u64 {
    let mut dice = Dice(seed);
    let mut b = Bench::opened();
    let mut sent = 0;
    for _ in 0..20_000 {
        match dice.below(16) {
            0..=3 => {
                let number = [0, 3, 4, 5, 15, 24, 25, 30, 31, 72, 74, 76, 78, dice.below(128) as u16];
                let number = number[dice.below(14) as usize];
                let value = if dice.below(2) == 0 { dice.roll() as u16 } else { 1 << dice.below(16) };
                b.wcsr(number, value);
            }
            4 => {
                let number = dice.below(40) as u16;
                b.wbcr(number, dice.roll() as u16);
            }
            5 => {
                let (offset, len) = (dice.below(0x24), 1 + dice.below(8) as usize);
                b.bar_read(dice.below(3) as u8, offset, &mut [0; 8][..len]);
                b.bar_write(dice.below(3) as u8, offset, &dice.roll().to_le_bytes()[..len]);
                b.double = b.nic.features().contains(&"double-word-ports");
            }
            6 | 7 => {
                let bytes: Vec<u8> = (0..2).flat_map(|_| dice.roll().to_le_bytes()).collect();
                let ring = [TX_RING, RX_RING, BLOCK][dice.below(3) as usize];
                b.put(ring + dice.below(40) as u32 * 16, &bytes);
            }
            8 | 9 => {
                for index in 0..16 {
                    b.queue(index, &to(MAC, 60));
                }
                b.kick();
            }
            10 | 11 => _ = b.bring(&[&frame(60), &to([0xff; 6], 1514)]),
            12 => b.pass(dice.below(1_000_000)),
            13 if dice.below(20) == 0 => b.call(|nic, cx| nic.reset(Reset::Bus, cx)),
            14 if dice.below(4) == 0 => {
                (b.double, b.style) = (b.nic.features().contains(&"double-word-ports"), 2);
                b.command(7);
                b.reset();
                b.wbcr(20, 2);
                b.rings();
                b.wcsr(1, BLOCK as u16);
                b.wcsr(2, 0);
                b.wcsr(0, INIT);
                b.wcsr(0, STRT | INEA);
            }
            _ => {
                count::take();
                b.fetch();
                sent += b.batch.len() as u64;
                b.complete();
                assert!(count::take() < 16_384);
            }
        }
    }
    sent
}

#[test]
fn a_guest_that_writes_anything_anywhere_gets_bounded_work_and_no_panic() {
    let sent: u64 = (0..6).map(storm).sum();
    assert!(sent > 500, "{sent} frames only: too little was tried");
}

#[test]
fn cve_2026_5747_rings_that_move_between_fetch_and_completion_are_written_nowhere_else() {
    const ELSEWHERE: u32 = 0x60_0000;
    // Changes BADX and XMTRL under suspension, and initializes again.
    let moves: [fn(&mut Bench); 3] = [
        |b| {
            b.wcsr(5, 1);
            b.wcsr(30, ELSEWHERE as u16);
            b.wcsr(31, (ELSEWHERE >> 16) as u16);
            b.wcsr(5, 0);
        },
        |b| {
            b.wcsr(5, 1);
            b.wcsr(78, 0xffff);
            b.wcsr(5, 0);
        },
        |b| {
            b.wcsr(0, STOP);
            b.wcsr(0, INIT);
            b.wcsr(0, STRT | INEA);
        },
    ];
    for (number, moves) in moves.into_iter().enumerate() {
        let mut b = Bench::opened();
        b.put(ELSEWHERE, &[0x5a; 1024]);
        (0..8).for_each(|index| b.queue(index, &frame(60)));
        b.kick();
        b.fetch();
        assert_eq!(b.batch.len(), 8);
        moves(&mut b);
        b.complete();
        assert!(b.get(ELSEWHERE, 1024).iter().all(|byte| *byte == 0x5a), "{number}");
        b.transmit();
        assert!(b.get(ELSEWHERE, 1024).iter().all(|byte| *byte == 0x5a), "{number}");
    }
}

/// Am79C970A datasheet: CSR1 and CSR2 (IADR), TMD0 (TBADR), TMD1 (OWN, STP, ENP).
#[test]
fn a_drivers_mistakes_are_listed_with_place_value_and_expectation() {
    let mut b = Bench::opened();
    b.tx(0, TX_DATA, 60, WHOLE);
    b.tx(1, 0xf1_0000, 60, OWN | STP);
    b.tx(2, MEMORY as u32 + 0x1000, 60, OWN | ENP);
    b.kick();
    assert_eq!(b.transmit().len(), 1);
    b.post(0, MEMORY as u32, 1544);
    b.bring_one(&frame(60));
    b.wcsr(0, STOP);
    b.wcsr(1, 0);
    b.wcsr(2, 0xfeb0);
    b.wcsr(0, INIT);
    let said: Vec<String> = b.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "transmit queue 0, descriptor 2: 0x1001000; expected a buffer address in guest memory (TBADR)",
            "receive queue 0, descriptor 0: 0x1000000; expected the address of a receive buffer in guest memory that the device may \
             write",
            "IADR[0]: 0xfeb00000; expected the address of an initialization block in guest memory (CSR1, CSR2), and bus mastering",
        ]
    );
}

#[test]
fn a_frame_whose_descriptors_end_too_early_is_named() {
    let mut b = Bench::opened();
    b.tx(0, TX_DATA, 60, OWN | STP);
    b.tx(1, TX_DATA, 60, ENP);
    b.kick();
    assert!(b.transmit().is_empty());
    let said: Vec<String> = b.counters.errors().iter().map(ToString::to_string).collect();
    assert!(said[0].starts_with("transmit queue 0, descriptor 1: "), "{said:?}");
    assert!(said[0].ends_with("expected OWN in every descriptor of a frame up to the one with ENP (TMD1)"), "{said:?}");
}

#[test]
fn a_driver_that_is_up_and_receives_nothing_is_told_why() {
    const PROM: u16 = 0x8000;
    /// CSR15: DRCVPA, DRCVBC, PROM, DRX, LOOP.
    const SETTINGS: [(u16, Option<&str>); 5] = [
        (0x0080, None),
        (0x0080 | 0x6000, Some("its receive filter accepts no address (CSR15, LADRF)")),
        (0x0080 | 0x6000 | PROM, None),
        (0x0080 | 0x0001, Some("its receiver is off (CSR0.RXON)")),
        (0x0080 | 0x0004, Some("it is in loopback")),
    ];
    for (mode, why) in SETTINGS {
        let mut b = Bench::new();
        b.mode = mode;
        b.open();
        assert_eq!(b.nic.receive_block(), why, "{mode:#06x}");
    }
    let mut b = Bench::opened();
    b.link(false);
    assert_eq!(b.nic.receive_block(), Some("its link is down"));
    b.link(true);
    b.wcsr(5, 1);
    assert_eq!(b.nic.receive_block(), Some("it is suspended (CSR5.SPND)"));
    b.wcsr(76, 0);
    b.wcsr(5, 0);
    assert_eq!(b.nic.receive_block(), Some("its receive ring has no length (CSR76)"));
    b.command(1);
    assert_eq!(b.nic.receive_block(), Some("bus mastering is off (PCI command register)"));
}
