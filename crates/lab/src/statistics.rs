//! Medians, their distribution-free intervals, paired ratios and percentiles.
//!
//! Follows W. J. Conover, *Practical Nonparametric Statistics*, 3rd edition, 3.2 (the interval of a quantile by order
//! statistics) and, for percentiles, the nearest-rank definition. The only assumption about the samples' distribution is that
//! they are independent; ties only widen the true coverage.

use serde::{Deserialize, Serialize};

/// Minimum number of runs for an interval. Five runs are too few for 95 %. Six would just reach it (96.9 %) with the whole range of
/// samples: one disturbed run in six would already be the bound.
pub const RUNS_FOR_INTERVAL: usize = 7;

/// The minimum confidence of an interval.
pub const CONFIDENCE: f64 = 0.95;

/// An interval that contains the true median with at least [`CONFIDENCE`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower bound: one of the samples.
    pub low: f64,
    /// The upper bound: one of the samples.
    pub high: f64,
    /// The exact coverage of this pair of order statistics, from 0.95 to 1.
    pub coverage: f64,
}

impl Interval {
    /// Whether `value` lies inside, bounds included.
    pub fn holds(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// A median and, with enough runs, its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The median of the samples.
    pub median: f64,
    /// The 95 % interval. None with fewer than [`RUNS_FOR_INTERVAL`] samples.
    pub interval: Option<Interval>,
    /// Number of samples (or pairs).
    pub samples: usize,
}

impl Estimate {
    /// The estimate of `samples`. None without samples, or if one is not finite.
    pub fn of(samples: &[f64]) -> Option<Estimate> {
        Some(Estimate { median: median(samples)?, interval: median_interval(samples), samples: samples.len() })
    }

    /// Whether the interval exists and does not contain `value`: the samples show a difference from it.
    pub fn excludes(&self, value: f64) -> bool {
        self.interval.is_some_and(|interval| !interval.holds(value))
    }
}

/// The median: the middle sample, or the mean of the two middle ones. None without samples, or if one is not finite.
pub fn median(samples: &[f64]) -> Option<f64> {
    let sorted = sorted(samples)?;
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get((sorted.len() / 2).checked_sub(1)?)?;
    Some(lower + (upper - lower) / 2.0)
}

/// The distribution-free 95 % interval of the median: the narrowest pair of order statistics, equally far from both ends,
/// whose coverage is at least 95 %. None with fewer than [`RUNS_FOR_INTERVAL`] samples.
pub fn median_interval(samples: &[f64]) -> Option<Interval> {
    if samples.len() < RUNS_FOR_INTERVAL {
        return None;
    }
    let sorted = sorted(samples)?;
    let (rank, coverage) = median_ranks(sorted.len())?;
    let low = *sorted.get(rank.checked_sub(1)?)?;
    let high = *sorted.get(sorted.len().checked_sub(rank)?)?;
    Some(Interval { low, high, coverage })
}

/// The rank `k`, counted from 1, and its coverage. The `k`-th smallest and the `k`-th largest of `n` samples contain the median with at
/// least 95 %, and `k` is the largest such rank. The coverage is 1 − 2·P(B < k), B binomial (n, ½). None if even the extremes do not
/// reach 95 % (n below 6).
pub fn median_ranks(n: usize) -> Option<(usize, f64)> {
    // Terms of the binomial are logarithms: 2^-n underflows beyond a thousand runs, its logarithm does not.
    let mut log_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut found = None;
    for k in 1..=n / 2 {
        below += log_term.exp();
        let coverage = 1.0 - 2.0 * below;
        if coverage < CONFIDENCE {
            break;
        }
        found = Some((k, coverage));
        log_term += ((n - k + 1) as f64 / k as f64).ln();
    }
    found
}

/// Ratio of `ours` to `theirs`: the median of the ratios of runs of the same round, with its interval. A disturbance that lasts longer
/// than a round affects both runs of a pair and cancels out. None if there is no pair, the slices differ in length, or a divisor is
/// zero.
pub fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Option<Estimate> {
    if ours.len() != theirs.len() {
        return None;
    }
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    Estimate::of(&ratios)
}

/// The `percent`-th percentile by nearest rank: the smallest sample that is not exceeded by at least `percent` % of all samples.
/// It is exact, one of the samples. Sorts `samples`. None without samples, or if the percentage is outside 0 to 100.
pub fn percentile(samples: &mut [u64], percent: f64) -> Option<u64> {
    if !(0.0..=100.0).contains(&percent) {
        return None;
    }
    samples.sort_unstable();
    let rank = (percent * samples.len() as f64 / 100.0).ceil() as usize;
    samples.get(rank.max(1) - 1).copied()
}

fn sorted(samples: &[f64]) -> Option<Vec<f64>> {
    if !samples.iter().all(|value| value.is_finite()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::SplitMix;

    /// "Table A.7: Confidence Intervals for the Population Median" (p. 656 of the textbook appendix kept at
    /// coursehero.com/file/5646626/A7): for each n, the narrowest listed interval of at least 95 %, and its level in percent.
    const TABLE_A7: [(usize, usize, usize, f64); 15] = [
        (6, 1, 6, 96.9),
        (7, 1, 7, 98.4),
        (8, 1, 8, 99.2),
        (9, 2, 8, 96.1),
        (10, 2, 9, 97.9),
        (11, 2, 10, 98.8),
        (12, 3, 10, 96.1),
        (13, 3, 11, 97.8),
        (14, 3, 12, 98.7),
        (15, 4, 12, 96.5),
        (16, 4, 13, 97.9),
        (17, 5, 13, 95.1),
        (18, 5, 14, 96.9),
        (19, 5, 15, 98.1),
        (20, 6, 15, 95.9),
    ];

    #[test]
    fn the_ranks_and_coverages_are_those_of_the_published_table() {
        for (n, low, high, percent) in TABLE_A7 {
            let (rank, coverage) = median_ranks(n).unwrap();
            assert_eq!((rank, n + 1 - rank), (low, high), "n = {n}");
            assert!((coverage * 100.0 - percent).abs() <= 0.051, "n = {n}: {coverage} against {percent} %");
        }
        assert_eq!(median_ranks(5), None, "the table's best for n = 5 is 93.8 %");
        assert_eq!(median_ranks(0), None);
    }

    #[test]
    fn the_ranks_of_a_large_sample_agree_with_the_normal_approximation() {
        // Conover, 3.2: r ≈ n/2 − 1.96·√n/2. At a million samples the two agree to a rank or two.
        let (rank, coverage) = median_ranks(1_000_000).unwrap();
        assert!((rank as f64 - (500_000.0 - 1.959_964 * 500.0)).abs() <= 2.0, "rank {rank}");
        assert!((0.95..0.951).contains(&coverage), "coverage {coverage}");
    }

    #[test]
    fn the_interval_of_seven_is_from_the_smallest_to_the_largest() {
        // The seven observations of the worked example in "Statistical Inference: A Short Course" (Panik), appendix 8.A.
        let estimate = Estimate::of(&[6.0, 2.0, 4.0, 8.0, 19.0, 3.0, 10.0]).unwrap();
        assert_eq!(estimate.median, 6.0);
        let interval = estimate.interval.unwrap();
        assert_eq!((interval.low, interval.high), (2.0, 19.0));
        assert_eq!(interval.coverage, 1.0 - 2.0 / 128.0);
        assert!(estimate.excludes(1.9) && !estimate.excludes(2.0));
    }

    #[test]
    fn fewer_than_seven_samples_give_a_median_but_no_interval() {
        let estimate = Estimate::of(&[3.0, 1.0, 2.0, 4.0, 6.0, 5.0]).unwrap();
        assert_eq!(estimate.median, 3.5);
        assert_eq!(estimate.interval, None);
        assert!(!estimate.excludes(100.0));
    }

    #[test]
    fn no_samples_and_numbers_that_are_none_give_nothing() {
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
        assert_eq!(Estimate::of(&[1.0, f64::INFINITY]), None);
        assert_eq!(paired_ratio(&[1.0], &[0.0]), None);
        assert_eq!(paired_ratio(&[1.0, 2.0], &[1.0]), None);
        assert_eq!(percentile(&mut [], 50.0), None);
        assert_eq!(percentile(&mut [1], 100.1), None);
        assert_eq!(percentile(&mut [1], f64::NAN), None);
    }

    #[test]
    fn a_disturbance_of_a_whole_round_cancels_out_of_the_paired_ratio() {
        let theirs = [100.0, 50.0, 200.0, 10.0, 100.0, 70.0, 30.0];
        let ours: Vec<f64> = theirs.iter().map(|value| value * 2.0).collect();
        let ratio = paired_ratio(&ours, &theirs).unwrap();
        assert_eq!(ratio.median, 2.0);
        let interval = ratio.interval.unwrap();
        assert_eq!((interval.low, interval.high), (2.0, 2.0));
    }

    #[test]
    fn percentiles_are_the_nearest_ranks_of_the_worked_example() {
        // The worked example of the nearest-rank method: {15, 20, 35, 40, 50} at 5, 30, 40, 50 and 100 %.
        let mut list = [50, 15, 40, 20, 35];
        for (percent, expected) in [(5.0, 15), (30.0, 20), (40.0, 20), (50.0, 35), (100.0, 50)] {
            assert_eq!(percentile(&mut list, percent), Some(expected), "{percent} %");
        }
        let mut hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut hundred, 99.0), Some(99));
        assert_eq!(percentile(&mut hundred, 0.0), Some(1));
    }

    #[test]
    fn the_interval_covers_the_true_median_as_often_as_it_promises() {
        // A skewed distribution, as run times have: the exponential, whose median is ln 2. With 20,000 intervals per n the
        // standard error of a coverage of 0.96 is 0.0014, so a bound of 0.006 is four of them.
        let mut random = SplitMix::new(20_251_121);
        for n in [7, 8, 9, 12, 15, 21] {
            let mut covered = 0_u32;
            let mut promised = 0.0;
            for _ in 0..20_000 {
                let samples: Vec<f64> = (0..n).map(|_| -(1.0 - random.unit()).ln()).collect();
                let interval = median_interval(&samples).unwrap();
                covered += u32::from(interval.holds(std::f64::consts::LN_2));
                promised = interval.coverage;
            }
            let measured = f64::from(covered) / 20_000.0;
            assert!((measured - promised).abs() < 0.006, "n = {n}: {measured} measured, {promised} promised");
        }
    }
}
