//! The loop over a study's runs: keeps each on disk when it ends, repeats disturbed ones, gives up what fails twice in a row, stops early
//! when the intervals are narrow enough, and at once on request.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use super::figures;
use super::results::{Results, ResultsError};
use crate::bench::BenchError;
use crate::host::{CpuTimes, Shares, rfc3339};
use crate::methods::{Method, Rig};
use crate::plan::Item;
use crate::plan::Length;
use crate::progress::Progress;
use crate::record::RunRecord;
use crate::statistics::RUNS_FOR_INTERVAL;
use crate::subject::Subject;

/// A subject's load is given up after this many failures in a row.
const FAILURES_IN_A_ROW: usize = 2;
/// A run with more stolen time than this, in percent, is repeated.
const STEAL_MAX_PERCENT: f64 = 2.0;
/// Most repetitions of a disturbed run.
const REPEATS: u32 = 2;
/// Mark of a run that stayed disturbed.
const DISTURBED: &str = "disturbed: over 2 % of the processors' time was stolen";

/// The end of a study.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// All runs are there. `failed` of them gave no figure.
    Done {
        /// Number of runs that failed.
        failed: usize,
    },
    /// Every interval is narrow enough; the last round is `after`.
    Confident {
        /// Rounds that were made.
        after: u32,
        /// Number of runs that failed.
        failed: usize,
    },
    /// All runs are there, and these intervals are wider than asked.
    NotConfident {
        /// Rows, loads and figures.
        wide: Vec<String>,
        /// Number of runs that failed.
        failed: usize,
    },
    /// The person stopped it.
    Stopped,
}

/// The reason why a study cannot go on. What was measured before is on the disk.
#[derive(Debug, Error)]
pub enum WalkError {
    /// A run cannot be kept.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// No further measurement is possible; the text names cause and remedy.
    #[error("{0}")]
    Fatal(String),
}

/// Makes the planned runs that the results do not have yet.
///
/// # Errors
/// See [`WalkError`].
pub fn run(
    method: &dyn Method,
    rig: &mut dyn Rig,
    results: &mut Results,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> Result<End, WalkError> {
    let plan = results.study.head.plan.clone();
    let left = results.study.left();
    progress.begin(u32::try_from(left.len()).unwrap_or(u32::MAX), plan.estimate_of(left.len()));
    let left: HashSet<Item> = left.into_iter().collect();
    let mut walk =
        Walk { method, repeats: if plan.length == Length::Quick { 0 } else { REPEATS }, troubles: Vec::new() };
    let mut round = 0;
    for item in &plan.items() {
        if item.round > round {
            round = item.round;
            if walk.is_confident(results, round) {
                progress.finish();
                return Ok(End::Confident { after: round, failed: results.study.failed().count() });
            }
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(End::Stopped);
        }
        if !left.contains(item) {
            continue;
        }
        if !walk.given_up(item) {
            progress.step(&format!("round {}: {}, {}", item.round.saturating_add(1), item.subject, item.load));
            if !walk.one(item, rig, results, progress, stop)? {
                return Ok(End::Stopped);
            }
        }
        progress.advance();
    }
    progress.finish();
    let failed = results.study.failed().count();
    let wide = plan.confidence.map(|share| figures::too_wide(&results.study, method, share).collect());
    let wide: Vec<String> = wide.unwrap_or_default();
    Ok(if wide.is_empty() { End::Done { failed } } else { End::NotConfident { wide, failed } })
}

struct Walk<'a> {
    method: &'a dyn Method,
    repeats: u32,
    /// Failures in a row of a subject's load.
    troubles: Vec<(Subject, String, usize)>,
}

impl Walk<'_> {
    fn is_confident(&self, results: &Results, rounds: u32) -> bool {
        let share = results.study.head.plan.confidence.filter(|_| rounds as usize >= RUNS_FOR_INTERVAL);
        share.is_some_and(|share| figures::too_wide(&results.study, self.method, share).next().is_none())
    }

    fn given_up(&self, item: &Item) -> bool {
        let here = |(subject, load, times): &(Subject, String, usize)| {
            *subject == item.subject && *load == item.load && *times >= FAILURES_IN_A_ROW
        };
        self.troubles.iter().any(here)
    }

    /// One run with its repetitions. False if the person stopped it.
    fn one(
        &mut self,
        item: &Item,
        rig: &mut dyn Rig,
        results: &mut Results,
        progress: &mut Progress,
        stop: &AtomicBool,
    ) -> Result<bool, WalkError> {
        let load = results.study.head.plan.load(&item.load).cloned();
        let load = load.ok_or_else(|| WalkError::Fatal(format!("the plan has no load {}", item.load)))?;
        for attempt in 0..=self.repeats {
            let (before, shares, begun, date) = (CpuTimes::now(), Shares::now(), Instant::now(), now());
            let taken = rig.run(item.round, &item.subject, &load, stop);
            // If the person stops during a run, the run counts as stopped even if it ended well.
            if stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let times = match &taken {
                Err(BenchError::Cancelled) => return Ok(false),
                Err(BenchError::Fatal(why)) => return Err(WalkError::Fatal(why.clone())),
                Err(BenchError::Impossible(_)) => FAILURES_IN_A_ROW,
                Err(BenchError::Failed(_)) => 1,
                Ok(_) => 0,
            };
            let mut record = RunRecord::new(item, taken.map_err(|error| error.to_string()));
            record.date = date;
            record.took_seconds = (begun.elapsed().as_secs_f64() * 1e3).round() / 1e3;
            record.steal_percent = record.steal_percent.or_else(|| CpuTimes::stolen_percent(before));
            record.others_percent = Shares::others_percent(shares);
            let disturbed = record.steal_percent.is_some_and(|percent| percent > STEAL_MAX_PERCENT) && times == 0;
            // A disturbed run that was not stable is not made again: among several tries one that is would come.
            record.discarded = disturbed && attempt < self.repeats && !says_no(self.method, &record);
            if disturbed && !record.discarded {
                record.marks.push(DISTURBED.to_owned());
            }
            if let Some(why) = &record.failure {
                progress.note(&format!("{}, {}: {why}", item.subject, item.load));
            }
            self.count(item, times);
            let again = record.discarded;
            results.keep(record)?;
            if !again {
                break;
            }
        }
        Ok(true)
    }

    fn count(&mut self, item: &Item, times: usize) {
        let is_here = |(subject, load, _): &(Subject, String, usize)| *subject == item.subject && *load == item.load;
        let before = self.troubles.iter().position(is_here).map_or(0, |at| self.troubles.remove(at).2);
        if times > 0 {
            self.troubles.push((item.subject.clone(), item.load.clone(), before + times));
        }
    }
}

/// Whether a figure of yes or no says no: the file was not identical.
fn says_no(method: &dyn Method, record: &RunRecord) -> bool {
    let asked = method.figures().iter().filter(|figure| figure.yes_or_no);
    asked.filter_map(|figure| record.figures.get(figure.name)).any(|value| *value < 0.5)
}

fn now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
#[path = "walk_test.rs"]
mod tests;
