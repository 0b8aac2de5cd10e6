//! netperf in a guest: its command line, and its omni output (netperf's manual, "Omni Output Selectors").

use std::{sync::atomic::AtomicBool, time::Duration};

use super::{error::Error, guest::Guest};

/// What it may take beyond the time that it measures, in a guest without KVM.
const SLACK: Duration = Duration::from_secs(30);

/// One of netperf's tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// Bulk TCP to the server.
    Stream,
    /// Bulk TCP from the server.
    Maerts,
    /// One byte there and one back, one transaction at a time.
    RequestResponse,
}

/// What it measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Bulk: Mbit/s. Request-response: transactions a second.
    pub rate: f64,
    /// How long it was measured, by the guest's clock.
    pub seconds: f64,
    /// Request-response: the median and the 99th percentile of a transaction's time in µs, as its histogram (ten buckets a
    /// decade) has them.
    pub latency_us: Option<(f64, f64)>,
}

impl Measured {
    /// What a bulk test carried, in bytes.
    pub fn payload_bytes(&self) -> u64 {
        (self.rate * 1e6 / 8.0 * self.seconds) as u64
    }
}

/// Runs a test in `guest` against the netserver at `address`, for whole seconds.
///
/// # Errors
/// Those of [`Guest::succeed_unless`].
pub fn run(guest: &mut Guest, address: &str, test: Test, seconds: u32, stop: &AtomicBool) -> Result<Measured, Error> {
    let command = command(address, test, seconds);
    let text = guest.succeed_unless(&command, SLACK + Duration::from_secs(seconds.into()), stop)?;
    parse(&text, test).ok_or(Error::Command { command, code: 0, said: text })
}

fn command(address: &str, test: Test, seconds: u32) -> String {
    let (name, more) = match test {
        Test::Stream => ("TCP_STREAM", ""),
        Test::Maerts => ("TCP_MAERTS", ""),
        Test::RequestResponse => ("TCP_RR", ",P50_LATENCY,P99_LATENCY"),
    };
    format!(
        "netperf -4 -H {address} -t {name} -l {seconds} -P 0 -- -k THROUGHPUT,THROUGHPUT_UNITS,ELAPSED_TIME{more} 2>&1"
    )
}

/// `KEY=value`, a line each.
fn parse(text: &str, test: Test) -> Option<Measured> {
    let value = |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| value(key)?.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let unit = if test == Test::RequestResponse { "Trans/s" } else { "10^6bits/s" };
    if value("THROUGHPUT_UNITS")? != unit {
        return None;
    }
    let (rate, seconds) = (number("THROUGHPUT")?, number("ELAPSED_TIME")?);
    let latency_us = match test {
        Test::RequestResponse => Some((number("P50_LATENCY")?, number("P99_LATENCY")?)),
        _ => None,
    };
    (seconds > 0.0).then_some(Measured { rate, seconds, latency_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_keys_give_rate_and_time_and_other_units_are_refused() {
        let text = "THROUGHPUT=215.11\nTHROUGHPUT_UNITS=10^6bits/s\nELAPSED_TIME=5.02\n";
        assert_eq!(parse(text, Test::Stream), Some(Measured { rate: 215.11, seconds: 5.02, latency_us: None }));
        assert_eq!(parse(text, Test::RequestResponse), None);
        let text = "THROUGHPUT=1\nTHROUGHPUT_UNITS=10^9bits/s\nELAPSED_TIME=5\n";
        assert_eq!(parse(text, Test::Maerts), None);
        assert_eq!(parse("establish control: are you sure there is a netserver listening?", Test::Stream), None);
    }

    #[test]
    fn request_response_tells_its_percentiles() {
        let text =
            "THROUGHPUT=348.56\nTHROUGHPUT_UNITS=Trans/s\nELAPSED_TIME=2.01\nP50_LATENCY=2011\nP99_LATENCY=14000\n";
        let measured = parse(text, Test::RequestResponse).expect("it is netperf's");
        assert_eq!(measured.latency_us, Some((2011.0, 14000.0)));
    }

    #[test]
    fn what_a_bulk_test_carried_is_rate_by_time() {
        assert_eq!(Measured { rate: 8.0, seconds: 2.0, latency_us: None }.payload_bytes(), 2_000_000);
    }
}
