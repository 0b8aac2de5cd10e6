//! Methods, embedded guests, statistics and report: what `nicety compare` measures adapters with (ARCHITECTURE.md, floor 6).
//!
//! The way of a comparison: [`method::Options`] and a [`bench::Bench`] give a [`method::Plan`]; [`run::run`] walks it and
//! gives [`results::Results`]; [`table::render`] and [`report::write`] show them. Nothing here knows how a guest is made:
//! that is the bench's.
#![forbid(unsafe_code)]
// They panic when the terminal is gone: the caller says where a line for a person goes.
#![deny(clippy::print_stdout, clippy::print_stderr)]

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
