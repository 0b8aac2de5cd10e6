//! A split virtqueue (virtio 1.2, section 2.7): three areas in guest memory, and our place in them.
//!
//! ```text
//! descriptors   16 bytes each: address, length, flags (next, write, indirect), next
//! driver area   flags │ index │ ring of heads ............... │ used_event
//! device area   flags │ index │ ring of (head, bytes) ....... │ avail_event
//! ```
//!
//! Nothing in those areas is trusted: an index that runs ahead of the ring, a chain longer than the ring or than
//! 1024 descriptors, a table in a table or a buffer of no bytes breaks the ring, and a broken ring is left alone until the
//! driver starts it again.

use std::cell::Cell;

use nicety_adapter::Reason;
use nicety_adapter::interrupts::{CompletionDelay, ReceiveModeration};
use nicety_memory::{Map, Rights, Touch, Window, full_barrier};
use serde::{Deserialize, Serialize};

use super::broken::Broken;

/// Largest ring (section 2.7).
const SIZE_MOST: u16 = 32768;
/// Buffers of a chain at most, in whatever table, and descriptors in an indirect table: QEMU's limit (VIRTQUEUE_MAX_SIZE).
/// Linux's driver needs 19 (MAX_SKB_FRAGS + 2).
pub(super) const CHAIN_MOST: u32 = 1024;
/// Descriptors that one call may have read before it begins with another chain: 64 packets as long as Linux's need 1216.
pub(super) const STEPS_PER_CALL: u32 = 2048;
/// Descriptors of a packet that its bytes pay for, in the fairness between ports: Linux's longest, and one for a table.
pub(super) const STEPS_PAID: u32 = 20;
/// Descriptor flags (2.7.5): the chain goes on; the device writes; a table of descriptors.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;
/// Flag of either ring: do not notify me (2.7.6, 2.7.8).
const QUIET: u16 = 1;

/// One virtqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ring {
    /// Descriptors.
    pub size: u16,
    /// Bus address of the descriptor table.
    pub descriptors: u64,
    /// Bus address of the driver area.
    pub driver: u64,
    /// Bus address of the device area.
    pub device: u64,
    /// The transport has started it.
    pub started: bool,
    /// The transport has enabled it.
    pub enabled: bool,
    /// How its driver has broken it since it was started.
    pub broken: Option<Broken>,
    /// The next entry of the driver's ring to take.
    pub next: u16,
    /// The next entry of the device's ring to fill.
    pub used: u16,
    /// The device's index when the driver was last considered for a notification.
    pub told: u16,
    /// The driver has been asked not to notify (used without EVENT_IDX only).
    pub quiet: bool,
    /// It refused for want of buffers, and waits for the driver's notification.
    pub starved: bool,
    /// The driver has been notified of everything up to `told`. After a restart or a restore that is unknown, so the driver is notified
    /// once unconditionally (QEMU's `signalled_used_valid`).
    #[serde(skip)]
    pub settled: bool,
    /// A receive ring's: when the driver may be notified next.
    pub moderation: ReceiveModeration,
    /// A transmit ring's: how long what was given back waits for a notification that is due anyway.
    pub delay: CompletionDelay,
    /// Bytes that went through it.
    pub carried: u64,
    /// Bumped when it stops: what was taken before is not given back after. Not saved.
    #[serde(skip)]
    pub generation: u32,
    /// A receive ring's: frames of so many bytes or more cannot go into what lies from `next` on, and why. The same buffers are
    /// not walked again for each. Not saved.
    #[serde(skip)]
    pub unfit: Option<(u32, Reason)>,
}

impl Ring {
    /// Whether it can lie there at all (section 2.7.1: alignments; 2.7: a power of two).
    pub fn possible(&self) -> bool {
        let sized = self.size.is_power_of_two() && self.size <= SIZE_MOST;
        let aligned = (self.descriptors % 16, self.driver % 2, self.device % 4) == (0, 0, 0);
        sized && aligned
    }

    /// Whether it is to be served.
    pub fn live(&self) -> bool {
        self.started && self.enabled && self.broken.is_none()
    }

    /// Its areas, translated once for a call.
    pub fn open<'m>(&self, memory: &'m Map, event_index: bool) -> Result<Areas<'m>, Broken> {
        let size = u32::from(self.size);
        let window = |address, len, rights| memory.window(address, len, rights).map_err(|_| Broken::Place);
        Ok(Areas {
            memory,
            descriptors: window(self.descriptors, 16 * size, Rights::READ)?,
            driver: window(self.driver, 6 + 2 * size, Rights::READ)?,
            device: window(self.device, 6 + 8 * size, Rights::BOTH)?,
            size: self.size,
            event_index,
            walked: Cell::new(0),
        })
    }

    /// Entries that wait to be taken. More than the ring holds breaks it.
    pub fn waiting(&self, areas: &Areas<'_>) -> Result<u16, Broken> {
        let waiting = areas.driver.load_u16(2).wrapping_sub(self.next);
        if waiting > self.size { Err(Broken::Index) } else { Ok(waiting) }
    }

    /// Fills one entry of the device's ring; the driver does not see it before [`Ring::publish`].
    pub fn give_back(&mut self, areas: &Areas<'_>, head: u16, bytes: u32) {
        areas.fill(self.used, &[u64::from(head) | u64::from(bytes) << 32]);
        self.used = self.used.wrapping_add(1);
    }

    /// Shows the driver what was given back, and [tells](Ring::tell) it.
    pub fn publish(&mut self, areas: &Areas<'_>) -> bool {
        self.show(areas);
        self.tell(areas)
    }

    /// Shows the driver what was given back, without telling it.
    pub fn show(&mut self, areas: &Areas<'_>) {
        if self.used != self.told {
            areas.device.store_u16(2, self.used);
        }
    }

    /// The driver is told of what it was shown, by a notification if it [wants](Ring::wants) one: true then.
    pub fn tell(&mut self, areas: &Areas<'_>) -> bool {
        let wants = self.wants(areas);
        self.settled |= self.used != self.told;
        self.told = self.used;
        wants
    }

    /// Whether the driver wants to be notified of what it was shown since it last was told (section 2.7.7).
    pub fn wants(&self, areas: &Areas<'_>) -> bool {
        if self.used == self.told {
            return false;
        }
        full_barrier();
        if areas.event_index {
            let wanted = areas.driver.load_u16(4 + 2 * usize::from(self.size));
            return !self.settled || crossed(wanted, self.used, self.told);
        }
        areas.driver.load_u16(0) & QUIET == 0
    }

    /// Asks the driver to notify when it adds to what it has added up to `seen`. True if it has added meanwhile, and
    /// may not have notified: look again (section 2.7.10).
    pub fn arm(&mut self, areas: &Areas<'_>, seen: u16) -> bool {
        self.arm_around(areas, seen, || ())
    }

    /// The last look comes after what is asked for is written, or the driver may have read what was there before. `between`: what a
    /// driver does just then.
    #[inline(always)]
    fn arm_around(&mut self, areas: &Areas<'_>, seen: u16, between: impl FnOnce()) -> bool {
        if areas.event_index {
            areas.device.store_u16(4 + 8 * usize::from(self.size), seen);
        } else if self.quiet {
            areas.device.store_u16(0, 0);
            self.quiet = false;
        }
        between();
        full_barrier();
        areas.driver.load_u16(2) != seen
    }

    /// Asks the driver not to notify, while it is polled anyway.
    #[inline]
    pub fn hush(&mut self, areas: &Areas<'_>) {
        if !areas.event_index && !self.quiet {
            areas.device.store_u16(0, QUIET);
            self.quiet = true;
        }
    }
}

/// Whether an index has passed `wanted` on its way from `old` to `new` (section 2.7.7.2's formula).
pub(super) fn crossed(wanted: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(wanted).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A ring's areas during one call.
pub(super) struct Areas<'m> {
    memory: &'m Map,
    descriptors: Window<'m>,
    driver: Window<'m>,
    device: Window<'m>,
    size: u16,
    event_index: bool,
    walked: Cell<u32>,
}

impl<'m> Areas<'m> {
    /// The head in an entry of the driver's ring.
    pub fn head(&self, entry: u16) -> Result<u16, Broken> {
        let head = self.driver.load_u16(4 + 2 * usize::from(entry & (self.size - 1)));
        if head < self.size { Ok(head) } else { Err(Broken::Head) }
    }

    /// The heads in the entries of the driver's ring from one on, not more than it has; none of them is checked.
    pub fn heads(&self, first: u16, heads: &mut [u16]) {
        let first = usize::from(first & (self.size - 1));
        let (before, behind) = heads.split_at_mut(heads.len().min(usize::from(self.size) - first));
        self.driver.read_u16s(4 + 2 * first, before);
        if !behind.is_empty() {
            self.driver.read_u16s(4, behind);
        }
    }

    /// The descriptor of a head; zeros if there is none.
    #[inline]
    pub fn descriptor(&self, head: u16) -> u128 {
        u128::from_le_bytes(self.descriptors.read(16 * usize::from(head)))
    }

    /// Hints that a head's descriptor will be read soon.
    #[inline]
    pub fn foresee(&self, head: u16) {
        self.descriptors.prefetch_line(16 * usize::from(head), Touch::Read);
    }

    /// Hints that so many entries of the device's ring will be written soon, from one on.
    pub fn foresee_used(&self, first: u16, entries: u16) {
        for ahead in (0..entries).step_by(8) {
            let at = 4 + 8 * usize::from(first.wrapping_add(ahead) & (self.size - 1));
            self.device.prefetch_line(at, Touch::Write);
        }
    }

    /// Fills entries of the device's ring from one on, not more than it has.
    pub fn fill(&self, first: u16, entries: &[u64]) {
        let first = usize::from(first & (self.size - 1));
        let (before, behind) = entries.split_at(entries.len().min(usize::from(self.size) - first));
        self.device.write_u64s(4 + 8 * first, before);
        if !behind.is_empty() {
            self.device.write_u64s(4, behind);
        }
    }

    /// The device's own index, as it stands in memory.
    pub fn device_index(&self) -> u16 {
        self.device.load_u16(2)
    }

    /// Notes what a walk has read.
    pub fn note(&self, chain: &Chain<'_>) {
        self.walked.set(self.walked.get() + chain.walked());
    }

    /// Notes a chain of one descriptor.
    #[inline]
    pub fn note_one(&self) {
        self.walked.set(self.walked.get() + 1);
    }

    /// Descriptors that were read in this call, of the chains that were noted.
    pub fn walked(&self) -> u32 {
        self.walked.get()
    }

    /// Whether this call may begin with another chain.
    pub fn has_steps(&self) -> bool {
        self.walked() < STEPS_PER_CALL
    }

    /// The buffers that hang on a head.
    pub fn chain(&self, head: u16, indirect: bool) -> Chain<'m> {
        let entries = u32::from(self.size);
        let left = entries.min(CHAIN_MOST);
        Chain {
            memory: self.memory,
            table: self.descriptors,
            entries,
            at: u32::from(head),
            left,
            whole: left,
            tables: indirect,
            done: false,
        }
    }
}

/// A piece of guest memory that a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    /// Bus address.
    pub address: u64,
    /// Bytes, never 0.
    pub len: u32,
    /// For the device to write.
    pub write: bool,
}

/// A walk along a chain: at most as many steps as the table has entries, and at most [`CHAIN_MOST`] buffers.
pub(super) struct Chain<'m> {
    memory: &'m Map,
    table: Window<'m>,
    entries: u32,
    at: u32,
    left: u32,
    /// Steps that were left before the first one.
    whole: u32,
    /// A table may still come: allowed, and not in one already.
    tables: bool,
    done: bool,
}

impl Chain<'_> {
    /// Descriptors that were read.
    pub fn walked(&self) -> u32 {
        self.whole - self.left
    }

    fn step(&mut self) -> Result<Buffer, Broken> {
        loop {
            if self.left == 0 {
                return Err(Broken::Loop);
            }
            if self.at >= self.entries {
                return Err(Broken::Next);
            }
            self.left -= 1;
            let descriptor = u128::from_le_bytes(self.table.read(16 * self.at as usize));
            let (address, len) = (descriptor as u64, (descriptor >> 64) as u32);
            let (flags, next) = ((descriptor >> 96) as u16, (descriptor >> 112) as u16);
            if len == 0 {
                return Err(Broken::Empty);
            }
            if flags & INDIRECT == 0 {
                self.at = u32::from(next);
                self.done = flags & NEXT == 0;
                return Ok(Buffer { address, len, write: flags & WRITE != 0 });
            }
            let entries = len / 16;
            if !self.tables || flags & NEXT != 0 || len % 16 != 0 || entries > CHAIN_MOST {
                return Err(Broken::Table);
            }
            self.table = self.memory.window(address, len, Rights::READ).map_err(|_| Broken::Table)?;
            // The descriptor that names the table is no buffer.
            let walked = self.walked();
            self.left = entries.min(CHAIN_MOST + 1 - walked);
            self.whole = self.left + walked;
            (self.entries, self.at, self.tables) = (entries, 0, false);
        }
    }
}

impl Iterator for Chain<'_> {
    type Item = Result<Buffer, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step();
        self.done |= step.is_err();
        Some(step)
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
