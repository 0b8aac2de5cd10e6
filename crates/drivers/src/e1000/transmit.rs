//! The transmit ring (sections 3.3.5 to 3.3.7: legacy, context and data descriptors).

use nicety_adapter::{Checksum, Offload};
use nicety_frame::{L3Kind, Layout, checksum};
use nicety_memory::{Map, Rights};

use super::moderation::Moderation;
use super::registers::*;
use super::{RING, RING_BYTES};
use crate::{Arena, DriverError};

/// Bytes per descriptor: Linux uses the same limit for this family.
const BUFFER: u32 = 4096;
/// Longest headers of a packet to segment: the context's header length has 8 bits.
const HEADERS_MAX: usize = 255;

/// A packet in the ring: its last descriptor, its frames and bytes on the wire.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    last: u16,
    frames: u32,
    bytes: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Transmit {
    pub(crate) ring: u64,
    buffers: u64,
    /// The next descriptor to fill.
    next: u16,
    /// The oldest descriptor that is not yet reclaimed.
    oldest: u16,
    /// Tail that the device was last notified of.
    notified_tail: u16,
    /// The end of each packet and its size on the wire, at the packet's first descriptor.
    ends: Vec<End>,
}

impl End {
    /// Counts as Linux does: each frame but the first repeats the headers.
    fn of(last: u16, packet: &[u8], offload: &Offload) -> End {
        let len = packet.len() as u32;
        let Some(segment) = offload.segment else { return End { last, frames: 1, bytes: len } };
        let headers = u32::from(segment.headers);
        let frames = len.saturating_sub(headers).div_ceil(u32::from(segment.mss).max(1)).max(1);
        End { last, frames, bytes: len + (frames - 1) * headers }
    }
}

impl Transmit {
    pub(crate) fn new(memory: &Map, arena: &mut Arena) -> Result<Transmit, DriverError> {
        let ring = arena.take(RING_BYTES.into(), 4096)?;
        let buffers = arena.take(u64::from(RING) * u64::from(BUFFER), 4096)?;
        memory.window(ring, RING_BYTES, Rights::BOTH)?.write(0, &[0; RING_BYTES as usize]);
        Ok(Transmit { ring, buffers, ends: vec![End::default(); usize::from(RING)], ..Transmit::default() })
    }

    fn room(&self) -> u16 {
        (self.oldest + RING - self.next - 1) % RING
    }

    /// Reclaims the descriptors of sent packets.
    pub(crate) fn reclaim(&mut self, memory: &Map, moderation: &mut Moderation) -> Result<(), DriverError> {
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        while self.oldest != self.next {
            let Some(&End { last, frames, bytes }) = self.ends.get(usize::from(self.oldest)) else { break };
            if window.load_u32(usize::from(last) * DESCRIPTOR + 12) & TX_DD == 0 {
                break;
            }
            moderation.sent(frames, bytes);
            self.oldest = (last + 1) % RING;
        }
        Ok(())
    }

    /// Queues a packet. False if there is no room.
    pub(crate) fn queue(
        &mut self,
        memory: &Map,
        packet: &[u8],
        offload: &Offload,
        moderation: &mut Moderation,
    ) -> Result<bool, DriverError> {
        let pieces = packet.len().div_ceil(BUFFER as usize);
        let needed = u16::try_from(pieces + 1).unwrap_or(u16::MAX);
        if self.room() < needed {
            self.reclaim(memory, moderation)?;
            if self.room() < needed {
                return Ok(false);
            }
        }
        let first = self.next;
        let request = Request::of(packet, offload)?;
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        let put = |index: u16, address: u64, third: u32, fourth: u32| {
            let mut descriptor = [0; DESCRIPTOR];
            descriptor[..8].copy_from_slice(&address.to_le_bytes());
            descriptor[8..12].copy_from_slice(&third.to_le_bytes());
            descriptor[12..].copy_from_slice(&fourth.to_le_bytes());
            window.write(usize::from(index) * DESCRIPTOR, &descriptor);
        };
        if let Some((offsets, third, fourth)) = request.context {
            put(self.next, offsets, third, fourth);
            self.next = (self.next + 1) % RING;
        }
        let mut last = self.next;
        for (number, piece) in packet.chunks(BUFFER as usize).enumerate() {
            let buffer = self.buffers + u64::from(self.next) * u64::from(BUFFER);
            memory.write(buffer, piece)?;
            if number == 0
                && let Some((head, len)) = &request.head
            {
                memory.write(buffer, head.get(..*len).unwrap_or_default())?;
            }
            let end = if number + 1 == pieces { TX_EOP | TX_RS } else { 0 };
            put(self.next, buffer, piece.len() as u32 | request.command | TX_IDE | end, request.options);
            last = self.next;
            self.next = (self.next + 1) % RING;
        }
        if let Some(end) = self.ends.get_mut(usize::from(first)) {
            *end = End::of(last, packet, offload);
        }
        Ok(true)
    }

    /// The tail, if the device was not yet notified of it.
    pub(crate) fn doorbell(&mut self) -> Option<u16> {
        let changed = self.notified_tail != self.next;
        self.notified_tail = self.next;
        changed.then_some(self.next)
    }
}

/// A packet's offloads, as descriptors encode them.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    /// The first eight bytes, third and fourth word of the context descriptor.
    context: Option<(u64, u32, u32)>,
    /// Command bits of the data descriptors.
    command: u32,
    options: u32,
    /// Headers rewritten for segmentation, and their length.
    head: Option<([u8; HEADERS_MAX], usize)>,
}

impl Request {
    fn of(packet: &[u8], offload: &Offload) -> Result<Request, DriverError> {
        let Checksum::Partial { start, field } = offload.checksum else {
            return Ok(Request { context: None, command: TX_IFCS, options: 0, head: None });
        };
        let [start_byte, field_byte] = [start, field].map(|offset| u8::try_from(offset).ok());
        let (Some(start_byte), Some(field_byte)) = (start_byte, field_byte) else {
            return Err(DriverError::Device("cannot make a checksum beyond byte 255 of a packet"));
        };
        // Transport checksum: start, field, end (0: the packet's).
        let transport = u64::from(start_byte) << 32 | u64::from(field_byte) << 40;
        let data = TX_DATA | TX_DEXT | TX_IFCS;
        let Some(segment) = offload.segment else {
            return Ok(Request {
                context: Some((transport, TX_DEXT | TX_IDE | TX_CONTEXT_TCP, 0)),
                command: data,
                options: TX_TXSM,
                head: None,
            });
        };
        let headers = usize::from(segment.headers);
        let layout = Layout::parse(packet);
        let (Some(l3), Some(given)) = (layout.l3, packet.get(..headers).filter(|_| headers <= HEADERS_MAX)) else {
            return Err(DriverError::Device("cannot segment what is not TCP over IP"));
        };
        // Section 3.5.8: lengths and the IP checksum are zero. The TCP checksum is the pseudo-header's, without the length.
        let mut head = [0; HEADERS_MAX];
        head[..headers].copy_from_slice(given);
        let at = usize::from(l3.offset);
        let zeros: &[usize] = if l3.kind == L3Kind::V4 { &[2, 3, 10, 11] } else { &[4, 5] };
        for offset in zeros {
            if let Some(byte) = head.get_mut(at + offset) {
                *byte = 0;
            }
        }
        let pseudo = checksum::pseudo(packet, &layout, 0).map_or(0, |sum| sum.fold());
        let field = usize::from(field_byte);
        if let Some(place) = head.get_mut(field..field + 2) {
            place.copy_from_slice(&pseudo.to_be_bytes());
        }
        let (ip, kind, insert) = match l3.kind {
            L3Kind::V4 => {
                let end = u64::from(start.saturating_sub(1));
                (at as u64 | (at as u64 + 10) << 8 | end << 16, TX_CONTEXT_IP, TX_IXSM)
            }
            L3Kind::V6 => (at as u64, 0, 0),
        };
        let payload = (packet.len() - headers) as u32;
        let third = payload | TX_DEXT | TX_IDE | TX_CONTEXT_TCP | TX_TSE | kind;
        let fourth = (headers as u32) << 8 | u32::from(segment.mss) << 16;
        Ok(Request {
            context: Some((ip | transport, third, fourth)),
            command: data | TX_TSE,
            options: TX_TXSM | insert,
            head: Some((head, headers)),
        })
    }
}

#[cfg(test)]
#[path = "transmit_test.rs"]
mod tests;
