//! Our constants against Linux's include/uapi/linux/pci_regs.h, whose values are written out here.

use nicety_pci::registers as r;

#[test]
fn header_offsets_are_those_of_linux() {
    let ours = [r::COMMAND, r::STATUS, r::REVISION, r::CACHE_LINE, r::LATENCY, r::BAR, r::SUBSYSTEM, r::ROM];
    assert_eq!(ours, [0x04, 0x06, 0x08, 0x0c, 0x0d, 0x10, 0x2c, 0x30]);
    let ours = [r::CAPABILITIES, r::INTERRUPT_LINE, r::INTERRUPT_PIN, r::MIN_GRANT, r::MAX_LATENCY];
    assert_eq!(ours, [0x34, 0x3c, 0x3d, 0x3e, 0x3f]);
    assert_eq!((r::SPACE, r::EXPRESS_SPACE, r::FIRST_CAPABILITY), (256, 4096, 0x40));
}

#[test]
fn capability_ids_and_offsets_are_those_of_linux() {
    assert_eq!([r::ID_POWER, r::ID_MSI, r::ID_VENDOR, r::ID_EXPRESS, r::ID_MSIX], [0x01, 0x05, 0x09, 0x10, 0x11]);
    assert_eq!([r::MSI_CONTROL, r::MSI_ADDRESS, r::MSI_DATA, r::MSI_MASK, r::MSI_PENDING], [2, 4, 0xc, 0x10, 0x14]);
    assert_eq!([r::MSIX_CONTROL, r::MSIX_ENTRY, r::POWER_CONTROL, r::EXPRESS_DEVICE_CONTROL], [2, 16, 4, 8]);
}

#[test]
fn bits_are_those_of_linux() {
    let command = [
        (r::COMMAND_IO, 0x1),
        (r::COMMAND_MEMORY, 0x2),
        (r::COMMAND_MASTER, 0x4),
        (r::COMMAND_INVALIDATE, 0x10),
        (r::COMMAND_PARITY, 0x40),
        (r::COMMAND_SERR, 0x100),
        (r::COMMAND_INTX_DISABLE, 0x400),
    ];
    let others = [
        (r::STATUS_INTERRUPT, 0x08),
        (r::STATUS_CAPABILITIES, 0x10),
        (r::STATUS_ERRORS, 0x8000 | 0x4000 | 0x2000 | 0x1000 | 0x0800 | 0x0100),
        (r::STATUS_FIXED, 0x20 | 0x40 | 0x80 | 0x600),
        (r::POWER_D1, 0x200),
        (r::POWER_D2, 0x400),
        (r::POWER_PME, 0xf800),
        (r::POWER_NO_SOFT_RESET, 0x8),
        (r::POWER_PME_ENABLE, 0x100),
        (r::POWER_PME_STATUS, 0x8000),
        (r::MSI_ENABLE, 0x1),
        (r::MSI_MULTIPLE, 0x70),
        (r::MSI_64, 0x80),
        (r::MSI_MASKABLE, 0x100),
        (r::MSIX_MASK_ALL, 0x4000),
        (r::MSIX_ENABLE, 0x8000),
        (r::EXPRESS_START_FLR, 0x8000),
    ];
    for (ours, linux) in command.into_iter().chain(others) {
        assert_eq!(ours, linux);
    }
    assert_eq!(r::EXPRESS_FLR, 0x1000_0000);
}
