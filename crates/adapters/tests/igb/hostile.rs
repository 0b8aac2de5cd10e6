//! Faults of other models of this family, with one case for each class. Random writes are the hostile guest's in the trials.

use nicety_adapter::{Budget, Queue, Reason};

use crate::bench::{ethernet, ipv4, payload, tcp};
use crate::guest::{self, *};

#[test]
fn a_ring_of_contexts_without_end_is_walked_in_bounded_steps() {
    // CVE-2020-28916, CVE-2021-20257: only contexts, or packets without an end.
    let mut g = Guest::opened();
    g.w(guest::transmit(0, 0x08), 0x000f_fff0);
    for word in [CONTEXT, 0x2230_0000 | 1] {
        for index in 0..0xffff {
            g.put(transmit_ring(0) + index * 16, &[TX_DATA as u32, 0, word, 0].map(u32::to_le_bytes).concat());
        }
        g.w(guest::transmit(0, 0x18), 0xfffe);
        for _ in 0..100 {
            let progress = g.fetch();
            assert!(g.batch.len() <= Budget::TURN.packets);
            g.complete();
            if !progress.more {
                break;
            }
        }
        let head = g.r(guest::transmit(0, 0x10));
        g.w(guest::transmit(0, 0x10), head);
        g.w(guest::transmit(0, 0x18), head);
    }
}

#[test]
fn a_ring_of_no_length_or_a_head_beyond_it_does_nothing_and_says_so() {
    // CVE-2016-7909's class.
    let mut g = Guest::opened();
    let frame = ethernet(0x88b5, &payload(60));
    for (length, head) in [(0, 0), (4096, 5000), (16, 1)] {
        g.w(guest::transmit(0, 0x08), length);
        g.w(guest::transmit(0, 0x10), head);
        g.w(guest::transmit(0, 0x18), 3);
        let progress = g.fetch();
        assert!(g.batch.is_empty() && progress.armed);
        let stall = g.call(|nic, _| nic.stall(1)).unwrap();
        assert_eq!(stall.queue, Queue::Transmit(0));
        g.w(guest::receive(0, 0x08), length);
        g.w(guest::receive(0, 0x10), head);
        g.bring_one(&frame);
    }
    assert_eq!(g.written(0, 0)[2] & 1, 0);
    // After a new open it works.
    g.open_queue(0);
    assert_eq!(g.send_plain(0, &frame), [frame]);
}

#[test]
fn buffers_in_the_devices_own_registers_or_nowhere_are_refused() {
    // CVE-2020-15859, CVE-2023-3019: DMA aimed at the device itself.
    let mut g = Guest::opened();
    let frame = ethernet(0x88b5, &payload(60));
    for address in [0xfebc_0000_u64, u64::MAX - 8, 1 << 63] {
        g.push(0, [address as u32, (address >> 32) as u32, DATA | 60, 60 << 14]);
        g.ring(0);
        assert!(g.drain(0).is_empty());
        let head = u64::from(g.r(guest::receive(0, 0x10)));
        g.put(receive_ring(0) + head * 16, &address.to_le_bytes());
        g.bring_one(&frame);
        assert_eq!(g.written(0, head)[2] >> 31, 1, "RXE: the descriptor comes back");
    }
    assert_eq!(g.counters.transmit_drops[Reason::BadAddress as usize], 3);
    assert_eq!(g.counters.receive_drops[Reason::BadAddress as usize], 3);
    // The head's write-back too.
    g.w(guest::transmit(0, 0x3c), 0xffff_ffff);
    g.w(guest::transmit(0, 0x38), 0xffff_fffd);
    assert_eq!(g.send_plain(0, &frame), [frame]);
    assert!(g.counters.guest_errors() > 0);
}

#[test]
fn frames_of_any_length_come_back_in_loopback_once_and_no_deeper() {
    // CVE-2021-3416, CVE-2025-12464: loopback into itself, frames shorter than a header.
    let mut g = Guest::opened();
    g.w(RCTL, RCTL_LINUX | 1 << 6 | 1 << 3);
    for len in [0, 1, 13, 14, 59, 60] {
        g.put(TX_DATA, &[0xff; 64]);
        g.push(0, [TX_DATA as u32, 0, DATA | len, len << 14]);
        g.ring(0);
        assert!(g.drain(0).is_empty());
    }
    assert_eq!(g.r(guest::receive(0, 0x10)), 3, "those that have a header");
    // A receive ring that shares its memory with the transmit ring.
    g.w(guest::receive(0, 0x00), transmit_ring(0) as u32);
    for _ in 0..32 {
        g.push(0, [TX_DATA as u32, 0, DATA | 60, 60 << 14]);
    }
    g.ring(0);
    assert!(g.drain(0).is_empty());
}

#[test]
fn queue_numbers_of_the_guests_tables_stay_within_the_chip() {
    // CVE-2024-6505's class: an indirection table with numbers of missing queues.
    let mut g = Guest::opened();
    for word in 0..32 {
        g.w(0x5c00 + 4 * word, !0);
    }
    for filter in 0..8 {
        g.w(0x59e0 + 4 * filter, !0);
        g.w(0x5cb0 + 4 * filter, !0xffff | 0x88b5);
        g.w(IVAR + 4 * filter, !0);
    }
    g.w(IVAR_MISC, !0);
    for mode in 0..8 {
        g.w(MRQC, !7 | mode);
        for frame in [ethernet(0x88b5, &payload(60)), ethernet(0x0800, &ipv4(6, &tcp(&payload(60))))] {
            g.bring_one(&frame);
        }
    }
    let counted = g.counters.receive_drops.iter().sum::<u64>() + g.counters.taken().packets;
    assert_eq!(counted, 16);
}

#[test]
fn headers_that_a_context_invents_are_not_believed() {
    // CVE-2012-6075's and CVE-2015-5165's class: header lengths beyond the packet.
    let mut g = Guest::opened();
    let frame = ethernet(0x0800, &ipv4(6, &tcp(&payload(2000))));
    g.put(TX_DATA, &frame);
    for lengths in [0xffff_ffff_u32, 0x1ff, 127 << 9, 20 | 14 << 9] {
        for sizes in [0xffff_ff00, 1 << 16 | 0xff00, 1 << 16 | 20 << 8] {
            g.push(0, [lengths, 0, CONTEXT | 1 << 11 | 1 << 10, sizes]);
            for (command, options) in [(1 << 31, 0x300), (0, 0x300), (0, 0x100)] {
                g.push(0, [TX_DATA as u32, 0, DATA | command | frame.len() as u32, options]);
            }
        }
    }
    g.ring(0);
    let out = g.drain(0).len() as u64;
    assert!(out <= 24 + 2000, "{out}");
}

/// 82576 datasheet, 7.2.2.3 (buffer address), 8.12.13 (TDT), 8.12.16 (TDWBAL).
#[test]
fn a_drivers_mistakes_are_listed_with_their_queue() {
    let mut g = Guest::opened();
    g.open_queue(2);
    let frame = ethernet(0x88b5, &payload(60));
    g.push(2, [0xfebc_0000, 0, DATA | 60, 60 << 14]);
    g.ring(2);
    assert!(g.drain(2).is_empty());
    g.w(guest::transmit(2, 0x3c), 0x1234);
    g.w(guest::transmit(2, 0x38), 0xfffd);
    assert_eq!(g.send_plain(2, &frame), [frame]);
    g.w(guest::transmit(2, 0x38), 0);
    g.w(guest::transmit(2, 0x18), 0x1000);
    g.drain(2);
    let said: Vec<String> = g.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "transmit queue 2, descriptor 0: 0xfebc0000; expected the address of a buffer in guest memory that the device may read",
            "TDWBAL[2] (bar0 0xe0b8): 0x12340000fffc; expected an address in guest memory for the head's write-back (TDWBAL, TDWBAH)",
            "TDT[2] (bar0 0xe098): 0x1000; expected a tail within the ring (TDT below TDLEN / 16)",
        ]
    );
}
