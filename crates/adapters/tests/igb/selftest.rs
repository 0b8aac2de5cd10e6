//! `ethtool -t offline`, as Linux 6.1's igb_ethtool.c runs it, register by register; and the values that igb_probe reads.

use crate::bench::MAC;
use crate::guest::{self, *};

/// reg_pattern_test.
fn pattern(g: &mut Guest, register: u64, mask: u32, write: u32) {
    for test in [0x5a5a_5a5a_u32, 0xa5a5_a5a5, 0, 0xffff_ffff] {
        g.w(register, write & test);
        assert_eq!(g.r(register) & mask, write & test & mask, "register {register:#06x}, pattern {test:#010x}");
    }
}

/// reg_set_and_check.
fn set_and_check(g: &mut Guest, register: u64, mask: u32, write: u32) {
    g.w(register, write & mask);
    assert_eq!(g.r(register) & mask, write & mask, "register {register:#06x}");
}

#[test]
fn the_register_test_passes() {
    let mut g = Guest::opened();
    let toggle = 0x7fff_f3ff;
    let before = g.r(STATUS) & toggle;
    g.w(STATUS, toggle);
    assert_eq!(g.r(STATUS) & toggle, before);
    for (register, mask) in [(0x28, !0), (0x2c, 0xffff), (0x30, 0xffff), (0x38, !0)] {
        pattern(&mut g, register, mask, !0);
    }
    let rings = |g: &mut Guest, of: fn(u64, u64) -> u64| {
        for queue in 0..16 {
            pattern(g, of(queue, 0x00), 0xffff_ff80, !0);
            pattern(g, of(queue, 0x04), !0, !0);
            pattern(g, of(queue, 0x08), 0x000f_fff0, 0x000f_ffff);
        }
    };
    rings(&mut g, guest::receive);
    (0..16).for_each(|queue| g.w(guest::receive(queue, 0x28), ENABLE));
    (0..16).for_each(|queue| pattern(&mut g, guest::receive(queue, 0x18), 0xffff, 0xffff));
    (0..16).for_each(|queue| g.w(guest::receive(queue, 0x28), 0));
    for (register, mask) in [(0x2168, 0xfff0), (0x170, 0xffff), (0x410, 0x3fff_ffff)] {
        pattern(&mut g, register, mask, mask);
    }
    rings(&mut g, guest::transmit);
    set_and_check(&mut g, RCTL, !0, 0);
    set_and_check(&mut g, RCTL, 0x04cf_b0fe, 0x003f_fffb);
    set_and_check(&mut g, RCTL, 0x04cf_b0fe, !0);
    set_and_check(&mut g, TCTL, !0, 0);
    for at in (0..16).map(|i| 0x5400 + 8 * i).chain((0..8).map(|i| 0x54e0 + 8 * i)) {
        pattern(&mut g, at, !0, !0);
        pattern(&mut g, at + 4, 0x83ff_ffff, !0);
    }
    (0..128).for_each(|i| pattern(&mut g, 0x5200 + 4 * i, !0, !0));
}

#[test]
fn the_interrupt_test_passes_with_msi_x_whose_mode_the_reset_took_away() {
    let mut g = Guest::opened();
    g.message_control(0x70, 0x80);
    let control = g.r(CTRL);
    g.w(CTRL, control | 1 << 26);
    g.w(IVAR_MISC, 0x80 << 8);
    g.w(EIMS, 1);
    g.w(IMC, !0);
    g.messages();
    for cause in (0..31).filter(|cause| 0x77d4_fbfd_u32 >> cause & 1 != 0) {
        let mask = 1 << cause;
        g.w(ICR, !0);
        g.w(IMS, mask);
        g.w(ICS, mask);
        assert_eq!(g.messages(), [0], "cause {cause}");
        assert_eq!(g.r(ICR) & mask, mask);
    }
}

#[test]
fn the_interrupt_test_passes_with_the_line() {
    let mut g = Guest::opened();
    let handled = |g: &mut Guest| if g.out.line.take() == Some(true) { g.r(ICR) } else { 0 };
    g.w(IMC, !0);
    handled(&mut g);
    for cause in (0..31).filter(|cause| 0x77d4_fbfd_u32 >> cause & 1 != 0) {
        let mask = 1_u32 << cause;
        for (register, bits, raised, icr) in [(IMC, mask, mask, 0), (IMS, mask, mask, mask), (IMC, !mask, !mask, 0)] {
            g.w(ICR, !0);
            g.w(register, bits);
            g.out.line = None;
            g.w(ICS, raised);
            assert_eq!(handled(&mut g) & mask, icr, "cause {cause}");
        }
    }
}

#[test]
fn the_loopback_test_passes() {
    let mut g = Guest::opened();
    g.w(MRQC, 0);
    // igb_integrated_phy_loopback.
    g.w(0x20, 0x4140 | 1 << 21 | 1 << 26);
    let control = g.r(CTRL);
    g.w(CTRL, control & !0x300 | 1 << 11 | 1 << 12 | 0x200 | 1 | 1 << 6);
    let mut frame = vec![0xff; 256];
    frame[128..255].fill(0xaa);
    (frame[138], frame[140]) = (0xbe, 0xaf);
    g.put(TX_DATA, &frame);
    for _ in 0..64 {
        g.push(0, [TX_DATA as u32, 0, DATA | 256, 256 << 14]);
    }
    g.ring(0);
    assert!(g.drain(0).is_empty(), "nothing goes out");
    for index in 0..64 {
        assert_eq!((g.written(0, index)[2] & 3, g.written(0, index)[3]), (3, 256));
        assert_eq!(g.buffer(0, index, 256), frame);
        assert!(g.done(0, index));
    }
    assert_eq!((g.counters.transmit[0].frames, g.counters.receive[0].frames), (0, 0));
}

#[test]
fn the_nvm_sums_up_and_has_the_address_and_the_semaphores_are_taken_and_given() {
    let mut g = Guest::new();
    g.command(7);
    let word = |g: &mut Guest, address: u32| {
        g.w(0x14, address << 2 | 1);
        let answer = g.r(0x14);
        assert_eq!(answer & 2, 2, "done");
        (answer >> 16) as u16
    };
    let sum = (0..0x40).map(|address| word(&mut g, address)).fold(0_u16, u16::wrapping_add);
    assert_eq!(sum, 0xbaba);
    let address: Vec<u8> = (0..3).flat_map(|at| word(&mut g, at).to_le_bytes()).collect();
    assert_eq!(address, MAC);
    // igb_init_nvm_params_82575: 256 words; igb_acquire_nvm: request and grant.
    assert_eq!(g.r(0x10) >> 11 & 0xf, 2);
    g.w(0x10, 1 << 6);
    assert_eq!(g.r(0x10) & 0xc0, 0xc0);
    // igb_get_hw_semaphore.
    assert_eq!((g.r(0x5b50) & 1, g.r(0x5b50) & 1), (0, 1), "reading takes it");
    g.w(0x5b50, 3);
    assert_eq!(g.r(0x5b50) & 2, 2);
    g.w(0x5b50, 0);
    assert_eq!(g.r(0x5b50), 0);
    g.w(0x5b5c, 2);
    assert_eq!(g.r(0x5b5c), 2);
    assert_eq!(g.r(0x1010) >> 18 & 1, 1, "igb_get_cfg_done_82575");
}

#[test]
fn the_phy_is_intels_and_has_a_link_and_a_cable() {
    let mut g = Guest::opened();
    let phy = |g: &mut Guest, register: u32| {
        g.w(0x20, register << 16 | 1 << 21 | 1 << 27);
        let answer = g.r(0x20);
        assert_eq!(answer & 0x5000_0000, 0x1000_0000, "ready, no error");
        answer as u16
    };
    // IGP03E1000_E_PHY_ID, with PHY_REVISION_MASK.
    assert_eq!((phy(&mut g, 2), phy(&mut g, 3) & 0xfff0), (0x02a8, 0x0390));
    assert_eq!(phy(&mut g, 1) & 0x24, 0x24, "link, negotiated");
    assert_eq!(phy(&mut g, 17) >> 14, 3, "1000 Mbit/s");
    // igb_get_cable_length_igp_2: the index must be within its table, and not 0.
    for page in [0x11b1, 0x12b1, 0x14b1, 0x18b1] {
        g.w(0x20, page | 0x1f << 16 | 1 << 21 | 1 << 26);
        assert!((1..112).contains(&(phy(&mut g, 0x11) >> 9 & 0x7f)));
    }
    g.w(0x20, 0x1f << 16 | 1 << 21 | 1 << 26);
    g.link(false);
    assert_eq!((phy(&mut g, 1) & 4, g.r(STATUS) & 2), (0, 0));
}
