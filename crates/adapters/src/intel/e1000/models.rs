//! The chips of the family, each as data. Facts of a chip: Intel 317453, and Linux drivers/net/ethernet/intel/e1000.

use super::registers::{M82540, M82544};
use crate::about::{About, Boot, Kind, Since, Sources, UBoot};
use crate::intel::eeprom::Image;
use crate::intel::mac::model::{INTEL, Model};
use crate::intel::phy::{Rule, m88e1000};

/// The PHY of the 82540 and the 82545: M88E1011_I_PHY_ID in Linux's e1000_hw.h.
static M88E1011: [Rule; 18] = m88e1000(0x0c20);
/// The PHY of the 82544: M88E1000_I_PHY_ID.
static M88E1000: [Rule; 18] = m88e1000(0x0c30);

/// The 82540EM on Intel's PRO/1000 MT Desktop.
pub static I82540EM: Model = Model {
    about: ABOUT_82540EM,
    revision: 2,
    subsystem: 0x001e,
    registers: &M82540,
    queues: 1,
    vectors: 0,
    pages: None,
    nvm: Image { size: 64, words: &words(0x100e, 0x001e) },
    phy: &M88E1011,
};

/// The 82545EM on Intel's PRO/1000 MT Server Adapter, VMware's "e1000".
pub static I82545EM: Model = Model {
    about: About {
        name: "e1000-82545em",
        qemu: Some("e1000-82545em"),
        chip: "Intel 82545EM",
        pci: (INTEL, 0x100f),
        sources: Sources {
            pci: "Linux drivers/net/ethernet/intel/e1000/e1000_hw.h, E1000_DEV_ID_82545EM_COPPER",
            ..ABOUT_82540EM.sources
        },
        ..ABOUT_82540EM
    },
    revision: 1,
    subsystem: 0x1001,
    registers: &M82540,
    queues: 1,
    vectors: 0,
    pages: None,
    nvm: Image { size: 64, words: &words(0x100f, 0x1001) },
    phy: &M88E1011,
};

/// The 82544 on Intel's PRO/1000 XT Server Adapter, the first of the family: no throttle, no absolute delays.
pub static I82544GC: Model = Model {
    about: About {
        name: "e1000-82544gc",
        qemu: Some("e1000-82544gc"),
        chip: "Intel 82544GC/EI",
        pci: (INTEL, 0x1008),
        sources: Sources {
            pci: "Linux drivers/net/ethernet/intel/e1000/e1000_hw.h, E1000_DEV_ID_82544EI_COPPER: one chip in two packages",
            ..ABOUT_82540EM.sources
        },
        ..ABOUT_82540EM
    },
    revision: 2,
    subsystem: 0x1107,
    registers: &M82544,
    queues: 1,
    vectors: 0,
    pages: None,
    nvm: Image { size: 64, words: &words(0x1008, 0x1107) },
    phy: &M88E1000,
};

/// EEPROM words of a copper adapter (5.6).
const fn words(device: u16, subsystem: u16) -> [(usize, u16); 12] {
    [
        (0x03, 0),
        (0x05, 0x0100),
        // Signature 01 in bits 15:14; identifiers are loaded from here (5.6.9).
        (0x0a, 0x6403),
        (0x0b, subsystem),
        (0x0c, INTEL),
        (0x0d, device),
        (0x0e, INTEL),
        // Advertises pause in both directions (5.6.14).
        (0x0f, 0x3040),
        // No wake-up: bit 10 clear (5.6.21).
        (0x20, 0x1008),
        (0x21, 0),
        (0x24, 0),
        (0x2f, 0x0602),
    ]
}

/// Description of the 82540EM.
const ABOUT_82540EM: About = About {
    name: "e1000",
    chip: "Intel 82540EM",
    kind: Kind::Emulated,
    pci: (INTEL, 0x100e),
    stands_by: false,
    vmware_subsystem: Some((0x15ad, 0x0750)),
    link_mbps: 1000,
    link_unless: None,
    offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "vlan-insert", "vlan-strip", "vlan-filter"],
    queues: 1,
    mtu_max: 16_110,
    announces_mtu: false,
    promiscuous: true,
    dma: true,
    boot: Boot { rom: Some("e1000"), u_boot: Some(UBoot { device: "e1000#0", in_debians: true }) },
    linux: Since {
        driver: "e1000",
        version: "2.4.19",
        source: "VMware, vSphere 6.7 Virtual Machine Administration, Network Adapter Types, of its 82545EM: same driver",
    },
    windows: Since {
        driver: "Intel PRO/1000",
        version: "XP x64 and Server 2003",
        source: "VMware knowledge base 1001805, Choosing a network adapter, of its 82545EM",
    },
    sources: Sources {
        chip: "Intel 317453, PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual",
        pci: "Linux drivers/net/ethernet/intel/e1000/e1000_hw.h, E1000_DEV_ID_82540EM",
        link: "Intel 317453, section 13.4.2: the highest speed that STATUS can show",
        offloads: "Intel 317453, sections 3.3.6 and 9, and RXCSUM in 13.5.3",
        queues: "Intel 317453, chapter 13: the registers of one ring each way",
        mtu: "Linux e1000_main.c, e1000_probe: MAX_JUMBO_FRAME_SIZE, less header and check sequence",
    },
    qemu: Some("e1000"),
    transports: &["vfio-user"],
};
