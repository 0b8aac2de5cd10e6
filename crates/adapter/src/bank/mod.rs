//! A device's registers: their properties are data ([`Table`], one per model), their values are a [`Bank`], and the side effects of
//! an access are a readable `match` in the adapter.
//!
//! ```text
//!  access: region, offset, width                Table (static, per model)
//!        │                                      ├ regions: BARs, widths, what a hole reads as
//!        ▼                                      ├ blocks:  base, stride, count ── rows: name, offset,
//!  Table::parts ──► Part { place, bytes } ◄─────┤                                 width, reset, masks
//!        │                                      └ aliases
//!        ▼
//!  match place.name { .. } ──► Bank::read, Bank::write ──► slots ◄── bank[Reg::TDT], bank.of(Reg::MTA)
//! ```
//! Names belong to a family: a name has the same slot in every model, so the data path reads a register by a constant. A register
//! that a model lacks is always zero.

mod table;
#[cfg(test)]
mod tests;

use std::ops::{Index, IndexMut};

use crate::snapshot::RestoreError;

pub use table::{Alias, Block, Direction, Names, Part, Place, Region, Row, Table, Widths, changed, without};

/// The values of a device's registers.
#[derive(Clone, Debug)]
pub struct Bank<N: 'static> {
    table: &'static Table<N>,
    slots: Box<[u32]>,
}

impl<N: Names> Bank<N> {
    /// All registers at their reset values.
    pub fn new(table: &'static Table<N>) -> Self {
        let mut this = Self { table, slots: vec![0; N::SLOTS].into_boxed_slice() };
        this.reset(|_| true);
        this
    }

    /// The properties of the registers.
    pub fn table(&self) -> &'static Table<N> {
        self.table
    }

    /// Resets the registers of these regions.
    pub fn reset(&mut self, which: impl Fn(u8) -> bool) {
        for (_, _, place) in self.table.places().filter(|(region, _, place)| which(*region) && !place.row.port) {
            self.slots[place.slot] = place.row.reset;
        }
    }

    /// All registers of a name.
    pub fn of(&self, name: N) -> &[u32] {
        &self.slots[name.slots()]
    }

    /// All registers of a name, mutable.
    pub fn of_mut(&mut self, name: N) -> &mut [u32] {
        &mut self.slots[name.slots()]
    }

    /// The value for a guest's read: the readable bits. Clears the bits that reading clears.
    pub fn read(&mut self, place: &Place<N>) -> u32 {
        let stored = self.slots[place.slot];
        self.slots[place.slot] = stored & !place.row.read_clears;
        stored & place.row.read
    }

    /// Like [`Bank::read`], but clears nothing.
    pub fn peek(&self, place: &Place<N>) -> u32 {
        self.slots[place.slot] & place.row.read
    }

    /// Handles a guest's write: stores the writable bits, and clears the bits that writing ones clears. Returns the previous value.
    pub fn write(&mut self, place: &Place<N>, value: u32) -> u32 {
        let (row, old) = (place.row, self.slots[place.slot]);
        if !row.port {
            self.slots[place.slot] = (old & !row.write | value & row.write) & !(value & row.write_clears);
        }
        old
    }

    /// The full value for a partial write: missing bytes keep their value, and clear nothing.
    pub fn merge(&self, part: &Part<N>, data: &[u8]) -> u32 {
        let keep = part.place.as_ref().map_or(0, |place| self.slots[place.slot] & !place.row.write_clears);
        part.take(data, keep)
    }

    /// All values, in the table's order.
    pub fn save(&self) -> Vec<u32> {
        let mut saved = Vec::with_capacity(self.slots.len());
        self.table.stored().for_each(|place| saved.push(self.slots[place.slot]));
        saved
    }

    /// Restores the values of [`save`](Self::save). Refuses impossible values of these registers, and then changes nothing.
    pub fn restore(&mut self, saved: &[u32]) -> Result<(), RestoreError> {
        let mut slots = self.slots.clone();
        let mut values = saved.iter();
        // `try_for_each` and not `zip`: the latter calls `next()` of three nested iterators for each register, which is slower.
        let is_legal = self.table.stored().try_for_each(|place| {
            let (row, value) = (place.row, *values.next()?);
            let may_be = (value ^ row.reset) & !(row.write | row.device) == 0;
            slots[place.slot] = value;
            (may_be && (row.width == 4 || value >> (8 * row.width) == 0)).then_some(())
        });
        if is_legal.is_none() || values.next().is_some() {
            return Err(RestoreError::Impossible("registers"));
        }
        self.slots = slots;
        Ok(())
    }
}

impl<N: Names> Index<N> for Bank<N> {
    type Output = u32;

    /// The first, or only, register of a name.
    fn index(&self, name: N) -> &u32 {
        &self.slots[name.slots().start]
    }
}

impl<N: Names> IndexMut<N> for Bank<N> {
    fn index_mut(&mut self, name: N) -> &mut u32 {
        &mut self.slots[name.slots().start]
    }
}
