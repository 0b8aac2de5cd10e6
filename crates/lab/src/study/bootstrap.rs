//! Bootstrap intervals of a median and of a ratio by pairs.
//!
//! T. Hesterberg, *What Teachers Should Know about the Bootstrap*, 2014, 4.3: the percentile interval is too narrow for few samples. Its
//! tails are therefore those of Student's t, widened by √(n/(n−1)). The tests check the coverage by simulation.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::planning::SplitMix;
use crate::statistics::{CONFIDENCE, Estimate, Interval, RUNS_FOR_INTERVAL, median};

/// Number of resamples. At seven samples the bound is the 0.4th percentile, the 41st of so many.
const RESAMPLES: usize = 10_000;
/// Seed of the resamples: the same samples give the same interval on any machine.
const SEED: u64 = 0x6e69_6365_7479;

/// The median of `samples` with its bootstrap interval. None without samples, or if one is not finite.
pub fn estimate(samples: &[f64]) -> Option<Estimate> {
    estimate_with(samples, RESAMPLES, SEED)
}

/// Ratio of `ours` to `theirs`, pair by pair, with its bootstrap interval. A disturbance that lasts longer than a round affects both
/// runs of a pair and cancels out.
pub fn ratio(pairs: &[(f64, f64)]) -> Option<Estimate> {
    let ratios: Vec<f64> = pairs.iter().map(|(ours, theirs)| ours / theirs).collect();
    estimate(&ratios)
}

fn estimate_with(samples: &[f64], resamples: usize, seed: u64) -> Option<Estimate> {
    let middle = median(samples)?;
    let interval = (samples.len() >= RUNS_FOR_INTERVAL).then(|| interval(samples, resamples, seed)).flatten();
    Some(Estimate { median: middle, interval, samples: samples.len() })
}

/// Share of the resampled medians below the lower bound, for `n` samples.
fn tail(n: usize) -> Option<f64> {
    let n = n as f64;
    let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf((1.0 - CONFIDENCE) / 2.0);
    Some(Normal::new(0.0, 1.0).ok()?.cdf(t * (n / (n - 1.0)).sqrt()))
}

fn interval(samples: &[f64], resamples: usize, seed: u64) -> Option<Interval> {
    let mut random = SplitMix::new(seed);
    let mut drawn = vec![0.0; samples.len()];
    let mut medians = Vec::with_capacity(resamples);
    for _ in 0..resamples {
        for place in &mut drawn {
            let at = (random.unit() * samples.len() as f64) as usize;
            *place = *samples.get(at)?;
        }
        drawn.sort_unstable_by(f64::total_cmp);
        medians.push(median_of_sorted(&drawn)?);
    }
    medians.sort_unstable_by(f64::total_cmp);
    let rank = (tail(samples.len())? * resamples as f64).floor() as usize;
    let (low, high) = (*medians.get(rank)?, *medians.get(resamples.checked_sub(rank + 1)?)?);
    Some(Interval { low, high, coverage: CONFIDENCE })
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some((*sorted.get(sorted.len() / 2 - 1)? + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shapes that run times and rates have: symmetric, skewed, heavy-tailed, and two states of a machine.
    fn draw(shape: &str, random: &mut SplitMix) -> f64 {
        let normal = |random: &mut SplitMix| {
            // Box and Muller, 1958.
            let (one, two) = (1.0 - random.unit(), random.unit());
            (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos()
        };
        match shape {
            "normal" => normal(random),
            "exponential" => -(1.0 - random.unit()).ln() - std::f64::consts::LN_2,
            "lognormal" => normal(random).exp() - 1.0,
            // Symmetric about 0, without a mean.
            "cauchy" => (std::f64::consts::PI * (random.unit() - 0.5)).tan(),
            _ => unreachable!(),
        }
    }

    #[test]
    fn the_interval_covers_the_true_median_in_at_least_ninety_five_of_a_hundred_studies() {
        const STUDIES: u32 = 600;
        let mut random = SplitMix::new(20_261_126);
        for shape in ["normal", "exponential", "lognormal", "cauchy"] {
            for n in [7, 8, 10, 15] {
                let mut covered = 0;
                for study in 0..STUDIES {
                    // Each shape's median is 0.
                    let samples: Vec<f64> = (0..n).map(|_| draw(shape, &mut random)).collect();
                    let interval = estimate_with(&samples, 1_000, study.into()).unwrap().interval.unwrap();
                    covered += u32::from(interval.holds(0.0));
                }
                let share = f64::from(covered) / f64::from(STUDIES);
                // The standard error of 0.95 over 600 studies is 0.009; the bound is two of them lower.
                assert!(share >= 0.932, "{shape}, n = {n}: {share}");
                assert!(share <= 0.999, "{shape}, n = {n}: {share}: an interval that always covers says nothing");
            }
        }
    }

    #[test]
    fn an_interval_narrows_with_more_samples() {
        let mut random = SplitMix::new(7);
        let width = |n: usize, random: &mut SplitMix| {
            let samples: Vec<f64> = (0..n).map(|_| 100.0 + draw("normal", random)).collect();
            estimate(&samples).unwrap().interval.map(|interval| interval.high - interval.low).unwrap()
        };
        let (few, many) = (width(7, &mut random), width(60, &mut random));
        assert!(many < few / 2.0, "{few} {many}");
    }

    #[test]
    fn a_ratio_by_pairs_is_blind_to_what_disturbs_both() {
        let pairs: Vec<(f64, f64)> =
            [100.0, 50.0, 200.0, 10.0, 100.0, 70.0, 30.0].iter().map(|theirs| (theirs * 2.0, *theirs)).collect();
        let of = ratio(&pairs).unwrap();
        assert_eq!((of.median, of.interval.unwrap().low, of.interval.unwrap().high), (2.0, 2.0, 2.0));
    }

    #[test]
    fn few_samples_give_a_median_alone_and_no_number_gives_nothing() {
        let few = estimate(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((few.median, few.interval, few.samples), (2.0, None, 3));
        assert_eq!(estimate(&[]), None);
        assert_eq!(ratio(&[(1.0, 0.0)]), None);
    }
}
