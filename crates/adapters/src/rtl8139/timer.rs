//! TCTR and TimerInt: a counter of PCI clock ticks, and an interrupt when it reaches a value.
//!
//! The counter has 32 bits and reaches the same value once in 130 seconds. So a driver gets one interrupt each round, however small
//! its value is, unless it restarts the count.

use nicety_adapter::Time;
use serde::{Deserialize, Serialize};

/// 33 ticks are 1000 ns: 33 MHz.
const TICKS: u128 = 33;
const NS: u128 = 1000;

/// State of the counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// The time when it was 0.
    base: Time,
    /// The time when it reaches the value.
    due: Option<Time>,
}

impl Timer {
    fn ticks(self, now: Time) -> u128 {
        u128::from(now.0.saturating_sub(self.base.0)) * TICKS / NS
    }

    /// TCTR.
    pub fn count(self, now: Time) -> u32 {
        self.ticks(now) as u32
    }

    /// Restarts the count at 0.
    pub fn restart(&mut self, value: u32, now: Time) {
        self.base = now;
        self.aim(value, now);
    }

    /// Computes the next time after now at which the count is `value`; 0: never.
    pub fn aim(&mut self, value: u32, now: Time) {
        let ticks = self.ticks(now);
        let round = ticks >> 32;
        let target = (round << 32) + u128::from(value);
        let target = if target > ticks { target } else { target + (1 << 32) };
        let ns = u64::try_from((target * NS).div_ceil(TICKS)).unwrap_or(u64::MAX);
        self.due = (value != 0).then(|| self.base.after_ns(ns));
    }

    /// The time when it reaches the value.
    pub fn due(self) -> Option<Time> {
        self.due
    }

    /// Whether the count has reached the value. The next time is in another round.
    pub fn over(&mut self, value: u32, now: Time) -> bool {
        let over = self.due.is_some_and(|due| due <= now);
        if over {
            self.aim(value, now);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_goes_at_33_mhz_and_comes_to_a_value_once_in_a_round() {
        let mut timer = Timer::default();
        timer.restart(33_000, Time(5));
        assert_eq!((timer.count(Time(5)), timer.count(Time(1_000_005))), (0, 33_000));
        assert_eq!(timer.due(), Some(Time(1_000_005)));
        assert!(!timer.over(33_000, Time(1_000_004)) && timer.over(33_000, Time(1_000_005)));
        let round = (1_u128 << 32) * NS / TICKS;
        let again = timer.due().unwrap().0 - 1_000_005;
        assert!(u128::from(again).abs_diff(round) <= 1, "{again}");
        timer.aim(0, Time(7));
        assert_eq!(timer.due(), None);
        timer.aim(u32::MAX, Time(u64::MAX));
        assert!(!timer.over(u32::MAX, Time(u64::MAX - 1)));
    }
}
