//! The two pages of BAR 0 with a chip's rings, which a guest may map: there a driver writes tails without a message. They begin at
//! [`GIGABIT`], of a function of an 82599 at [`TEN_GIGABIT`]. ICR, IMS, EITR, CTRL, RCTL and TCTL, and the mailbox of a function, are
//! on other pages (docs/adr/0013).
//!
//! Of these registers the device itself changes the heads, the bits that a write's mask excludes or that clear at once, and a
//! function of an 82599's counters.

use nicety_adapter::Mappable;

use super::registers::{Bank, Place, RDT, TDT, Table};

/// Offset of the first ring of an 82574, of an 82576 and of its functions.
pub const GIGABIT: u64 = 0x2000;
/// Offset of the first ring of an 82599's functions. Counters lie between the rings.
pub const TEN_GIGABIT: u64 = 0x1000;

/// The registers in a page that a guest may map. Until the device looks at the page, a read returns what was written, reserved bits
/// included. `ethtool -t` notices that.
#[derive(Debug)]
pub struct Pages {
    part: Mappable,
    /// With their offsets in the part. Tails are last, so that a ring is set up before its doorbell.
    places: Vec<(u32, Place)>,
}

impl Pages {
    /// Pages of a chip whose rings begin here.
    pub fn of(table: &'static Table, rings: u64) -> Self {
        let part = Mappable { bar: 0, offset: rings, len: 0x2000, usual: false };
        let region = table.region(part.bar);
        let at = |offset: u32| Some((offset, table.find(region, part.offset + u64::from(offset))?));
        let mut places: Vec<_> = (0..part.len as u32).step_by(4).filter_map(at).collect();
        places.sort_by_key(|(_, place)| matches!(place.name, TDT | RDT));
        Self { part, places }
    }

    /// Their part of the BAR.
    pub fn part(&self) -> Mappable {
        self.part
    }

    /// Offsets in the part.
    pub fn offsets(&self) -> Vec<u32> {
        self.places.iter().map(|(offset, _)| *offset).collect()
    }

    /// Writes their values.
    pub fn show(&self, registers: &Bank, words: &mut [u32]) {
        for (word, (_, place)) in words.iter_mut().zip(&self.places) {
            *word = registers.peek(place);
        }
    }
}
