//! The two chips of the family, each as data.

use super::registers::{CPLUS, PLAIN, Table};
use crate::about::{About, Boot, Kind, Since, Sources, UBoot};

/// PCI vendor number.
pub const REALTEK: u16 = 0x10ec;
/// PCI device number of both chips.
pub const DEVICE: u16 = 0x8139;

const WINDOWS: &str = "QEMU hw/net/rtl8139.c, whose comments say what Windows's own driver for its model accesses";

/// Differences between the chips of the family.
#[derive(Debug)]
pub struct Model {
    /// Description, with its name in host files and its PCI identity.
    pub about: About,
    /// PCI revision, by which drivers distinguish them.
    pub revision: u8,
    /// Its registers.
    pub registers: &'static Table,
    /// Whether it has C+ mode: descriptor rings.
    pub rings: bool,
}

/// The 8139C+: rings of descriptors with offloads, and the plain mode.
pub static C_PLUS: Model = Model { about: ABOUT_CPLUS, revision: 0x20, registers: &CPLUS, rings: true };

/// The 8139C: four transmit slots and a receive buffer.
pub static C: Model = Model {
    about: About {
        name: "rtl8139-plain",
        chip: "Realtek RTL8139C",
        offloads: &[],
        mtu_max: 1770,
        linux: Since {
            driver: "8139too",
            version: "2.4",
            source: "the head of Linux's 8139too.c, whose copyright begins in 2000, before 2.4.0",
        },
        windows: Since { driver: "Realtek RTL8139", version: "XP", source: WINDOWS },
        sources: Sources {
            offloads: "Realtek RTL8139C(L) 1.4: its transmit slots have no bits for them",
            mtu: "Linux 8139too.c: MAX_ETH_FRAME_SIZE 1792, less header, tag and check sequence",
            ..ABOUT_CPLUS.sources
        },
        qemu: None,
        ..ABOUT_CPLUS
    },
    revision: 0x10,
    registers: &PLAIN,
    rings: false,
};

const ABOUT_CPLUS: About = About {
    name: "rtl8139",
    chip: "Realtek RTL8139C+",
    kind: Kind::Emulated,
    pci: (REALTEK, DEVICE),
    stands_by: false,
    vmware_subsystem: None,
    link_mbps: 100,
    link_unless: None,
    offloads: &["tx-checksum (IPv4)", "rx-checksum", "tso4", "vlan-insert", "vlan-strip"],
    queues: 1,
    mtu_max: 4096,
    announces_mtu: false,
    promiscuous: true,
    dma: true,
    boot: Boot { rom: Some("rtl8139"), u_boot: Some(UBoot { device: "RTL8139#0", in_debians: false }) },
    linux: Since {
        driver: "8139cp",
        version: "2.4",
        source: "the head of Linux's 8139cp.c, whose copyright begins in 2001",
    },
    windows: Since { driver: "Realtek RTL8139", version: "XP", source: WINDOWS },
    sources: Sources {
        chip: "Realtek RTL8139C(L) 1.4; for C+ mode Linux 8139cp.c and Realtek RTL8169 1.21, whose descriptors are the same",
        pci: "Linux include/linux/pci_ids.h, PCI_DEVICE_ID_REALTEK_8139",
        link: "Realtek RTL8139C(L) 1.4: 10/100 Mbit/s",
        offloads: "Linux 8139cp.c, cp_init_one",
        queues: "Linux 8139cp.c: one ring each way (the high-priority ring is not used)",
        mtu: "Linux 8139cp.c, CP_MAX_MTU",
    },
    qemu: Some("rtl8139"),
    transports: &["vfio-user"],
};
