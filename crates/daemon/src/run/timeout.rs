//! The idle timeout of a VMM. It applies to its version message, to the rest of a message that has begun, and to reading its
//! answers. Between messages a VMM may be idle for any time.

use std::time::Duration;

use nicety_adapter::Time;

/// The timeout of a vhost-user front end.
pub const TIMEOUT: Duration = nicety_vhost_user::TIMEOUT;

/// The deadline of a VMM. It has one timer at a time, however often the deadline moves.
#[derive(Debug, Default)]
pub struct Timeout {
    end: Option<Time>,
    timer: Option<Time>,
}

impl Timeout {
    /// Begins a deadline. Returns the time for a timer, if none is set.
    pub fn begin(&mut self, now: Time) -> Option<Time> {
        if self.end.is_some() {
            return None;
        }
        self.end = Some(now.after(TIMEOUT));
        if self.timer.is_some() {
            return None;
        }
        self.timer = self.end;
        self.timer
    }

    /// Ends the deadline: the VMM met it.
    pub fn end(&mut self) {
        self.end = None;
    }

    /// Handles a timer. Returns the time for the next one, if this one has expired and a deadline is still set.
    pub fn rung(&mut self, now: Time) -> Option<Time> {
        if self.timer.is_none_or(|timer| timer > now) {
            return None;
        }
        self.timer = self.end.filter(|&end| end > now);
        self.timer
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self, now: Time) -> bool {
        self.end.is_some_and(|end| end <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Time {
        Time::ZERO.after(Duration::from_millis(milliseconds))
    }

    #[test]
    fn what_is_owed_is_due_ten_seconds_after_it_began_however_often_it_is_asked_for() {
        let mut timeout = Timeout::default();
        assert_eq!(timeout.begin(at(5)), Some(at(10_005)));
        assert_eq!(timeout.begin(at(9_000)), None);
        assert!(!timeout.is_over(at(10_004)) && timeout.is_over(at(10_005)));
        timeout.end();
        assert!(!timeout.is_over(at(1_000_000)));
    }

    #[test]
    fn a_million_messages_in_two_parts_set_one_timer_at_a_time() {
        let mut timeout = Timeout::default();
        let mut timers = Vec::new();
        for message in 0..1_000_000 {
            let now = at(message / 40);
            timers.extend(timeout.rung(now));
            timers.extend(timeout.begin(now));
            assert!(!timeout.is_over(now));
            if message < 999_999 {
                timeout.end();
            }
        }
        assert_eq!(timers, [at(10_000), at(20_000), at(30_000)]);
        // The last deadline began at 24,999 ms, with the timer of an earlier one.
        assert_eq!(timeout.rung(at(30_000)), Some(at(34_999)));
        assert!(!timeout.is_over(at(34_998)) && timeout.is_over(at(34_999)));
    }
}
