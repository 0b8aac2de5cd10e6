//! Record and replay of a guest on two hosts, as the document's VMs ran (docs/lab.md, docs/adr/0032).
//!
//! A [`Machine`] is a whole guest as one deterministic value. Its only inputs are [`Input`]s: frames from the network, and times. The same
//! inputs give the same bytes. A [`Replica`] is such a guest: adapter, driver, TCP and application.
//!
//! A [`Host`] is one of the two hosts of such a guest: a pure state machine, too. The machines that own a VM ([`nicety_protect`])
//! own the guest, too, and decide what may leave. A copy of a VM is here the [log] of the inputs since the last copy, and each
//! input closes an epoch. [`channel`] has the bytes between the hosts.
//!
//! Nothing here has I/O, a clock, a thread or randomness: times and seeds are passed in.

pub mod channel;
mod gate;
mod host;
mod input;
pub mod log;
pub mod replica;

pub use gate::Gate;
pub use host::{Action, End, Host, Role, Status, Terms};
pub use input::{GuestTime, Input, Machine};
pub use log::{Entry, Message};
pub use replica::{Application, Replica, ReplicaError, Settings};
