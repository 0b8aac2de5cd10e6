//! The models: a function of an 82576, and of an 82599.

use std::sync::LazyLock;

use super::family::{FunctionPolicy, PhysicalFunction, igb, ixgbe};
use super::registers::{Table, VF82576, VF82599};
use crate::about::{About, Boot, Kind, Since, Sources};
use crate::intel::igb::virtual_functions::VF_DEVICE;
use crate::intel::pages::{GIGABIT, Pages, TEN_GIGABIT};

/// The facts in which the two chips differ.
#[derive(Debug)]
pub struct Model {
    /// Its description.
    pub about: About,
    /// Its registers.
    pub registers: &'static Table,
    /// Pairs of queues with registers.
    pub queues: usize,
    /// The pages of its registers that a guest may map.
    pub pages: &'static LazyLock<Pages>,
    /// PCI subsystem.
    pub subsystem: u16,
    /// A new card with functions of these policies.
    pub card: fn(Vec<FunctionPolicy>) -> PhysicalFunction,
    /// Most functions of a card.
    pub functions: u16,
    /// The interval between two messages of a vector, in nanoseconds, of EITR's value.
    pub interval_ns: fn(u32) -> u64,
    /// The 82599's ways: the link is in LINKS, RXDCTL strips tags, the hash selects one of two queues, the receive descriptor's
    /// checksum errors lie one bit higher, and octets have 36 bits.
    pub ten_gigabit: bool,
}

const WINDOWS: Since = Since {
    driver: "Intel Virtual Function",
    version: "with Intel's PROSet",
    source: "no system of Microsoft's is known to have the driver; Intel's PROSet brings one, not tried here",
};

static PAGES_82576: LazyLock<Pages> = LazyLock::new(|| Pages::of(&VF82576, GIGABIT));
static PAGES_82599: LazyLock<Pages> = LazyLock::new(|| Pages::of(&VF82599, TEN_GIGABIT));

/// A virtual function of an 82576.
pub static IGBVF: Model = Model {
    about: About {
        name: "igbvf",
        chip: "Intel 82576 virtual function",
        kind: Kind::Emulated,
        pci: (0x8086, VF_DEVICE),
        stands_by: false,
        vmware_subsystem: None,
        link_mbps: 1000,
        link_unless: None,
        offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "vlan-insert", "vlan-strip", "vlan-filter"],
        queues: 2,
        mtu_max: 9216,
        announces_mtu: false,
        promiscuous: false,
        dma: true,
        boot: Boot { rom: None, u_boot: None },
        linux: Since {
            driver: "igbvf",
            version: "2.6.30",
            source: "Linux, igbvf: add new driver to support 82576 virtual functions (2009), in 2.6.30's drivers/net/igbvf",
        },
        windows: WINDOWS,
        sources: Sources {
            chip: "Intel, 82576EB Gigabit Ethernet Controller Datasheet",
            pci: "Linux drivers/net/ethernet/intel/igbvf/vf.h, E1000_DEV_ID_82576_VF",
            link: "82576EB datasheet, 8.2.2: the highest speed that STATUS can show",
            offloads: "82576EB datasheet, 7.2.4 and 7.1.10",
            queues: "82576EB datasheet, 7.10.2: two queues each way for each of eight functions; Linux igbvf uses one",
            mtu: "Linux igbvf/defines.h, MAX_STD_JUMBO_FRAME_SIZE: what its driver takes",
        },
        qemu: None,
        transports: &["vfio-user"],
    },
    registers: &VF82576,
    queues: 2,
    pages: &PAGES_82576,
    // Gigabit ET Dual Port Server Adapter (pci.ids).
    subsystem: 0xa03c,
    card: igb::card,
    functions: 8,
    // 8.8.12: bits 14:2, microseconds.
    interval_ns: |value| u64::from(value >> 2 & 0x1fff) * 1000,
    ten_gigabit: false,
};

/// A virtual function of an 82599.
pub static IXGBEVF: Model = Model {
    about: About {
        name: "ixgbevf",
        chip: "Intel 82599 virtual function",
        pci: (0x8086, 0x10ed),
        link_mbps: 10_000,
        offloads: &["tx-checksum", "rx-checksum", "tso4", "tso6", "vlan-insert", "vlan-strip", "vlan-filter", "rss"],
        mtu_max: 9710,
        linux: Since {
            driver: "ixgbevf",
            version: "2.6.34",
            source: "Linux, ixgbevf: 82599 Virtual Function core functions and header (2010), in 2.6.34's drivers/net/ixgbevf",
        },
        sources: Sources {
            chip: "Intel, 82599 10 GbE Controller Datasheet",
            pci: "Linux drivers/net/ethernet/intel/ixgbevf/defines.h, IXGBE_DEV_ID_82599_VF",
            link: "82599 datasheet, VFLINKS: the highest speed that LINKS can show",
            offloads: "82599 datasheet, 7.1.2.8 (the hash); Linux ixgbevf_main.c, ixgbevf_tx_csum, ixgbevf_tso and ixgbevf_rx_checksum",
            queues: "Linux ixgbe_lib.c, ixgbe_set_vmdq_queues: with 64 pools two queues each; ixgbevf.h, IXGBEVF_MAX_RSS_QUEUES",
            mtu: "Linux ixgbe_sriov.c, ixgbe_set_vf_lpe: IXGBE_MAX_JUMBO_FRAME_SIZE of 9728, less header and check sequence",
        },
        ..IGBVF.about
    },
    registers: &VF82599,
    queues: 8,
    pages: &PAGES_82599,
    // Ethernet Server Adapter X520-2 (pci.ids).
    subsystem: 0x000c,
    card: ixgbe::card,
    functions: 64,
    // VTEITR: bits 11:3, units of 2 µs at 10 Gbit/s.
    interval_ns: |value| u64::from(value >> 3 & 0x1ff) * 2000,
    ten_gigabit: true,
};
