//! Fault tolerance of guests that can be replayed, for the lab (docs/lab.md, docs/adr/0017, docs/adr/0029).
//!
//! A [`Replica`] is a whole guest as one deterministic value: adapter, driver, TCP and application. Its only inputs are [`Call`]s:
//! frames from the network, and times. The same calls give the same bytes.
//!
//! A [`Node`] is one of the two hosts of such a guest: a pure state machine, too. The primary logs each call at the secondary, and a frame
//! leaves when the secondary has all that precedes it ([`Gate`]). A [lease](nicety_lease::Lease), held by a third party, says who owns the guest.
//! [`channel`] has the bytes between the hosts.
//!
//! This crate has no I/O, clock, thread or randomness: times and seeds are passed in.
#![forbid(unsafe_code)]

mod call;
pub mod channel;
mod fnv;
mod gate;
pub mod log;
pub mod node;
pub mod replica;

pub use call::{Call, GuestTime, Machine};
pub use channel::{ChannelError, Key};
pub use gate::Gate;
pub use log::{Entry, Message};
pub use node::{Action, Node, Role, Status, Terms};
pub use replica::{Application, Replica, ReplicaError, Settings};
