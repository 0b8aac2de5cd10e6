//! What every adapter has to stand: the conformance suite, the hostile guest, and the simulation that they live in.
//!
//! An adapter faces all of it by being in the registry. Everything is seeded and in virtual time: a failure names its
//! seed, and the seed gives the failure again.
#![forbid(unsafe_code)]

pub mod bus;
pub mod conformance;
pub mod extent;
pub mod guest;
pub mod habits;
pub mod hostile;
pub mod messages;
pub mod random;
pub mod replay;
pub mod rig;
pub mod wire;
pub mod working;
