//! A driver's work besides traffic: identity, EEPROM, PHY, locks, timer, counters, loopback.

use nicety_adapter::Event;

use crate::bench::*;

/// read_eeprom of Linux's 8139cp.c.
fn eeprom(b: &mut Bench, location: u16, address_bits: u32) -> u16 {
    b.w8(0x50, 0x80);
    b.w8(0x50, 0x88);
    let command = u32::from(location) | 6 << address_bits;
    for bit in (0..3 + address_bits).rev() {
        let data = if command >> bit & 1 != 0 { 2 } else { 0 };
        b.w8(0x50, 0x88 | data);
        b.w8(0x50, 0x8c | data);
    }
    b.w8(0x50, 0x88);
    let mut word = 0;
    for _ in 0..16 {
        b.w8(0x50, 0x8c);
        word = word << 1 | u16::from(b.r8(0x50) & 1);
        b.w8(0x50, 0x88);
    }
    b.w8(0x50, 0);
    word
}

#[test]
fn the_revision_and_the_version_say_which_chip_it_is() {
    for (model, revision, version) in [("rtl8139", 0x20, 0x7480_0000), ("rtl8139-plain", 0x10, 0x7400_0000)] {
        let mut b = Bench::of(model);
        let config: [u8; 16] = b.config_read(0);
        assert_eq!(config[..4], [0xec, 0x10, 0x39, 0x81]);
        assert_eq!(config[8..12], [revision, 0, 0, 2], "an Ethernet controller");
        // HW_REVID_MASK of 8139too.c.
        assert_eq!(b.r(0x40) & 0x7cc0_0000, version);
        assert_eq!(b.r8(0x5e), revision);
    }
}

#[test]
fn the_eeprom_is_a_93c46_with_the_address_in_words_seven_to_nine() {
    let mut b = Bench::of("rtl8139");
    assert_ne!(eeprom(&mut b, 0, 8), 0x8129, "not one of eight address bits");
    assert_eq!(eeprom(&mut b, 0, 6), 0x8129);
    assert_eq!([7, 8, 9].map(|word| eeprom(&mut b, word, 6)), [0x5452, 0x1200, 0x5634]);
    assert_eq!([b.r(0), b.r(4)], [0x1200_5452, 0x5634]);
    // Auto-load restores the address.
    b.w(0, 0);
    assert_eq!(b.r(0), 0);
    b.w8(0x50, 0x40);
    assert_eq!((b.r(0), b.r8(0x50)), (0x1200_5452, 0));
}

/// Sends a command of the 93C46, highest bit first (Atmel AT93C46, Instruction Set).
fn eeprom_command(b: &mut Bench, bits: u32, count: u32) {
    b.w8(0x50, 0x80);
    b.w8(0x50, 0x88);
    for bit in (0..count).rev() {
        let data = if bits >> bit & 1 != 0 { 2 } else { 0 };
        b.w8(0x50, 0x88 | data);
        b.w8(0x50, 0x8c | data);
    }
    b.w8(0x50, 0);
}

#[test]
fn the_eeprom_is_written_while_writes_are_enabled_and_auto_load_brings_what_was_written() {
    for model in ["rtl8139", "rtl8139-plain"] {
        let mut b = Bench::of(model);
        let write = |b: &mut Bench, word: u32| eeprom_command(b, (0b101 << 6 | 8) << 16 | word, 25);
        write(&mut b, 0xdead);
        assert_eq!(eeprom(&mut b, 8, 6), 0x1200, "{model}: EWEN did not come first");
        eeprom_command(&mut b, 0b1_0011_0000, 9);
        write(&mut b, 0xbeef);
        eeprom_command(&mut b, 0b1_0000_0000, 9);
        write(&mut b, 0xdead);
        assert_eq!(eeprom(&mut b, 8, 6), 0xbeef, "{model}: EWDS came before the last");
        b.w8(0x50, 0x40);
        assert_eq!([b.r(0), b.r(4)], [0xbeef_5452, 0x5634], "{model}");
    }
}

#[test]
fn configuration_and_bmcr_are_written_with_the_key_only() {
    let mut b = Bench::of("rtl8139");
    let before = [b.r8(0x52), b.r8(0x59), b.r8(0x5a), b.r8(0x63)];
    let write = |b: &mut Bench| {
        b.w8(0x52, 0x21);
        b.w8(0x59, 0x60);
        b.w8(0x5a, 0x04);
        b.w16(0x62, 0x0100);
    };
    write(&mut b);
    assert_eq!([b.r8(0x52), b.r8(0x59), b.r8(0x5a), b.r8(0x63)], before);
    b.w8(0xd8, 0x12);
    assert_eq!(b.r8(0xd8), 0x12, "CONFIG5 needs none");
    b.w8(0x50, 0xc0);
    write(&mut b);
    assert_eq!([b.r8(0x52), b.r8(0x59), b.r8(0x5a), b.r8(0x63)], [0x2d, 0x61, 4, 1]);
    // A software reset keeps them and the address.
    b.w8(0x50, 0);
    b.w(0, 0x3322_1102);
    b.w8(0x37, 0x10);
    assert_eq!((b.r8(0x59), b.r(0), b.r8(0x37)), (0x61, 0x3322_1102, 1));
}

#[test]
fn the_phy_says_full_duplex_at_100_and_tells_of_the_cable() {
    let mut b = Bench::opened();
    // mii_check_media: reads the status twice, then the abilities of both sides.
    assert_eq!((b.r16(0x64), b.r16(0x64) & 0x24), (0x782d, 0x24));
    assert_eq!(b.r16(0x66) & b.r16(0x68) & 0x0100, 0x0100);
    assert_eq!(b.r8(0x58) & 0x0c, 0, "100 Mbit/s, a link");
    b.call(|nic, cx| nic.notice(Event::Link(false), cx));
    assert_eq!(b.reported(), Some(true));
    assert_eq!(b.r16(0x3e), 0x20);
    assert_eq!(b.r16(0x74) & 0x0c00, 0x0800, "it changed");
    assert_eq!(b.r16(0x74) & 0x0c00, 0, "and that was read");
    assert_eq!((b.r16(0x64) & 4, b.r8(0x58) & 4, b.r16(0x68)), (0, 4, 0));
    b.call(|nic, cx| nic.notice(Event::Link(true), cx));
    assert_eq!((b.r16(0x64) & 4, b.r16(0x64) & 4), (0, 4), "it was lost since");
}

#[test]
fn a_dump_of_the_counters_is_done_at_once_up_or_down() {
    let mut b = Bench::opened();
    b.queue(0, &frame(PEER, 100, 1), 0, 0);
    assert_eq!(b.transmit().len(), 1);
    assert!(b.takes(&frame(MAC, 100, 1)) && b.takes(&frame([0xff; 6], 100, 1)));
    for down in [false, true] {
        if down {
            b.w8(0x37, 0);
            b.w16(0xe0, 0);
        }
        b.put(0x9000, &[0xaa; 64]);
        b.w(0x14, 0);
        b.w(0x10, 0x9000 | 8);
        assert_eq!(b.r(0x10) & 8, 0);
        let dump = b.get(0x9000, 64);
        assert_eq!((dump[0], dump[8], dump[40], dump[48]), (1, 2, 1, 1), "down: {down}");
        assert_eq!(dump.iter().map(|byte| u32::from(*byte)).sum::<u32>(), 5);
    }
}

#[test]
fn the_timer_interrupts_once_in_a_round_and_counts_from_a_write_on() {
    let mut b = Bench::opened();
    b.w16(0x3c, 0x4000);
    b.w(0x48, 0);
    b.w(0x54, 33_000);
    assert_eq!(b.r(0x48), 0);
    b.pass(999_000);
    assert_eq!((b.reported(), b.r(0x48)), (None, 32_967));
    b.pass(1_000);
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(true), 0x4000));
    b.w16(0x3e, 0x4000);
    b.reported();
    b.pass(1_000_000_000);
    assert_eq!(b.reported(), None);
    b.w(0x48, 0);
    b.pass(1_000_000);
    assert_eq!(b.reported(), Some(true));
}

#[test]
fn in_loopback_a_frame_comes_back_and_goes_nowhere_else() {
    for mut b in [Bench::opened(), Bench::opened_plain("rtl8139-plain")] {
        let rings = b.r16(0xe0) != 0;
        b.w(0x40, 0x0306_0600);
        let sent = frame(MAC, 200, 8);
        if rings {
            b.queue(0, &sent, 0, 0);
            b.w8(0xd9, 0x40);
        } else {
            b.put(TX_DATA, &sent);
            b.w(0x10, 200);
        }
        assert!(b.drain().is_empty());
        let at = if rings { RX_DATA } else { RX_DATA + 4 };
        assert!(b.get(at, 200) == sent);
        assert_eq!(b.r16(0x3e) & 5, 5);
        assert_eq!(b.counters.transmitted().packets + b.counters.taken().packets, 0);
    }
}

#[test]
fn software_asks_for_an_interrupt() {
    let mut b = Bench::opened();
    b.w16(0x3c, 0x0100);
    b.w8(0xd9, 1);
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(true), 0x0100));
    b.w8(0x3f, 1);
    assert_eq!((b.reported(), b.r16(0x3e)), (Some(false), 0));
}

#[test]
fn wake_up_registers_hold_what_is_written() {
    let mut b = Bench::of("rtl8139-plain");
    for offset in (0x84..0xd4).step_by(4) {
        b.w(offset, 0x1122_3344 ^ offset as u32);
    }
    for offset in (0x84..0xd4).step_by(4) {
        assert_eq!(b.r(offset), 0x1122_3344 ^ offset as u32);
    }
}
