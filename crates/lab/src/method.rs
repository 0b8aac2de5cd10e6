//! The method of a comparison: what a person may choose, and the alternated order of runs that follows from it.
//!
//! Runs of different contestants alternate, so that what disturbs the host for a while disturbs all of them
//! (A. Georges, D. Buytaert, L. Eeckhout, *Statistically Rigorous Java Performance Evaluation*, 2007, and R. Jain, *The Art
//! of Computer Systems Performance Analysis*, part IV).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bench::Bench;
use crate::statistics::RUNS_FOR_INTERVAL;

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

/// What is compared: an adapter as somebody serves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contestant {
    /// The adapter's name in the registry, such as `e1000`.
    pub adapter: String,
    /// Who serves it.
    pub server: Server,
}

impl Contestant {
    /// `adapter` served by `server`.
    pub fn new(adapter: impl Into<String>, server: Server) -> Contestant {
        Contestant { adapter: adapter.into(), server }
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
        let Contestant { adapter, server } = &self.contestant;
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
}

impl Options {
    /// Finds mistakes that do not depend on the guests, before these are prepared. `adapters` are all there are.
    pub fn check(&self, adapters: &[&str]) -> Result<(), PlanError> {
        known(&self.adapters, adapters)?;
        if self.repeat.is_some_and(|repeat| !(1..=1000).contains(&repeat)) {
            return Err(PlanError::Repeat);
        }
        if self.seconds.is_some_and(|seconds| !(0.1..=3600.0).contains(&seconds)) {
            return Err(PlanError::Seconds);
        }
        Ok(())
    }
}

impl Plan {
    /// The plan of `options` for `bench`. The same options and bench give the same plan.
    pub fn new(options: &Options, bench: &dyn Bench) -> Result<Plan, PlanError> {
        let all = bench.contestants();
        options.check(&adapters_of(&all))?;
        let contestants = chosen(&options.adapters, all);
        let loads = bench.loads();
        if contestants.is_empty() || loads.is_empty() {
            return Err(PlanError::Nothing);
        }
        let repeat = options.repeat.unwrap_or(if options.quick { 3 } else { RUNS_FOR_INTERVAL as u32 });
        let runs = contestants.len().saturating_mul(loads.len()).saturating_mul(repeat as usize);
        let duration = match options.seconds {
            Some(seconds) => Duration::from_secs_f64(seconds),
            // netperf counts whole seconds.
            None if options.quick && bench.guests() != Guests::Embedded => Duration::from_secs(1),
            None if options.quick => Duration::from_millis(500),
            None => fitting_duration(bench.guests(), runs, bench.overhead()),
        };
        let (order, seed) = (bench.order(), options.seed);
        let items = alternate(&contestants, &loads, repeat, order, seed);
        let (guests, overhead) = (bench.guests(), bench.overhead());
        Ok(Plan { guests, contestants, loads, items, duration, overhead, repeat, seed, order })
    }

    /// How long all runs will take, guests' preparation excepted.
    pub fn estimate(&self) -> Duration {
        let runs = u32::try_from(self.items.len()).unwrap_or(u32::MAX);
        self.duration.saturating_add(self.overhead).saturating_mul(runs)
    }

    /// What the person should know before the runs begin, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if (self.repeat as usize) < RUNS_FOR_INTERVAL {
            let rounds = if self.repeat == 1 { "1 round".to_owned() } else { format!("{} rounds", self.repeat) };
            warnings.push(format!("{rounds}: fewer than {RUNS_FOR_INTERVAL} runs give no 95 % interval"));
        }
        warnings
    }
}

fn adapters_of(contestants: &[Contestant]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for contestant in contestants {
        if !names.contains(&contestant.adapter.as_str()) {
            names.push(&contestant.adapter);
        }
    }
    names
}

/// Whether each of `adapters` is one of these names, or all.
fn known(adapters: &[String], names: &[&str]) -> Result<(), PlanError> {
    for given in adapters {
        if given == "all" || names.contains(&given.as_str()) {
            continue;
        }
        let nearest = names.iter().map(|name| (strsim::damerau_levenshtein(given, name), name)).min();
        let suggestion = match nearest {
            Some((distance, name)) if distance <= 3 => format!("; did you mean \"{name}\"?"),
            _ => String::new(),
        };
        return Err(PlanError::UnknownAdapter { given: given.clone(), allowed: names.join(", "), suggestion });
    }
    Ok(())
}

/// The contestants whose adapter is in `adapters`, in the bench's order.
fn chosen(adapters: &[String], all: Vec<Contestant>) -> Vec<Contestant> {
    if adapters.is_empty() || adapters.iter().any(|name| name == "all") {
        return all;
    }
    all.into_iter().filter(|contestant| adapters.contains(&contestant.adapter)).collect()
}

/// The length of a run that fits all of them into the time that `compare` promises: 3 minutes with embedded guests, 5 with
/// user-mode ones, 20 with those in QEMU, less a reserve for preparing guests; within what a run needs to say anything and profits
/// from. netperf, in real guests, counts whole seconds.
fn fitting_duration(guests: Guests, runs: usize, overhead: Duration) -> Duration {
    let (total_s, least_s, most_s) = match guests {
        Guests::Embedded => (150.0, 0.5, 1.5),
        Guests::Uml => (270.0, 1.0, 3.0),
        Guests::Qemu => (1_020.0, 2.0, 5.0),
    };
    let each_s: f64 = total_s / runs.max(1) as f64 - overhead.as_secs_f64();
    let each_s = each_s.clamp(least_s, most_s);
    // In tenths, so that the command that repeats the run can say it.
    let fits = if guests == Guests::Embedded { (each_s * 10.0).floor() / 10.0 } else { each_s.floor() };
    Duration::from_secs_f64(fits)
}

/// Round-robin with seeded rotation: every block of as many rounds as there are contestants begins with a fresh shuffle, and
/// each round of the block starts one contestant later, so that each of them has each place equally often.
fn alternate(contestants: &[Contestant], loads: &[Load], repeat: u32, order: Order, seed: u64) -> Vec<Item> {
    let mut random = SplitMix::new(seed);
    let mut turn: Vec<&Contestant> = contestants.iter().collect();
    let mut items = Vec::new();
    for round in 0..repeat {
        if (round as usize).is_multiple_of(contestants.len()) {
            random.shuffle(&mut turn);
        } else {
            turn.rotate_left(1);
        }
        let item = |contestant: &Contestant, load| Item { round, contestant: contestant.clone(), load };
        match order {
            Order::EveryRun => items.extend(loads.iter().flat_map(|&load| turn.iter().map(move |c| item(c, load)))),
            Order::EveryContestant => {
                items.extend(turn.iter().flat_map(|c| loads.iter().map(move |&load| item(c, load))))
            }
        }
    }
    items
}

/// A small seeded generator (SplitMix64: G. Steele, D. Lea, C. Flood, *Fast Splittable Pseudorandom Number Generators*,
/// 2014), so that an order of runs can be had again from its seed on any machine.
#[derive(Debug, Clone)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    /// The generator that begins at `seed`.
    pub fn new(seed: u64) -> SplitMix {
        SplitMix { state: seed }
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts `list` in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, (self.draw() % (last as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
#[path = "method_test.rs"]
mod tests;
