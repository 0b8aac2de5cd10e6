//! Messages and pending bits, as a VMM that delivers interrupts itself sees them.

use nicety_pci::{Bar, Capability, Function, Identity, Message, Msi, MsixCapability, Pending, Pin};

const CONTROL: u64 = 0x52;
const ENABLE: u16 = 0x8000;
const MASK_ALL: u16 = 0x4000;

fn control(function: &mut Function, value: u16) {
    let _ = function.config_write(CONTROL, &value.to_le_bytes());
}

/// Two vectors behind base address register 1, the pending-bit array at 0x800; bus mastering is on.
fn with_msix() -> Function {
    let place = MsixCapability { vectors: 2, table_bar: 1, table_offset: 0, pba_bar: 1, pba_offset: 0x800 };
    let mut function = Function::builder(Identity::default())
        .interrupt_pin(Pin::A)
        .bar(1, Bar::memory(4096))
        .capability_at(0x50, Capability::Msix(place))
        .build()
        .expect("fits");
    let _ = function.config_write(4, &6_u16.to_le_bytes());
    for vector in 0..2_u64 {
        entry(&mut function, vector, false);
    }
    function
}

/// Writes a vector's entry in the table: address, data, mask bit (PCI 3.0, 6.8.2.6 to 6.8.2.9).
fn entry(function: &mut Function, vector: u64, is_masked: bool) {
    let words = [0xfee0_1000_u32, 0, 0x40 + vector as u32, u32::from(is_masked)];
    function.msix_mut().expect("it has a table").write_table(16 * vector, &words.map(u32::to_le_bytes).concat());
}

fn message(vector: u32) -> Message {
    Message { address: 0xfee0_1000, data: 0x40 + vector }
}

/// The first bytes of the pending-bit array, read with two bytes before it.
fn array(function: &Function, pending: &Pending) -> [u8; 4] {
    let mut data = [0; 4];
    pending.read(function, 1, 0x7fe, &mut data);
    data
}

#[test]
fn a_masked_vector_waits_and_goes_once_when_it_is_unmasked() {
    let (mut function, mut pending) = (with_msix(), Pending::default());
    assert_eq!(pending.raise(&function, 1), None, "MSI-X is off");
    control(&mut function, ENABLE);
    assert_eq!(pending.raise(&function, 1), Some(message(1)));
    entry(&mut function, 1, true);
    assert_eq!((pending.raise(&function, 1), pending.raise(&function, 1)), (None, None));
    assert_eq!(pending.raise(&function, 0), Some(message(0)), "the other one is not masked");
    assert_eq!((pending.due(&function), array(&function, &pending)), (None, [0, 0, 2, 0]));
    entry(&mut function, 1, false);
    assert_eq!([pending.due(&function), pending.due(&function)], [Some(message(1)), None]);
    assert_eq!(array(&function, &pending), [0; 4]);
}

#[test]
fn the_functions_mask_holds_all_and_a_reset_forgets_them() {
    let (mut function, mut pending) = (with_msix(), Pending::default());
    control(&mut function, ENABLE | MASK_ALL);
    assert_eq!([pending.raise(&function, 1), pending.raise(&function, 0), pending.due(&function)], [None; 3]);
    control(&mut function, ENABLE);
    let _ = function.config_write(4, &2_u16.to_le_bytes());
    assert_eq!(pending.due(&function), None, "without bus mastering nothing is sent");
    let _ = function.config_write(4, &6_u16.to_le_bytes());
    assert_eq!(pending.due(&function), Some(message(0)));
    pending.clear();
    assert_eq!(pending.due(&function), None);
    assert_eq!(pending.raise(&function, 2), None, "there is no such vector");
    assert!(!pending.waits(2) && !pending.waits(u16::MAX));
}

#[test]
fn msi_puts_the_vector_into_the_datas_low_bits() {
    let msi = Capability::Msi(Msi { vectors: 4, maskable: true });
    let mut function = Function::builder(Identity::default()).capability_at(0x50, msi).build().expect("fits");
    let _ = function.config_write(4, &6_u16.to_le_bytes());
    let _ = function.config_write(0x54, &0xfee0_2000_u64.to_le_bytes());
    let _ = function.config_write(0x5c, &0x4073_u16.to_le_bytes());
    control(&mut function, 1 << 4 | 1); // two vectors
    let mut pending = Pending::default();
    let sent = |data| Some(Message { address: 0xfee0_2000, data });
    let raised = [0, 1, 2, 3].map(|vector| pending.raise(&function, vector));
    assert_eq!(raised, [sent(0x4072), sent(0x4073), sent(0x4072), sent(0x4073)]);
    let _ = function.config_write(0x60, &2_u32.to_le_bytes()); // mask bits
    assert_eq!((pending.raise(&function, 1), pending.raise(&function, 0)), (None, sent(0x4072)));
    let _ = function.config_write(0x60, &[0; 4]);
    assert_eq!([pending.due(&function), pending.due(&function)], [sent(0x4073), None]);
}
