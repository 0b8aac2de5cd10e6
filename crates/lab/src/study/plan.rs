//! The plan of a study: subjects, loads, and the runs in their order, from a person's options.
//!
//! In each round every subject has its turn, in an order mixed by the seed, so that a disturbance of the host meets all of them. A
//! subject boots its guests once a round and takes all loads one after another.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::method::Guests;
use crate::methods::{Length, Load, Method, NATIVE, Subject};
use crate::number;
use crate::planning::SplitMix;
use crate::real::own::Own;
use crate::statistics::RUNS_FOR_INTERVAL;

/// Rounds of a study that stops early (`--confidence`), if nothing says otherwise.
const ROUNDS_WITH_CONFIDENCE: u32 = 30;

/// A person's options. None means that nothing was said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// `--guests`.
    pub guests: Option<Guests>,
    /// `--adapters a,b`; empty means the method's own choice.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// `--quick` or `--full`.
    pub length: Option<Length>,
    /// `--seconds N`: duration of the main load's runs.
    pub seconds: Option<u32>,
    /// `--repeat N`: rounds, at most as many with `--confidence`.
    pub repeat: Option<u32>,
    /// `--confidence 5%`: stop when each interval reaches at most this far from its median to either side, as a fraction.
    pub confidence: Option<f64>,
    /// `--seed N`.
    pub seed: Option<u64>,
    /// `--image FILE --ssh USER --key FILE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Own>,
}

/// The reason why the options give no plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// `--guests` names a kind that this method does not run under.
    #[error("--guests {given}: {method} runs under {known}")]
    Guests {
        /// The given kind.
        given: Guests,
        /// The method.
        method: &'static str,
        /// The possible kinds.
        known: String,
    },
    /// `--image` with a method that has none.
    #[error("--image: {method} has no guests of one's own; kvm-scp has")]
    Image {
        /// The method.
        method: &'static str,
    },
    /// `--image` with another kind of guests.
    #[error("--image: an image runs in QEMU, not under --guests {given}")]
    ImageIn {
        /// The given kind.
        given: Guests,
    },
    /// `--adapters` names something else.
    #[error("--adapters: {method} has no \"{given}\"{suggestion}; there are {known}")]
    Adapter {
        /// The given name.
        given: String,
        /// The method.
        method: &'static str,
        /// `; did you mean "e1000"?`, or nothing.
        suggestion: String,
        /// The possible names.
        known: String,
    },
    /// `--seconds` out of range.
    #[error("--seconds: a run may last from 1 to 3600 whole seconds")]
    Seconds,
    /// `--repeat` out of range.
    #[error("--repeat: from 1 to 1000 rounds are possible")]
    Repeat,
    /// `--confidence` out of range.
    #[error("--confidence: from 0.1% to 50% are possible")]
    Confidence,
    /// `--confidence` with too few rounds for an interval.
    #[error(
        "--confidence needs intervals, and these need at least {RUNS_FOR_INTERVAL} rounds: leave --quick and --repeat out"
    )]
    NoInterval,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// The round, counted from 0.
    pub round: u32,
    /// The row of the tables.
    pub subject: Subject,
    /// Name of the load.
    pub load: String,
}

/// All runs of a study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Name of the method.
    pub method: String,
    /// The kind of guests.
    pub guests: Guests,
    /// How long it takes.
    pub length: Length,
    /// The rows of the tables, in their order.
    pub subjects: Vec<Subject>,
    /// The loads of a round.
    pub loads: Vec<Load>,
    /// Rounds; with `confidence` at most as many.
    pub repeat: u32,
    /// See [`Options::confidence`].
    pub confidence: Option<f64>,
    /// Seed of the order.
    pub seed: u64,
    /// Time of a run beside its duration, in seconds, as the method estimates it.
    pub overhead_seconds: f64,
    /// A person's own image as the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Own>,
}

impl Plan {
    /// The plan of `options` for `method`. The same options give the same plan.
    ///
    /// # Errors
    /// The options do not fit the method or each other.
    pub fn new(method: &dyn Method, options: &Options) -> Result<Plan, PlanError> {
        let about = method.about();
        let own = options.own.as_ref().map(|_| Guests::Qemu);
        if options.own.as_ref().is_some_and(|own| method.in_image(Vec::new(), own).is_none()) {
            return Err(PlanError::Image { method: about.name });
        }
        if let (Some(_), Some(given)) = (own, options.guests.filter(|given| *given != Guests::Qemu)) {
            return Err(PlanError::ImageIn { given });
        }
        let guests = options.guests.or(own).or(about.guests.first().copied()).unwrap_or(Guests::Embedded);
        if !about.guests.contains(&guests) {
            let known = about.guests.iter().map(Guests::to_string).collect::<Vec<_>>().join(", ");
            return Err(PlanError::Guests { given: guests, method: about.name, known });
        }
        if options.seconds.is_some_and(|seconds| !(1..=3600).contains(&seconds)) {
            return Err(PlanError::Seconds);
        }
        if options.repeat.is_some_and(|repeat| !(1..=1000).contains(&repeat)) {
            return Err(PlanError::Repeat);
        }
        if options.confidence.is_some_and(|share| !(0.001..=0.5).contains(&share)) {
            return Err(PlanError::Confidence);
        }
        let length = options.length.unwrap_or_default();
        let repeat = options.repeat.unwrap_or(match (length, options.confidence) {
            (Length::Quick, _) => 3,
            (_, Some(_)) => ROUNDS_WITH_CONFIDENCE,
            (Length::Usual, None) => RUNS_FOR_INTERVAL as u32,
            (Length::Full, None) => 10,
        });
        if options.confidence.is_some() && (repeat as usize) < RUNS_FOR_INTERVAL {
            return Err(PlanError::NoInterval);
        }
        let mut subjects = chosen(method, guests, length, &options.adapters)?;
        let mut loads = method.loads(guests, length, options.seconds);
        loads.retain(|load| method.keeps(load, &names(&subjects)));
        if let Some(own) = &options.own {
            loads = method.in_image(loads, own).unwrap_or_default();
            // Its system has the vendor's driver, or none.
            subjects.iter_mut().for_each(|subject| subject.driver = None);
        }
        Ok(Plan {
            method: about.name.to_owned(),
            guests,
            length,
            subjects,
            loads,
            repeat,
            confidence: options.confidence,
            seed: options.seed.unwrap_or(1),
            overhead_seconds: about.overhead_seconds,
            own: options.own.clone(),
        })
    }

    /// All runs in their order.
    pub fn items(&self) -> Vec<Item> {
        let mut random = SplitMix::new(self.seed);
        let mut turn: Vec<&Subject> = self.subjects.iter().collect();
        let mut items = Vec::new();
        for round in 0..self.repeat {
            random.shuffle(&mut turn);
            for subject in &turn {
                let of = |load: &Load| Item { round, subject: (*subject).clone(), load: load.name.clone() };
                items.extend(self.loads.iter().map(of));
            }
        }
        items
    }

    /// The load of this name.
    pub fn load(&self, name: &str) -> Option<&Load> {
        self.loads.iter().find(|load| load.name == name)
    }

    /// The time that all runs take, guests' preparation not included.
    pub fn estimate(&self) -> Duration {
        let measured: f64 = self.loads.iter().map(|load| f64::from(load.seconds) + self.overhead_seconds).sum();
        Duration::from_secs_f64(measured * self.subjects.len() as f64 * f64::from(self.repeat))
    }

    /// The share of [`Plan::estimate`] that so many runs take.
    pub fn estimate_of(&self, runs: usize) -> Duration {
        self.estimate().mul_f64(runs as f64 / self.items().len().max(1) as f64)
    }

    /// The number of runs and their time, for the person who waits: a sentence.
    pub fn announcement(&self) -> String {
        let runs = self.subjects.len() * self.loads.len() * self.repeat as usize;
        let most = if self.confidence.is_some() { "at most " } else { "" };
        format!("{most}{runs} runs, which take about {} once the guests have started", number::span(self.estimate()))
    }

    /// The names of all subjects' adapters, each once.
    pub fn adapters(&self) -> Vec<&str> {
        names(&self.subjects)
    }
}

fn names(subjects: &[Subject]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for subject in subjects {
        if !names.contains(&subject.adapter.as_str()) {
            names.push(&subject.adapter);
        }
    }
    names
}

/// The subjects that `adapters` name; all of this length if it is empty. A named adapter need not be one of a shorter length's.
fn chosen(method: &dyn Method, guests: Guests, length: Length, adapters: &[String]) -> Result<Vec<Subject>, PlanError> {
    if adapters.is_empty() {
        return Ok(method.field(guests, length));
    }
    let all = method.field(guests, Length::Full);
    let known = names(&all);
    for given in adapters.iter().filter(|given| *given != "all") {
        if !known.contains(&given.as_str()) {
            let nearest = known.iter().map(|name| (strsim::damerau_levenshtein(given, name), name)).min();
            let suggestion = match nearest {
                Some((distance, name)) if distance <= 3 && distance < given.len() => {
                    format!("; did you mean \"{name}\"?")
                }
                _ => String::new(),
            };
            let (given, known) = (given.clone(), known.join(", "));
            return Err(PlanError::Adapter { given, method: method.about().name, suggestion, known });
        }
    }
    let every = adapters.iter().any(|given| given == "all");
    let quick = length == Length::Quick;
    let wanted = |subject: &Subject| {
        // A quick look is at our own server.
        let served = !quick || subject.server.is_none_or(|server| server == crate::method::Server::Nicety);
        served && (every || subject.adapter == NATIVE || adapters.contains(&subject.adapter))
    };
    Ok(all.into_iter().filter(wanted).collect())
}
