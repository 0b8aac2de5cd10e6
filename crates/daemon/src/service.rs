//! A port as its worker serves it: sockets, sessions, kicks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nicety_adapter::Time;
use nicety_bell::Bell;
use nicety_plane::{Port, Turn};
use nicety_vfio_user::{Listener, Session};

use crate::device::PortDevice;
use crate::patience::Patience;
use crate::port_log::PortLog;
use crate::recorder::Recorder;
use crate::shell::Schedule;
use crate::worker::QUANTUM;

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
    pub(crate) patience: Patience,
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
    /// Its VMM's messages were served last, and not its turn.
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

    /// Whether it has credit left, of which it gets some in each round that it wants some in.
    pub(crate) fn can_pay(&mut self, round: u64) -> bool {
        if std::mem::replace(&mut self.round, round) != round {
            self.credit = (self.credit + QUANTUM).min(QUANTUM);
        }
        self.credit > 0
    }

    /// Whether its VMM's messages are next: paid for, not in the middle of a flood, and not twice while its turn waits.
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
