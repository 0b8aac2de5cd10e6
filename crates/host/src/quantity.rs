//! Quantities with units, printed as a person writes them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Reasons why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not start with a number.
    #[error("it does not begin with a whole number")]
    Number,
    /// The unit is missing, or unknown.
    #[error("its unit must be {0}")]
    Unit(&'static str),
    /// The number does not fit into 64 bits.
    #[error("it is too large")]
    Large,
}

/// The units of [`Bytes`], largest first.
pub(super) const BYTES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A number of bytes: `64KiB`, `1MiB`, `1500B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = parts(text)?;
        let (_, factor) =
            BYTES.into_iter().find(|(name, _)| *name == unit).ok_or(QuantityError::Unit("B, KiB, MiB or GiB"))?;
        number.checked_mul(factor).map(Self).ok_or(QuantityError::Large)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = BYTES
            .into_iter()
            .find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor))
            .unwrap_or(("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// A number of seconds: `300s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seconds(pub u32);

impl Seconds {
    /// The time as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_secs(u64::from(self.0))
    }
}

impl FromStr for Seconds {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match parts(text)? {
            (number, "s") => u32::try_from(number).map(Self).map_err(|_| QuantityError::Large),
            _ => Err(QuantityError::Unit("s")),
        }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.0)
    }
}

/// A number of milliseconds, at most 49 days: `50ms`, `2s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Milliseconds(pub u32);

impl Milliseconds {
    /// The time as a [`Duration`].
    pub fn duration(self) -> Duration {
        Duration::from_millis(u64::from(self.0))
    }
}

impl FromStr for Milliseconds {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let (number, unit) = parts(text)?;
        let factor = match unit {
            "ms" => 1,
            "s" => 1000,
            _ => return Err(QuantityError::Unit("ms or s")),
        };
        let number = number.checked_mul(factor).and_then(|number| u32::try_from(number).ok());
        number.map(Self).ok_or(QuantityError::Large)
    }
}

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number @ 1.. if number.is_multiple_of(1000) => write!(f, "{}s", number / 1000),
            number => write!(f, "{number}ms"),
        }
    }
}

/// Splits a text into the number and the unit, with or without a space between.
fn parts(text: &str) -> Result<(u64, &str), QuantityError> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end).unwrap_or((text, ""));
    if number.is_empty() {
        return Err(QuantityError::Number);
    }
    Ok((number.parse().map_err(|_| QuantityError::Large)?, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_print_themselves_as_they_were_written() {
        for text in ["1B", "1500B", "64KiB", "1MiB", "3MiB", "1GiB", "1025KiB", "0B"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        assert_eq!("1024 KiB".parse(), Ok(Bytes(1 << 20)));
        assert_eq!("300s".parse::<Seconds>().unwrap().to_string(), "300s");
        assert_eq!(Seconds(300).duration(), Duration::from_secs(300));
        for text in ["0ms", "5ms", "50ms", "1500ms", "1s", "10s"] {
            assert_eq!(text.parse::<Milliseconds>().unwrap().to_string(), text);
        }
        assert_eq!("2000 ms".parse::<Milliseconds>().unwrap().duration(), Duration::from_secs(2));
    }

    #[test]
    fn what_is_no_amount_is_refused_with_its_reason() {
        let bytes = |text: &str| text.parse::<Bytes>().unwrap_err();
        assert_eq!(bytes(""), QuantityError::Number);
        assert_eq!(bytes("MiB"), QuantityError::Number);
        assert_eq!(bytes("-1MiB"), QuantityError::Number);
        assert_eq!(bytes("1"), QuantityError::Unit("B, KiB, MiB or GiB"));
        assert_eq!(bytes("1MB"), QuantityError::Unit("B, KiB, MiB or GiB"));
        assert_eq!(bytes("1.5MiB"), QuantityError::Unit("B, KiB, MiB or GiB"));
        assert_eq!(bytes("18446744073709551616B"), QuantityError::Large);
        assert_eq!(bytes("17179869184GiB"), QuantityError::Large);
        assert_eq!("5min".parse::<Seconds>(), Err(QuantityError::Unit("s")));
        assert_eq!("4294967296s".parse::<Seconds>(), Err(QuantityError::Large));
        assert_eq!("5us".parse::<Milliseconds>(), Err(QuantityError::Unit("ms or s")));
        assert_eq!("4294968s".parse::<Milliseconds>(), Err(QuantityError::Large));
        assert_eq!("18446744073709551615s".parse::<Milliseconds>(), Err(QuantityError::Large));
    }
}
