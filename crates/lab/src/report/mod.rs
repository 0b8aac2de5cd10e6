//! The report folder: `index.html`, which needs nothing but itself, and `results.json` (docs/results-format.md).

use std::path::Path;

mod chart;
mod folder;
mod html;
mod page;

pub use folder::ReportError;

use crate::results::{FORMAT, Results};

/// The files of a report.
const FILES: [&str; 2] = ["results.json", "index.html"];

/// Writes the report into the folder `dir`, which is made if it does not exist. Each file is written beside its place and
/// then renamed, so that a reader, or a report of an earlier day, never sees half a file.
pub fn write(results: &Results, dir: &Path) -> Result<(), ReportError> {
    let json = results.to_json().map_err(|error| ReportError::Unsaid(error.to_string()))?;
    let [results_json, index] = FILES;
    folder::write(dir, &[(results_json, &json), (index, &page::page(results))], folder::create)
}

/// Whether a report can be written into the folder `dir`: to be asked before measuring for minutes. Leaves no trace.
pub fn check(dir: &Path) -> Result<(), ReportError> {
    folder::check(dir, &FILES)
}

/// Whether a file that begins so is one of a report: of which version does not matter, nor how its JSON is indented.
fn is_ours(begin: &[u8]) -> bool {
    let name = format!("{{\"format\":\"{FORMAT}\"");
    let packed: Vec<u8> = begin.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).take(name.len()).collect();
    begin.starts_with(page::HEAD.as_bytes()) || packed == name.as_bytes()
}

/// The text of `index.html`.
pub fn page(results: &Results) -> String {
    page::page(results)
}
