//! A driver's probe: identity, semaphores, NVM, PHY.

use crate::bench::*;
use crate::guest::opened;

fn config_word(b: &mut Bench, offset: u64) -> u32 {
    u32::from_le_bytes(b.config_read(offset))
}

/// e1000e_read_nvm_eerd: address in bits 15:2, bit 0 starts, bit 1 means done.
fn nvm(b: &mut Bench, word: u32) -> u16 {
    b.w(0x14, word << 2 | 1);
    let answer = b.r(0x14);
    assert_eq!(answer & 2, 2, "done");
    (answer >> 16) as u16
}

#[test]
fn it_is_an_82574l_with_five_msi_x_vectors() {
    let mut b = Bench::of("e1000e");
    assert_eq!(config_word(&mut b, 0), 0x10d3_8086);
    assert_eq!(config_word(&mut b, 8) >> 8, 0x02_0000);
    assert_eq!(config_word(&mut b, 0xa0) & 0x07ff_00ff, 0x0004_0011, "MSI-X, five vectors");
    assert_eq!(config_word(&mut b, 0xd0) & 0xff, 5, "MSI");
    assert_eq!(config_word(&mut b, 0xe0) & 0xff, 0x10, "PCI Express");
    for (bar, size, io) in [(0, 0x2_0000, false), (1, 0x2_0000, false), (2, 0x20, true), (3, 0x4000, false)] {
        b.config_write(0x10 + 4 * bar, &[0xff; 4]);
        let value = config_word(&mut b, u64::from(0x10 + 4 * bar));
        assert_eq!((!(value & !0xf) + 1) & if io { 0xff } else { !0 }, size, "BAR {bar}");
        assert_eq!(value & 1 == 1, io, "BAR {bar}");
    }
}

#[test]
fn mdio_ownership_that_is_asked_for_is_given_and_smbi_is_owned_by_who_read_it_clear() {
    let mut b = opened();
    // e1000_get_hw_semaphore_82573.
    let asked = b.r(0xf00) | 0x20;
    b.w(0xf00, asked);
    assert_eq!(b.r(0xf00) & 0x20, 0x20);
    b.w(0xf00, asked & !0x20);
    assert_eq!(b.r(0xf00) & 0x20, 0);
    // e1000_get_hw_semaphore_82571.
    b.w(0x5b50, 0);
    assert_eq!((b.r(0x5b50) & 1, b.r(0x5b50) & 1), (0, 1));
    b.w(0x5b50, 3);
    assert_eq!(b.r(0x5b50) & 2, 2);
}

#[test]
fn the_nvm_is_a_flash_of_2048_words_that_sum_to_baba_and_hold_the_address() {
    let mut b = opened();
    let eecd = b.r(0x10);
    assert_eq!((eecd >> 15 & 3, eecd & 0x300), (3, 0x300), "flash; present and read");
    let sum = (0..64).fold(0_u16, |sum, word| sum.wrapping_add(nvm(&mut b, word)));
    assert_eq!(sum, 0xbaba);
    let address: Vec<u8> = (0..3).flat_map(|word| nvm(&mut b, word).to_le_bytes()).collect();
    assert_eq!(address, MAC);
    assert_eq!((b.r(0x5400), b.r(0x5404)), (0x1200_5452, 0x8000_5634));
    assert_eq!(nvm(&mut b, 2047), 0xffff);
    // e1000_fix_nvm_checksum_82571 finds nothing to repair.
    assert_ne!(nvm(&mut b, 0x10) & 0x10, 0);
}

#[test]
fn a_word_that_is_written_lies_in_the_shadow_ram_until_it_is_committed() {
    let mut b = opened();
    let write = |b: &mut Bench, word: u32, value: u16| {
        // e1000_write_nvm_eewr_82571.
        b.w(0x102c, u32::from(value) << 16 | word << 2 | 1);
        assert_eq!(b.r(0x102c) & 2, 2);
    };
    write(&mut b, 0x30, 0x1234);
    assert_eq!(nvm(&mut b, 0x30), 0x1234);
    b.w(0x18, 0x2000);
    assert_eq!(nvm(&mut b, 0x30), 0xffff, "EE_RST reads the flash again");
    write(&mut b, 0x30, 0x1234);
    let sum = (0..63).fold(0_u16, |sum, word| sum.wrapping_add(nvm(&mut b, word)));
    write(&mut b, 0x3f, 0xbaba_u16.wrapping_sub(sum));
    let eecd = b.r(0x10);
    b.w(0x10, eecd | 0x8_0000);
    assert_eq!(b.r(0x10) & 0x8_0000, 0, "FLUPD clears itself");
    b.w(CTRL, 0x0400_0000);
    assert_eq!(nvm(&mut b, 0x30), 0x1234, "after a reset");
    assert_eq!(b.r(0x5404) >> 31, 1, "the sum is right: the address is loaded");
    write(&mut b, 0x30, 0x4321);
    b.w(0x10, eecd | 0x8_0000);
    b.w(CTRL, 0x0400_0000);
    assert_eq!(b.r(0x5404), 0, "the sum is wrong: nothing is");
}

#[test]
fn the_phy_is_a_bm_with_a_gigabit_link_and_pages() {
    let mut b = opened();
    assert_eq!((b.phy(2), b.phy(3)), (0x0141, 0x0cb1));
    b.phy(1);
    assert_eq!(b.phy(1) & 0x24, 0x24, "link, negotiated");
    assert_eq!(b.phy(17) & 0xec00, 0xac00, "1000, full duplex, resolved");
    assert_eq!(b.phy(21), 0, "e1000_check_phy_82574: it does not hang");
    b.set_phy(22, 2);
    assert_eq!(b.phy(17), 0, "another page");
    assert_eq!(b.phy(3), 0x0cb1, "the first sixteen are in every page");
    b.set_phy(22, 0);
    assert_eq!(b.phy(17) & 0xc000, 0x8000);
    b.w(MDIC, 2 << 21 | 0x0800_0000);
    assert_eq!(b.r(MDIC) & 0x4000_0000, 0x4000_0000, "no PHY at address 2");
    assert_eq!(b.r(STATUS) & 0x8_00c3, 0x8_0083, "1 Gbit/s, up, full duplex, DMA allowed");
}

#[test]
fn a_chip_whose_dma_is_disabled_says_so_and_does_none() {
    let mut b = opened();
    b.put(TX_DATA, &[0; 60]);
    b.descriptor(0, TX_DATA, CMD | 60, 0);
    // e1000e_disable_pcie_master.
    let ctrl = b.r(CTRL);
    b.w(CTRL, ctrl | 4);
    assert_eq!(b.r(STATUS) & 0x8_0000, 0);
    b.w(TDT, 1);
    assert!(b.transmit().is_empty());
    b.w(CTRL, ctrl);
    assert_eq!(b.transmit().len(), 1);
}
