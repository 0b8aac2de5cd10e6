//! The flows of one port.
//!
//! A flow has a place by its hash. If another flow has it, the flow takes one of the seven beside: the eight are a bucket. A look-up compares
//! the flow at the first place; in most cases that is the one. Else a word with a byte of each flow's hash says which others to compare. All
//! memory is allocated at the start.

use crate::key::{Key, Outcome, Seen};
use crate::record::{EndReason, Record};

/// Places of a bucket: the bytes of a word.
const WAYS: usize = 8;
/// Memory for a flow.
pub const ENTRY_BYTES: usize = size_of::<Entry>() + 1;
/// A flow that TCP has ended is reported after this time without a frame: the last acknowledgements belong to it.
const LINGER_NS: u64 = 1_000_000_000;
/// TCP's FIN and RST, as a frame has them: the second byte is the upper one.
const ENDS: u16 = 0x0500;

/// Each byte has this value.
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Key,
    packets: u64,
    octets: u64,
    first_ns: u64,
    last_ns: u64,
    flags: u16,
}

impl Entry {
    #[inline]
    fn add(&mut self, packets: u64, octets: u64, flags: u16, now_ns: u64) {
        self.packets = self.packets.wrapping_add(packets);
        self.octets = self.octets.wrapping_add(octets);
        self.last_ns = now_ns;
        self.flags |= flags;
    }
}

/// A flow's place is free if its byte is 0.
#[derive(Debug)]
pub struct Table {
    /// The port that the frames come from.
    ingress: u16,
    /// Number of places, a power of two, less one.
    mask: u64,
    tags: Box<[u64]>,
    entries: Box<[Entry]>,
    flows: usize,
    /// The bucket that is swept next.
    cursor: usize,
}

/// The result of a part of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Work that was done: a bucket is 1, and so is a flow.
    pub cost: usize,
    /// The last bucket was reached.
    pub is_done: bool,
}

/// The byte that stands for a flow in its bucket's word.
#[inline]
fn tag(hash: u64) -> u8 {
    (hash >> 56) as u8 | 1
}

/// Marks of the bytes of `tags` that may be `tag`: the lowest mark is right.
#[inline]
fn matches(tags: u64, tag: u8) -> u64 {
    let differing = tags ^ ONES.wrapping_mul(tag.into());
    differing.wrapping_sub(ONES) & !differing & HIGHS
}

impl Table {
    /// A table for a port's flows with at most this memory, and at least one bucket.
    pub fn new(ingress: u16, bytes: usize) -> Self {
        let wanted = (bytes / (ENTRY_BYTES * WAYS)).max(1);
        // The largest power of two that fits.
        let buckets = 1usize << wanted.ilog2();
        Self {
            ingress,
            mask: (buckets * WAYS) as u64 - 1,
            tags: vec![0; buckets].into_boxed_slice(),
            entries: vec![Entry::default(); buckets * WAYS].into_boxed_slice(),
            flows: 0,
            cursor: 0,
        }
    }

    /// Number of flows.
    pub fn flows(&self) -> usize {
        self.flows
    }

    /// Places for flows.
    pub fn places(&self) -> usize {
        self.tags.len() * WAYS
    }

    /// Counts a frame of a flow that is at its first place. False: it is not there, and nothing was counted.
    #[expect(clippy::inline_always, reason = "without it a frame costs 60 instructions more")]
    #[inline(always)]
    pub fn count(&mut self, seen: &Seen, outcome: Outcome, len: u32, now_ns: u64) -> bool {
        let key = seen.key_with(outcome);
        let place = (key.hash() & self.mask) as usize;
        let Some(entry) = self.entries.get_mut(place).filter(|entry| key.is(&entry.key)) else { return false };
        entry.add(1, seen.octets(len), seen.flags, now_ns);
        true
    }

    /// Counts frames. Returns the flow that had to make room for theirs.
    #[cold]
    #[inline(never)]
    pub fn add(
        &mut self,
        seen: &Seen,
        outcome: Outcome,
        (frames, wire_bytes): (u32, u64),
        now_ns: u64,
    ) -> Option<Record> {
        let (packets, octets) = (frames.into(), seen.octets_of(frames, wire_bytes));
        let key = seen.key_with(outcome);
        let hash = key.hash();
        let first = (hash & self.mask) as usize;
        let bucket = first / WAYS;
        let mut marks = matches(self.tags[bucket], tag(hash));
        while marks != 0 {
            let entry = &mut self.entries[bucket * WAYS + marks.trailing_zeros() as usize / 8];
            if key.is(&entry.key) {
                entry.add(packets, octets, seen.flags, now_ns);
                return None;
            }
            marks &= marks.wrapping_sub(1);
        }
        let is_free = |place: &usize| self.tags[bucket] >> (8 * (place % WAYS)) & 0xff == 0;
        let places = bucket * WAYS..(bucket + 1) * WAYS;
        let free = Some(first).filter(is_free).or_else(|| places.clone().find(is_free));
        let (place, displaced) = match free {
            Some(place) => (place, None),
            None => {
                let oldest = places.min_by_key(|place| self.entries[*place].last_ns).unwrap_or(first);
                (oldest, Some(self.take(oldest, EndReason::NoRoom)))
            }
        };
        self.entries[place] = Entry { key, packets, octets, first_ns: now_ns, last_ns: now_ns, flags: seen.flags };
        self.tags[bucket] |= u64::from(tag(hash)) << (8 * (place % WAYS));
        self.flows += 1;
        displaced
    }

    /// Removes a flow. No flow has the key that stays there.
    fn take(&mut self, place: usize, end: EndReason) -> Record {
        self.tags[place / WAYS] &= !(0xff << (8 * (place % WAYS)));
        self.flows -= 1;
        let Entry { key, packets, octets, first_ns, last_ns, flags } = std::mem::take(&mut self.entries[place]);
        let flags = flags.swap_bytes() & 0xfff;
        Record { key, ingress: self.ingress, packets, octets, first_ns, last_ns, flags, end }
    }

    /// Reports flows whose time has come, from where the last call stopped, until the work costs this much or the last bucket is reached.
    /// A flow that is reported gives its place up.
    pub fn sweep(
        &mut self,
        (active_ns, idle_ns): (u64, u64),
        now_ns: u64,
        most: usize,
        report: &mut impl FnMut(Record),
    ) -> Swept {
        let of = |entry: &Entry| {
            let (silent_ns, lasted_ns) = (now_ns.saturating_sub(entry.last_ns), now_ns.saturating_sub(entry.first_ns));
            match () {
                () if entry.flags & ENDS != 0 && silent_ns >= LINGER_NS => Some(EndReason::Ended),
                () if silent_ns >= idle_ns => Some(EndReason::Idle),
                () if lasted_ns >= active_ns => Some(EndReason::Active),
                () => None,
            }
        };
        self.visit(most, of, report)
    }

    /// Reports all flows for which this holds.
    pub fn end_where(&mut self, is_over: impl Fn(&Key) -> bool, report: &mut impl FnMut(Record)) {
        self.cursor = 0;
        self.visit(usize::MAX, |entry| is_over(&entry.key).then_some(EndReason::Forced), report);
    }

    fn visit(
        &mut self,
        most: usize,
        of: impl Fn(&Entry) -> Option<EndReason>,
        report: &mut impl FnMut(Record),
    ) -> Swept {
        let mut cost = 0;
        if self.flows == 0 {
            self.cursor = 0;
            return Swept { cost: 1, is_done: true };
        }
        while cost < most {
            let Some(&tags) = self.tags.get(self.cursor) else { break };
            cost += 1;
            for way in (0..WAYS).filter(|way| tags >> (8 * way) & 0xff != 0) {
                cost += 1;
                let place = self.cursor * WAYS + way;
                if let Some(end) = of(&self.entries[place]) {
                    report(self.take(place, end));
                }
            }
            self.cursor += 1;
        }
        let is_done = self.cursor >= self.tags.len();
        if is_done {
            self.cursor = 0;
        }
        Swept { cost, is_done }
    }
}

#[cfg(test)]
#[path = "table_test.rs"]
mod tests;
