//! A guest that makes random writes, and faults of other models of this chip.

use nicety_adapter::Reason;

use crate::bench::*;
use crate::guest::*;
use crate::storm::storm;

/// Registers with effects, which the test uses more often than the others.
const HOT: [u64; 34] = [
    0x0, 0x10, 0x18, 0x20, 0xc0, 0xc4, 0xc8, 0xd0, 0xdc, 0xe0, 0xe4, 0xe8, 0x100, 0x400, 0x102c, 0x2170, 0x2800,
    0x2804, 0x2808, 0x2810, 0x2818, 0x2820, 0x2908, 0x2918, 0x3800, 0x3808, 0x3810, 0x3818, 0x3918, 0x5000, 0x5008,
    0x5818, 0x5c00, 0xb608,
];

#[test]
fn ten_thousand_random_steps_end_in_order_whatever_the_seed() {
    for seed in 0..12 {
        let msix = |b: &mut Bench, dice: &mut Dice| b.config_write(0xa2, &[4, dice.roll() as u8]);
        storm("e1000e", seed, extended(), &HOT, msix);
    }
}

/// QEMU's e1000e walked a ring of null descriptors without end.
#[test]
fn cve_2020_28916_receive_descriptors_of_null_addresses_and_any_head_end() {
    let mut b = extended();
    b.map.write(RX_RING, &[0; 256 * 16]).unwrap();
    let frame = ethernet(0x88b5, &payload(1000));
    // On a real host this address holds Linux's kernel; here it is the guest's own memory.
    for _ in 0..300 {
        b.bring_one(&frame);
    }
    assert_eq!(b.r(RDH), 255, "one descriptor a frame, until they are used up");
    for (head, tail, len) in [(300, 5, 4096), (5, 300, 4096), (0xffff, 0, 4096), (0, 1, 0), (7, 6, 128)] {
        b.w(0x2808, len);
        b.w(RDH, head);
        b.w(RDT, tail);
        b.bring_one(&frame);
    }
    // Buffers of no bytes never take a frame.
    b.w(0x2808, 4096);
    b.w(0x2170, 0);
    b.w(RCTL, RCTL_LINUX | 0x420);
    b.w(RDH, 0);
    b.w(RDT, 254);
    b.bring_one(&frame);
    assert_eq!(b.r(RDH), 0);
}

/// QEMU's e1000e sent a packet whose completion overwrote its own TDT, and so sent again.
#[test]
fn cve_2020_15859_a_ring_at_the_device_s_own_registers_is_no_memory() {
    let mut b = opened();
    // BAR 0 at 0xfebc0000: not the guest's memory, so DMA does not reach it.
    b.w(0x3800, 0xfebc_3800);
    b.w(TDT, 8);
    assert!(b.transmit().is_empty());
    assert!(b.nic.stall(1).is_some());
    // A receive buffer at the same registers.
    b.put(RX_RING, &0xfebc_0000_u64.to_le_bytes());
    b.bring_one(&ethernet(0x88b5, &payload(100)));
    assert_eq!(b.counters.receive_drops[Reason::BadAddress as usize], 1);
    assert_eq!(b.r(RDH), 1, "its descriptor is given back with an error");
}

/// QEMU's e1000e in loopback received in the middle of a transmission, and freed the packet twice.
#[test]
fn cve_2023_3019_a_loopback_that_rings_for_itself_is_not_re_entered() {
    let mut b = opened();
    b.w(RCTL, RCTL_LINUX | 0x40);
    let frame = ethernet(0x88b5, &payload(1000));
    b.put(TX_DATA, &frame);
    for i in 0..256 {
        b.descriptor(i, TX_DATA, CMD | frame.len() as u32, 0);
    }
    // Received frames overwrite the transmit ring.
    for i in 0..256 {
        b.put(RX_RING + i * 16, &(TX_RING + i * 16).to_le_bytes());
    }
    b.w(TDT, 200);
    assert!(b.transmit().is_empty());
    assert!(b.r(TDH) <= 200);
    b.w(RCTL, RCTL_LINUX);
    b.w(TCTL, 0);
}

/// QEMU's e1000e in loopback read beyond the end of a frame shorter than its headers.
#[test]
fn cve_2025_12464_short_frames_in_loopback_are_dropped_or_padded() {
    let mut b = extended();
    b.w(TCTL, 2);
    b.w(RCTL, RCTL_LINUX | 0x0400_0058);
    b.put(TX_DATA, &[0xff; 64]);
    for len in 0..64_u64 {
        b.descriptor(len, TX_DATA, CMD | len as u32, 0);
    }
    b.w(TDT, 64);
    assert!(b.transmit().is_empty());
    assert_eq!(b.r(TDH), 64);
    let took = b.r(RDH);
    assert_eq!(took, 64 - 14, "what has no addresses and type is dropped");
    for index in 0..u64::from(took) {
        let (_, _, status, len, _) = written(&b, RX_RING, index);
        assert_eq!((status & 3, len >= 60), (3, true));
    }
    // Header split of missing headers.
    b.w(0x2170, 0x0004_0402);
    b.w(RCTL, RCTL_LINUX | 0x0400_0458);
    b.w(TDT, 0);
    for len in 64..256 {
        b.descriptor(len, TX_DATA, CMD | (14 + len as u32 % 20), 0);
    }
    assert!(b.transmit().is_empty());
}

/// 82574 datasheet, 7.1.3 and 10.2.6: each queue has its own registers, 0x100 apart.
#[test]
fn a_drivers_mistakes_are_listed_with_their_queue() {
    let mut b = opened();
    for (offset, value) in [(0x3908, 4096), (0x3904, 0), (0x3900, 0xfebc_0000), (0x3918, 1)] {
        b.w(offset, value);
    }
    b.fetch_of(1);
    b.complete();
    b.w(0x2800, 0xfebc_1000);
    b.bring_one(&ethernet(0x88b5, &payload(60)));
    b.bar_write(0, 0x3818, &[1]);
    let said: Vec<String> = b.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "TDBAL[1] (bar0 0x3900): 0xfebc0000; expected a ring in guest memory (TDBAL, TDBAH; TDLEN bytes)",
            "RDBAL[0] (bar0 0x2800): 0xfebc1000; expected a ring in guest memory (RDBAL, RDBAH; RDLEN bytes)",
            "write of 1 byte at bar0 0x3818: 0x1; expected a register there, and this width",
        ]
    );
}
