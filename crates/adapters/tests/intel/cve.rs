//! Faults of other models on the receive side and in loopback, each by its report's number, for every chip of the family.

use nicety_adapter::{Edit, Pick, Reason};
use nicety_memory::count;

use crate::bench::*;
use crate::chip::*;

fn frame(len: usize) -> Vec<u8> {
    ethernet(0x88b5, &payload(len - 14))
}

/// QEMU's e1000e walked a ring of null descriptors without end.
#[test]
fn cve_2020_28916_a_ring_of_null_addresses_is_used_up_once() {
    each(|chip| {
        chip.put(RX_RING, &[0; RING as usize * 16]);
        let frame = frame(1000);
        count::take();
        for _ in 0..300 {
            chip.bring_one(&frame);
        }
        assert_eq!(chip.r(RDH), 255, "{}: one descriptor a frame", chip.name);
        assert!(count::take() < 300 * 16, "{}", chip.name);
    });
}

#[test]
fn cve_2020_28916_a_frame_of_more_buffers_than_a_ring_has_ends() {
    each(|chip| {
        // 256 bytes per buffer, eight descriptors, and a frame that needs more.
        if chip.is_igb() {
            chip.w(SRRCTL, 0);
            chip.w(0x5004, 0x2600);
        }
        chip.w(RDLEN, 128);
        chip.w(RDT, 7);
        let control = RCTL_LINUX | LONG | 3 << 16;
        chip.w(RCTL, control);
        count::take();
        let sender = plain_batch(&[&frame(9000)]);
        chip.deliver_some(&sender, &[Pick { edit: Edit::Keep, ..Pick::whole(0) }]);
        assert_eq!(chip.r(RDH), 0, "{}", chip.name);
        assert!(count::take() < 200, "{}", chip.name);
        assert_eq!(chip.counters.receive_drops[Reason::TooLong as usize], 1, "{}", chip.name);
    });
}

/// 8254x manual, 13.4.22; 82576 datasheet, 8.10.1: RCTL.RXEN.
#[test]
fn a_receiver_that_is_off_looks_at_no_memory() {
    each(|chip| {
        chip.w(RCTL, RCTL_LINUX & !2);
        let sender = plain_batch(&[&frame(60)]);
        for bytes in [4096, 0] {
            chip.w(RDLEN, bytes);
            count::take();
            chip.deliver_some(&sender, &[Pick::whole(0)]);
            assert_eq!(count::take(), 0, "{}", chip.name);
        }
        assert_eq!(chip.counters.receive_drops[Reason::ReceiverOff as usize], 2, "{}", chip.name);
    });
}

/// QEMU's e1000 started at a head outside of its ring and walked without end, since it never reached that head again.
#[test]
fn cve_2016_1981_heads_and_tails_outside_of_the_ring_move_nothing() {
    each(|chip| {
        let places = [(256, 5), (5, 256), (0xffff, 0), (0xffff, 0xffff), (256, 257)];
        for (head, tail) in places {
            let _ = chip.r(ICR);
            chip.w(RDH, head);
            chip.w(RDT, tail);
            count::take();
            chip.bring_one(&frame(60));
            chip.w(TDH, head);
            chip.next = tail.into();
            assert_eq!(chip.run(), 0, "{}: {head}, {tail}", chip.name);
            assert!(count::take() < 32, "{}: {head}, {tail}", chip.name);
            // An 8254x goes on at a head inside, whatever the tail (`e1000/nuttx.rs`).
            let goes_on = chip.name.starts_with("e1000") && chip.name != "e1000e" && head < 256;
            let received = if goes_on { head + 1 } else { head };
            assert_eq!((chip.r(RDH), chip.r(TDH)), (received, head), "{}: {head}, {tail}", chip.name);
        }
        for bytes in [0, 128] {
            chip.w(RDLEN, bytes);
            chip.w(TDLEN, bytes);
            chip.w(RDH, bytes / 16);
            chip.w(TDH, bytes / 16);
            chip.next = 3;
            chip.bring_one(&frame(60));
            assert_eq!(chip.run(), 0, "{}: {bytes} bytes", chip.name);
        }
    });
}

/// QEMU's e1000 wrote an overlong frame beyond the end of its driver's buffers, although the driver had not enabled long frames.
#[test]
fn cve_2012_6075_a_frame_that_is_too_long_for_the_driver_writes_nothing() {
    each(|chip| {
        chip.put(RX_DATA, &[0xaa; 0x2000]);
        for len in [1515, 1600, 2048, 4096, 9000] {
            chip.bring_one(&frame(len));
        }
        assert_eq!(chip.r(RDH), 0, "{}", chip.name);
        assert!(chip.get(RX_DATA, 0x2000).iter().all(|byte| *byte == 0xaa), "{}", chip.name);
        assert_eq!(chip.counters.receive_drops[Reason::TooLong as usize], 5, "{}", chip.name);
    });
}

#[test]
fn cve_2012_6075_a_long_frame_fills_buffers_to_their_ends_and_no_further() {
    for size in [256, 512, 1024] {
        each(|chip| {
            if chip.is_igb() {
                // Legacy descriptors, whose buffer size is in RCTL.
                chip.w(SRRCTL, 0);
                chip.w(0x5004, 0x2600);
            }
            chip.w(RCTL, RCTL_LINUX | LONG | PROMISCUOUS | (2048_u32 / size).trailing_zeros() << 16);
            chip.post(RX_DATA, 4096);
            chip.put(RX_DATA, &[0xaa; 64 * 4096]);
            chip.bring_one(&frame(5000));
            let used = chip.r(RDH);
            assert!((5000 / size..=5004 / size + 1).contains(&used), "{}: {used} of {size}", chip.name);
            for index in 0..64 {
                let buffer = chip.get(RX_DATA + index * 4096, 4096);
                assert!(buffer[size as usize..].iter().all(|byte| *byte == 0xaa), "{}: buffer {index}", chip.name);
            }
        });
    }
}

/// QEMU's e1000e sent a packet whose completion overwrote its own TDT, and so sent again.
#[test]
fn cve_2020_15859_rings_and_buffers_at_the_device_s_own_registers_are_no_memory() {
    each(|chip| {
        // BAR 0 at 0xfebc0000: not the guest's memory, so DMA does not reach it.
        chip.config_write(0x10, &0xfebc_0000_u32.to_le_bytes());
        chip.w(TDBAL, 0xfebc_3800);
        chip.next = 8;
        assert_eq!(chip.run(), 0, "{}", chip.name);
        assert!(chip.nic.stall(1).is_some(), "{}", chip.name);
        chip.put(RX_RING, &0xfebc_0000_u64.to_le_bytes());
        chip.bring_one(&frame(100));
        assert_eq!(chip.counters.receive_drops[Reason::BadAddress as usize], 1, "{}", chip.name);
        assert_eq!(chip.r(RDH), 1, "{}: its descriptor comes back with an error", chip.name);
        chip.w(RDBAL, 0xfebc_2800);
        chip.bring_one(&frame(100));
        assert!(chip.nic.stall(0).is_some(), "{}", chip.name);
    });
}

/// QEMU's e1000e in loopback received in the middle of a transmission, and freed the packet twice.
#[test]
fn cve_2023_3019_a_loopback_onto_the_transmit_ring_is_not_re_entered() {
    each(|chip| {
        chip.w(RCTL, RCTL_LINUX | LOOPBACK | PROMISCUOUS);
        chip.put(TX_DATA, &frame(1000));
        for _ in 0..200 {
            chip.data(TX_DATA, 1000, EOP, false, 0);
        }
        // Received frames overwrite the descriptors that are sent.
        chip.post(TX_RING, 16);
        count::take();
        assert_eq!(chip.run(), 0, "{}: nothing leaves", chip.name);
        assert!(chip.r(TDH) <= 200, "{}", chip.name);
        assert!(count::take() < 100_000, "{}", chip.name);
    });
}

/// QEMU's models in loopback called themselves for each frame, to any depth that the guest chose.
#[test]
fn cve_2021_3416_frames_in_loopback_come_once_and_are_not_sent_again() {
    each(|chip| {
        chip.w(RCTL, RCTL_LINUX | LOOPBACK | PROMISCUOUS);
        let frame = frame(64);
        chip.put(TX_DATA, &frame);
        for _ in 0..100 {
            chip.data(TX_DATA, 64, EOP, false, 0);
        }
        assert_eq!(chip.run(), 0, "{}: nothing leaves", chip.name);
        chip.assert_empty();
        assert_eq!(chip.r(RDH), 100, "{}: each came once", chip.name);
        assert_eq!(chip.get(RX_DATA, 64), frame, "{}", chip.name);
    });
}

/// QEMU's e1000e in loopback read beyond the end of a frame shorter than its headers.
#[test]
fn cve_2025_12464_short_frames_in_loopback_are_dropped_or_padded() {
    each(|chip| {
        chip.w(RCTL, RCTL_LINUX | LOOPBACK | PROMISCUOUS);
        // A buffer's earlier content does not arrive with the frame.
        chip.put(RX_DATA, &[0xaa; 0x2_0000]);
        chip.put(TX_DATA, &[0xff; 64]);
        for len in 0..64 {
            chip.data(TX_DATA, len, EOP, false, 0);
        }
        assert_eq!(chip.run(), 0, "{}", chip.name);
        chip.assert_empty();
        let took = chip.r(RDH);
        assert_eq!(took, 64 - 14, "{}: what has no addresses and type is dropped", chip.name);
        for index in 0..u64::from(took.min(46)) {
            let bytes = chip.get(RX_DATA + index * 2048, 60);
            let len = 14 + index as usize;
            assert!(bytes[..len].iter().all(|byte| *byte == 0xff), "{}: {len}", chip.name);
            assert!(bytes[len..].iter().all(|byte| *byte == 0), "{}: {len} and padding", chip.name);
        }
    });
}

/// An indirection table with numbers of missing queues: virtio-net's fault, whose class both chips with tables could have.
#[test]
fn cve_2024_6505_tables_that_name_any_queue_lead_to_none_that_is_not_there() {
    for name in ["e1000e", "igb"] {
        let mut chip = Chip::opened(name);
        for word in 0..32 {
            chip.w(0x5c00 + 4 * word, !0);
        }
        for word in 0..10 {
            chip.w(0x5c80 + 4 * word, 0x5bd1_e995_u32.wrapping_mul(word as u32 + 1));
        }
        let count_of = |chip: &Chip| chip.counters.receive_drops.iter().sum::<u64>() + chip.counters.taken().packets;
        for mode in 0..8 {
            chip.w(0x5818, 0xffff_fff8 | mode);
            let before = count_of(&chip);
            let delivery = chip.bring_one(&ethernet(0x0800, &ipv4(6, &tcp(&payload(60)))));
            let settled = count_of(&chip) - before + u64::from(delivery.refused() as u32);
            assert_eq!(settled, 1, "{name}: taken, dropped with a reason, or refused, in mode {mode}");
        }
    }
}

/// Numbers of missing vectors: QEMU's vmxnet3 used them as array indices.
#[test]
fn cve_2013_4544_routes_to_vectors_that_are_not_there_interrupt_nobody_else() {
    // The number of vectors, and of those that an entry can name; the address of MSI-X control; GPIE, IVAR and the enable
    // registers, by chip.
    let e1000e = ((5, 8), 0xa2, [(0x18, 0x8100_0000), (0xdc, 0x01f0_0000), (0xd0, !0)]);
    let igb = ((25, 32), 0x72, [(0x1514, 0xc000_0011), (0x152c, !0), (0x1524, !0)]);
    for (name, ((vectors, numbers), control, setup)) in [("e1000e", e1000e), ("igb", igb)] {
        let mut chip = Chip::opened(name);
        chip.config_write(control, &[vectors as u8 - 1, 0x80]);
        setup.into_iter().for_each(|(register, value)| chip.w(register, value));
        for number in 0..numbers {
            chip.out.messages = nicety_adapter::Set::default();
            let (e1000e, igb) = ((number | 8) * 0x0001_1111, (number | 0x80) * 0x0101_0101);
            if name == "igb" {
                (0..8).for_each(|row| chip.w(0x1700 + 4 * row, igb));
                chip.w(0x1740, igb);
            } else {
                chip.w(0xe4, e1000e | 1 << 31);
            }
            chip.bring_one(&frame(100));
            chip.w(ICS, !0);
            chip.now = chip.now.after_ns(1_000_000_000);
            chip.tick();
            let mut heard = Vec::new();
            while let Some(vector) = chip.out.messages.pop() {
                heard.push(u32::from(vector));
            }
            let expected = if number < vectors { vec![number] } else { Vec::new() };
            assert_eq!(heard, expected, "{name}");
            chip.w(if name == "igb" { 0x1524 } else { IMS }, !0);
        }
    }
}
