//! State that a server of packed rings leaves for its successor in case it is killed (vhost-user.rst, "Inflight I/O tracking"; the
//! format is the back end's own).
//!
//! A split ring's position is its used index in guest memory: chains are completed in the order in which they were taken, so all
//! after it are taken again. A packed ring's position is not in memory. Therefore a file that the front end keeps has a page for
//! each ring, with the position and the chains to be completed there, written before the ring is. A successor finishes that
//! completion, or finds it done.

use std::sync::atomic::{Ordering, compiler_fence};

use arrayvec::ArrayVec;
use nicety_memory::{Map, Rights, Window};

use super::buffers::PIECES;

/// Bytes for each ring.
pub const KEPT_BYTES: u64 = 4096;
/// The first word: the position (bits 0-15), the number of chains, and a flag that it is valid.
const COUNT_SHIFT: u32 = 16;
const VALID: u64 = 1 << 32;
/// Offset of the base with which the front end started the ring, with the same flag.
const BASE_AT: usize = 8 + 8 * PIECES;

/// A ring's page.
#[derive(Debug)]
pub(super) struct Kept<'m>(Window<'m>);

impl<'m> Kept<'m> {
    /// The page of a ring, if it has one.
    pub fn of(map: &'m Map, ring: u16) -> Option<Self> {
        map.window(KEPT_BYTES * u64::from(ring), KEPT_BYTES as u32, Rights::BOTH).ok().map(Self)
    }

    /// There is no record any more.
    pub fn clear(&self) {
        self.0.store_u64(0, 0);
    }

    /// Records the base with which the front end has started the ring.
    pub fn begin(&self, base: u32) {
        self.0.store_u64(BASE_AT, u64::from(base) | VALID);
    }

    /// Whether the front end starts the ring with another base than before.
    pub fn is_moved(&self, base: u32) -> bool {
        let before = u64::from_le_bytes(self.0.read(BASE_AT));
        before & VALID != 0 && before as u32 != base
    }

    /// Records that these chains are completed next, from a position on. The count stays 0 until all of them are recorded. So if the server
    /// is killed in between, no chain counts as completed.
    pub fn write(&self, place: u16, chains: &[u64]) {
        self.write_around(place, chains, || ());
    }

    /// `between` runs in tests while the record is partial.
    #[inline(always)]
    fn write_around(&self, place: u16, chains: &[u64], between: impl FnOnce()) {
        let word = u64::from(place) | VALID;
        self.0.store_u64(0, word);
        compiler_fence(Ordering::SeqCst);
        self.0.write_u64s(8, chains);
        between();
        compiler_fence(Ordering::SeqCst);
        self.0.store_u64(0, word | (chains.len() as u64) << COUNT_SHIFT);
    }

    /// The record, if it is valid.
    pub fn read(&self) -> Option<(u16, ArrayVec<u64, PIECES>)> {
        let word = u64::from_le_bytes(self.0.read(0));
        let count = usize::from((word >> COUNT_SHIFT) as u16);
        let valid = word & VALID != 0 && count <= PIECES;
        valid.then(|| (word as u16, (0..count).map(|index| u64::from_le_bytes(self.0.read(8 + 8 * index))).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_being_written_names_its_place_and_no_chain_of_another() {
        let map = Map::private(KEPT_BYTES as usize).unwrap();
        let kept = Kept::of(&map, 0).unwrap();
        assert_eq!(kept.read(), None);
        for (place, chains) in [(3, &[7, 8, 9][..]), (6, &[1]), (0x8001, &[4, 5])] {
            kept.write_around(place, chains, || assert_eq!(kept.read(), Some((place, ArrayVec::new()))));
            assert_eq!(kept.read().map(|(at, chains)| (at, chains.to_vec())), Some((place, chains.to_vec())));
        }
    }
}
