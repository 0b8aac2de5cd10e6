//! The pages of a chip's rings, 0x2000 to 0x3fff of BAR 0, which a guest may map: there a driver writes tails without a message.
//! ICR, IMS, EITR, CTRL, RCTL and TCTL are on other pages (docs/adr/0013).
//!
//! Of these registers the device itself changes the heads, and the bits that a write's mask excludes or that clear at once.

use nicety_adapter::Mappable;

use super::registers::{Bank, Place, RDT, TDT, Table};

/// Their part of the BAR. Mapped, a page reads back the written values, reserved bits included, until the device reads it: `ethtool
/// -t` sees that.
pub const PART: Mappable = Mappable { bar: 0, offset: 0x2000, len: 0x2000, usual: false };

/// The registers there, with their offsets in the part. Tails are last, so that a ring is set up before its doorbell.
#[derive(Debug)]
pub struct Pages(Vec<(u32, Place)>);

impl Pages {
    /// Pages of a chip.
    pub fn of(table: &'static Table) -> Self {
        let region = table.region(PART.bar);
        let at = |offset: u32| Some((offset, table.find(region, PART.offset + u64::from(offset))?));
        let mut places: Vec<_> = (0..PART.len as u32).step_by(4).filter_map(at).collect();
        places.sort_by_key(|(_, place)| matches!(place.name, TDT | RDT));
        Self(places)
    }

    /// Offsets in the part.
    pub fn offsets(&self) -> Vec<u32> {
        self.0.iter().map(|(offset, _)| *offset).collect()
    }

    /// Writes their values.
    pub fn show(&self, registers: &Bank, words: &mut [u32]) {
        for (word, (_, place)) in words.iter_mut().zip(&self.0) {
            *word = registers.peek(place);
        }
    }
}
