//! Limits of what a daemon can have the keeper do, as token buckets.

use std::time::{Duration, Instant};

/// Something that may be done so many times at once, and then so often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    most: u32,
    per_second: f64,
    left: f64,
    at: Instant,
}

impl Budget {
    /// A full budget: so much at once, and so much a second.
    pub fn new(most: u32, per_second: f64, now: Instant) -> Self {
        Self { most, per_second, left: most.into(), at: now }
    }

    /// Adds what has come back since.
    pub fn grow(&mut self, now: Instant) {
        let grown = now.saturating_duration_since(self.at).as_secs_f64() * self.per_second;
        (self.left, self.at) = ((self.left + grown).min(self.most.into()), now.max(self.at));
    }

    /// Whether one was left when it [grew](Self::grow) last.
    pub fn is_left(&self) -> bool {
        self.left >= 1.0
    }

    /// Takes one. False if none is left.
    pub fn take(&mut self, now: Instant) -> bool {
        self.grow(now);
        let is_left = self.is_left();
        self.left -= f64::from(u8::from(is_left));
        is_left
    }

    /// Whether half of it is left: it was not used for a while.
    pub fn is_calm(&mut self, now: Instant) -> bool {
        self.grow(now);
        self.left * 2.0 >= self.most.into()
    }

    /// Whether nothing of it is used.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.grow(now);
        self.left >= self.most.into()
    }
}

/// A part of the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    burst_ns: i64,
    part: u32,
    left_ns: i64,
    at: Instant,
}

impl Share {
    /// A full share: so much time at once, and then this part of the time: a tenth if it is 10.
    pub fn new(burst: Duration, part: u32, now: Instant) -> Self {
        Self { burst_ns: ns(burst), part, left_ns: ns(burst), at: now }
    }

    /// Whether some is left.
    pub fn is_left(&mut self, now: Instant) -> bool {
        let fresh = ns(now.saturating_duration_since(self.at) / self.part);
        (self.left_ns, self.at) = (self.left_ns.saturating_add(fresh).min(self.burst_ns), now.max(self.at));
        self.left_ns > 0
    }

    /// Uses some. What was used without being left is owed, up to a tenth of the burst.
    pub fn spend(&mut self, used: Duration) {
        self.left_ns = self.left_ns.saturating_sub(ns(used)).max(-self.burst_ns / 10);
    }
}

fn ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_comes_back_at_its_rate() {
        let begun = Instant::now();
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let mut budget = Budget::new(4, 2.0, begun);
        assert_eq!([0; 6].map(|ms| budget.take(at(ms))), [true, true, true, true, false, false]);
        assert!(!budget.is_calm(at(0)) && !budget.take(at(499)) && budget.take(at(500)));
        assert!(!budget.is_calm(at(1499)) && budget.is_calm(at(1500)) && !budget.is_full(at(1500)));
        assert!(budget.is_full(at(60_000)));
        assert_eq!([60_000; 5].map(|ms| budget.take(at(ms))), [true, true, true, true, false]);
    }

    #[test]
    fn work_without_end_takes_a_tenth_of_the_time_and_a_burst() {
        const BURST: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        let (mut share, mut now, mut used) = (Share::new(BURST, 10, begun), begun, Duration::ZERO);
        let piece = Duration::from_millis(1);
        while now < begun + Duration::from_secs(60) {
            if share.is_left(now) {
                share.spend(piece);
                used += piece;
            }
            now += piece;
        }
        let wanted = Duration::from_secs(6) + BURST;
        assert!(used <= wanted + 10 * piece && used >= wanted / 2, "{used:?}");
    }
}
