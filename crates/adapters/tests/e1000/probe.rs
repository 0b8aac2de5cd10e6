//! A driver's reads at probe: PCI, EEPROM, PHY, addresses, access widths.

use nicety_adapters::{CreateError, Settings};
use nicety_frame::Mac;

use crate::bench::{Bench, CTRL, ICR, MAC, STATUS};

const EECD: u64 = 0x10;
const EERD: u64 = 0x14;

/// Reads a word over the four wires, after a request as e1000_acquire_eeprom makes it.
fn bang(b: &mut Bench, address: u32) -> u16 {
    let eecd = b.r(EECD) | 0x40;
    b.w(EECD, eecd);
    assert_ne!(b.r(EECD) & 0x80, 0, "granted");
    let word = word(b, address);
    b.w(EECD, eecd & !0x47);
    word
}

/// Reads a word over the four wires, as e1000_do_read_eeprom does.
pub fn word(b: &mut Bench, address: u32) -> u16 {
    let set = |b: &mut Bench, value: u32| b.w(EECD, value);
    let mut eecd = b.r(EECD) & !0x5;
    set(b, eecd);
    eecd |= 2;
    set(b, eecd);
    for (bits, count) in [(0x6, 3), (address, 6)] {
        for i in (0..count).rev() {
            eecd = eecd & !4 | (bits >> i & 1) << 2;
            for value in [eecd, eecd | 1, eecd] {
                set(b, value);
            }
        }
    }
    eecd &= !4;
    set(b, eecd);
    assert_eq!(b.r(EECD) & 8, 0, "the dummy bit");
    let mut word = 0;
    for _ in 0..16 {
        set(b, eecd | 1);
        word = word << 1 | (b.r(EECD) >> 3 & 1) as u16;
        set(b, eecd);
    }
    for value in [eecd & !3, eecd & !3 | 1, eecd | 1, eecd, eecd & !6, eecd & !6 | 1, eecd & !7] {
        set(b, value);
    }
    word
}

#[test]
fn the_eeprom_read_over_its_wires_sums_to_baba_and_holds_the_address() {
    let mut b = Bench::new();
    let words: Vec<u16> = (0..64).map(|i| bang(&mut b, i)).collect();
    assert_eq!(words.iter().fold(0_u16, |sum, word| sum.wrapping_add(*word)), 0xbaba);
    let mac: Vec<u8> = words[..3].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(mac, MAC);
    assert_eq!((words[0xd], words[0xe]), (0x100e, 0x8086));
    for (address, word) in words.iter().enumerate() {
        b.w(EERD, 1 | (address as u32) << 8);
        let answer = b.r(EERD);
        assert_eq!((answer & 0x10, (answer >> 16) as u16), (0x10, *word));
    }
}

#[test]
fn a_word_written_over_the_wires_stays_through_resets_and_only_while_writing_is_enabled() {
    let mut b = Bench::new();
    b.command(7);
    let send = |b: &mut Bench, bits: u32, count: u32| {
        b.w(EECD, 0);
        b.w(EECD, 2);
        for i in (0..count).rev() {
            let wires = 2 | (bits >> i & 1) << 2;
            b.w(EECD, wires);
            b.w(EECD, wires | 1);
        }
        b.w(EECD, 0);
        b.w(EECD, 2);
        assert_ne!(b.r(EECD) & 8, 0, "ready");
        b.w(EECD, 0);
    };
    let write = 0b101 << 22 | 8 << 16 | 0x1234;
    let before = bang(&mut b, 8);
    send(&mut b, write, 25);
    assert_eq!(bang(&mut b, 8), before);
    send(&mut b, 0b1_0011_0000, 9);
    send(&mut b, write, 25);
    b.reset();
    assert_eq!(bang(&mut b, 8), 0x1234);
}

#[test]
fn pci_identity_bars_and_power_management_are_the_chip_s() {
    let mut b = Bench::new();
    let head: [u8; 64] = b.config_read(0);
    assert_eq!(head[..4], [0x86, 0x80, 0x0e, 0x10]);
    assert_eq!(head[9..12], [0, 0, 2]);
    assert_eq!((head[0x10] & 0xf, head[0x14] & 1), (0, 1));
    assert_eq!((head[0x34], head[0x3d]), (0xdc, 1));
    b.pci(|face, _| {
        assert_eq!(face.function().capability(1), Some(0xdc));
        assert_eq!([0, 1].map(|bar| face.function().bar_kind(bar).unwrap().size), [128 << 10, 64]);
        assert!(face.rom().is_none());
    });
}

#[test]
fn the_phy_is_a_marvell_with_a_gigabit_link() {
    let mut b = Bench::opened();
    assert_eq!((b.phy(2), b.phy(3) & 0xfff0), (0x0141, 0x0c20));
    let status = b.phy(1);
    assert_eq!(status & 0x24, 0x24, "link, negotiated");
    assert_eq!(b.phy(17) & 0xec00, 0xac00, "1000 Mbit/s, full duplex, resolved, link");
    assert_eq!(b.phy(10) & 0x3000, 0x3000, "both receivers good");
    assert_eq!(b.r(STATUS) & 0xc3, 0x83, "full duplex, link up, 1000 Mbit/s");
    b.w(0x20, 2 << 21 | 2 << 16 | 0x0800_0000);
    assert_ne!(b.r(0x20) & 0x4000_0000, 0, "nobody at another address");
}

#[test]
fn a_lost_link_shows_in_status_and_once_in_the_phy_s_latch() {
    let mut b = Bench::opened();
    b.r(ICR);
    b.link(false);
    assert_eq!(b.r(STATUS) & 2, 0);
    assert_eq!(b.r(ICR) & 4, 4, "LSC");
    b.link(true);
    assert_eq!(b.r(STATUS) & 2, 2);
    assert_eq!(b.phy(1) & 4, 0, "the loss is latched");
    assert_eq!(b.phy(1) & 4, 4);
    let ctrl = b.r(CTRL);
    b.w(CTRL, ctrl & !0x40);
    assert_eq!(b.r(STATUS) & 2, 0, "without SLU the MAC sees no link");
}

#[test]
fn forced_speeds_and_a_phy_without_power_show() {
    let mut b = Bench::opened();
    b.set_phy(0, 0x2100);
    assert_eq!(b.phy(17) & 0xe000, 0x6000, "100 Mbit/s, full duplex");
    assert_eq!(b.r(STATUS) & 0xc0, 0x40);
    b.set_phy(0, 0x1940);
    assert_eq!((b.phy(1) & 4, b.r(STATUS) & 2), (0, 0));
    b.set_phy(0, 0x1140);
    assert_eq!(b.phy(1) & 4, 0, "latched");
    assert_eq!((b.phy(1) & 4, b.r(STATUS) & 2), (4, 2));
}

#[test]
fn a_reset_loads_the_station_address_and_clears_the_rest() {
    let mut b = Bench::opened();
    b.w(0x5400, 0);
    b.w(0x5404, 0);
    b.w(0x5208, 7);
    b.w(0xd0, 0xff);
    b.reset();
    assert_eq!((b.r(0x5400), b.r(0x5404)), (0x1200_5452, 0x8000_5634));
    assert_eq!((b.r(0x5208), b.r(0xd0), b.r(0x100)), (0, 0, 0));
    assert_eq!(b.r(CTRL) & 0x0400_0000, 0, "RST clears itself");
}

#[test]
fn phy_and_mac_are_reset_together_as_ipxe_does_it() {
    // intel_reset in iPXE's intel.c, with the link down: the last driver powered the PHY down.
    let mut b = Bench::opened();
    b.set_phy(0, 0x1940);
    let ctrl = b.r(CTRL);
    b.w(CTRL, ctrl | 0x8400_0000);
    b.w(CTRL, (ctrl | 0x60) & !0x1808);
    assert_eq!((b.phy(0), b.r(STATUS) & 2), (0x1140, 2));
}

#[test]
fn the_eeprom_semaphore_is_given_to_u_boot_which_asks_every_chip_for_it() {
    // e1000_swfw_sync_acquire and _release in U-Boot's drivers/net/e1000.c, as traced with its qemu-x86 image.
    const SWSM: u64 = 0x5b50;
    const SW_FW_SYNC: u64 = 0x5b5c;
    let take = |b: &mut Bench| {
        let swsm = b.r(SWSM);
        b.w(SWSM, swsm | 2);
        assert_eq!(b.r(SWSM) & 2, 2, "taken");
    };
    let give_back = |b: &mut Bench| {
        let swsm = b.r(SWSM);
        b.w(SWSM, swsm & !2);
        assert_eq!(b.r(SWSM), 0, "given back");
    };
    let mut b = Bench::new();
    for address in 0..64 {
        take(&mut b);
        assert_eq!(b.r(SW_FW_SYNC) & 0x1_0001, 0, "the EEPROM is nobody's");
        b.w(SW_FW_SYNC, 1);
        give_back(&mut b);
        bang(&mut b, address);
        take(&mut b);
        b.w(SW_FW_SYNC, 0);
        give_back(&mut b);
    }
    take(&mut b);
    b.reset();
    assert_eq!(b.r(SWSM), 0, "a reset gives it back");
}

#[test]
fn every_offset_answers_at_every_width_in_either_window() {
    let mut b = Bench::new();
    for bar in 0..7 {
        for offset in (0..0x2_0010).step_by(0xd).chain([u64::MAX - 3, u64::MAX]) {
            for len in [1, 2, 3, 4, 8, 16] {
                b.bar_read(bar, offset, &mut vec![0; len]);
                b.bar_write(bar, offset, &vec![0xa5; len]);
            }
        }
    }
    assert!(b.counters.bad_accesses() > 0);
    let mut wide = [0; 8];
    b.bar_read(0, 0x2_0000, &mut wide);
    assert_eq!(wide, [0xff; 8], "beyond the window");
    b.bar_write(0, 0x1_8000, &0x1234_5678_u32.to_le_bytes());
    assert_eq!(b.r(0x1_8000), 0x1234_5678, "packet buffer memory");
    assert_eq!(b.r(0x40), b.r(0x5400), "an 82542 address");
}

#[test]
fn only_one_station_with_one_queue_can_be_made() {
    let create = nicety_adapters::find("e1000").unwrap().create;
    let mac = Mac([1, 0, 0, 0, 0, 0]);
    assert_eq!(create(&Settings::new(mac)).err(), Some(CreateError::Address(mac)));
    let many = Settings { queues: Some(2), ..Settings::new(Mac(MAC)) };
    assert!(matches!(create(&many).err(), Some(CreateError::Queues { most: 1, .. })));
}
