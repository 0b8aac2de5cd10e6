//! An adapter's interface to the guest: a PCI function, or virtio rings.

use std::sync::Arc;

use nicety_memory::Map;
use nicety_pci::{Function, Rom};
use serde::{Deserialize, Serialize};

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

/// A part of a BAR that a guest may map and write without an exit. Its content changes without a write only as [`PciFace::shown`] describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappable {
    /// The BAR.
    pub bar: u8,
    /// First byte in it; a multiple of the page size.
    pub offset: u64,
    /// Bytes; a multiple of the page size.
    pub len: u64,
    /// Whether it is mapped by default.
    pub usual: bool,
}

/// Registers behind a PCI function.
pub trait PciFace {
    /// Configuration space, BARs and capabilities.
    fn function(&self) -> &Function;

    /// Handles a write to configuration space. [`Function::config_read`] handles reads.
    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>);

    /// Handles a read of 1, 2, 4 or 8 bytes (or a block copy) at any offset. A hole reads as ones.
    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>);

    /// Handles a write of 1, 2, 4 or 8 bytes (or a block copy) at any offset. A write to a hole is ignored, and counted.
    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>);

    /// Whether its doorbells can be mapped.
    fn mappable(&self) -> Option<Mappable> {
        None
    }

    /// The offsets of the 32-bit registers in that part. Writes to several of them take effect in this order.
    fn doorbells(&self) -> Vec<u32> {
        Vec::new()
    }

    /// The values of these registers, in the same order, for the guest to read on the page. False if the adapter itself writes the
    /// guest's view into the page ([`Context::page`]).
    fn shown(&self, _words: &mut [u32]) -> bool {
        false
    }

    /// An empty part of a BAR, for a device whose driver expects a register write to be complete before its next instruction. A VMM
    /// that posts writes, as QEMU does, posts none to a device that has a mappable part.
    fn empty_page(&self) -> Option<Mappable> {
        None
    }

    /// The size in bytes of the file in which the adapter keeps the positions of its rings, in case its process is killed. 0: it needs no
    /// file.
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// Keeps the positions of the rings in this file. At the next [`Event::Lost`](crate::Event::Lost) the adapter finds them there.
    fn keep(&mut self, _file: Arc<Map>) {}

    /// The bytes behind [`nicety_pci::ROM_BAR`], if it has an option ROM: read by the transport, never written.
    fn rom(&self) -> Option<&Rom> {
        None
    }
}

/// The place of a virtio ring, in the guest's bus addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingPlace {
    /// Number of descriptors: at most 32768, and a power of two unless the ring is packed.
    pub size: u16,
    /// Descriptor table, or ring (packed).
    pub descriptors: u64,
    /// Driver area (split: available ring; packed: event suppression).
    pub driver: u64,
    /// Device area (split: used ring; packed: event suppression).
    pub device: u64,
}

/// virtio rings, as configured by a vhost-user front end.
pub trait RingFace {
    /// The offered device features (virtio bit numbers; bits up to 127).
    fn features(&self) -> u128;

    /// Sets the driver's features. False, and nothing changes, if they are not a subset of the offer.
    fn take_features(&mut self, features: u128) -> bool;

    /// The number of rings, control queue included.
    fn rings(&self) -> u16;

    /// Places a stopped ring. False if the place is invalid.
    fn place(&mut self, ring: u16, place: RingPlace) -> bool;

    /// Starts a ring at this available index (for packed rings: two positions with their wrap counters, as in vhost-user).
    fn start(&mut self, ring: u16, base: u32, cx: &mut Context<'_>) -> bool;

    /// Stops a ring; returns its position.
    fn stop(&mut self, ring: u16, cx: &mut Context<'_>) -> u32;

    /// Stops a ring like [`stop`](RingFace::stop). Its front end may soon start it again, so frames for a receive ring may wait until then.
    fn pause(&mut self, ring: u16, cx: &mut Context<'_>) -> u32 {
        self.stop(ring, cx)
    }

    /// Keeps the state of the rings in a file, a page per ring, for the next server in case this one is killed. `None` ends this.
    fn keep(&mut self, _file: Option<Arc<Map>>) {}

    /// Enables or disables a started ring. A disabled receive ring drops its frames. A disabled transmit ring discards each frame that its
    /// driver announces.
    fn enable(&mut self, ring: u16, on: bool, cx: &mut Context<'_>);

    /// The driver rang the doorbell.
    fn kick(&mut self, ring: u16, cx: &mut Context<'_>);

    /// Other adapters serve some of the device's queue pairs from now on. A control queue would have to command all of them, so the front
    /// end runs it. This adapter then offers no feature that needs a control queue.
    fn share(&mut self) {}

    /// Whether a receive ring takes frames.
    fn receives(&self) -> bool {
        true
    }

    /// Reads the device configuration space. False, with `data` unchanged, unless the whole range lies within.
    fn config(&self, offset: u32, data: &mut [u8]) -> bool;
}
