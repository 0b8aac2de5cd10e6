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
//! No step holds two ports' locks. What comes in by an uplink with inward I/O control waits under a lock of that queue's own, which is held
//! while receivers, which are no uplinks, take from it. A batch bounds a hold: 64 packets or 64 KiB, at least one packet. A receiver whose memory is touched
//! for the first time is slow, so it gets the batch in several holds. This crate uses no file descriptor, clock or thread:
//! interrupts, wake-ups and turns go through the port's [`Shell`], which a daemon, a VMM or a simulation implements.
#![forbid(unsafe_code)]

mod agent;
mod announced;
mod backlog;
pub mod bytes;
mod doorbells;
pub mod doubles;
mod flows;
mod gate;
mod group;
mod hash;
mod herald;
mod inward;
mod lldp;
mod lock;
mod losses;
#[cfg(feature = "measure")]
pub mod measure;
mod order;
mod pace;
mod plane;
mod poll;
mod port;
mod querier;
mod rounds;
mod stage;
mod team;
mod times;
mod watch;
pub mod wire;

pub use agent::{Agent, LinkState, Neighbour, Role, SavedAgent, SavedQuerier};
pub use backlog::{Backlog, Drained, SENDER_BYTES, SavedFrame};
pub use doorbells::Doorbells;
pub use flows::{Covered, FlowExport, FlowSink, FlowTables, drop_reason};
pub use gate::{Epochs, GateMode, GatePosition, SavedEpochs, SavedGate, Waiting};
pub use group::{Group, PARTS_MAX};
pub use hash::Hash;
pub use inward::InwardControl;
pub use lldp::{Announcer, announcement};
pub use order::LaneKey;
pub use plane::{
    AdapterLink, Loop, MIRRORS_MAX, Mirror, Mirrored, Outcome, Plane, PlaneError, Slot, Trace, TraceError, Turn,
};
pub use port::{
    End, Intake, Port, Presence, Prospect, Saved, SavedFrames, SavedNumbers, SharedFamily, Shell, State, caught,
};
pub use querier::Querier;
pub use stage::ClassState;
pub use team::{
    Capacity, Lacp, Links, Loads, MEMBERS_MAX, MemberState, Mode, Moved, Queues, Rule, SavedRule, SavedSteering,
    Spread, Standby, Steering,
};
pub use times::{BUCKETS_NS, Histogram, SAMPLE_EVERY};
pub use watch::{Fate, Watcher};
