//! vmxnet3, driven as Linux does (drivers/net/vmxnet3/vmxnet3_drv.c): everything but doorbells in shared memory, one vector for
//! each pair of queues and one for events. The device itself masks a vector until polling ends.
//!
//! ```text
//! arena:  DriverShared ─ queue descriptors ─ RSS ─ per transmit queue: ring, completions, headers, buffers
//!                                                ─ per receive queue: rings 0 and 1 with buffers, completions, short packets
//! ```
//!
//! The driver rings a transmit doorbell when as many packets wait as the device asks for (`txThreshold`), and receive doorbells
//! only if the device asks for them (`updateRxProd`). It passes a VLAN tag to the device in the descriptor, and puts the tag of a
//! received packet back. Not driven: INTx and MSI, wake-up patterns, versions beyond 3, UDP segmentation, coalescing.

mod layout;
mod receive;
mod ring;
mod shared;
mod transmit;

use std::sync::Arc;

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::{Layout, Mac};
use nicety_memory::{Map, Rights};

pub use self::layout::DEVICES;
use self::layout::*;
use self::receive::{Receive, SIZE_UNIT, Shape};
use self::transmit::Transmit;
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// The newest supported version of the device.
const VERSION: u32 = 3;
/// Linux's size if the device does not report one.
const TX_DATA_BYTES: u32 = 128;
const TX_DATA_RANGE: std::ops::RangeInclusive<u32> = 128..=2048;
/// Longest received packet that goes to the data ring.
const RX_DATA_BYTES: u32 = 128;
/// Bytes of the longest packet that the device segments.
const SEGMENT_BYTES: u32 = 65_535;
/// `VMXNET3_MAX_MTU` and `VMXNET3_MIN_MTU`.
const MTUS: std::ops::RangeInclusive<u32> = 60..=9000;
/// A driver of version 3 has at most 16 receive queues and 8 transmit queues.
const QUEUES_MAX: u16 = 8;
const RING_MAX: u32 = 4096;

/// The driver's settings. Sizes default to Linux's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Pairs of queues, 1 to 8. A packet's addresses and ports select its queue.
    pub queues: u16,
    /// 60 to 9000 bytes.
    pub mtu: u32,
    /// TCP packets may arrive joined (or uncut) to more than the MTU.
    pub lro: bool,
    /// Descriptors of each transmit ring.
    pub transmit_ring: u32,
    /// Descriptors of receive rings 0 and 1.
    pub receive_rings: [u32; 2],
    /// Most buffers of a received packet. Linux allows those of a packet joined to 64 KB: `MAX_SKB_FRAGS` and its head.
    pub receive_pieces: u16,
}

impl Default for Settings {
    fn default() -> Settings {
        let (transmit_ring, receive_rings, receive_pieces) = (512, [1024, 256], 18);
        Settings { queues: 1, mtu: 1500, lro: true, transmit_ring, receive_rings, receive_pieces }
    }
}

/// The driver.
#[derive(Debug)]
pub struct Vmxnet3 {
    arena: Arena,
    settings: Settings,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    /// `Vmxnet3_DriverShared`.
    shared: u64,
    /// The device masks a vector when it interrupts.
    auto_mask: bool,
    /// Vectors that have interrupted and are still masked, one bit each.
    masked: u32,
    transmit: Vec<Transmit>,
    receive: Vec<Receive>,
}

impl Vmxnet3 {
    /// A driver with Linux's settings that uses this memory: some 6 MB of it.
    pub fn new(arena: Arena) -> Vmxnet3 {
        Vmxnet3::with(arena, Settings::default())
    }

    /// A driver with other settings. Impossible values are moved to the nearest possible ones.
    pub fn with(arena: Arena, settings: Settings) -> Vmxnet3 {
        let ring = |size: u32| size.clamp(SIZE_UNIT, RING_MAX).next_multiple_of(SIZE_UNIT);
        let settings = Settings {
            queues: settings.queues.clamp(1, QUEUES_MAX),
            mtu: settings.mtu.clamp(*MTUS.start(), *MTUS.end()),
            lro: settings.lro,
            transmit_ring: ring(settings.transmit_ring),
            receive_rings: settings.receive_rings.map(ring),
            receive_pieces: settings.receive_pieces.max(1),
        };
        Vmxnet3 {
            arena,
            settings,
            memory: Map::empty(),
            mac: Mac([0; 6]),
            link: false,
            shared: 0,
            auto_mask: true,
            masked: 0,
            transmit: Vec::new(),
            receive: Vec::new(),
        }
    }

    /// The vector of events, after those of the queues.
    fn event_vector(&self) -> u16 {
        self.settings.queues
    }

    fn command(bus: &mut dyn Bus, command: u32) -> Result<(), DriverError> {
        Ok(bus.write32(CONTROL, CMD, command)?)
    }

    fn ask(bus: &mut dyn Bus, command: u32) -> Result<u32, DriverError> {
        Self::command(bus, command)?;
        Ok(bus.read32(CONTROL, CMD)?)
    }

    /// Agrees on the newest version that both sides support.
    fn agree(bus: &mut dyn Bus) -> Result<u32, DriverError> {
        let offered = bus.read32(CONTROL, VRRS)?;
        let Some(version) = (1..=VERSION).rev().find(|version| offered >> (version - 1) & 1 != 0) else {
            return Err(DriverError::Device("has no version that this driver knows"));
        };
        bus.write32(CONTROL, VRRS, 1 << (version - 1))?;
        if bus.read32(CONTROL, UVRS)? & 1 == 0 {
            return Err(DriverError::Device("has no pass-through version that this driver knows"));
        }
        bus.write32(CONTROL, UVRS, 1)?;
        Ok(version)
    }

    fn make_queues(&mut self, bus: &mut dyn Bus, version: u32) -> Result<shared::Places, DriverError> {
        let memory = Arc::clone(&self.memory);
        // Each open allocates the driver's memory from the beginning.
        let mut arena = self.arena;
        let settings = self.settings;
        let queues = u32::from(settings.queues);
        let mut tx_data = TX_DATA_BYTES;
        if version >= 3 {
            let asked = Self::ask(bus, GET_TXDATA_DESC_SIZE)? & 0xffff;
            if TX_DATA_RANGE.contains(&asked) && asked.is_multiple_of(64) {
                tx_data = asked;
            }
        }
        let rx_data = if version >= 3 { RX_DATA_BYTES } else { 0 };
        let places = shared::Places::new(&memory, &mut arena, settings.queues)?;
        (self.transmit, self.receive) = (Vec::new(), Vec::new());
        for number in 0..queues {
            let at = places.transmit(number);
            self.transmit.push(Transmit::new(&memory, &mut arena, settings.transmit_ring, tx_data, at)?);
        }
        for number in 0..queues {
            let (mtu, sizes) = (settings.mtu, settings.receive_rings);
            let shape = Shape { number, queues, mtu, sizes, data_bytes: rx_data };
            self.receive.push(Receive::new(&memory, &mut arena, &shape, places.receive(number))?);
        }
        self.shared = places.shared;
        Ok(places)
    }

    fn activate(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        bus.write32(CONTROL, DSAL, self.shared as u32)?;
        bus.write32(CONTROL, DSAH, (self.shared >> 32) as u32)?;
        if Self::ask(bus, ACTIVATE_DEV)? != 0 {
            return Err(DriverError::Device("does not take its configuration"));
        }
        for (number, queue) in (0u64..).zip(&self.receive) {
            for (register, fill) in RXPROD.into_iter().zip(&queue.fills) {
                bus.write32(PASS_THROUGH, register + number * STRIDE, fill.ring.next)?;
            }
        }
        self.window()?.store_u32(shared::RX_MODE, RX_MODES);
        for command in [UPDATE_VLAN_FILTERS, UPDATE_RX_MODE, UPDATE_MAC_FILTERS] {
            Self::command(bus, command)?;
        }
        self.read_link(bus)?;
        self.window()?.store_u32(shared::INTERRUPT_CONTROL, 0);
        for vector in 0..=u64::from(self.event_vector()) {
            bus.write32(PASS_THROUGH, IMR + vector * STRIDE, 0)?;
        }
        self.masked = 0;
        Ok(())
    }

    fn window(&self) -> Result<nicety_memory::Window<'_>, DriverError> {
        Ok(self.memory.window(self.shared, shared::BYTES, Rights::BOTH)?)
    }

    fn read_link(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.link = Self::ask(bus, GET_LINK)? & 1 != 0;
        Ok(())
    }

    fn events(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let events = self.window()?.load_u32(shared::EVENTS);
        if events == 0 {
            return Ok(());
        }
        bus.write32(CONTROL, ECR, events)?;
        if events & EVENT_LINK != 0 {
            self.read_link(bus)?;
        }
        Ok(())
    }

    /// The transmit queue of a packet. Packets of one connection use the same queue.
    fn queue_of(&self, packet: &[u8]) -> usize {
        if self.transmit.len() <= 1 {
            return 0;
        }
        let layout = Layout::parse(packet);
        let l3 = layout.l3.map_or(0, |l3| usize::from(l3.offset));
        let end = layout.l4.map_or(l3 + 20, |l4| usize::from(l4.offset) + 4);
        let flow = packet.get(l3 + 12..end).unwrap_or_default();
        // FNV-1a.
        let hash = flow.iter().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
        hash as usize % self.transmit.len()
    }
}

impl Driver for Vmxnet3 {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        let interrupts = InterruptKind::Msix(self.settings.queues + 1);
        Features { checksum: true, segment_bytes: SEGMENT_BYTES, interrupts }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        crate::enable(bus, &DEVICES)?;
        Self::command(bus, RESET_DEV)?;
        let version = Self::agree(bus)?;
        let [a, b, c, d] = bus.read32(CONTROL, MACL)?.to_le_bytes();
        let [e, f, ..] = bus.read32(CONTROL, MACH)?.to_le_bytes();
        self.mac = Mac([a, b, c, d, e, f]);
        self.auto_mask = Self::ask(bus, GET_CONF_INTR)? >> MASK_MODE_SHIFT & 3 == MASK_MODE_AUTO;
        let places = self.make_queues(bus, version)?;
        bus.interrupts(InterruptKind::Msix(self.event_vector() + 1))?;
        self.describe(&places, version)?;
        bus.write32(CONTROL, MACL, u32::from_le_bytes([a, b, c, d]))?;
        bus.write32(CONTROL, MACH, u32::from_le_bytes([e, f, 0, 0]))?;
        self.activate(bus)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError> {
        let place = IMR + u64::from(vector) * STRIDE;
        if vector > self.event_vector() {
            return Ok(false);
        }
        if !self.auto_mask {
            bus.write32(PASS_THROUGH, place, 1)?;
        }
        if vector == self.event_vector() {
            self.events(bus)?;
            bus.write32(PASS_THROUGH, place, 0)?;
            return Ok(false);
        }
        self.masked |= 1 << vector;
        Ok(true)
    }

    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        for queue in &mut self.transmit {
            queue.reclaim(&self.memory)?;
        }
        let mut packets = 0;
        for (number, queue) in (0u64..).zip(&mut self.receive) {
            while packets < budget {
                let received: Received = match queue.next(&self.memory)? {
                    Some(received) => received,
                    None => break,
                };
                packets += 1;
                sink(queue.packet(), received);
            }
            for (register, next) in RXPROD.into_iter().zip(queue.doorbells(&self.memory)?) {
                if let Some(next) = next {
                    bus.write32(PASS_THROUGH, register + number * STRIDE, next)?;
                }
            }
        }
        Ok(packets)
    }

    fn transmit(&mut self, _bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        let number = self.queue_of(packet);
        match self.transmit.get_mut(number) {
            Some(queue) => queue.queue(&self.memory, packet, offload),
            None => Ok(false),
        }
    }

    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        for (number, queue) in (0u64..).zip(&mut self.transmit) {
            if let Some(next) = queue.doorbell(&self.memory)? {
                bus.write32(PASS_THROUGH, TXPROD + number * STRIDE, next)?;
            }
        }
        Ok(())
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let masked = std::mem::take(&mut self.masked);
        for vector in 0..self.event_vector() {
            if masked >> vector & 1 != 0 {
                bus.write32(PASS_THROUGH, IMR + u64::from(vector) * STRIDE, 0)?;
            }
        }
        // Events of the meantime are pending behind the mask, and interrupt at once.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        Self::command(bus, QUIESCE_DEV)?;
        for vector in 0..=u64::from(self.event_vector()) {
            bus.write32(PASS_THROUGH, IMR + vector * STRIDE, 1)?;
        }
        Self::command(bus, RESET_DEV)?;
        (self.link, self.masked) = (false, 0);
        (self.transmit, self.receive) = (Vec::new(), Vec::new());
        crate::disable(bus)
    }
}
