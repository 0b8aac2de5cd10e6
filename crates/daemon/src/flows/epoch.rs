//! The time of day of the frames' clock's start.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nicety_adapter::Time;

/// A clock that was set back is believed after this time.
const BELIEVED: Duration = Duration::from_secs(60);

/// Follows the time of day. When it is set forwards, as at the first answer of a time server, at once. When it is set back, after a minute:
/// until then the times of records go on, and do not repeat if the clock was wrong only for a moment. So a wrong step in either direction ends
/// a minute after it was mended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Epoch {
    ns: u64,
    /// The clock has been behind since this time.
    behind: Option<Time>,
}

impl Epoch {
    /// Looks at the time of day.
    pub fn look(&mut self, now: Time) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.learn(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX), now);
    }

    /// The time of day is this, in nanoseconds since 1970-01-01 00:00 UTC.
    pub(super) fn learn(&mut self, wall_ns: u64, now: Time) {
        let ns = wall_ns.saturating_sub(now.0);
        if ns < self.ns && now.since(*self.behind.get_or_insert(now)) < BELIEVED {
            return;
        }
        (self.ns, self.behind) = (ns, None);
    }

    /// The time of day of the clock's start, in nanoseconds since 1970-01-01 00:00 UTC.
    pub fn ns(self) -> u64 {
        self.ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of records, in seconds, when the time of day is this.
    fn at(epoch: &mut Epoch, wall_s: u64, now_s: u64) -> u64 {
        let now = Time(now_s * 1_000_000_000);
        epoch.learn(wall_s * 1_000_000_000, now);
        (epoch.ns() + now.0) / 1_000_000_000
    }

    #[test]
    fn the_time_of_records_follows_a_clock_that_is_set_forwards_at_once() {
        let mut epoch = Epoch::default();
        assert_eq!(at(&mut epoch, 5, 5), 5, "no battery: 1970");
        assert_eq!(at(&mut epoch, 1_700_000_000, 6), 1_700_000_000);
        assert_eq!(at(&mut epoch, 1_700_000_010, 16), 1_700_000_010);
    }

    #[test]
    fn the_time_of_records_goes_on_for_a_minute_when_the_clock_is_set_back_and_follows_then() {
        let mut epoch = Epoch::default();
        assert_eq!(at(&mut epoch, 1_700_000_000, 5), 1_700_000_000);
        for second in 0..60 {
            assert_eq!(at(&mut epoch, 1_600_000_000 + second, 6 + second), 1_700_000_001 + second);
        }
        assert_eq!(at(&mut epoch, 1_600_000_060, 66), 1_600_000_060);
        assert_eq!(at(&mut epoch, 1_600_000_061, 67), 1_600_000_061);
    }

    #[test]
    fn a_clock_that_is_wrong_for_a_moment_changes_no_time_of_records_for_longer_than_a_minute() {
        let mut epoch = Epoch::default();
        assert_eq!(at(&mut epoch, 1_700_000_000, 0), 1_700_000_000);
        assert_eq!(at(&mut epoch, 1_600_000_000, 10), 1_700_000_010, "behind for 10 s");
        assert_eq!(at(&mut epoch, 1_700_000_020, 20), 1_700_000_020);
        assert_eq!(at(&mut epoch, 1_600_000_000, 70), 1_700_000_070, "the minute begins anew");
        assert_eq!(at(&mut epoch, 1_700_000_080, 80), 1_700_000_080);
        assert_eq!(at(&mut epoch, 2_000_000_000, 90), 2_000_000_000, "ahead by years");
        assert_eq!(at(&mut epoch, 1_700_000_100, 100), 2_000_000_010);
        assert_eq!(at(&mut epoch, 1_700_000_160, 160), 1_700_000_160, "mended a minute ago");
    }
}
