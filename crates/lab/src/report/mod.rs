//! The report folder: `index.html`, which is self-contained, `results.json` and `results.csv` (docs/results-format.md).

use std::path::Path;

mod chart;
mod csv;
mod figures;
mod front;
mod page;
mod panels;
pub mod study;

use crate::folder::{self, ReportError};
use crate::results::Results;

/// The files of a report.
const FILES: [&str; 3] = ["results.json", "results.csv", "index.html"];

/// Writes the report into the folder `dir`, which is made if it does not exist. Each file is written beside its place and
/// then renamed, so that a reader never sees half a file, and an earlier report is never half replaced.
pub fn write(results: &Results, dir: &Path) -> Result<(), ReportError> {
    let json = results.to_json().map_err(|error| ReportError::Unsaid(error.to_string()))?;
    let [results_json, results_csv, index] = FILES;
    let files = [(results_json, &*json), (results_csv, &csv::csv(results)), (index, &page::page(results))];
    folder::write(dir, &files)
}

/// Checks that a report can be written into the folder `dir`. Call it before measuring for minutes. Leaves no trace.
pub fn check(dir: &Path) -> Result<(), ReportError> {
    folder::check(dir, &FILES)
}

/// The text of `index.html`.
pub fn page(results: &Results) -> String {
    page::page(results)
}

#[cfg(test)]
#[path = "paper_test.rs"]
mod paper;

#[cfg(test)]
#[path = "folder_test.rs"]
mod folder_tests;
