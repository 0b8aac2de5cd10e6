//! How much a port's guest, or its front end, may make the log grow: some lines at once, then a line a minute. What is left out is counted,
//! and told with the next line; `nicety ports` tells how things are all the while.

use std::fmt::Display;
use std::time::Duration;

use nicety_adapter::Time;
use tracing::warn;

/// Lines at once.
const BURST: u32 = 8;
/// For each line that a port may have after those.
const PAUSE: Duration = Duration::from_secs(60);

/// See the module's page.
#[derive(Debug)]
pub struct Complaints {
    left: u32,
    /// Since when `left` is so.
    since: Time,
    unsaid: u64,
}

impl Default for Complaints {
    fn default() -> Self {
        Self { left: BURST, since: Time::ZERO, unsaid: 0 }
    }
}

impl Complaints {
    /// Writes a line about a port to the log, if it may have one now.
    pub fn warn(&mut self, now: Time, port: &str, what: impl Display) {
        match self.may_say(now) {
            Some(0) => warn!(port, "{what}"),
            Some(unsaid) => warn!(port, "{what} (and {unsaid} such lines that were left out)"),
            None => {}
        }
    }

    /// Whether a line may be written now; with it, how many were not since the last one.
    fn may_say(&mut self, now: Time) -> Option<u64> {
        let grown = now.since(self.since).as_secs() / PAUSE.as_secs();
        if grown > 0 {
            let grown = u32::try_from(grown).unwrap_or(BURST);
            self.left = self.left.saturating_add(grown).min(BURST);
            self.since = now;
        }
        if self.left == 0 {
            self.unsaid += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_complaints_are_a_few_lines_and_then_one_a_minute() {
        let mut complaints = Complaints::default();
        let mut lines = |times: u64, at: u64| {
            let now = Time::ZERO.after(Duration::from_secs(at));
            let said: Vec<u64> = (0..times).filter_map(|_| complaints.may_say(now)).collect();
            said
        };
        assert_eq!(lines(1_000_000, 5), [0; 8]);
        assert_eq!(lines(1000, 59), [0u64; 0]);
        assert_eq!(lines(1000, 61), [1_000_992], "what was left out is told once");
        assert_eq!(lines(1000, 120), [0u64; 0]);
        assert_eq!(lines(1, 121), [1999]);
        assert_eq!(lines(1000, 86_400), [0; 8], "a day of peace");
    }
}
