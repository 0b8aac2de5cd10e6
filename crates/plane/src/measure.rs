//! Hold times of ports' locks, over all ports of the process. Only with the feature `measure`, for the project's own figures
//! (docs/measured.md). It reads the system's clock; no port depends on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Histogram steps per power of two: a hold is known to an eighth.
const STEPS: usize = 8;
const BUCKETS: usize = 64 * STEPS;

static COUNTS: [AtomicU64; BUCKETS] = [const { AtomicU64::new(0) }; BUCKETS];
static LONGEST: AtomicU64 = AtomicU64::new(0);

/// A hold that has begun. It is counted on drop.
pub(crate) struct Hold(Instant);

impl Hold {
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        note(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}

fn note(ns: u64) {
    COUNTS[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    LONGEST.fetch_max(ns, Ordering::Relaxed);
}

/// The step of a time. Times below [`STEPS`] have a step each; for longer times the three bits below the highest decide.
fn bucket(ns: u64) -> usize {
    if ns < STEPS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() as usize;
    (power - 2) * STEPS + (ns >> (power - 3)) as usize - STEPS
}

/// The longest time of a step.
fn most(bucket: usize) -> u64 {
    let (power, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    let width = 1 << power.saturating_sub(1);
    if power == 0 { step } else { (STEPS as u64 + step) * width + (width - 1) }
}

/// All holds since the process began, or since [`forget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Number of holds.
    pub count: u64,
    /// The median in nanoseconds, at most an eighth too long.
    pub p50_ns: u64,
    /// The 99th percentile in nanoseconds, at most an eighth too long.
    pub p99_ns: u64,
    /// The longest hold, exact. It includes holds during which the system stopped the thread.
    pub longest_ns: u64,
}

/// The holds counted so far.
pub fn holds() -> Holds {
    let counts: Vec<u64> = COUNTS.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let count = counts.iter().sum();
    let longest_ns = LONGEST.load(Ordering::Relaxed);
    Holds { count, p50_ns: at(&counts, count, 50), p99_ns: at(&counts, count, 99), longest_ns }
}

/// Sets all counts to zero.
pub fn forget() {
    COUNTS.iter().chain([&LONGEST]).for_each(|count| count.store(0, Ordering::Relaxed));
}

/// The end of the step that holds the percentile, by nearest rank.
fn at(counts: &[u64], count: u64, percent: u64) -> u64 {
    let rank = (count * percent).div_ceil(100).max(1);
    let mut seen = 0;
    let found = counts.iter().position(|step| {
        seen += step;
        seen >= rank
    });
    found.map_or(0, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_known_to_an_eighth() {
        for ns in (0..100_000).chain([u64::MAX / 2, u64::MAX - 1, u64::MAX]) {
            let end = most(bucket(ns));
            assert!(end >= ns && end - ns <= ns / 8, "{ns} becomes {end}");
        }
    }

    #[test]
    fn percentiles_are_the_steps_that_hold_their_rank() {
        let mut counts = [0; BUCKETS];
        (counts[bucket(100)], counts[bucket(5_000)]) = (98, 2);
        assert_eq!((at(&counts, 100, 50), at(&counts, 100, 99)), (most(bucket(100)), most(bucket(5_000))));
        assert_eq!(at(&[0; BUCKETS], 0, 99), 0);
    }
}
