//! The processor time that a port's own thread may use.
//!
//! Workers charge a port for its frames and for the messages that they handle. The port's own thread does other work for the VMM:
//! vhost-user's control messages, mapping and unmapping memory. No worker's round-robin limits that work, but it shares the
//! processors with the workers. So each such thread may use a part of one processor, plus a burst for a VM that starts.

use std::time::Duration;

use nicety_adapter::Time;
use nix::time::{ClockId, clock_gettime};

/// The divisor of a processor's time: a thread gets one tenth.
pub const PART: u32 = 10;
/// Processor time that may be used at once. A VM that starts needs some ten milliseconds.
pub const BURST: Duration = Duration::from_millis(50);
/// The longest rest. Freeing the memory of one VM may take seconds; the next VM need not pay for that.
pub const REST_MAX: Duration = Duration::from_secs(1);
/// The shortest rest. A shorter one would cost more than it saves.
const REST_MIN: Duration = Duration::from_millis(1);

/// A token bucket of processor time.
#[derive(Debug)]
pub struct Allowance {
    left_ns: i64,
    at: Time,
    used: Duration,
}

impl Default for Allowance {
    /// A full bucket, for a new thread.
    fn default() -> Self {
        Self { left_ns: ns(BURST), at: Time::ZERO, used: Duration::ZERO }
    }
}

impl Allowance {
    /// Charges the processor time used so far. Returns the rest that the thread must take, if any.
    pub fn rest(&mut self, used: Duration, now: Time) -> Option<Duration> {
        let fresh = ns(now.since(self.at)) / i64::from(PART);
        let spent = ns(used.saturating_sub(self.used));
        (self.at, self.used) = (now, used);
        let least = -ns(REST_MAX / PART);
        self.left_ns = self.left_ns.saturating_add(fresh).min(ns(BURST)).saturating_sub(spent).max(least);
        let rest = Duration::from_nanos(self.left_ns.min(0).unsigned_abs()) * PART;
        (rest >= REST_MIN).then_some(rest)
    }
}

fn ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// Processor time of the calling thread.
///
/// Not by rustix 1.1, which panics at its first question for a time where the kernel's vDSO has no `getcpu` (vdso_wrappers.rs): that of
/// user-mode Linux has none.
pub fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that a thread with endless work, in pieces of this length, uses within `lasts`.
    fn used_within(lasts: Duration, piece: Duration) -> Duration {
        let (mut now, mut used) = (Time::ZERO, Duration::ZERO);
        let mut allowance = Allowance::default();
        while now < Time::ZERO.after(lasts) {
            used += piece;
            now = now.after(piece);
            now = now.after(allowance.rest(used, now).unwrap_or_default());
        }
        used
    }

    #[test]
    fn a_thread_that_always_has_work_uses_a_tenth_of_a_processor_and_a_burst() {
        let minute = Duration::from_secs(60);
        for piece in [10, 1_000, 90_000].map(Duration::from_micros) {
            let (used, most) = (used_within(minute, piece), minute / 10 + BURST + piece + REST_MIN);
            assert!(used <= most && used >= minute / 11, "pieces of {piece:?}: {used:?}");
        }
    }

    #[test]
    fn what_is_used_now_and_then_waits_for_nothing() {
        let (mut now, mut used) = (Time::ZERO, Duration::ZERO);
        let mut allowance = Allowance::default();
        for _ in 0..1000 {
            used += BURST;
            now = now.after(Duration::from_secs(1));
            assert_eq!(allowance.rest(used, now), None);
        }
    }

    #[test]
    fn nothing_rests_for_longer_than_a_second() {
        let mut allowance = Allowance::default();
        assert_eq!(allowance.rest(Duration::from_secs(60), Time::ZERO), Some(REST_MAX));
    }

    #[test]
    fn a_thread_knows_what_it_has_used() {
        let begin = used();
        while used() < begin + Duration::from_millis(2) {}
    }
}
