//! The chips of the family, each as data. Facts of a chip: its datasheet, and Linux drivers/net/ethernet/intel/e1000e.

use std::sync::LazyLock;

use super::registers as r;
use crate::about::{About, Boot, Kind, Since, Sources, UBoot};
use crate::intel::eeprom::Image;
use crate::intel::mac::model::{INTEL, Model};
use crate::intel::nvm::WORDS;
use crate::intel::pages::{GIGABIT, Pages};
use crate::intel::phy::{Rule, bm};

/// The 82574L's device number.
const DEVICE: u16 = 0x10d3;
/// PCI subsystem of Intel's Gigabit CT Desktop Adapter.
const SUBSYSTEM: u16 = 0xa01f;

/// The pages of its rings.
static PAGES: LazyLock<Pages> = LazyLock::new(|| Pages::of(&r::M82574, GIGABIT));

/// The PHY: BME1000_E_PHY_ID_R2 in Linux's e1000e/defines.h.
static PHY: [Rule; 22] = bm(0x0cb1);

/// Words of the NVM that are not all ones (datasheet, chapter 6).
const CONTENTS: [(usize, u16); 14] = [
    (0x03, 0),
    (0x05, 0x1070),
    (0x08, 0),
    (0x09, 0),
    // Signature 01 in bits 15:14; identifiers are loaded from here.
    (0x0a, 0x6403),
    (0x0b, SUBSYSTEM),
    (0x0c, INTEL),
    (0x0d, DEVICE),
    (0x0e, INTEL),
    // No management: bits 14:13 clear.
    (0x0f, 0x0000),
    // The firmware has finished with these words: bit 4 (e1000_fix_nvm_checksum_82571 in Linux's e1000e/82571.c).
    (0x10, 0x0010),
    (0x1a, 0x0000),
    // The checksum needs no repair: bit 15, in the same function.
    (0x23, 0x8000),
    // No wake-up: bit 10 clear.
    (0x24, 0x0000),
];

/// The 82574L.
pub static I82574L: Model = Model {
    about: About {
        name: "e1000e",
        chip: "Intel 82574L",
        kind: Kind::Emulated,
        pci: (INTEL, DEVICE),
        stands_by: false,
        vmware_subsystem: Some((0x15ad, 0x07d0)),
        link_mbps: 1000,
        link_unless: None,
        offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "vlan-insert", "vlan-strip", "vlan-filter", "rss"],
        queues: 2,
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
    },
    revision: 0,
    subsystem: SUBSYSTEM,
    registers: &r::M82574,
    queues: 2,
    vectors: 5,
    pages: Some(&PAGES),
    nvm: Image { size: WORDS, words: &CONTENTS },
    phy: &PHY,
};

const _: () = assert!(I82574L.queues <= r::QUEUES && I82574L.vectors <= r::VECTORS);
