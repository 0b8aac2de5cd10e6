//! The report folder: `index.html`, which is self-contained, `results.json` and `results.csv` (docs/results-format.md).

use std::path::Path;

mod chart;
mod csv;
mod figures;
mod folder;
mod front;
mod page;
mod panels;
pub mod study;

pub use folder::ReportError;

use crate::results::{FORMAT, Results};
use crate::study::journal;

/// The files of a report.
const FILES: [&str; 3] = ["results.json", "results.csv", "index.html"];

/// Writes the report into the folder `dir`, which is made if it does not exist. Each file is written beside its place and
/// then renamed, so that a reader never sees half a file, and an earlier report is never half replaced.
pub fn write(results: &Results, dir: &Path) -> Result<(), ReportError> {
    let json = results.to_json().map_err(|error| ReportError::Unsaid(error.to_string()))?;
    let [results_json, results_csv, index] = FILES;
    let files = [(results_json, &*json), (results_csv, &csv::csv(results)), (index, &page::page(results))];
    folder::write(dir, &files, folder::create)
}

/// Checks that a report can be written into the folder `dir`. Call it before measuring for minutes. Leaves no trace.
pub fn check(dir: &Path) -> Result<(), ReportError> {
    folder::check(dir, &FILES)
}

/// Writes files (name, text) into `dir`, each whole or not at all.
pub(crate) fn write_files(dir: &Path, files: &[(&str, &str)]) -> Result<(), ReportError> {
    folder::write(dir, files, folder::create)
}

/// Whether a file with this beginning belongs to a report, of any version and with any indentation of its JSON.
fn is_ours(begin: &[u8]) -> bool {
    let names = [FORMAT, journal::FORMAT].map(|format| format!("{{\"format\":\"{format}\""));
    let packed: Vec<u8> = begin.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let known = [page::HEAD, csv::HEAD].iter().any(|head| begin.starts_with(head.as_bytes()));
    known || names.iter().any(|name| packed.starts_with(name.as_bytes()))
}

/// The text of `index.html`.
pub fn page(results: &Results) -> String {
    page::page(results)
}

#[cfg(test)]
#[path = "paper_test.rs"]
mod paper;
