//! The plain mode (Linux 8139too.c): four transmit slots and a receive buffer.

use nicety_adapter::Bus;
use nicety_memory::Map;

use super::registers::*;
use super::{read8, read16, write8, write16, write16_flushed};
use crate::{Arena, DriverError, Received, Sink};

const SLOTS: u32 = 4;
/// Bytes of a slot's buffer: the longest frame that the device sends.
const SLOT: usize = 1792;
/// Bytes of the shortest Ethernet frame: this chip does not pad.
const SHORTEST: usize = 60;
const BUFFER: u32 = 32 << 10;
/// Bytes that may follow the buffer's end: Linux's RX_BUF_PAD and RX_BUF_WRAP_PAD.
const BEHIND: u32 = 16 + 2048;
/// CAPR lags the read position by this much.
const AHEAD: u32 = 16;

#[derive(Debug)]
pub(super) struct Plain {
    slots: u64,
    buffer: u64,
    /// Total frames queued, and total frames reclaimed.
    next: u32,
    oldest: u32,
    /// Offset of the next frame.
    read: u32,
}

impl Plain {
    pub(super) fn open(bus: &mut dyn Bus, arena: &mut Arena) -> Result<Plain, DriverError> {
        let slots = arena.take(u64::from(SLOTS) * SLOT as u64, 256)?;
        let buffer = arena.take(u64::from(BUFFER + BEHIND), 256)?;
        let address = |at: u64| u32::try_from(at).map_err(|_| DriverError::Device("reaches 4 GiB of memory only"));
        bus.write32(BAR, RX_BUF, address(buffer)?)?;
        write8(bus, CMD, CMD_RX | CMD_TX)?;
        bus.write32(BAR, RX_CONFIG, RX_CONFIG_USUAL | RX_CONFIG_32K_NO_WRAP)?;
        for slot in 0..SLOTS {
            let place = address(slots + u64::from(slot) * SLOT as u64)?;
            bus.write32(BAR, TX_ADDR0 + 4 * u64::from(slot), place)?;
        }
        Ok(Plain { slots, buffer, next: 0, oldest: 0, read: 0 })
    }

    pub(super) fn reclaim(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        while self.oldest != self.next {
            let status = bus.read32(BAR, TX_STATUS0 + 4 * u64::from(self.oldest % SLOTS))?;
            if status & (TX_OK | TX_UNDERRUN | TX_ABORTED) == 0 {
                break;
            }
            self.oldest = self.oldest.wrapping_add(1);
        }
        Ok(())
    }

    /// Sends a frame. False if no slot is free.
    pub(super) fn queue(&mut self, bus: &mut dyn Bus, memory: &Map, packet: &[u8]) -> Result<bool, DriverError> {
        if packet.len() > SLOT {
            return Err(DriverError::Device("sends no frames so long"));
        }
        if self.next.wrapping_sub(self.oldest) >= SLOTS {
            return Ok(false);
        }
        let slot = u64::from(self.next % SLOTS);
        let place = self.slots + slot * SLOT as u64;
        if packet.len() < SHORTEST {
            memory.write(place, &[0; SHORTEST])?;
        }
        memory.write(place, packet)?;
        let status = TX_STATUS0 + 4 * slot;
        bus.write32(BAR, status, TX_THRESHOLD | packet.len().max(SHORTEST) as u32)?;
        bus.read32(BAR, status)?;
        self.next = self.next.wrapping_add(1);
        Ok(true)
    }

    fn acknowledge(bus: &mut dyn Bus) -> Result<(), DriverError> {
        const RECEIVED: u16 = INTR_RX & !INTR_RX_ERR;
        if read16(bus, INTR_STATUS)? & RECEIVED != 0 {
            write16_flushed(bus, INTR_STATUS, RECEIVED)?;
        }
        Ok(())
    }

    pub(super) fn receive(
        &mut self,
        bus: &mut dyn Bus,
        memory: &Map,
        packet: &mut Vec<u8>,
        budget: usize,
        sink: &mut Sink<'_>,
    ) -> Result<usize, DriverError> {
        let mut packets = 0;
        while packets < budget && read8(bus, CMD)? & CMD_EMPTY == 0 {
            let mut header = [0; 4];
            memory.read(self.buffer + u64::from(self.read), &mut header)?;
            let header = u32::from_le_bytes(header);
            let length = header >> 16;
            if header & RX_STATUS_OK == 0 || !(8..=SLOT as u32 + 8).contains(&length) {
                // Lost synchronization: the receiver restarts, and the driver with it.
                let command = read8(bus, CMD)?;
                write8(bus, CMD, command & !CMD_RX)?;
                write8(bus, CMD, command)?;
                self.read = 0;
                return Ok(packets);
            }
            packet.resize(length as usize - FCS, 0);
            memory.read(self.buffer + u64::from(self.read) + 4, packet)?;
            sink(packet, Received { checksum_good: false, frames: 1 });
            packets += 1;
            self.read = (self.read + length + 4).next_multiple_of(4) % BUFFER;
            write16(bus, RX_BUF_PTR, self.read.wrapping_sub(AHEAD) as u16)?;
            Plain::acknowledge(bus)?;
        }
        if packets == 0 {
            Plain::acknowledge(bus)?;
        }
        Ok(packets)
    }
}
