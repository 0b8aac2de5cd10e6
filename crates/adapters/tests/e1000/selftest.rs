//! `ethtool -t offline`, as Linux 6.1's e1000_ethtool.c runs it.

use crate::bench::*;
use crate::ethtool;

#[test]
fn the_register_test_passes() {
    ethtool::registers(&mut Bench::opened(), 0xffff_f833);
}

#[test]
fn the_interrupt_test_passes() {
    ethtool::interrupts(&mut Bench::opened());
}

#[test]
fn the_loopback_test_passes() {
    let mut b = Bench::opened();
    // EOP, IFCS, RPS.
    let frame = ethtool::prepare_loopback(&mut b, 0x1300_0000);
    b.w(TCTL, 0x0004_00fa);
    // e1000_integrated_phy_loopback.
    for (register, value) in [(16, 0x0808), (0, 0x9140), (0, 0x8140), (0, 0x4140)] {
        b.set_phy(register, value);
    }
    let ctrl = b.r(CTRL) & !0x300;
    b.w(CTRL, ctrl | 0x1a81);
    for (register, value) in [(29, 0x1f), (30, 0x8ffc), (29, 0x1a), (30, 0x8ff0)] {
        b.set_phy(register, value);
    }
    ethtool::run_loopback(&mut b, &frame);
    assert_eq!(b.status_of(0), 1, "RPS reports as RS does");
    b.w(RCTL, RCTL_LINUX);
    b.reset();
    assert_eq!(b.counters.transmitted().packets + b.counters.taken().packets, 0, "the switch saw none of them");
}

#[test]
fn the_link_test_passes_after_each_reset() {
    let mut b = Bench::opened();
    for _ in 0..3 {
        b.reset();
        let ctrl = b.r(CTRL);
        b.w(CTRL, ctrl | 0x40);
        b.set_phy(0, 0x1340);
        assert_ne!(b.r(STATUS) & 2, 0);
        assert_eq!(b.r(ICR) & 4, 4, "negotiation ends with LSC");
    }
}
