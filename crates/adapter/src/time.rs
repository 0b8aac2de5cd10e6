//! Time as a parameter: nanoseconds since an origin that the caller chooses.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time, in nanoseconds. Adapters and the switch never read a clock; they get the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// This much later; saturates.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        self.after_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    /// This many nanoseconds later; saturates.
    #[must_use]
    pub fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// The time since `earlier`; zero if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
