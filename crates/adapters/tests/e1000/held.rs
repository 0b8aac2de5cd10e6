//! A chip's registers against its documents: the values after a reset, and the bits that software may write. No number here is the
//! adapter's.

use nicety_adapter::bank::Names;
use nicety_adapters::intel::e1000::registers::{Table, WINDOW};

use crate::bench::*;

/// A register by its documents: its name, its value after a reset if they have one, and the bits that they say are writable.
pub type Held = (&'static str, Option<u32>, u32);

/// Whether a document lists all writable bits of a register (others read as after a reset), or only some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bits {
    All,
    Some,
}

/// A chip's registers, by its documents.
pub struct Documents {
    /// Registers whose writable bits are all known.
    pub all: &'static [Held],
    /// Registers of which some writable bits are known.
    pub some: &'static [Held],
    /// Registers with further effects: other tests have them.
    pub active: &'static [&'static str],
    /// Registers of which no public document has a value.
    pub silent: &'static [&'static str],
    /// Offsets of the counters: they are 0 after a reset, and cannot be written.
    pub counters: std::ops::Range<u64>,
}

/// Every register of a table's memory window that has a value: its name and its offset.
fn registers(table: &'static Table) -> impl Iterator<Item = (&'static str, u64)> {
    let all = table.places().filter(|(region, _, place)| *region == WINDOW && !place.row.port);
    all.map(|(_, offset, place)| (place.name.word(), u64::from(offset)))
}

/// The table is sound, and has these registers at these offsets.
pub fn find(table: &'static Table, linux: &[(&str, u32)]) {
    for (name, offset) in linux {
        let found = registers(table).find(|register| register.0 == *name).map(|register| register.1);
        assert_eq!(found, Some(u64::from(*offset)), "{name}");
    }
    assert_eq!(table.check(), Ok(()));
}

impl Documents {
    fn of(&self, name: &str, at: u64) -> Option<(Bits, Held)> {
        let in_list = |list: &[Held]| list.iter().find(|held| held.0 == name).copied();
        if self.counters.contains(&at) {
            return Some((Bits::All, ("counter", Some(0), 0)));
        }
        in_list(self.all).map(|held| (Bits::All, held)).or(in_list(self.some).map(|held| (Bits::Some, held)))
    }

    /// Compares each register of this table. The chip is new.
    pub fn compare<T>(&self, b: &mut Bench<T>, table: &'static Table) {
        for (name, at) in registers(table) {
            let Some((bits, (_, reset, keeps))) = self.of(name, at) else {
                assert!(self.active.contains(&name) || self.silent.contains(&name), "{name} is in no list");
                continue;
            };
            let first = b.r(at);
            // The first receive address is the adapter's own.
            if !(0x5400..0x5408).contains(&at) {
                assert!(reset.is_none_or(|reset| first == reset), "{name} after a reset: {first:#010x}");
            }
            for value in [!0, 0x5a5a_a5a5, 0xa5a5_5a5a, 0] {
                b.w(at, value);
                let (mask, fixed) = if bits == Bits::All { (!0, first & !keeps) } else { (keeps, 0) };
                assert_eq!(b.r(at) & mask, value & keeps | fixed, "{name} of {value:#010x}");
            }
        }
    }
}
