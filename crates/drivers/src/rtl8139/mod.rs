//! The 8139C+ and the 8139, driven as Linux does: one driver with two modes, selected by the chip's revision.
//!
//! ```text
//! C+ mode (8139cp):    rings of 64 descriptors each way, given back one by one; a doorbell for each packet
//! plain mode (8139too): four slots, each sent by a write of its length; a receive buffer of 32 KiB and some
//! ```
//!
//! Polling masks the interrupts for frames; the driver handles the others at once. Not driven: VLAN offloads, the timer, wake-up,
//! the counter dump.

mod eeprom;
mod plain;
mod registers;
mod rings;

use std::sync::Arc;

use nicety_adapter::{Bus, BusError, Checksum, InterruptKind, Offload};
use nicety_frame::{Mac, Sum, checksum};
use nicety_memory::Map;

use self::plain::Plain;
pub use self::registers::DEVICES;
use self::registers::*;
use self::rings::Rings;
use crate::{Arena, Driver, DriverError, Features, Sink};

/// Reads of a register before the driver gives up waiting for a change.
const TIMEOUT: u32 = 1_000;

/// State that differs between the chips.
#[derive(Debug)]
enum Mode {
    /// Not open.
    Closed,
    Rings(Rings),
    Plain(Plain),
}

/// The driver.
#[derive(Debug)]
pub struct Rtl8139 {
    arena: Arena,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    mode: Mode,
    /// Copy of a packet whose checksum the chip cannot make.
    summed: Vec<u8>,
    /// The received packet.
    packet: Vec<u8>,
}

fn read8(bus: &mut dyn Bus, offset: u64) -> Result<u8, BusError> {
    let mut data = [0];
    bus.read(BAR, offset, &mut data)?;
    Ok(data[0])
}

fn write8(bus: &mut dyn Bus, offset: u64, value: u8) -> Result<(), BusError> {
    bus.write(BAR, offset, &[value])
}

fn read16(bus: &mut dyn Bus, offset: u64) -> Result<u16, BusError> {
    let mut data = [0; 2];
    bus.read(BAR, offset, &mut data)?;
    Ok(u16::from_le_bytes(data))
}

fn write16(bus: &mut dyn Bus, offset: u64, value: u16) -> Result<(), BusError> {
    bus.write(BAR, offset, &value.to_le_bytes())
}

/// Writes and reads back, as Linux does with registers that must take effect before it continues.
fn write16_flushed(bus: &mut dyn Bus, offset: u64, value: u16) -> Result<(), BusError> {
    write16(bus, offset, value)?;
    read16(bus, offset)?;
    Ok(())
}

impl Rtl8139 {
    /// A driver that uses this memory.
    pub fn new(arena: Arena) -> Rtl8139 {
        Rtl8139 {
            arena,
            memory: Map::empty(),
            mac: Mac([0; 6]),
            link: false,
            mode: Mode::Closed,
            summed: Vec::new(),
            packet: Vec::new(),
        }
    }

    fn reset(bus: &mut dyn Bus) -> Result<(), DriverError> {
        write8(bus, CMD, CMD_RESET)?;
        for _ in 0..TIMEOUT {
            if read8(bus, CMD)? & CMD_RESET == 0 {
                return Ok(());
            }
        }
        Err(DriverError::Device("does not come out of reset"))
    }

    /// Reads the status twice: the first read shows a link loss since the last read.
    fn read_link(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        read16(bus, BMSR)?;
        self.link = read16(bus, BMSR)? & BMSR_LINK != 0;
        Ok(())
    }

    /// Completes a packet's partial checksum into `summed`.
    fn sum(&mut self, packet: &[u8], start: u16, field: u16) -> Result<(), DriverError> {
        self.summed.clear();
        self.summed.extend_from_slice(packet);
        let offset = usize::from(field).checked_sub(start.into());
        let made = offset.and_then(|at| checksum::complete(&mut self.summed, start.into(), at, Sum::ZERO));
        made.map(drop).ok_or(DriverError::Device("has no packet of which this checksum could be made"))
    }
}

impl Driver for Rtl8139 {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        let segment_bytes = if matches!(self.mode, Mode::Rings(_)) { rings::SEGMENT_BYTES } else { 0 };
        Features { checksum: true, segment_bytes, interrupts: InterruptKind::Intx }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        crate::enable(bus, &DEVICES)?;
        let mut revision = [0];
        bus.config_read(REVISION, &mut revision)?;
        let rings = revision[0] >= REVISION_CPLUS;
        Rtl8139::reset(bus)?;
        self.mac = eeprom::address(bus)?;
        write8(bus, CFG9346, UNLOCK)?;
        let [a, b, c, d, e, f] = self.mac.0;
        bus.write32(BAR, IDR0, u32::from_le_bytes([a, b, c, d]))?;
        write16(bus, IDR4, u16::from_le_bytes([e, f]))?;
        bus.interrupts(InterruptKind::Intx)?;
        self.mode = if rings {
            Mode::Rings(Rings::open(bus, &self.memory, &mut self.arena)?)
        } else {
            Mode::Plain(Plain::open(bus, &mut self.arena)?)
        };
        bus.write32(BAR, TX_CONFIG, TX_CONFIG_USUAL)?;
        for word in 0..2 {
            bus.write32(BAR, MAR0 + 4 * word, 0)?;
        }
        write16(bus, MULTI_INTR, 0)?;
        write8(bus, CFG9346, LOCK)?;
        bus.write32(BAR, RX_MISSED, 0)?;
        write16_flushed(bus, INTR_MASK, INTR_RX | INTR_NOT_RX)?;
        self.read_link(bus)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, _vector: u16) -> Result<bool, DriverError> {
        let mask = read16(bus, INTR_MASK)?;
        let status = read16(bus, INTR_STATUS)?;
        if mask == 0 || status == 0 || status == 0xffff {
            return Ok(false);
        }
        write16(bus, INTR_STATUS, status & !INTR_RX)?;
        let polls = status & INTR_RX & mask != 0;
        if polls {
            write16_flushed(bus, INTR_MASK, INTR_NOT_RX)?;
        }
        if status & (INTR_TX_OK | INTR_TX_ERR) != 0 {
            match &mut self.mode {
                Mode::Rings(rings) => rings.reclaim(&self.memory)?,
                Mode::Plain(plain) => plain.reclaim(bus)?,
                Mode::Closed => {}
            }
        }
        if status & INTR_LINK != 0 {
            // Without C+ mode the bit has two meanings; this register tells which applies.
            if matches!(self.mode, Mode::Rings(_)) || read16(bus, CSCR)? & 1 << 11 != 0 {
                self.read_link(bus)?;
            }
        }
        Ok(polls)
    }

    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        let Rtl8139 { mode, memory, packet, .. } = self;
        match mode {
            Mode::Rings(rings) => rings.receive(bus, memory, packet, budget, sink),
            Mode::Plain(plain) => plain.receive(bus, memory, packet, budget, sink),
            Mode::Closed => Ok(0),
        }
    }

    fn transmit(&mut self, bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        let commands = match &self.mode {
            Mode::Rings(_) => rings::commands(packet, offload)?,
            Mode::Plain(_) if offload.segment.is_some() => return Err(DriverError::Device("does not segment")),
            Mode::Plain(_) => None,
            Mode::Closed => return Ok(false),
        };
        let packet = match (offload.checksum, commands) {
            (Checksum::Partial { start, field }, None) => {
                self.sum(packet, start, field)?;
                &self.summed
            }
            _ => packet,
        };
        match &mut self.mode {
            Mode::Rings(rings) => rings.queue(&self.memory, packet, commands.unwrap_or(0)),
            Mode::Plain(plain) => plain.queue(bus, &self.memory, packet),
            Mode::Closed => Ok(false),
        }
    }

    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if let Mode::Rings(rings) = &mut self.mode
            && rings.doorbell()
        {
            write8(bus, TX_POLL, POLL_NORMAL)?;
        }
        Ok(())
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        write16_flushed(bus, INTR_MASK, INTR_RX | INTR_NOT_RX)?;
        // Events of the meantime have left their causes, and interrupt at once.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        write16_flushed(bus, INTR_MASK, 0)?;
        write8(bus, CMD, 0)?;
        if matches!(self.mode, Mode::Rings(_)) {
            write16_flushed(bus, CP_CMD, 0)?;
        }
        let left = read16(bus, INTR_STATUS)?;
        write16(bus, INTR_STATUS, left)?;
        (self.mode, self.link) = (Mode::Closed, false);
        crate::disable(bus)
    }
}
