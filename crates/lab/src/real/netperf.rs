//! netperf in a guest: its command line, and its omni output (netperf's manual, "Omni Output Selectors").

use std::{collections::BTreeMap, process::Command, sync::atomic::AtomicBool, time::Duration};

use nicety_guests::{Error, Guest, Root};

use crate::{
    bench::Percentile,
    record::Taken,
    series::{POINTS, Series},
};

/// Time limit beyond the measured time, in a guest without KVM.
const SLACK: Duration = Duration::from_secs(30);

/// Shortest interval between two interim rates, so that netperf's own overhead does not affect the figures.
const MIN_INTERVAL_S: f64 = 0.25;
/// Shortest interval with a meaningful rate. The one at the end of a run may be shorter, and is dropped.
const SHORTEST_S: f64 = 0.05;

/// One of netperf's tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// Bulk TCP to the server.
    Stream,
    /// Bulk TCP from the server.
    Maerts,
    /// One byte in each direction, one transaction at a time.
    RequestResponse,
}

/// netperf's measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Bulk: Mbit/s. Request-response: transactions a second.
    pub rate: f64,
    /// Measured time, by the guest's clock.
    pub seconds: f64,
    /// Request-response: percentiles of a transaction's time from netperf's histogram (ten buckets a decade), and the maximum.
    pub latency: Option<Vec<Percentile>>,
    /// The rate over time, in the same unit.
    pub series: Series,
}

impl Measured {
    /// The figures of a run: `mbit`, or `transactions`, `p50` and `p99`.
    pub fn taken(self) -> Taken {
        let name = if self.latency.is_some() { "transactions" } else { "mbit" };
        let figures = BTreeMap::from([(name.to_owned(), self.rate)]);
        let series = Some(self.series).filter(|series| !series.values.is_empty());
        Taken { figures, series, ..Taken::default() }.with_latency(self.latency)
    }

    /// Payload of a bulk test in bytes.
    pub fn payload_bytes(&self) -> u64 {
        (self.rate * 1e6 / 8.0 * self.seconds) as u64
    }
}

/// The server, in the foreground.
pub fn server(root: &Root) -> Command {
    let mut command = root.program("usr/bin/netserver");
    command.args(["-4", "-D", "-N"]);
    command
}

/// Runs a test in `guest` against the netserver at `address`, for whole seconds.
///
/// # Errors
/// Those of [`Guest::succeed_unless`].
pub fn run(guest: &mut Guest, address: &str, test: Test, seconds: u32, stop: &AtomicBool) -> Result<Measured, Error> {
    // The output is held back until the end: interim lines would cross the console during the measurement.
    let command = format!("said=$({} 2>&1); code=$?; echo \"$said\"; (exit $code)", command(address, test, seconds));
    let text = guest.succeed_unless(&command, SLACK + Duration::from_secs(seconds.into()), stop)?;
    parse(&text, test).ok_or(Error::Command { command, code: 0, said: text })
}

/// netperf's command line.
pub fn command(address: &str, test: Test, seconds: u32) -> String {
    format!("netperf {}", words(address, test, seconds).join(" "))
}

/// The same outside of guests.
pub fn program(root: &Root, address: &str, test: Test, seconds: u32) -> Command {
    let mut command = root.program("usr/bin/netperf");
    command.args(words(address, test, seconds));
    command
}

/// The words of netperf's command line after its name.
fn words(address: &str, test: Test, seconds: u32) -> Vec<String> {
    let (name, more) = match test {
        Test::Stream => ("TCP_STREAM", ""),
        Test::Maerts => ("TCP_MAERTS", ""),
        Test::RequestResponse => ("TCP_RR", ",P50_LATENCY,P90_LATENCY,P99_LATENCY,MAX_LATENCY"),
    };
    let every = (f64::from(seconds) / POINTS as f64).max(MIN_INTERVAL_S);
    let line = format!(
        "-4 -H {address} -t {name} -l {seconds} -D {every:.3} -P 0 -- -k THROUGHPUT,THROUGHPUT_UNITS,ELAPSED_TIME{more}"
    );
    line.split(' ').map(str::to_owned).collect()
}

/// `NETPERF_INTERIM_RESULT[N]=`, `NETPERF_UNITS[N]=`, `NETPERF_INTERVAL[N]=`: a rate and its duration, one after the other.
/// Rates in another unit than the test's are dropped: netperf may begin in another one.
fn series(text: &str, unit: &str) -> Series {
    let (mut series, mut at) = (Series::default(), 0.0);
    let after = |line: &str, key: &str| Some(line.trim().strip_prefix(key)?.split_once('=')?.1.to_owned());
    let (mut rate, mut same) = (None, false);
    for line in text.lines() {
        if let Some(value) = after(line, "NETPERF_INTERIM_RESULT[") {
            rate = value.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0);
        } else if let Some(value) = after(line, "NETPERF_UNITS[") {
            same = value == unit;
        } else if let Some(value) = after(line, "NETPERF_INTERVAL[") {
            let seconds = value.parse::<f64>().ok().filter(|seconds| *seconds >= SHORTEST_S && seconds.is_finite());
            if let (Some(rate), true, Some(seconds)) = (rate.take(), same, seconds) {
                at += seconds;
                series.push(at, rate);
            }
        }
    }
    series
}

/// Makes the percentiles rise: a bucket's value in the histogram may exceed the maximum.
fn rising(percentiles: [(f64, f64); 4]) -> Vec<Percentile> {
    let mut before: f64 = 0.0;
    let mut rise = |(percent, us): (f64, f64)| {
        before = before.max(us);
        Percentile { percent, us: before }
    };
    percentiles.into_iter().map(&mut rise).collect()
}

/// Parses netperf's output: `KEY=value`, a line each. None if a key is missing.
pub fn parse(text: &str, test: Test) -> Option<Measured> {
    let value = |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| value(key)?.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let unit = if test == Test::RequestResponse { "Trans/s" } else { "10^6bits/s" };
    if value("THROUGHPUT_UNITS")? != unit {
        return None;
    }
    let (rate, seconds) = (number("THROUGHPUT")?, number("ELAPSED_TIME")?);
    let latency = match test {
        Test::RequestResponse => Some(rising([
            (50.0, number("P50_LATENCY")?),
            (90.0, number("P90_LATENCY")?),
            (99.0, number("P99_LATENCY")?),
            (100.0, number("MAX_LATENCY")?),
        ])),
        _ => None,
    };
    (seconds > 0.0).then(|| Measured { rate, seconds, latency, series: series(text, unit) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_keys_give_rate_and_time_and_other_units_are_refused() {
        let text = "THROUGHPUT=215.11\nTHROUGHPUT_UNITS=10^6bits/s\nELAPSED_TIME=5.02\n";
        assert_eq!(
            parse(text, Test::Stream),
            Some(Measured { rate: 215.11, seconds: 5.02, latency: None, series: Series::default() })
        );
        assert_eq!(parse(text, Test::RequestResponse), None);
        let text = "THROUGHPUT=1\nTHROUGHPUT_UNITS=10^9bits/s\nELAPSED_TIME=5\n";
        assert_eq!(parse(text, Test::Maerts), None);
        assert_eq!(parse("establish control: are you sure there is a netserver listening?", Test::Stream), None);
    }

    #[test]
    fn request_response_tells_its_percentiles() {
        let text = "THROUGHPUT=348.56\nTHROUGHPUT_UNITS=Trans/s\nELAPSED_TIME=2.01\nP50_LATENCY=2011\nP90_LATENCY=2500\nP99_LATENCY=14000\nMAX_LATENCY=13811\n";
        let measured = parse(text, Test::RequestResponse).expect("it is netperf's");
        let latency: Vec<(f64, f64)> =
            measured.latency.unwrap().iter().map(|known| (known.percent, known.us)).collect();
        assert_eq!(latency, [(50.0, 2011.0), (90.0, 2500.0), (99.0, 14000.0), (100.0, 14000.0)]);
    }

    /// Output of netperf 2.7.0 of Debian 12, with `-D 0.2`.
    #[test]
    fn its_interim_results_are_the_rate_over_time() {
        let text = "NETPERF_INTERIM_RESULT[0]=5275.51\nNETPERF_UNITS[0]=Trans/s\nNETPERF_INTERVAL[0]=0.222\nNETPERF_ENDING[0]=1795454411.171\n\
                    NETPERF_INTERIM_RESULT[1]=3614.72\nNETPERF_UNITS[1]=Trans/s\nNETPERF_INTERVAL[1]=0.292\nNETPERF_ENDING[1]=1795454411.463\n\
                    NETPERF_INTERIM_RESULT[2]=7862.84\nNETPERF_UNITS[2]=Trans/s\nNETPERF_INTERVAL[2]=0.018\nNETPERF_ENDING[2]=1795454411.949\n\
                    THROUGHPUT=4349.95\nTHROUGHPUT_UNITS=Trans/s\nELAPSED_TIME=1.00\n";
        let series = series(text, "Trans/s");
        assert_eq!((series.until_seconds, series.values), (vec![0.222, 0.514], vec![5275.5, 3614.7]));
        assert_eq!(super::series(text, "10^6bits/s"), Series::default());
    }

    #[test]
    fn what_a_bulk_test_carried_is_rate_by_time() {
        assert_eq!(
            Measured { rate: 8.0, seconds: 2.0, latency: None, series: Series::default() }.payload_bytes(),
            2_000_000
        );
    }
}
