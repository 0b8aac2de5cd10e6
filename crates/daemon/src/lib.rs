//! The daemon: workers that serve ports, and their use of the operating system.
//!
//! It has three floors; each imports only from those below it, and from the files beside them. `serve` opens a host file, changes it
//! and hands it over. `observe` reads what runs. `run` serves the ports. [`daemon`] stands between `run` and `observe`: it
//! holds what runs.
#![forbid(unsafe_code)]

// Files that tests of several crates include name this one so.
#[cfg(test)]
extern crate self as nicety_daemon;

pub mod clock;
pub mod daemon;
pub mod descriptors;
pub mod fabric;
pub mod flows;
pub mod named;
mod observe;
pub mod paths;
pub mod protection;
mod random;
pub mod registry;
mod run;
pub mod serve;
pub mod sharing;
mod spec;
pub mod usage;
pub mod whole;

pub use observe::{attach, capture, metrics, report, systemd, trace};
pub use run::{
    allowance, device, fatal, image, inbox, mapper, port_log, protected, recorder, rings, saved, service, shell, worker,
};
pub use serve::{handover, live, sandbox, signals};
