//! A virtqueue, split or packed (virtio 1.2, sections 2.7 and 2.8): three areas in guest memory ([`Areas`]), and the device's
//! position in them.
//!
//! Nothing in those areas is trusted: an index that runs ahead of the ring, a chain longer than the ring or than 1024 descriptors,
//! a table in a table or an empty buffer breaks the ring. A broken ring is not served until the driver starts it again.

pub(super) mod areas;

use nicety_adapter::interrupts::{CompletionDelay, ReceiveModeration};
use nicety_adapter::{Context, Reason, Time};
use nicety_memory::Map;
use serde::{Deserialize, Serialize};

use self::areas::{Areas, Found};
use super::broken::Broken;
use super::chain::Token;
use super::coalescing::Limits;
use super::kept::Kept;
use super::registers::feature;

/// Largest ring (section 2.7).
const SIZE_MAX: u16 = 32768;

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
    /// The ring is started and disabled, and its driver has kicked: its chains are completed and their packets dropped. Not saved.
    #[serde(skip)]
    pub discards: bool,
    /// Violation that broke the ring since its last start.
    pub broken: Option<Broken>,
    /// Position of the next chain to take: an index, or a packed ring's position.
    pub next: u16,
    /// Position of the next completion.
    pub used: u16,
    /// Entries (packed: descriptors) completed since the device last considered a notification.
    pub unsignalled: u16,
    /// The driver was asked not to notify (used without EVENT_IDX only).
    pub quiet: bool,
    /// The flag for [`quiet`](Self::quiet) was written to guest memory since the ring's start or its restore. Not saved.
    #[serde(skip)]
    pub flagged: bool,
    /// A frame was refused for lack of buffers; the ring waits for the driver's notification.
    pub starved: bool,
    /// It is known which completions the driver was notified of. After a restart or a restore this is unknown, so the driver is notified
    /// once in any case (QEMU's `signalled_used_valid`).
    #[serde(skip)]
    pub settled: bool,
    /// Receive ring only: time of the next allowed notification.
    pub moderation: ReceiveModeration,
    /// Transmit ring only: how long completions wait for a notification that is due anyway.
    pub delay: CompletionDelay,
    /// With the driver's own limits: packets since the last notification, and deadline for the first of them.
    pub held: u32,
    pub late: Option<Time>,
    /// Bytes carried.
    pub carried: u64,
    /// Incremented when the ring stops: chains taken before are not completed after it. Not saved.
    #[serde(skip)]
    pub generation: u32,
    /// Receive ring only: frames of at least this many bytes do not fit the buffers from `next` on, with the reason. It avoids a
    /// walk over the same buffers for each frame. Not saved.
    #[serde(skip)]
    pub unfit: Option<(u32, Reason)>,
    /// Its statistics since the last reset or restore.
    #[serde(skip)]
    pub tally: Tally,
    /// The place of the ring's areas in guest memory. Not saved.
    #[serde(skip)]
    pub found: Found,
}

/// A ring's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Notifications from the driver.
    pub by_driver: u64,
    /// Notifications to the driver.
    pub by_device: u64,
    /// Packets carried.
    pub packets: u64,
    /// [`Ring::carried`] at the beginning.
    pub carried_before: u64,
}

impl Ring {
    /// Notifications by the driver, packets, bytes, notifications by the device: since the last reset or restore.
    pub fn statistics(&self) -> [u64; 4] {
        let Tally { by_driver, by_device, packets, carried_before } = self.tally;
        [by_driver, packets, self.carried.wrapping_sub(carried_before), by_device]
    }

    /// Notifies the driver of this ring, which has this number.
    pub fn call(&mut self, number: u16, cx: &mut Context<'_>) {
        self.tally.by_device += 1;
        cx.out.messages.insert(number);
        cx.counters.interrupts += 1;
    }

    /// Whether the ring's addresses and size are valid (sections 2.7.1 and 2.8.10: alignments; 2.7: a power of two, not required of
    /// a packed ring).
    pub fn possible(&self, features: u128) -> bool {
        let packed = features & feature::RING_PACKED != 0;
        let sized = (1..=SIZE_MAX).contains(&self.size) && (packed || self.size.is_power_of_two());
        let driver = if packed { 4 } else { 2 };
        let aligned = (self.descriptors % 16, self.driver % driver, self.device % 4) == (0, 0, 0);
        sized && aligned
    }

    /// Whether its positions are valid in a packed ring.
    pub fn is_within(&self) -> bool {
        [self.next, self.used].iter().all(|place| place & 0x7fff < self.size)
    }

    /// Whether the ring is served.
    pub fn live(&self) -> bool {
        self.started && self.enabled && self.broken.is_none()
    }

    /// Whether chains of a transmit ring are taken.
    pub fn is_fetched(&self) -> bool {
        self.live() || self.discards && self.started && self.broken.is_none()
    }

    /// Its areas, for one call.
    #[inline(always)]
    pub fn open<'m, const PACKED: bool>(
        &mut self,
        memory: &'m Map,
        features: u128,
    ) -> Result<Areas<'m, PACKED>, Broken> {
        Areas::found(self, memory, features & feature::EVENT_IDX != 0, features & feature::INDIRECT_DESC != 0)
    }

    /// The same, translated afresh.
    pub fn translate<'m, const PACKED: bool>(
        &self,
        memory: &'m Map,
        features: u128,
    ) -> Result<Areas<'m, PACKED>, Broken> {
        Areas::of(self, memory, features & feature::EVENT_IDX != 0, features & feature::INDIRECT_DESC != 0)
    }

    /// Start position of a ring with this driver; `None` if its addresses are invalid.
    pub fn begins(&self, memory: &Map, features: u128, base: u32, kept: Option<Kept<'_>>) -> Option<u16> {
        match features & feature::RING_PACKED != 0 {
            true => {
                let mut areas = match self.translate::<true>(memory, features) {
                    Err(Broken::Waits) => return Some(base as u16).filter(|at| at & 0x7fff < self.size),
                    areas => areas.ok()?,
                };
                areas.keep(kept);
                areas.begins(base)
            }
            false => match self.translate::<false>(memory, features) {
                Err(Broken::Waits) => Some(base as u16),
                areas => areas.ok()?.begins(base),
            },
        }
    }

    /// Completes one chain, with this many bytes written.
    pub fn give_back<const PACKED: bool>(&mut self, areas: &Areas<'_, PACKED>, token: Token, bytes: u32) {
        areas.give_back(self, &[token.with_bytes(bytes)]);
    }

    /// Shows the completions to the driver, and considers a [notification](Ring::mark_notified).
    pub fn publish<const PACKED: bool>(&mut self, areas: &Areas<'_, PACKED>) -> bool {
        areas.show(self);
        self.mark_notified(areas)
    }

    /// Marks the shown completions as notified. True if the driver [wants](Areas::wants) a notification.
    pub fn mark_notified<const PACKED: bool>(&mut self, areas: &Areas<'_, PACKED>) -> bool {
        let wants = areas.wants(self);
        self.settled |= self.unsignalled > 0;
        self.unsignalled = 0;
        (self.held, self.late) = (0, None);
        wants
    }

    /// Adds packets that count towards the driver's own limits; true if a notification is due now.
    pub fn reaches(&mut self, limits: Limits, packets: u32, now: Time) -> bool {
        self.held = self.held.saturating_add(packets);
        let late = *self.late.get_or_insert(now.after_ns(u64::from(limits.usecs) * 1000));
        late <= now || (limits.packets > 0 && self.held >= limits.packets)
    }

    /// Does the same as [`mark_notified`](Self::mark_notified), if the ring's areas can be translated. Otherwise the driver is notified in
    /// any case.
    pub fn mark_notified_in(&mut self, memory: &Map, features: u128) -> bool {
        match features & feature::RING_PACKED != 0 {
            true => match self.open::<true>(memory, features) {
                Ok(areas) => self.mark_notified(&areas),
                Err(broken) => broken == Broken::Waits,
            },
            false => match self.open::<false>(memory, features) {
                Ok(areas) => self.mark_notified(&areas),
                Err(broken) => broken == Broken::Waits,
            },
        }
    }
}

#[cfg(test)]
#[path = "ring_test.rs"]
mod tests;
