//! The other chips of the 82540EM's family: the differences that a driver sees, and the ownership of saved states. Numbers are
//! those of Linux's e1000_hw.h.

use nicety_adapter::RestoreError;
use nicety_adapters::intel::e1000::models::{I82540EM, I82544GC, I82545EM};

use crate::bench::*;
use crate::probe::word;

/// Name, device, second word of the PHY's identifier.
const MODELS: [(&str, u16, u16); 3] =
    [("e1000", 0x100e, 0x0c20), ("e1000-82545em", 0x100f, 0x0c20), ("e1000-82544gc", 0x1008, 0x0c30)];

#[test]
fn every_table_is_sound() {
    for model in [&I82540EM, &I82545EM, &I82544GC] {
        assert_eq!(model.registers.check(), Ok(()), "{}", model.about.name);
    }
}

#[test]
fn each_chip_has_its_own_identity_eeprom_and_phy() {
    for (name, device, phy) in MODELS {
        let mut b = Bench::of(name);
        assert_eq!(u32::from_le_bytes(b.config_read(0)), u32::from(device) << 16 | 0x8086, "{name}");
        let words: Vec<u16> = (0..64).map(|address| word(&mut b, address)).collect();
        assert_eq!(words.iter().fold(0_u16, |sum, word| sum.wrapping_add(*word)), 0xbaba, "{name}");
        assert_eq!((words[0], words[0x0d]), (u16::from_le_bytes([MAC[0], MAC[1]]), device), "{name}");
        assert_eq!((b.phy(2), b.phy(3)), (0x0141, phy), "{name}");
    }
}

#[test]
fn frames_go_both_ways_through_each_chip() {
    for (name, ..) in MODELS {
        let mut b = Bench::opened_of(name);
        b.put(TX_DATA, &ethernet(0x88b5, &payload(100)));
        b.descriptor(0, TX_DATA, 114 | CMD, 0);
        b.w(TDT, 1);
        assert_eq!(b.transmit(), [ethernet(0x88b5, &payload(100))], "{name}");
        b.bring_one(&ethernet(0x88b5, &payload(100)));
        assert_eq!((b.r(TDH), b.r(RDH)), (1, 1), "{name}");
    }
}

/// Registers that the manual marks "not applicable to the 82544GC/EI" are reserved there: they read as zero, and writes have no
/// effect.
#[test]
fn an_82544_has_no_throttle_no_absolute_delay_and_nobody_to_ask_for_its_eeprom() {
    let mut b = Bench::opened_of("e1000-82544gc");
    for (at, name) in
        [(0xc4, "ITR"), (0xe00, "LEDCTL"), (0x282c, "RADV"), (0x2c00, "RSRPD"), (0x382c, "TADV"), (0x5820, "MANC")]
    {
        b.w(at, 0xffff);
        assert_eq!(b.r(at), 0, "{name}");
    }
    b.w(0x10, 0x40);
    assert_eq!(b.r(0x10) & 0xc0, 0, "EECD: neither request nor grant");
    b.w(IMS, 0x80);
    for _ in 0..3 {
        b.bring_one(&ethernet(0x88b5, &payload(100)));
        assert_eq!(b.out.line, Some(true), "each at once");
        b.r(ICR);
    }
}

/// e1000_reset_hw in Linux's e1000_hw.c asks chips up to the 82544 to load their EEPROM.
#[test]
fn the_address_comes_back_from_the_eeprom_when_the_driver_asks_for_it() {
    let mut b = Bench::opened_of("e1000-82544gc");
    let (low, high) = (b.r(0x5400), b.r(0x5404));
    b.w(0x5400, 0x1234_5678);
    b.w(0x5404, 0);
    let extended = b.r(0x18);
    b.w(0x18, extended | 0x2000);
    assert_eq!((b.r(0x5400), b.r(0x5404), b.r(0x18)), (low, high, extended));
    let frame = ethernet(0x88b5, &payload(100));
    b.bring_one(&frame);
    assert_eq!(b.r(RDH), 1, "and it is listened to");
}

#[test]
fn a_state_is_refused_by_another_chip_and_restored_by_its_own() {
    for (name, ..) in MODELS {
        let mut b = Bench::opened_of(name);
        b.bring_one(&ethernet(0x88b5, &payload(100)));
        let saved = b.nic.save();
        for (other, ..) in MODELS {
            let mut nic = Bench::of(other).nic;
            let before = nic.save();
            if other == name {
                assert_eq!(nic.restore(&saved), Ok(()));
                assert_eq!(nic.save(), saved);
            } else {
                assert_eq!(nic.restore(&saved), Err(RestoreError::Kind { found: name.to_owned(), wanted: other }));
                assert_eq!(nic.save(), before, "{other}, given {name}'s");
            }
        }
    }
}
