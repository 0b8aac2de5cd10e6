//! How a guest sees an adapter: as a PCI function, or as virtio rings.

use std::sync::Arc;

use nicety_memory::Map;
use nicety_pci::{Function, Rom};

use crate::context::Context;

/// One of the two faces.
pub enum Face<'a> {
    /// A PCI function with registers: for vfio-user, or in a VMM's own process.
    Pci(&'a mut dyn PciFace),
    /// virtio rings without registers: for vhost-user.
    Rings(&'a mut dyn RingFace),
}

impl std::fmt::Debug for Face<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Face::Pci(_) => "Pci",
            Face::Rings(_) => "Rings",
        })
    }
}

/// A part of a BAR that a guest may map and write without anybody being told. What it holds changes by itself only as
/// [`PciFace::shown`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappable {
    /// The BAR.
    pub bar: u8,
    /// First byte in it; a multiple of the page size.
    pub offset: u64,
    /// Bytes; a multiple of the page size.
    pub len: u64,
    /// Whether it is mapped unless the port says otherwise.
    pub usual: bool,
}

/// Registers behind a PCI function.
pub trait PciFace {
    /// Configuration space, BARs and capabilities.
    fn function(&self) -> &Function;

    /// A write to configuration space. Reads are [`Function::config_read`]'s.
    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>);

    /// A read of 1, 2, 4 or 8 bytes (or a block copy) at any offset. What is not there reads as ones.
    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>);

    /// A write of 1, 2, 4 or 8 bytes (or a block copy) at any offset. What is not there is ignored, and counted.
    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>);

    /// Whether its doorbells can be mapped.
    fn mappable(&self) -> Option<Mappable> {
        None
    }

    /// Where in that part registers of 32 bits lie: offsets from its first byte, in the order in which writes to several of
    /// them are to be found.
    fn doorbells(&self) -> Vec<u32> {
        Vec::new()
    }

    /// What each of these registers holds, in the same order, for the guest to read there. False if the adapter itself writes
    /// into the page what the guest is to see, as [`Context::page`] lets it.
    fn shown(&self, _words: &mut [u32]) -> bool {
        false
    }

    /// A part of a BAR that holds nothing, of a device whose driver takes register writes for done when the next
    /// instruction runs: a VMM that posts writes, as QEMU does, posts none to a device that has a part to be mapped.
    fn spare(&self) -> Option<Mappable> {
        None
    }

    /// The bytes behind [`nicety_pci::ROM_BAR`], if it has an option ROM: read by the transport, never written.
    fn rom(&self) -> Option<&Rom> {
        None
    }
}

/// Where a virtio ring lies, in the guest's bus addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPlace {
    /// Descriptors: at most 32768, and a power of two unless the ring is a packed one.
    pub size: u16,
    /// Descriptor table, or ring (packed).
    pub descriptors: u64,
    /// Driver area (split: available ring; packed: event suppression).
    pub driver: u64,
    /// Device area (split: used ring; packed: event suppression).
    pub device: u64,
}

/// virtio rings, as a vhost-user front end configures them.
pub trait RingFace {
    /// The device features on offer (virtio bit numbers; bits up to 127).
    fn features(&self) -> u128;

    /// The features that the driver took: a subset of the offer, or nothing changes and it is false.
    fn take_features(&mut self, features: u128) -> bool;

    /// Rings, control queue included.
    fn rings(&self) -> u16;

    /// Places a stopped ring. False if the place is impossible.
    fn place(&mut self, ring: u16, place: RingPlace) -> bool;

    /// Starts a ring at this available index (for packed rings: two places with their wrap counters, as vhost-user has them).
    fn start(&mut self, ring: u16, base: u32, cx: &mut Context<'_>) -> bool;

    /// Stops a ring; returns where it stood.
    fn stop(&mut self, ring: u16, cx: &mut Context<'_>) -> u32;

    /// Keeps in a file of so many pages, a page a ring, what a server needs to know that takes over from one that was killed; or no longer.
    fn keep(&mut self, _file: Option<Arc<Map>>) {}

    /// Enables or disables a started ring: a disabled receive ring drops, a disabled transmit ring is not served.
    fn enable(&mut self, ring: u16, on: bool, cx: &mut Context<'_>);

    /// The driver rang.
    fn kick(&mut self, ring: u16, cx: &mut Context<'_>);

    /// Reads the device configuration space. False, and `data` as it was, if that does not lie within.
    fn config(&self, offset: u32, data: &mut [u8]) -> bool;
}
