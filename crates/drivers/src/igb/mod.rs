//! The 82576, driven as Linux does: one MSI-X vector for each pair of queues and one for all other causes (here the last, in Linux
//! the first), causes that clear and mask themselves, 256 advanced descriptors in each ring, one tail write per burst, receive
//! buffers given back 16 at a time.
//!
//! ```text
//! vector n: transmit queue n, receive queue n          the vector behind those of the queues: link
//! arena, for each pair:   receive ring ─ receive buffers (2 KB each) ─ transmit ring ─ transmit buffers (4 KB each)
//! ```
//! A packet that asks for a checksum or segmentation takes a context descriptor before its data descriptors.
//! Not driven: the NVM (the device loads its address from it at reset), VLANs, jumbo frames, header split, time stamps, Wake-on-LAN.

pub(crate) mod receive;
pub(crate) mod registers;
pub(crate) mod transmit;

use std::sync::Arc;

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::{Layout, Mac};
use nicety_memory::Map;

use self::receive::{Part, Receive};
pub use self::registers::DEVICES;
use self::registers::*;
use self::transmit::Transmit;
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// Descriptors in each ring.
pub(crate) const RING: u16 = 256;
const RING_BYTES: u32 = RING as u32 * DESCRIPTOR as u32;
const RECEIVE_BUFFER: u32 = 2048;
/// Receive buffers that are given back together.
pub(crate) const REFILL: u16 = 16;
/// Bytes of the longest packet that the device segments: the limit of the 16-bit IP length.
pub(crate) const SEGMENT_BYTES: u32 = 65_535;
/// Reads of a register before the driver gives up waiting for a change.
const READS_MAX: u32 = 1_000;
/// Most pairs of queues, as in Linux.
const QUEUES_MAX: u16 = 8;

/// The driver.
#[derive(Debug)]
pub struct Igb {
    arena: Arena,
    queues: u16,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    transmit: Vec<Transmit>,
    receive: Vec<Receive>,
    /// Vectors that have interrupted and masked themselves, one bit each.
    masked: u32,
}

impl Igb {
    /// A driver that uses this memory, with one pair of queues.
    pub fn new(arena: Arena) -> Igb {
        Igb::with(arena, 1)
    }

    /// A driver with `queues` pairs of queues, 1 to 8.
    pub fn with(arena: Arena, queues: u16) -> Igb {
        Igb {
            arena,
            queues: queues.clamp(1, QUEUES_MAX),
            memory: Map::empty(),
            mac: Mac([0; 6]),
            link: false,
            transmit: Vec::new(),
            receive: Vec::new(),
            masked: 0,
        }
    }

    /// Section 4.6.1: masks interrupts, then resets the device.
    fn reset(bus: &mut dyn Bus) -> Result<(), DriverError> {
        let control = bus.read32(BAR, CTRL)?;
        bus.write32(BAR, CTRL, control | CTRL_MASTER_DISABLE)?;
        wait(bus, "does not end its DMA", |bus| Ok(bus.read32(BAR, STATUS)? & STATUS_MASTER == 0))?;
        bus.write32(BAR, IMC, u32::MAX)?;
        bus.write32(BAR, EIMC, u32::MAX)?;
        bus.write32(BAR, RCTL, 0)?;
        bus.write32(BAR, TCTL, TCTL_PSP)?;
        bus.read32(BAR, STATUS)?;
        bus.write32(BAR, CTRL, control | CTRL_RST)?;
        wait(bus, "does not read its NVM", |bus| Ok(bus.read32(BAR, EECD)? & EECD_AUTO_READ != 0))?;
        if bus.read32(BAR, CTRL)? & CTRL_RST != 0 {
            return Err(DriverError::Device("does not come out of reset"));
        }
        bus.write32(BAR, IMC, u32::MAX)?;
        bus.read32(BAR, ICR)?;
        Ok(())
    }

    fn address(bus: &mut dyn Bus) -> Result<Mac, DriverError> {
        let [a, b, c, d] = bus.read32(BAR, RAL0)?.to_le_bytes();
        let high = bus.read32(BAR, RAH0)?;
        let [e, f, ..] = high.to_le_bytes();
        if high & RAH_AV == 0 {
            return Err(DriverError::Device("has not loaded an address from its NVM"));
        }
        Ok(Mac([a, b, c, d, e, f]))
    }

    fn begin_link(bus: &mut dyn Bus) -> Result<(), DriverError> {
        let control = bus.read32(BAR, CTRL)?;
        bus.write32(BAR, CTRL, (control | CTRL_SLU) & !(CTRL_FRCSPD | CTRL_FRCDPLX | CTRL_MASTER_DISABLE))?;
        bus.write32(BAR, MDIC, MDIC_WRITE_PHY1 | PHY_CONTROL << MDIC_REGISTER_SHIFT | PHY_CONTROL_NEGOTIATE)?;
        wait(bus, "does not reach its PHY", |bus| {
            let answer = bus.read32(BAR, MDIC)?;
            if answer & MDIC_ERROR != 0 {
                return Err(DriverError::Device("has no PHY at address 1"));
            }
            Ok(answer & MDIC_READY != 0)
        })
    }

    fn make_queues(&mut self) -> Result<(), DriverError> {
        // Each open allocates the driver's memory from the beginning.
        let mut arena = self.arena;
        (self.transmit, self.receive) = (Vec::new(), Vec::new());
        for _ in 0..self.queues {
            self.receive.push(Receive::new(&self.memory, &mut arena)?);
            self.transmit.push(Transmit::new(&self.memory, &mut arena)?);
        }
        Ok(())
    }

    fn start_queues(&self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        bus.write32(BAR, TCTL, TCTL_EN | TCTL_PSP | TCTL_LINUX)?;
        for (number, queue) in (0..).zip(&self.transmit) {
            start_ring(bus, transmit_queue(number), queue.ring)?;
        }
        bus.write32(BAR, RXCSUM, RXCSUM_TUOFL | RXCSUM_IPOFL | RXCSUM_PCSD)?;
        for word in 0..MTA_WORDS {
            bus.write32(BAR, MTA + 4 * word, 0)?;
        }
        self.spread(bus)?;
        bus.write32(BAR, RCTL, RCTL_EN | RCTL_BAM | RCTL_SECRC)?;
        for (number, queue) in (0..).zip(&self.receive) {
            let at = receive_queue(number);
            bus.write32(BAR, at + SRRCTL, SRRCTL_ONE_BUFFER)?;
            start_ring(bus, at, queue.ring)?;
            // The driver keeps one descriptor, since a full ring would look like an empty one.
            bus.write32(BAR, at + TAIL, u32::from(RING - 1))?;
        }
        Ok(())
    }

    /// RSS: divides the table equally among the queues. Any key works.
    fn spread(&self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        for word in 0..10 {
            bus.write32(BAR, RSSRK + 4 * word, 0x6d5a_56da_u32.rotate_left(3 * word as u32))?;
        }
        for word in 0..32_u32 {
            let entries = [0, 1, 2, 3].map(|byte| ((4 * word + byte) * u32::from(self.queues) / 128) as u8);
            bus.write32(BAR, RETA + 4 * u64::from(word), u32::from_le_bytes(entries))?;
        }
        Ok(bus.write32(BAR, MRQC, MRQC_RSS)?)
    }

    fn all_vectors(&self) -> u32 {
        (1 << (self.queues + 1)) - 1
    }

    fn start_interrupts(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        bus.write32(BAR, GPIE, GPIE_MSIX)?;
        bus.write32(BAR, IVAR_MISC, (IVAR_VALID | u32::from(self.queues)) << 8)?;
        for number in 0..u32::from(self.queues) {
            let vector = IVAR_VALID | number;
            bus.write32(BAR, IVAR + 4 * u64::from(number), vector | vector << 8)?;
            bus.write32(BAR, EITR + 4 * u64::from(number), EITR_LOW | EITR_KEEP)?;
        }
        let all = self.all_vectors();
        self.masked = 0;
        for register in [EIAC, EIAM, EIMS] {
            bus.write32(BAR, register, all)?;
        }
        bus.write32(BAR, IMS, CAUSE_LSC)?;
        // Raises a link event, so that the driver reads the link even if it came up earlier.
        Ok(bus.write32(BAR, ICS, CAUSE_LSC)?)
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

/// Programs a ring, and enables its queue.
pub(crate) fn start_ring(bus: &mut dyn Bus, at: u64, base: u64) -> Result<(), DriverError> {
    bus.write32(BAR, at + CONTROL, 0)?;
    bus.write32(BAR, at + LENGTH, RING_BYTES)?;
    bus.write32(BAR, at + BASE_LOW, base as u32)?;
    bus.write32(BAR, at + BASE_HIGH, (base >> 32) as u32)?;
    bus.write32(BAR, at + HEAD, 0)?;
    bus.write32(BAR, at + TAIL, 0)?;
    Ok(bus.write32(BAR, at + CONTROL, QUEUE_ENABLE)?)
}

pub(crate) fn wait(
    bus: &mut dyn Bus,
    otherwise: &'static str,
    mut done: impl FnMut(&mut dyn Bus) -> Result<bool, DriverError>,
) -> Result<(), DriverError> {
    for _ in 0..READS_MAX {
        if done(bus)? {
            return Ok(());
        }
    }
    Err(DriverError::Device(otherwise))
}

impl Driver for Igb {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        let interrupts = InterruptKind::Msix(self.queues + 1);
        Features { checksum: true, segment_bytes: SEGMENT_BYTES, interrupts }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        crate::enable(bus, &DEVICES)?;
        Igb::reset(bus)?;
        self.mac = Igb::address(bus)?;
        Igb::begin_link(bus)?;
        self.make_queues()?;
        self.start_queues(bus)?;
        bus.interrupts(InterruptKind::Msix(self.queues + 1))?;
        self.start_interrupts(bus)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError> {
        if vector > self.queues {
            return Ok(false);
        }
        if vector == self.queues {
            if bus.read32(BAR, ICR)? & CAUSE_LSC != 0 {
                self.link = bus.read32(BAR, STATUS)? & STATUS_LU != 0;
            }
            bus.write32(BAR, EIMS, 1 << vector)?;
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
            let tail = receive_queue(number) + TAIL;
            while packets < budget {
                match queue.next(&self.memory)? {
                    None => break,
                    Some(Part::More) => {}
                    Some(Part::Damaged) => {
                        packets += 1;
                        queue.packet.clear();
                    }
                    Some(Part::Whole { good }) => {
                        packets += 1;
                        sink(&mut queue.packet, Received { checksum_good: good, frames: 1 });
                        queue.packet.clear();
                    }
                }
                if let Some(place) = queue.refill(REFILL) {
                    bus.write32(BAR, tail, place.into())?;
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
            if let Some(tail) = queue.doorbell() {
                bus.write32(BAR, transmit_queue(number) + TAIL, tail.into())?;
            }
        }
        Ok(())
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let masked = std::mem::take(&mut self.masked);
        if masked != 0 {
            bus.write32(BAR, EIMS, masked)?;
        }
        // Events of the meantime have left their causes, and interrupt at once.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        Igb::reset(bus)?;
        self.link = false;
        crate::disable(bus)
    }
}
