//! The method of a comparison: what a person may choose, who is compared, under which load, and the plan of runs (`planning.rs` makes it).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Who drives the adapters.
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

/// Who serves an adapter to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// This project, all guests on its switch.
    Nicety,
    /// This project, a switch for each guest and a stream socket between them: the link that QEMU's models have in the same
    /// comparison.
    NicetyStream,
    /// QEMU's own model of the adapter.
    Qemu,
}

impl Server {
    /// All servers, in the order of tables.
    pub const ALL: [Server; 3] = [Server::Nicety, Server::NicetyStream, Server::Qemu];

    /// The server's name as a reader knows it.
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

/// What drives an adapter in its guest, where it is not what [`Guests`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Driver {
    /// Our own driver in the user space of a real guest (`nicety-uio`): no kernel has one.
    UserSpace,
}

impl Driver {
    /// The name in `results.json` and `results.csv`.
    pub fn name(self) -> &'static str {
        match self {
            Driver::UserSpace => "user-space",
        }
    }

    /// The mark of its rows.
    pub fn title(self) -> &'static str {
        match self {
            Driver::UserSpace => "user-space driver",
        }
    }
}

/// What is compared: an adapter as somebody serves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contestant {
    /// The adapter's name in the registry, such as `e1000`.
    pub adapter: String,
    /// Who serves it.
    pub server: Server,
    /// What drives it; none: what the guests say.
    pub driver: Option<Driver>,
}

impl Contestant {
    /// `adapter` served by `server`.
    pub fn new(adapter: impl Into<String>, server: Server) -> Contestant {
        Contestant { adapter: adapter.into(), server, driver: None }
    }

    /// The same, driven from the guests' user space.
    #[must_use]
    pub fn by_user_space(self) -> Contestant {
        Contestant { driver: Some(Driver::UserSpace), ..self }
    }
}

/// What the guests do during a run. One run gives several figures ([`crate::results::Test`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// Bulk TCP from the guest to a peer outside the switch.
    BulkTransmit,
    /// Bulk TCP from a peer outside the switch to the guest.
    BulkReceive,
    /// Bulk TCP from one guest to another, both with the same adapter.
    GuestToGuest,
    /// One byte there and one back, one transaction at a time.
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

/// How finely contestants alternate within a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each run is followed by another contestant's run of the same load.
    EveryRun,
    /// A contestant does all its loads, then the next one does: for guests that take long to start.
    EveryContestant,
}

/// How the guests' doorbells reach the daemon: the words of a host file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doorbells {
    /// Each write is a message.
    Trapped,
    /// Writes go to a page that the daemon looks at.
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

/// What a person chooses on the command line of `compare`.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// `--adapters a,b`; empty means all.
    pub adapters: Vec<String>,
    /// `--seconds N`: how long a run lasts. None: as long as fits the time that `compare` promises.
    pub seconds: Option<f64>,
    /// `--repeat N`: rounds. None: 7, or 3 with `quick`.
    pub repeat: Option<u32>,
    /// `--quick`: three rounds of half a second (of a second with real guests), for a first look without intervals.
    pub quick: bool,
    /// `--doorbells`. None: each adapter's default.
    pub doorbells: Option<Doorbells>,
    /// `--report DIR`.
    pub report: PathBuf,
    /// `--seed N`: the order of runs follows from it.
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

/// Why no plan can be made of the options.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// `--adapters` names one that this bench does not have.
    #[error("--adapters: there is no adapter \"{given}\" here{suggestion}; allowed are all, {allowed}")]
    UnknownAdapter {
        /// What was given.
        given: String,
        /// What may be given, joined by commas.
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
    /// What was chosen is all left out.
    #[error("--adapters: {0}")]
    LeftOut(String),
    /// The bench has nothing to run.
    #[error("there is nothing to compare: no adapter can be served here")]
    Nothing,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The round, counted from 0: runs of one round are compared with each other.
    pub round: u32,
    /// Whose run it is.
    pub contestant: Contestant,
    /// What the guests do.
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
    /// Who drives the adapters.
    pub guests: Guests,
    /// The contestants, in the bench's order: the order of rows in table and report.
    pub contestants: Vec<Contestant>,
    /// Which adapters were chosen and cannot be run here, and why: a sentence each.
    pub left_out: Vec<String>,
    /// The loads of each round.
    pub loads: Vec<Load>,
    /// The runs.
    pub items: Vec<Item>,
    /// How long each run lasts.
    pub duration: Duration,
    /// What a run takes beside its duration, by the bench's reckoning.
    pub overhead: Duration,
    /// How many rounds.
    pub repeat: u32,
    /// The seed of the order.
    pub seed: u64,
    /// How contestants alternate.
    pub order: Order,
    /// How doorbells reach our daemons; none: as each adapter's default is.
    pub doorbells: Option<Doorbells>,
}
