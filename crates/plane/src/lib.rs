//! A port of the switch: its adapter or uplink, its lock, its turn, its budgets, its backlog.
//!
//! ```text
//! turn of a port:  tick, drain its own backlog     one lock: its own
//!                  fetch → Batch                   the same
//!                  Switch::forward → Plan          no lock
//!                  each receiver: deliver          one lock: that receiver's
//!                  complete                        one lock: its own
//! ```
//!
//! No step holds two locks. A hold is bounded by the batch: 64 packets or 64 KiB, at least one packet; a receiver that is
//! slow, since its memory is touched for the first time, gets the batch in several holds. There is no file descriptor,
//! clock or thread here: what must happen outside (an interrupt, a wake-up, another turn) goes through the port's
//! [`Shell`], which a daemon, a VMM or a simulation implements.
#![forbid(unsafe_code)]

mod backlog;
mod doorbells;
mod lock;
#[cfg(feature = "measure")]
pub mod measure;
mod pace;
mod plane;
mod poll;
mod port;
mod turn;

pub use backlog::Backlog;
pub use doorbells::Doorbells;
pub use plane::{Plane, PlaneError};
pub use port::{End, Port, Shell, State};
pub use turn::{Outcome, Turn};
