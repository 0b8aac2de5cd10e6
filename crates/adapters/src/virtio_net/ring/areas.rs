//! A ring's areas in guest memory during one call. The differences between split and packed rings are side by side here, so every
//! walk above is written once.
//!
//! ```text
//! split (2.7)                                                 packed (2.8)
//! descriptors   address, length, flags, next                  address, length, identifier, flags (available, used)
//! driver area   flags │ index │ ring of heads │ used_event    offset and wrap │ flags
//! device area   flags │ index │ ring of used  │ avail_event   offset and wrap │ flags
//! a place       an index that runs on without end             a descriptor's number; its lap's wrap counter in bit 15
//! ```
//!
//! `PACKED` is a constant: each kind has its own code, at no cost for the other.

use std::cell::Cell;

use nicety_adapter::PACKETS;
use nicety_memory::{Map, Rights, Touch, Window, WindowPlace, full_barrier};

use super::super::broken::Broken;
use super::super::buffers::PIECES;
use super::super::chain::{Chain, Token, WRITE};
use super::super::kept::Kept;
use super::Ring;

/// Maximum descriptors that one call reads before it starts another chain: 64 packets as long as Linux's need 1216.
const STEPS_PER_CALL: u32 = 2048;
/// Flag of either ring: do not notify (2.7.6, 2.7.8).
pub(in crate::virtio_net) const QUIET: u16 = 1;
/// Descriptor flags of a packed ring (2.8.1): the driver's wrap counter when it made it available; the device's when it used it.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// The wrap counter in a packed ring's position.
const WRAP: u16 = 1 << 15;
/// Flags of a packed ring's event suppression (2.8.10): enable; disable; notify at a given descriptor.
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const AT: u16 = 2;

/// The place of a ring's areas in guest memory, as last found.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::virtio_net) struct Found {
    of: (u64, u64, u64, u16, bool),
    places: [WindowPlace; 3],
}

/// It is no part of a ring's state: a ring is the same whether its areas were looked for or not.
impl PartialEq for Found {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Found {}

/// A ring's areas during one call.
pub(in crate::virtio_net) struct Areas<'m, const PACKED: bool> {
    memory: &'m Map,
    descriptors: Window<'m>,
    pub(in crate::virtio_net) driver: Window<'m>,
    pub(in crate::virtio_net) device: Window<'m>,
    size: u16,
    event_index: bool,
    indirect: bool,
    walked: Cell<u32>,
    kept: Option<Kept<'m>>,
}

impl<'m, const PACKED: bool> Areas<'m, PACKED> {
    /// Areas of a ring.
    pub fn of(ring: &Ring, memory: &'m Map, event_index: bool, indirect: bool) -> Result<Self, Broken> {
        let window = |(address, len, rights)| {
            memory.window(address, len, rights).map_err(|fault| Broken::of(fault, memory, Broken::Place))
        };
        // One after another: where an IOMMU has not translated one, only that one is asked for.
        let [descriptors, driver, device] = Self::ranges(ring);
        let windows = [window(descriptors)?, window(driver)?, window(device)?];
        Ok(Self::with(windows, ring, memory, event_index, indirect))
    }

    /// Opens the areas where an earlier call found them, if they are still there.
    #[inline(always)]
    pub fn found(ring: &mut Ring, memory: &'m Map, event_index: bool, indirect: bool) -> Result<Self, Broken> {
        let Found { of, places: [descriptors, driver, device] } = ring.found;
        if of == Self::key(ring)
            && let (Some(descriptors), Some(driver), Some(device)) =
                (descriptors.open(memory), driver.open(memory), device.open(memory))
        {
            return Ok(Self::with([descriptors, driver, device], ring, memory, event_index, indirect));
        }
        Self::find(ring, memory, event_index, indirect)
    }

    #[cold]
    #[inline(never)]
    fn find(ring: &mut Ring, memory: &'m Map, event_index: bool, indirect: bool) -> Result<Self, Broken> {
        let areas = Self::of(ring, memory, event_index, indirect)?;
        let places = Self::ranges(ring).map(|(address, len, rights)| memory.window_place(address, len, rights));
        ring.found = Found { of: Self::key(ring), places };
        Ok(areas)
    }

    /// Address, length and rights of each area.
    fn ranges(ring: &Ring) -> [(u64, u32, Rights); 3] {
        let size = u32::from(ring.size);
        let (table, driver, device) =
            if PACKED { (Rights::BOTH, 4, 4) } else { (Rights::READ, 6 + 2 * size, 6 + 8 * size) };
        let (driver, device) = ((ring.driver, driver, Rights::READ), (ring.device, device, Rights::BOTH));
        [(ring.descriptors, 16 * size, table), driver, device]
    }

    /// The values that decide where the areas are.
    #[inline(always)]
    fn key(ring: &Ring) -> (u64, u64, u64, u16, bool) {
        (ring.descriptors, ring.driver, ring.device, ring.size, PACKED)
    }

    #[inline(always)]
    fn with(windows: [Window<'m>; 3], ring: &Ring, memory: &'m Map, event_index: bool, indirect: bool) -> Self {
        let [descriptors, driver, device] = windows;
        let (size, walked, kept) = (ring.size, Cell::new(0), None);
        Self { memory, descriptors, driver, device, size, event_index, indirect, walked, kept }
    }

    /// Completions are recorded there before they are written to the ring.
    pub fn keep(&mut self, kept: Option<Kept<'m>>) {
        if PACKED {
            self.kept = kept;
        }
    }

    /// Split: the driver's index; the ring is broken if it is ahead by more than the ring's size. Packed: 0, because the
    /// descriptors themselves say it.
    pub fn seen(&self, ring: &Ring) -> Result<u16, Broken> {
        if PACKED {
            return Ok(0);
        }
        let index = self.driver.load_u16(2);
        if index.wrapping_sub(ring.next) > self.size { Err(Broken::Index) } else { Ok(index) }
    }

    /// Whether a chain is available at a position, according to [`seen`](Areas::seen).
    #[inline]
    pub fn has(&self, at: u16, seen: u16) -> bool {
        if PACKED { self.is_available(at) } else { at != seen }
    }

    /// Whether less than half of the ring is available.
    pub fn is_short(&self, ring: &Ring) -> bool {
        if PACKED {
            return !self.is_available(self.after(ring.next, self.size / 2));
        }
        self.driver.load_u16(2).wrapping_sub(ring.next) < self.size / 2
    }

    /// Whether the driver has made a packed ring's descriptor available (2.8.1).
    fn is_available(&self, at: u16) -> bool {
        Self::hands_over(at, self.descriptors.load_u16(16 * self.slot(at) + 14))
    }

    /// Whether these flags of a packed ring's descriptor mark it available in the lap of its position.
    #[inline]
    fn hands_over(at: u16, flags: u16) -> bool {
        flags & (AVAILABLE | USED) == if at & WRAP != 0 { AVAILABLE } else { USED }
    }

    /// The entry (packed: descriptor) of a position.
    #[inline]
    fn slot(&self, at: u16) -> usize {
        usize::from(if PACKED { at & !WRAP } else { at & (self.size - 1) })
    }

    /// The position this many entries (packed: descriptors) after another; at most the ring's size.
    #[inline]
    pub fn after(&self, at: u16, count: u16) -> u16 {
        if !PACKED {
            return at.wrapping_add(count);
        }
        let slot = u32::from(at & !WRAP) + u32::from(count);
        let size = u32::from(self.size);
        if slot < size { at & WRAP | slot as u16 } else { (at & WRAP ^ WRAP) | (slot - size) as u16 }
    }

    /// The position after a chain that starts at another.
    #[inline]
    pub fn behind(&self, at: u16, token: Token) -> u16 {
        self.after(at, Self::slots(token))
    }

    /// Number of ring entries (packed: descriptors) of a chain.
    #[inline]
    pub fn slots(token: Token) -> u16 {
        if PACKED { token.slots() } else { 1 }
    }

    /// Distance from one position to another. Packed: less than two laps; the same descriptor one lap later is one whole lap.
    #[inline]
    pub fn distance(&self, from: u16, to: u16) -> u16 {
        if !PACKED {
            return to.wrapping_sub(from);
        }
        let (ahead, same_lap) = ((to & !WRAP).wrapping_sub(from & !WRAP), (from ^ to) & WRAP == 0);
        match same_lap {
            true if ahead & WRAP == 0 => ahead,
            true => ahead.wrapping_add(self.size.wrapping_mul(2)),
            false => ahead.wrapping_add(self.size),
        }
    }

    /// The chain at a position.
    pub fn chain(&self, at: u16) -> Result<Chain<'m>, Broken> {
        let head = if PACKED { at & !WRAP } else { self.driver.load_u16(4 + 2 * self.slot(at)) };
        if head >= self.size {
            return Err(Broken::Head);
        }
        Ok(Chain::new(self.memory, self.descriptors, self.size, head, self.indirect, PACKED))
    }

    /// The token of the chain at a position.
    pub fn token(&self, at: u16) -> Result<Token, Broken> {
        let mut chain = self.chain(at)?;
        let token = chain.token();
        self.note(&chain);
        token
    }

    /// Reads the first descriptors of the chains from a position on, and the token that each chain has if it is that one descriptor alone.
    /// Returns their number: at most `most`, and only chains that were [`seen`](Areas::seen).
    #[inline(always)]
    pub fn read_burst(
        &self,
        first: u16,
        seen: u16,
        most: u16,
        chains: &mut [u64; PACKETS],
        descriptors: &mut [u128; PACKETS],
    ) -> u16 {
        let most = most.min(self.size).min(PACKETS as u16);
        if PACKED {
            // First up to the ring's end, then from its start.
            let before = most.min(self.size.wrapping_sub(first & !WRAP));
            let count = self.read_burst_of_lap(first, before, 0, chains, descriptors);
            return match count == before && before < most {
                true => self.read_burst_of_lap((first & WRAP) ^ WRAP, most, before, chains, descriptors),
                false => count,
            };
        }
        let count = most.min(seen.wrapping_sub(first));
        // Before their numbers are known, so that both come at once.
        self.prefetch_descriptors(first, count);
        let mut heads = [0; PACKETS];
        let heads = &mut heads[..usize::from(count)];
        self.heads(first, heads);
        chains.iter_mut().zip(&*heads).for_each(|(chain, head)| *chain = u64::from(*head));
        self.descriptors.gather(heads, descriptors);
        count
    }

    /// The same for a packed ring, within one lap. `count` are there already, and at most `most` will be.
    #[inline(always)]
    fn read_burst_of_lap(
        &self,
        first: u16,
        most: u16,
        mut count: u16,
        chains: &mut [u64; PACKETS],
        descriptors: &mut [u128; PACKETS],
    ) -> u16 {
        let mut at = 16 * self.slot(first);
        let wanted = if first & WRAP != 0 { AVAILABLE } else { USED };
        while count < most {
            // A cache line has four descriptors. The last ones may lie behind the lap's end: they are zeros, or not looked at.
            let line: [[u64; 2]; 4] = self.descriptors.load_pairs(at);
            for [address, rest] in line {
                let Some((chain, descriptor)) =
                    chains.get_mut(usize::from(count)).zip(descriptors.get_mut(usize::from(count)))
                else {
                    return count;
                };
                if count == most || (rest >> 48) as u16 & (AVAILABLE | USED) != wanted {
                    return count;
                }
                *chain = rest >> 32 & 0xffff | 1 << 16;
                *descriptor = u128::from(rest) << 64 | u128::from(address);
                count = count.wrapping_add(1);
            }
            at = at.wrapping_add(64);
        }
        count
    }

    /// The flags of a descriptor.
    #[inline]
    pub fn flags(descriptor: u128) -> u16 {
        (if PACKED { descriptor >> 112 } else { descriptor >> 96 }) as u16
    }

    /// The heads in the driver's ring from an entry on, at most the ring's size; they are not checked.
    fn heads(&self, first: u16, heads: &mut [u16]) {
        let first = self.slot(first);
        let (before, behind) = heads.split_at_mut(heads.len().min(usize::from(self.size) - first));
        self.driver.read_u16s(4 + 2 * first, before);
        if !behind.is_empty() {
            self.driver.read_u16s(4, behind);
        }
    }

    /// Prefetches the chains from a position on that the driver has probably made available: entries of its ring, and descriptors.
    pub fn prefetch_chains(&self, first: u16, chains: u16) {
        let chains = chains.min(self.size).min(PACKETS as u16);
        if !PACKED {
            for ahead in (0..chains).step_by(32) {
                self.driver.prefetch_line(4 + 2 * self.slot(first.wrapping_add(ahead)), Touch::Read);
            }
        }
        self.prefetch_descriptors(first, chains);
    }

    /// Prefetches the descriptors of these chains, if the driver uses them in order, as most do: entry *n* of its ring names descriptor *n*.
    /// A cache line has four.
    #[inline(always)]
    fn prefetch_descriptors(&self, first: u16, chains: u16) {
        // The device completes a packed ring's chains there.
        let touch = if PACKED { Touch::Write } else { Touch::Read };
        for ahead in (0..chains).step_by(4) {
            self.descriptors.prefetch_line(16 * self.slot(self.after(first, ahead)), touch);
        }
    }

    /// Prefetches entries of the device's ring that will be written soon.
    pub fn prefetch_used(&self, first: u16, entries: u16) {
        if PACKED {
            return;
        }
        for ahead in (0..entries.min(self.size)).step_by(8) {
            let at = 4 + 8 * self.slot(first.wrapping_add(ahead));
            self.device.prefetch_line(at, Touch::Write);
        }
    }

    /// Completes chains, each a token and (from bit 32 on) the bytes written. The driver of a split ring sees them only after
    /// [`Areas::show`].
    pub fn give_back(&self, ring: &mut Ring, chains: &[u64]) {
        if PACKED {
            return chains.chunks(PIECES).for_each(|chains| self.give_back_packed(ring, chains));
        }
        let first = self.slot(ring.used);
        let (before, behind) = chains.split_at(chains.len().min(usize::from(self.size) - first));
        self.device.write_u64s(4 + 8 * first, before);
        if !behind.is_empty() {
            self.device.write_u64s(4, behind);
        }
        ring.used = ring.used.wrapping_add(chains.len() as u16);
        ring.unsignalled = ring.unsignalled.saturating_add(chains.len() as u16);
    }

    /// Completes chains of a packed ring together, at most [`PIECES`]: its driver takes the first one as a sign that all are
    /// complete.
    pub fn give_back_packed(&self, ring: &mut Ring, chains: &[u64]) {
        if let Some(kept) = &self.kept {
            kept.write(ring.used, chains);
        }
        let before = ring.used;
        ring.used = self.write_used(before, chains);
        ring.unsignalled = ring.unsignalled.saturating_add(self.distance(before, ring.used));
    }

    /// Completes chains of one descriptor each, at most [`PACKETS`].
    #[inline(always)]
    pub fn give_back_run(&self, ring: &mut Ring, chains: &[u64]) {
        if !PACKED {
            return self.give_back(ring, chains);
        }
        if let Some(kept) = &self.kept {
            kept.write(ring.used, chains);
        }
        let (first, slot) = (ring.used, self.slot(ring.used));
        ring.used = self.after(first, chains.len() as u16);
        ring.unsignalled = ring.unsignalled.saturating_add(chains.len() as u16);
        let (before, behind) = chains.split_at(chains.len().min(usize::from(self.size).saturating_sub(slot)));
        // The first one last: its driver takes that as a sign that all are complete.
        if !behind.is_empty() {
            self.write_used_run(first ^ WRAP, 0, behind);
        }
        self.write_used_run(first, slot, before);
    }

    /// Writes used descriptors of chains of one descriptor each, within one lap.
    #[inline(always)]
    fn write_used_run(&self, lap: u16, slot: usize, chains: &[u64]) {
        self.descriptors.store_seconds(16 * slot, chains.len(), |index| {
            chains.get(index).map_or(0, |chain| Self::used_descriptor(lap, *chain))
        });
    }

    /// The second half of a used descriptor in a lap: length, identifier and flags (2.8.8).
    #[inline(always)]
    fn used_descriptor(lap: u16, chain: u64) -> u64 {
        let (token, bytes) = (Token(chain as u32), chain >> 32);
        let lap = if lap & WRAP != 0 { AVAILABLE | USED } else { 0 };
        let flags = lap | if bytes > 0 { WRITE } else { 0 };
        bytes | u64::from(token.id()) << 32 | u64::from(flags) << 48
    }

    /// Writes a used descriptor over each chain's first (2.8.8): length, identifier and flags in one store; the first chain's last.
    /// Returns the position after them.
    fn write_used(&self, first: u16, chains: &[u64]) -> u16 {
        let Some((head, rest)) = chains.split_first() else { return first };
        let store = |at: u16, chain: u64| {
            self.descriptors.store_u64(16 * self.slot(at) + 8, Self::used_descriptor(at, chain));
        };
        let mut at = self.behind(first, Token(*head as u32));
        for chain in rest {
            store(at, *chain);
            at = self.behind(at, Token(*chain as u32));
        }
        store(first, *head);
        at
    }

    /// Shows completions to the driver, without a notification. (Packed: it sees each one at once.)
    pub fn show(&self, ring: &Ring) {
        if !PACKED && ring.unsignalled > 0 {
            self.device.store_u16(2, ring.used);
        }
    }

    /// Whether the driver wants a notification for the completions shown since the last one (sections 2.7.7 and 2.8.10).
    pub fn wants(&self, ring: &Ring) -> bool {
        if ring.unsignalled == 0 {
            return false;
        }
        full_barrier();
        if PACKED {
            return self.wants_packed(ring);
        }
        if self.event_index {
            let wanted = self.driver.load_u16(4 + 2 * usize::from(self.size));
            return !ring.settled || crossed(wanted, ring.used, ring.used.wrapping_sub(ring.unsignalled));
        }
        self.driver.load_u16(0) & QUIET == 0
    }

    fn wants_packed(&self, ring: &Ring) -> bool {
        let word = self.driver.load_u32(0);
        let (at, flags) = (word as u16, (word >> 16) as u16 & 3);
        if flags != AT || !self.event_index || !ring.settled || at & !WRAP >= self.size {
            return flags != DISABLE;
        }
        // Whether the index was passed since the last notification.
        (1..=ring.unsignalled).contains(&self.distance(at, ring.used))
    }

    /// Asks the driver to notify when it adds entries from a position on. True if it has added some meanwhile, perhaps without a
    /// notification: check again (section 2.7.10).
    pub fn arm(&self, ring: &mut Ring, at: u16) -> bool {
        self.arm_around(ring, at, || ())
    }

    /// The last check comes after the request is written; otherwise the driver may have read the old request. `between`: the
    /// driver's steps at that moment, in tests.
    #[inline(always)]
    pub(in crate::virtio_net) fn arm_around(&self, ring: &mut Ring, at: u16, between: impl FnOnce()) -> bool {
        if PACKED {
            self.arm_packed(ring, at);
        } else if self.event_index {
            self.device.store_u16(4 + 8 * usize::from(self.size), at);
        } else if ring.quiet {
            self.device.store_u16(0, 0);
            ring.quiet = false;
        }
        between();
        full_barrier();
        if PACKED { self.is_available(at) } else { self.driver.load_u16(2) != at }
    }

    fn arm_packed(&self, ring: &mut Ring, at: u16) {
        if self.event_index {
            self.device.store_u32(0, u32::from(at) | u32::from(AT) << 16);
        } else if ring.quiet {
            self.device.store_u16(2, ENABLE);
            ring.quiet = false;
        }
    }

    /// Asks the driver not to notify, while the ring is polled anyway.
    #[inline]
    pub fn disarm(&self, ring: &mut Ring) {
        if !(self.event_index || ring.quiet && ring.flagged) {
            let (at, flag) = if PACKED { (2, DISABLE) } else { (0, QUIET) };
            self.device.store_u16(at, flag);
            (ring.quiet, ring.flagged) = (true, true);
        }
    }

    /// Position of a ring at its start. Split: if the used index in memory differs from the front end's value, the index counts.
    /// Packed: that of its record, else the front end's value; `None` if it is invalid.
    pub fn begins(&self, base: u32) -> Option<u16> {
        if !PACKED {
            return Some(self.device.load_u16(2));
        }
        // Position of the device's used descriptors (bits 16 to 31), if given. DPDK's virtio-user gives one position for both
        // (virtio_user_dev.c).
        let (available, used) = (base as u16, (base >> 16) as u16);
        let given = Some(if used == 0 { available } else { used }).filter(|given| given & !WRAP < self.size);
        let Some(kept) = &self.kept else { return given };
        let begins = match kept.read() {
            Some((place, chains)) if !self.is_of_this(place, &chains) => return None,
            Some((place, chains)) if kept.is_moved(base) => {
                let owed = self.is_owed(place, &chains);
                self.follow(kept, if owed { place } else { self.behind_all(place, &chains) }, given?)
            }
            Some((place, chains)) => self.resume(place, &chains),
            None => given?,
        };
        kept.begin(base);
        Some(begins)
    }

    /// The front end gives another base than before. Without a back end, QEMU completes the chains of a transmit ring itself, from the
    /// base that it knows on, and then gives the base behind them (virtio.c, `virtqueue_packed_drop_all`). It does not know the chains
    /// before those, which the driver waits for: they come back unsent. Or a new driver has started the ring; then its position is the
    /// base.
    #[cold]
    fn follow(&self, kept: &Kept<'_>, mut place: u16, base: u16) -> u16 {
        let (mut at, mut slots) = (place, 0);
        let mut chains = Vec::new();
        while slots < self.size && self.is_available(at) {
            let Ok(token) = self.token(at) else { break };
            chains.push(u64::from(token.0));
            slots = slots.saturating_add(Self::slots(token));
            at = self.behind(at, token);
        }
        if self.is_used(at) {
            for chains in chains.chunks(PIECES) {
                kept.write(place, chains);
                place = self.write_used(place, chains);
            }
        }
        kept.write(base, &[]);
        base
    }

    /// Whether a packed ring's descriptor was completed in the lap of its position.
    fn is_used(&self, at: u16) -> bool {
        let flags = self.descriptors.load_u16(16 * self.slot(at) + 14);
        flags & (AVAILABLE | USED) == if at & WRAP != 0 { AVAILABLE | USED } else { 0 }
    }

    /// Position of a packed ring that was served before, from its record. Completes the recorded chains if the server ended before
    /// it had.
    fn resume(&self, place: u16, chains: &[u64]) -> u16 {
        if chains.is_empty() || self.is_owed(place, chains) {
            self.write_used(place, chains)
        } else {
            self.behind_all(place, chains)
        }
    }

    /// Whether a record can be of this ring.
    fn is_of_this(&self, place: u16, chains: &[u64]) -> bool {
        let slots: u32 = chains.iter().map(|chain| u32::from(Token(*chain as u32).slots())).sum();
        place & !WRAP < self.size && slots <= u32::from(self.size)
    }

    /// Whether the recorded chains were not completed. A chain's first descriptor shows it.
    fn is_owed(&self, place: u16, chains: &[u64]) -> bool {
        !chains.is_empty() && self.is_available(place)
    }

    fn behind_all(&self, place: u16, chains: &[u64]) -> u16 {
        chains.iter().fold(place, |at, chain| self.behind(at, Token(*chain as u32)))
    }

    /// Counts the descriptors that a walk has read.
    pub fn note(&self, chain: &Chain<'_>) {
        self.walked.set(self.walked.get() + chain.walked());
    }

    /// Counts a chain of one descriptor.
    #[inline]
    pub fn note_one(&self) {
        self.walked.set(self.walked.get() + 1);
    }

    /// Counts as many chains of one descriptor.
    #[inline]
    pub fn note_ones(&self, chains: u32) {
        self.walked.set(self.walked.get().wrapping_add(chains));
    }

    /// Descriptors read in this call, of the counted chains.
    pub fn walked(&self) -> u32 {
        self.walked.get()
    }

    /// Whether this call may start another chain.
    pub fn has_steps(&self) -> bool {
        self.walked() < STEPS_PER_CALL
    }

    /// Number of chains of one descriptor that this call may take yet.
    #[inline]
    pub fn steps_left(&self) -> u32 {
        STEPS_PER_CALL.saturating_sub(self.walked())
    }
}

/// Whether an index has passed `wanted` on its way from `old` to `new` (section 2.7.7.2's formula).
fn crossed(wanted: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(wanted).wrapping_sub(1) < new.wrapping_sub(old)
}
