//! Two queues in each direction, and the hash that selects one.

use crate::bench::*;
use crate::guest::*;

const RX_RING_1: u64 = 0x3_0000;
const TX_RING_1: u64 = 0x4_0000;
const RX_DATA_1: u64 = 0x60_0000;

/// Receive queues 0 and 1, hashes in descriptors. Every odd entry of the table selects queue 1.
fn scaled() -> Bench {
    let mut b = extended();
    for i in 0..RING {
        b.put(RX_RING_1 + i * 16, &(RX_DATA_1 + i * 2048).to_le_bytes());
    }
    for (offset, value) in [(0x2908, 16 * RING as u32), (0x2900, RX_RING_1 as u32), (0x2910, 0), (0x2918, 255)] {
        b.w(offset, value);
    }
    for (n, word) in KEY.chunks(4).enumerate() {
        b.w(0x5c80 + 4 * n as u64, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    }
    for n in 0..32 {
        b.w(0x5c00 + 4 * n, 0x8000_8000);
    }
    b.w(RXCSUM, 0x2000);
    b.w(MRQC, 0x0037_0001);
    b
}

/// A packet of Microsoft's list: source, destination, ports.
fn of(source: [u8; 4], destination: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
    let mut segment = tcp(b"x");
    segment[..2].copy_from_slice(&ports[0].to_be_bytes());
    segment[2..4].copy_from_slice(&ports[1].to_be_bytes());
    let mut packet = ipv4(6, &segment);
    packet[12..16].copy_from_slice(&source);
    packet[16..20].copy_from_slice(&destination);
    ethernet(0x0800, &packet)
}

#[test]
fn the_hash_is_the_one_of_the_specification_and_the_table_names_the_queue() {
    let mut b = scaled();
    // 0x51ccc178: entry 0x78, even. 0xc626b0ea: entry 0x6a, even. 0x5c2b394a: 0x4a, even. 0xafc7327f: 0x7f, odd.
    let list = [
        (of([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766]), 0x51cc_c178, 0),
        (of([24, 19, 198, 95], [12, 22, 207, 184], [12898, 38024]), 0x5c2b_394a, 0),
        (of([38, 27, 205, 30], [209, 142, 163, 6], [48228, 2217]), 0xafc7_327f, 1),
    ];
    let mut next = [0, 0];
    for (frame, hash, queue) in list {
        b.bring_one(&frame);
        let ring = [RX_RING, RX_RING_1][queue];
        let (information, value, status, ..) = written(&b, ring, next[queue]);
        assert_eq!((information, value, status & 3), (1 | (queue as u32) << 8, hash, 3));
        next[queue] += 1;
    }
    assert_eq!((b.r(0x2810), b.r(0x2910)), (2, 1));
    b.bring_one(&ethernet(0x88b5, &payload(100)));
    assert_eq!(written(&b, RX_RING, 2).0, 0, "without a hash: queue 0");
    assert_eq!(b.counters.receive[1].packets, 1);
}

#[test]
fn each_queue_has_its_cause_and_one_that_is_full_does_not_stop_the_other() {
    let mut b = scaled();
    vectors(&mut b);
    // RxQ0 on vector 0, RxQ1 on vector 3.
    b.w(IVAR, 0x000a_00b8);
    b.w(EIAC, 0x0030_0000);
    b.w(IMS, 0x0030_0000);
    b.messages();
    let (first, second) = (
        of([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766]),
        of([38, 27, 205, 30], [209, 142, 163, 6], [48228, 2217]),
    );
    b.bring_one(&second);
    assert_eq!(b.messages(), [3]);
    b.bring_one(&first);
    assert_eq!(b.messages(), [0]);
    b.w(0x2918, 1);
    let delivery = b.deliver(&plain_batch(&[&second, &first]));
    assert_eq!(delivery.refused(), 1);
    assert_eq!(delivery.refusals()[0].queue, 1);
    b.out.room = Default::default();
    b.w(0x2918, 200);
    assert!(b.out.room.contains(1) && !b.out.room.contains(0));
}

#[test]
fn a_new_key_is_used_from_the_next_frame_on() {
    let mut b = scaled();
    let frame = of([66, 9, 149, 187], [161, 142, 100, 80], [2794, 1766]);
    b.bring_one(&frame);
    for n in 0..10 {
        b.w(0x5c80 + 4 * n, 0);
    }
    b.bring_one(&frame);
    assert_eq!((written(&b, RX_RING, 0).1, written(&b, RX_RING, 1).1), (0x51cc_c178, 0));
}

#[test]
fn both_transmit_queues_send_and_complete_for_themselves() {
    let mut b = opened();
    let frame = ethernet(0x88b5, &payload(100));
    b.put(TX_DATA, &frame);
    for (offset, value) in [(0x3908, 16 * RING as u32), (0x3900, TX_RING_1 as u32), (0x3910, 0), (0x3918, 0)] {
        b.w(offset, value);
    }
    b.put(TX_RING_1, &TX_DATA.to_le_bytes());
    b.put(TX_RING_1 + 8, &(CMD | frame.len() as u32).to_le_bytes());
    b.w(0x3918, 1);
    assert!(b.out.work.contains(1));
    assert!(b.transmit().is_empty(), "queue 0 has nothing");
    assert_eq!(b.fetch_all(1, cut), [frame]);
    assert_eq!((b.r(0x3910), b.get(TX_RING_1 + 12, 1)[0]), (1, 1));
    assert_eq!(b.r(TDH), 0);
}
