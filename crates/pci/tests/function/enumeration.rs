//! An operating system's enumeration: dumps of real devices, and the capability list as Linux walks it.

use nicety_pci::{Bar, BuildError, Capability, Changes, Express, Function, Identity, Msi, MsixCapability, Pin};

use crate::devices;

fn bytes_of(function: &Function, size: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; size];
    function.config_read(0, &mut bytes);
    bytes
}

fn write32(function: &mut Function, offset: u64, value: u32) -> Changes {
    function.config_write(offset, &value.to_le_bytes())
}

fn write16(function: &mut Function, offset: u64, value: u16) -> Changes {
    function.config_write(offset, &value.to_le_bytes())
}

/// Compares with the dump byte for byte and reports the first difference.
fn agrees(function: &Function, dump: &str, size: usize) {
    let (here, there) = (bytes_of(function, size), devices::parse(dump, size));
    for (offset, (here, there)) in here.iter().zip(&there).enumerate() {
        assert_eq!(here, there, "at {offset:#x}: built {here:#04x}, in the dump {there:#04x}");
    }
}

#[test]
fn a_82574l_looks_as_a_vmware_guest_dumps_it() {
    let mut function = devices::vmware_82574l();
    let _ = write16(&mut function, 0x04, 0x0007);
    let _ = function.config_write(0x0c, &[0x10]);
    for (bar, value) in [(0x10, 0xfea0_0000), (0x14, 0xfea2_0000), (0x18, 0x4000), (0x1c, 0xfea4_0000)] {
        let _ = write32(&mut function, bar, value);
    }
    let _ = write32(&mut function, 0x30, 0xffff_fffe);
    let _ = function.config_write(0x3c, &[0xff]);
    agrees(&function, devices::VMWARE_82574L, 256);
    assert_eq!(function.config_size(), 4096);
}

#[test]
fn a_82540em_looks_as_lspci_dumps_it_from_a_dell() {
    let mut function = devices::dell_82540em();
    let _ = write16(&mut function, 0x04, 0xffff);
    assert_eq!(bytes_of(&function, 6)[4..], [0x57, 0x05], "no special cycles, VGA, stepping, fast back-to-back");
    let _ = write16(&mut function, 0x04, 0x0117);
    let _ = write16(&mut function, 0x0c, 0x4010);
    let _ = write32(&mut function, 0x10, 0xfcfe_0000);
    let _ = write32(&mut function, 0x18, 0xdf40);
    let _ = function.config_write(0x3c, &[9]);
    agrees(&function, devices::DELL_82540EM, 256);
    assert_eq!(function.config_size(), 256);
}

#[test]
fn a_transitional_virtio_net_looks_as_lspci_dumps_it() {
    let mut function = devices::virtio_net();
    for (bar, value) in [(0x10, 0xc060), (0x14, 0xfebd_6000), (0x18, 0xfea0_0000), (0x30, 0xfeb8_0000)] {
        let _ = write32(&mut function, bar, value);
    }
    let _ = function.config_write(0x3c, &[0x0a]);
    assert_eq!(write16(&mut function, 0x86, 0x8000), Changes::MSIX);
    let changes = write16(&mut function, 0x04, 0x0507);
    assert_eq!(changes, Changes::BUS_MASTER | Changes::MEMORY | Changes::IO | Changes::INTX);
    agrees(&function, devices::VIRTIO_NET, 256);
}

#[test]
fn a_82576_looks_as_lspci_dumps_it_extended_capabilities_included() {
    let mut function = devices::intel_82576();
    let _ = write16(&mut function, 0x04, 0x0407);
    let _ = function.config_write(0x0c, &[0x10, 0xff]);
    for (bar, value) in [(0x10, 0xe080_0000), (0x14, 0xe000_0000), (0x18, 0x1020), (0x1c, 0xe084_0000)] {
        let _ = write32(&mut function, bar, value);
    }
    let _ = write32(&mut function, 0x30, 0xc780_0000);
    let _ = function.config_write(0x3c, &[0x0b]);
    let _ = write16(&mut function, 0x72, 0x8000);
    let _ = write16(&mut function, 0xa8, 0x2830);
    let _ = write16(&mut function, 0xb0, 0x0042);
    function.device_write(0xaa, &[0x09]);
    let mut here = bytes_of(&function, 0x480);
    // The real device is one of two functions, and has VPD at 0xe0 that is not in its list.
    (here[0x0e], here[0xe0]) = (0x80, 0x03);
    assert_eq!(here, devices::parse(devices::INTEL_82576, 0x480));
    assert!(bytes_of(&function, 4096)[0x480..].iter().all(|&byte| byte == 0));
}

/// Walks the list like Linux's `__pci_find_next_cap_ttl`: at most 48 steps, none below 0x40.
fn walk(function: &Function) -> Vec<(u8, usize)> {
    let space = bytes_of(function, 256);
    let mut found = Vec::new();
    if space[6] & 0x10 == 0 {
        return found;
    }
    let mut at = usize::from(space[0x34]);
    for _ in 0..48 {
        if at < 0x40 {
            return found;
        }
        at &= !3;
        if space[at] == 0xff {
            return found;
        }
        found.push((space[at], at));
        at = usize::from(space[at + 1]);
    }
    panic!("the list does not end: {found:?}");
}

/// Walks the list like Linux's `pci_find_next_ext_capability`.
fn walk_extended(function: &Function) -> Vec<(u16, usize)> {
    let mut found = Vec::new();
    let mut at = 0x100;
    for _ in 0..(4096 - 256) / 8 {
        let mut header = [0; 4];
        function.config_read(at as u64, &mut header);
        let header = u32::from_le_bytes(header);
        if header == 0 {
            return found;
        }
        found.push((header as u16, at));
        at = (header >> 20) as usize;
        if at < 0x100 {
            return found;
        }
    }
    panic!("the extended list does not end: {found:?}");
}

#[test]
fn linux_walks_the_same_capabilities_that_the_function_names() {
    for (name, function) in devices::all() {
        assert_eq!(walk(&function), function.capabilities().collect::<Vec<_>>(), "{name}");
    }
    let ids = |function: &Function| walk(function).iter().map(|&(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(&devices::vmware_82574l()), [1, 5, 16, 17]);
    assert_eq!(ids(&devices::virtio_net()), [17, 9, 9, 9, 9]);
    assert_eq!(devices::vmware_82574l().capability(17), Some(0xa0));
    assert_eq!(walk_extended(&devices::intel_82576()), [(1, 0x100), (3, 0x140), (14, 0x150), (16, 0x160)]);
    assert_eq!(walk_extended(&devices::vmware_82574l()), []);
}

#[test]
fn capabilities_without_a_place_follow_each_other_on_dwords() {
    let function = Function::builder(Identity::default())
        .capability(Capability::Msi(Msi { vectors: 4, maskable: false }))
        .capability(Capability::Vendor { body: vec![7; 6], writable: vec![0xff] })
        .capability(Capability::Express(Express::default()))
        .build()
        .expect("fits");
    assert_eq!(walk(&function), [(5, 0x40), (9, 0x50), (16, 0x5c)]);
    let mut vendor = [0; 9];
    function.config_read(0x50, &mut vendor);
    assert_eq!(vendor, [9, 0x5c, 9, 7, 7, 7, 7, 7, 7]);
}

#[test]
fn a_vendor_specific_body_is_written_by_masks_and_by_the_device() {
    let mut function = Function::builder(Identity::default())
        .capability(Capability::Vendor { body: vec![5, 0, 0], writable: vec![0, 0xff, 0x0f] })
        .build()
        .expect("fits");
    assert_eq!(function.config_write(0x40, &[0xff; 6]), Changes::CAPABILITY);
    assert_eq!(bytes_of(&function, 0x46)[0x40..], [9, 0, 6, 5, 0xff, 0x0f]);
    function.device_write(0x3f, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bytes_of(&function, 0x48)[0x3f..], [0, 9, 0, 6, 5, 6, 7, 0, 0]);
}

#[test]
fn beyond_the_space_are_ones_and_reserved_bytes_are_zero() {
    let mut function = devices::dell_82540em();
    let mut data = [0; 8];
    function.config_read(0xfc, &mut data);
    assert_eq!(data, [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    function.config_read(u64::MAX - 2, &mut data);
    assert_eq!(data, [0xff; 8]);
    assert_eq!(function.config_write(u64::MAX - 2, &[0; 8]), Changes::empty());
    assert_eq!(function.config_write(0x40, &[0xff; 64]), Changes::empty());
    function.config_read(0x40, &mut data);
    assert_eq!(data, [0; 8]);
}

#[test]
fn status_errors_are_cleared_by_writing_one_and_only_those() {
    let mut function = devices::dell_82540em();
    function.device_write(6, &[0x00, 0xf9]);
    function.set_intx(true);
    assert_eq!(bytes_of(&function, 8)[6..], [0x38, 0xfb]);
    let _ = function.config_write(6, &[0xff, 0x20]);
    assert_eq!(bytes_of(&function, 8)[6..], [0x38, 0xdb]);
    let _ = function.config_write(4, &[0, 0, 0xff, 0xff]);
    assert_eq!(bytes_of(&function, 8)[6..], [0x38, 0x02]);
}

#[test]
fn a_function_level_reset_is_reported_and_its_bit_reads_zero() {
    let mut function = devices::intel_82576();
    let _ = write16(&mut function, 4, 7);
    assert_eq!(write16(&mut function, 0xa8, 0xa810), Changes::FUNCTION_RESET);
    assert_eq!(bytes_of(&function, 0xaa)[0xa8..], [0x10, 0x28]);
    assert_eq!(function.config_write(0xa9, &[0x80]), Changes::FUNCTION_RESET, "by a byte, too");
    let mut without = devices::vmware_82574l();
    assert_eq!(write16(&mut without, 0xe8, 0x8000), Changes::empty(), "the 82574L does not offer it");
}

#[test]
fn waking_from_d3hot_asks_for_a_reset_unless_the_state_is_kept() {
    let mut function = devices::intel_82576();
    let _ = write32(&mut function, 0x10, 0xe080_0000);
    let _ = write16(&mut function, 4, 7);
    assert_eq!((function.bar(0), function.bus_master()), (Some(0xe080_0000), true));
    assert_eq!(function.config_write(0x44, &[3]), Changes::POWER);
    assert_eq!(function.bar(0), None, "D3hot answers no memory access");
    assert!(!function.bus_master(), "and starts no transaction");
    assert_eq!(function.config_write(0x44, &[0]), Changes::POWER | Changes::SOFT_RESET);
    assert_eq!(function.config_write(0x44, &[1]), Changes::empty(), "there is no D1");
    assert_eq!(function.config_write(0x44, &[2]), Changes::empty(), "there is no D2");
    let mut keeps = Function::builder(Identity::default())
        .capability(Capability::Power(nicety_pci::Power::default()))
        .build()
        .expect("fits");
    assert_eq!(keeps.config_write(0x44, &[3]), Changes::POWER);
    assert_eq!(keeps.config_write(0x44, &[0]), Changes::POWER);
}

#[test]
fn what_cannot_be_coded_is_refused_with_its_reason() {
    let builder = || Function::builder(Identity::default()).bar(0, Bar::memory(4096));
    let refused = |builder: nicety_pci::Builder| builder.build().expect_err("must be refused");
    assert_eq!(refused(builder().bar(6, Bar::io(4))), BuildError::BarIndex(6));
    assert_eq!(refused(builder().bar(5, Bar::memory64(64))), BuildError::BarIndex(5));
    assert_eq!(refused(builder().bar(0, Bar::io(4))), BuildError::BarIndex(0));
    assert_eq!(refused(builder().bar(usize::MAX, Bar::memory64(64))), BuildError::BarIndex(usize::MAX));
    assert_eq!(refused(builder().bar(1, Bar::memory(48))), BuildError::BarSize(1, 48));
    assert_eq!(refused(builder().rom(1024)), BuildError::RomSize(1024));
    let msi = |vectors| Capability::Msi(Msi { vectors, maskable: true });
    assert_eq!(refused(builder().capability(msi(3))), BuildError::MsiVectors(3));
    assert_eq!(refused(builder().capability(msi(1)).capability(msi(1))), BuildError::CapabilityTwice(5));
    assert_eq!(refused(builder().capability_at(0xf0, msi(1))), BuildError::CapabilityPlace { id: 5, at: 0xf0 });
    let msix = |vectors, pba_offset| {
        let place = MsixCapability { vectors, table_bar: 0, table_offset: 0, pba_bar: 0, pba_offset };
        Capability::Msix(place)
    };
    assert_eq!(refused(builder().capability(msix(0, 2048))), BuildError::MsixVectors(0));
    assert_eq!(refused(builder().capability(msix(4, 56))), BuildError::MsixPlace { bar: 0, offset: 56 });
    assert_eq!(refused(builder().capability(msix(4, 4096))), BuildError::MsixPlace { bar: 0, offset: 4096 });
    assert_eq!(refused(builder().extended(3, 1, vec![0; 8])), BuildError::NotExpress(3));
    assert!(builder().interrupt_pin(Pin::D).capability(msix(4, 64)).build().is_ok());
}
