//! Computes the figures of the rows from the measurements of the runs.
//!
//! The tests of cost (CPU per gigabit; reads, writes and interrupts per frame) cover a round's bulk runs with the outside peer,
//! transmit and receive together. They are sums divided by sums, so that a direction weighs by its frames.
//! Without an outside peer they cover the runs from guest to guest.

use crate::bench::{Latency, Measured, Outcome, Percentile, Usage};
use crate::method::{Contestant, Item, Load};
use crate::results::{Counts, Row, Sample, Test};
use crate::series::Series;
use crate::statistics;

/// A run with a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// The run's item.
    pub item: Item,
    /// The figures of the run itself.
    figures: Vec<(Test, f64)>,
    /// Gigabits of payload; zero for request-response.
    gigabits: f64,
    usage: Usage,
    /// Rate over time.
    pub series: Option<Series>,
    /// Latencies of request-response, in rising order.
    pub latency: Option<Vec<Percentile>>,
}

/// Percentiles kept of a run in which every transaction was timed.
const PERCENTS: [f64; 18] =
    [0.0, 1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.9, 99.99, 100.0];

impl Taken {
    /// Takes in a measurement. Latency samples are reduced to percentiles here, so that a long comparison does not keep them.
    /// The error names the fault of the measurement.
    pub fn new(item: Item, measured: Measured) -> Result<Taken, String> {
        let Measured { outcome, usage, series } = measured;
        let mut taken = Taken { item, figures: Vec::new(), gigabits: 0.0, usage, series, latency: None };
        match (taken.item.load, outcome) {
            (Load::RequestResponse, Outcome::Transactions { count, elapsed, latency }) => {
                taken.figures.push((Test::RequestResponse, count as f64 / elapsed.as_secs_f64()));
                let latency = percentiles(latency);
                let at = |test, percent| Some((test, latency.iter().find(|known| known.percent == percent)?.us));
                taken.figures.extend([at(Test::RrP50, 50.0), at(Test::RrP99, 99.0)].into_iter().flatten());
                taken.latency = Some(latency).filter(|latency| !latency.is_empty());
            }
            (Load::RequestResponse, Outcome::Bulk { .. }) | (_, Outcome::Transactions { .. }) => {
                return Err("the bench measured another load than it was asked to".to_owned());
            }
            (load, Outcome::Bulk { payload_bytes, elapsed }) => {
                let megabits = payload_bytes as f64 * 8.0 / 1e6;
                taken.gigabits = megabits / 1e3;
                taken.figures.push((bulk_test(load), megabits / elapsed.as_secs_f64()));
            }
        }
        match taken.figures.iter().find(|(_, value)| !value.is_finite() || *value <= 0.0) {
            Some((test, _)) => Err(format!("nothing was carried: {} has no figure", test.title())),
            None => Ok(taken),
        }
    }

    fn figure(&self, test: Test) -> Option<f64> {
        self.figures.iter().find(|(of, _)| *of == test).map(|(_, value)| *value)
    }
}

fn bulk_test(load: Load) -> Test {
    match load {
        Load::BulkReceive => Test::BulkReceive,
        Load::GuestToGuest => Test::GuestToGuest,
        Load::BulkTransmit | Load::RequestResponse => Test::BulkTransmit,
    }
}

fn percentiles(latency: Latency) -> Vec<Percentile> {
    match latency {
        Latency::Reported(percentiles) => percentiles,
        Latency::EveryNs(mut samples) => {
            let mut of =
                |percent| Some(Percentile { percent, us: statistics::percentile(&mut samples, percent)? as f64 / 1e3 });
            PERCENTS.into_iter().filter_map(&mut of).collect()
        }
    }
}

/// All rows of `contestant`, from its runs in `taken`. `absent` gives the reason why a load has no measurement.
pub fn rows(
    contestant: &Contestant,
    loads: &[Load],
    taken: &[Taken],
    absent: impl Fn(Load) -> Option<String>,
) -> Vec<Row> {
    let Contestant { adapter, server, driver } = contestant;
    let ours: Vec<&Taken> = taken.iter().filter(|taken| taken.item.contestant == *contestant).collect();
    let mut rows = Vec::new();
    for test in Test::ALL {
        let row = match test.load() {
            Some(load) if loads.contains(&load) => {
                let runs: Vec<&Taken> = ours.iter().copied().filter(|taken| taken.item.load == load).collect();
                let sample = |taken: &&Taken| Some(Sample { round: taken.item.round, value: taken.figure(test)? });
                let mut row = Row::new(adapter, test, *server, runs.iter().filter_map(sample).collect(), absent(load));
                row.counts = Some(counts(&runs));
                row
            }
            None if !bulk(loads).is_empty() => {
                let bulk = bulk(loads);
                let failed = bulk.iter().find_map(|load| absent(*load));
                let why = failed.unwrap_or_else(|| format!("{} does not count it", server.title()));
                Row::new(adapter, test, *server, costs(test, bulk, &ours), Some(why))
            }
            _ => continue,
        };
        rows.push(Row { driver: *driver, ..row });
    }
    rows
}

/// Rows of a contestant that cannot run: one for each test of `loads`.
pub fn absent_rows(contestant: &Contestant, loads: &[Load], why: &str) -> Vec<Row> {
    rows(contestant, loads, &[], |_| Some(why.to_owned()))
}

/// The loads that the tests of cost cover.
fn bulk(loads: &[Load]) -> &'static [Load] {
    const OUTSIDE: &[Load] = &[Load::BulkTransmit, Load::BulkReceive];
    if loads.iter().any(|load| OUTSIDE.contains(load)) {
        OUTSIDE
    } else if loads.contains(&Load::GuestToGuest) {
        &[Load::GuestToGuest]
    } else {
        &[]
    }
}

/// One sample per round, for each round whose runs of these loads all have the count.
fn costs(test: Test, bulk: &[Load], ours: &[&Taken]) -> Vec<Sample> {
    let outside: Vec<&Taken> = ours.iter().copied().filter(|taken| bulk.contains(&taken.item.load)).collect();
    let loads = |round| outside.iter().filter(|taken| taken.item.round == round).count();
    let mut rounds: Vec<u32> = outside.iter().map(|taken| taken.item.round).collect();
    rounds.dedup();
    rounds.sort_unstable();
    rounds.dedup();
    // A round that lacks one direction cannot be compared with rounds that have both.
    let most = rounds.iter().map(|&round| loads(round)).max().unwrap_or(0);
    rounds.retain(|&round| loads(round) == most);
    rounds
        .into_iter()
        .filter_map(|round| {
            let runs: Vec<&Taken> = outside.iter().copied().filter(|taken| taken.item.round == round).collect();
            Some(Sample { round, value: cost(test, &runs)? })
        })
        .collect()
}

/// The cost over `runs` together. None if one of them lacks the count.
fn cost(test: Test, runs: &[&Taken]) -> Option<f64> {
    let counted = |count: fn(&Usage) -> Option<u64>| {
        runs.iter().try_fold(0_u64, |sum, taken| Some(sum.saturating_add(count(&taken.usage)?))).map(|sum| sum as f64)
    };
    let (above, below) = match test {
        Test::ReadsPerFrame => (counted(|usage| usage.register_reads)?, counted(|usage| usage.frames)?),
        Test::WritesPerFrame => (counted(|usage| usage.register_writes)?, counted(|usage| usage.frames)?),
        Test::InterruptsPerFrame => (counted(|usage| usage.interrupts)?, counted(|usage| usage.frames)?),
        Test::CpuPerGigabit => {
            let seconds = runs.iter().try_fold(0.0, |sum, taken| Some(sum + taken.usage.cpu_seconds?))?;
            (seconds, runs.iter().map(|taken| taken.gigabits).sum())
        }
        Test::GuestCpuPerGigabit => {
            let seconds = runs.iter().try_fold(0.0, |sum, taken| Some(sum + taken.usage.guest_cpu_seconds?))?;
            (seconds, runs.iter().map(|taken| taken.gigabits).sum())
        }
        _ => return None,
    };
    Some(above / below).filter(|cost| cost.is_finite())
}

/// Medians of the costs of single runs.
fn counts(runs: &[&Taken]) -> Counts {
    let median = |test| {
        let values: Vec<f64> = runs.iter().filter_map(|taken| cost(test, &[taken])).collect();
        statistics::median(&values)
    };
    Counts {
        register_reads_per_frame: median(Test::ReadsPerFrame),
        register_writes_per_frame: median(Test::WritesPerFrame),
        interrupts_per_frame: median(Test::InterruptsPerFrame),
        cpu_seconds_per_gigabit: median(Test::CpuPerGigabit),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::method::Server;

    fn item(load: Load, round: u32) -> Item {
        Item { round, contestant: Contestant::new("e1000", Server::Nicety), load }
    }

    fn bulk(load: Load, round: u32, payload_bytes: u64, usage: Usage) -> Taken {
        let outcome = Outcome::Bulk { payload_bytes, elapsed: Duration::from_secs(2) };
        Taken::new(item(load, round), Measured { outcome, usage, series: None }).unwrap()
    }

    fn usage(frames: u64, reads: u64, cpu: f64) -> Usage {
        Usage { frames: Some(frames), register_reads: Some(reads), cpu_seconds: Some(cpu), ..Usage::default() }
    }

    #[test]
    fn a_bulk_run_of_250_megabytes_in_two_seconds_moved_1000_megabits_a_second() {
        let taken = bulk(Load::BulkReceive, 0, 250_000_000, Usage::default());
        assert_eq!(taken.figure(Test::BulkReceive), Some(1_000.0));
        assert_eq!(taken.gigabits, 2.0);
    }

    #[test]
    fn costs_are_sums_over_both_directions_of_a_round_and_unknown_counts_stay_unknown() {
        let taken = [
            bulk(Load::BulkTransmit, 0, 125_000_000, usage(100, 30, 1.0)),
            bulk(Load::BulkReceive, 0, 375_000_000, usage(300, 10, 3.0)),
            bulk(Load::GuestToGuest, 0, 125_000_000, usage(1, 1_000, 50.0)),
            bulk(Load::BulkTransmit, 1, 125_000_000, usage(100, 30, 1.0)),
        ];
        let rows = rows(&Contestant::new("e1000", Server::Nicety), &Load::ALL, &taken, |_| None);
        let row = |test| rows.iter().find(|row| row.test == test).unwrap();
        // (30 + 10) / (100 + 300) and (1 + 3) / (1 + 3): round 1 has no receive run and is left out.
        assert_eq!(row(Test::ReadsPerFrame).samples, [Sample { round: 0, value: 0.1 }]);
        assert_eq!(row(Test::CpuPerGigabit).samples, [Sample { round: 0, value: 1.0 }]);
        assert_eq!(row(Test::WritesPerFrame).median, None);
        assert_eq!(row(Test::WritesPerFrame).absent.as_deref(), Some("Nicety does not count it"));
        assert_eq!(row(Test::BulkTransmit).samples.len(), 2);
        assert_eq!(row(Test::GuestToGuest).counts.unwrap().register_reads_per_frame, Some(1_000.0));
        assert_eq!(row(Test::RrP99).absent.as_deref(), Some("it was not measured"));
        assert_eq!(rows.len(), Test::ALL.len());
    }

    #[test]
    fn percentiles_come_from_every_transaction() {
        let latency = Latency::EveryNs((1..=200).rev().map(|micros| micros * 1_000).collect());
        let outcome = Outcome::Transactions { count: 200, elapsed: Duration::from_millis(100), latency };
        let measured = Measured { outcome, usage: Usage::default(), series: None };
        let taken = Taken::new(item(Load::RequestResponse, 0), measured).unwrap();
        assert_eq!(taken.figure(Test::RequestResponse), Some(2_000.0));
        assert_eq!(taken.figure(Test::RrP50), Some(100.0));
        assert_eq!(taken.figure(Test::RrP99), Some(198.0));
        let latency = taken.latency.unwrap();
        assert!(latency.len() == PERCENTS.len() && latency.is_sorted_by(|a, b| a.percent < b.percent && a.us <= b.us));
        assert_eq!((latency.first().unwrap().us, latency.last().unwrap().us), (1.0, 200.0));
    }

    #[test]
    fn a_run_that_carried_nothing_or_took_no_time_is_no_sample() {
        for (payload_bytes, elapsed) in [(0, Duration::from_secs(1)), (1, Duration::ZERO), (0, Duration::ZERO)] {
            let outcome = Outcome::Bulk { payload_bytes, elapsed };
            let measured = Measured { outcome, usage: Usage::default(), series: None };
            assert!(Taken::new(item(Load::BulkTransmit, 0), measured.clone()).is_err());
            assert!(Taken::new(item(Load::RequestResponse, 0), measured).is_err());
        }
    }
}
