//! A port from its worker's side: sockets, sessions, kicks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_peer::Bell;
use nicety_plane::{Port, Turn};
use nicety_vfio_user::{Listener, Session};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::run::device::PortDevice;
use crate::run::journal::Journal;
use crate::run::kept_uplinks::UplinkHold;
use crate::run::port_log::PortLog;
use crate::run::recorder::Recorder;
use crate::run::shell::Schedule;
use crate::run::timeout::Timeout;

/// A port's quantum in the workers' deficit round-robin, in bytes.
pub(crate) const QUANTUM: i64 = 128 << 10;
/// The time for which a listening socket is not watched. The pause follows a connection that could not be accepted (for example
/// without free descriptors: the socket stays readable). It also follows the refusal of a VMM that speaks another protocol or
/// finds the port taken: QEMU would retry thousands of times a second. When the connected VMM disconnects, the pause ends for the
/// next one.
pub const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The connection of a VMM or peer to a port.
#[derive(Debug)]
pub enum Link {
    /// vfio-user: a socket for VMMs, and the session of the connected one.
    Function {
        /// The socket at which VMMs connect.
        listener: Listener,
        /// The device behind the socket.
        device: Box<PortDevice>,
        /// The connected VMM, and its idle timeout.
        session: Option<Talk>,
    },
    /// vhost-user: the control connection has its own thread; the worker only watches kicks.
    Rings {
        /// The kick descriptor of each ring.
        kicks: Vec<Option<Bell>>,
    },
    /// An uplink's descriptor, if it has one.
    Uplink(Option<OwnedFd>),
}

/// A connected VMM.
#[derive(Debug)]
pub struct Talk {
    pub(crate) session: Box<Session>,
    pub(crate) timeout: Timeout,
    /// The descriptor watched to unmask INTx: the last value of [`PortDevice::unmask`].
    pub(crate) unmask: Option<Arc<Bell>>,
    /// Whether the port's state was saved: then the VMM's messages wait.
    pub(crate) stopped: bool,
    /// A time since which all its messages have come that wait. `None`: none waits, but for those that the next look finds.
    pub(crate) since: Option<Time>,
    /// The connected process. `None` after a second VMM has found that it ended: see `Talk::is_ending`.
    pub(crate) process: Option<Pid>,
}

impl Talk {
    /// Whether the VMM's process has ended but its connection has not: the kernel may close a dead process's descriptors later
    /// (io_uring's). Returns true once, because another process may hold the connection now.
    pub(crate) fn is_ending(&mut self) -> bool {
        self.process.take_if(|process| test_kill_process(*process) == Err(Errno::SRCH)).is_some()
    }
}

/// A port and its worker's state of it.
#[derive(Debug)]
pub struct Service {
    /// Its log.
    pub log: Arc<PortLog>,
    /// The port.
    pub port: Arc<Port>,
    /// Whether the port is queued for a turn.
    pub schedule: Arc<Schedule>,
    /// The connection to its VMM or peer.
    pub link: Link,
    /// Records its guest's accesses, if recording is on.
    pub recorder: Option<Arc<Recorder>>,
    /// Keeps the port in case this process is killed, if there is a keeper.
    pub(crate) journal: Option<Journal>,
    /// Keeps an uplink in case this process is killed, if there is a keeper.
    pub(crate) hold: Option<UplinkHold>,
    /// The time until which its socket is not watched.
    pub(crate) accept_paused_until: Option<Time>,
    /// The turn of an unfinished flood, which must continue.
    pub(crate) turn: Option<Box<Turn>>,
    /// Its deficit counter: the bytes that it may still use before others get their turns.
    pub(crate) credit: i64,
    /// Whether its VMM's messages were served last, and not its turn.
    pub(crate) messages_were_last: bool,
    /// The round in which it last got credit.
    pub(crate) round: u64,
}

impl Service {
    /// A port without a connection.
    pub fn new(log: Arc<PortLog>, port: Arc<Port>, schedule: Arc<Schedule>, link: Link) -> Self {
        Self {
            log,
            port,
            schedule,
            link,
            recorder: None,
            journal: None,
            hold: None,
            accept_paused_until: None,
            turn: None,
            credit: 0,
            messages_were_last: false,
            round: 0,
        }
    }

    /// Whether it has credit left. It gets a quantum in each round in which it asks.
    pub(crate) fn can_pay(&mut self, round: u64) -> bool {
        if std::mem::replace(&mut self.round, round) != round {
            self.credit = (self.credit + QUANTUM).min(QUANTUM);
        }
        self.credit > 0
    }

    /// Whether its VMM's messages are next: it has credit, no flood is in progress, and no turn waits since its last messages.
    pub(crate) fn may_read_messages(&mut self, round: u64) -> bool {
        let its_turn = self.messages_were_last && self.schedule.is_queued();
        self.turn.is_none() && !its_turn && self.can_pay(round)
    }

    /// The descriptor to watch from the start.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            Link::Function { listener, .. } => Some(listener.as_fd()),
            Link::Rings { .. } => None,
            Link::Uplink(fd) => fd.as_ref().map(AsFd::as_fd),
        }
    }
}
