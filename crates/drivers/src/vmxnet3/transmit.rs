//! A transmit queue: headers in the data ring, the rest in page buffers. The first descriptor is handed over last.

use nicety_adapter::{Checksum, Offload, SegmentKind};
use nicety_frame::{L3Kind, Layout, checksum};
use nicety_memory::{Fault, Map, Rights};

use super::layout::*;
use super::ring::Ring;
use crate::{Arena, DriverError};

/// Bytes of a buffer: a page, like a fragment of a socket buffer.
const BUFFER: usize = 4096;
/// Bytes that a packet without offloads puts into the data ring (`VMXNET3_HDR_COPY_SIZE`).
const HEADER_COPY: usize = 128;
/// Largest offset of a checksum field (`VMXNET3_MAX_CSUM_OFFSET`).
const OFFSET_MAX: u16 = 1024;

#[derive(Debug)]
pub(super) struct Transmit {
    pub ring: Ring,
    pub done: Ring,
    pub data: u64,
    pub data_bytes: u32,
    buffers: u64,
    /// The oldest descriptor not yet reclaimed.
    oldest: u32,
    /// Its `Vmxnet3_TxQueueDesc`.
    shared: u64,
    /// Packets were queued since the last doorbell.
    queued: bool,
}

impl Transmit {
    pub(super) fn new(
        memory: &Map,
        arena: &mut Arena,
        size: u32,
        data_bytes: u32,
        shared: u64,
    ) -> Result<Transmit, DriverError> {
        let (ring, done) = (Ring::new(memory, arena, size)?, Ring::new(memory, arena, size)?);
        let data = arena.take(u64::from(size) * u64::from(data_bytes), RING_ALIGN)?;
        let buffers = arena.take(u64::from(size) * BUFFER as u64, BUFFER as u64)?;
        Ok(Transmit { ring, done, data, data_bytes, buffers, oldest: 0, shared, queued: false })
    }

    fn room(&self) -> u32 {
        (self.oldest + self.ring.size - self.ring.next - 1) % self.ring.size
    }

    /// Reclaims sent packets: a completion names the last descriptor of a packet.
    pub(super) fn reclaim(&mut self, memory: &Map) -> Result<(), DriverError> {
        let window = self.done.window(memory)?;
        for _ in 0..self.done.size {
            let Some([first, ..]) = self.done.completion(&window) else { break };
            let last = first & INDEX_MASK;
            if last >= self.ring.size {
                return Err(DriverError::Device("completes a transmit descriptor that there is not"));
            }
            self.oldest = (last + 1) % self.ring.size;
        }
        Ok(())
    }

    /// Queues a packet. False if there is no room.
    pub(super) fn queue(&mut self, memory: &Map, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        let frame = Frame::of(packet);
        let request = Request::of(packet, &frame, offload)?;
        let in_data = if frame.len() <= HEADER_COPY { frame.len() } else { request.headers.min(frame.len()) };
        let in_data = if in_data <= self.data_bytes as usize { in_data } else { 0 };
        let needed = usize::from(in_data > 0) + (frame.len() - in_data).div_ceil(BUFFER);
        if frame.len() == 0 || needed >= self.ring.size as usize {
            return Err(DriverError::Device("cannot send a packet of that length"));
        }
        if (self.room() as usize) < needed {
            self.reclaim(memory)?;
            if (self.room() as usize) < needed {
                return Ok(false);
            }
        }
        let window = self.ring.window(memory)?;
        let (first, owner) = (self.ring.at(), self.ring.generation);
        let mut done = 0;
        while done < frame.len() {
            let head = done == 0 && in_data > 0;
            let (at, len) = match head {
                true => (self.data + u64::from(self.ring.next) * u64::from(self.data_bytes), in_data),
                false => (self.buffers + u64::from(self.ring.next) * BUFFER as u64, BUFFER.min(frame.len() - done)),
            };
            frame.write(memory, at, done, len)?;
            if done == 0 {
                for (offset, bytes) in request.changes.iter().flatten() {
                    memory.write(at + u64::from(*offset), bytes)?;
                }
            }
            // The first descriptor stays the driver's until the packet is complete.
            let generation = if done == 0 { owner ^ 1 } else { self.ring.generation };
            let third = len as u32 | (generation * TX_GENERATION) | if done == 0 { request.third } else { 0 };
            let end = if done + len == frame.len() { TX_EOP | TX_CQ } else { 0 };
            let fourth = end | if done == 0 { request.fourth } else { 0 };
            let mut descriptor = [0; DESCRIPTOR];
            descriptor[..8].copy_from_slice(&at.to_le_bytes());
            descriptor[8..12].copy_from_slice(&third.to_le_bytes());
            descriptor[12..].copy_from_slice(&fourth.to_le_bytes());
            window.write(self.ring.at(), &descriptor);
            self.ring.advance();
            done += len;
        }
        let control = memory.window(self.shared, queue::BYTES, Rights::BOTH)?;
        let deferred = control.load_u32(queue::TX_DEFERRED).wrapping_add(request.frames(frame.len()));
        control.store_u32(queue::TX_DEFERRED, deferred);
        window.store_u32(first + 8, window.load_u32(first + 8) ^ TX_GENERATION);
        self.queued = true;
        Ok(true)
    }

    /// The producer index, if the device wants a doorbell now.
    pub(super) fn doorbell(&mut self, memory: &Map) -> Result<Option<u32>, DriverError> {
        if !self.queued {
            return Ok(None);
        }
        let control = memory.window(self.shared, queue::BYTES, Rights::BOTH)?;
        if control.load_u32(queue::TX_DEFERRED) < control.load_u32(queue::TX_THRESHOLD) {
            return Ok(None);
        }
        control.store_u32(queue::TX_DEFERRED, 0);
        self.queued = false;
        Ok(Some(self.ring.next))
    }
}

/// A packet as the descriptors carry it: without its VLAN tag, which is in a descriptor.
struct Frame<'a> {
    front: &'a [u8],
    back: &'a [u8],
    tag: Option<u16>,
}

impl<'a> Frame<'a> {
    fn of(packet: &'a [u8]) -> Frame<'a> {
        match (packet.get(..12), packet.get(12..16), packet.get(16..)) {
            (Some(front), Some(&[0x81, 0x00, high, low]), Some(back)) => {
                Frame { front, back, tag: Some(u16::from_be_bytes([high, low])) }
            }
            _ => Frame { front: packet, back: &[], tag: None },
        }
    }

    fn len(&self) -> usize {
        self.front.len() + self.back.len()
    }

    /// Writes `len` bytes, starting at `from`, to guest memory.
    fn write(&self, memory: &Map, mut to: u64, from: usize, len: usize) -> Result<(), Fault> {
        let split = self.front.len();
        let first = self.front.get(from.min(split)..(from + len).min(split)).unwrap_or_default();
        let second = self.back.get(from.saturating_sub(split)..(from + len).saturating_sub(split)).unwrap_or_default();
        for piece in [first, second] {
            if !piece.is_empty() {
                memory.write(to, piece)?;
                to += piece.len() as u64;
            }
        }
        Ok(())
    }
}

/// A packet's offloads, as its first descriptor encodes them.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    third: u32,
    fourth: u32,
    /// Bytes for the data ring.
    headers: usize,
    mss: u16,
    /// Header fields whose value for the device differs from the stack's.
    changes: [Option<(u16, [u8; 2])>; 2],
}

impl Request {
    fn of(packet: &[u8], frame: &Frame<'_>, offload: &Offload) -> Result<Request, DriverError> {
        let (shift, tag) = frame.tag.map_or((0, 0), |tag| (4, TX_TAG | u32::from(tag) << TX_TAG_SHIFT));
        let mut request = Request { third: 0, fourth: tag, headers: HEADER_COPY, mss: 0, changes: [None; 2] };
        let Checksum::Partial { start, field } = offload.checksum else { return Ok(request) };
        let (start, field) = (start.saturating_sub(shift), field.saturating_sub(shift));
        if field >= OFFSET_MAX || start > field {
            return Err(DriverError::Device("cannot make a checksum so far into a packet"));
        }
        let layout = Layout::parse(packet);
        let Some(segment) = offload.segment else {
            request.headers = layout.l4.map_or(usize::from(start), |l4| usize::from(l4.offset + l4.len - shift));
            request.third = u32::from(field) << TX_OFFSET_SHIFT;
            request.fourth |= u32::from(start) | TX_MODE_CHECKSUM;
            return Ok(request);
        };
        let (SegmentKind::Tcp, Some(l3)) = (segment.kind, layout.l3) else {
            return Err(DriverError::Device("cannot segment what is not TCP over IP"));
        };
        let headers = segment.headers.saturating_sub(shift);
        if headers >= OFFSET_MAX || segment.mss == 0 || segment.mss >= 1 << 14 {
            return Err(DriverError::Device("cannot segment with such headers"));
        }
        // Linux: no IP checksum. The TCP checksum is the pseudo-header's without the length.
        let pseudo = checksum::pseudo(packet, &layout, 0).map_or(0, |sum| sum.fold());
        let ip = (l3.kind == L3Kind::V4).then(|| (l3.offset - shift + 10, [0, 0]));
        request.changes = [ip, Some((field, pseudo.to_be_bytes()))];
        request.headers = headers.into();
        request.mss = segment.mss;
        request.third = u32::from(segment.mss) << TX_OFFSET_SHIFT;
        request.fourth |= u32::from(headers) | TX_MODE_TSO;
        Ok(request)
    }

    /// Frames on the wire.
    fn frames(&self, len: usize) -> u32 {
        match self.mss {
            0 => 1,
            mss => len.saturating_sub(self.headers).div_ceil(mss.into()).max(1) as u32,
        }
    }
}

#[cfg(test)]
#[path = "transmit_test.rs"]
mod tests;
