//! The time of day of the frames' clock's start.

use std::time::{SystemTime, UNIX_EPOCH};

use nicety_adapter::Time;

/// Follows the time of day when it is set forwards, as at the first answer of a time server, and not when it is set back: the times of a
/// collector's records never repeat.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epoch {
    ns: u64,
}

impl Epoch {
    /// Looks at the time of day.
    pub fn look(&mut self, now: Time) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.learn(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), now);
    }

    /// The time of day is this, in nanoseconds since 1970-01-01 00:00 UTC.
    pub(super) fn learn(&mut self, wall_ns: u64, now: Time) {
        self.ns = self.ns.max(wall_ns.saturating_sub(now.0));
    }

    /// The time of day of the clock's start, in nanoseconds since 1970-01-01 00:00 UTC.
    pub fn ns(self) -> u64 {
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_records_goes_on_when_the_clock_is_set_back_and_follows_when_it_is_set_forwards() {
        let mut epoch = Epoch::default();
        let mut at = |wall_s: u64, now_s: u64| {
            let now = Time(now_s * 1_000_000_000);
            epoch.learn(wall_s * 1_000_000_000, now);
            (epoch.ns() + now.0) / 1_000_000_000
        };
        assert_eq!(at(1_700_000_000, 5), 1_700_000_000);
        assert_eq!(at(1_700_000_010, 15), 1_700_000_010);
        assert_eq!(at(1_600_000_000, 16), 1_700_000_011, "set back by years");
        assert_eq!(at(1_800_000_000, 17), 1_800_000_000, "set forwards");
    }
}
