//! Limits the frames that a port takes in one hold of its lock (docs/feedback-loops.md, "Hold size").
//!
//! The first frame into untouched memory costs a page fault or two, about a hundred times the cost of the next one, and cannot be
//! predicted. So a port starts with few frames per hold, doubles them after a short hold, and halves them after a long one. An
//! uplink starts with a whole batch.

use nicety_adapter::{PACKETS, Time};

/// Frames of the first hold, and the minimum.
const MIN: usize = 8;
/// A hold longer than this halves the frames. The bound for a lock is 50 µs (p99).
const LONG_NS: u64 = 30_000;
/// After a hold shorter than this the next one may take twice as many frames.
const SHORT_NS: u64 = LONG_NS / 3;

/// See the module's page.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    frames: usize,
    least: usize,
}

impl Pace {
    /// The pace of a guest's adapter: starts with few frames.
    pub fn careful() -> Self {
        Self { frames: MIN, least: MIN }
    }

    /// The pace of an uplink. It starts with a whole batch, which may cost one system call, and never goes below half a batch.
    pub fn whole() -> Self {
        Self { frames: PACKETS, least: PACKETS / 2 }
    }

    /// Frames of the next hold.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Notes that a hold took `frames` frames, from `begin` to `end`.
    pub fn took(&mut self, frames: usize, begin: Time, end: Time) {
        let ns = end.since(begin).as_nanos();
        if ns > u128::from(LONG_NS) {
            self.frames = (self.frames / 2).max(self.least);
        } else if ns < u128::from(SHORT_NS) && frames >= self.frames {
            self.frames = (self.frames * 2).min(PACKETS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(pace: &mut Pace, frames: usize, ns: u64) -> usize {
        pace.took(frames, Time(5), Time(5 + ns));
        pace.frames()
    }

    #[test]
    fn short_holds_double_it_up_to_a_batch_and_long_ones_halve_it() {
        let mut pace = Pace::careful();
        assert_eq!([8, 16, 32, 64].map(|frames| hold(&mut pace, frames, 2_000)), [16, 32, 64, 64]);
        assert_eq!([64; 5].map(|frames| hold(&mut pace, frames, 100_000)), [32, 16, 8, 8, 8]);
        assert_eq!(hold(&mut pace, 8, 25_000), 8, "neither short nor long");
    }

    #[test]
    fn few_frames_prove_nothing_of_many() {
        let mut pace = Pace::careful();
        assert_eq!(hold(&mut pace, 1, 100), 8);
        assert_eq!(hold(&mut pace, 8, 100), 16);
        assert_eq!(hold(&mut pace, 15, 100), 16);
    }

    #[test]
    fn an_uplink_takes_a_whole_batch_or_half_of_it() {
        let mut pace = Pace::whole();
        assert_eq!(hold(&mut pace, 64, 1), 64);
        assert_eq!([64, 32, 32].map(|frames| hold(&mut pace, frames, 1_000_000)), [32, 32, 32]);
        assert_eq!(hold(&mut pace, 32, 5_000), 64);
    }
}
