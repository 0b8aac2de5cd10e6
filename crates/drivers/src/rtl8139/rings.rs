//! C+ mode (Linux 8139cp.c): a descriptor ring for each direction.

use nicety_adapter::{Bus, Checksum, Offload, SegmentKind};
use nicety_frame::{L3Kind, L4Kind, Layout};
use nicety_memory::{Map, Rights};

use super::registers::*;
use super::{write8, write16, write16_flushed};
use crate::{Arena, DriverError, Received, Sink};

const RING: u16 = 64;
const RING_BYTES: u32 = RING as u32 * DESCRIPTOR as u32;
/// Linux's PKT_BUF_SZ.
const RECEIVE_BUFFER: u32 = 1536;
/// Bytes per descriptor.
const TRANSMIT_BUFFER: u32 = 4096;
/// Bytes of the longest packet that the device segments: the limit of the 16-bit IP length.
pub(super) const SEGMENT_BYTES: u32 = 65_535;

#[derive(Debug)]
pub(super) struct Rings {
    receive: u64,
    receive_buffers: u64,
    transmit: u64,
    transmit_buffers: u64,
    /// The next descriptor that the device fills.
    filled: u16,
    /// The next descriptor to queue, the oldest one not yet reclaimed, and the index of the last doorbell.
    next: u16,
    oldest: u16,
    notified: u16,
}

fn end(index: u16) -> u32 {
    if index + 1 == RING { RING_END } else { 0 }
}

/// A packet's offloads, as descriptors encode them: `None` for a checksum that the device cannot make.
pub(super) fn commands(packet: &[u8], offload: &Offload) -> Result<Option<u32>, DriverError> {
    let Checksum::Partial { .. } = offload.checksum else { return Ok(Some(0)) };
    let layout = Layout::parse(packet);
    let v4 = layout.l3.is_some_and(|l3| l3.kind == L3Kind::V4);
    if let Some(segment) = offload.segment {
        if !v4 || segment.kind != SegmentKind::Tcp || segment.mss > MSS_MAX {
            return Err(DriverError::Device("cannot segment what is not TCP over IPv4, or into frames so long"));
        }
        return Ok(Some(LARGE_SEND | u32::from(segment.mss) << MSS_SHIFT));
    }
    Ok(layout.l4.filter(|_| v4).map(|l4| IP_SUM | if l4.kind == L4Kind::Tcp { TCP_SUM } else { UDP_SUM }))
}

impl Rings {
    pub(super) fn open(bus: &mut dyn Bus, memory: &Map, arena: &mut Arena) -> Result<Rings, DriverError> {
        let receive = arena.take(RING_BYTES.into(), 256)?;
        let transmit = arena.take(RING_BYTES.into(), 256)?;
        let receive_buffers = arena.take(u64::from(RING) * u64::from(RECEIVE_BUFFER), 4096)?;
        let transmit_buffers = arena.take(u64::from(RING) * u64::from(TRANSMIT_BUFFER), 4096)?;
        let this =
            Rings { receive, receive_buffers, transmit, transmit_buffers, filled: 0, next: 0, oldest: 0, notified: 0 };
        for index in 0..RING {
            this.post(memory, index)?;
            this.describe(memory, index, end(index), 0)?;
        }
        write16_flushed(bus, CP_CMD, CP_CMD_USUAL)?;
        for (register, ring) in [(HIGH_TX_RING, 0), (RX_RING, receive), (TX_RING, transmit)] {
            bus.write32(BAR, register, ring as u32)?;
            bus.write32(BAR, register + 4, (ring >> 32) as u32)?;
        }
        write8(bus, CMD, CMD_RX | CMD_TX)?;
        write8(bus, TX_THRESH, 6)?;
        bus.write32(BAR, RX_CONFIG, RX_CONFIG_USUAL)?;
        Ok(this)
    }

    fn post(&self, memory: &Map, index: u16) -> Result<(), DriverError> {
        let window = memory.window(self.receive, RING_BYTES, Rights::BOTH)?;
        let at = usize::from(index) * DESCRIPTOR;
        let buffer = self.receive_buffers + u64::from(index) * u64::from(RECEIVE_BUFFER);
        window.write(at + 8, &buffer.to_le_bytes());
        window.store_u32(at + 4, 0);
        window.store_u32(at, OWN | end(index) | RECEIVE_BUFFER);
        Ok(())
    }

    fn describe(&self, memory: &Map, index: u16, first: u32, buffer: u64) -> Result<(), DriverError> {
        let window = memory.window(self.transmit, RING_BYTES, Rights::BOTH)?;
        let at = usize::from(index) * DESCRIPTOR;
        window.write(at + 8, &buffer.to_le_bytes());
        window.store_u32(at + 4, 0);
        window.store_u32(at, first);
        Ok(())
    }

    fn room(&self) -> u16 {
        (self.oldest + RING - self.next - 1) % RING
    }

    /// Reclaims the descriptors of sent packets.
    pub(super) fn reclaim(&mut self, memory: &Map) -> Result<(), DriverError> {
        let window = memory.window(self.transmit, RING_BYTES, Rights::BOTH)?;
        while self.oldest != self.next && window.load_u32(usize::from(self.oldest) * DESCRIPTOR) & OWN == 0 {
            self.oldest = (self.oldest + 1) % RING;
        }
        Ok(())
    }

    /// Queues a packet and hands its first descriptor over last. False if there is no room.
    pub(super) fn queue(&mut self, memory: &Map, packet: &[u8], commands: u32) -> Result<bool, DriverError> {
        let pieces = packet.len().div_ceil(TRANSMIT_BUFFER as usize);
        let needed = u16::try_from(pieces).unwrap_or(u16::MAX);
        if self.room() < needed {
            self.reclaim(memory)?;
            if self.room() < needed {
                return Ok(false);
            }
        }
        let begin = self.next;
        for (number, piece) in packet.chunks(TRANSMIT_BUFFER as usize).enumerate().rev() {
            let index = (begin + number as u16) % RING;
            let buffer = self.transmit_buffers + u64::from(index) * u64::from(TRANSMIT_BUFFER);
            memory.write(buffer, piece)?;
            let place = if number == 0 { FIRST } else { 0 } | if number + 1 == pieces { LAST } else { 0 };
            self.describe(memory, index, OWN | place | end(index) | commands | piece.len() as u32, buffer)?;
        }
        self.next = (begin + needed) % RING;
        Ok(true)
    }

    /// True if descriptors were queued since the last doorbell.
    pub(super) fn doorbell(&mut self) -> bool {
        std::mem::replace(&mut self.notified, self.next) != self.next
    }

    pub(super) fn receive(
        &mut self,
        bus: &mut dyn Bus,
        memory: &Map,
        packet: &mut Vec<u8>,
        budget: usize,
        sink: &mut Sink<'_>,
    ) -> Result<usize, DriverError> {
        write16(bus, INTR_STATUS, INTR_RX)?;
        let mut packets = 0;
        while packets < budget {
            let window = memory.window(self.receive, RING_BYTES, Rights::BOTH)?;
            let status = window.load_u32(usize::from(self.filled) * DESCRIPTOR);
            if status & OWN != 0 {
                break;
            }
            let buffer = self.receive_buffers + u64::from(self.filled) * u64::from(RECEIVE_BUFFER);
            let length = ((status & RX_LENGTH) as usize).min(RECEIVE_BUFFER as usize);
            // As Linux: a frame in several buffers is dropped.
            if status & (FIRST | LAST) == FIRST | LAST && status & RX_ERROR == 0 && length > FCS {
                packets += 1;
                packet.resize(length - FCS, 0);
                memory.read(buffer, packet)?;
                let good = match status >> 16 & 3 {
                    1 => status & RX_TCP_FAIL == 0,
                    2 => status & RX_UDP_FAIL == 0,
                    _ => false,
                };
                sink(packet, Received { checksum_good: good, frames: 1 });
            }
            self.post(memory, self.filled)?;
            self.filled = (self.filled + 1) % RING;
        }
        Ok(packets)
    }
}
