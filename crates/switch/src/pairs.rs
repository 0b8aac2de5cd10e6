//! A cache of pairs: of a frame's addresses, where it came in, and its network, the port at which its destination is known.
//!
//! A hit says what two look-ups in the [address table](crate::addresses) would say now: the source is known where the frame came in, has
//! sent in this second, and nothing need be written; and the destination is known at this port. So a hit takes one hash and one cache
//! line, and writes nothing. Only what the table held already is kept, so that a miss decides by the table alone.
//!
//! One worker has one cache, behind no lock. An entry is valid for the second in which it was made, which covers ageing, and while the
//! [epochs](Addresses::stamp) of its two addresses stay the same, which covers addresses that move, are forgotten, or leave with their
//! port. Policies are no part of it: they are applied to what it says.
//!
//! Guests choose addresses. The hash has a secret seed, and a frame takes a place from another pair of this second only one time in
//! [`KEEPS`]. (VPP caches the last look-up of a batch in `l2_fwd.c` and `l2_learn.c`, Open vSwitch whole flows in its exact-match cache,
//! which also inserts with a chance alone.)

use nicety_adapter::PortId;

use crate::addresses::{Addresses, Keys, Stamp, fold};

/// Lines of two entries: 512 KiB.
const LINES: usize = 1 << 13;
const _: () = assert!(LINES <= 1 << u16::BITS);
/// One of this many pairs is kept, if both places of its line are in use.
const KEEPS: u32 = 8;

/// 32 bytes. Of `target` two bits are free, and of `shards` twelve: enough for networks with numbers of 24 bits.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Entry {
    /// The key of the destination, and with it the network.
    target: u64,
    /// Bits 0–47 the source, 48–63 the port where the frame came in.
    source: u64,
    /// The second in which the source was learned.
    second: u32,
    stamp: u32,
    receiver: u32,
    shards: u32,
}

/// An entry of no second.
const EMPTY: Entry = Entry { target: 0, source: 0, second: u32::MAX, stamp: 0, receiver: 0, shards: 0 };

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([Entry; 2]);

/// A pair of addresses to look up, and the line where it may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    target: u64,
    source: u64,
    line: usize,
}

impl Pair {
    #[inline(always)]
    pub fn new(keys: Keys, origin: PortId, table: &Addresses) -> Self {
        let this = Self::on_line(keys, origin, 0);
        let (target, source, [one, other]) = (this.target, this.source, table.seed());
        Self { target, source, line: fold(target ^ one, source ^ other) as usize & (LINES - 1) }
    }

    /// A pair whose line is known already.
    #[inline(always)]
    pub fn on_line(keys: Keys, origin: PortId, line: u16) -> Self {
        let source = keys.source.word() & 0xffff_ffff_ffff | u64::from(origin.0) << 48;
        Self { target: keys.target.word(), source, line: line.into() }
    }

    #[inline(always)]
    fn is_in(self, entry: &Entry) -> bool {
        entry.target == self.target && entry.source == self.source
    }

    /// The number of its line.
    #[inline(always)]
    pub fn line(self) -> u16 {
        self.line as u16
    }
}

/// A pair's place in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It is there, valid or not.
    Kept,
    /// It may be kept.
    Free,
    /// Two others of this second are there, and one of them would have to go.
    None,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// Empty until the first pair is kept.
    lines: Box<[Line]>,
    /// The table that it is about.
    table: u64,
    /// Pairs that found two others of the same second in their line.
    crowded: u32,
}

impl Pairs {
    /// Prepares for look-ups in this table. Pairs of another table are forgotten.
    #[inline(always)]
    pub fn begin(&mut self, table: &Addresses) {
        if self.table != table.id() {
            self.lines.fill(Line([EMPTY; 2]));
            self.table = table.id();
        }
    }

    #[inline(always)]
    fn entry(&self, pair: Pair, second: u32) -> Option<&Entry> {
        let Line([one, other]) = self.lines.get(pair.line)?;
        let is_it =
            |entry: &Entry| entry.target == pair.target && entry.source == pair.source && entry.second == second;
        if is_it(one) {
            Some(one)
        } else if is_it(other) {
            Some(other)
        } else {
            None
        }
    }

    /// The place of a pair, or whether there is room for it.
    #[inline(always)]
    pub fn place(&mut self, pair: Pair, second: u32) -> Place {
        let Some(Line([one, other])) = self.lines.get(pair.line) else { return Place::Free };
        if one.second != second || other.second != second {
            // Neither of them may be its.
            return if self.entry(pair, second).is_some() { Place::Kept } else { Place::Free };
        }
        if pair.is_in(one) || pair.is_in(other) {
            return Place::Kept;
        }
        self.crowded = self.crowded.wrapping_add(1);
        if self.crowded.is_multiple_of(KEEPS) { Place::Free } else { Place::None }
    }

    /// The port at which the destination is known, if the table need not be asked.
    #[inline(always)]
    pub fn find(&self, pair: Pair, table: &Addresses, second: u32) -> Option<PortId> {
        let entry = self.entry(pair, second)?;
        (table.sum(entry.shards) == entry.stamp).then_some(PortId(entry.receiver as u16))
    }

    /// Keeps what the table said after this stamp.
    #[inline(never)]
    pub fn keep(&mut self, pair: Pair, stamp: Stamp, second: u32, receiver: PortId) {
        if self.lines.is_empty() {
            self.lines = vec![Line([EMPTY; 2]); LINES].into_boxed_slice();
        }
        let Some(Line([one, other])) = self.lines.get_mut(pair.line) else { return };
        let Pair { target, source, line: _ } = pair;
        let Stamp { shards, sum: stamp } = stamp;
        let entry = Entry { target, source, second, stamp, receiver: receiver.0.into(), shards };
        if pair.is_in(other) {
            *other = entry;
        } else if pair.is_in(one) || one.second != second {
            *one = entry;
        } else {
            (*one, *other) = (entry, *one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_takes_the_place_of_one_of_an_earlier_second_first() {
        let (mut pairs, table) = (Pairs::default(), Addresses::new(crate::Limits::default()));
        let pair = |target| Pair { target, source: 1, line: 5 };
        let stamp = || Stamp { shards: 0, sum: table.sum(0) };
        let (a, b, c) = (pair(10), pair(11), pair(12));
        for (pair, port) in [(a, 1), (b, 2)] {
            assert_eq!(pairs.place(pair, 7), Place::Free);
            pairs.keep(pair, stamp(), 7, PortId(port));
        }
        assert_eq!([a, b].map(|pair| pairs.find(pair, &table, 7)), [Some(PortId(1)), Some(PortId(2))]);
        // In the next second only one of them is renewed.
        assert_eq!(pairs.find(a, &table, 8), None);
        pairs.keep(a, stamp(), 8, PortId(1));
        assert_eq!(pairs.place(c, 8), Place::Free);
        pairs.keep(c, stamp(), 8, PortId(3));
        assert_eq!([a, b, c].map(|pair| pairs.find(pair, &table, 8)), [Some(PortId(1)), None, Some(PortId(3))]);
        // Both are of this second now: another one has to wait for its chance.
        let kept = (0..16).filter(|_| pairs.place(b, 8) == Place::Free).count();
        assert_eq!(kept, 16 / KEEPS as usize);
    }
}
