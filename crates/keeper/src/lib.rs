//! The keeper: the first process of `nicety serve --keeper`. It starts the daemon as its child, and starts the next one when the
//! daemon is to be replaced (docs/adr/0020).
//!
//! ```text
//! keeper ──starts──► daemon, channel on its standard input
//!   ▲ Upgrade(program)  │
//!   └───────────────────┘
//! keeper ──starts──► heir ◄────── all state ─────── daemon       over a socket that the keeper has made for both
//! keeper ◄── Serves ── heir                         daemon ends
//! ```
//! It also holds descriptors for the daemon, by name: if the daemon is killed, the next one gets them, and no peer sees its connection
//! close (`held.rs`). Whichever daemon dies during an upgrade, all that is held goes to the next one: an heir holds nothing before the
//! daemon has given all it had.
//!
//! A daemon whose workers stand still is killed, and another one started (`watch.rs`).
//!
//! While VMs wait for a daemon, it runs before others (`pace.rs`).
//!
//! What takes rights that the daemon has given up is opened for it by another process, which the keeper starts (`opener.rs`, `openers.rs`,
//! docs/adr/0024).
//!
//! Another process accepts the control socket's connections, and reads the first request of each before the daemon has it: so the keeper
//! learns from the user, and not from the daemon, what a change opens (`acceptor.rs`, docs/adr/0027).
//!
//! The keeper reads nothing that a guest or a VMM has written, no state of a port and no host file. Its messages are a byte for the kind
//! and at most a path, a sentence or a name. It has one thread, and others that only close a VMM's descriptors.
#![forbid(unsafe_code)]

mod acceptor;
mod budget;
mod channel;
mod closing;
mod held;
mod keep;
mod lines;
mod link;
mod named;
mod opener;
mod openers;
mod pace;
mod protocol;
mod rights;
mod start;
mod watch;

pub use acceptor::{Accepting, Connection, Connections, Heard};
pub use channel::{Channel, ChannelError, FDS_MAX, Message};
pub use held::Group;
#[doc(hidden)]
pub use keep::{Between, Seam, keep_with};
pub use keep::{is_end_of_service, keep};
pub use link::{Begins, Holder, KeptBy, Renewal};
pub use opener::{Asked, Asker, Client, OPENS_WITHIN, Opened, Opener, Opening, Task, name, socket_of};
#[doc(hidden)]
pub use protocol::kind;
pub use protocol::{KEPT, OPENS, WATCHES, Why};
pub use rights::{administers, give_administration_up};
pub use start::Start;
