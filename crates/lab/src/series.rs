//! A run's rate over time, with few enough points to store and to draw.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Maximum number of points of a series.
pub const POINTS: usize = 64;

/// Initial length of a sampler's slots.
const SLOT_NS: u64 = 10_000_000;

/// Sums amounts in slots of time, at most [`POINTS`] of them. Slots are 10 ms long at first. Their length doubles each time the run
/// outlasts them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampler {
    slot_ns: u64,
    amounts: Vec<u64>,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler { slot_ns: SLOT_NS, amounts: Vec::new() }
    }
}

impl Sampler {
    /// Adds `amount` at the time `since_begin`.
    pub fn add(&mut self, since_begin: Duration, amount: u64) {
        let at = u64::try_from(since_begin.as_nanos()).unwrap_or(u64::MAX);
        let slot = loop {
            match usize::try_from(at / self.slot_ns) {
                Ok(slot) if slot < POINTS => break slot,
                _ => self.halve(),
            }
        };
        if self.amounts.len() <= slot {
            self.amounts.resize(slot + 1, 0);
        }
        if let Some(sum) = self.amounts.get_mut(slot) {
            *sum = sum.saturating_add(amount);
        }
    }

    /// Merges pairs of slots.
    fn halve(&mut self) {
        self.slot_ns = self.slot_ns.saturating_mul(2);
        self.amounts = self.amounts.chunks(2).map(|two| two.iter().fold(0_u64, |a, b| a.saturating_add(*b))).collect();
    }

    /// The series over a run that took `elapsed`: for each slot, `unit` times the amount per second. A last slot shorter than half a slot
    /// is left out, because its rate would be random.
    pub fn series(&self, elapsed: Duration, unit: f64) -> Series {
        let (slot, elapsed) = (self.slot_ns as f64 / 1e9, elapsed.as_secs_f64());
        let mut series = Series::default();
        for number in 0..POINTS {
            let begin = number as f64 * slot;
            let end = (begin + slot).min(elapsed);
            if end - begin < slot / 2.0 {
                break;
            }
            let amount = self.amounts.get(number).copied().unwrap_or(0);
            series.push(end, amount as f64 * unit / (end - begin));
        }
        series
    }
}

/// A rate over time, in the load's unit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// End of each point's interval, in seconds since the start of the run, rising. The first interval starts with the run; each
    /// other one starts where the one before ends.
    pub until_seconds: Vec<f64>,
    /// The mean rate in each interval.
    pub values: Vec<f64>,
}

impl Series {
    /// Adds a point, rounded to 0.1 ms and a tenth of the unit. More digits would be noise.
    pub fn push(&mut self, until_seconds: f64, value: f64) {
        self.until_seconds.push((until_seconds * 1e4).round() / 1e4);
        self.values.push((value * 10.0).round() / 10.0);
    }

    /// Start, end and value of each point.
    pub fn points(&self) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
        let begins = std::iter::once(0.0).chain(self.until_seconds.iter().copied());
        begins.zip(&self.until_seconds).zip(&self.values).map(|((begin, end), value)| (begin, *end, *value))
    }

    /// Whether the points can be drawn: as many values as times, none negative or infinite, and times that rise.
    pub fn is_sound(&self) -> bool {
        let positive = |value: &f64| value.is_finite() && *value >= 0.0;
        self.until_seconds.len() == self.values.len()
            && self.values.iter().all(positive)
            && self.points().all(|(begin, end, _)| end.is_finite() && begin < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(run: Duration, each: Duration) -> Sampler {
        let mut sampler = Sampler::default();
        let times = u32::try_from(run.as_nanos() / each.as_nanos()).unwrap();
        (0..times).for_each(|number| sampler.add(each * number, 125));
        sampler
    }

    #[test]
    fn an_even_flow_has_the_same_rate_at_each_point_and_no_run_has_more_points_than_allowed() {
        // 125 bytes a millisecond are 1 Mbit/s.
        for (millis, points) in [(5, 1), (100, 10), (630, 63), (640, 64), (650, 33), (1_500, 38), (60_000, 47)] {
            let run = Duration::from_millis(millis);
            let series = carried(run, Duration::from_millis(1)).series(run, 8e-6);
            assert_eq!(series.values.len(), points, "{millis} ms: {series:?}");
            assert!(series.values.iter().all(|value| (value - 1.0).abs() < 0.11), "{millis} ms: {series:?}");
            assert!(series.is_sound());
        }
    }

    #[test]
    fn nothing_is_lost_when_slots_double_and_a_pause_is_seen() {
        let mut sampler = carried(Duration::from_millis(600), Duration::from_millis(1));
        sampler.add(Duration::from_secs(1), 1_000);
        assert_eq!(sampler.amounts.iter().sum::<u64>(), 600 * 125 + 1_000);
        let series = sampler.series(Duration::from_millis(1_020), 1.0);
        assert_eq!(series.points().filter(|(_, _, value)| *value == 0.0).count(), 20, "{series:?}");
        sampler.add(Duration::MAX, 1);
        assert!(sampler.amounts.len() <= POINTS);
    }

    #[test]
    fn a_series_that_cannot_be_drawn_is_told_apart() {
        let of = |until: &[f64], values: &[f64]| Series { until_seconds: until.to_vec(), values: values.to_vec() };
        assert!(of(&[], &[]).is_sound() && of(&[0.1, 0.2], &[0.0, 5.0]).is_sound());
        for (until, values) in [
            (&[0.1][..], &[][..]),
            (&[0.2, 0.1], &[1.0, 1.0]),
            (&[0.0], &[1.0]),
            (&[0.1], &[-1.0]),
            (&[0.1], &[f64::NAN]),
        ] {
            assert!(!of(until, values).is_sound(), "{until:?} {values:?}");
        }
    }
}
