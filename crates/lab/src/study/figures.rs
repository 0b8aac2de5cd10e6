//! Medians and ratios of a study: cells of its tables.

use super::bootstrap;
use super::results::Study;
use crate::host::{LOADED_MARK, is_loaded, loaded_words};
use crate::method::Server;
use crate::methods::{Figure, Method, Table};
use crate::number;
use crate::record::RunRecord;
use crate::statistics::Estimate;
use crate::subject::Subject;

/// A figure of one subject under one load.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The row.
    pub subject: Subject,
    /// Round and value of each run that counts.
    pub samples: Vec<(u32, f64)>,
    /// The median with its interval. None without samples.
    pub estimate: Option<Estimate>,
    /// Why runs failed, the last one first.
    pub failures: Vec<String>,
    /// Remarks on its runs, each once.
    pub marks: Vec<String>,
    /// Whether other processes took much of the machine during one of its runs.
    pub loaded: bool,
}

impl Cell {
    /// The mark of a figure that was measured on a loaded machine, or nothing.
    pub fn mark(&self) -> &'static str {
        if self.loaded && self.estimate.is_some() { LOADED_MARK } else { "" }
    }
}

/// The line that explains the mark. None if no run of the study has it.
pub fn loaded_line(study: &Study) -> Option<String> {
    study.counted().any(|run| is_loaded(run.others_percent)).then(loaded_words)
}

/// The cell of a subject.
pub fn cell(study: &Study, subject: &Subject, load: &str, figure: &str) -> Cell {
    let here = |run: &&RunRecord| run.subject == *subject && run.load == load;
    let samples: Vec<(u32, f64)> =
        study.counted().filter(here).filter_map(|run| Some((run.round, *run.figures.get(figure)?))).collect();
    let values: Vec<f64> = samples.iter().map(|(_, value)| *value).collect();
    let mut failures: Vec<String> = study.failed().filter(here).filter_map(|run| run.failure.clone()).collect();
    failures.reverse();
    let mut marks: Vec<String> = study.counted().filter(here).flat_map(|run| run.marks.clone()).collect();
    marks.sort();
    marks.dedup();
    let loaded = study.counted().filter(here).any(|run| is_loaded(run.others_percent));
    Cell { subject: subject.clone(), samples, estimate: bootstrap::estimate(&values), failures, marks, loaded }
}

/// The cells of a table, a subject each.
pub fn column(study: &Study, table: &Table) -> Vec<Cell> {
    study.head.plan.subjects.iter().map(|subject| cell(study, subject, &table.load, table.figure)).collect()
}

/// The ratio of `cell` to `base`, by the pairs of runs of the same round.
pub fn ratio(cell: &Cell, base: &Cell) -> Option<Estimate> {
    let pair = |(round, value): &(u32, f64)| {
        let (_, theirs) = base.samples.iter().find(|(of, _)| of == round)?;
        Some((*value, *theirs))
    };
    bootstrap::ratio(&cell.samples.iter().filter_map(pair).collect::<Vec<_>>())
}

/// The cell to which `cell` is compared: the base adapter at the same server; for a native row, at ours.
pub fn base_of<'a>(cells: &'a [Cell], cell: &Cell, base: &str) -> Option<&'a Cell> {
    let server = cell.subject.server.unwrap_or(Server::Nicety);
    // A forwarder of another kind, such as testpmd, has no server.
    let is_served = |other: &Cell| other.subject.server.is_none_or(|of| of == server);
    cells.iter().find(|other| other.subject.adapter == base && is_served(other))
}

/// The cell of QEMU's own model of the same adapter.
pub fn peer_of<'a>(cells: &'a [Cell], cell: &Cell) -> Option<&'a Cell> {
    let is_peer =
        |other: &&Cell| other.subject.adapter == cell.subject.adapter && other.subject.server == Some(Server::Qemu);
    cells.iter().find(is_peer).filter(|_| !matches!(cell.subject.server, None | Some(Server::Qemu)))
}

/// The document's ratio of an adapter to a base.
pub fn documents(table: &Table, adapter: &str, base: &str) -> Option<f64> {
    table.document.iter().find(|(of, to, _)| *of == adapter && *to == base).map(|(_, _, ratio)| *ratio)
}

/// A cell's value for readers: a median with its interval, or how many of how many runs.
pub fn value(cell: &Cell, figure: &Figure) -> String {
    let Some(estimate) = cell.estimate else {
        return if cell.failures.is_empty() { number::NONE.to_owned() } else { "failed".to_owned() };
    };
    if figure.yes_or_no {
        // A run that failed is no stable one.
        let yes = cell.samples.iter().filter(|(_, value)| *value > 0.5).count();
        return format!("{yes} of {}", cell.samples.len() + cell.failures.len());
    }
    let shown = number::estimate(estimate.median, estimate.interval.as_ref());
    match shown.split_once(' ') {
        Some((median, range)) => format!("{median}{} {range}", cell.mark()),
        None => shown + cell.mark(),
    }
}

/// The figures of the report's tables whose intervals are wider than the study's `--confidence` asks, as `adapter by server, load:
/// figure`. A figure without an interval is too wide; one without samples has failed, and does not count; nor does one of yes or no,
/// whose interval says nothing.
pub fn too_wide(study: &Study, method: &dyn Method, share: f64) -> impl Iterator<Item = String> {
    let tables = method.tables(&study.head.plan.loads).into_iter();
    let known = move |name: &str| method.figures().iter().find(|figure| figure.name == name && !figure.yes_or_no);
    let shown = tables.filter_map(move |table| Some((known(table.figure)?, table)));
    shown.flat_map(move |(figure, table)| {
        study.head.plan.subjects.iter().filter_map(move |subject| {
            let cell = cell(study, subject, &table.load, figure.name);
            let is_wide = cell.estimate.is_some_and(|estimate| !reaches_at_most(&estimate, share));
            is_wide.then(|| format!("{subject}, {}: {}", table.load, figure.title))
        })
    })
}

/// Whether an interval reaches at most this share of its median to either side.
pub(super) fn reaches_at_most(estimate: &Estimate, share: f64) -> bool {
    let Some(interval) = estimate.interval else { return false };
    let reach = (interval.high - estimate.median).max(estimate.median - interval.low);
    // Not a quotient: registers that are never read have the median zero, and an interval of zero.
    reach <= share * estimate.median.abs()
}
