//! The data model of `results.json`: format `nicety-results`, version 2, as docs/results-format.md describes it.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bench::Percentile;
use crate::host::{Host, LOADED_MARK, is_loaded, loaded_words};
use crate::method::{Driver, Guests, Load, Order, Server};
use crate::number;
use crate::series::Series;
use crate::statistics::{self, Estimate, Interval, RUNS_FOR_INTERVAL};

/// The name of the format, the first member of the file.
pub const FORMAT: &str = "nicety-results";

/// The version that this program writes. It also reads earlier versions, and takes their missing members as null.
pub const VERSION: u32 = 2;

/// The quantity of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Bulk TCP, guest to a peer outside the switch.
    BulkTransmit,
    /// Bulk TCP, from a peer outside the switch to the guest.
    BulkReceive,
    /// Bulk TCP between two guests with the same adapter.
    GuestToGuest,
    /// Request-response transactions.
    RequestResponse,
    /// The median latency of a transaction.
    RrP50,
    /// The 99th percentile of a transaction's latency.
    RrP99,
    /// CPU time of server and guests per gigabit of payload, over the bulk runs with the outside peer. Without an outside peer, over the
    /// runs between guests.
    CpuPerGigabit,
    /// The share of the guests' own work in that time, where known.
    GuestCpuPerGigabit,
    /// Register reads per frame on the wire, over the same runs.
    ReadsPerFrame,
    /// Register writes per frame on the wire, over the same runs.
    WritesPerFrame,
    /// Interrupts per frame on the wire, over the same runs.
    InterruptsPerFrame,
}

/// The direction in which a figure improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

impl Test {
    /// All tests, in the order of tables and charts.
    pub const ALL: [Test; 11] = [
        Test::BulkTransmit,
        Test::BulkReceive,
        Test::GuestToGuest,
        Test::RequestResponse,
        Test::RrP50,
        Test::RrP99,
        Test::CpuPerGigabit,
        Test::GuestCpuPerGigabit,
        Test::ReadsPerFrame,
        Test::WritesPerFrame,
        Test::InterruptsPerFrame,
    ];

    /// The test's name in `results.json`, in `results.csv` and in links to its section.
    pub fn name(self) -> &'static str {
        match self {
            Test::BulkTransmit => "bulk-transmit",
            Test::BulkReceive => "bulk-receive",
            Test::GuestToGuest => "guest-to-guest",
            Test::RequestResponse => "request-response",
            Test::RrP50 => "rr-p50",
            Test::RrP99 => "rr-p99",
            Test::CpuPerGigabit => "cpu-per-gigabit",
            Test::GuestCpuPerGigabit => "guest-cpu-per-gigabit",
            Test::ReadsPerFrame => "reads-per-frame",
            Test::WritesPerFrame => "writes-per-frame",
            Test::InterruptsPerFrame => "interrupts-per-frame",
        }
    }

    /// The test's title in a heading.
    pub fn title(self) -> &'static str {
        match self {
            Test::BulkTransmit => "Bulk transmit",
            Test::BulkReceive => "Bulk receive",
            Test::GuestToGuest => "Guest to guest",
            Test::RequestResponse => "Request-response",
            Test::RrP50 => "Latency, median",
            Test::RrP99 => "Latency, 99th percentile",
            Test::CpuPerGigabit => "CPU per gigabit",
            Test::GuestCpuPerGigabit => "CPU per gigabit, guests' own",
            Test::ReadsPerFrame => "Register reads",
            Test::WritesPerFrame => "Register writes",
            Test::InterruptsPerFrame => "Interrupts",
        }
    }

    /// The test's title above a narrow column.
    pub fn short_title(self) -> &'static str {
        match self {
            Test::RrP50 => "Latency p50",
            Test::RrP99 => "Latency p99",
            Test::GuestCpuPerGigabit => "Guests' own part",
            other => other.title(),
        }
    }

    /// The unit of its figures.
    pub fn unit(self) -> &'static str {
        match self {
            Test::BulkTransmit | Test::BulkReceive | Test::GuestToGuest => "Mbit/s",
            Test::RequestResponse => "per second",
            Test::RrP50 | Test::RrP99 => "µs",
            Test::CpuPerGigabit | Test::GuestCpuPerGigabit => "CPU-s/Gbit",
            Test::ReadsPerFrame | Test::WritesPerFrame | Test::InterruptsPerFrame => "per frame",
        }
    }

    /// Whether more or less is better.
    pub fn direction(self) -> Direction {
        match self {
            Test::BulkTransmit | Test::BulkReceive | Test::GuestToGuest | Test::RequestResponse => Direction::Higher,
            _ => Direction::Lower,
        }
    }

    /// The load whose runs give this test. None if several loads do.
    pub fn load(self) -> Option<Load> {
        match self {
            Test::BulkTransmit => Some(Load::BulkTransmit),
            Test::BulkReceive => Some(Load::BulkReceive),
            Test::GuestToGuest => Some(Load::GuestToGuest),
            Test::RequestResponse | Test::RrP50 | Test::RrP99 => Some(Load::RequestResponse),
            _ => None,
        }
    }
}

/// The whole of `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    format: String,
    version: u32,
    /// The host on which it was measured.
    pub host: Host,
    /// The method of the measurement.
    pub method: Method,
    /// All runs in the order in which they ran.
    pub runs: Vec<Run>,
    /// A row per adapter × test × server, adapters in the order of tables.
    pub rows: Vec<Row>,
}

/// The method of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// The exact command that repeats the measurement.
    pub command: String,
    /// The kind of guests that drove the adapters.
    pub guests: Guests,
    /// Duration of a run in seconds.
    pub seconds: f64,
    /// Rounds: planned number of runs of each adapter × load × server.
    pub repeat: u32,
    /// The seed of the runs' order.
    pub seed: u64,
    /// The alternation of contestants within a round.
    pub order: Order,
    /// Facts about the guests and the measuring, a sentence each.
    pub notes: Vec<String>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Index in the order of all runs, from 0.
    pub run: u32,
    /// Its round, from 0.
    pub round: u32,
    /// The adapter.
    pub adapter: String,
    /// The server of the adapter.
    pub server: Server,
    /// The guests' activity.
    pub load: Load,
    /// Time taken including start and settling, in seconds.
    pub took_seconds: f64,
    /// Percentage of the host's processor time stolen during the run. Null where the kernel does not report it.
    pub steal_percent: Option<f64>,
    /// Percentage of it that other processes than the comparison's own took. Null where unknown, and in older files.
    #[serde(default)]
    pub others_percent: Option<f64>,
    /// The reason why the run gave no figures. Null if it gave some.
    pub failure: Option<String>,
    /// Rate over time, in the unit of the load's test. Since version 2; null where unknown.
    #[serde(default)]
    pub series: Option<Series>,
    /// For request-response: percentiles of the transactions' latencies, rising. Since version 2.
    #[serde(default)]
    pub latency: Option<Vec<Percentile>>,
}

impl Run {
    /// Whether a row has figures of this run. A cost is taken over the bulk runs with the peer outside, or without one over those from guest
    /// to guest.
    fn gives(&self, row: &Row, has_outside: bool) -> bool {
        let is_its = (&self.adapter, self.server) == (&row.adapter, row.server);
        let is_cost = match self.load {
            Load::BulkTransmit | Load::BulkReceive => true,
            Load::GuestToGuest => !has_outside,
            Load::RequestResponse => false,
        };
        is_its && row.test.load().map_or(is_cost, |load| load == self.load)
    }
}

/// A figure of a row, from one run. For the tests of cost it is from one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The round: samples of the same round are compared with each other.
    pub round: u32,
    /// The figure, in the row's unit.
    pub value: f64,
}

/// Cost of a row's runs, as medians. Null where a server does not count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Register reads that reached the server, per frame on the wire.
    pub register_reads_per_frame: Option<f64>,
    /// Register writes that reached the server, per frame on the wire.
    pub register_writes_per_frame: Option<f64>,
    /// Interrupts, per frame on the wire.
    pub interrupts_per_frame: Option<f64>,
    /// CPU-seconds of server and guests, per 10⁹ bits of payload. Null for request-response.
    pub cpu_seconds_per_gigabit: Option<f64>,
}

/// An adapter × test × server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The adapter.
    pub adapter: String,
    /// The measured quantity.
    pub test: Test,
    /// The server of the adapter.
    pub server: Server,
    /// The unit of median, interval and samples.
    pub unit: String,
    /// Whether more or less is better.
    pub direction: Direction,
    /// All samples in the order of their runs.
    pub samples: Vec<Sample>,
    /// Median of the samples. Null without samples.
    pub median: Option<f64>,
    /// The 95 % interval of the median. Null with fewer than seven samples.
    pub interval: Option<Interval>,
    /// Cost of the runs. Null in rows that are costs themselves.
    pub counts: Option<Counts>,
    /// The reason why there is no figure. Null if there is one.
    pub absent: Option<String>,
    /// The adapter's driver, where it differs from that of [`Method::guests`]. Null elsewhere, and in files older than this member.
    #[serde(default)]
    pub driver: Option<Driver>,
    /// Whether other processes took more than a tenth of the processors' time during one of its runs. False in older files.
    #[serde(default)]
    pub loaded: bool,
}

impl Row {
    /// The row of `samples`. `absent` gives the reason if there are none.
    pub fn new(adapter: &str, test: Test, server: Server, samples: Vec<Sample>, absent: Option<String>) -> Row {
        let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
        let estimate = Estimate::of(&values);
        Row {
            adapter: adapter.to_owned(),
            test,
            server,
            unit: test.unit().to_owned(),
            direction: test.direction(),
            median: estimate.map(|e| e.median),
            interval: estimate.and_then(|e| e.interval),
            counts: None,
            absent: if estimate.is_some() {
                None
            } else {
                Some(absent.unwrap_or_else(|| "it was not measured".to_owned()))
            },
            samples,
            driver: None,
            loaded: false,
        }
    }

    /// The median for readers, with a mark if the machine was loaded. None without samples.
    pub fn shown(&self) -> Option<String> {
        let mark = if self.loaded { LOADED_MARK } else { "" };
        self.median.map(|median| number::figure(median) + mark)
    }

    /// The ratio of this row's figure to `other`'s. With at least [`RUNS_FOR_INTERVAL`] common rounds it is the median of the rounds' own
    /// ratios, with its interval. With fewer it is the ratio of the medians.
    pub fn ratio_to(&self, other: &Row) -> Option<Estimate> {
        let theirs = |round| other.samples.iter().find(|sample| sample.round == round).map(|sample| sample.value);
        let (ours, theirs): (Vec<f64>, Vec<f64>) =
            self.samples.iter().filter_map(|sample| Some((sample.value, theirs(sample.round)?))).unzip();
        if (1..RUNS_FOR_INTERVAL).contains(&ours.len()) {
            let median = Some(self.median? / other.median?).filter(|ratio| ratio.is_finite())?;
            return Some(Estimate { median, interval: None, samples: ours.len() });
        }
        statistics::paired_ratio(&ours, &theirs)
    }
}

/// The reason why a text is refused as results.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// The text is no JSON, or JSON of another shape.
    #[error("these are no results of nicety: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The text is JSON of another format.
    #[error("these are no results of nicety: the format is \"{0}\", not \"{FORMAT}\"")]
    OtherFormat(String),
    /// This program does not know the version.
    #[error(
        "the results are of format version {0}, and this nicety reads versions 1 to {VERSION}: read them with the nicety that wrote them, or measure again"
    )]
    UnknownVersion(u64),
    /// Members contradict each other.
    #[error("the results contradict themselves: {0}")]
    Contradiction(String),
}

#[derive(Deserialize)]
struct Header {
    format: String,
    version: u64,
}

impl Results {
    /// The line that explains the mark of figures that were measured on a loaded machine. None if no figure has it.
    pub fn loaded_line(&self) -> Option<String> {
        self.rows.iter().any(|row| row.loaded).then(loaded_words)
    }

    /// Results of this program's format and version.
    pub fn new(host: Host, method: Method, runs: Vec<Run>, mut rows: Vec<Row>) -> Results {
        let has_outside = runs.iter().any(|run| matches!(run.load, Load::BulkTransmit | Load::BulkReceive));
        for row in rows.iter_mut().filter(|row| row.median.is_some()) {
            row.loaded = runs.iter().any(|run| is_loaded(run.others_percent) && run.gives(row, has_outside));
        }
        Results { format: FORMAT.to_owned(), version: VERSION, host, method, runs, rows }
    }

    /// Reads `text`. The version is checked first, so that a newer file is refused by its version, not by its new members.
    pub fn from_json(text: &str) -> Result<Results, ResultsError> {
        let header: Header = serde_json::from_str(text)?;
        if header.format != FORMAT {
            return Err(ResultsError::OtherFormat(header.format));
        }
        if !(1..=u64::from(VERSION)).contains(&header.version) {
            return Err(ResultsError::UnknownVersion(header.version));
        }
        let mut results: Results = serde_json::from_str(text)?;
        results.version = VERSION;
        results.check()?;
        Ok(results)
    }

    /// The text of `results.json`, indented, with a newline at its end.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The row of an adapter × test × server.
    pub fn row(&self, adapter: &str, test: Test, server: Server) -> Option<&Row> {
        self.rows.iter().find(|row| row.adapter == adapter && row.test == test && row.server == server)
    }

    /// The adapters, each once, in the order of the rows.
    pub fn adapters(&self) -> Vec<&str> {
        let mut adapters = Vec::new();
        for row in &self.rows {
            if !adapters.contains(&row.adapter.as_str()) {
                adapters.push(row.adapter.as_str());
            }
        }
        adapters
    }

    /// The servers, each once, Nicety first.
    pub fn servers(&self) -> Vec<Server> {
        Server::ALL.into_iter().filter(|server| self.rows.iter().any(|row| row.server == *server)).collect()
    }

    /// The servers to compare with QEMU. Empty if QEMU was not measured.
    pub fn compared(&self) -> Vec<Server> {
        let of_qemu = |row: &Row| row.server == Server::Qemu && row.median.is_some();
        let ours = self.servers().into_iter().filter(|server| *server != Server::Qemu);
        if self.rows.iter().any(of_qemu) { ours.collect() } else { Vec::new() }
    }

    /// The driver of an adapter under this server, where it differs from that of [`Method::guests`].
    pub fn driver(&self, adapter: &str, server: Server) -> Option<Driver> {
        self.rows.iter().find(|row| row.adapter == adapter && row.server == server)?.driver
    }

    /// An adapter's name as a heading of its figures. The driver follows where it differs from that of [`Method::guests`].
    pub fn heading(&self, adapter: &str) -> String {
        let driver = self.servers().into_iter().find_map(|server| self.driver(adapter, server));
        driver.map_or(adapter.to_owned(), |driver| format!("{adapter}, {}", driver.title()))
    }

    /// Whether this row is ranked with the others. A row with another driver is not, because the difference is also the drivers'.
    pub fn is_ranked(&self, row: &Row) -> bool {
        row.driver.is_none() || self.rows.iter().all(|row| row.driver.is_some() || row.median.is_none())
    }

    /// The tests that have a row, in the order of tables.
    pub fn tests(&self) -> Vec<Test> {
        Test::ALL.into_iter().filter(|test| self.rows.iter().any(|row| row.test == *test)).collect()
    }

    fn check(&self) -> Result<(), ResultsError> {
        for run in &self.runs {
            let rising = |latency: &Vec<Percentile>| {
                latency
                    .iter()
                    .all(|known| (0.0..=100.0).contains(&known.percent) && known.us.is_finite() && known.us >= 0.0)
                    && latency.is_sorted_by(|a, b| a.percent < b.percent && a.us <= b.us)
            };
            if run.series.as_ref().is_some_and(|series| !series.is_sound()) || !run.latency.as_ref().is_none_or(rising)
            {
                return Err(ResultsError::Contradiction(format!(
                    "run {} has a series or latencies that do not rise, or are no numbers",
                    run.run
                )));
            }
        }
        let mut seen = HashSet::new();
        for row in &self.rows {
            let name = || format!("{} × {} × {}", row.adapter, row.test.title(), row.server);
            if !seen.insert((row.adapter.as_str(), row.test, row.server)) {
                return Err(ResultsError::Contradiction(format!("{} has two rows", name())));
            }
            if row.unit != row.test.unit() || row.direction != row.test.direction() {
                return Err(ResultsError::Contradiction(format!(
                    "{} has another unit or direction than its test",
                    name()
                )));
            }
            let values: Vec<f64> = row.samples.iter().map(|sample| sample.value).collect();
            if statistics::median(&values).is_some() != row.median.is_some() {
                return Err(ResultsError::Contradiction(format!(
                    "{} has a median without samples or samples without",
                    name()
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod sample;

#[cfg(test)]
#[path = "results_test.rs"]
pub(crate) mod tests;
