//! The 82540EM and its family, driven as Linux does: 256 descriptors in each ring, one read of the cause register per interrupt,
//! all causes masked while polling, one tail write per burst, receive buffers given back 16 at a time.
//!
//! ```text
//! arena:  receive ring ─ receive buffers (2 KB each) ─ transmit ring ─ transmit buffers (4 KB each)
//! ring:   head (the device's) ... tail (the driver's): descriptors in [head, tail) are the device's
//! ```
//!
//! A packet that asks for a checksum or segmentation takes a context descriptor before its data descriptors.
//! Not driven: the EEPROM (the device loads its address from it at reset), VLAN stripping, jumbo frames, Wake-on-LAN.

pub(crate) mod moderation;
pub(crate) mod registers;
pub(crate) mod transmit;

use std::sync::Arc;

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::Mac;
use nicety_memory::{Map, Rights};

use self::moderation::Moderation;
pub use self::registers::DEVICES;
use self::registers::*;
use self::transmit::Transmit;
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// Descriptors in each ring.
pub(crate) const RING: u16 = 256;
pub(crate) const RING_BYTES: u32 = RING as u32 * DESCRIPTOR as u32;
pub(crate) const RECEIVE_BUFFER: u32 = 2048;
/// Receive buffers that are given back together.
pub(crate) const REFILL: u16 = 16;
/// The frame check sequence. By default the device leaves it in the buffer.
const FCS: usize = 4;
/// Bytes of the longest packet that the device segments: the limit of the 16-bit IP length.
pub(crate) const SEGMENT_BYTES: u32 = 65_535;
/// Reads of a register before the driver gives up waiting for a change.
const TIMEOUT: u32 = 1_000;
const CAUSES: u32 = CAUSE_TXDW | CAUSE_LSC | CAUSE_RXSEQ | CAUSE_RXDMT0 | CAUSE_RXT0;

/// The driver.
#[derive(Debug)]
pub struct E1000 {
    arena: Arena,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    transmit: Transmit,
    receive: Receive,
    moderation: Moderation,
    /// The device has the registers for moderation.
    throttled: bool,
}

#[derive(Debug, Default)]
struct Receive {
    ring: u64,
    buffers: u64,
    /// The next descriptor that the device fills.
    next: u16,
    /// Descriptors that were read and not yet given back.
    taken: u16,
    /// Packet under assembly, from several descriptors.
    packet: Vec<u8>,
    damaged: bool,
}

impl E1000 {
    /// A driver that uses this memory.
    pub fn new(arena: Arena) -> E1000 {
        E1000 {
            arena,
            memory: Map::empty(),
            mac: Mac([0; 6]),
            link: false,
            transmit: Transmit::default(),
            receive: Receive::default(),
            moderation: Moderation::default(),
            throttled: false,
        }
    }

    /// Section 14.3: resets the device, with interrupts, receiver and transmitter off.
    fn reset(bus: &mut dyn Bus) -> Result<(), DriverError> {
        bus.write32(BAR, IMC, u32::MAX)?;
        bus.write32(BAR, RCTL, 0)?;
        bus.write32(BAR, TCTL, TCTL_PSP)?;
        bus.read32(BAR, STATUS)?;
        let control = bus.read32(BAR, CTRL)?;
        bus.write32(BAR, CTRL, control | CTRL_RST)?;
        wait(bus, "does not come out of reset", |bus| Ok(bus.read32(BAR, CTRL)? & CTRL_RST == 0))?;
        bus.write32(BAR, IMC, u32::MAX)?;
        bus.read32(BAR, ICR)?;
        Ok(())
    }

    pub(crate) fn address(bus: &mut dyn Bus) -> Result<Mac, DriverError> {
        let [a, b, c, d] = bus.read32(BAR, RAL0)?.to_le_bytes();
        let high = bus.read32(BAR, RAH0)?;
        let [e, f, ..] = high.to_le_bytes();
        if high & RAH_AV == 0 {
            return Err(DriverError::Device("has not loaded an address from its EEPROM"));
        }
        Ok(Mac([a, b, c, d, e, f]))
    }

    pub(crate) fn begin_link(bus: &mut dyn Bus) -> Result<(), DriverError> {
        let control = bus.read32(BAR, CTRL)?;
        let control = (control | CTRL_SLU | CTRL_ASDE) & !(CTRL_ILOS | CTRL_FRCSPD | CTRL_FRCDPLX | CTRL_VME);
        bus.write32(BAR, CTRL, control)?;
        bus.write32(BAR, MDIC, MDIC_WRITE_PHY1 | PHY_CONTROL << MDIC_REGISTER_SHIFT | PHY_CONTROL_NEGOTIATE)?;
        wait(bus, "does not reach its PHY", |bus| {
            let answer = bus.read32(BAR, MDIC)?;
            if answer & MDIC_ERROR != 0 {
                return Err(DriverError::Device("has no PHY at address 1"));
            }
            Ok(answer & MDIC_READY != 0)
        })
    }

    fn start_transmit(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.transmit = Transmit::new(&self.memory, &mut self.arena)?;
        ring(bus, [TDBAL, TDBAH, TDLEN, TDH, TDT], self.transmit.ring)?;
        bus.write32(BAR, TIPG, TIPG_COPPER)?;
        // Linux's values: a write-back interrupts within 8 to 32 units of 1.024 µs.
        bus.write32(BAR, TIDV, 8)?;
        if self.throttled {
            bus.write32(BAR, TADV, 32)?;
        }
        Ok(bus.write32(BAR, TCTL, TCTL_EN | TCTL_PSP | TCTL_LINUX)?)
    }

    fn start_receive(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let ring_at = self.arena.take(RING_BYTES.into(), 4096)?;
        let buffers = self.arena.take(u64::from(RING) * u64::from(RECEIVE_BUFFER), 4096)?;
        self.receive = Receive { ring: ring_at, buffers, ..Receive::default() };
        let window = self.memory.window(ring_at, RING_BYTES, Rights::BOTH)?;
        for index in 0..RING {
            let mut descriptor = [0; DESCRIPTOR];
            let buffer = buffers + u64::from(index) * u64::from(RECEIVE_BUFFER);
            descriptor[..8].copy_from_slice(&buffer.to_le_bytes());
            window.write(usize::from(index) * DESCRIPTOR, &descriptor);
        }
        ring(bus, [RDBAL, RDBAH, RDLEN, RDH, RDT], ring_at)?;
        bus.write32(BAR, RDTR, 0)?;
        if self.throttled {
            bus.write32(BAR, RADV, 8)?;
        }
        bus.write32(BAR, RXCSUM, RXCSUM_TUOFL | RXCSUM_IPOFL)?;
        for word in 0..MTA_WORDS {
            bus.write32(BAR, MTA + 4 * word, 0)?;
        }
        bus.write32(BAR, RCTL, RCTL_EN | RCTL_BAM)?;
        // The driver keeps one descriptor, since a full ring would look like an empty one.
        Ok(bus.write32(BAR, RDT, u32::from(RING - 1))?)
    }
}

/// Programs a ring: base, length, head and tail, in this order of registers.
pub(crate) fn ring(bus: &mut dyn Bus, registers: [u64; 5], base: u64) -> Result<(), DriverError> {
    let [low, high, length, head, tail] = registers;
    bus.write32(BAR, length, RING_BYTES)?;
    bus.write32(BAR, high, (base >> 32) as u32)?;
    bus.write32(BAR, low, base as u32)?;
    bus.write32(BAR, tail, 0)?;
    Ok(bus.write32(BAR, head, 0)?)
}

pub(crate) fn wait(
    bus: &mut dyn Bus,
    otherwise: &'static str,
    mut done: impl FnMut(&mut dyn Bus) -> Result<bool, DriverError>,
) -> Result<(), DriverError> {
    for _ in 0..TIMEOUT {
        if done(bus)? {
            return Ok(());
        }
    }
    Err(DriverError::Device(otherwise))
}

impl Receive {
    /// Reads the next descriptor's packet, or part of one, into `self.packet`. `None`: no descriptor is complete.
    fn next(&mut self, memory: &Map) -> Result<Option<Part>, DriverError> {
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        let at = usize::from(self.next) * DESCRIPTOR;
        let status = window.load_u32(at + 12);
        if status & RX_DD == 0 {
            return Ok(None);
        }
        let [l0, l1] = window.read::<2>(at + 8);
        let length = usize::from(u16::from_le_bytes([l0, l1])).min(RECEIVE_BUFFER as usize);
        let begin = self.packet.len();
        self.packet.resize(begin + length, 0);
        let buffer = self.buffers + u64::from(self.next) * u64::from(RECEIVE_BUFFER);
        memory.read(buffer, self.packet.get_mut(begin..).unwrap_or_default())?;
        window.store_u32(at + 12, 0);
        self.next = (self.next + 1) % RING;
        self.taken += 1;
        self.damaged |= status & RX_FRAME_ERRORS != 0;
        if status & RX_EOP == 0 {
            return Ok(Some(Part::More));
        }
        self.packet.truncate(self.packet.len().saturating_sub(FCS));
        let good = status & RX_IXSM == 0 && status & RX_TCPCS != 0 && status & RX_CHECKSUM_ERRORS == 0;
        Ok(Some(if std::mem::take(&mut self.damaged) { Part::Damaged } else { Part::Whole { good } }))
    }

    /// Gives descriptors back if at least `least` of them wait.
    fn refill(&mut self, bus: &mut dyn Bus, least: u16) -> Result<(), DriverError> {
        if self.taken >= least && self.taken > 0 {
            self.taken = 0;
            let tail = (self.next + RING - 1) % RING;
            bus.write32(BAR, RDT, tail.into())?;
        }
        Ok(())
    }
}

enum Part {
    More,
    Damaged,
    Whole { good: bool },
}

impl Driver for E1000 {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        Features { checksum: true, segment_bytes: SEGMENT_BYTES, interrupts: InterruptKind::Intx }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        self.throttled = crate::enable(bus, &DEVICES)? != OLDEST;
        E1000::reset(bus)?;
        self.mac = E1000::address(bus)?;
        E1000::begin_link(bus)?;
        self.start_transmit(bus)?;
        self.start_receive(bus)?;
        bus.interrupts(InterruptKind::Intx)?;
        if self.throttled {
            bus.write32(BAR, ITR, self.moderation.register())?;
        }
        bus.write32(BAR, IMS, CAUSES)?;
        // Raises a link event, so that the driver reads the link even if it came up earlier.
        Ok(bus.write32(BAR, ICS, CAUSE_LSC)?)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, _vector: u16) -> Result<bool, DriverError> {
        let cause = bus.read32(BAR, ICR)?;
        if cause & CAUSES == 0 {
            return Ok(false);
        }
        if cause & (CAUSE_LSC | CAUSE_RXSEQ) != 0 {
            self.link = bus.read32(BAR, STATUS)? & STATUS_LU != 0;
        }
        bus.write32(BAR, IMC, u32::MAX)?;
        // As Linux: the read makes the mask take effect before polling begins.
        bus.read32(BAR, STATUS)?;
        Ok(true)
    }

    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        self.transmit.reclaim(&self.memory, &mut self.moderation)?;
        let mut packets = 0;
        while packets < budget {
            match self.receive.next(&self.memory)? {
                None => break,
                Some(Part::More) => {}
                Some(Part::Damaged) => {
                    packets += 1;
                    self.receive.packet.clear();
                }
                Some(Part::Whole { good }) => {
                    packets += 1;
                    self.moderation.received(self.receive.packet.len());
                    sink(&mut self.receive.packet, Received { checksum_good: good, frames: 1 });
                    self.receive.packet.clear();
                }
            }
            self.receive.refill(bus, REFILL)?;
        }
        // As Linux: the rest goes back at the end of a poll.
        self.receive.refill(bus, 1)?;
        Ok(packets)
    }

    fn transmit(&mut self, _bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        self.transmit.queue(&self.memory, packet, offload, &mut self.moderation)
    }

    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if let Some(tail) = self.transmit.doorbell() {
            bus.write32(BAR, TDT, tail.into())?;
        }
        Ok(())
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        if let Some(register) = self.moderation.changed().filter(|_| self.throttled) {
            bus.write32(BAR, ITR, register)?;
        }
        bus.write32(BAR, IMS, CAUSES)?;
        bus.read32(BAR, STATUS)?;
        // Events of the meantime have left their causes, and interrupt at once.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        E1000::reset(bus)?;
        self.link = false;
        crate::disable(bus)
    }
}
