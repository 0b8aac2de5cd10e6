//! MSI, MSI-X and the line, as reported by configuration space and the table.

use nicety_pci::{Bar, Capability, Changes, Function, Identity, Mode, Msi, Msix, MsixCapability, Pin, Power, Window};

fn with_msix() -> Function {
    Function::builder(Identity::default())
        .interrupt_pin(Pin::A)
        .bar(0, Bar::memory(4096))
        .capability_at(0x40, Capability::Power(Power::default()))
        .capability_at(
            0x50,
            Capability::Msix(MsixCapability {
                vectors: 2,
                table_bar: 0,
                table_offset: 0,
                pba_bar: 0,
                pba_offset: 0x800,
            }),
        )
        .build()
        .expect("fits")
}

fn with_msi(vectors: u8, maskable: bool) -> Function {
    let mut function = Function::builder(Identity::default())
        .interrupt_pin(Pin::A)
        .capability_at(0x50, Capability::Msi(Msi { vectors, maskable }))
        .build()
        .expect("fits");
    let _ = function.config_write(0x54, &0x1_fee0_3003_u64.to_le_bytes());
    let _ = function.config_write(0x5c, &0x4073_u16.to_le_bytes());
    function
}

#[test]
fn software_that_enables_more_msi_vectors_than_are_offered_reads_back_as_many_as_there_are() {
    for (vectors, log2) in [(1, 0), (2, 1), (4, 2), (32, 5)] {
        let mut function = with_msi(vectors, false);
        for asked in 0..8u8 {
            let _ = function.config_write(0x52, &[asked << 4 | 1]);
            let mut control = [0];
            function.config_read(0x52, &mut control);
            // Message control (PCI 3.0, 6.8.1.3): enable, offered in bits 1 to 3, enabled in bits 4 to 6, 64-bit addresses.
            assert_eq!(control, [0x80 | asked.min(log2) << 4 | log2 << 1 | 1], "{asked} of {vectors}");
            assert_eq!(function.msi().map(|state| state.vectors), Some(1 << asked.min(log2)));
        }
    }
}

#[test]
fn a_table_after_reset_is_masked_and_keeps_reserved_bits_zero() {
    let mut table = Msix::new(3);
    let mut entry = [0xee; 16];
    table.read_table(32, &mut entry);
    assert_eq!(entry, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    table.write_table(0, &[0xff; 64]);
    let mut all = [0; 64];
    table.read_table(0, &mut all);
    let ones = u128::from_le_bytes(entry) | 0xffff_ffff_ffff_ffff_ffff_fffc;
    assert_eq!(all[..16], ones.to_le_bytes());
    assert_eq!(all[48..], [0xff; 16], "beyond the table");
    table.read_pba(4, &mut all);
    assert_eq!((&all[..4], &all[4..8]), (&[0; 4][..], &[0xff; 4][..]));
    table.reset();
    assert_eq!(table, Msix::new(3));
    table.write_table(u64::MAX - 1, &[0; 8]);
    table.read_table(u64::MAX - 1, &mut all);
    assert_eq!(all, [0xff; 64]);
}

#[test]
fn the_line_shows_in_status_and_is_masked_by_command_and_by_message_modes() {
    let mut function = with_msix();
    let status = |function: &Function| {
        let mut data = [0; 2];
        function.config_read(6, &mut data);
        u16::from_le_bytes(data)
    };
    assert_eq!(function.mode(), Mode::Intx);
    assert!(function.set_intx(true));
    assert_eq!(status(&function), 0x0018);
    assert_eq!(function.config_write(5, &[4]), Changes::INTX);
    assert_eq!((function.mode(), function.intx_asserted(), status(&function)), (Mode::None, false, 0x0018));
    assert_eq!(function.config_write(5, &[0]), Changes::INTX);
    assert!(function.intx_asserted());
    assert_eq!(function.config_write(0x53, &[0x80]), Changes::MSIX);
    assert_eq!((function.mode(), function.intx_asserted()), (Mode::Msix, false));
    assert_eq!(function.config_write(0x53, &[0]), Changes::MSIX);
    assert_eq!(function.config_write(0x44, &[3]), Changes::POWER);
    assert!(!function.intx_asserted(), "asleep");
    assert_eq!(function.config_write(0x44, &[0]), Changes::POWER);
    assert!(!function.set_intx(false));
    assert_eq!(status(&function), 0x0010);
    let mut without_pin = Function::builder(Identity::default()).build().expect("valid");
    assert!(!without_pin.set_intx(true));
    assert_eq!((without_pin.mode(), status(&without_pin)), (Mode::None, 0));
}

#[test]
fn an_access_to_the_region_finds_table_and_pending_bits() {
    let function = with_msix();
    let windows = [0, 0x1f, 0x20, 0x7ff, 0x800, 0x807, 0x808, u64::MAX].map(|offset| function.window(0, offset));
    let expected = [
        Some(Window::Table(0)),
        Some(Window::Table(0x1f)),
        None,
        None,
        Some(Window::Pba(0)),
        Some(Window::Pba(7)),
        None,
        None,
    ];
    assert_eq!(windows, expected);
    assert_eq!(function.window(1, 0), None);
}
