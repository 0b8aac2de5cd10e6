//! The 82574L, driven as Linux does: three MSI-X vectors (receive, transmit, other causes), no register read in a queue's
//! interrupt, extended receive descriptors, one queue in each direction. Every entry of the hash table names that queue.
//!
//! ```text
//! arena:    receive ring ─ receive buffers (2 KB each) ─ transmit ring ─ transmit buffers (4 KB each)
//! vectors:  0 receive (EIAC ends and masks it; IMS again when polling is over)   1 transmit   2 the rest (reads ICR)
//! ```
//! Rings, transmit descriptors and moderation are those of the [e1000](crate::e1000). Not driven: header split, time stamps, a
//! second queue.

mod registers;

use std::sync::Arc;

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::Mac;
use nicety_memory::{Map, Rights};

pub use self::registers::DEVICES;
use self::registers::*;
use crate::e1000::moderation::Moderation;
use crate::e1000::registers::{
    BAR, CAUSE_LSC, CTRL, CTRL_RST, DESCRIPTOR, ICR, ICS, IMC, IMS, MTA, MTA_WORDS, RADV, RCTL, RCTL_BAM, RCTL_EN,
    RDBAH, RDBAL, RDH, RDLEN, RDT, RDTR, RXCSUM, RXCSUM_IPOFL, RXCSUM_TUOFL, STATUS, STATUS_LU, TADV, TCTL, TCTL_EN,
    TCTL_LINUX, TCTL_PSP, TDBAH, TDBAL, TDH, TDLEN, TDT, TIDV, TIPG, TIPG_COPPER,
};
use crate::e1000::transmit::Transmit;
use crate::e1000::{E1000, RECEIVE_BUFFER, REFILL, RING, RING_BYTES, SEGMENT_BYTES, ring, wait};
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// Vectors.
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
const OTHER: u16 = 2;

/// The driver.
#[derive(Debug)]
pub struct E1000e {
    arena: Arena,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    transmit: Transmit,
    receive: Receive,
    moderation: Moderation,
    /// Causes whose messages arrived and which are masked.
    masked: u32,
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

impl E1000e {
    /// A driver that uses this memory.
    pub fn new(arena: Arena) -> E1000e {
        E1000e {
            arena,
            memory: Map::empty(),
            mac: Mac([0; 6]),
            link: false,
            transmit: Transmit::default(),
            receive: Receive::default(),
            moderation: Moderation::default(),
            masked: 0,
        }
    }

    /// Resets the device, with ownership of the PHY and the NVM for the duration. Interrupts, receiver and transmitter are off
    /// afterwards.
    fn reset(bus: &mut dyn Bus) -> Result<(), DriverError> {
        bus.write32(BAR, IMC, u32::MAX)?;
        bus.write32(BAR, RCTL, 0)?;
        bus.write32(BAR, TCTL, TCTL_PSP)?;
        bus.read32(BAR, STATUS)?;
        let owner = bus.read32(BAR, EXTCNF_CTRL)? | MDIO_SW_OWNERSHIP;
        bus.write32(BAR, EXTCNF_CTRL, owner)?;
        wait(bus, "does not give its PHY away", |bus| Ok(bus.read32(BAR, EXTCNF_CTRL)? & MDIO_SW_OWNERSHIP != 0))?;
        let control = bus.read32(BAR, CTRL)?;
        bus.write32(BAR, CTRL, control | CTRL_RST)?;
        wait(bus, "does not come out of reset", |bus| Ok(bus.read32(BAR, CTRL)? & CTRL_RST == 0))?;
        let owner = bus.read32(BAR, EXTCNF_CTRL)? & !MDIO_SW_OWNERSHIP;
        bus.write32(BAR, EXTCNF_CTRL, owner)?;
        bus.write32(BAR, IMC, u32::MAX)?;
        bus.read32(BAR, ICR)?;
        Ok(())
    }

    /// Section 6.1: checks the sum of the first 64 words.
    fn check_nvm(bus: &mut dyn Bus) -> Result<(), DriverError> {
        let mut sum: u16 = 0;
        for word in 0..NVM_WORDS {
            bus.write32(BAR, EERD, word << 2 | EERD_START)?;
            wait(bus, "does not read its NVM", |bus| Ok(bus.read32(BAR, EERD)? & EERD_DONE != 0))?;
            sum = sum.wrapping_add((bus.read32(BAR, EERD)? >> 16) as u16);
        }
        if sum == NVM_SUM { Ok(()) } else { Err(DriverError::Device("has an NVM with a wrong checksum")) }
    }

    fn start_transmit(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.transmit = Transmit::new(&self.memory, &mut self.arena)?;
        ring(bus, [TDBAL, TDBAH, TDLEN, TDH, TDT], self.transmit.ring)?;
        bus.write32(BAR, TIPG, TIPG_COPPER)?;
        bus.write32(BAR, TIDV, 8)?;
        bus.write32(BAR, TADV, 32)?;
        Ok(bus.write32(BAR, TCTL, TCTL_EN | TCTL_PSP | TCTL_LINUX)?)
    }

    fn start_receive(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let ring_at = self.arena.take(RING_BYTES.into(), 4096)?;
        let buffers = self.arena.take(u64::from(RING) * u64::from(RECEIVE_BUFFER), 4096)?;
        self.receive = Receive { ring: ring_at, buffers, ..Receive::default() };
        for index in 0..RING {
            self.receive.post(&self.memory, index)?;
        }
        bus.write32(BAR, RFCTL, RFCTL_EXTEN)?;
        ring(bus, [RDBAL, RDBAH, RDLEN, RDH, RDT], ring_at)?;
        // Linux's values. The throttle makes them irrelevant.
        bus.write32(BAR, RDTR, 32)?;
        bus.write32(BAR, RADV, 32)?;
        bus.write32(BAR, RXCSUM, RXCSUM_TUOFL | RXCSUM_IPOFL | RXCSUM_PCSD)?;
        for word in 0..RSSRK_WORDS {
            bus.write32(BAR, RSSRK + 4 * word, 0x9e37_79b9_u32.rotate_left(word as u32))?;
        }
        for word in 0..RETA_WORDS {
            bus.write32(BAR, RETA + 4 * word, 0)?;
        }
        bus.write32(BAR, MRQC, MRQC_LINUX)?;
        for word in 0..MTA_WORDS {
            bus.write32(BAR, MTA + 4 * word, 0)?;
        }
        bus.write32(BAR, RCTL, RCTL_EN | RCTL_BAM | RCTL_SECRC)?;
        // The driver keeps one descriptor, since a full ring would look like an empty one.
        Ok(bus.write32(BAR, RDT, u32::from(RING - 1))?)
    }

    fn set_moderation(bus: &mut dyn Bus, register: u32) -> Result<(), DriverError> {
        for vector in [RECEIVE, TRANSMIT] {
            bus.write32(BAR, EITR0 + 4 * u64::from(vector), register)?;
        }
        Ok(())
    }
}

impl Receive {
    /// Writes the buffer's address into a descriptor: a write-back has overwritten it.
    fn post(&self, memory: &Map, index: u16) -> Result<(), DriverError> {
        let mut descriptor = [0; DESCRIPTOR];
        let buffer = self.buffers + u64::from(index) * u64::from(RECEIVE_BUFFER);
        descriptor[..8].copy_from_slice(&buffer.to_le_bytes());
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        window.write(usize::from(index) * DESCRIPTOR, &descriptor);
        Ok(())
    }

    /// Reads the next descriptor's packet, or part of one, into `self.packet`. `None`: no descriptor is complete.
    fn next(&mut self, memory: &Map) -> Result<Option<Part>, DriverError> {
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        let at = usize::from(self.next) * DESCRIPTOR;
        let status = window.load_u32(at + 8);
        if status & RX_DD == 0 {
            return Ok(None);
        }
        let [l0, l1] = window.read::<2>(at + 12);
        let length = usize::from(u16::from_le_bytes([l0, l1])).min(RECEIVE_BUFFER as usize);
        let begin = self.packet.len();
        self.packet.resize(begin + length, 0);
        let buffer = self.buffers + u64::from(self.next) * u64::from(RECEIVE_BUFFER);
        memory.read(buffer, self.packet.get_mut(begin..).unwrap_or_default())?;
        self.post(memory, self.next)?;
        self.next = (self.next + 1) % RING;
        self.taken += 1;
        self.damaged |= status & RX_FRAME_ERRORS != 0;
        if status & RX_EOP == 0 {
            return Ok(Some(Part::More));
        }
        let good = status & RX_IXSM == 0 && status & RX_L4CS != 0 && status & RX_CHECKSUM_ERRORS == 0;
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

impl Driver for E1000e {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        Features { checksum: true, segment_bytes: SEGMENT_BYTES, interrupts: InterruptKind::Msix(OTHER + 1) }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        crate::enable(bus, &DEVICES)?;
        E1000e::reset(bus)?;
        E1000e::check_nvm(bus)?;
        self.mac = E1000::address(bus)?;
        E1000::begin_link(bus)?;
        self.start_transmit(bus)?;
        self.start_receive(bus)?;
        bus.interrupts(InterruptKind::Msix(OTHER + 1))?;
        bus.write32(BAR, IVAR, IVAR_VECTORS)?;
        bus.write32(BAR, EIAC, CAUSE_RXQ0 | CAUSE_TXQ0)?;
        bus.write32(BAR, IAM, CAUSE_OTHER)?;
        bus.write32(BAR, CTRL_EXT, CTRL_EXT_DRV_LOAD | CTRL_EXT_EIAME)?;
        E1000e::set_moderation(bus, self.moderation.register())?;
        self.masked = 0;
        bus.write32(BAR, IMS, CAUSE_RXQ0 | CAUSE_TXQ0 | CAUSE_OTHER | CAUSE_LSC)?;
        // Raises a link event, so that the driver reads the link even if it came up earlier.
        Ok(bus.write32(BAR, ICS, CAUSE_LSC | CAUSE_OTHER)?)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError> {
        match vector {
            RECEIVE => self.masked |= CAUSE_RXQ0,
            TRANSMIT => self.masked |= CAUSE_TXQ0,
            _ => {
                let cause = bus.read32(BAR, ICR)?;
                // The read has also cleared causes of other vectors.
                let queues = cause & (CAUSE_RXQ0 | CAUSE_TXQ0);
                if queues != 0 {
                    bus.write32(BAR, ICS, queues)?;
                }
                if cause & CAUSE_LSC != 0 {
                    self.link = bus.read32(BAR, STATUS)? & STATUS_LU != 0;
                }
                bus.write32(BAR, IMS, CAUSE_OTHER | CAUSE_LSC)?;
                return Ok(false);
            }
        }
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
        if let Some(register) = self.moderation.changed() {
            E1000e::set_moderation(bus, register)?;
        }
        let masked = std::mem::take(&mut self.masked);
        if masked != 0 {
            bus.write32(BAR, IMS, masked)?;
        }
        // Events of the meantime have left their causes, and interrupt at once.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        E1000e::reset(bus)?;
        self.link = false;
        crate::disable(bus)
    }
}
