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
mod rights;
mod watch;

pub use acceptor::{Accepting, Connection, Connections, Heard};
pub use channel::{Channel, ChannelError, FDS_MOST, Message};
pub use held::{Group, Why};
#[doc(hidden)]
pub use keep::{Between, Seam, keep_with};
pub use keep::{Start, is_end_of_service, keep};
pub use link::{Begins, Holder, KeptBy, Renewal};
pub use opener::{Asked, Asker, Client, OPENS_WITHIN, Opened, Opener, Opening, Task, name, socket_of};
pub use rights::{administers, give_administration_up};

/// The version of the keeper's messages. A keeper and a daemon of different versions refuse each other.
const VERSION: u8 = 1;

/// The hidden argument with which the keeper starts a daemon.
pub const KEPT: &str = "--kept";

/// The environment variable that says that the keeper kills a daemon that gives no sign of life ([`Holder::lives`]), after so many
/// microseconds.
pub const WATCHES: &str = "NICETY_KEEPER_WATCHES";

/// The environment variable that says that the keeper renews groups, and says what it does not hold ([`kind::RENEW`], [`kind::HEARS`]).
pub(crate) const RENEWS: &str = "NICETY_KEEPER_RENEWS";

/// The environment variable that says that the keeper counts what openers write ([`kind::SAYS`]): [`QUIETLY`], or something else.
pub(crate) const SAYS: &str = "NICETY_KEEPER_SAYS";
/// There were too many lines lately: this opener writes none.
pub(crate) const QUIETLY: &str = "quietly";

/// The hidden argument with which the keeper starts an opener.
pub const OPENS: &str = "--opens";

/// The environment variable that says that the keeper starts openers ([`KeptBy::opener`]): [`WITH_ADMINISTRATION`], or something else.
pub(crate) const OPENS_TOO: &str = "NICETY_KEEPER_OPENS";
/// Openers have CAP_NET_ADMIN.
pub(crate) const WITH_ADMINISTRATION: &str = "net_admin";

/// Messages between the keeper and a daemon or an opener. Public for tests that play the keeper.
#[doc(hidden)]
pub mod kind {
    /// To a daemon: it is the first one.
    pub const FIRST: u8 = 1;
    /// To a daemon, with a descriptor: it replaces the daemon at the other end of that socket.
    pub const HEIR: u8 = 2;
    /// To the keeper: start this program (a path) as the next daemon.
    pub const UPGRADE: u8 = 3;
    /// To the daemon, with a descriptor: its heir was started, and is at the other end of that socket.
    pub const STARTED: u8 = 4;
    /// To the daemon: its heir was not started (a sentence).
    pub const REFUSED: u8 = 5;
    /// To the daemon: its heir has ended before it took over (a sentence).
    pub const ENDED: u8 = 6;
    /// To the keeper: end the heir.
    pub const ABANDON: u8 = 7;
    /// To the keeper: this daemon serves from now on.
    pub const SERVES: u8 = 8;
    /// To the keeper, with descriptors: hold them under this number and name. To a daemon, before [`FIRST`]: they were held.
    pub const HOLD: u8 = 9;
    /// To the keeper: close all descriptors that it holds under this name with a lower number.
    pub const FORGET: u8 = 10;
    /// To the keeper: this daemon stands still for ever, for its heir took over and failed. When it ends, another one is to be started.
    pub const STUCK: u8 = 11;
    /// To the keeper: all workers of this daemon have finished a round since the last one. A keeper of an earlier version ignores it.
    pub const ALIVE: u8 = 12;
    /// To the keeper, with a descriptor: have what this line names opened, and the answer sent there. To an opener: the same.
    pub const OPEN: u8 = 13;
    /// To who has asked, with a descriptor: it was opened, and has this name.
    pub const OPENED: u8 = 14;
    /// To an opener: this line is named. From an opener to the keeper: it is named from now on. From a client to an opener: these lines
    /// are to be named; the answer is of the same kind.
    pub const NAMED: u8 = 15;
    /// To an opener: the keeper begins.
    pub const BEGIN: u8 = 16;
    /// From an opener to the keeper, with a descriptor: the keeper's listening socket, at this path.
    pub const LISTENS: u8 = 17;
    /// To an opener, with a descriptor: a client has connected to the keeper's socket.
    pub const CLIENT: u8 = 18;
    /// To the keeper, with a descriptor: say there whether these lines are named. To an opener: the same. The answer is [`NAMED`] or
    /// [`REFUSED`].
    pub const IS_NAMED: u8 = 19;
    /// To the keeper: this daemon's ports are about to stand still until its heir serves. A keeper of an earlier version ignores it.
    pub const STOPS: u8 = 20;
    /// To the keeper, with the descriptors that are new: hold a group that has others of an older one.
    pub const RENEW: u8 = 21;
    /// To the keeper, with a descriptor: say there what is not held.
    pub const HEARS: u8 = 22;
    /// To a daemon, by that descriptor: nothing of this name is held any more; the number is the reason's.
    pub const LOST: u8 = 23;
    /// To a daemon, by that descriptor: what was sent under this name is closed, and it may be held again.
    pub const FREE: u8 = 24;
    /// From an opener to the keeper: a line that it has written, or left out.
    pub const SAYS: u8 = 25;
    /// To the keeper, with two descriptors: have the connections of this control socket accepted for daemons; the answer goes there, of
    /// the same kind: a descriptor by which they come. To an acceptor, with a descriptor: accept these connections; without one: accept none.
    /// A keeper of an earlier version closes both descriptors.
    pub const CONTROL: u8 = 30;
    /// To an opener, with a descriptor: it is an acceptor, and passes connections on there.
    pub const ACCEPT: u8 = 31;
    /// From an acceptor to daemons, with a descriptor: a connection of the control socket, and the bytes that were read of it. With two
    /// descriptors these are in the second one, a memory file.
    pub const CONNECTION: u8 = 32;
}
