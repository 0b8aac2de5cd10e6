//! How long frames are in the switch: a histogram of samples.

use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::Time;

/// One batch in so many is looked at: the others cost nothing but their count.
pub const SAMPLE_EVERY: u32 = 64;

/// The upper ends of the histogram's buckets, in nanoseconds; one more has no end.
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

/// From the fetch of a batch until its last receiver had it, of each frame of the batches that were looked at. Frames that wait in a
/// receive buffer are not waited for.
#[derive(Debug, Default)]
pub(crate) struct Times {
    buckets: [AtomicU64; BUCKETS_NS.len() + 1],
    sum_ns: AtomicU64,
}

/// The histogram as it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Frames by the end of their bucket ([`BUCKETS_NS`]); the last are longer.
    pub buckets: [u64; BUCKETS_NS.len() + 1],
    /// All their times, in nanoseconds.
    pub sum_ns: u64,
}

impl Times {
    /// So many frames took from then to now.
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
