//! The same behaviour in every style of structures, with words and with double words.

use crate::bench::*;

#[test]
fn frames_pass_both_ways_in_every_style_through_either_kind_of_ports() {
    for double in [false, true] {
        for style in [0, 1, 2, 3] {
            let mut b = Bench::new();
            b.style = style;
            if double {
                b.w(0x10, 0);
                b.double = true;
            }
            b.open();
            for round in 0..40_u32 {
                let (at, len) = (round % 16, 60 + 30 * round as usize);
                b.queue(at, &frame(len));
                b.kick();
                assert_eq!(b.transmit(), [frame(len)], "style {style}, {double}");
                assert_eq!(b.sent(at), (STP | ENP, 0));
                assert_eq!(b.bring_one(&frame(len)).refused(), 0);
                let (status, length) = b.received(round % 32);
                let matched = if style == 0 { 0 } else { 0x40 };
                assert_eq!((status, length), (STP | ENP | matched, len as u32 + 4), "style {style}, {double}");
                assert_eq!(b.get(RX_DATA + round % 32 * 2048, len), frame(len));
                b.post(round % 32, RX_DATA + round % 32 * 2048, 1544);
            }
        }
    }
}

#[test]
fn addresses_of_24_bits_have_their_upper_part_from_csr2() {
    let mut b = Bench::new();
    b.map = std::sync::Arc::new(nicety_memory::Map::private(32 << 20).unwrap());
    b.style = 0;
    b.command(7);
    b.rings();
    // The same structures again, 16 MB higher.
    let low = b.get(0, MEMORY);
    b.put(MEMORY as u32, &low);
    b.put(0, &vec![0; MEMORY]);
    b.wcsr(1, BLOCK as u16);
    b.wcsr(2, 0x0100);
    b.wcsr(0, INIT);
    b.wcsr(0, STRT | IDON);
    b.bring_one(&frame(100));
    assert_eq!(b.get(MEMORY as u32 + RX_DATA, 100), frame(100));
    assert_eq!(b.get(MEMORY as u32 + RX_RING + 3, 1), [0x03]);
}

#[test]
fn errors_are_told_in_every_style() {
    for style in [0, 2, 3] {
        let mut b = Bench::new();
        b.style = style;
        b.open();
        b.link(false);
        b.queue(0, &frame(60));
        b.kick();
        b.transmit();
        assert_eq!(b.sent(0), (ERR | STP | ENP, if style == 0 { 0x0800 } else { 0x0800_0000 }), "style {style}");
    }
}

#[test]
fn a_transmit_ring_of_one_and_a_driver_that_polls_in_memory_space_as_u_boot_does() {
    let mut b = Bench::new();
    b.logs = [0, 2];
    b.open();
    // pcnet_send_common, pcnet_recv_common
    b.bar_write(1, 0x12, &[0, 0]);
    b.bar_write(1, 0x10, &[0, 0]);
    for round in 0..20 {
        b.queue(0, &frame(60 + round));
        b.bar_write(1, 0x12, &[0, 0]);
        b.bar_write(1, 0x10, &[8, 0]);
        assert_eq!(b.transmit(), [frame(60 + round)]);
        assert_eq!(b.sent(0).0, STP | ENP);
        b.bring_one(&frame(61));
        let at = round as u32 % 4;
        assert_eq!(b.received(at), (STP | ENP | 0x40, 65));
        b.post(at, RX_DATA + at * 2048, 1544);
    }
    assert!(!b.line());
}
