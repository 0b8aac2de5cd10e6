//! A ring with a generation bit in each entry. The bit flips at every round, and shows the entry's owner.

use nicety_memory::{Fault, Map, Rights, Window};

use super::layout::{DESCRIPTOR, GENERATION_SHIFT, RING_ALIGN};
use crate::{Arena, DriverError};

/// One side's position in a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ring {
    pub base: u64,
    pub size: u32,
    /// The next entry to fill or to read.
    pub next: u32,
    /// The generation of entries filled now.
    pub generation: u32,
}

impl Ring {
    /// An empty ring in new, zeroed memory: no entry has a valid generation yet.
    pub(super) fn new(memory: &Map, arena: &mut Arena, size: u32) -> Result<Ring, DriverError> {
        let ring = Ring { base: arena.take(u64::from(size) * 16, RING_ALIGN)?, size, next: 0, generation: 1 };
        let window = ring.window(memory)?;
        for index in 0..size as usize {
            window.write(index * DESCRIPTOR, &[0; DESCRIPTOR]);
        }
        Ok(ring)
    }

    pub(super) fn window<'a>(&self, memory: &'a Map) -> Result<Window<'a>, Fault> {
        memory.window(self.base, self.size * DESCRIPTOR as u32, Rights::BOTH)
    }

    /// The next entry's offset in the window.
    pub(super) fn at(&self) -> usize {
        self.next as usize * DESCRIPTOR
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
        if self.next >= self.size {
            (self.next, self.generation) = (0, self.generation ^ 1);
        }
    }

    /// The next completion, if the device has written it. The word with the generation is read first.
    pub(super) fn completion(&mut self, window: &Window<'_>) -> Option<[u32; 4]> {
        let at = self.at();
        let last = window.load_u32(at + 12);
        if last >> GENERATION_SHIFT != self.generation {
            return None;
        }
        let words = [window.load_u32(at), window.load_u32(at + 4), window.load_u32(at + 8), last];
        self.advance();
        Some(words)
    }
}
