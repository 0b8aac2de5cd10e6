//! Option ROMs: images made by hand after PCI Firmware 3.0 §5.1.

use nicety_pci::{Rom, RomError};

/// One image of two blocks; byte 0x1ff makes a PC-compatible one sum to zero, as a BIOS checks it.
fn image(vendor: u16, device: u16, code_type: u8, last: bool) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes[..3].copy_from_slice(&[0x55, 0xaa, 2]);
    bytes[0x18] = 0x40;
    bytes[0x40..0x44].copy_from_slice(b"PCIR");
    bytes[0x44..0x46].copy_from_slice(&vendor.to_le_bytes());
    bytes[0x46..0x48].copy_from_slice(&device.to_le_bytes());
    bytes[0x48] = 0x20;
    bytes[0x4a] = 0x18;
    bytes[0x4c] = 3;
    bytes[0x4f] = 2;
    bytes[0x50] = 2;
    bytes[0x54] = code_type;
    bytes[0x55] = if last { 0x80 } else { 0 };
    bytes[0x60..0x66].copy_from_slice(&[0x0f, 0x10, 0x08, 0x10, 0, 0]);
    bytes[0x1ff] = 0_u8.wrapping_sub(sum(&bytes));
    bytes
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

fn read(rom: &Rom, from: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rom.read(from, &mut bytes);
    bytes
}

#[test]
fn an_image_is_filled_up_with_ones_to_a_power_of_two() {
    let one = Rom::new(image(0x8086, 0x100e, 0, true)).expect("valid");
    assert_eq!((one.size(), one.ids()), (2048, (0x8086, 0x100e)));
    assert_eq!(read(&one, 1020, 8)[4..], [0xff; 4]);
    assert_eq!(read(&one, u64::MAX, 8), [0xff; 8]);
    let three = [image(1, 2, 0, false), image(1, 2, 3, false), image(1, 2, 1, true)].concat();
    assert_eq!(Rom::new(three).expect("valid").size(), 4096);
}

#[test]
fn a_rom_is_for_its_device_and_those_it_lists() {
    let rom = Rom::new(image(0x8086, 0x100e, 0, true)).expect("valid");
    assert_eq!(rom.expect(0x8086, 0x100e), Ok(()));
    assert_eq!(rom.expect(0x8086, 0x100f), Ok(()), "listed");
    assert_eq!(rom.expect(0x8086, 0x1008), Ok(()), "listed");
    let error = rom.expect(0x8086, 0x10d3).expect_err("not for that");
    assert_eq!(error.to_string(), "option ROM is for 8086:100e");
    assert!(rom.expect(0x1af4, 0x100e).is_err());
}

#[test]
fn patched_ids_leave_the_checksum_zero_in_each_pc_image() {
    let bytes = [image(0x8086, 0x100e, 0, false), image(0x8086, 0x100e, 3, true)].concat();
    let mut rom = Rom::new(bytes.clone()).expect("valid");
    rom.patch_ids(0x15ad, 0x07b0);
    assert_eq!(rom.ids(), (0x15ad, 0x07b0));
    let after = read(&rom, 0, 2048);
    assert_eq!(sum(&after[..1024]), 0);
    assert_eq!(after[0x444..0x448], [0xad, 0x15, 0xb0, 0x07]);
    assert_eq!(after[0x406], bytes[0x406], "an EFI image has no checksum to mend");
    assert_eq!(Rom::new(after).map(|rom| rom.ids()), Ok((0x15ad, 0x07b0)));
    rom.patch_ids(0x8086, 0x100e);
    assert_eq!(read(&rom, 0, 2048), bytes);
}

#[test]
fn files_that_are_no_rom_are_refused_with_the_reason() {
    let refused = |at: usize, with: &[u8]| {
        let mut bytes = [image(1, 2, 0, false), image(1, 2, 0, true)].concat();
        bytes[at..at + with.len()].copy_from_slice(with);
        Rom::new(bytes).expect_err("must be refused")
    };
    assert_eq!(Rom::new(vec![0x55; 31]), Err(RomError::Size(31)));
    assert_eq!(refused(0, b"MZ"), RomError::Signature(0));
    assert_eq!(refused(0x400, b"\0\0"), RomError::Signature(0x400));
    assert_eq!(refused(0x40, b"ROMX"), RomError::DataStructure(0));
    assert_eq!(refused(0x418, b"\xff\xff"), RomError::DataStructure(0x400));
    assert_eq!(refused(0x50, b"\0\0"), RomError::Length(0, 0));
    assert_eq!(refused(0x450, b"\x03\0"), RomError::Length(0x400, 1536));
    assert_eq!(refused(0x455, b"\0"), RomError::Signature(0x800), "no last image");
}

#[test]
fn no_file_however_damaged_panics() {
    let good = [image(0x8086, 0x100e, 0, false), image(0x8086, 0x100e, 3, true)].concat();
    for at in (0..0x68).chain(0x400..0x468) {
        for value in [0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            if let Ok(mut rom) = Rom::new(bytes) {
                let _ = rom.expect(0x8086, 0x1234);
                rom.patch_ids(0xffff, 0xffff);
                assert!(rom.size().is_power_of_two());
            }
        }
    }
}
