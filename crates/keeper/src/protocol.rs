//! The protocol of the keeper, daemons and openers: arguments, environment variables, and the kinds of messages (`channel.rs`).

/// The version of the keeper's messages. A keeper and a daemon of different versions refuse each other.
pub(crate) const VERSION: u8 = 1;

/// The hidden argument with which the keeper starts a daemon.
pub const KEPT: &str = "--kept";

/// The environment variable that says that the keeper kills a daemon that gives no sign of life ([`Holder::lives`](crate::Holder::lives)), after so many
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

/// The environment variable that says that the keeper starts openers ([`KeptBy::opener`](crate::KeptBy::opener)): [`WITH_ADMINISTRATION`], or something else.
pub(crate) const OPENS_TOO: &str = "NICETY_KEEPER_OPENS";
/// Openers have CAP_NET_ADMIN.
pub(crate) const WITH_ADMINISTRATION: &str = "net_admin";

/// Most descriptors of an owner, with those that wait to be closed.
pub(crate) const DESCRIPTORS_MAX: usize = 1000;

/// The reason why the keeper does not hold an owner's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It has too many of them.
    #[error("it has more than {DESCRIPTORS_MAX} descriptors")]
    Many,
    /// Closing the ones that were held before takes long.
    #[error("too many of its earlier descriptors still wait to be closed")]
    Slow,
    /// There are too many messages about it.
    #[error("its descriptors change too often")]
    Often,
    /// The keeper has few descriptors left.
    #[error("few descriptors are left: raise the limit of open files (ulimit -n)")]
    Full,
    /// The descriptors that were to be renewed are not there.
    #[error("its last descriptors are not held")]
    Missing,
    /// A keeper of a later version has another reason.
    #[error("it says so")]
    Other,
}

impl Why {
    pub(crate) fn number(self) -> u64 {
        self as u64
    }

    pub(crate) fn of(number: u64) -> Self {
        let all = [Self::Many, Self::Slow, Self::Often, Self::Full, Self::Missing];
        all.into_iter().find(|why| why.number() == number).unwrap_or(Self::Other)
    }
}

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
    /// To the daemon that has asked, with a descriptor: it was opened, and has this name.
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
