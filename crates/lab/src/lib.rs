//! Methods, embedded guests, statistics and report of `nicety compare`, which measures adapters (ARCHITECTURE.md, floor 6).
//!
//! The path of a comparison: [`method::Options`] and a [`bench::Bench`] give a [`method::Plan`]; [`run::run`] runs it and
//! returns [`results::Results`]; [`table::render`] and [`report::write`] show them. Only the bench knows how guests are made.
#![forbid(unsafe_code)]
// These macros panic when the terminal is gone. The caller decides where a line for a person goes.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod advice;
pub mod bench;
pub mod choice;
pub mod embedded;
pub mod figures;
pub mod findings;
pub mod host;
pub mod method;
pub mod number;
pub mod packets;
pub mod planning;
pub mod progress;
pub mod real;
pub mod report;
pub mod results;
pub mod run;
pub mod series;
pub mod statistics;
pub mod table;
