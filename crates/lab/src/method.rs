//! The method of a comparison: a person's options, the contestants, the loads, and the plan of runs (made by `planning.rs`).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The kind of guests that drive the adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guests {
    /// Our own guest drivers with smoltcp, in processes of their own.
    Embedded,
    /// Unmodified Linux drivers with netperf, in QEMU.
    Qemu,
    /// Unmodified Linux drivers with netperf, in user-mode kernels.
    Uml,
}

impl fmt::Display for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Guests::Embedded => "embedded",
            Guests::Qemu => "qemu",
            Guests::Uml => "uml",
        })
    }
}

/// A person's own guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Its disk image: raw or qcow2, booted by a BIOS.
    pub image: PathBuf,
    /// The user who is let in by ssh.
    pub user: String,
    /// The private key. None: ssh's own choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

/// The server of a guest's adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// This project: all guests on one switch.
    Nicety,
    /// This project: a switch for each guest and a stream socket between them. QEMU's models have the same link in the same comparison.
    NicetyStream,
    /// QEMU's own model of the adapter.
    Qemu,
}

impl Server {
    /// All servers, in the order of tables.
    pub const ALL: [Server; 3] = [Server::Nicety, Server::NicetyStream, Server::Qemu];

    /// Name of the server for readers.
    pub fn title(self) -> &'static str {
        match self {
            Server::Nicety => "Nicety",
            Server::NicetyStream => "Nicety, stream",
            Server::Qemu => "QEMU",
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Server::Nicety => "nicety",
            Server::NicetyStream => "nicety-stream",
            Server::Qemu => "qemu",
        })
    }
}

/// The driver of an adapter in its guest, where it differs from that of [`Guests`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Our own driver in the user space of a real guest (`nicety-uio`), because no kernel has one.
    UserSpace,
}

impl Driver {
    /// The name in `results.json` and `results.csv`.
    pub fn name(self) -> &'static str {
        match self {
            Driver::UserSpace => "user-space",
        }
    }

    /// Mark of the rows of this driver.
    pub fn title(self) -> &'static str {
        match self {
            Driver::UserSpace => "user-space driver",
        }
    }
}

/// A contestant: an adapter with its server and driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contestant {
    /// The adapter's name in the registry, such as `e1000`.
    pub adapter: String,
    /// The server of the adapter.
    pub server: Server,
    /// Driver of the adapter. None: that of the guests.
    pub driver: Option<Driver>,
}

impl Contestant {
    /// `adapter` served by `server`.
    pub fn new(adapter: impl Into<String>, server: Server) -> Contestant {
        Contestant { adapter: adapter.into(), server, driver: None }
    }

    /// The same contestant, driven from the guests' user space.
    #[must_use]
    pub fn by_user_space(self) -> Contestant {
        Contestant { driver: Some(Driver::UserSpace), ..self }
    }
}

/// The guests' activity during a run. One run gives several figures ([`crate::results::Test`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Bulk TCP from the guest to a peer outside the switch.
    BulkTransmit,
    /// Bulk TCP from a peer outside the switch to the guest.
    BulkReceive,
    /// Bulk TCP from one guest to another, both with the same adapter.
    GuestToGuest,
    /// One byte in each direction, one transaction at a time.
    RequestResponse,
}

impl Load {
    /// All loads, in the order in which a round runs them.
    pub const ALL: [Load; 4] = [Load::BulkTransmit, Load::BulkReceive, Load::GuestToGuest, Load::RequestResponse];
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Load::BulkTransmit => "bulk transmit",
            Load::BulkReceive => "bulk receive",
            Load::GuestToGuest => "guest to guest",
            Load::RequestResponse => "request-response",
        })
    }
}

/// The granularity at which contestants alternate within a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// After each run, another contestant runs the same load.
    EveryRun,
    /// A contestant runs all its loads, then the next one does. For guests that start slowly.
    EveryContestant,
}

/// Path of the guests' doorbells to the daemon, named as in a host file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbells {
    /// Each write is a message.
    Trapped,
    /// Writes go to a page that the daemon polls.
    Mapped,
}

impl fmt::Display for Doorbells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Doorbells::Trapped => "trapped",
            Doorbells::Mapped => "mapped",
        })
    }
}

/// Options from the command line of `compare`.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// `--adapters a,b`; empty means all.
    pub adapters: Vec<String>,
    /// `--seconds N`: duration of a run. None: as long as fits into the time that `compare` promises.
    pub seconds: Option<f64>,
    /// `--repeat N`: rounds. None: 7, or 3 with `quick`.
    pub repeat: Option<u32>,
    /// `--quick`: three rounds of half a second at most (a full second with real guests), for a first look without intervals.
    pub quick: bool,
    /// `--doorbells`. None: each adapter's default.
    pub doorbells: Option<Doorbells>,
    /// `--report DIR`.
    pub report: PathBuf,
    /// `--seed N`: seed of the order of runs.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            adapters: Vec::new(),
            seconds: None,
            repeat: None,
            quick: false,
            doorbells: None,
            report: PathBuf::from("nicety-report"),
            seed: 1,
        }
    }
}

/// The reason why the options give no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// `--adapters` names an adapter that this bench does not have.
    #[error("--adapters: there is no adapter \"{given}\" here{suggestion}; allowed are all, {allowed}")]
    UnknownAdapter {
        /// The given name.
        given: String,
        /// The allowed names, joined by commas.
        allowed: String,
        /// `; did you mean "e1000"?`, or nothing.
        suggestion: String,
    },
    /// `--seconds` out of range.
    #[error("--seconds: a run may last from 0.1 to 3600 seconds")]
    Seconds,
    /// `--repeat` out of range.
    #[error("--repeat: from 1 to 1000 rounds are possible")]
    Repeat,
    /// Every chosen adapter is left out.
    #[error("--adapters: {0}")]
    LeftOut(String),
    /// The bench has nothing to run.
    #[error("there is nothing to compare: no adapter can be served here")]
    Nothing,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The round, counted from 0. Runs of one round are compared with each other.
    pub round: u32,
    /// The contestant of this run.
    pub contestant: Contestant,
    /// The guests' activity.
    pub load: Load,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contestant { adapter, server, .. } = &self.contestant;
        write!(f, "round {}: {adapter} by {server}, {}", self.round.saturating_add(1), self.load)
    }
}

/// All runs in their order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The kind of guests that drive the adapters.
    pub guests: Guests,
    /// The contestants in the bench's order, which is also the order of rows in table and report.
    pub contestants: Vec<Contestant>,
    /// Adapters that were chosen and cannot run here, each with the reason: a sentence each.
    pub left_out: Vec<String>,
    /// Chosen adapters that are measured, and that one of the servers cannot serve, each with the reason: a sentence each.
    pub without: Vec<String>,
    /// The loads of each round.
    pub loads: Vec<Load>,
    /// The runs.
    pub items: Vec<Item>,
    /// Duration of each run.
    pub duration: Duration,
    /// Time of a run beside its duration, as the bench estimates it.
    pub overhead: Duration,
    /// Number of rounds.
    pub repeat: u32,
    /// The seed of the order.
    pub seed: u64,
    /// The alternation of contestants.
    pub order: Order,
    /// Path of doorbells to our daemons. None: each adapter's default.
    pub doorbells: Option<Doorbells>,
}
