//! Virtual network adapters, a folder per family, and the registry through which all else finds them: the program, the conformance
//! suite, the hostile guest, the fuzzer, the lab and the documentation.
//!
//! A new adapter needs a folder here and a line in [`REGISTRY`].
#![forbid(unsafe_code)]

pub mod about;
pub mod intel;
pub mod lance;
mod microwire;
mod msix;
pub mod ne2000;
mod pieces;
pub mod rtl8139;
pub mod virtio_net;
pub mod vmxnet;
pub mod vmxnet3;

use nicety_adapter::Adapter;
use nicety_adapter::trace::{Region, RegisterName};
use nicety_frame::Mac;
use nicety_pci::Rom;

use intel::{e1000, e1000e, igb};

pub use about::{About, Boot, Kind, Since, Sources, UBoot};

/// Descriptors that a packet's bytes pay for in the fairness between ports: Linux's longest virtio-net chain, plus one for an
/// indirect table.
const STEPS_PAID: u32 = 20;

/// Settings that a port gives its adapter when it is created.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The permanent address.
    pub mac: Mac,
    /// The largest MTU in bytes on this port. Adapters whose devices announce an MTU announce it (virtio-net).
    pub mtu: Option<u16>,
    /// Maximum number of queue pairs, for adapters with several; `None`: the adapter's default.
    pub queues: Option<u16>,
    /// Option ROM for network boot.
    pub rom: Option<Rom>,
    /// PCI subsystem vendor and device instead of the chip's, for adapters with [`About::vmware_subsystem`].
    pub subsystem: Option<(u16, u16)>,
    /// The adapter is a standby for another adapter of the guest with the same address. For adapters that can announce it
    /// (virtio-net).
    pub standby: bool,
}

impl Settings {
    /// Settings with this address and defaults for the rest.
    pub fn new(mac: Mac) -> Self {
        Self { mac, mtu: None, queues: None, rom: None, subsystem: None, standby: false }
    }
}

/// Why an adapter could not be created with these settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// A multicast or zero address.
    #[error("{0} is not the address of one station: its first byte must be even, and not all bytes zero")]
    Address(Mac),
    /// More queues than the device has.
    #[error("{adapter} has 1 to {most} queue pairs, not {asked}")]
    Queues {
        /// The adapter.
        adapter: &'static str,
        /// Queue pairs requested.
        asked: u16,
        /// Queue pairs that the adapter supports.
        most: u16,
    },
    /// The option ROM is for another device.
    #[error("the option ROM does not fit: {0}")]
    Rom(String),
    /// An internal error in the device's own description.
    #[error("{adapter} cannot be described: {why}")]
    Description {
        /// The adapter.
        adapter: &'static str,
        /// The error.
        why: String,
    },
}

/// One adapter of the registry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its description.
    pub about: &'static About,
    /// Creates an adapter in its power-on state.
    pub create: fn(&Settings) -> Result<Box<dyn Adapter>, CreateError>,
    /// Data-sheet name of the register at an offset, if there is one.
    pub register: fn(Region, u64) -> Option<RegisterName>,
}

/// The registry entry of a chip model, which is data of its family's adapter.
macro_rules! chip {
    ($family:ident, $model:ident) => {
        Entry {
            about: &$family::models::$model.about,
            create: |settings| $family::create(&$family::models::$model, settings),
            register: |region, offset| $family::models::$model.registers.name(region, offset),
        }
    };
}

/// All adapters.
pub const REGISTRY: &[Entry] = &[
    chip!(e1000, I82540EM),
    chip!(e1000, I82545EM),
    chip!(e1000, I82544GC),
    Entry {
        about: &e1000e::ABOUT,
        create: e1000e::create,
        register: |region, offset| e1000e::registers::M82574.name(region, offset),
    },
    Entry {
        about: &igb::ABOUT,
        create: igb::create,
        register: |region, offset| igb::registers::M82576.name(region, offset),
    },
    chip!(lance, PCNET),
    chip!(lance, VLANCE),
    Entry { about: &lance::models::FLEXIBLE.about, create: vmxnet::flexible::create, register: vmxnet::flexible::name },
    Entry { about: &ne2000::ABOUT, create: ne2000::create, register: ne2000::registers::name },
    chip!(rtl8139, C_PLUS),
    chip!(rtl8139, C),
    chip!(vmxnet, VMXNET2),
    chip!(vmxnet, VMXNET),
    Entry {
        about: &vmxnet3::ABOUT,
        create: vmxnet3::create,
        register: |region, offset| vmxnet3::registers::REGISTERS.name(region, offset),
    },
    Entry { about: &virtio_net::ABOUT, create: virtio_net::create, register: |_, _| None },
    Entry {
        about: &virtio_net::pci::ABOUT,
        create: virtio_net::pci::create,
        register: |region, offset| virtio_net::pci::TABLE.name(region, offset),
    },
];

/// Finds an adapter by its name.
pub fn find(name: &str) -> Option<&'static Entry> {
    REGISTRY.iter().find(|entry| entry.about.name == name)
}
