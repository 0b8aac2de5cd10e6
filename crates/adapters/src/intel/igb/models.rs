//! The chips of the family, each as data. Facts of a chip: its datasheet, and Linux drivers/net/ethernet/intel/igb.

use std::sync::LazyLock;

use super::registers as r;
use crate::about::{About, Boot, Kind, Since, Sources};
use crate::intel::eeprom::Image;
use crate::intel::mac::model::{INTEL, Model};
use crate::intel::pages::{GIGABIT, Pages};
use crate::intel::phy::IGP03E1000;

/// The 82576's device number with a copper PHY.
const DEVICE: u16 = 0x10c9;
/// The 82576's card: Gigabit ET Dual Port Server Adapter (pci.ids).
const CARD: u16 = 0xa03c;

/// Pages of its first four queues. The others' registers, at 0xc000 and 0xe000, are trapped.
static PAGES_82576: LazyLock<Pages> = LazyLock::new(|| Pages::of(&r::M82576, GIGABIT));

/// The 82576 on a copper adapter.
pub static I82576: Model = Model {
    about: About {
        name: "igb",
        chip: "Intel 82576",
        kind: Kind::Emulated,
        pci: (INTEL, DEVICE),
        stands_by: false,
        vmware_subsystem: None,
        link_mbps: 1000,
        link_unless: None,
        offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "vlan-insert", "vlan-strip", "vlan-filter", "rss"],
        queues: 16,
        mtu_max: 9216,
        announces_mtu: false,
        promiscuous: true,
        dma: true,
        boot: Boot { rom: Some("e1000e"), u_boot: None },
        linux: Since {
            driver: "igb",
            version: "2.6.28",
            source: "Linux, igb: add 82576 MAC support (2008), in 2.6.28's drivers/net/igb/e1000_82575.c",
        },
        windows: Since {
            driver: "Intel Gigabit ET",
            version: "Server 2008 R2",
            source: "Intel, Gigabit ET Dual Port Server Adapter, product brief: operating systems",
        },
        sources: Sources {
            chip: "Intel, 82576EB Gigabit Ethernet Controller Datasheet",
            pci: "Linux drivers/net/ethernet/intel/igb/e1000_hw.h, E1000_DEV_ID_82576",
            link: "82576EB datasheet, 8.2.2: the highest speed that STATUS can show",
            offloads: "82576EB datasheet, 7.2.4 and 7.1.10, and RXCSUM in 8.10.10",
            queues: "82576EB datasheet, features: 16 queues each way; Linux igb.h, IGB_MAX_RX_QUEUES: 8 of them",
            mtu: "Linux igb.h, MAX_STD_JUMBO_FRAME_SIZE: what its driver takes",
        },
        qemu: Some("igb"),
        transports: &["vfio-user"],
    },
    revision: 1,
    subsystem: CARD,
    registers: &r::M82576,
    queues: 16,
    // 7.3.2.
    vectors: 25,
    pages: Some(&PAGES_82576),
    // Chapter 6.
    nvm: Image {
        size: 256,
        words: &[
            (0x03, 0x0034),
            (0x05, 0x1020),
            // Signature 01 in bits 15:14; identifiers are loaded from here.
            (0x0a, 0x640b),
            (0x0b, CARD),
            (0x0c, INTEL),
            (0x0d, DEVICE),
            (0x0e, INTEL),
            // Advertises pause in both directions; full duplex.
            (0x0f, 0x70c3),
            (0x10, 0x0004),
            (0x11, DEVICE),
            (0x12, 0x5c00),
            (0x13, 0x0000),
            // No wake-up, no management.
            (0x14, 0x2080),
            (0x16, 0x4a40),
            (0x1e, 0x0001),
            (0x1f, 0x0602),
            (0x20, 0x0004),
            (0x24, 0x2080),
            (0x25, 0x0000),
            (0x26, 0x10ca),
            // No second address.
            (0x37, 0xffff),
            // Version: 1.02, image 0.
            (0x42, 0x0000),
            (0x43, 0x0000),
        ],
    },
    phy: &IGP03E1000,
};

const _: () = assert!(I82576.queues <= r::QUEUES && I82576.vectors <= r::VECTORS);
