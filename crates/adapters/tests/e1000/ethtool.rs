//! `ethtool -t offline`, as Linux's e1000_ethtool.c and e1000e's ethtool.c run it, register by register. The differences between
//! both chips are in each one's `selftest.rs`.

use crate::bench::*;

/// reg_pattern_test.
pub fn pattern(b: &mut Bench, register: u64, mask: u32, write: u32) {
    for test in [0x5a5a_5a5a_u32, 0xa5a5_a5a5, 0, 0xffff_ffff] {
        b.w(register, write & test);
        assert_eq!(b.r(register), write & test & mask, "register {register:#06x}, pattern {test:#010x}");
    }
}

/// reg_set_and_check.
pub fn set_and_check(b: &mut Bench, register: u64, mask: u32, write: u32) {
    b.w(register, write & mask);
    assert_eq!(b.r(register) & mask, write & mask, "register {register:#06x}");
}

/// e1000_reg_test; `toggle` are STATUS's read-only bits.
pub fn registers(b: &mut Bench, toggle: u32) {
    let before = b.r(STATUS);
    b.w(STATUS, toggle);
    assert_eq!(b.r(STATUS) & toggle, before & toggle);
    for (register, mask, write) in [
        (0x0028, 0xffff_ffff, 0xffff_ffff),
        (0x002c, 0x0000_ffff, 0xffff_ffff),
        (0x0030, 0x0000_ffff, 0xffff_ffff),
        (0x0038, 0x0000_ffff, 0xffff_ffff),
        (0x2820, 0x0000_ffff, 0xffff_ffff),
        (0x2804, 0xffff_ffff, 0xffff_ffff),
        (0x2808, 0x000f_ff80, 0x000f_ffff),
        (0x2810, 0x0000_ffff, 0x0000_ffff),
        (0x2818, 0x0000_ffff, 0x0000_ffff),
        (0x2168, 0x0000_fff8, 0x0000_fff8),
        (0x0170, 0x0000_ffff, 0x0000_ffff),
        (0x0410, 0x3fff_ffff, 0x3fff_ffff),
        (0x3804, 0xffff_ffff, 0xffff_ffff),
        (0x3808, 0x000f_ff80, 0x000f_ffff),
    ] {
        pattern(b, register, mask, write);
    }
    set_and_check(b, RCTL, 0xffff_ffff, 0);
    set_and_check(b, RCTL, 0x06df_b3fe, 0x003f_fffb);
    set_and_check(b, TCTL, 0xffff_ffff, 0);
    set_and_check(b, RCTL, 0x06df_b3fe, 0xffff_ffff);
    pattern(b, 0x2800, 0xffff_fff0, 0xffff_ffff);
    pattern(b, 0x0178, 0xc000_ffff, 0x0000_ffff);
    pattern(b, 0x3800, 0xffff_fff0, 0xffff_ffff);
    pattern(b, 0x3820, 0x0000_ffff, 0x0000_ffff);
    for i in 0..15 {
        pattern(b, 0x5400 + (i * 2 + 1) * 4, 0x8003_ffff, 0xffff_ffff);
    }
    for i in 0..128 {
        pattern(b, 0x5200 + i * 4, 0xffff_ffff, 0xffff_ffff);
    }
}

/// e1000_test_intr.
pub fn interrupts(b: &mut Bench) {
    // The handler's reads while the line is asserted.
    let handled = |b: &mut Bench| {
        let mut seen = 0;
        for _ in 0..4 {
            if b.out.line.take() == Some(true) {
                seen |= b.r(ICR);
            }
        }
        seen
    };
    b.w(IMC, 0xffff_ffff);
    handled(b);
    for i in 0..10 {
        let mask = 1 << i;
        b.w(IMC, mask);
        b.w(ICS, mask);
        assert_eq!(handled(b) & mask, 0, "masked cause {i}");
        b.w(IMS, mask);
        b.w(ICS, mask);
        assert_ne!(handled(b) & mask, 0, "cause {i}");
        b.w(IMC, !mask & 0x7fff);
        b.w(ICS, !mask & 0x7fff);
        assert_eq!(handled(b), 0, "other causes");
    }
}

/// e1000_setup_desc_rings and e1000_create_lbtest_frame: `command` is the descriptors'.
pub fn prepare_loopback(b: &mut Bench, command: u32) -> Vec<u8> {
    let mut frame = vec![0xff; 1024];
    frame[512..512 + 511].fill(0xaa);
    (frame[522], frame[524]) = (0xbe, 0xaf);
    for i in 0..256 {
        b.put(TX_DATA + i * 1024, &frame);
        b.descriptor(i, TX_DATA + i * 1024, 1024 | command, 0);
    }
    frame
}

/// e1000_run_loopback_test. Then a frame from outside does not reach a chip in loopback.
pub fn run_loopback(b: &mut Bench, frame: &[u8]) {
    let (mut k, mut l) = (0, 0);
    for _ in 0..=9 {
        k = (k + 64) % 256;
        b.w(TDT, k);
        assert!(b.transmit().is_empty(), "nothing leaves");
        let mut good = 0;
        let mut looked = 0;
        while good < 64 {
            let at = RX_DATA + l * 2048;
            let (first, mark) = (b.get(at + 3, 1), b.get(at + 522, 3));
            good += u32::from(first[0] == 0xff && mark[0] == 0xbe && mark[2] == 0xaf);
            l = (l + 1) % 256;
            looked += 1;
            assert!(looked < 70, "a frame did not come back");
        }
    }
    assert_eq!(b.r(RDH), 255, "buffers are posted once");
    b.bring_one(frame);
    assert_eq!(b.dropped(nicety_adapter::Reason::ReceiverOff), 1, "nothing comes from outside");
    // e1000_loopback_cleanup.
    assert_ne!(b.phy(0) & 0x4000, 0);
    b.set_phy(0, 0x0140 | 0x8000);
    assert_eq!(b.counters.transmitted().packets + b.counters.taken().packets, 0, "the switch saw none of them");
}
