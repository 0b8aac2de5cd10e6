//! The drivers and their devices. PCI identity selects the driver, as in an operating system.

use crate::{
    Arena, Driver, E1000, E1000e, Igb, Rtl8139, VirtioNet, VirtualFunction, Vmxnet3, e1000, e1000e, igb, rtl8139,
    vmxnet3,
};

/// A new driver, on PCI or on rings.
pub enum Made {
    /// It accesses registers.
    Pci(Box<dyn Driver>),
    /// It shares rings.
    Rings(Box<VirtioNet>),
}

/// One driver.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Its devices: PCI vendor and device.
    pub devices: &'static [(u16, u16)],
    /// Creates a driver that uses this memory.
    pub make: fn(Arena) -> Made,
}

/// Every driver.
pub const DRIVERS: &[Entry] = &[
    Entry { name: "e1000", devices: &e1000::DEVICES, make: |arena| Made::Pci(Box::new(E1000::new(arena))) },
    Entry { name: "e1000e", devices: &e1000e::DEVICES, make: |arena| Made::Pci(Box::new(E1000e::new(arena))) },
    Entry {
        name: "ne2000",
        devices: &crate::ne2000::DEVICES,
        make: |arena| Made::Pci(Box::new(crate::ne2000::Ne2000::new(arena))),
    },
    Entry { name: "igb", devices: &igb::DEVICES, make: |arena| Made::Pci(Box::new(Igb::new(arena))) },
    Entry {
        name: "igbvf",
        devices: &crate::vf::IGBVF,
        make: |arena| Made::Pci(Box::new(VirtualFunction::igbvf(arena))),
    },
    Entry {
        name: "ixgbevf",
        devices: &crate::vf::IXGBEVF,
        make: |arena| Made::Pci(Box::new(VirtualFunction::ixgbevf(arena))),
    },
    Entry {
        name: "pcnet",
        devices: &crate::pcnet::DEVICES,
        make: |arena| Made::Pci(Box::new(crate::Pcnet::new(arena))),
    },
    // Both kinds: the driver asks the device. A flexible adapter is a pcnet until a driver morphs it.
    Entry {
        name: "vmxnet",
        devices: &crate::vmxnet::DEVICES,
        make: |arena| Made::Pci(Box::new(crate::Vmxnet::new(arena))),
    },
    Entry { name: "vmxnet3", devices: &vmxnet3::DEVICES, make: |arena| Made::Pci(Box::new(Vmxnet3::new(arena))) },
    // With C+ mode or without: the driver reads the revision.
    Entry { name: "rtl8139", devices: &rtl8139::DEVICES, make: |arena| Made::Pci(Box::new(Rtl8139::new(arena))) },
    Entry {
        name: "virtio-net",
        devices: &[(0x1af4, 0x1041)],
        make: |arena| Made::Rings(Box::new(VirtioNet::new(arena))),
    },
    Entry {
        name: "virtio-net-pci",
        devices: &crate::virtio_net::pci::DEVICES,
        make: |arena| Made::Pci(Box::new(crate::virtio_net::pci::VirtioPci::new(arena))),
    },
];

/// The driver for a device, by its PCI vendor and device.
pub fn find(device: (u16, u16)) -> Option<&'static Entry> {
    DRIVERS.iter().find(|entry| entry.devices.contains(&device))
}
