//! The family's models as data: one chip, under its own name and under VMware's.

use super::registers::{AM79C970A, Table, WINDOW_BYTES};
use crate::about::{About, Boot, Kind, Since, Sources, UBoot};
use crate::vmxnet::registers::FLEXIBLE_PORTS;

/// PCI vendor number.
pub const AMD: u16 = 0x1022;

/// Differences between the models.
#[derive(Debug)]
pub struct Model {
    /// Description, with its name in host files and its PCI identity.
    pub about: About,
    /// PCI revision.
    pub revision: u8,
    /// PCI subsystem: vendor and device.
    pub subsystem: (u16, u16),
    /// Bytes of BAR 0: the chip's ports, and the board's ports after them.
    pub ports_bytes: u32,
    /// CSR88 and CSR89: version, part, manufacturer, and a one.
    pub chip_id: u32,
    /// Its registers.
    pub registers: &'static Table,
}

/// The PCnet-PCI II by itself.
pub static PCNET: Model = Model {
    about: ABOUT,
    revision: 0x10,
    subsystem: (0, 0),
    ports_bytes: WINDOW_BYTES,
    chip_id: CHIP_ID,
    registers: &AM79C970A,
};

/// The same as VMware names it.
pub static VLANCE: Model =
    Model { about: About { name: "vlance", qemu: None, ..ABOUT }, subsystem: (AMD, 0x2000), ..PCNET };

/// A vlance that can become a vmxnet: `vmxnet/flexible.rs`.
pub static FLEXIBLE: Model = Model {
    about: About { name: "flexible", chip: "Am79C970A, VMware vmxnet", qemu: None, ..ABOUT },
    ports_bytes: FLEXIBLE_PORTS,
    ..VLANCE
};

/// Version 0, part 0x2621, manufacturer 0x001 (CSR88, CSR89).
const CHIP_ID: u32 = 0x2621 << 12 | 0x001 << 1 | 1;

const ABOUT: About = About {
    name: "pcnet",
    chip: "AMD Am79C970A",
    kind: Kind::Emulated,
    pci: (AMD, 0x2000),
    stands_by: false,
    vmware_subsystem: None,
    link_mbps: 10,
    link_unless: Some("Linux's driver says half duplex, unless its option full_duplex= says otherwise"),
    offloads: &[],
    queues: 1,
    mtu_max: 1500,
    announces_mtu: false,
    promiscuous: true,
    dma: true,
    boot: Boot { rom: Some("pcnet"), u_boot: Some(UBoot { device: "pcnet#0", in_debians: false }) },
    linux: Since {
        driver: "pcnet32",
        version: "2.2",
        source: "Linux drivers/net/ethernet/amd/pcnet32.c: its authors' notes are of 1996 to 1999",
    },
    windows: Since {
        driver: "AMD PCNET Family",
        version: "2000, not from Vista on",
        source: "VMware knowledge base 1001805, Choosing a network adapter, of vlance: older 32-bit guests have its driver",
    },
    sources: Sources {
        chip: "AMD 19436, Am79C970A PCnet-PCI II Single-Chip Full-Duplex Ethernet Controller for PCI Local Bus",
        pci: "Linux include/linux/pci_ids.h, PCI_DEVICE_ID_AMD_LANCE; AMD 19436, PCI Configuration Registers",
        link: "AMD 19436, Distinctive Characteristics: 10BASE-T",
        offloads: "AMD 19436, descriptors: there are none",
        queues: "AMD 19436, CSR24 to CSR31: one ring each way",
        mtu: "IEEE 802.3; AMD 19436, CSR0.BABL: longer frames are an error",
    },
    qemu: Some("pcnet"),
    transports: &["vfio-user"],
};
