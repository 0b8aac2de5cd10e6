//! The SR-IOV capability: offsets of Linux's pci_regs.h (PCI_SRIOV_*), values of the 82576's datasheet (9.6.4).

use nicety_adapter::Reset;

use crate::guest::*;

const SRIOV: u16 = 0x160;

fn read(g: &mut Guest, offset: u16) -> u32 {
    u32::from_le_bytes(g.config_read(offset.into()))
}

/// Walks the list as pci_find_ext_capability does.
fn find(g: &mut Guest, id: u16) -> Option<u16> {
    let mut at = 0x100;
    for _ in 0..64 {
        let header = read(g, at);
        if header as u16 == id {
            return Some(at);
        }
        at = (header >> 20) as u16;
        if at < 0x100 {
            return None;
        }
    }
    None
}

#[test]
fn the_capability_lies_where_the_chip_s_does_and_says_what_its_virtual_functions_would_be() {
    let mut g = Guest::new();
    assert_eq!((find(&mut g, 0x10), find(&mut g, 3), find(&mut g, 0xffff)), (Some(SRIOV), Some(0x100), None));
    assert_eq!(read(&mut g, SRIOV), 0x0001_0010);
    assert_eq!(read(&mut g, SRIOV + 0x0c), 8 << 16 | 8, "InitialVFs, TotalVFs");
    assert_eq!(read(&mut g, SRIOV + 0x14), 2 << 16 | 0x80, "offset and stride");
    assert_eq!(read(&mut g, SRIOV + 0x18) >> 16, 0x10ca);
    assert_eq!((read(&mut g, SRIOV + 0x1c), read(&mut g, SRIOV + 0x20)), (0x553, 1), "page sizes");
    // sriov_init sizes the BARs.
    for bar in 0..6 {
        g.config_write(SRIOV + 0x24 + 4 * bar, &[0xff; 4]);
    }
    let sizes: Vec<u32> = (0..6).map(|bar| read(&mut g, SRIOV + 0x24 + 4 * bar)).collect();
    assert_eq!(sizes, [0xffff_c004, !0, 0, 0xffff_c004, !0, 0]);
}

#[test]
fn enabling_virtual_functions_reads_back_makes_none_and_ends_with_a_reset() {
    let mut g = Guest::opened();
    g.config_write(SRIOV + 0x10, &[7, 0]);
    g.config_write(SRIOV + 8, &[0xff, 0xff]);
    assert_eq!((read(&mut g, SRIOV + 8), read(&mut g, SRIOV + 0x10)), (0x19, 7));
    // Read-only fields keep their values.
    for at in [0x00, 0x04, 0x0c, 0x14, 0x18, 0x1c, 0x3c] {
        let before = read(&mut g, SRIOV + at);
        g.config_write(SRIOV + at, &[0xff; 4]);
        assert_eq!(read(&mut g, SRIOV + at), before, "{at:#x}");
    }
    g.call(|nic, cx| nic.reset(Reset::Function, cx));
    assert_eq!((read(&mut g, SRIOV + 8), read(&mut g, SRIOV + 0x10)), (0, 0));
}

/// QEMU's igb trusted the guest's number of virtual functions.
#[test]
fn cve_2024_26327_more_virtual_functions_than_there_are_is_none() {
    let mut g = Guest::opened();
    for asked in [9_u16, 16, 255, 256, 0xffff] {
        g.config_write(SRIOV + 8, &[0, 0]);
        g.config_write(SRIOV + 0x10, &asked.to_le_bytes());
        g.config_write(SRIOV + 8, &[1, 0]);
        assert_eq!(read(&mut g, SRIOV + 0x10), 0, "{asked}");
    }
    g.config_write(SRIOV + 0x10, &[8, 0]);
    assert_eq!(read(&mut g, SRIOV + 0x10), 8);
    // Also one byte at a time.
    g.config_write(SRIOV + 0x11, &[1]);
    assert_eq!(read(&mut g, SRIOV + 0x10), 0);
}
