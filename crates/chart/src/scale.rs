//! Scales of the charts: linear from zero, and logarithmic. Each chart has its own, which reaches from its least run to its largest.

use crate::fixed;

/// A mark on an axis: its position from 0 to 1, and its text.
pub type Mark = (f64, String);

/// From this ratio of the largest to the least median on, a linear axis would show the small ones as nothing.
const LOGARITHMIC_FROM: f64 = 40.0;
/// Number of powers of ten that have a mark on a logarithmic axis; of more, each second or third one has.
const POWERS_MAX: usize = 5;

/// A chart's scale.
pub enum Scale {
    /// A linear scale from zero.
    Linear(Linear),
    /// A logarithmic scale by powers of ten.
    Logarithmic(Decades),
}

impl Scale {
    /// The scale of a chart with these medians and samples.
    pub fn of(medians: &[f64], samples: &[f64]) -> Scale {
        let drawn = |values: &[f64]| -> Vec<f64> {
            values.iter().copied().filter(|value| value.is_finite() && *value > 0.0).collect()
        };
        let (medians, samples) = (drawn(medians), drawn(samples));
        let (least, most) = ends(&medians);
        if medians.len() > 1 && most / least >= LOGARITHMIC_FROM {
            let (lowest, highest) = ends(&samples);
            Scale::Logarithmic(Decades::over(lowest.min(least), highest.max(most)))
        } else {
            Scale::Linear(Linear::up_to(ends(&samples).1.max(most)))
        }
    }

    /// Position from 0 to 1. On a logarithmic scale zero is at its lower end.
    pub fn at(&self, value: f64) -> f64 {
        match self {
            Scale::Linear(scale) => scale.at(value),
            Scale::Logarithmic(scale) => scale.at(value),
        }
    }

    /// Its marks.
    pub fn marks(&self) -> Vec<Mark> {
        match self {
            Scale::Linear(scale) => scale.marks(),
            Scale::Logarithmic(scale) => {
                let powers = scale.powers();
                let step = powers.len().div_ceil(POWERS_MAX).max(1);
                powers.into_iter().step_by(step).map(|value| (scale.at(value), power(value))).collect()
            }
        }
    }

    /// Whether equal steps are equal ratios.
    pub fn is_logarithmic(&self) -> bool {
        matches!(self, Scale::Logarithmic(_))
    }
}

/// The least and the largest value. Without values, the largest and zero.
fn ends(values: &[f64]) -> (f64, f64) {
    (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(0.0, f64::max))
}

/// `0.01`, `10`, `10,000`: a power of ten.
fn power(value: f64) -> String {
    fixed(value, (-value.log10().round()).clamp(0.0, 9.0) as usize)
}

/// Maps figures to positions, from zero to the largest value.
pub struct Linear {
    /// The largest value.
    pub top: f64,
    ticks: Vec<f64>,
    decimals: usize,
}

impl Linear {
    /// Ticks at 1, 2 or 5 times a power of ten, three to six of them.
    pub fn up_to(most: f64) -> Linear {
        let most = if most.is_normal() && most > 0.0 && most < 1e300 { most } else { 1.0 };
        let power = 10_f64.powf(most.log10().floor());
        let step = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].into_iter().map(|unit| unit * power).find(|step| most / step <= 5.0);
        let step = step.unwrap_or(most);
        let ticks: Vec<f64> =
            (0..=6_u32).map(|n| f64::from(n) * step).take_while(|tick| *tick <= most * 1.000_001).collect();
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
        Linear { top: most, ticks, decimals }
    }

    /// Position from 0 to 1.
    pub fn at(&self, value: f64) -> f64 {
        (value / self.top).clamp(0.0, 1.0)
    }

    /// Its marks.
    pub fn marks(&self) -> Vec<Mark> {
        self.ticks.iter().map(|tick| (tick / self.top, fixed(*tick, self.decimals))).collect()
    }
}

/// A logarithmic scale.
pub struct Decades {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Decades {
    /// The scale from the 1, 2 or 5 at or below `least` to the one at or above `most`.
    pub fn over(least: f64, most: f64) -> Decades {
        let (least, most) = (least.clamp(1e-9, 1e12), most.clamp(1e-9, 1e12));
        let steps = |value: f64| [1.0, 2.0, 5.0, 10.0].map(|unit| unit * 10_f64.powf(value.log10().floor()));
        let low = steps(least).into_iter().rev().find(|step| *step <= least).unwrap_or(least);
        let high = steps(most).into_iter().find(|step| *step >= most).unwrap_or(most);
        Decades { low, high: if high > low { high } else { low * 10.0 } }
    }

    /// Position from 0 to 1.
    pub fn at(&self, value: f64) -> f64 {
        ((value.max(self.low) / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    fn is_inside(&self, value: &f64) -> bool {
        (self.low * 0.999..=self.high * 1.001).contains(value)
    }

    fn exponents(&self) -> std::ops::RangeInclusive<i32> {
        self.low.log10().floor() as i32..=self.high.log10().ceil() as i32
    }

    /// The powers of ten inside.
    fn powers(&self) -> Vec<f64> {
        self.exponents().map(|power| 10_f64.powi(power)).filter(|value| self.is_inside(value)).collect()
    }

    /// Powers of ten. With fewer than three of them, also twice and five times each.
    pub fn steps(&self) -> Vec<f64> {
        let powers = self.powers();
        if powers.len() > 2 {
            return powers;
        }
        let all = self.exponents().flat_map(|power| [1.0, 2.0, 5.0].map(|unit| unit * 10_f64.powi(power)));
        all.filter(|value| self.is_inside(value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_that_reach_most_of_the_way() {
        for (most, step, count) in
            [(3_180.0, 1_000.0, 4), (99.0, 20.0, 5), (0.117, 0.05, 3), (1.0, 0.2, 6), (50.0, 10.0, 6)]
        {
            let scale = Linear::up_to(most);
            assert_eq!(scale.ticks.len(), count, "{most}: {:?}", scale.ticks);
            assert!((scale.ticks[1] - step).abs() < step * 1e-9, "{most}: {:?}", scale.ticks);
        }
    }

    #[test]
    fn figures_that_cannot_be_drawn_to_scale_stay_inside_the_chart() {
        for most in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, f64::MAX, 1e-300] {
            for scale in [Scale::of(&[most], &[most]), Scale::of(&[1.0, most], &[1.0, most]), Scale::of(&[], &[])] {
                assert!(scale.marks().len() <= 7);
                for value in [0.0, 1.0, f64::MAX, -f64::MAX, most.abs().min(f64::MAX)] {
                    assert!((0.0..=1.0).contains(&scale.at(value)), "{most} {value}");
                }
            }
        }
    }

    #[test]
    fn a_chart_fits_its_runs_the_least_is_seen_and_the_largest_reaches_the_end() {
        // ne2k_pci beside virtio-net-pci, Mbit/s guest to guest, as docs/measured.md has them.
        let (medians, samples) = ([0.938, 101.0, 19_637.0], [0.669, 1.093, 70.0, 116.0, 16_146.0, 20_517.0]);
        let wide = Scale::of(&medians, &samples);
        assert!(wide.is_logarithmic());
        let places = samples.map(|value| wide.at(value));
        assert!(places.is_sorted_by(|a, b| a < b) && places[0] > 0.01 && places[5] > 0.9, "{places:?}");
        let marks: Vec<String> = wide.marks().into_iter().map(|(_, text)| text).collect();
        assert_eq!(marks, ["1", "10", "100", "1000", "10,000"]);
        // Alike within an order of magnitude: bars from zero, whose lengths can be compared.
        let narrow = Scale::of(&[1_545.0, 3_090.0], &[1_500.0, 3_180.0]);
        assert!(!narrow.is_logarithmic() && narrow.at(0.0) == 0.0 && narrow.at(3_180.0) == 1.0);
        // A single disturbed run changes no bars into points.
        assert!(!Scale::of(&[1_545.0, 3_090.0], &[1_500.0, 3_180.0, 100_000.0]).is_logarithmic());
        // None of a count: at the end, and no reason for an endless scale.
        let counts = Scale::of(&[0.0, 0.005, 283.0], &[0.0, 0.005, 283.0]);
        assert!(counts.is_logarithmic() && counts.at(0.0) == 0.0 && counts.marks().len() <= 5);
    }

    #[test]
    fn a_logarithmic_scale_has_marks_whatever_its_width() {
        for (least, most) in [(0.0, 0.0), (50.0, 50.0), (1.0, f64::MAX), (f64::MIN_POSITIVE, 1e300), (53.0, 180.0)] {
            let scale = Decades::over(least, most);
            for us in [0.0, least, most, f64::MAX] {
                assert!((0.0..=1.0).contains(&scale.at(us)), "{least} {most} {us}");
            }
            assert!(scale.steps().len() >= 2, "{least} to {most}");
        }
    }
}
