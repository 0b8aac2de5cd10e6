//! Time as a parameter: nanoseconds since an origin that the caller chose.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds. Adapters and the switch never ask a clock; they are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// This much later; the end of time rather than an overflow.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        self.after_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// This many nanoseconds later; the end of time rather than an overflow.
    #[must_use]
    pub fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// How long after `earlier`; zero if it was not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
