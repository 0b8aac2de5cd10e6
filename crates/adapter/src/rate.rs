//! Rates in a person's notation, the token bucket that enforces one, and a port's traffic shape made of two buckets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::time::Time;

const UNITS: [(&str, u64); 5] =
    [("Tbit/s", 1_000_000_000_000), ("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000), ("bit/s", 1)];
/// The highest rate.
const MAX: u64 = 10_000_000_000_000;

/// Tokens gather for this long before a waiting port is woken.
const GATHER_NS: u64 = 200_000;
/// A waiting port may wake this late without losing tokens, and may spend them for as long.
const LATE_MAX_NS: u64 = 50_000_000;

/// Bits per second of frames, their Ethernet headers included; from 1 bit/s to 10 Tbit/s.
///
/// ```
/// # use nicety_adapter::Rate;
/// let rate: Rate = "2.5Gbit/s".parse().unwrap();
/// assert_eq!(rate.bits_per_second(), 2_500_000_000);
/// assert_eq!(rate.to_string(), "2.5Gbit/s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

/// Reasons why a text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// The text is not a number with a unit.
    #[error(
        "`{text}` is no rate: write a number and bit/s, kbit/s, Mbit/s, Gbit/s or Tbit/s, such as 100Mbit/s or 2.5Gbit/s; at \
         most 10Tbit/s{meant}"
    )]
    Form {
        /// The text.
        text: String,
        /// `; did you mean "100Mbit/s"?`, or nothing.
        meant: String,
    },
    /// Zero: no frame could ever pass.
    #[error("`{0}` is no rate: it must be more than 0, such as 100Mbit/s")]
    Zero(String),
    /// Beyond the limit.
    #[error("`{0}` is no rate: it must be at most 10Tbit/s, such as 100Mbit/s")]
    Large(String),
}

/// The unit that a misspelling probably means. Units of bytes are not corrected.
fn suggestion(number: &str, unit: &str) -> String {
    let same = |name: &str| {
        let prefix = name.trim_end_matches("bit/s");
        [name.to_owned(), format!("{prefix}bit"), format!("{prefix}bps")]
            .iter()
            .any(|spelling| spelling.eq_ignore_ascii_case(unit))
    };
    match UNITS.iter().find(|(name, _)| same(name)) {
        Some((name, _)) if !number.is_empty() => format!("; did you mean \"{number}{name}\"?"),
        _ => String::new(),
    }
}

impl Rate {
    /// This many bits per second; `None` beyond the limits.
    pub fn new(bits_per_second: u64) -> Option<Self> {
        (1..=MAX).contains(&bits_per_second).then_some(Self(bits_per_second))
    }

    /// Bits per second.
    pub fn bits_per_second(self) -> u64 {
        self.0
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let form = |meant| RateError::Form { text: text.to_owned(), meant };
        let error = || form(String::new());
        let trimmed = text.trim();
        let at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
        let (number, unit) = trimmed.split_at(at);
        let unit = unit.trim_start();
        let known = UNITS.iter().find(|(name, _)| *name == unit);
        let &(_, scale) = known.ok_or_else(|| form(suggestion(number, unit)))?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let dot_alone = number.contains('.') && part.is_empty();
        if whole.is_empty() || dot_alone || part.len() > 12 {
            return Err(error());
        }
        // Only digits: then the number is too long.
        let whole: u64 = whole.parse().map_err(|_| RateError::Large(text.to_owned()))?;
        let mut bits = u128::from(whole) * u128::from(scale);
        if !part.is_empty() {
            let digits: u128 = part.parse().map_err(|_| error())?;
            let scaled = digits * u128::from(scale);
            let divisor = 10u128.pow(part.len() as u32);
            if !scaled.is_multiple_of(divisor) {
                return Err(error());
            }
            bits += scaled / divisor;
        }
        match u64::try_from(bits).ok().and_then(Self::new) {
            Some(rate) => Ok(rate),
            None if bits == 0 => Err(RateError::Zero(text.to_owned())),
            None => Err(RateError::Large(text.to_owned())),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |scale: u64| self.0 >= scale && self.0.is_multiple_of(scale.div_ceil(1000));
        let (name, scale) = UNITS.into_iter().find(|&(_, scale)| fits(scale)).unwrap_or(("bit/s", 1));
        let (whole, rest) = (self.0 / scale, self.0 % scale);
        if rest == 0 {
            return write!(f, "{whole}{name}");
        }
        let part = format!("{:03}", rest / scale.div_ceil(1000));
        write!(f, "{whole}.{}{name}", part.trim_end_matches('0'))
    }
}

/// A token bucket. Its only state is the time at which it would be full again, which is exact.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Rate,
    burst_ns: u64,
    full_at: Time,
    /// Extra tokens beyond the burst, for a port that was woken late because its CPU was busy, and the time at which they expire.
    late_ns: u64,
    late_until: Time,
    /// The rest below a nanosecond: bits × 10⁹ modulo the rate.
    carry: u64,
}

/// The tokens of a bucket, for the process that goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBucket {
    full_at: Time,
    late_ns: u64,
    late_until: Time,
    carry: u64,
}

impl Bucket {
    /// Its tokens.
    pub fn save(&self) -> SavedBucket {
        let Self { rate: _, burst_ns: _, full_at, late_ns, late_until, carry } = *self;
        SavedBucket { full_at, late_ns, late_until, carry }
    }

    /// Takes over the tokens of a saved bucket of the same rate and depth.
    pub fn restore(&mut self, saved: SavedBucket) {
        let SavedBucket { full_at, late_ns, late_until, carry } = saved;
        (self.full_at, self.late_ns, self.late_until) = (full_at, late_ns, late_until);
        self.carry = carry.min(self.rate.bits_per_second() - 1);
    }

    /// A full bucket of this many bytes.
    pub fn new(rate: Rate, burst_bytes: u64) -> Self {
        let burst = u128::from(burst_bytes) * 8_000_000_000 / u128::from(rate.0);
        let burst_ns = u64::try_from(burst).unwrap_or(u64::MAX).max(1);
        Self { rate, burst_ns, full_at: Time::ZERO, late_ns: 0, late_until: Time::ZERO, carry: 0 }
    }

    /// Whether a packet may go now. It may be longer than the remaining tokens: then the next one waits.
    pub fn ready(&self, now: Time) -> bool {
        self.full_at.0.saturating_sub(now.0) < self.burst_ns
    }

    /// The next time to try. It is the time at which there are tokens for several packets, and not for one alone.
    pub fn ready_at(&self) -> Time {
        let first = self.full_at.0.saturating_sub(self.burst_ns).saturating_add(1);
        Time(first.saturating_add(GATHER_NS.min(self.burst_ns / 2)))
    }

    /// A port that waited until `at` continues now, without losing tokens.
    pub fn go_on(&mut self, at: Time, now: Time) {
        self.late_ns = now.0.saturating_sub(at.0).min(LATE_MAX_NS);
        self.late_until = now.after_ns(LATE_MAX_NS);
    }

    /// A port that was interrupted at `at`, with frames and tokens left, continues now, without losing tokens.
    pub fn resume(&mut self, at: Time, now: Time) {
        self.go_on(self.full_since(at), now);
    }

    /// The earliest time at which the bucket was full; later tokens have overflowed.
    fn full_since(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(if now < self.late_until { self.late_ns } else { 0 }))
    }

    /// The remaining tokens in bytes.
    pub fn bytes(&self, now: Time) -> u64 {
        let full_at = self.full_at.max(self.full_since(now)).0;
        let left_ns = self.burst_ns.saturating_add(now.0).saturating_sub(full_at);
        let bytes = u128::from(left_ns) * u128::from(self.rate.0) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Takes the tokens of a packet.
    pub fn charge(&mut self, bytes: u64, now: Time) {
        let full_since = self.full_since(now);
        if self.full_at <= full_since {
            (self.full_at, self.carry) = (full_since, 0);
        }
        let cost = u128::from(bytes) * 8_000_000_000 + u128::from(self.carry);
        let rate = u128::from(self.rate.0);
        self.full_at = self.full_at.after_ns(u64::try_from(cost / rate).unwrap_or(u64::MAX));
        self.carry = (cost % rate) as u64;
    }
}

/// A traffic shape for one direction, in VMware's terms: a bucket of depth `burst` is filled at `average` and spent no faster than
/// `peak`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The long-term rate.
    pub average: Rate,
    /// The rate while the bucket is being emptied; unlimited if `None`.
    pub peak: Option<Rate>,
    /// Depth of the bucket in bytes.
    pub burst_bytes: u64,
}

impl Shape {
    /// The default depth: 20 ms of the average, and at least 64 KiB, so that one packet of the greatest length fits.
    pub fn usual_burst_bytes(average: Rate) -> u64 {
        (average.bits_per_second() / 8 / 50).max(64 << 10)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "average {}", self.average)?;
        if let Some(peak) = self.peak {
            write!(f, ", peak {peak}")?;
        }
        write!(f, ", burst {} bytes", self.burst_bytes)
    }
}

/// Depth of the peak's own bucket. It is so deep that a port at its peak is not woken for each frame.
pub const PEAK_NS: u64 = 200_000;

/// The buckets of a [`Shape`].
///
/// A packet may go if there is any token, and its whole length is charged once. So in any time `t` at most `burst + average × t` plus
/// one packet go, and at most `peak × (t + PEAK_NS)` plus one packet.
#[derive(Clone, Copy, Debug)]
pub struct Shaper {
    shape: Shape,
    average: Bucket,
    peak: Option<Bucket>,
}

impl Shaper {
    /// The tokens of the average's and of the peak's bucket.
    pub fn save(&self) -> (SavedBucket, Option<SavedBucket>) {
        (self.average.save(), self.peak.as_ref().map(Bucket::save))
    }

    /// Takes over the tokens of a saved shaper of the same shape.
    pub fn restore(&mut self, (average, peak): (SavedBucket, Option<SavedBucket>)) {
        self.average.restore(average);
        if let (Some(own), Some(peak)) = (&mut self.peak, peak) {
            own.restore(peak);
        }
    }

    /// Full buckets.
    pub fn new(shape: Shape) -> Self {
        let depth = |peak: Rate| u128::from(peak.0) * u128::from(PEAK_NS) / 8_000_000_000;
        let peak = shape.peak.map(|peak| Bucket::new(peak, u64::try_from(depth(peak)).unwrap_or(u64::MAX).max(1)));
        Self { shape, average: Bucket::new(shape.average, shape.burst_bytes), peak }
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether a packet may go now.
    pub fn ready(&self, now: Time) -> bool {
        self.average.ready(now) && self.peak.as_ref().is_none_or(|peak| peak.ready(now))
    }

    /// The next time to try, if it is not ready.
    pub fn ready_at(&self, now: Time) -> Time {
        let unready = |bucket: &Bucket| if bucket.ready(now) { now } else { bucket.ready_at() };
        let peak = self.peak.as_ref().map_or(now, unready);
        unready(&self.average).max(peak)
    }

    /// Bytes that may go now. The packet that contains the last of these bytes may go whole.
    pub fn bytes(&self, now: Time) -> u64 {
        let peak = self.peak.as_ref().map_or(u64::MAX, |peak| peak.bytes(now));
        self.average.bytes(now).min(peak)
    }

    /// Charges bytes that have gone.
    pub fn charge(&mut self, bytes: u64, now: Time) {
        self.average.charge(bytes, now);
        if let Some(peak) = &mut self.peak {
            peak.charge(bytes, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_prints_as_it_was_written() {
        for text in ["100Mbit/s", "10Gbit/s", "950kbit/s", "2.5Gbit/s", "1bit/s", "999bit/s", "1.536Mbit/s", "10Tbit/s"]
        {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
        assert_eq!("1500 Mbit/s".parse::<Rate>().unwrap().to_string(), "1.5Gbit/s");
        assert_eq!(Rate::new(1_234_567).unwrap().to_string(), "1234.567kbit/s");
    }

    #[test]
    fn what_is_no_rate_is_told_what_would_be_one() {
        for text in [
            "",
            "fast",
            "100",
            "100MB/s",
            "100mbit/s",
            "-1bit/s",
            "0bit/s",
            "11Tbit/s",
            ".5bit/s",
            "1.bit/s",
            "0.5bit/s",
            "1.2.3Gbit/s",
            "99999999999999999999bit/s",
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("such as 100Mbit/s"), "{error}");
        }
    }

    #[test]
    fn what_is_nearly_a_rate_is_told_what_is_wrong_with_it() {
        let message = |text: &str| text.parse::<Rate>().unwrap_err().to_string();
        for text in ["0Mbit/s", "0bit/s", "0.00Gbit/s"] {
            assert_eq!(message(text), format!("`{text}` is no rate: it must be more than 0, such as 100Mbit/s"));
        }
        for text in ["11Tbit/s", "99999999999999999999bit/s"] {
            assert_eq!(message(text), format!("`{text}` is no rate: it must be at most 10Tbit/s, such as 100Mbit/s"));
        }
        for (text, meant) in [
            ("100mbit/s", "100Mbit/s"),
            ("2.5 GBIT/S", "2.5Gbit/s"),
            ("100Mbps", "100Mbit/s"),
            ("64Kbit", "64kbit/s"),
            ("1000bps", "1000bit/s"),
        ] {
            assert!(message(text).ends_with(&format!("; did you mean \"{meant}\"?")), "{}", message(text));
            assert!(meant.parse::<Rate>().is_ok());
        }
        // "MB" is eight times as much as "Mbit"; the other units are unknown.
        for text in ["100MB/s", "100MBps/s", "100furlongs", "mbit/s"] {
            assert!(!message(text).contains("did you mean"), "{}", message(text));
        }
    }

    /// Bytes carried in a second, if each wake-up comes `late_ns` after the tokens.
    fn carried(late_ns: u64) -> u64 {
        let mut bucket = Bucket::new("100Mbit/s".parse().unwrap(), 65_536);
        let (mut now, mut sent) = (Time(5), 0);
        while now.0 < 1_000_000_000 {
            if bucket.ready(now) {
                let before = bucket.bytes(now);
                bucket.charge(1500, now);
                assert!(bucket.bytes(now).abs_diff(before.saturating_sub(1500)) <= 1);
                sent += 1500;
            } else {
                let at = bucket.ready_at();
                now = at.after_ns(late_ns);
                bucket.go_on(at, now);
            }
        }
        sent
    }

    #[test]
    fn who_is_woken_late_loses_nothing_and_wins_nothing() {
        for late_ms in [0, 1, 5, 20, 49] {
            let sent = carried(late_ms * 1_000_000);
            assert!(sent.abs_diff(12_500_000) < 65_536 + 50 * 12_500, "{late_ms} ms: {sent}");
            assert!(sent >= 12_500_000 - 50 * 12_500, "{late_ms} ms: {sent}");
            assert!(sent <= 12_500_000 + 65_536 + 1500, "{late_ms} ms: {sent}");
        }
        // The compensation is bounded.
        assert!(carried(200_000_000) < 12_500_000 / 2, "{}", carried(200_000_000));
    }

    #[test]
    fn who_is_interrupted_with_tokens_left_loses_nothing_and_wins_nothing() {
        // It sends four packets, then stands still for 3 ms, and again, although more tokens are there each time.
        let mut bucket = Bucket::new("10Mbit/s".parse().unwrap(), 15_000);
        let (mut now, mut sent, mut left_at) = (Time(5), 0, None::<Time>);
        while now.0 < 1_000_000_000 {
            if let Some(at) = left_at.take() {
                bucket.resume(at, now);
            }
            for _ in 0..4 {
                if bucket.ready(now) {
                    bucket.charge(1500, now);
                    sent += 1500;
                }
            }
            left_at = bucket.ready(now).then_some(now);
            if left_at.is_none() {
                let at = bucket.ready_at();
                now = at.after_ns(20_000_000);
                bucket.go_on(at, now);
            }
            now = now.after_ns(3_000_000);
        }
        assert!((1_250_000 - 40_000..=1_250_000 + 15_000 + 1500).contains(&sent), "{sent} bytes in a second");
    }

    #[test]
    fn what_was_given_back_and_not_used_is_gone_soon() {
        let mut bucket = Bucket::new("100Mbit/s".parse().unwrap(), 65_536);
        bucket.charge(65_536, Time(0));
        let (at, now) = (bucket.ready_at(), Time(30_000_000));
        bucket.go_on(at, now);
        assert!(bucket.bytes(now) > 4 * 65_536, "{}", bucket.bytes(now));
        let later = now.after_ns(LATE_MAX_NS);
        assert_eq!(bucket.bytes(later), 65_536);
        bucket.charge(65_536, later);
        assert!(!bucket.ready(later));
    }

    #[test]
    fn a_bucket_lets_through_its_burst_and_then_its_rate_exactly() {
        // 3 Gbit/s: 64 bytes take 170.67 ns, which no whole number of nanoseconds holds.
        let mut bucket = Bucket::new("3Gbit/s".parse().unwrap(), 1500);
        let (mut now, mut sent) = (Time(5), 0u64);
        while now.0 < 1_000_000_000 {
            if bucket.ready(now) {
                bucket.charge(64, now);
                sent += 64;
            } else {
                assert!(bucket.ready_at() > now);
                now = bucket.ready_at();
            }
        }
        let exact = 3_000_000_000 / 8;
        assert!(sent.abs_diff(exact) <= 1500 + 64, "{sent} of {exact}");
    }
}
