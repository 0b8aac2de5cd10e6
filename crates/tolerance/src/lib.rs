//! Fault tolerance of guests that can be replayed (docs/fault-tolerance.md, docs/adr/0015).
//!
//! A [`Replica`] is a whole guest as one deterministic value: adapter, driver, TCP and application. Its only inputs are [`Call`]s:
//! frames from the network, and times. The same calls give the same bytes.
//!
//! This crate has no I/O, clock, thread or randomness: times and seeds are passed in.
#![forbid(unsafe_code)]

mod call;
mod fnv;
pub mod replica;

pub use call::{Call, GuestTime, Machine};
pub use replica::{Application, Replica, ReplicaError, Settings};
