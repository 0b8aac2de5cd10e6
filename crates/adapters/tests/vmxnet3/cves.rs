//! Faults of QEMU's vmxnet3 (hw/net/vmxnet3.c, net_tx_pkt.c), one by one: the guest loses its own frames or its own device, and
//! nothing else.

use nicety_adapter::{Batch, Reason};

use crate::guest::{Guest, MAC, Offload, Open, QUEUES, SHARED};
use crate::packets::{tcp4, udp4};

/// The answer to ACTIVATE_DEV with this value in the driver's own tables.
fn activated(at: u64, value: u32) -> u32 {
    let mut guest = Guest::opened(Open::default());
    guest.put32(at, value);
    guest.command(0xcafe_0000)
}

#[test]
fn cve_2013_4544_numbers_of_queues_and_of_vectors_that_there_are_not_are_refused() {
    for (what, at, value) in [
        ("255 transmit queues", SHARED + 62, 0x01ff),
        ("255 receive queues", SHARED + 62, 0xff01),
        ("more vectors than there are", SHARED + 80, 0x00ff_ff01),
        ("a transmit queue's vector", QUEUES + 72, 255),
        ("a receive queue's vector", QUEUES + 256 + 72, 255),
        ("the vector of events", SHARED + 80, 0x00ff_0201),
    ] {
        assert_ne!(activated(at, value), 0, "{what}");
    }
}

#[test]
fn cve_2021_20203_sizes_of_rings_that_overflow_or_are_none_are_refused() {
    for ring in [QUEUES + 56, QUEUES + 64, QUEUES + 256 + 56, QUEUES + 256 + 60, QUEUES + 256 + 64] {
        for size in [u32::MAX, 1 << 31, 1 << 28, !31, 31] {
            assert_ne!(activated(ring, size), 0, "{size:#x}");
        }
    }
    for ring in [QUEUES + 56, QUEUES + 64, QUEUES + 256 + 56, QUEUES + 256 + 64] {
        assert_ne!(activated(ring, 0), 0);
    }
}

#[test]
fn cve_2015_8744_and_2016_6835_packets_whose_headers_are_cut_are_dropped() {
    let whole = tcp4(MAC, &[7; 40]);
    // Ethernet alone; an IP header with too great a length; a TCP header with too great a length.
    let (mut ip, mut tcp) = (whole[..34].to_vec(), whole[..54].to_vec());
    ip[14] = 0x4f;
    tcp[46] = 0xf0;
    for packet in [whole[..14].to_vec(), ip, tcp] {
        for om in [2, 3] {
            for hlen in [0, 14, 34, 54, 0x3ff] {
                let mut guest = Guest::opened(Open::default());
                let mut batch = Batch::new();
                let offload = Offload { om, hlen, msscof: if om == 3 { 1448 } else { 0x3fff }, ..Offload::default() };
                guest.send(0, &[&packet], offload);
                guest.fetch_into(0, &mut batch);
                assert!(batch.is_empty(), "{om} {hlen}");
                guest.complete_of(&batch);
                assert_eq!(guest.sent(0), [0], "{om} {hlen}");
                assert_eq!(guest.counters.transmit_drops.iter().sum::<u64>(), 1, "{om} {hlen}");
            }
        }
    }
}

#[test]
fn cve_2015_8745_every_register_may_be_read_interrupt_masks_and_causes_too() {
    let mut guest = Guest::opened(Open::default());
    for (bar, len) in [(0, 4096), (1, 4096), (2, 4096)] {
        for offset in (0..len).step_by(4) {
            guest.read(bar, offset);
        }
    }
    assert_eq!(guest.read(0, 0), 0, "IMR");
    assert_eq!(guest.counters.guest_errors(), 0);
    guest.send(0, &[&udp4(MAC, 1, b"x")], Offload::default());
    let mut batch = Batch::new();
    guest.fetch_into(0, &mut batch);
    assert_eq!(batch.len(), 1, "it works on");
}

#[test]
fn cve_2016_6834_and_2020_16092_a_packet_of_many_or_of_empty_pieces_is_dropped_or_whole_and_its_descriptors_come_back()
{
    for (pieces, len) in [(120, 12), (64, 30), (100, 16_383)] {
        let mut guest = Guest::opened(Open::default());
        let piece = vec![7; len];
        guest.send(0, &vec![&piece[..]; pieces], Offload::default());
        guest.send(0, &[&udp4(MAC, 1, b"x")], Offload::default());
        let mut batch = Batch::new();
        let mut good = 0;
        for _ in 0..3 {
            guest.fetch_into(0, &mut batch);
            good += batch.len() as u64;
            guest.complete_of(&batch);
        }
        let dropped: u64 = guest.counters.transmit_drops.iter().sum();
        assert_eq!(good + dropped, 2, "{pieces} pieces of {len}");
        assert_eq!(guest.sent(0), [pieces as u32 - 1, pieces as u32]);
        assert_eq!(guest.counters.transmit_drops[Reason::TooLong as usize], u64::from(pieces * len > 65_535));
    }
}
