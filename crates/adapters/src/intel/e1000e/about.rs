//! Description of the adapter.

use crate::about::{About, Boot, Kind, Since, Sources, UBoot};

/// Description of the 82574L.
pub static ABOUT: About = About {
    name: "e1000e",
    chip: "Intel 82574L",
    kind: Kind::Emulated,
    pci: (0x8086, 0x10d3),
    stands_by: false,
    vmware_subsystem: Some((0x15ad, 0x07d0)),
    link_mbps: 1000,
    link_unless: None,
    offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "vlan-insert", "vlan-strip", "vlan-filter", "rss"],
    queues: super::r::QUEUES as u16,
    mtu_max: 9212,
    announces_mtu: false,
    promiscuous: true,
    dma: true,
    boot: Boot { rom: Some("e1000e"), u_boot: Some(UBoot { device: "e1000#0", in_debians: true }) },
    linux: Since {
        driver: "e1000e",
        version: "2.6.27",
        source: "torvalds/linux of 2008, e1000e: Add support for new 82574L part",
    },
    windows: Since {
        driver: "Intel 82574L",
        version: "8 and Server 2012",
        source: "VMware knowledge base 1001805, Choosing a network adapter: E1000E, default for Windows 8 and newer",
    },
    sources: Sources {
        chip: "Intel 317694, 82574 GbE Controller Family Datasheet",
        pci: "Linux drivers/net/ethernet/intel/e1000e/hw.h, E1000_DEV_ID_82574L",
        link: "Intel 317694, section 10.2.2: the highest speed that STATUS can show",
        offloads: "Intel 317694, sections 7.1 and 7.2",
        queues: "Intel 317694, chapter 10: the registers of two rings each way",
        mtu: "Linux drivers/net/ethernet/intel/e1000e, e1000_82574_info and e1000_probe: DEFAULT_JUMBO, less header, tag and check sequence",
    },
    qemu: Some("e1000e"),
    transports: &["vfio-user"],
};
