//! Interrupt moderation for received frames, where the device may choose the rate (docs/feedback-loops.md).
//!
//! A bulk flow causes at most one interrupt per [`MODERATION_NS`]. That is half the rate of VMware's vmxnet3 (4000 a second by
//! default: `ethernetX.coalescingParams`, vSphere's networking guide) and of Linux's e1000 in bulk. Here each interrupt comes from
//! another process, and real guests transmit faster with fewer (docs/measured.md, "Interrupts of a bulk flow"). A half-used ring,
//! or [`MODERATION_BYTES`] waiting (half of a sender's possible window), interrupts at once. So does a flow with little data, such
//! as request and response: nothing more would join the interrupt. Bytes of both directions count: the acknowledgements of a bulk
//! transmission are small and not urgent.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The shortest time between two interrupts of a bulk flow.
pub const MODERATION_NS: u64 = 500_000;
/// This many waiting bytes interrupt at once.
pub const MODERATION_BYTES: u64 = 256 << 10;
/// Bytes between two interrupts that make a flow bulk: more than ten full frames.
const BULK: u64 = 16 << 10;

/// The next allowed time of an interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveModeration {
    until: Time,
    /// Bytes carried up to the last interrupt.
    carried: u64,
    held: bool,
}

impl ReceiveModeration {
    /// Frames have to be signalled. Returns whether to interrupt now; otherwise they wait until [`ReceiveModeration::due`]. `carried`:
    /// bytes received and sent so far.
    pub fn may_interrupt(&mut self, carried: u64, now: Time) -> bool {
        self.held = now < self.until && carried.wrapping_sub(self.carried) < MODERATION_BYTES;
        !self.held
    }

    /// An interrupt is sent now.
    pub fn note_interrupt(&mut self, carried: u64, now: Time) {
        let bulk = carried.wrapping_sub(self.carried) >= BULK;
        *self = Self { until: now.after_ns(if bulk { MODERATION_NS } else { 0 }), carried, held: false };
    }

    /// Like [`ReceiveModeration::note_interrupt`], with the driver's own interval.
    pub fn note_interrupt_for(&mut self, ns: u64, now: Time) {
        *self = Self { until: now.after_ns(ns), held: false, ..*self };
    }

    /// Lets any number of frames wait: until the time set with the last interrupt, or, if that has passed, until `most`. False if
    /// `most` has passed too.
    pub fn hold(&mut self, most: Time, now: Time) -> bool {
        if !self.held {
            self.until = self.until.max(most);
        }
        self.held = now < self.until;
        self.held
    }

    /// The driver has seen the waiting frames: no interrupt needed.
    pub fn seen(&mut self) {
        self.held = false;
    }

    /// The time at which waiting frames must be signalled, if there are any.
    pub fn due(&self) -> Option<Time> {
        self.held.then_some(self.until)
    }

    /// Whether waiting frames must be signalled now.
    pub fn over(&self, now: Time) -> bool {
        self.held && self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_is_told_once_in_a_span_and_the_last_of_it_is_not_forgotten() {
        let mut moderation = ReceiveModeration::default();
        let start = Time(1_000_000);
        assert!(moderation.may_interrupt(64 << 10, start));
        moderation.note_interrupt(64 << 10, start);
        let soon = start.after_ns(MODERATION_NS / 2);
        assert!(moderation.may_interrupt((64 << 10) + MODERATION_BYTES, soon), "much does not wait");
        assert!(!moderation.may_interrupt(65 << 10, soon) && !moderation.over(soon));
        assert_eq!(moderation.due(), Some(start.after_ns(MODERATION_NS)));
        assert!(moderation.over(start.after_ns(MODERATION_NS)));
        moderation.note_interrupt(65 << 10, start.after_ns(MODERATION_NS));
        assert_eq!(moderation.due(), None);
    }

    #[test]
    fn what_carries_little_is_told_at_once() {
        let mut moderation = ReceiveModeration::default();
        for round in 1..100 {
            let now = Time(round * 10_000);
            assert!(moderation.may_interrupt(round * 200, now), "round {round}");
            moderation.note_interrupt(round * 200, now);
        }
    }
}
