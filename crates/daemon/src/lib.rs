//! The daemon: workers that serve ports, and their use of the operating system.
#![forbid(unsafe_code)]

pub mod allowance;
pub mod attach;
mod busy_poll;
pub mod capture;
pub mod clock;
pub mod daemon;
pub mod descriptors;
pub mod device;
pub mod handover;
pub mod image;
pub mod inbox;
mod journal;
pub mod kicks;
pub mod live;
pub mod mapper;
pub mod metrics;
pub mod port_log;
mod record;
pub mod recorder;
pub mod registry;
pub mod report;
pub mod rings;
pub mod sandbox;
pub mod saved;
pub mod serve;
pub mod service;
pub mod sharing;
pub mod shell;
pub mod signals;
pub mod systemd;
mod timeout;
pub mod tolerance;
pub mod trace;
pub mod usage;
pub mod whole;
pub mod worker;
