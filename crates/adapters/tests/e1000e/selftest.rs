//! `ethtool -t offline`, as ethtool.c of Linux's e1000e runs it.

use crate::bench::*;
use crate::ethtool;
use crate::guest::opened;

#[test]
fn the_register_test_passes() {
    ethtool::registers(&mut opened(), 0x7fff_f033);
}

#[test]
fn the_interrupt_test_passes_with_and_without_automatic_masks() {
    for control in [0, 0x0800_0000] {
        let mut b = opened();
        b.w(0x18, control);
        b.w(0xe0, 0xffff_ffff);
        ethtool::interrupts(&mut b);
    }
}

#[test]
fn the_loopback_test_passes() {
    let mut b = opened();
    // EOP, IFCS, RS.
    let frame = ethtool::prepare_loopback(&mut b, 0x0b00_0000);
    b.w(TCTL, 0x1003_f0fa);
    // e1000_integrated_phy_loopback, e1000_phy_bm: writes registers of other pages, then forces 1000 Mbit/s and loopback.
    for (page, register, value) in [(2, 21, 6), (769, 16, 0xc), (776, 16, 0x40), (769, 16, 0x40), (769, 20, 0x400)] {
        b.set_phy(22, page);
        b.phy(register);
        b.set_phy(register, value);
    }
    b.set_phy(22, 0);
    b.set_phy(0, 0x4140);
    let ctrl = b.r(CTRL) & !0x300;
    b.w(CTRL, ctrl | 0x1a01);
    ethtool::run_loopback(&mut b, &frame);
    assert_eq!(b.phy(0) & 0x4000, 0);
}
