//! Methods, embedded guests, statistics and report of `nicety compare` and `nicety lab`, which measure adapters (ARCHITECTURE.md,
//! floor 6).
//!
//! The path of a comparison: [`method::Options`] and a [`bench::Bench`] give a [`method::Plan`]; [`run::run`] runs it and
//! returns [`results::Results`]; [`table::render`] and [`report::write`] show them. Only the bench knows how guests are made.
//!
//! The path of `nicety lab run`: a [`methods::Method`] and [`study::Options`] give a [`plan::Plan`]; [`study::run()`] makes its runs by the
//! method's [`methods::Rig`] and keeps each in a [`study::Results`]; [`report::study`] shows them.
//!
//! [`replay`] runs a guest on two hosts, for the method `ft-netperf`.
#![forbid(unsafe_code)]
// These macros panic when the terminal is gone. The caller decides where a line for a person goes.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod advice;
pub mod bench;
pub mod choice;
pub mod choose;
pub mod embedded;
pub mod figures;
pub mod findings;
pub mod folder;
pub mod host;
pub mod method;
pub mod methods;
pub mod number;
pub mod packets;
pub mod plan;
pub mod planning;
pub mod progress;
pub mod rate;
pub mod real;
pub mod record;
pub mod replay;
pub mod report;
pub mod results;
pub mod run;
pub mod series;
pub mod spent;
pub mod statistics;
pub mod study;
pub mod subject;
pub mod table;
pub mod usual;
pub mod windows;
