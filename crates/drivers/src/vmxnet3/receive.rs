//! A receive queue: ring 0 with heads (and bodies, for jumbo frames), ring 1 with bodies for longer packets, a data ring for short
//! ones. A descriptor goes back as soon as its bytes are copied.

use nicety_memory::{Map, Rights};

use super::layout::*;
use super::ring::Ring;
use crate::{Arena, DriverError, Received};

const PAGE: u32 = 4096;
/// `VMXNET3_MAX_ETH_HDR_SIZE` and `VMXNET3_MAX_SKB_BUF_SIZE`.
const ETHERNET_MAX: u32 = 22;
const HEAD_MAX: u32 = 3 * 1024;
/// `VMXNET3_MIN_T0_BUF_SIZE`.
const HEAD_MIN: u32 = 128;
/// Ring sizes are multiples of this.
pub(super) const SIZE_UNIT: u32 = 32;

/// Descriptors of one ring, and their buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fill {
    pub ring: Ring,
    buffers: u64,
    /// Bytes from one buffer to the next.
    pitch: u32,
    /// One descriptor in this many is a head; 0: none is.
    per_packet: u32,
    head_bytes: u32,
}

impl Fill {
    fn new(memory: &Map, arena: &mut Arena, size: u32, per_packet: u32, head: u32) -> Result<Fill, DriverError> {
        let ring = Ring::new(memory, arena, size)?;
        let pitch = if per_packet == 1 { head.next_multiple_of(64) } else { PAGE };
        let buffers = arena.take(u64::from(size) * u64::from(pitch), PAGE.into())?;
        let mut fill = Fill { ring, buffers, pitch, per_packet, head_bytes: head };
        let window = ring.window(memory)?;
        for index in 0..size {
            let at = index as usize * DESCRIPTOR;
            window.write(at, &fill.buffer(index).to_le_bytes());
        }
        // The driver keeps one descriptor.
        fill.give(memory, size - 1)?;
        Ok(fill)
    }

    fn buffer(&self, index: u32) -> u64 {
        self.buffers + u64::from(index) * u64::from(self.pitch)
    }

    fn is_head(&self, index: u32) -> bool {
        self.per_packet > 0 && index.is_multiple_of(self.per_packet)
    }

    /// Hands descriptors to the device, up to but not including this index.
    fn give(&mut self, memory: &Map, until: u32) -> Result<(), DriverError> {
        let window = self.ring.window(memory)?;
        let most = self.ring.size - 1;
        let count = (until + self.ring.size - self.ring.next) % self.ring.size;
        for _ in 0..count.min(most) {
            let kind = if self.is_head(self.ring.next) { self.head_bytes } else { PAGE | RX_BODY };
            window.store_u32(self.ring.at() + 8, kind | self.ring.generation << GENERATION_SHIFT);
            self.ring.advance();
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Receive {
    pub fills: [Fill; 2],
    pub done: Ring,
    pub data: u64,
    pub data_bytes: u32,
    shared: u64,
    number: u32,
    queues: u32,
    /// Descriptors were given back since the last doorbell.
    given: [bool; 2],
    skipping: bool,
    packet: Vec<u8>,
    frames: u32,
}

/// The settings of a receive queue.
pub(super) struct Shape {
    pub number: u32,
    pub queues: u32,
    pub mtu: u32,
    pub sizes: [u32; 2],
    pub data_bytes: u32,
}

impl Receive {
    pub(super) fn new(memory: &Map, arena: &mut Arena, shape: &Shape, shared: u64) -> Result<Receive, DriverError> {
        let whole = shape.mtu + ETHERNET_MAX;
        let (head, per_packet) = match whole {
            ..=HEAD_MAX => (whole.max(HEAD_MIN), 1),
            _ => (HEAD_MAX, 1 + (whole - HEAD_MAX).div_ceil(PAGE)),
        };
        let unit = per_packet * SIZE_UNIT;
        let [first, second] = shape.sizes.map(|size| size.max(1).next_multiple_of(unit));
        let fills = [Fill::new(memory, arena, first, per_packet, head)?, Fill::new(memory, arena, second, 0, 0)?];
        let done = Ring::new(memory, arena, first + second)?;
        let data = arena.take(u64::from(first) * u64::from(shape.data_bytes), RING_ALIGN)?;
        Ok(Receive {
            fills,
            done,
            data,
            data_bytes: shape.data_bytes,
            shared,
            number: shape.number,
            queues: shape.queues,
            given: [false; 2],
            skipping: false,
            packet: Vec::with_capacity(64 << 10),
            frames: 1,
        })
    }

    /// Takes completions until a packet is complete in `packet`.
    pub(super) fn next(&mut self, memory: &Map) -> Result<Option<Received>, DriverError> {
        let window = self.done.window(memory)?;
        for _ in 0..self.done.size {
            let Some(words) = self.done.completion(&window) else { return Ok(None) };
            if let Some(received) = self.take(memory, words)? {
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    fn take(&mut self, memory: &Map, words: [u32; 4]) -> Result<Option<Received>, DriverError> {
        let [first, second, third, fourth] = words;
        let index = first & INDEX_MASK;
        let queue = first >> DONE_QUEUE_SHIFT & DONE_QUEUE_MASK;
        let which = match queue.checked_sub(self.number) {
            Some(0) => 0,
            Some(offset) if offset == self.queues => 1,
            Some(offset) if offset == 2 * self.queues && self.data_bytes > 0 => 2,
            _ => return Err(DriverError::Device("completes a receive queue that there is not")),
        };
        let ring = which % 2;
        let Some(fill) = self.fills.get(ring).filter(|fill| index < fill.ring.size).copied() else {
            return Err(DriverError::Device("completes a receive descriptor that there is not"));
        };
        let len = third & DONE_LENGTH_MASK;
        let (place, room) = match which {
            2 => (self.data + u64::from(index) * u64::from(self.data_bytes), self.data_bytes),
            _ if fill.is_head(index) => (fill.buffer(index), fill.head_bytes),
            _ => (fill.buffer(index), PAGE),
        };
        if len > room {
            return Err(DriverError::Device("received more than a buffer holds"));
        }
        if first & DONE_SOP != 0 {
            self.packet.clear();
            self.skipping = len == 0;
            let lro = fourth >> DONE_KIND_SHIFT & DONE_KIND_MASK == DONE_KIND_LRO;
            // An LRO completion has the number of joined frames in place of the hash (`Vmxnet3_RxCompDescExt`).
            self.frames = if lro { (second & 0xff).max(1) } else { 1 };
        }
        if !self.skipping && len > 0 {
            let at = self.packet.len();
            self.packet.resize(at + len as usize, 0);
            memory.read(place, self.packet.get_mut(at..).unwrap_or_default())?;
        }
        if let Some(fill) = self.fills.get_mut(ring) {
            fill.give(memory, index)?;
        }
        if let Some(given) = self.given.get_mut(ring) {
            *given = true;
        }
        if first & DONE_EOP == 0 {
            return Ok(None);
        }
        if third & DONE_ERROR != 0 || std::mem::take(&mut self.skipping) {
            self.packet.clear();
            return Ok(None);
        }
        if third & DONE_TAG != 0 {
            let tag = ((third >> 16) as u16).to_be_bytes();
            let at = self.packet.len().min(12);
            self.packet.splice(at..at, [0x81, 0x00, tag[0], tag[1]]);
        }
        let v4 = DONE_TRANSPORT_GOOD | DONE_IP_GOOD;
        let good =
            fourth & DONE_V4 != 0 && fourth & v4 == v4 || fourth & DONE_V6 != 0 && fourth & DONE_TRANSPORT_GOOD != 0;
        let checksum_good = good && first & DONE_NOT_CALCULATED == 0;
        Ok(Some(Received { checksum_good, frames: self.frames }))
    }

    /// The packet that [`Receive::next`] has assembled.
    pub(super) fn packet(&mut self) -> &mut Vec<u8> {
        &mut self.packet
    }

    /// Doorbells to write, if the device wants to know of returned buffers.
    pub(super) fn doorbells(&mut self, memory: &Map) -> Result<[Option<u32>; 2], DriverError> {
        if self.given == [false; 2] {
            return Ok([None; 2]);
        }
        let given = std::mem::take(&mut self.given);
        let [wanted] = memory.window(self.shared, queue::BYTES, Rights::BOTH)?.read::<1>(queue::UPDATE_RX_PROD);
        let [first, second] = self.fills.map(|fill| fill.ring.next);
        let tell = |ring: bool, next| (ring && wanted != 0).then_some(next);
        Ok([tell(given[0], first), tell(given[1], second)])
    }
}
