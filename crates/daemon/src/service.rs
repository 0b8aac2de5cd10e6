//! A port as its worker serves it: sockets, sessions, kicks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_bell::Bell;
use nicety_plane::{Port, Turn};
use nicety_vfio_user::{Listener, Session};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::device::PortDevice;
use crate::port_log::PortLog;
use crate::recorder::Recorder;
use crate::shell::Schedule;
use crate::timeout::Timeout;

/// What one round of the workers' deficit round-robin gives a port, in bytes.
pub(crate) const QUANTUM: i64 = 128 << 10;
/// How long a socket is not watched after a connection could not be accepted (no descriptors left, say; the socket stays readable), or
/// after a VMM was refused: it speaks another protocol, or the port is taken. QEMU would retry thousands of times a second. When the
/// connected VMM goes, the next one need not wait.
pub const DEAF: Duration = Duration::from_secs(1);

/// How a port's other side reaches it.
#[derive(Debug)]
pub enum Link {
    /// vfio-user: a socket that VMMs connect to, and the session if one has.
    Function {
        /// Where VMMs connect.
        listener: Listener,
        /// The device that they find.
        device: Box<PortDevice>,
        /// The VMM that is connected, and what it owes.
        session: Option<Talk>,
    },
    /// vhost-user: its control connection has a thread of its own; the worker only watches kicks.
    Rings {
        /// The kick descriptor of each ring.
        kicks: Vec<Option<Bell>>,
    },
    /// An uplink's descriptor, if it has one.
    Uplink(Option<OwnedFd>),
}

/// A VMM that is connected.
#[derive(Debug)]
pub struct Talk {
    pub(crate) session: Box<Session>,
    pub(crate) timeout: Timeout,
    /// The descriptor that is watched to unmask INTx: the last value of [`PortDevice::unmask`].
    pub(crate) unmask: Option<Arc<Bell>>,
    /// The port's state was saved: its messages wait.
    pub(crate) stopped: bool,
    /// The process that has connected, until a second VMM finds it gone: see `Talk::is_ending`.
    pub(crate) process: Option<Pid>,
}

impl Talk {
    /// Whether its process has ended though its connection has not: the kernel may close a dead process's descriptors later (io_uring's).
    /// Said once, for the connection may belong to somebody else now.
    pub(crate) fn is_ending(&mut self) -> bool {
        self.process.take_if(|process| test_kill_process(*process) == Err(Errno::SRCH)).is_some()
    }
}

/// See the module's page.
#[derive(Debug)]
pub struct Service {
    /// What is said of it.
    pub log: Arc<PortLog>,
    /// The port.
    pub port: Arc<Port>,
    /// Whether it waits for its turn.
    pub schedule: Arc<Schedule>,
    /// How it is reached.
    pub link: Link,
    /// Where what its guest does is noted, if it is.
    pub recorder: Option<Arc<Recorder>>,
    /// Until when its socket is left alone.
    pub(crate) deaf_until: Option<Time>,
    /// A flood under way, which must go on with the same turn.
    pub(crate) turn: Option<Box<Turn>>,
    /// Bytes that it may still cost before others have their turns.
    pub(crate) credit: i64,
    /// Its VMM's messages were served last, not its turn.
    pub(crate) heard: bool,
    /// The round in which it last got credit.
    pub(crate) round: u64,
}

impl Service {
    /// A port that nobody has connected to yet.
    pub fn new(log: Arc<PortLog>, port: Arc<Port>, schedule: Arc<Schedule>, link: Link) -> Self {
        Self {
            log,
            port,
            schedule,
            link,
            recorder: None,
            deaf_until: None,
            turn: None,
            credit: 0,
            heard: false,
            round: 0,
        }
    }

    /// Whether it has credit left. It gets some in each round in which it asks.
    pub(crate) fn can_pay(&mut self, round: u64) -> bool {
        if std::mem::replace(&mut self.round, round) != round {
            self.credit = (self.credit + QUANTUM).min(QUANTUM);
        }
        self.credit > 0
    }

    /// Whether its VMM's messages are next: it has credit, no flood is in progress, and messages do not go twice while its turn waits.
    pub(crate) fn may_hear(&mut self, round: u64) -> bool {
        let its_turn = self.heard && self.schedule.is_queued();
        self.turn.is_none() && !its_turn && self.can_pay(round)
    }

    /// The descriptors to watch from the beginning.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            Link::Function { listener, .. } => Some(listener.as_fd()),
            Link::Rings { .. } => None,
            Link::Uplink(fd) => fd.as_ref().map(AsFd::as_fd),
        }
    }
}
