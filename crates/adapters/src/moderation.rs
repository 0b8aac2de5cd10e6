//! Interrupts for received frames that come less often than frames do, where the device may choose how often.
//!
//! A flow that carries much takes at most one interrupt in [`SPAN_NS`], half as many as VMware's own vmxnet3 takes (4000 a second
//! unless `ethernetX.coalescingParams` says otherwise: vSphere's networking guide) and Linux's e1000 asks for in bulk: here each comes
//! from another process, and real guests transmit more so (docs/measured.md, "Interrupts of a bulk flow"). Nobody
//! is held up for it: when half of a ring is used up, or [`ENOUGH`] bytes wait, as much as half of a sender's window may be, it is told
//! at once. A flow that carries little, such as a request and its answer, is told at once: nobody waits for company that does not come.
//! What counts is carried both ways, for the acknowledgements of a bulk transmission are small and still need no haste.

use nicety_adapter::Time;

/// From one interrupt of a bulk flow to the next, at least.
pub const SPAN_NS: u64 = 500_000;
/// Bytes that do not wait any longer.
pub const ENOUGH: u64 = 256 << 10;
/// Bytes from one interrupt to the next that make a flow bulk: more than ten full frames.
const BULK: u64 = 16 << 10;

/// When the next interrupt may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    until: Time,
    /// What was carried up to the last interrupt.
    carried: u64,
    held: bool,
}

impl Moderation {
    /// Something waits, and its time has come: what a restored state had not told.
    pub fn overdue() -> Self {
        Self { held: true, ..Self::default() }
    }

    /// There is something to tell. False if it waits until [`Moderation::due`]. `carried`: bytes received and sent so far.
    pub fn may_tell(&mut self, carried: u64, now: Time) -> bool {
        self.held = now < self.until && carried.wrapping_sub(self.carried) < ENOUGH;
        !self.held
    }

    /// It is told now.
    pub fn told(&mut self, carried: u64, now: Time) {
        let bulk = carried.wrapping_sub(self.carried) >= BULK;
        *self = Self { until: now.after_ns(if bulk { SPAN_NS } else { 0 }), carried, held: false };
    }

    /// What waited needs no telling.
    pub fn seen(&mut self) {
        self.held = false;
    }

    /// When what waits is to be told, if anything does.
    pub fn due(&self) -> Option<Time> {
        self.held.then_some(self.until)
    }

    /// Whether something waits whose time has come.
    pub fn over(&self, now: Time) -> bool {
        self.held && self.until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bulk_is_told_once_in_a_span_and_the_last_of_it_is_not_forgotten() {
        let mut moderation = Moderation::default();
        let start = Time(1_000_000);
        assert!(moderation.may_tell(64 << 10, start));
        moderation.told(64 << 10, start);
        let soon = start.after_ns(SPAN_NS / 2);
        assert!(moderation.may_tell((64 << 10) + ENOUGH, soon), "much does not wait");
        assert!(!moderation.may_tell(65 << 10, soon) && !moderation.over(soon));
        assert_eq!(moderation.due(), Some(start.after_ns(SPAN_NS)));
        assert!(moderation.over(start.after_ns(SPAN_NS)));
        moderation.told(65 << 10, start.after_ns(SPAN_NS));
        assert_eq!(moderation.due(), None);
    }

    #[test]
    fn what_carries_little_is_told_at_once() {
        let mut moderation = Moderation::default();
        for round in 1..100 {
            let now = Time(round * 10_000);
            assert!(moderation.may_tell(round * 200, now), "round {round}");
            moderation.told(round * 200, now);
        }
    }
}
