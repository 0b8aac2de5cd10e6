//! Sizing as Linux, SeaBIOS and EDK II do it, with every access width.

use nicety_pci::{Bar, BarKind, Changes, Function, Hit, Identity, ROM_BAR, Space};

fn read32(function: &Function, offset: u64) -> u32 {
    let mut data = [0; 4];
    function.config_read(offset, &mut data);
    u32::from_le_bytes(data)
}

/// Writes a dword by pieces of `width` bytes, the highest first if `reversed`.
fn write32(function: &mut Function, offset: u64, value: u32, width: usize, reversed: bool) {
    let bytes = value.to_le_bytes();
    let mut pieces: Vec<_> = bytes.chunks(width).enumerate().collect();
    if reversed {
        pieces.reverse();
    }
    for (index, piece) in pieces {
        let _ = function.config_write(offset + (index * width) as u64, piece);
    }
}

/// Sizes like Linux's `__pci_read_base` (drivers/pci/probe.c): decoding off, ones, read back, restore; the lowest one bit is the size.
fn size_as_linux(function: &mut Function, offset: u64, width: usize, reversed: bool) -> (u64, u64) {
    let rom = offset == 0x30;
    let ones = if rom { 0xffff_f800 } else { u32::MAX };
    let was = read32(function, offset);
    write32(function, offset, was | ones, width, reversed);
    let mut size = u64::from(read32(function, offset));
    write32(function, offset, was, width, reversed);
    assert_eq!(read32(function, offset), was, "restored");
    let mask: u64 = match was & 7 {
        _ if rom => 0xffff_f800,
        1 | 5 => 0xffff_fffc,
        _ => 0xffff_fff0,
    };
    let mut base = u64::from(was) & mask;
    size &= mask;
    if !rom && was & 7 == 4 {
        let high = read32(function, offset + 4);
        write32(function, offset + 4, u32::MAX, width, reversed);
        size |= u64::from(read32(function, offset + 4)) << 32;
        write32(function, offset + 4, high, width, reversed);
        base |= u64::from(high) << 32;
    }
    (base, size & size.wrapping_neg())
}

fn one(index: usize, bar: Bar) -> Function {
    Function::builder(Identity::default()).bar(index, bar).build().expect("valid")
}

#[test]
fn every_size_of_every_kind_is_found_by_dwords_halves_and_bytes() {
    let kinds = [
        (BarKind::Memory32 { prefetchable: false }, 4..=31),
        (BarKind::Memory32 { prefetchable: true }, 4..=31),
        (BarKind::Memory64 { prefetchable: false }, 4..=62),
        (BarKind::Memory64 { prefetchable: true }, 4..=62),
        (BarKind::Io, 2..=16),
    ];
    for (kind, powers) in kinds {
        for power in powers {
            let bar = Bar { kind, size: 1 << power };
            for (width, reversed) in [(4, false), (2, false), (2, true), (1, false), (1, true)] {
                let mut function = one(2, bar);
                let (base, size) = size_as_linux(&mut function, 0x18, width, reversed);
                assert_eq!((base, size), (0, bar.size), "{bar:?} by {width}");
            }
        }
    }
}

#[test]
fn the_low_bits_say_space_width_and_prefetchable() {
    let low = |kind| read32(&one(0, Bar { kind, size: 4096 }), 0x10);
    assert_eq!(low(BarKind::Io), 0x1);
    assert_eq!(low(BarKind::Memory32 { prefetchable: false }), 0x0);
    assert_eq!(low(BarKind::Memory32 { prefetchable: true }), 0x8);
    assert_eq!(low(BarKind::Memory64 { prefetchable: false }), 0x4);
    assert_eq!(low(BarKind::Memory64 { prefetchable: true }), 0xc);
}

#[test]
fn a_64_bit_register_is_sized_by_a_quadword_too() {
    let mut function = one(4, Bar::memory64(1 << 33));
    assert_eq!(function.config_write(0x20, &[0xff; 8]), Changes::BAR);
    let mut data = [0; 8];
    function.config_read(0x20, &mut data);
    assert_eq!(u64::from_le_bytes(data), 0xffff_fffe_0000_0004);
    assert_eq!((function.bar_kind(5), function.bar_address(5)), (None, None));
}

#[test]
fn a_rom_is_sized_without_its_enable_bit_as_linux_and_seabios_do() {
    for power in 11..=24 {
        let mut function = Function::builder(Identity::default()).rom(1 << power).build().expect("valid");
        assert_eq!(size_as_linux(&mut function, 0x30, 4, false), (0, 1 << power));
        write32(&mut function, 0x30, 0xffff_fffe, 4, false);
        assert_eq!(read32(&function, 0x30), 0_u32.wrapping_sub(1 << power));
    }
}

#[test]
fn registers_that_are_not_there_read_zero_whatever_is_written() {
    let mut function = one(0, Bar::memory(4096));
    for offset in (0x14..0x28).step_by(4).chain([0x28, 0x30, 0x38]) {
        write32(&mut function, offset, u32::MAX, 4, false);
        assert_eq!(read32(&function, offset), 0, "{offset:#x}");
    }
}

#[test]
fn addresses_count_only_while_they_are_decoded() {
    let mut function = Function::builder(Identity::default())
        .bar(0, Bar::memory64(0x1000))
        .bar(2, Bar::io(0x20))
        .rom(0x800)
        .build()
        .expect("valid");
    let _ = function.config_write(0x10, &0x12_3456_7000_u64.to_le_bytes());
    let _ = function.config_write(0x18, &0xc060_u32.to_le_bytes());
    let _ = function.config_write(0x30, &0xfeb8_0001_u32.to_le_bytes());
    assert_eq!((function.bar(0), function.bar(2), function.rom()), (None, None, None));
    assert_eq!(function.bar_address(0), Some(0x12_3456_7000));
    assert_eq!(function.config_write(4, &[1]), Changes::IO);
    assert_eq!((function.bar(0), function.bar(2), function.rom()), (None, Some(0xc060), None));
    assert_eq!(function.config_write(4, &[3]), Changes::MEMORY);
    assert_eq!((function.bar(0), function.rom()), (Some(0x12_3456_7000), Some(0xfeb8_0000)));
    let hit = |space, address| function.bar_of(space, address).map(|Hit { bar, offset }| (bar, offset));
    assert_eq!(hit(Space::Memory, 0x12_3456_7fff), Some((0, 0xfff)));
    assert_eq!(hit(Space::Memory, 0x12_3456_8000), None);
    assert_eq!(hit(Space::Memory, 0x12_3456_6fff), None);
    assert_eq!(hit(Space::Io, 0xc07f), Some((2, 0x1f)));
    assert_eq!(hit(Space::Memory, 0xc07f), None);
    assert_eq!(hit(Space::Memory, 0xfeb8_07ff), Some((ROM_BAR, 0x7ff)));
    assert_eq!(hit(Space::Memory, u64::MAX), None);
}

#[test]
fn a_region_at_the_very_end_of_the_address_space_does_not_wrap() {
    let mut function = one(0, Bar::memory64(0x1000));
    let _ = function.config_write(0x10, &[0xff; 8]);
    let _ = function.config_write(4, &[2]);
    assert_eq!(function.bar_of(Space::Memory, u64::MAX), Some(Hit { bar: 0, offset: 0xfff }));
    assert_eq!(function.bar_of(Space::Memory, 0), None);
}
