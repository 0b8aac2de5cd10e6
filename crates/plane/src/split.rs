//! A guest's port whose queue pairs several workers serve (docs/adr/0025).
//!
//! ```text
//! switch:   … ── port 7 ──►  which part? (the flow)  ──►  part 0, port 7: lock, backlog, adapter with pairs 0, 2, …
//!                  ▲                                 ──►  part 1, port 9: lock, backlog, adapter with pairs 1, 3, …
//!                  └── origin 7 ◄── what a part fetches
//! ```
//!
//! A part is a [`Port`]. The first one has the port's number; the others have numbers of their own, which place them on workers, and on
//! which the switch decides nothing. An uplink that is full holds the part that sent to it, and not the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, PACKETS, Pick, Time};

use crate::port::Port;
use crate::team::{Hash, numbers};

/// Most parts of a port.
pub const PARTS_MOST: usize = 16;

/// The parts of one port. There is at least one.
#[derive(Debug)]
pub struct Split {
    first: Arc<Port>,
    others: ArrayVec<Arc<Port>, PARTS_MOST>,
    /// The parts whose guest receives on one of their queues, a bit each.
    live: AtomicU32,
}

impl Split {
    /// A port of these parts: the first, and others that were made as [parts of it](Port::part_of). Those beyond [`PARTS_MOST`] are none.
    pub fn new(first: Arc<Port>, others: impl IntoIterator<Item = Arc<Port>>) -> Self {
        Self { first, others: others.into_iter().take(PARTS_MOST - 1).collect(), live: AtomicU32::new(0) }
    }

    /// The part with the port's number.
    pub fn first(&self) -> &Arc<Port> {
        &self.first
    }

    /// The parts, in order.
    pub fn parts(&self) -> impl Iterator<Item = &Arc<Port>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The part that serves a queue pair: pairs are dealt in turn, so that a guest that uses few of them uses many parts.
    pub fn of_pair(&self, pair: u16) -> &Arc<Port> {
        let index = usize::from(pair) % (1 + self.others.len());
        index.checked_sub(1).and_then(|index| self.others.get(index)).unwrap_or(&self.first)
    }

    /// Looks which parts have queues on which the guest receives. Call it when the guest's queues have changed. A flow may change its part
    /// then, and frames of it that wait at the old one may be overtaken.
    pub fn look(&self, now: Time) {
        if self.others.is_empty() {
            return;
        }
        let receives = |port: &Arc<Port>| port.with_rings(now, |rings, _| rings.receives()).unwrap_or(false);
        let live = self.parts().zip(0..).fold(0, |live, (part, bit)| live | u32::from(receives(part)) << bit);
        self.live.store(live, Ordering::Release);
    }

    /// The part that a packet goes to now.
    pub(crate) fn part_for(&self, batch: &Batch, pick: &Pick) -> &Arc<Port> {
        let live = self.live.load(Ordering::Acquire);
        let hash = batch.packet(pick.packet).map_or(0, |packet| Hash::Layer34.of(batch, packet, pick));
        let chosen = numbers(live.into()).nth(hash as usize % live.count_ones().max(1) as usize);
        self.of_pair(chosen.unwrap_or_default() as u16)
    }

    /// Divides picks among the parts by their flows, and gives each part's to `offer`. If the guest receives on no queue, the first part
    /// gets all, and counts them.
    pub(crate) fn divide(&self, batch: &Batch, picks: &[Pick], mut offer: impl FnMut(&Arc<Port>, &[Pick])) {
        // One look for the whole batch.
        let live = self.live.load(Ordering::Acquire);
        if live.count_ones() < 2 {
            let only = live.trailing_zeros() % u32::BITS;
            return offer(self.of_pair(only as u16), picks);
        }
        let parts: ArrayVec<usize, PARTS_MOST> = numbers(live.into()).take(PARTS_MOST).collect();
        let mut shares = [0u64; PARTS_MOST];
        for (pick, bit) in picks.iter().zip(0..) {
            let hash = batch.packet(pick.packet).map_or(0, |packet| Hash::Layer34.of(batch, packet, pick));
            if let Some(share) = parts.get(hash as usize % parts.len()).and_then(|part| shares.get_mut(*part)) {
                *share |= 1 << bit;
            }
        }
        for (share, part) in shares.into_iter().zip(self.parts()).filter(|(share, _)| *share != 0) {
            let picks: ArrayVec<Pick, PACKETS> = numbers(share).filter_map(|at| picks.get(at).copied()).collect();
            offer(part, &picks);
        }
    }
}
