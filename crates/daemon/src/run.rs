//! The parts that run a port: its worker, its device or rings, its memory, its log and its journal.

pub mod allowance;
mod busy_poll;
pub mod device;
pub mod fatal;
pub mod image;
pub mod inbox;
pub(crate) mod journal;
pub(crate) mod kept_uplinks;
mod kicks;
pub mod mapper;
pub(crate) mod order;
pub(crate) mod placement;
pub mod port_log;
pub mod protected;
pub mod recorder;
pub mod rings;
mod rings_file;
pub mod saved;
pub mod service;
pub mod shell;
mod timeout;
pub mod worker;
