//! The registry: a line for each adapter.

use nicety_adapter::Adapter;
use nicety_adapter::family::{Family, FunctionPolicy};
use nicety_adapter::trace::{Region, RegisterName};

use crate::about::About;
use crate::intel::{e1000, e1000e, igb, vf};
use crate::settings::{CreateError, Settings};
use crate::{lance, ne2000, rtl8139, virtio_net, vmxnet, vmxnet3};

/// One adapter of the registry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its description.
    pub about: &'static About,
    /// Creates an adapter in its power-on state.
    pub create: fn(&Settings) -> Result<Box<dyn Adapter>, CreateError>,
    /// Data-sheet name of the register at an offset, if there is one.
    pub register: fn(Region, u64) -> Option<RegisterName>,
    /// The card of adapters that are functions of one.
    pub card: Option<Card>,
}

/// A card with functions.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Most functions.
    pub functions: u16,
    /// Creates the family of functions with these policies. [`Entry::create`] makes each function.
    pub family: fn(Vec<FunctionPolicy>) -> Box<dyn Family>,
}

/// The registry entry of a chip model, which is data of its family's adapter.
macro_rules! chip {
    ($family:ident, $model:ident) => {
        Entry {
            about: &$family::models::$model.about,
            create: |settings| $family::create(&$family::models::$model, settings),
            register: |region, offset| $family::models::$model.registers.name(region, offset),
            card: None,
        }
    };
}

/// The registry entry of a virtual function's model.
macro_rules! function {
    ($model:ident) => {
        Entry {
            card: Some(Card {
                functions: vf::models::$model.functions,
                family: |policies| Box::new((vf::models::$model.card)(policies)),
            }),
            ..chip!(vf, $model)
        }
    };
}

/// All adapters.
pub const REGISTRY: &[Entry] = &[
    chip!(e1000, I82540EM),
    chip!(e1000, I82545EM),
    chip!(e1000, I82544GC),
    chip!(e1000e, I82574L),
    chip!(igb, I82576),
    function!(IGBVF),
    function!(IXGBEVF),
    chip!(lance, PCNET),
    chip!(lance, VLANCE),
    Entry {
        about: &lance::models::FLEXIBLE.about,
        create: vmxnet::flexible::create,
        register: vmxnet::flexible::name,
        card: None,
    },
    Entry { about: &ne2000::ABOUT, create: ne2000::create, register: ne2000::registers::name, card: None },
    chip!(rtl8139, C_PLUS),
    chip!(rtl8139, C),
    chip!(vmxnet, VMXNET2),
    chip!(vmxnet, VMXNET),
    Entry {
        about: &vmxnet3::ABOUT,
        create: vmxnet3::create,
        register: |region, offset| vmxnet3::registers::REGISTERS.name(region, offset),
        card: None,
    },
    Entry { about: &virtio_net::ABOUT, create: virtio_net::create, register: |_, _| None, card: None },
    Entry {
        about: &virtio_net::pci::ABOUT,
        create: virtio_net::pci::create,
        register: |region, offset| virtio_net::pci::TABLE.name(region, offset),
        card: None,
    },
];

/// Finds an adapter by its name.
pub fn find(name: &str) -> Option<&'static Entry> {
    REGISTRY.iter().find(|entry| entry.about.name == name)
}
