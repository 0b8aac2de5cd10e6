//! Drives QEMU by its control socket (QMP, docs/interop/qmp-spec.rst), to protect VMs by QEMU's COLO (docs/system/qemu-colo.rst).
//!
//! ```text
//! Monitor   one QMP socket; never waits; for a thread that polls many
//! Mark      knows a run of a QEMU again
//! Inquiry   asks a QEMU what it runs: Facts         Facts::refusals: may this VM be protected?   differences: are two VMs twins?
//! Colo      one end of a protection: commands out, answers and events in, News for the owner
//! ```
//! `Inquiry`, `Mark` and `Colo` are [`Dialogue`]s: state machines without I/O or clock. [`converse`] carries one over a monitor. A dialogue has
//! one command under way at a time (and `yank` beside it), so an owner may run both on one monitor, one after the other.
#![forbid(unsafe_code)]

mod colo;
mod command;
mod converse;
mod inspect;
mod mark;
mod monitor;

pub use colo::{Colo, News, Phase, Role, Settings, StepLimits};
pub use command::{Answer, Command, Dialogue, Failure, Item, Version};
pub use converse::converse;
pub use inspect::{Device, Disk, Facts, Inquiry, Memory, Network, Properties, VERSION_MIN, differences};
pub use mark::{Mark, Marked, mark};
pub use monitor::{Cause, Error, Limits, Monitor};
