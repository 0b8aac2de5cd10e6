//! Saved state: errors are named, and invalid state is refused.

use nicety_pci::{Saved, SavedError};

use crate::devices;

#[test]
fn the_table_survives_saving_and_messages_that_are_pending_have_an_empty_place() {
    let mut function = devices::vmware_82574l();
    function.msix_mut().expect("has a table").write_table(4 * 16 + 8, &[7, 0, 0, 0, 0]);
    let bytes = function.save().to_bytes();
    let mut other = devices::vmware_82574l();
    other.restore(&Saved::from_bytes(&bytes).expect("readable")).expect("the same device");
    assert_eq!(other.save(), function.save());
    assert!(!other.msix().expect("has a table").is_masked(4));
    let mut pending = bytes.clone();
    *pending.last_mut().expect("bytes") = 1;
    assert_eq!(Saved::from_bytes(&pending), Err(SavedError::Field("pending messages")));
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
    assert_eq!(refused(&|s| s.msix_table = None), field("whether there is an MSI-X table"));
    let table = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut saved = good.clone();
        change(saved.msix_table.as_mut().expect("has a table"));
        devices::intel_82576().restore(&saved).expect_err("must be refused")
    };
    assert_eq!(table(&|m| m.truncate(144)), field("MSI-X table size"));
    assert_eq!(table(&|m| m[0] = 1), field("MSI-X table: reserved bits"));
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
