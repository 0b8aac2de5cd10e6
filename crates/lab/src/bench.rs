//! The interface between guests and the lab: a bench runs one [`Item`] at a time and returns its measurements.
//!
//! A bench returns raw counts; all arithmetic on them is the lab's ([`crate::figures`]).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::method::{Contestant, Guests, Item, Load, Order, Plan};
use crate::progress::Progress;
use crate::series::Series;

/// Guests to put under load: the embedded ones, or real ones in QEMU.
///
/// A bench leaves no process, socket or file behind when it is dropped.
pub trait Bench {
    /// The kind of guests that drive the adapters.
    fn guests(&self) -> Guests;

    /// All contestants of this bench, in the order of the tables.
    fn contestants(&self) -> Vec<Contestant>;

    /// Contestants that this bench cannot run, each with the reason. Each is a table row without figures, and a footnote.
    fn absent(&self) -> Vec<(Contestant, String)> {
        Vec::new()
    }

    /// The loads of a round.
    fn loads(&self) -> Vec<Load> {
        Load::ALL.to_vec()
    }

    /// The order in which contestants alternate within a round.
    fn order(&self) -> Order {
        Order::EveryRun
    }

    /// Time of a run beside its duration: starting, connecting, settling.
    fn overhead(&self) -> Duration;

    /// Does the work needed once before the first run of `plan`: unpacking images, booting guests.
    fn prepare(&mut self, plan: &Plan, progress: &mut Progress, cancel: &AtomicBool) -> Result<(), BenchError> {
        let _ = (plan, progress, cancel);
        Ok(())
    }

    /// One run of `duration`. Returns [`BenchError::Cancelled`] within half a second of `cancel` becoming true. When a guest stops
    /// answering, returns an error of its own and never waits endlessly.
    fn run(&mut self, item: &Item, duration: Duration, cancel: &AtomicBool) -> Result<Measured, BenchError>;

    /// Facts about the guests for the report, a sentence each: kernel, QEMU's version, which processes' CPU time is counted.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Measurements of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Result of the load.
    pub outcome: Outcome,
    /// Cost of the run.
    pub usage: Usage,
    /// Rate over time, in the load's unit; none where unknown.
    pub series: Option<Series>,
}

/// Result of a run's load.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Result of a bulk load.
    Bulk {
        /// Payload received by the receiving application.
        payload_bytes: u64,
        /// Time over which it was received.
        elapsed: Duration,
    },
    /// Result of request-response.
    Transactions {
        /// Answers received.
        count: u64,
        /// Time over which they were received.
        elapsed: Duration,
        /// Durations of single transactions.
        latency: Latency,
    },
}

/// Durations of transactions, from request sent to answer received.
#[derive(Debug, Clone, PartialEq)]
pub enum Latency {
    /// Duration of every transaction in nanoseconds: percentiles are exact.
    EveryNs(Vec<u64>),
    /// Percentiles reported by another program (netperf), in rising order.
    Reported(Vec<Percentile>),
}

/// A percentile of latencies: `percent` of the transactions took at most `us`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// The percentile, 0 (the shortest transaction) to 100 (the longest).
    pub percent: f64,
    /// The latency in microseconds.
    pub us: f64,
}

/// Cost of a run. An unknown value is `None`, never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Frames on the wire, both directions, after segmentation.
    pub frames: Option<u64>,
    /// Register reads that reached the server.
    pub register_reads: Option<u64>,
    /// Register writes that reached the server, including doorbells.
    pub register_writes: Option<u64>,
    /// Interrupts that the server raised.
    pub interrupts: Option<u64>,
    /// CPU time in seconds of the processes that the bench's notes name. For embedded guests it is the daemon alone, since a guest's own
    /// work is not an adapter's. For real guests it is server and guests together, since QEMU serves from within the guest's process.
    pub cpu_seconds: Option<f64>,
    /// The share of the guests' own work in it, where known.
    pub guest_cpu_seconds: Option<f64>,
    /// CPU time in seconds of the VMMs with their guests, or of embedded guests.
    pub vmm_cpu_seconds: Option<f64>,
    /// CPU time in seconds of our daemons. None where QEMU serves.
    pub daemon_cpu_seconds: Option<f64>,
    /// Percentage of the processors' time that the hypervisor gave to others meanwhile.
    pub steal_percent: Option<f64>,
}

/// The reason a run has no measurement.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BenchError {
    /// `cancel` was set.
    #[error("stopped")]
    Cancelled,
    /// This contestant cannot run this load at all. The reason becomes the table's footnote.
    #[error("{0}")]
    Impossible(String),
    /// This run failed; a retry may succeed.
    #[error("{0}")]
    Failed(String),
    /// No further measurement is possible. The text gives the cause and the remedy.
    #[error("{0}")]
    Fatal(String),
}

#[cfg(test)]
pub(crate) mod fake;
