//! Whether the guest waits for a slow secondary, for a person: a line when it has done so for a second, and one when it is over.

use std::fmt;
use std::time::{Duration, Instant};

use nicety_tolerance::{Status, Terms};

/// A change is told after this time.
const SETTLED: Duration = Duration::from_secs(1);

/// See the module's page. Each acknowledgement lets a guest that waits go on for a moment: it waits until its gate, and what the secondary
/// lacks, are below half of what they may be.
#[derive(Debug)]
pub struct Pace {
    low_bytes: usize,
    low_calls: u64,
    is_slow: bool,
    /// Since when it is not as it was told.
    since: Option<Instant>,
    has_told: bool,
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The guest waits.
    Slow,
    /// It does not any more.
    Quick,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Slow => "it is slow, and the guest waits for it",
            Self::Quick => "it keeps up again",
        })
    }
}

impl Pace {
    /// With half of these limits.
    pub fn of(terms: &Terms) -> Self {
        let (low_bytes, low_calls) = (terms.gate_bytes / 2, terms.window_calls / 2);
        Self { low_bytes, low_calls, is_slow: false, since: None, has_told: false }
    }

    /// The change to tell, if there is one.
    pub fn look(&mut self, status: &Status, now: Instant) -> Option<Change> {
        let is_low = status.waiting.1 < self.low_bytes && status.lag.unwrap_or(0) < self.low_calls;
        let was_slow = self.is_slow;
        self.is_slow = status.is_held || (self.is_slow && !is_low);
        if self.is_slow == self.has_told {
            self.since = None;
            return None;
        }
        if self.is_slow != was_slow {
            self.since = Some(now);
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) < SETTLED {
            return None;
        }
        (self.has_told, self.since) = (self.is_slow, None);
        Some(if self.is_slow { Change::Slow } else { Change::Quick })
    }
}

#[cfg(test)]
mod tests {
    use nicety_tolerance::Role;

    use super::*;

    fn status(bytes: usize, lag: u64, is_held: bool) -> Status {
        Status {
            role: Role::Primary,
            epoch: 2,
            calls: 0,
            known: 0,
            lag: Some(lag),
            is_protected: true,
            waiting: (0, bytes),
            is_held,
            image: None,
        }
    }

    /// Looks each millisecond, and returns the changes with their times.
    fn told(pace: &mut Pace, now: &mut Instant, millis: u64, status: impl Fn(u64) -> Status) -> Vec<(u64, Change)> {
        let look = |at| {
            *now += Duration::from_millis(1);
            pace.look(&status(at), *now).map(|change| (at, change))
        };
        (0..millis).filter_map(look).collect()
    }

    #[test]
    fn a_guest_that_goes_on_for_moments_waits_and_one_line_says_so_until_it_is_over() {
        let terms = Terms::default();
        let (mut pace, mut now) = (Pace::of(&terms), Instant::now());
        let full = |at| status(terms.gate_bytes, 0, at != 0);
        // An acknowledgement each 50 ms makes room for one call: near the limit, on both sides of it.
        let flickers = |at| status(terms.gate_bytes - 2000 * usize::from(at % 50 == 0), 0, at % 50 != 0);
        assert_eq!(told(&mut pace, &mut now, 5000, flickers), [(1001, Change::Slow)]);
        // Half of the window is still slow; low for half a second is not over.
        let idle = |_| status(0, 0, false);
        assert_eq!(told(&mut pace, &mut now, 3000, |_| status(0, terms.window_calls / 2, false)), []);
        assert_eq!(told(&mut pace, &mut now, 500, idle), []);
        assert_eq!(told(&mut pace, &mut now, 500, full), []);
        assert_eq!(told(&mut pace, &mut now, 5000, idle), [(1000, Change::Quick)]);
        // A second is the limit.
        assert_eq!(told(&mut pace, &mut now, 900, full), []);
        assert_eq!(told(&mut pace, &mut now, 5000, idle), []);
        assert_eq!(told(&mut pace, &mut now, 5000, |_| status(0, terms.window_calls, true)), [(1000, Change::Slow)]);
    }
}
