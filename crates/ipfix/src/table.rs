//! The flows of one port.
//!
//! A flow has a place by its hash. If another flow has it, the flow takes one of the seven beside: the eight are a bucket. A look-up compares
//! the flow at the first place; in most cases that is the one. Else a word with a byte of each flow's hash says which others to compare.
//!
//! A table grows with its flows, up to its memory, and shrinks when few are left. It has sixteen places for a flow until then, so that most
//! flows have their first place. Flows move to the new places a few at a time, with new flows and sweeps: no frame waits for all of them.

use crate::key::{Key, NOT_ONE, Outcome, Seen};
use crate::record::{EndReason, Record};

/// Places of a bucket: the bytes of a word.
const WAYS: usize = 8;
/// Buckets of a new table.
const FIRST: usize = 64;
/// Places for each flow, of a table that may grow.
const SPARE: usize = 16;
/// A table shrinks when it has more places for each flow.
const TOO_SPARE: usize = 64;
/// Work of moving flows with each new one.
const MOVED: usize = 16;
/// Memory for a flow.
pub const ENTRY_BYTES: usize = size_of::<Entry>() + 1;
/// A flow that TCP has ended is reported after this time without a frame: the last acknowledgements belong to it.
const LINGER_NS: u64 = 1_000_000_000;
/// TCP's FIN and RST, as a frame has them: the second byte is the upper one.
const ENDS: u64 = 0x0500;

/// Each byte has this value.
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// A flow: the eight words of its key, and these. It is an array because the allocator has arrays of zeros that nobody has to write: memory is
/// taken as places are.
type Entry = [u64; 13];
const PACKETS: usize = 8;
const OCTETS: usize = 9;
const FIRST_NS: usize = 10;
const LAST_NS: usize = 11;
const FLAGS: usize = 12;
const FREE: Entry = [0; 13];

#[inline]
fn key_of(entry: &Entry) -> Key {
    let [a, b, c, d, e, f, g, h, ..] = *entry;
    Key([a, b, c, d, e, f, g, h])
}

#[inline]
fn count(entry: &mut Entry, packets: u64, octets: u64, flags: u16, now_ns: u64) {
    entry[PACKETS] = entry[PACKETS].wrapping_add(packets);
    entry[OCTETS] = entry[OCTETS].wrapping_add(octets);
    entry[LAST_NS] = now_ns;
    entry[FLAGS] |= u64::from(flags);
}

/// Places of flows: a number of buckets that is a power of two. A place is free if its byte is 0.
#[derive(Debug)]
struct Places {
    /// Number of places, less one.
    mask: u64,
    tags: Box<[u64]>,
    entries: Box<[Entry]>,
}

/// Places that flows are leaving.
#[derive(Debug)]
struct Left {
    places: Places,
    /// The bucket whose flows move next.
    next: usize,
}

/// See the module's page.
#[derive(Debug)]
pub struct Table {
    /// The port that the frames come from.
    ingress: u16,
    places: Places,
    /// The places before the table grew or shrank, while flows are there.
    before: Option<Box<Left>>,
    /// Most buckets.
    most: usize,
    flows: usize,
    /// The bucket that is swept next.
    cursor: usize,
    /// Ports that flows went to since the table was empty: a bit for each 64th number.
    egresses: u64,
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

/// Where the flows of a bucket are that has these tags.
fn ways(tags: u64) -> impl Iterator<Item = usize> {
    (0..WAYS).filter(move |way| tags >> (8 * way) & 0xff != 0)
}

fn egress_bit(port: u16) -> u64 {
    1 << (port % 64)
}

impl Places {
    fn new(buckets: usize) -> Self {
        Self {
            mask: (buckets * WAYS) as u64 - 1,
            tags: vec![0; buckets].into_boxed_slice(),
            entries: vec![FREE; buckets * WAYS].into_boxed_slice(),
        }
    }

    fn first(&self, hash: u64) -> usize {
        (hash & self.mask) as usize
    }

    fn find(&self, key: &Key, hash: u64) -> Option<usize> {
        let bucket = self.first(hash) / WAYS;
        let mut marks = matches(self.tags[bucket], tag(hash));
        while marks != 0 {
            let place = bucket * WAYS + marks.trailing_zeros() as usize / 8;
            if key.is(&key_of(&self.entries[place])) {
                return Some(place);
            }
            marks &= marks.wrapping_sub(1);
        }
        None
    }

    /// Gives a flow a place. Returns the flow that had to make room: the one of the bucket that was silent for longest.
    fn put(&mut self, entry: Entry, hash: u64) -> Option<Entry> {
        let first = self.first(hash);
        let bucket = first / WAYS;
        let is_free = |place: &usize| self.tags[bucket] >> (8 * (place % WAYS)) & 0xff == 0;
        let places = bucket * WAYS..(bucket + 1) * WAYS;
        let free = Some(first).filter(is_free).or_else(|| places.clone().find(is_free));
        let (place, displaced) = match free {
            Some(place) => (place, None),
            None => {
                let oldest = places.min_by_key(|place| self.entries[*place][LAST_NS]).unwrap_or(first);
                (oldest, Some(self.take(oldest)))
            }
        };
        self.entries[place] = entry;
        self.tags[bucket] |= u64::from(tag(hash)) << (8 * (place % WAYS));
        displaced
    }

    /// Removes a flow. No flow has the key that stays there.
    fn take(&mut self, place: usize) -> Entry {
        self.tags[place / WAYS] &= !(0xff << (8 * (place % WAYS)));
        std::mem::replace(&mut self.entries[place], FREE)
    }
}

impl Table {
    /// A table for a port's flows. It grows to at most this memory, and has at least one bucket. While flows move to their new places, the
    /// table has half as much besides.
    pub fn new(ingress: u16, bytes: usize) -> Self {
        let wanted = (bytes / (ENTRY_BYTES * WAYS)).max(1);
        // The largest power of two that fits.
        let most = 1usize << wanted.ilog2();
        Self { ingress, places: Places::new(FIRST.min(most)), before: None, most, flows: 0, cursor: 0, egresses: 0 }
    }

    /// Number of flows.
    pub fn flows(&self) -> usize {
        self.flows
    }

    /// Places for flows.
    pub fn places(&self) -> usize {
        self.places.entries.len()
    }

    /// Whether there may be flows to this port. False: there are none.
    pub fn may_go_to(&self, port: u16) -> bool {
        self.egresses & egress_bit(port) != 0
    }

    /// Counts a frame of a flow that is at its first place. False: it is not there, and nothing was counted.
    #[expect(clippy::inline_always, reason = "without it a frame costs 60 instructions more")]
    #[inline(always)]
    pub fn count(&mut self, seen: &Seen, outcome: Outcome, len: u32, now_ns: u64) -> bool {
        let key = seen.key_with(outcome);
        let place = (key.hash() & self.places.mask) as usize;
        let Some(entry) = self.places.entries.get_mut(place).filter(|entry| key.is(&key_of(entry))) else {
            return false;
        };
        count(entry, 1, seen.octets(len), seen.flags, now_ns);
        true
    }

    /// Counts frames. Reports flows that had to make room.
    #[cold]
    #[inline(never)]
    pub fn add(
        &mut self,
        seen: &Seen,
        outcome: Outcome,
        (frames, wire_bytes): (u32, u64),
        now_ns: u64,
        displaced: &mut impl FnMut(Record),
    ) {
        self.move_some(MOVED, displaced);
        let key = seen.key_with(outcome);
        let hash = key.hash();
        let (packets, octets) = (frames.into(), seen.octets_of(frames, wire_bytes));
        if let Some(place) = self.places.find(&key, hash) {
            return count(&mut self.places.entries[place], packets, octets, seen.flags, now_ns);
        }
        let mut entry = self.take_before(&key, hash).unwrap_or_else(|| self.begin(&key, outcome, now_ns, displaced));
        count(&mut entry, packets, octets, seen.flags, now_ns);
        self.settle(entry, hash, displaced);
    }

    /// A flow that begins. The table grows for it if it is time to.
    fn begin(&mut self, key: &Key, outcome: Outcome, now_ns: u64, displaced: &mut impl FnMut(Record)) -> Entry {
        self.flows += 1;
        if outcome.egress != NOT_ONE {
            self.egresses |= egress_bit(outcome.egress);
        }
        let buckets = self.places.tags.len();
        if self.flows * SPARE > self.places() && buckets < self.most {
            self.move_some(usize::MAX, displaced);
            self.resize(2 * buckets);
        }
        let mut entry = FREE;
        entry[..PACKETS].copy_from_slice(&key.0);
        entry[FIRST_NS] = now_ns;
        entry
    }

    fn settle(&mut self, entry: Entry, hash: u64, displaced: &mut impl FnMut(Record)) {
        if let Some(old) = self.places.put(entry, hash) {
            self.flows -= 1;
            displaced(self.record(&old, EndReason::NoRoom));
        }
    }

    /// Has other places from now on, to which flows move.
    fn resize(&mut self, buckets: usize) {
        let before = std::mem::replace(&mut self.places, Places::new(buckets));
        self.before = Some(Box::new(Left { places: before, next: 0 }));
        self.cursor = 0;
    }

    /// A flow that has not moved yet.
    fn take_before(&mut self, key: &Key, hash: u64) -> Option<Entry> {
        let Left { places, .. } = &mut **self.before.as_mut()?;
        let place = places.find(key, hash)?;
        Some(places.take(place))
    }

    /// Moves flows until that costs so much, or all have moved. Returns the cost.
    fn move_some(&mut self, most: usize, displaced: &mut impl FnMut(Record)) -> usize {
        let Some(mut before) = self.before.take() else { return 0 };
        let mut cost = 0;
        while cost < most {
            let Left { places, next } = &mut *before;
            let Some(&tags) = places.tags.get(*next) else { return cost };
            cost += 1;
            for way in ways(tags) {
                cost += 1;
                let entry = places.take(*next * WAYS + way);
                self.settle(entry, key_of(&entry).hash(), displaced);
            }
            *next += 1;
        }
        self.before = Some(before);
        cost
    }

    fn record(&self, entry: &Entry, end: EndReason) -> Record {
        Record {
            key: key_of(entry),
            ingress: self.ingress,
            packets: entry[PACKETS],
            octets: entry[OCTETS],
            first_ns: entry[FIRST_NS],
            last_ns: entry[LAST_NS],
            flags: (entry[FLAGS] as u16).swap_bytes() & 0xfff,
            end,
        }
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
            let (silent_ns, lasted_ns) =
                (now_ns.saturating_sub(entry[LAST_NS]), now_ns.saturating_sub(entry[FIRST_NS]));
            match () {
                () if entry[FLAGS] & ENDS != 0 && silent_ns >= LINGER_NS => Some(EndReason::Ended),
                () if silent_ns >= idle_ns => Some(EndReason::Idle),
                () if lasted_ns >= active_ns => Some(EndReason::Active),
                () => None,
            }
        };
        self.visit(most, of, report)
    }

    /// Reports flows for which this holds, as [`sweep`](Self::sweep) does.
    pub fn end_some(&mut self, is_over: impl Fn(&Key) -> bool, most: usize, report: &mut impl FnMut(Record)) -> Swept {
        self.visit(most, |entry| is_over(&key_of(entry)).then_some(EndReason::Forced), report)
    }

    /// Reports all flows for which this holds.
    pub fn end_where(&mut self, is_over: impl Fn(&Key) -> bool, report: &mut impl FnMut(Record)) {
        self.cursor = 0;
        self.end_some(is_over, usize::MAX, report);
    }

    fn visit(
        &mut self,
        most: usize,
        of: impl Fn(&Entry) -> Option<EndReason>,
        report: &mut impl FnMut(Record),
    ) -> Swept {
        if self.flows == 0 {
            (self.cursor, self.before, self.egresses) = (0, None, 0);
            return Swept { cost: 1, is_done: true };
        }
        let mut cost = self.move_some(most, report);
        if self.before.is_some() {
            return Swept { cost, is_done: false };
        }
        while cost < most {
            let Some(&tags) = self.places.tags.get(self.cursor) else { break };
            cost += 1;
            for way in ways(tags) {
                cost += 1;
                let place = self.cursor * WAYS + way;
                if let Some(end) = of(&self.places.entries[place]) {
                    let entry = self.places.take(place);
                    self.flows -= 1;
                    report(self.record(&entry, end));
                }
            }
            self.cursor += 1;
        }
        let is_done = self.cursor >= self.places.tags.len();
        if is_done {
            self.cursor = 0;
            self.shrink();
        }
        Swept { cost, is_done }
    }

    /// Has fewer places if it has far too many.
    fn shrink(&mut self) {
        let buckets = (self.flows * TOO_SPARE / 2 / WAYS).next_power_of_two().max(FIRST);
        if self.flows * TOO_SPARE < self.places() && buckets < self.places.tags.len() {
            self.resize(buckets);
        }
    }
}

#[cfg(test)]
#[path = "table_test.rs"]
mod tests;
