//! Trials for every adapter: the conformance suite, the hostile guest, and the simulation in which they run.
//!
//! Registration is enough for an adapter to face them all. Everything is seeded and in virtual time: a failure names its seed, and
//! the seed reproduces the failure.
#![forbid(unsafe_code)]

pub mod bus;
pub mod conformance;
pub mod exchanges;
pub mod guest;
pub mod hostile;
pub mod messages;
pub mod random;
pub mod replay;
pub mod rig;
pub mod scope;
pub mod tapes;
pub mod wire;
pub mod working;
