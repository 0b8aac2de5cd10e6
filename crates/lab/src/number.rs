//! Formats figures, intervals, ratios and spans of time, the same in the table, the report and the sentences.

use std::time::Duration;

pub use nicety_chart::fixed;

use crate::statistics::{Estimate, Interval};

/// A dash in place of a missing figure.
pub const NONE: &str = "–";

/// Number of decimals that gives `value` three significant digits, at most four.
pub fn decimals(value: f64) -> usize {
    match value.abs() {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        size if size >= 0.09995 => 3,
        _ => 4,
    }
}

/// `value` with three significant digits.
pub fn figure(value: f64) -> String {
    fixed(value, decimals(value))
}

/// `398–431`, with as many decimals as its `median`. `398` if both bounds print alike.
pub fn range(interval: &Interval, median: f64) -> String {
    let places = decimals(median);
    let (low, high) = (fixed(interval.low, places), fixed(interval.high, places));
    if low == high { low } else { format!("{low}–{high}") }
}

/// `412 [398–431]`, or `412` where there is no interval.
pub fn estimate(median: f64, interval: Option<&Interval>) -> String {
    match interval {
        Some(interval) => format!("{} [{}]", figure(median), range(interval, median)),
        None => figure(median),
    }
}

/// Formats the [`estimate`] of samples; a dash if there are none.
pub fn sampled(samples: &[f64]) -> String {
    Estimate::of(samples).map_or_else(|| NONE.to_owned(), |of| estimate(of.median, of.interval.as_ref()))
}

/// Ratios beyond these say only that the two have nothing in common. Their digits would be noise.
const RATIO_MIN: f64 = 0.001;
const RATIO_MAX: f64 = 1_000.0;

/// A ratio with two or three significant digits. None beyond [`RATIO_MIN`] and [`RATIO_MAX`], and for what is no number.
fn ratio_digits(ratio: f64) -> Option<String> {
    let decimals = match ratio {
        _ if !(RATIO_MIN..=RATIO_MAX).contains(&ratio) => return None,
        _ if ratio >= 99.95 => 0,
        _ if ratio >= 9.995 => 1,
        _ if ratio >= 0.0995 => 2,
        _ if ratio >= 0.00995 => 3,
        _ => 4,
    };
    Some(fixed(ratio, decimals))
}

/// The sign and the bound of a ratio that has no digits.
fn beyond(ratio: f64) -> (&'static str, &'static str) {
    if ratio > 1.0 { (">", "1000") } else { ("<", "0.001") }
}

/// `2.10`, for "2.10 ×"; `>1000` or `<0.001` beyond these.
pub fn ratio(estimate: &Estimate) -> String {
    ratio_bound(estimate.median)
}

/// `2.10 ×` in a sentence; `more than 1000 ×` or `less than 0.001 ×` beyond these.
pub fn ratio_words(estimate: &Estimate) -> String {
    let words = || {
        let (sign, bound) = beyond(estimate.median);
        format!("{} than {bound}", if sign == ">" { "more" } else { "less" })
    };
    ratio_digits(estimate.median).unwrap_or_else(words) + " ×"
}

fn ratio_bound(ratio: f64) -> String {
    ratio_digits(ratio).unwrap_or_else(|| {
        let (sign, bound) = beyond(ratio);
        [sign, bound].concat()
    })
}

/// `1.90–2.30`; none without an interval. A single bound where both are beyond [`ratio`]'s digits.
pub fn ratio_range(estimate: &Estimate) -> Option<String> {
    estimate.interval.map(|Interval { low, high, .. }| match (ratio_digits(low), ratio_digits(high)) {
        (None, None) if beyond(low) == beyond(high) => ratio_bound(low),
        (Some(low), Some(high)) => format!("{low}–{high}"),
        // A dash before a sign cannot be read.
        _ => format!("{} to {}", ratio_bound(low), ratio_bound(high)),
    })
}

/// `15.6 GiB`: a machine's memory.
pub fn memory(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// `2 min 05 s`, `45 s`: a span of time, rounded up to a whole second.
pub fn span(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s:02} s"),
        (h, m, _) => format!("{h} h {m:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_their_interval_from_seven_on() {
        assert_eq!(sampled(&[]), NONE);
        assert_eq!(sampled(&[1.0, 3.0, 2.0]), "2.00");
        assert_eq!(sampled(&[7.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), "4.00 [1.00–7.00]");
    }

    #[test]
    fn a_figure_has_three_digits_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (0.00123, "0.0012"),
            (0.0404, "0.0404"),
            (0.117, "0.117"),
            (1.0, "1.00"),
            (9.999, "10.0"),
            (41.26, "41.3"),
            (412.4, "412"),
            (9412.0, "9412"),
            (41_234.0, "41,234"),
            (1_234_567.0, "1,234,567"),
            (-41_234.0, "-41,234"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn an_interval_has_the_decimals_of_its_median() {
        let interval = Interval { low: 98.0, high: 1_010.0, coverage: 0.98 };
        assert_eq!(estimate(412.0, Some(&interval)), "412 [98–1010]");
        assert_eq!(estimate(41.0, Some(&interval)), "41.0 [98.0–1010.0]");
        assert_eq!(estimate(412.0, None), "412");
        let exact = Interval { low: 0.04, high: 0.04, coverage: 0.98 };
        assert_eq!(estimate(0.04, Some(&exact)), "0.0400 [0.0400]");
    }

    #[test]
    fn a_ratio_has_two_or_three_digits_and_beyond_sense_none() {
        for (value, short, words) in [
            (0.0, "<0.001", "less than 0.001 ×"),
            (0.000_99, "<0.001", "less than 0.001 ×"),
            (0.001, "0.0010", "0.0010 ×"),
            (0.004_2, "0.0042", "0.0042 ×"),
            (0.009_96, "0.010", "0.010 ×"),
            (0.043, "0.043", "0.043 ×"),
            (0.099_7, "0.10", "0.10 ×"),
            (0.5, "0.50", "0.50 ×"),
            (1.004, "1.00", "1.00 ×"),
            (2.0, "2.00", "2.00 ×"),
            (9.996, "10.0", "10.0 ×"),
            (15.24, "15.2", "15.2 ×"),
            (233.4, "233", "233 ×"),
            (1_000.0, "1000", "1000 ×"),
            (21_757.7, ">1000", "more than 1000 ×"),
            (f64::INFINITY, ">1000", "more than 1000 ×"),
        ] {
            let estimate = Estimate { median: value, interval: None, samples: 7 };
            assert_eq!((ratio(&estimate).as_str(), ratio_words(&estimate).as_str()), (short, words), "{value}");
            let digits = short.trim_start_matches(['<', '>', '0', '.']).chars().filter(char::is_ascii_digit).count();
            assert!(!words.starts_with(|c: char| c.is_ascii_digit()) || (2..=3).contains(&digits) || value == 1_000.0);
        }
    }

    #[test]
    fn each_bound_of_a_ratios_interval_has_its_own_digits() {
        for (low, high, text) in [
            (0.97, 1.21, "0.97–1.21"),
            (0.004, 3.1, "0.0040–3.10"),
            (2.0, 20_000.0, "2.00 to >1000"),
            (20_000.0, 30_000.0, ">1000"),
            (0.0, 0.000_1, "<0.001"),
            (0.0, 5_000.0, "<0.001 to >1000"),
        ] {
            let interval = Some(Interval { low, high, coverage: 0.98 });
            assert_eq!(ratio_range(&Estimate { median: 1.0, interval, samples: 7 }).as_deref(), Some(text));
        }
        assert_eq!(ratio_range(&Estimate { median: 1.0, interval: None, samples: 3 }), None);
    }

    #[test]
    fn a_span_of_time_is_rounded_up_and_reads_as_people_say_it() {
        assert_eq!(span(Duration::ZERO), "0 s");
        assert_eq!(span(Duration::from_millis(1)), "1 s");
        assert_eq!(span(Duration::from_secs(125)), "2 min 05 s");
        assert_eq!(span(Duration::from_secs(3_660)), "1 h 01 min");
    }
}
