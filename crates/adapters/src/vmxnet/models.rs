//! The family's models as data: the first vmxnet, and the enhanced one, commonly called vmxnet2. They share a protocol; the driver
//! finds the second one's extensions by features and capabilities.

use super::registers::{self as r, Table, capability, feature};
use crate::about::{About, Boot, Kind, Since, Sources};

/// PCI vendor number.
pub const VMWARE: u16 = 0x15ad;

/// Differences between the models.
#[derive(Debug)]
pub struct Model {
    /// Description, with its name in host files and its PCI identity.
    pub about: About,
    /// Its registers.
    pub registers: &'static Table,
    /// Answer of GET_FEATURES.
    pub features: u32,
    /// Answer of GET_CAPABILITIES.
    pub capabilities: u32,
    /// Answer of GET_NUM_RX_BUFFERS: the maximum that drivers use. The second receive ring has up to 2048.
    pub receive_buffers: u32,
    /// Answer of GET_NUM_TX_BUFFERS.
    pub transmit_buffers: u32,
}

impl Model {
    /// Whether packets may be longer than a frame of an MTU of 1500: its driver tests features.
    pub fn is_enhanced(&self) -> bool {
        self.features & feature::JUMBO_FRAME != 0
    }
}

const CAPABILITIES: u32 = capability::SG
    | capability::IP4_CSUM
    | capability::HW_CSUM
    | capability::HIGH_DMA
    | capability::VMXNET_APROM
    | capability::ENABLE_HEADER_COPY;
const ENHANCED: u32 = capability::TSO | capability::TX_CHAIN | capability::RX_CHAIN | capability::LPD;

/// The first vmxnet.
pub static VMXNET: Model = Model {
    about: ABOUT,
    registers: &r::VMXNET,
    features: feature::ZERO_COPY_TX,
    capabilities: CAPABILITIES,
    receive_buffers: 128,
    transmit_buffers: 128,
};

/// The enhanced vmxnet.
pub static VMXNET2: Model = Model {
    about: About {
        name: "vmxnet2",
        chip: "VMware enhanced vmxnet",
        offloads: &["tx-checksum", "rx-checksum", "tso4", "lro"],
        mtu_max: 16 * 1024 - 18,
        ..ABOUT
    },
    registers: &r::VMXNET,
    features: feature::ZERO_COPY_TX | feature::TSO | feature::JUMBO_FRAME | feature::LPD,
    capabilities: CAPABILITIES | ENHANCED,
    receive_buffers: 512,
    transmit_buffers: 512,
};

/// The vmxnet that a [flexible](super::flexible) becomes.
pub static MORPHED: Model = Model {
    about: crate::lance::models::FLEXIBLE.about,
    registers: &r::FLEXIBLE,
    features: feature::ZERO_COPY_TX,
    capabilities: CAPABILITIES,
    receive_buffers: 128,
    transmit_buffers: 128,
};

const ABOUT: About = About {
    name: "vmxnet",
    chip: "VMware vmxnet",
    kind: Kind::Paravirtual,
    pci: (VMWARE, 0x0720),
    stands_by: false,
    vmware_subsystem: None,
    link_mbps: 1000,
    link_unless: None,
    offloads: &["tx-checksum", "rx-checksum"],
    queues: 1,
    mtu_max: 1500,
    announces_mtu: false,
    promiscuous: true,
    dma: true,
    boot: Boot { rom: None, u_boot: None },
    linux: Since {
        driver: "vmxnet",
        version: "with VMware Tools",
        source: "vmware/open-vm-tools, modules/linux/vmxnet/vmxnet.c, until version 9.10; no kernel has it",
    },
    windows: Since {
        driver: "vmxnet",
        version: "with VMware Tools",
        source: "VMware, vSphere 4 Administration Guide, Network Adapter Types: requires VMware Tools",
    },
    sources: Sources {
        chip: "open-vm-tools, modules/shared/vmxnet: vmxnet_def.h, vmxnet2_def.h, vmnet_def.h, net_sg.h, net.h (by VMware)",
        pci: "OpenBSD sys/dev/pci/pcidevs, VMWARE NET",
        link: "open-vm-tools, modules/linux/vmxnet/vmxnet.c, vmxnet_get_settings",
        offloads: "open-vm-tools, vmxnet2_def.h, Vmxnet2_TxRingEntry and Vmxnet2_RxRingEntry; vmxnet_def.h, VMXNET_FEATURE_*",
        queues: "open-vm-tools, vmxnet2_def.h, Vmxnet2_DriverData: one transmit ring",
        mtu: "open-vm-tools, modules/linux/vmxnet: PKT_BUF_SZ is 1536; enhanced: VMXNET_MAX_MTU",
    },
    qemu: None,
    transports: &["vfio-user"],
};
