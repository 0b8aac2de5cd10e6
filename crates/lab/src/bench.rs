//! The seam by which guests plug into the lab: a bench runs one [`Item`] at a time and says what it measured.
//!
//! A bench gives raw counts; all arithmetic on them is the lab's ([`crate::figures`]).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::method::{Contestant, Guests, Item, Load, Order, Plan};
use crate::progress::Progress;
use crate::series::Series;

/// Guests that can be put under load: the embedded ones, or real ones in QEMU.
///
/// A bench that is dropped leaves no process, socket or file behind.
pub trait Bench {
    /// Who drives the adapters.
    fn guests(&self) -> Guests;

    /// All that can be compared here, in the order in which tables show them.
    fn contestants(&self) -> Vec<Contestant>;

    /// Who is missing among them, and why: a row of the table without figures, and its footnote.
    fn absent(&self) -> Vec<(Contestant, String)> {
        Vec::new()
    }

    /// The loads of a round.
    fn loads(&self) -> Vec<Load> {
        Load::ALL.to_vec()
    }

    /// How contestants alternate within a round.
    fn order(&self) -> Order {
        Order::EveryRun
    }

    /// What a run takes beside its duration: starting, connecting, settling.
    fn overhead(&self) -> Duration;

    /// What has to be done once before the first run of `plan`: laying images, booting guests.
    fn prepare(&mut self, plan: &Plan, progress: &mut Progress, cancel: &AtomicBool) -> Result<(), BenchError> {
        let _ = (plan, progress, cancel);
        Ok(())
    }

    /// One run of `duration`. Returns [`BenchError::Cancelled`] within half a second of `cancel` becoming true, and an error
    /// of its own, never an endless wait, when a guest stops answering.
    fn run(&mut self, item: &Item, duration: Duration, cancel: &AtomicBool) -> Result<Measured, BenchError>;

    /// Facts about the guests for the report, a sentence each: kernel, QEMU's version, what CPU time is charged to whom.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What one run measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What was carried.
    pub outcome: Outcome,
    /// What it cost.
    pub usage: Usage,
    /// What was carried over time, in the load's unit; none where unknown.
    pub series: Option<Series>,
}

/// What a run carried.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Of a bulk load.
    Bulk {
        /// Payload that arrived at the receiving application.
        payload_bytes: u64,
        /// The time in which it arrived.
        elapsed: Duration,
    },
    /// Of request-response.
    Transactions {
        /// Answers received.
        count: u64,
        /// The time in which they were.
        elapsed: Duration,
        /// How long single transactions took.
        latency: Latency,
    },
}

/// How long transactions took, from request sent to answer received.
#[derive(Debug, Clone, PartialEq)]
pub enum Latency {
    /// Every transaction, in nanoseconds: percentiles are exact.
    EveryNs(Vec<u64>),
    /// The percentiles that another program (netperf) reports, rising.
    Reported(Vec<Percentile>),
}

/// A percentile of latencies: so many percent of the transactions took no longer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    /// From 0, the shortest of all, to 100, the longest.
    pub percent: f64,
    /// The latency in microseconds.
    pub us: f64,
}

/// What a run cost. What is unknown is `None`, never zero.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// Frames on the wire, both directions, after segmentation.
    pub frames: Option<u64>,
    /// Register reads that reached the server.
    pub register_reads: Option<u64>,
    /// Register writes that reached the server, doorbells among them.
    pub register_writes: Option<u64>,
    /// Interrupts that the server raised.
    pub interrupts: Option<u64>,
    /// CPU time in seconds, of those whom the bench's notes name: the daemon alone for embedded guests, whose own work is
    /// not an adapter's; server and guests together for real ones, since QEMU serves from within the guest's process.
    pub cpu_seconds: Option<f64>,
    /// The part of it that was the guests' own work, where known.
    pub guest_cpu_seconds: Option<f64>,
}

/// Why a run measured nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BenchError {
    /// `cancel` was set.
    #[error("stopped")]
    Cancelled,
    /// This contestant cannot do this load at all; the reason becomes the table's footnote.
    #[error("{0}")]
    Impossible(String),
    /// This run failed; another try may do better.
    #[error("{0}")]
    Failed(String),
    /// Nothing can be measured any more: what happened, and what to do.
    #[error("{0}")]
    Fatal(String),
}

#[cfg(test)]
pub(crate) mod fake;
