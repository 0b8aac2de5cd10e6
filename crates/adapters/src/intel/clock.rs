//! The clock for time stamps (82574 datasheet, 7.9 and 10.2.9; 82576, 7.9 and 8.16): SYSTIM, to which TIMINCA's value is added once
//! in a number of periods.

use nicety_adapter::Time;
use serde::{Deserialize, Serialize};

/// SYSTIM's value at a known time. A period is 40 ns in the 82574, 16 ns in the 82576.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock<const PERIOD_NS: u64> {
    base: u64,
    at: Time,
    increment: u32,
    /// The high half, latched when the low one was read.
    high: u32,
}

impl<const PERIOD_NS: u64> Clock<PERIOD_NS> {
    /// Nanoseconds per step, and steps since it was set; 0 if it is stopped.
    fn steps(&self, now: Time) -> (u64, u64) {
        let step = PERIOD_NS * u64::from(self.increment >> 24);
        (step, (now.since(self.at).as_nanos() as u64).checked_div(step).unwrap_or(0))
    }

    /// SYSTIM's present value.
    pub fn value(&self, now: Time) -> u64 {
        let (_, steps) = self.steps(now);
        self.base.wrapping_add(steps.wrapping_mul(u64::from(self.increment & 0xff_ffff)))
    }

    /// Sets SYSTIM. The phase of its steps stays, so frequent adjustment loses no time.
    pub fn set(&mut self, value: u64, now: Time) {
        let (step, steps) = self.steps(now);
        (self.base, self.at) = (value, if step == 0 { now } else { self.at.after_ns(step * steps) });
    }

    /// TIMINCA: the increment, and its number of periods.
    pub fn set_increment(&mut self, increment: u32, now: Time) {
        self.set(self.value(now), now);
        self.increment = increment;
    }

    /// TIMADJ: adds this, or with the highest bit set subtracts it.
    pub fn adjust(&mut self, by: u64, now: Time) {
        let (value, by, less) = (self.value(now), by & (u64::MAX >> 1), by >> 63 != 0);
        self.set(if less { value.wrapping_sub(by) } else { value.wrapping_add(by) }, now);
    }

    /// A read of SYSTIML. It keeps the high half until the driver reads that too.
    pub fn read_low(&mut self, now: Time) -> u32 {
        let value = self.value(now);
        self.high = (value >> 32) as u32;
        value as u32
    }

    /// A read of SYSTIMH.
    pub fn high(&self) -> u32 {
        self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux's value for the 82574: 40 ns in units of 2⁻¹⁸ ns, every period (e1000e_get_base_timinca in e1000e/netdev.c).
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

    #[test]
    fn a_driver_that_adjusts_it_between_two_steps_loses_no_time() {
        let mut clock = Clock::<40>::default();
        clock.set_increment(LINUX, Time(0));
        for time in (0..1_000_000).step_by(39) {
            clock.set_increment(LINUX, Time(time));
        }
        assert_eq!(clock.value(Time(1_000_000)) >> 18, 1_000_000);
    }
}
