//! Time that frames spend in the switch: a sampled histogram.

use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::Time;

/// One batch in this many is timed; the others are only counted.
pub const SAMPLE_EVERY: u32 = 64;

/// The upper bounds of the histogram's buckets, in nanoseconds; one more bucket is unbounded.
pub const BUCKETS_NS: [u64; 14] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    100_000_000,
];

/// The time from the fetch of a batch to its delivery to the last receiver, per frame of the timed batches. The wait in a receive buffer
/// is not included.
#[derive(Debug, Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; BUCKETS_NS.len() + 1],
    sum_ns: AtomicU64,
}

/// A snapshot of the histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Frames per bucket ([`BUCKETS_NS`]); the last bucket is unbounded.
    pub buckets: [u64; BUCKETS_NS.len() + 1],
    /// The sum of all times, in nanoseconds.
    pub sum_ns: u64,
}

impl Times {
    /// Counts `frames` frames that took from `from` to `to`.
    #[cold]
    pub(crate) fn took(&self, frames: usize, from: Time, to: Time) {
        let (ns, frames) = (to.0.saturating_sub(from.0), frames as u64);
        let bucket = BUCKETS_NS.iter().position(|end| ns <= *end).unwrap_or(BUCKETS_NS.len());
        self.buckets[bucket].fetch_add(frames, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns.saturating_mul(frames), Ordering::Relaxed);
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let mut histogram = Histogram { sum_ns: self.sum_ns.load(Ordering::Relaxed), ..Histogram::default() };
        for (sum, bucket) in histogram.buckets.iter_mut().zip(&self.buckets) {
            *sum = bucket.load(Ordering::Relaxed);
        }
        histogram
    }
}
