//! The clock, as Linux's ptp.c and netdev.c read it.

use crate::bench::*;
use crate::guest::{extended, opened, written};

#[test]
fn systim_counts_nanoseconds_with_linux_s_increment_and_its_halves_belong_together() {
    let mut b = opened();
    // e1000e_get_base_timinca for 82574: 40 ns in units of 2^-18, each period of 25 MHz.
    b.w(0xb608, 0x01a0_0000);
    b.now = b.now.after_ns(1_000_000);
    let low = b.r(0xb600);
    b.now = b.now.after_ns(50_000_000);
    let time = u64::from(b.r(0xb604)) << 32 | u64::from(low);
    assert_eq!(time >> 18, 1_000_000);
}

/// e1000e_config_hwtstamp: sets the kind of received frames to stamp, and RXMTRL.
fn stamping(kind: u32, rxmtrl: u32) -> Bench {
    let mut b = extended();
    b.w(0xb608, 0x01a0_0000);
    b.w(0xb614, 0x10);
    b.w(0xb620, 0x10 | kind);
    assert_eq!(b.r(0xb620), 0x10 | kind);
    b.w(0xb634, rxmtrl);
    // PTP_EV_PORT in big endian.
    b.w(0xb638, 0x3f01);
    b.r(0xb628);
    b.r(0xb61c);
    b
}

/// A PTP message over Ethernet, or over UDP, with its type and version 1's control byte.
fn ptp(level: u32, message: u8, control: u8) -> Vec<u8> {
    let mut body = vec![0; 44];
    (body[0], body[1], body[32]) = (message, 2, control);
    if level == 2 {
        return ethernet(0x88f7, &body);
    }
    let mut segment = vec![1, 63, 1, 63, 0, 52, 0, 0];
    segment.extend(body);
    ethernet(0x0800, &ipv4(17, &segment))
}

#[test]
fn a_sent_packet_that_asks_for_it_is_stamped_and_the_next_one_when_that_stamp_was_read() {
    let mut b = stamping(0, 0x88f7);
    let frame = ptp(2, 0, 0);
    b.put(TX_DATA, &frame);
    // DEXT, data descriptor, EOP, IFCS, RS; E1000_TXD_EXTCMD_TSTAMP.
    let lower = 0x2b10_0000 | frame.len() as u32;
    b.now = b.now.after_ns(1_000_000);
    for (index, upper) in [(0, 0), (1, 0x10)] {
        b.descriptor(index, TX_DATA, lower, upper);
        b.w(TDT, index as u32 + 1);
        b.transmit();
        assert_eq!(b.r(0xb614) & 1, upper >> 4, "packet {index}");
    }
    b.now = b.now.after_ns(5_000_000);
    b.descriptor(2, TX_DATA, lower, 0x10);
    b.w(TDT, 3);
    b.transmit();
    let time = u64::from(b.r(0xb618)) | u64::from(b.r(0xb61c)) << 32;
    assert_eq!(time >> 18, 1_000_000, "the first one's, until it is read");
    assert_eq!(b.r(0xb614) & 1, 0);
    b.descriptor(3, TX_DATA, lower, 0x10);
    b.w(TDT, 4);
    b.transmit();
    let time = u64::from(b.r(0xb618)) | u64::from(b.r(0xb61c)) << 32;
    assert_eq!(time >> 18, 6_000_000);
}

#[test]
fn received_frames_are_stamped_by_kind_and_one_at_a_time() {
    // TSYNCRXCTL's type, RXMTRL, and the frames that it selects.
    let frames = [ptp(2, 0, 0), ptp(2, 1, 0), ptp(4, 0, 0), ptp(4, 1, 1), ptp(2, 11, 0), ethernet(0x88b5, &[0; 60])];
    for (kind, rxmtrl, wanted) in [
        (0x0, 0x0000_88f7, [true, false, false, false, false, false]),
        (0x0, 0x0100_88f7, [false, true, false, false, false, false]),
        (0x2, 0x0001_0000, [false, false, false, true, false, false]),
        (0x4, 0x0000_88f7, [true, false, true, false, false, false]),
        (0x8, 0x0000_88f7, [true; 6]),
        (0xa, 0x0000_88f7, [true, true, true, true, false, false]),
    ] {
        let mut b = stamping(kind, rxmtrl);
        for (index, (frame, wanted)) in frames.iter().zip(wanted).enumerate() {
            b.now = b.now.after_ns(1_000_000);
            b.bring_one(frame);
            let status = written(&b, RX_RING, index as u64).2;
            let case = format!("kind {kind:#x}, {rxmtrl:#x}, frame {index}");
            assert_eq!((status >> 8 & 1 == 1, b.r(0xb620) & 1 == 1), (wanted, wanted), "{case}");
            let time = u64::from(b.r(0xb624)) | u64::from(b.r(0xb628)) << 32;
            assert!(!wanted || time >> 18 == 1_000_000 * (index as u64 + 1), "{case}");
        }
    }
    let mut b = stamping(8, 0);
    b.bring_one(&frames[0]);
    b.bring_one(&frames[1]);
    assert_eq!(written(&b, RX_RING, 1).2 >> 8 & 1, 0, "the first stamp was not read");
}
