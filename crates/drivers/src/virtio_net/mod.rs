//! virtio-net (virtio 1.2, section 5.1) on its bare rings, as a vhost-user front end presents them: one pair of split rings,
//! mergeable receive buffers, checksums and segmentation in both directions, event indices instead of flags, indirect tables for
//! packets of several buffers.
//!
//! ```text
//! arena:  receive ring ─ 4 KB for each descriptor ─ transmit ring ─ 8 KB and a table for each descriptor
//! ```
//!
//! Sent packets interrupt only when the ring was full; received packets interrupt only while the driver does not poll. The driver
//! reaches its rings through [`RingBus`], so a rig in this process and a socket work alike. A received packet with a partial
//! checksum is passed on unchanged: within one host nobody needs the checksum. Not driven: several pairs, the control queue, packed
//! rings, receive filters.

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

/// Default descriptors of each ring, as in QEMU.
const SIZE: u16 = 256;
/// Section 2.7: a power of two. This driver numbers its buffers, two for each descriptor, with 16 bits.
const SIZES: std::ops::RangeInclusive<u16> = 32..=16_384;
const SEGMENT_BYTES: u32 = 65_535;
/// Section 5.1.4: offsets of address and status.
const CONFIG_MAC: u32 = 0;
const CONFIG_STATUS: u32 = 6;
const STATUS_LINK: u16 = 1;

/// The receive ring.
pub const RECEIVE: u16 = 0;
/// The transmit ring.
pub const TRANSMIT: u16 = 1;

/// virtio rings, as their driver reaches them.
pub trait RingBus {
    /// Accepts the offered ones of the wanted features (virtio bit numbers), and returns them. Rings are stopped.
    fn negotiate(&mut self, wanted: u64) -> Result<u64, BusError>;

    /// Reads device configuration space.
    fn config(&mut self, offset: u32, data: &mut [u8]) -> Result<(), BusError>;

    /// The guest's memory.
    fn memory(&self) -> &Arc<Map>;

    /// Starts and enables an empty ring.
    fn start(&mut self, ring: u16, place: RingPlace) -> Result<(), BusError>;

    /// Stops a ring. Does nothing if it is stopped.
    fn stop(&mut self, ring: u16) -> Result<(), BusError>;

    /// Notifies the device of buffers that were added to a ring.
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
    /// A driver that uses this memory: some 4 MB of it.
    pub fn new(arena: Arena) -> VirtioNet {
        VirtioNet::with(arena, SIZE, u64::MAX)
    }

    /// A driver with rings of this many descriptors (32 to 16384, else the nearest), and no features but these.
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

    /// See [`Driver::mac`](crate::Driver::mac). All zeros if the device does not report one.
    pub fn mac(&self) -> Mac {
        self.mac
    }

    /// See [`Driver::features`](crate::Driver::features).
    pub fn features(&self) -> Features {
        let segment = features::has(self.taken, features::HOST_TSO4);
        Features {
            checksum: features::has(self.taken, features::CHECKSUM),
            segment_bytes: if segment { SEGMENT_BYTES } else { 0 },
            interrupts: InterruptKind::Msix(2),
        }
    }

    /// See [`Driver::link`](crate::Driver::link). The value is that of the last open.
    pub fn link(&self) -> bool {
        self.link
    }

    /// See [`Driver::open`](crate::Driver::open).
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
        self.read_link(bus)?;
        // Each open allocates the driver's memory from the beginning.
        let mut arena = self.arena;
        self.receive = Receive::new(&self.memory, &mut arena, self.size, self.taken)?;
        self.transmit = Transmit::new(&self.memory, &mut arena, self.size, self.taken)?;
        self.transmit.ring.mute(&self.transmit.ring.window(&self.memory)?);
        bus.start(TRANSMIT, self.transmit.ring.place())?;
        bus.start(RECEIVE, self.receive.ring.place())?;
        self.refill(bus)
    }

    /// Reads the link after a change of configuration.
    fn read_link(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        self.link = true;
        if features::has(self.taken, features::STATUS) {
            let mut status = [0; 2];
            bus.config(CONFIG_STATUS, &mut status)?;
            self.link = u16::from_le_bytes(status) & STATUS_LINK != 0;
        }
        Ok(())
    }

    /// See [`Driver::interrupt`](crate::Driver::interrupt): the call of a ring.
    pub fn interrupt(&mut self, _bus: &mut dyn RingBus, ring: u16) -> Result<bool, DriverError> {
        match ring {
            RECEIVE => self.receive.ring.quiet(&self.receive.ring.window(&self.memory)?),
            TRANSMIT => self.transmit.ring.mute(&self.transmit.ring.window(&self.memory)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// See [`Driver::receive`](crate::Driver::receive).
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

    /// See [`Driver::transmit`](crate::Driver::transmit).
    pub fn transmit(&mut self, _bus: &mut dyn RingBus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        self.transmit.queue(&self.memory, packet, offload)
    }

    /// See [`Driver::flush`](crate::Driver::flush).
    pub fn flush(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        let window = self.transmit.ring.window(&self.memory)?;
        if self.transmit.ring.must_notify(&window) {
            bus.kick(TRANSMIT)?;
        }
        Ok(())
    }

    /// See [`Driver::rest`](crate::Driver::rest).
    pub fn rest(&mut self, _bus: &mut dyn RingBus) -> Result<bool, DriverError> {
        let window = self.receive.ring.window(&self.memory)?;
        Ok(self.receive.ring.arm(&window, 0))
    }

    /// See [`Driver::close`](crate::Driver::close).
    pub fn close(&mut self, bus: &mut dyn RingBus) -> Result<(), DriverError> {
        for ring in [RECEIVE, TRANSMIT] {
            bus.stop(ring)?;
        }
        self.link = false;
        Ok(())
    }
}
