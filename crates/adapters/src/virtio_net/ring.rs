//! A virtqueue, split or packed (virtio 1.2, sections 2.7 and 2.8): three areas in guest memory ([`Areas`]), and our place in them.
//!
//! Nothing in those areas is trusted: an index that runs ahead of the ring, a chain longer than the ring or than
//! 1024 descriptors, a table in a table or a buffer of no bytes breaks the ring, and a broken ring is left alone until the
//! driver starts it again.

use nicety_adapter::interrupts::{CompletionDelay, ReceiveModeration};
use nicety_adapter::{Context, Reason, Time};
use nicety_memory::Map;
use serde::{Deserialize, Serialize};

use super::areas::Areas;
use super::broken::Broken;
use super::chain::Token;
use super::coalescing::Limits;
use super::kept::Kept;
use super::registers::feature;

/// Largest ring (section 2.7).
const SIZE_MOST: u16 = 32768;

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
    /// It is started and disabled, and its driver has rung: what lies in it is given back, and goes nowhere. Not saved.
    #[serde(skip)]
    pub discards: bool,
    /// How its driver has broken it since it was started.
    pub broken: Option<Broken>,
    /// Where the next chain is taken: an index, or a packed ring's place.
    pub next: u16,
    /// Where the next chain is given back.
    pub used: u16,
    /// Entries, or a packed ring's descriptors, given back since the driver was last considered for a notification.
    pub untold: u16,
    /// The driver has been asked not to notify (used without EVENT_IDX only).
    pub quiet: bool,
    /// It refused for want of buffers, and waits for the driver's notification.
    pub starved: bool,
    /// The driver has been notified of all that it was shown. After a restart or a restore that is unknown, so the driver is notified
    /// once unconditionally (QEMU's `signalled_used_valid`).
    #[serde(skip)]
    pub settled: bool,
    /// A receive ring's: when the driver may be notified next.
    pub moderation: ReceiveModeration,
    /// A transmit ring's: how long what was given back waits for a notification that is due anyway.
    pub delay: CompletionDelay,
    /// By the driver's own limits: packets since it was told, and when it is told of the first at last.
    pub held: u32,
    pub late: Option<Time>,
    /// Bytes that went through it.
    pub carried: u64,
    /// Bumped when it stops: what was taken before is not given back after. Not saved.
    #[serde(skip)]
    pub generation: u32,
    /// A receive ring's: frames of so many bytes or more cannot go into what lies from `next` on, and why. The same buffers are
    /// not walked again for each. Not saved.
    #[serde(skip)]
    pub unfit: Option<(u32, Reason)>,
    /// How often its driver has notified the device, and the device the driver, since the last reset or restore.
    #[serde(skip)]
    pub rung: Rung,
}

/// Notifications of a ring, by its driver and to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rung {
    pub by_driver: u64,
    pub by_device: u64,
}

impl Ring {
    /// Notifies the driver of this ring, which has this number.
    pub fn call(&mut self, number: u16, cx: &mut Context<'_>) {
        self.rung.by_device += 1;
        cx.out.messages.insert(number);
        cx.counters.interrupts += 1;
    }

    /// Whether it can lie there at all (sections 2.7.1 and 2.8.10: alignments; 2.7: a power of two, which a packed one need not be).
    pub fn possible(&self, features: u128) -> bool {
        let packed = features & feature::RING_PACKED != 0;
        let sized = (1..=SIZE_MOST).contains(&self.size) && (packed || self.size.is_power_of_two());
        let driver = if packed { 4 } else { 2 };
        let aligned = (self.descriptors % 16, self.driver % driver, self.device % 4) == (0, 0, 0);
        sized && aligned
    }

    /// Whether its places can be places of a packed ring.
    pub fn is_within(&self) -> bool {
        [self.next, self.used].iter().all(|place| place & 0x7fff < self.size)
    }

    /// Whether it is to be served.
    pub fn live(&self) -> bool {
        self.started && self.enabled && self.broken.is_none()
    }

    /// Whether a transmit ring's chains are to be taken.
    pub fn is_fetched(&self) -> bool {
        self.live() || self.discards && self.started && self.broken.is_none()
    }

    /// Its areas, translated once for a call.
    pub fn open<'m, const PACKED: bool>(&self, memory: &'m Map, features: u128) -> Result<Areas<'m, PACKED>, Broken> {
        Areas::of(self, memory, features & feature::EVENT_IDX != 0, features & feature::INDIRECT_DESC != 0)
    }

    /// Where a ring of this driver's would begin; nothing if it cannot lie there.
    pub fn begins(&self, memory: &Map, features: u128, base: u32, kept: Option<Kept<'_>>) -> Option<u16> {
        match features & feature::RING_PACKED != 0 {
            true => {
                let mut areas = self.open::<true>(memory, features).ok()?;
                areas.keep(kept);
                areas.begins(base)
            }
            false => self.open::<false>(memory, features).ok()?.begins(base),
        }
    }

    /// Gives one chain back, of which so many bytes were written.
    pub fn give_back<const PACKED: bool>(&mut self, areas: &Areas<'_, PACKED>, token: Token, bytes: u32) {
        areas.give_back(self, &[token.with_bytes(bytes)]);
    }

    /// Shows the driver what was given back, and [tells](Ring::tell) it.
    pub fn publish<const PACKED: bool>(&mut self, areas: &Areas<'_, PACKED>) -> bool {
        areas.show(self);
        self.tell(areas)
    }

    /// The driver is told of what it was shown, by a notification if it [wants](Areas::wants) one: true then.
    pub fn tell<const PACKED: bool>(&mut self, areas: &Areas<'_, PACKED>) -> bool {
        let wants = areas.wants(self);
        self.settled |= self.untold > 0;
        self.untold = 0;
        (self.held, self.late) = (0, None);
        wants
    }

    /// More packets have gone through, of which the driver is to be told by its own limits: whether it is now.
    pub fn reaches(&mut self, limits: Limits, packets: u32, now: Time) -> bool {
        self.held = self.held.saturating_add(packets);
        let late = *self.late.get_or_insert(now.after_ns(u64::from(limits.usecs) * 1000));
        late <= now || (limits.packets > 0 && self.held >= limits.packets)
    }

    /// The same, if its areas can be found.
    pub fn tell_in(&mut self, memory: &Map, features: u128) -> bool {
        match features & feature::RING_PACKED != 0 {
            true => self.open::<true>(memory, features).is_ok_and(|areas| self.tell(&areas)),
            false => self.open::<false>(memory, features).is_ok_and(|areas| self.tell(&areas)),
        }
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
