use super::read;

/// An image (PCI Firmware 3.0 §5.1) whose header names one device, like iPXE's.
fn option_rom(vendor: u16, device: u16) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    bytes[..3].copy_from_slice(&[0x55, 0xaa, 1]);
    bytes[0x18] = 0x40;
    bytes[0x40..0x44].copy_from_slice(b"PCIR");
    bytes[0x44..0x46].copy_from_slice(&vendor.to_le_bytes());
    bytes[0x46..0x48].copy_from_slice(&device.to_le_bytes());
    bytes[0x4a] = 0x18;
    bytes[0x50] = 1;
    bytes[0x55] = 0x80;
    bytes
}

#[test]
fn an_option_rom_of_one_chip_is_shown_as_the_chips_that_have_the_same_driver() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pxe.rom");
    let shown = |adapter: &str, device| {
        std::fs::write(&path, option_rom(0x8086, device)).unwrap();
        read(&path, nicety_adapters::find(adapter).unwrap().about).map(|rom| rom.ids()).map_err(|error| error.why)
    };
    assert_eq!(shown("e1000", 0x100e), Ok((0x8086, 0x100e)));
    assert_eq!(shown("e1000-82545em", 0x100e), Ok((0x8086, 0x100f)));
    assert_eq!(shown("e1000-82544gc", 0x100e), Ok((0x8086, 0x1008)));
    assert!(shown("vmxnet3", 0x100e).unwrap_err().ends_with("for 8086:100e, and vmxnet3 is 15ad:07b0"));
    assert!(shown("e1000-82545em", 0x10d3).unwrap_err().contains("for 8086:10d3"), "another family's");
    // iPXE's ROM of a driver for many devices names none.
    std::fs::write(&path, option_rom(0, 0)).unwrap();
    let about = nicety_adapters::find("ne2k_pci").unwrap().about;
    assert_eq!(read(&path, about).map(|rom| rom.ids()).map_err(|error| error.why), Ok((0x10ec, 0x8029)));
}
