//! Saved state: what is wrong is named, and nothing wrong is taken.

use nicety_pci::{Changes, Raise, Saved, SavedError};

use crate::devices;

#[test]
fn an_interrupt_that_waits_survives_saving() {
    let mut function = devices::vmware_82574l();
    assert_eq!(function.msix_raise(4), Raise::Pending);
    let saved = Saved::from_bytes(&function.save().to_bytes()).expect("readable");
    let mut other = devices::vmware_82574l();
    other.restore(&saved).expect("the same device");
    assert!(!other.msix_mut().expect("has a table").write_table(4 * 16 + 12, &[0]));
    assert_eq!(other.config_write(4, &[4]), Changes::BUS_MASTER);
    assert_eq!(other.config_write(0xa3, &[0x80]), Changes::MSIX | Changes::DUE);
    assert_eq!(other.next_due().map(|message| message.vector), Some(4));
    assert_eq!(other.next_due(), None);
}

#[test]
fn another_device_is_refused_by_the_register_that_differs() {
    let error = devices::dell_82540em().restore(&devices::virtio_net().save()).expect_err("another device");
    let expected = SavedError::ReadOnly { offset: 0, name: "vendor id", saved: 0xf4, here: 0x86 };
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "configuration byte 0x000 (vendor id) is 0xf4; here its read-only bits are those of 0x86"
    );
    let error = devices::dell_82540em().restore(&devices::intel_82576().save()).expect_err("another size");
    assert_eq!(error, SavedError::Size { saved: 4096, here: 256 });
}

#[test]
fn each_wrong_field_is_named() {
    let mut function = devices::intel_82576();
    let good = function.save();
    let mut refused = |change: &dyn Fn(&mut Saved)| {
        let mut saved = good.clone();
        change(&mut saved);
        function.restore(&saved).expect_err("must be refused")
    };
    let field = SavedError::Field;
    assert_eq!(refused(&|s| s.bytes[0x44] = 1), field("power state: one that the function lacks"));
    assert_eq!(refused(&|s| s.msi_pending = 2), field("MSI pending: vectors that are not there"));
    assert_eq!(refused(&|s| s.msix = None), field("whether there is an MSI-X table"));
    let table = |change: &dyn Fn(&mut nicety_pci::SavedMsix)| {
        let mut saved = good.clone();
        change(saved.msix.as_mut().expect("has a table"));
        devices::intel_82576().restore(&saved).expect_err("must be refused")
    };
    assert_eq!(table(&|m| m.table.truncate(144)), field("MSI-X table size"));
    assert_eq!(table(&|m| m.table[0] = 1), field("MSI-X table: reserved bits"));
    assert_eq!(table(&|m| m.pending[0] = 1 << 10), field("MSI-X pending-bit array: bits beyond the last vector"));
    assert_eq!(table(&|m| m.pending.push(0)), field("MSI-X pending-bit array size"));
}

#[test]
fn bytes_of_something_else_are_refused() {
    let good = devices::virtio_net().save().to_bytes();
    assert_eq!(Saved::from_bytes(b""), Err(SavedError::Mark));
    assert_eq!(Saved::from_bytes(b"ELF!1234"), Err(SavedError::Mark));
    for len in 4..good.len() {
        assert!(matches!(Saved::from_bytes(&good[..len]), Err(SavedError::Short(_))), "{len}");
    }
    let change = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Saved::from_bytes(&bytes)
    };
    assert_eq!(change(4, 2), Err(SavedError::Version(2)));
    assert_eq!(change(6, 1), Err(SavedError::Field("size of configuration space")));
    assert_eq!(Saved::from_bytes(&[&good[..], &[0, 0]].concat()), Err(SavedError::Long(2)));
}
