//! What a server of packed rings leaves to the one that takes over when it is killed (vhost-user.rst, "Inflight I/O tracking"; the
//! format is the back end's own).
//!
//! Where a split ring stands its used index says, in guest memory: chains are given back in the order in which they were taken, so that all
//! behind it are taken again. A packed ring's place is in no memory. So a page a ring, in a file that the front end keeps, has the place
//! and the chains that are given back there next, written before the ring is: whoever comes next finishes that, or finds it done.

use arrayvec::ArrayVec;
use nicety_memory::{Map, Rights, Window};

use super::landing::PIECES;

/// Bytes a ring.
pub const KEPT_BYTES: u64 = 4096;
/// The first word: the place, how many chains there are, and that it says anything at all.
const COUNT_SHIFT: u32 = 16;
const SAYS: u64 = 1 << 32;

/// A ring's part.
#[derive(Debug)]
pub(super) struct Kept<'m>(Window<'m>);

impl<'m> Kept<'m> {
    /// The part of a ring, if it has one.
    pub fn of(map: &'m Map, ring: u16) -> Option<Self> {
        map.window(KEPT_BYTES * u64::from(ring), KEPT_BYTES as u32, Rights::BOTH).ok().map(Self)
    }

    /// These chains are given back at a place next.
    pub fn write(&self, place: u16, chains: &[u64]) {
        self.0.write_u64s(8, chains);
        self.0.store_u64(0, u64::from(place) | (chains.len() as u64) << COUNT_SHIFT | SAYS);
    }

    /// What was written, if anything was.
    pub fn read(&self) -> Option<(u16, ArrayVec<u64, PIECES>)> {
        let word = u64::from_le_bytes(self.0.read(0));
        let count = usize::from((word >> COUNT_SHIFT) as u16);
        let says = word & SAYS != 0 && count <= PIECES;
        says.then(|| (word as u16, (0..count).map(|index| u64::from_le_bytes(self.0.read(8 + 8 * index))).collect()))
    }
}
