//! The pages of a chip's rings, 0x2000 to 0x3fff of BAR 0, which a guest may map: tails are rung there without a message. ICR, IMS,
//! EITR, CTRL, RCTL and TCTL lie in others (docs/adr/0013).
//!
//! Of these registers the device itself changes the heads, and what a write's mask leaves out or clears at once.

use nicety_adapter::Mappable;

use super::registers::{Bank, Place, RDT, TDT, Table};

/// Where they lie. Mapped, a page reads back what was written, reserved bits included, until the device looks: `ethtool -t` sees that.
pub const PART: Mappable = Mappable { bar: 0, offset: 0x2000, len: 0x2000, usual: false };

/// The registers there, and where each lies in the part: tails last, so that a ring is set up before it is rung.
#[derive(Debug)]
pub struct Pages(Vec<(u32, Place)>);

impl Pages {
    /// Those of a chip.
    pub fn of(table: &'static Table) -> Self {
        let region = table.region(PART.bar);
        let at = |offset: u32| Some((offset, table.find(region, PART.offset + u64::from(offset))?));
        let mut places: Vec<_> = (0..PART.len as u32).step_by(4).filter_map(at).collect();
        places.sort_by_key(|(_, place)| matches!(place.name, TDT | RDT));
        Self(places)
    }

    /// Their offsets in the part.
    pub fn offsets(&self) -> Vec<u32> {
        self.0.iter().map(|(offset, _)| *offset).collect()
    }

    /// What they hold.
    pub fn show(&self, registers: &Bank, words: &mut [u32]) {
        for (word, (_, place)) in words.iter_mut().zip(&self.0) {
            *word = registers.peek(place);
        }
    }
}
