//! The loop over a plan. It alternates runs, records the steal time of each, notes failures, and stops at once on request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use thiserror::Error;

use crate::bench::{Bench, BenchError};
use crate::figures::{self, Taken};
use crate::host::{CpuTimes, Host, Shares};
use crate::method::{Contestant, Guests, Item, Load, Plan};
use crate::progress::Progress;
use crate::results::{Method, Results, Row, Run, Test};

/// A contestant's load is given up after this many failures in a row.
const FAILURES_IN_A_ROW: u32 = 2;

/// The reason why a comparison gave no results.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RunError {
    /// The person stopped the comparison.
    #[error("stopped; nothing was written")]
    Cancelled,
    /// The bench cannot continue. The text gives the cause and the remedy.
    #[error("{0}")]
    Fatal(String),
    /// Every run failed. The text is the reason of the last failure.
    #[error("no run gave a figure; the last one failed so: {0}")]
    Nothing(String),
}

/// Failures of a contestant's load.
#[derive(Debug, Clone)]
struct Trouble {
    contestant: Contestant,
    load: Load,
    in_a_row: u32,
    given_up: bool,
    reason: String,
}

/// Runs `plan` on `bench`. `command` is the exact command that repeats the measurement, for the report.
pub fn run(
    plan: &Plan,
    bench: &mut dyn Bench,
    command: &str,
    progress: &mut Progress,
    cancel: &AtomicBool,
) -> Result<Results, RunError> {
    let mut host = Host::here();
    bench.prepare(plan, progress, cancel).map_err(fatal)?;
    progress.begin(u32::try_from(plan.items.len()).unwrap_or(u32::MAX), plan.estimate());
    let before = CpuTimes::now();
    let mut walk = Walk { runs: Vec::new(), taken: Vec::new(), troubles: Vec::new() };
    for item in &plan.items {
        if cancel.load(Ordering::Relaxed) {
            return Err(RunError::Cancelled);
        }
        if !walk.given_up(item) {
            progress.step(&item.to_string());
            walk.one(plan, item, bench, progress, cancel)?;
        }
        progress.advance();
    }
    progress.finish();
    host.steal_percent = steal_since(before);
    if let (true, Some(trouble)) = (walk.taken.is_empty(), walk.troubles.last()) {
        return Err(RunError::Nothing(trouble.reason.clone()));
    }
    let method = Method {
        command: command.to_owned(),
        guests: plan.guests,
        seconds: plan.duration.as_secs_f64(),
        repeat: plan.repeat,
        seed: plan.seed,
        order: plan.order,
        notes: bench.notes().into_iter().chain(plan.left_out.iter().cloned()).chain(unoptimised()).collect(),
    };
    let mut rows: Vec<Row> = plan
        .contestants
        .iter()
        .flat_map(|contestant| {
            figures::rows(contestant, &plan.loads, &walk.taken, |load| {
                walk.trouble(contestant, load).map(|t| t.reason.clone())
            })
        })
        .collect();
    for (contestant, why) in bench.absent() {
        if plan.contestants.iter().any(|there| there.adapter == contestant.adapter) {
            rows.extend(figures::absent_rows(&contestant, &plan.loads, &why));
        }
    }
    if bench.guests() == Guests::Embedded {
        // No figure includes the work of embedded guests.
        rows.retain(|row| row.test != Test::GuestCpuPerGigabit);
    }
    Ok(Results::new(host, method, walk.runs, rows))
}

/// Note of a build whose figures say nothing.
pub const UNOPTIMISED: &str = "Nicety was built without optimisation: these figures say nothing about its speed.";

fn unoptimised() -> Option<String> {
    cfg!(debug_assertions).then(|| UNOPTIMISED.to_owned())
}

struct Walk {
    runs: Vec<Run>,
    taken: Vec<Taken>,
    troubles: Vec<Trouble>,
}

impl Walk {
    fn trouble(&self, contestant: &Contestant, load: Load) -> Option<&Trouble> {
        self.troubles.iter().find(|trouble| trouble.contestant == *contestant && trouble.load == load)
    }

    fn given_up(&self, item: &Item) -> bool {
        self.trouble(&item.contestant, item.load).is_some_and(|trouble| trouble.given_up)
    }

    fn one(
        &mut self,
        plan: &Plan,
        item: &Item,
        bench: &mut dyn Bench,
        progress: &mut Progress,
        cancel: &AtomicBool,
    ) -> Result<(), RunError> {
        let (before, shares, begun) = (CpuTimes::now(), Shares::now(), Instant::now());
        let outcome = bench.run(item, plan.duration, cancel);
        let took_seconds = begun.elapsed().as_secs_f64();
        // If the person stops during a run, the run counts as stopped even if it ended well.
        if cancel.load(Ordering::Relaxed) {
            return Err(RunError::Cancelled);
        }
        let taken = match outcome {
            Ok(measured) => Taken::new(item.clone(), measured).map_err(BenchError::Failed),
            Err(error) => Err(error),
        };
        let (mut series, mut latency) = (None, None);
        let failure = match taken {
            Ok(mut taken) => {
                (series, latency) = (taken.series.take(), taken.latency.take());
                self.taken.push(taken);
                self.troubles.retain(|trouble| trouble.contestant != item.contestant || trouble.load != item.load);
                None
            }
            Err(error @ (BenchError::Cancelled | BenchError::Fatal(_))) => return Err(fatal(error)),
            Err(BenchError::Impossible(reason)) => Some((reason, true)),
            Err(BenchError::Failed(reason)) => Some((reason, false)),
        };
        if let Some((reason, impossible)) = &failure {
            progress.note(&format!("{item}: {reason}"));
            self.failed(item, reason, *impossible);
        }
        let Contestant { adapter, server, .. } = item.contestant.clone();
        self.runs.push(Run {
            run: u32::try_from(self.runs.len()).unwrap_or(u32::MAX),
            round: item.round,
            adapter,
            server,
            load: item.load,
            took_seconds,
            steal_percent: steal_since(before),
            others_percent: Shares::others_percent(shares),
            failure: failure.map(|(reason, _)| reason),
            series,
            latency,
        });
        Ok(())
    }

    fn failed(&mut self, item: &Item, reason: &str, impossible: bool) {
        let known = self.troubles.iter().position(|t| t.contestant == item.contestant && t.load == item.load);
        let in_a_row = known.map_or(0, |index| self.troubles.remove(index).in_a_row).saturating_add(1);
        self.troubles.push(Trouble {
            contestant: item.contestant.clone(),
            load: item.load,
            in_a_row,
            given_up: impossible || in_a_row >= FAILURES_IN_A_ROW,
            reason: reason.to_owned(),
        });
    }
}

fn fatal(error: BenchError) -> RunError {
    match error {
        BenchError::Cancelled => RunError::Cancelled,
        BenchError::Impossible(reason) | BenchError::Failed(reason) | BenchError::Fatal(reason) => {
            RunError::Fatal(reason)
        }
    }
}

fn steal_since(before: Option<CpuTimes>) -> Option<f64> {
    CpuTimes::now()?.steal_percent_since(&before?)
}

#[cfg(test)]
#[path = "run_test.rs"]
mod tests;
