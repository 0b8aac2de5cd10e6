//! The plan of a study: subjects, loads, and the runs in their order.
//!
//! In each round every subject has its turn, in an order mixed by the seed, so that a disturbance of the host meets all of them. A
//! subject boots its guests once a round and takes all loads one after another.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::method::{Guests, Own};
use crate::number;
use crate::planning::SplitMix;
use crate::subject::{self, Subject};

/// The length of a method.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// A first look: few adapters, three short rounds, no intervals.
    Quick,
    /// Seven rounds, so that there are intervals.
    #[default]
    Usual,
    /// The document's own durations, and every adapter.
    Full,
}

impl Length {
    /// All lengths, the shortest first.
    pub const ALL: [Length; 3] = [Length::Quick, Length::Usual, Length::Full];
}

/// The work of the programs during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Its name in results, such as `stream`.
    pub name: String,
    /// Its title in the report.
    pub title: String,
    /// Duration of the measurement in seconds.
    pub seconds: u32,
    /// The exact commands, each with the place where it runs in front: `guest 1: iperf -s -w 64k -l 128k`.
    pub commands: Vec<String>,
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
    /// The length of the method.
    pub length: Length,
    /// The rows of the tables, in their order.
    pub subjects: Vec<Subject>,
    /// The loads of a round.
    pub loads: Vec<Load>,
    /// Rounds; with `confidence` at most as many.
    pub repeat: u32,
    /// See `--confidence`.
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
        subject::adapters(&self.subjects)
    }
}
