//! The only clock: monotonic, and read once per round of a worker.

use std::time::{Duration, Instant};

use nicety_adapter::Time;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since the daemon started, or since the first of those that it has replaced.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// On CLOCK_MONOTONIC, which all processes share.
    origin_ns: u64,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { origin_ns: monotonic_ns() }
    }

    /// The clock of the daemon that this one replaces.
    pub fn go_on(origin_ns: u64) -> Self {
        Self { origin_ns: origin_ns.min(monotonic_ns()) }
    }

    /// Its start on CLOCK_MONOTONIC, in nanoseconds.
    pub fn origin_ns(&self) -> u64 {
        self.origin_ns
    }

    /// A clock that started this long ago.
    #[cfg(test)]
    pub fn begun(ago: std::time::Duration) -> Self {
        Self { origin_ns: monotonic_ns().checked_sub(ago.as_nanos() as u64).unwrap() }
    }

    /// A time on CLOCK_MONOTONIC in milliseconds, without its upper bits. It is never 0.
    pub fn monotonic_ms(&self, time: Time) -> u32 {
        ms_of(self.origin_ns.saturating_add(time.0))
    }

    /// Whether a time of [`Clock::monotonic_ms`] was this long ago.
    pub fn is_ago(&self, ms: u32, ago: Duration) -> bool {
        u128::from(ms_of(monotonic_ns()).wrapping_sub(ms)) >= ago.as_millis()
    }

    /// Its start for whoever counts from an [`Instant`]. Never earlier than the real one: a time that is counted so is read too early by
    /// this clock, and never too late.
    pub fn began(&self) -> Instant {
        // In this order: the process may stand still in between.
        let age = Duration::from_nanos(self.now().0);
        let now = Instant::now();
        now.checked_sub(age).unwrap_or(now)
    }

    /// The current time.
    pub fn now(&self) -> Time {
        Time(monotonic_ns().saturating_sub(self.origin_ns))
    }
}

fn ms_of(ns: u64) -> u32 {
    ((ns / 1_000_000) as u32).max(1)
}

/// CLOCK_MONOTONIC, which every system has.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| i128::from(time.tv_sec()) * 1_000_000_000 + i128::from(time.tv_nsec()));
    u64::try_from(now).unwrap_or(0)
}
