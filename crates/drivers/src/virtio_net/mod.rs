//! virtio-net (virtio 1.2, section 5.1) on its bare rings, as a vhost-user front end presents them: one pair of split
//! rings, mergeable receive buffers, checksums and segmentation both ways, events instead of flags, tables for packets of
//! several buffers.
//!
//! ```text
//! arena:  receive ring ─ 4 KB for each descriptor ─ transmit ring ─ 8 KB and a table for each descriptor
//! ```
//!
//! Sent packets interrupt only when the ring was full; received ones when polling is over. Rings are reached through
//! [`RingBus`], so that a rig in this process and a socket serve alike. A received packet whose checksum the sender left
//! to be made is handed on as it is: within one host it is not needed. Not driven: several pairs, the control queue,
//! packed rings, receive filters.

mod features;
mod header;
pub mod pci;
mod receive;
mod ring;
mod transmit;

use std::sync::Arc;

use nicety_adapter::{BusError, InterruptKind, Offload, RingPlace};
use nicety_frame::Mac;
use nicety_memory::Map;

use self::receive::Receive;
use self::transmit::Transmit;
use crate::{Arena, DriverError, Features, Sink};

/// Descriptors of each ring, unless chosen otherwise: QEMU's number.
const SIZE: u16 = 256;
/// Section 2.7: a power of two; this driver's buffers are numbered with 16 bits, two for each descriptor.
const SIZES: std::ops::RangeInclusive<u16> = 32..=16_384;
const SEGMENT_BYTES: u32 = 65_535;
/// Section 5.1.4: address, status.
const CONFIG_MAC: u32 = 0;
const CONFIG_STATUS: u32 = 6;
const STATUS_LINK: u16 = 1;

/// The ring that packets come by.
pub const RECEIVE: u16 = 0;
/// The ring that packets leave by.
pub const TRANSMIT: u16 = 1;

/// virtio rings, seen from their driver.
pub trait RingBus {
    /// Takes those of the wanted features (virtio bit numbers) that are on offer, and says which. Rings are stopped.
    fn negotiate(&mut self, wanted: u64) -> Result<u64, BusError>;

    /// Reads device configuration space.
    fn config(&mut self, offset: u32, data: &mut [u8]) -> Result<(), BusError>;

    /// The guest's memory.
    fn memory(&self) -> &Arc<Map>;

    /// Starts an empty ring, and enables it.
    fn start(&mut self, ring: u16, place: RingPlace) -> Result<(), BusError>;

    /// Stops a ring. One that is not started stays so.
    fn stop(&mut self, ring: u16) -> Result<(), BusError>;

    /// Tells the device of what was added to a ring.
    fn kick(&mut self, ring: u16) -> Result<(), BusError>;
}

/// The driver. Its methods are those of [`Driver`](crate::Driver), on another bus.
#[derive(Debug)]
pub struct VirtioNet {
    arena: Arena,
    size: u16,
    known: u64,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    taken: u64,
    transmit: Transmit,
    receive: Receive,
}

impl VirtioNet {
    /// A driver that will use this memory: some 4 MB of it.
    pub fn new(arena: Arena) -> VirtioNet {
        VirtioNet::with(arena, SIZE, u64::MAX)
    }

    /// With rings of this many descriptors (32 to 16384, else the nearest), and no features but these.
    pub fn with(arena: Arena, size: u16, features: u64) -> VirtioNet {
        VirtioNet {
            arena,
            size: size.clamp(*SIZES.start(), *SIZES.end()).next_power_of_two(),
            known: features::KNOWN & features,
            memory: Map::empty(),
            mac: Mac([0; 6]),
            link: false,
            taken: 0,
            transmit: Transmit::default(),
            receive: Receive::default(),
        }
    }

    /// As [`Driver::mac`](crate::Driver::mac). A device that does not tell one has none here.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// As [`Driver::features`](crate::Driver::features).
    pub fn features(&self) -> Features {
        let segment = features::has(self.taken, features::HOST_TSO4);
        Features {
            checksum: features::has(self.taken, features::CHECKSUM),
            segment_bytes: if segment { SEGMENT_BYTES } else { 0 },
            interrupts: InterruptKind::Msix(2),
        }
    }

    /// As [`Driver::link`](crate::Driver::link): as it was when the driver was opened.
    pub fn link(&self) -> bool {
        self.link
    }

    /// As [`Driver::open`](crate::Driver::open).
    pub fn open(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        for ring in [RECEIVE, TRANSMIT] {
            bus.stop(ring)?;
        }
        self.taken = bus.negotiate(self.known)?;
        if !features::has(self.taken, features::VERSION_1) {
            return Err(DriverError::Device("is older than version 1 of virtio"));
        }
        if self.taken & features::LONG != 0 && !features::has(self.taken, features::MERGEABLE) {
            return Err(DriverError::Device("sends long packets without merging buffers"));
        }
        if features::has(self.taken, features::MAC) {
            bus.config(CONFIG_MAC, &mut self.mac.0)?;
        }
        self.look_at_link(bus)?;
        // Every time it is opened, the driver has all of its memory anew.
        let mut arena = self.arena;
        self.receive = Receive::new(&self.memory, &mut arena, self.size, self.taken)?;
        self.transmit = Transmit::new(&self.memory, &mut arena, self.size, self.taken)?;
        self.transmit.ring.mute(&self.transmit.ring.window(&self.memory)?);
        bus.start(TRANSMIT, self.transmit.ring.place())?;
        bus.start(RECEIVE, self.receive.ring.place())?;
        self.refill(bus)
    }

    /// Configuration has changed.
    fn look_at_link(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        self.link = true;
        if features::has(self.taken, features::STATUS) {
            let mut status = [0; 2];
            bus.config(CONFIG_STATUS, &mut status)?;
            self.link = u16::from_le_bytes(status) & STATUS_LINK != 0;
        }
        Ok(())
    }

    /// As [`Driver::interrupt`](crate::Driver::interrupt): a ring's call came.
    pub fn interrupt(&mut self, _bus: &mut dyn RingBus, ring: u16) -> Result<bool, DriverError> {
        match ring {
            RECEIVE => self.receive.ring.quiet(&self.receive.ring.window(&self.memory)?),
            TRANSMIT => self.transmit.ring.mute(&self.transmit.ring.window(&self.memory)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// As [`Driver::receive`](crate::Driver::receive).
    pub fn receive(&mut self, bus: &mut dyn RingBus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        self.transmit.reclaim(&self.memory)?;
        let mut packets = 0;
        while packets < budget {
            let Some(received) = self.receive.next(&self.memory)? else { break };
            packets += 1;
            sink(self.receive.packet(), received);
        }
        if packets > 0 {
            self.refill(bus)?;
        }
        Ok(packets)
    }

    fn refill(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        if self.receive.refill(&self.memory)? {
            bus.kick(RECEIVE)?;
        }
        Ok(())
    }

    /// As [`Driver::transmit`](crate::Driver::transmit).
    pub fn transmit(&mut self, _bus: &mut dyn RingBus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        self.transmit.queue(&self.memory, packet, offload)
    }

    /// As [`Driver::flush`](crate::Driver::flush).
    pub fn flush(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        let window = self.transmit.ring.window(&self.memory)?;
        if self.transmit.ring.must_tell(&window) {
            bus.kick(TRANSMIT)?;
        }
        Ok(())
    }

    /// As [`Driver::rest`](crate::Driver::rest).
    pub fn rest(&mut self, _bus: &mut dyn RingBus) -> Result<bool, DriverError> {
        let window = self.receive.ring.window(&self.memory)?;
        Ok(self.receive.ring.arm(&window, 0))
    }

    /// As [`Driver::close`](crate::Driver::close).
    pub fn close(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        for ring in [RECEIVE, TRANSMIT] {
            bus.stop(ring)?;
        }
        self.link = false;
        Ok(())
    }
}
