//! Interrupt timers of devices: the least time between two interrupts, and delays of a cause.

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The shortest time from one interrupt of a vector to the next (8254x: ITR; 82574: EITR).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttle {
    interval_ns: u64,
    until: Option<Time>,
}

impl Throttle {
    /// Sets the interval from the next interrupt on, in nanoseconds; 0: none. A running pause continues.
    pub fn set_interval(&mut self, interval_ns: u64) {
        self.interval_ns = interval_ns;
    }

    /// Starts an interval; a running one that ends later continues.
    pub fn begin(&mut self, now: Time) {
        if self.interval_ns > 0 {
            self.until = self.until.max(Some(now.after_ns(self.interval_ns)));
        }
    }

    /// Ends the pause at once.
    pub fn stop(&mut self) {
        self.until = None;
    }

    /// End of the pause, if it is running.
    pub fn until(&self, now: Time) -> Option<Time> {
        self.until.filter(|until| *until > now)
    }
}

/// Delays a cause until it has been quiet for a while, up to a limit (8254x: RDTR and RADV).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    due: Option<Time>,
    last: Option<Time>,
}

impl Delay {
    /// Raises the cause, delayed by `packet_ns` from now, but by at most `absolute_ns` (0: no limit) from the start of the delay.
    pub fn extend(&mut self, packet_ns: u64, absolute_ns: u64, now: Time) {
        let mut due = now.after_ns(packet_ns);
        if absolute_ns != 0 {
            due = due.min(*self.last.get_or_insert(now.after_ns(absolute_ns)));
        }
        self.due = Some(due);
    }

    /// End of the delay; `None` if no cause is delayed.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// Ends the delay. Returns whether a cause was delayed.
    pub fn end(&mut self) -> bool {
        self.last = None;
        self.due.take().is_some()
    }

    /// Ends the delay if its time has come. Returns whether a cause was delayed.
    pub fn over(&mut self, now: Time) -> bool {
        self.due.is_some_and(|due| due <= now) && self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_runs_from_the_latest_interrupt_and_can_be_ended() {
        let mut throttle = Throttle::default();
        throttle.begin(Time(5));
        assert_eq!(throttle.until(Time(0)), None, "no interval, no pause");
        throttle.set_interval(100);
        throttle.begin(Time(5));
        assert_eq!((throttle.until(Time(104)), throttle.until(Time(105))), (Some(Time(105)), None));
        throttle.set_interval(10);
        throttle.begin(Time(6));
        assert_eq!(throttle.until(Time(6)), Some(Time(105)), "the longer one");
        throttle.stop();
        assert_eq!(throttle.until(Time(6)), None);
    }

    #[test]
    fn a_delay_is_extended_by_each_packet_and_bounded_from_the_first() {
        let mut delay = Delay::default();
        delay.extend(32, 64, Time(100));
        assert_eq!(delay.due(), Some(Time(132)));
        delay.extend(32, 64, Time(120));
        assert_eq!(delay.due(), Some(Time(152)));
        delay.extend(32, 64, Time(150));
        assert_eq!(delay.due(), Some(Time(164)), "the absolute timer");
        assert!(!delay.over(Time(163)) && delay.over(Time(164)) && !delay.over(Time(165)));
        delay.extend(32, 64, Time(200));
        assert_eq!(delay.due(), Some(Time(232)), "both begin anew");
        assert!(delay.end() && !delay.end());
        delay.extend(u64::MAX, 0, Time(200));
        assert_eq!(delay.due(), Some(Time(u64::MAX)));
    }
}
