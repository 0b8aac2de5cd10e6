//! The transmit queue: a packet takes one descriptor, which points to its single buffer or to a table of buffers.

use nicety_adapter::Offload;
use nicety_memory::Map;

use super::ring::{DESCRIPTOR, INDIRECT, NEXT, Ring, descriptor};
use super::{features, header};
use crate::{Arena, DriverError};

const BUFFER: usize = 4096;
/// Buffers for each descriptor of the ring: short packets take one, TSO packets up to 17.
const BUFFERS_EACH: u32 = 2;
/// Buffers of a 64 KB packet with its header.
const PIECES: usize = 17;
const TABLE: u64 = (PIECES * DESCRIPTOR) as u64;

#[derive(Debug, Default)]
pub(super) struct Transmit {
    pub ring: Ring,
    buffers: u64,
    tables: u64,
    taken: u64,
    free_buffers: Vec<u16>,
    free_descriptors: Vec<u16>,
    /// Buffers and descriptors of the packets in flight, indexed by head.
    held: Vec<Held>,
}

#[derive(Clone, Debug, Default)]
struct Held {
    buffers: Vec<u16>,
    descriptors: Vec<u16>,
}

impl Transmit {
    pub(super) fn new(memory: &Map, arena: &mut Arena, size: u16, taken: u64) -> Result<Transmit, DriverError> {
        let ring = Ring::new(memory, arena, size, features::has(taken, features::EVENTS))?;
        let count = u32::from(size) * BUFFERS_EACH;
        let buffers = arena.take(u64::from(count) * BUFFER as u64, BUFFER as u64)?;
        let tables = arena.take(u64::from(size) * TABLE, 16)?;
        let held = || Held { buffers: Vec::with_capacity(PIECES), descriptors: Vec::with_capacity(PIECES) };
        Ok(Transmit {
            ring,
            buffers,
            tables,
            taken,
            free_buffers: (0..count as u16).rev().collect(),
            free_descriptors: (0..size).rev().collect(),
            held: (0..size).map(|_| held()).collect(),
        })
    }

    /// Reclaims the buffers of sent packets.
    pub(super) fn reclaim(&mut self, memory: &Map) -> Result<(), DriverError> {
        let window = self.ring.window(memory)?;
        while let Some((head, _)) = self.ring.take(&window)? {
            let Some(held) = self.held.get_mut(usize::from(head)).filter(|held| !held.buffers.is_empty()) else {
                return Err(DriverError::Device("gives back a packet that was not sent"));
            };
            self.free_buffers.append(&mut held.buffers);
            self.free_descriptors.append(&mut held.descriptors);
        }
        Ok(())
    }

    fn fits(&self, pieces: usize, descriptors: usize) -> bool {
        self.free_buffers.len() >= pieces && self.free_descriptors.len() >= descriptors
    }

    /// Queues a packet. False if there is no room: an interrupt follows when there is.
    pub(super) fn queue(&mut self, memory: &Map, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        let pieces = (packet.len() + header::BYTES).div_ceil(BUFFER);
        let indirect = pieces > 1 && features::has(self.taken, features::INDIRECT);
        let descriptors = if indirect { 1 } else { pieces };
        if packet.is_empty() || pieces > PIECES || descriptors > usize::from(self.ring.size()) {
            return Err(DriverError::Device("cannot send a packet of that length"));
        }
        let header = header::of(packet, offload, self.taken)?;
        if !self.fits(pieces, descriptors) {
            self.reclaim(memory)?;
            let window = self.ring.window(memory)?;
            // As Linux: when three quarters of the chains in flight have returned.
            if !self.fits(pieces, descriptors) && self.ring.arm(&window, self.ring.outstanding() / 4 * 3) {
                self.reclaim(memory)?;
            }
            if !self.fits(pieces, descriptors) {
                return Ok(false);
            }
            self.ring.mute(&window);
        }
        self.place(memory, packet, &header, pieces, indirect)?;
        Ok(true)
    }

    fn place(
        &mut self,
        memory: &Map,
        packet: &[u8],
        header: &[u8; header::BYTES],
        pieces: usize,
        indirect: bool,
    ) -> Result<(), DriverError> {
        let window = self.ring.window(memory)?;
        let Some(&head) = self.free_descriptors.last() else { return Ok(()) };
        let Some(held) = self.held.get_mut(usize::from(head)) else { return Ok(()) };
        let descriptors = if indirect { 1 } else { pieces };
        held.buffers.extend(self.free_buffers.drain(self.free_buffers.len() - pieces..));
        held.descriptors.extend(self.free_descriptors.drain(self.free_descriptors.len() - descriptors..).rev());
        let table = self.tables + u64::from(head) * TABLE;
        let mut rest = packet;
        for (number, buffer) in held.buffers.iter().enumerate() {
            let at = self.buffers + u64::from(*buffer) * BUFFER as u64;
            let front = if number == 0 { header::BYTES } else { 0 };
            if number == 0 {
                memory.write(at, header)?;
            }
            let (piece, after) = rest.split_at_checked(BUFFER - front).unwrap_or((rest, &[]));
            memory.write(at + front as u64, piece)?;
            rest = after;
            let flags = if number + 1 < pieces { NEXT } else { 0 };
            let len = (piece.len() + front) as u32;
            if indirect {
                let bytes = descriptor(at, len, flags, number as u16 + 1);
                memory.write(table + (number * DESCRIPTOR) as u64, &bytes)?;
            } else {
                let own = held.descriptors.get(number).copied().unwrap_or(head);
                let next = held.descriptors.get(number + 1).copied().unwrap_or(0);
                self.ring.set(&window, own, &descriptor(at, len, flags, next));
            }
        }
        if indirect {
            self.ring.set(&window, head, &descriptor(table, (pieces * DESCRIPTOR) as u32, INDIRECT, 0));
        }
        self.ring.add(&window, head);
        self.ring.show(&window);
        Ok(())
    }
}
