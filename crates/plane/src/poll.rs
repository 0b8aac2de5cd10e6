//! When to look at a queue whose doorbell makes no sound: one in a page that the guest has mapped.
//!
//! The longer it has been silent, the longer it may wait: an eighth of the silence, so that a look adds little to
//! what the guest itself took, and a guest that is idle costs next to nothing. All that have been silent for long are
//! looked at together, at multiples of [`MOST_NS`].

use nicety_adapter::Time;

/// From one look to the next, at least.
pub const LEAST_NS: u64 = 20_000;
/// And at most.
pub const MOST_NS: u64 = 5_000_000;
/// Which part of its silence a queue may wait.
const PART: u64 = 8;

/// The next look at queues that were last `active` then.
pub fn next(active: Time, now: Time) -> Time {
    let silence = u64::try_from(now.since(active).as_nanos()).unwrap_or(u64::MAX);
    let wait = (silence / PART).clamp(LEAST_NS, MOST_NS);
    let Time(at) = now.after_ns(wait);
    if wait < MOST_NS { Time(at) } else { Time(at.checked_next_multiple_of(MOST_NS).unwrap_or(at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_at_once_then_ever_rarer_and_idle_queues_share_theirs() {
        let start = Time(1_000_000_003);
        let (mut now, mut looks) = (start, 0u32);
        while now.since(start).as_millis() < 1_000 {
            let at = next(start, now);
            assert!(at > now && at <= now.after_ns(2 * MOST_NS));
            (now, looks) = (at, looks + 1);
        }
        assert!((100..400).contains(&looks), "{looks} looks in the first second");
        let Time(one) = next(start, now.after_ns(1));
        let Time(other) = next(Time(7), now.after_ns(12_345));
        assert_eq!((one % MOST_NS, one), (0, other));
    }
}
