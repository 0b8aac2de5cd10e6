//! The clock that stamps frames (82574 datasheet, 7.9 and 10.2.9; 82576, 7.9 and 8.16): SYSTIM, which TIMINCA's value is added to once in so many periods.

use nicety_adapter::Time;
use serde::{Deserialize, Serialize};

/// What SYSTIM showed when, and what it is read as. A period lasts 40 ns in the 82574, 16 in the 82576.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock<const PERIOD_NS: u64> {
    base: u64,
    at: Time,
    increment: u32,
    /// The high half, as it was when the low one was read.
    high: u32,
}

impl<const PERIOD_NS: u64> Clock<PERIOD_NS> {
    /// SYSTIM now.
    pub fn value(&self, now: Time) -> u64 {
        let (periods, value) = (u64::from(self.increment >> 24), u64::from(self.increment & 0xff_ffff));
        let steps = (now.since(self.at).as_nanos() as u64).checked_div(PERIOD_NS * periods).unwrap_or(0);
        self.base.wrapping_add(steps.wrapping_mul(value))
    }

    /// It is set.
    pub fn set(&mut self, value: u64, now: Time) {
        (self.base, self.at) = (value, now);
    }

    /// TIMINCA: what is added, and once in how many periods.
    pub fn set_increment(&mut self, increment: u32, now: Time) {
        self.set(self.value(now), now);
        self.increment = increment;
    }

    /// TIMADJ: so much is added, or, with its highest bit, taken off.
    pub fn adjust(&mut self, by: u64, now: Time) {
        let (value, by, less) = (self.value(now), by & (u64::MAX >> 1), by >> 63 != 0);
        self.set(if less { value.wrapping_sub(by) } else { value.wrapping_add(by) }, now);
    }

    /// SYSTIML is read: the high half waits for its own reading.
    pub fn read_low(&mut self, now: Time) -> u32 {
        let value = self.value(now);
        self.high = (value >> 32) as u32;
        value as u32
    }

    /// SYSTIMH is read.
    pub fn high(&self) -> u32 {
        self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux sets for the 82574: 40 ns in units of 2⁻¹⁸ ns, every period (e1000e_get_base_timinca in e1000e/netdev.c).
    const LINUX: u32 = 1 << 24 | 40 << 18;

    #[test]
    fn with_linux_s_increment_it_counts_nanoseconds_and_both_halves_are_of_one_moment() {
        let mut clock = Clock::<40>::default();
        assert_eq!(clock.value(Time(1_000_000)), 0, "it stands without an increment");
        clock.set_increment(LINUX, Time(400));
        assert_eq!(clock.value(Time(439)) >> 18, 0);
        assert_eq!(clock.value(Time(1_000_400)) >> 18, 1_000_000);
        let low = clock.read_low(Time(400 + (1 << 20)));
        assert_eq!(u64::from(clock.high()) << 32 | u64::from(low), ((1 << 20) / 40 * 40) << 18);
        clock.adjust(5 << 18 | 1 << 63, Time(400 + 4000));
        assert_eq!(clock.value(Time(400 + 4000)) >> 18, 3995);
    }
}
