//! The only clock: monotonic, and read once per round of a worker.

use std::time::Instant;

use nicety_adapter::Time;

/// Nanoseconds since the daemon started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// A clock that started this long ago.
    #[cfg(test)]
    pub fn begun(ago: std::time::Duration) -> Self {
        Self { origin: Instant::now().checked_sub(ago).unwrap() }
    }

    /// The current time.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}
