//! Source of an end's peers: it listens and takes one after the other, or it connects to a listening one, again and again.

use std::fmt::Display;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nicety_adapter::Time;
use nicety_socket::{JoinError, join};
use rustix::net::{SocketAddrUnix, SocketType};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::socket::{PeerListener, SocketError, watching};
use crate::watch::Watch;

/// First and longest pause between attempts to connect.
const RETRY_NS: (i64, i64) = (100_000_000, 1_000_000_000);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) enum PeerSource {
    /// Listens: one peer after the other.
    Listen(PeerListener),
    /// Connects to a listening peer; while there is none, the timer tells when to try again.
    Connect(Dialer),
    /// One given peer, and none after it.
    Given,
}

/// A peer to connect to, and the time of the next attempt.
#[derive(Debug)]
pub(crate) struct Dialer {
    path: PathBuf,
    kind: SocketType,
    timer: OwnedFd,
    pause_ns: i64,
    /// The reason why the last attempt failed.
    failed: Option<JoinError>,
}

impl PeerSource {
    /// Listens for peers at `path`. A stale socket there is replaced.
    pub(crate) fn listen(path: &Path, kind: SocketType, watch: &Watch) -> Result<Self, SocketError> {
        let listener = PeerListener::bind(path, kind)?;
        listener.watch(watch).map_err(watching)?;
        Ok(Self::Listen(listener))
    }

    /// Connects to a peer that listens at `path`, now or later: [`PeerSource::dial`] makes the first attempt.
    pub(crate) fn connect(path: &Path, kind: SocketType, watch: &Watch) -> Result<Self, SocketError> {
        // A path that is invalid for a socket stays invalid.
        SocketAddrUnix::new(path).map_err(|error| SocketError::Os {
            doing: "connecting to",
            path: path.to_owned(),
            source: error.into(),
        })?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
        let timer = timer.map_err(|error| watching(error.into()))?;
        watch.add(&timer).map_err(watching)?;
        Ok(Self::Connect(Dialer { path: path.to_owned(), kind, timer, pause_ns: RETRY_NS.0, failed: None }))
    }

    /// Goes on with the source of another process, which has a peer or not: the listening socket, or another timer.
    pub(crate) fn go_on(
        listener: Option<OwnedFd>,
        path: &Path,
        kind: SocketType,
        has_peer: bool,
        watch: &Watch,
    ) -> Result<Self, SocketError> {
        let Some(socket) = listener else {
            let mut this = Self::connect(path, kind, watch)?;
            // The other process may still go on, and join a peer itself.
            if let (Self::Connect(dialer), false) = (&mut this, has_peer) {
                dialer.again();
            }
            return Ok(this);
        };
        let listener = PeerListener::go_on(socket, path)?;
        if !has_peer {
            listener.watch(watch).map_err(watching)?;
        }
        Ok(Self::Listen(listener))
    }

    /// The listening socket, if it listens.
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Listen(listener) => Some(listener.as_fd()),
            Self::Connect(_) | Self::Given => None,
        }
    }

    /// The other process has let go of the listening socket.
    pub(crate) fn own(&mut self) {
        if let Self::Listen(listener) = self {
            listener.own();
        }
    }

    /// Accepts a waiting peer, or tries to connect if it is time to.
    pub(crate) fn seek(&mut self, watch: &Watch, now: Time) -> Option<OwnedFd> {
        match self {
            Self::Listen(listener) => listener.accept(watch, now),
            Self::Connect(dialer) if rustix::io::read(&dialer.timer, &mut [0; 8]).is_ok() => self.dial(),
            Self::Connect(_) | Self::Given => None,
        }
    }

    /// Tries to connect to the listening peer; if there is none, sets the timer.
    pub(crate) fn dial(&mut self) -> Option<OwnedFd> {
        let Self::Connect(dialer) = self else { return None };
        let (path, kind) = (dialer.path.clone(), dialer.kind);
        // A worker may not connect.
        match nicety_sandbox::aside(move || join(&path, kind)).unwrap_or(Err(JoinError::Nobody)) {
            Ok(joined) => Some(joined),
            Err(error) => {
                dialer.failed = Some(error);
                dialer.again();
                None
            }
        }
    }

    /// The reason why there is no peer, as text for people, with the reason why the last one was disconnected.
    pub(crate) fn vacant(&self, last: Option<impl Display>) -> String {
        let last = last.map(|last| format!("{last}; ")).unwrap_or_default();
        match self {
            Self::Listen(listener) => format!("{last}waits for a peer to join {}", listener.path().display()),
            Self::Connect(dialer) => {
                format!("{last}cannot join {}, and tries again every second: {}", dialer.path.display(), dialer.why())
            }
            Self::Given => format!("{last}the other end has gone"),
        }
    }

    /// A peer is connected: stops looking for others.
    pub(crate) fn met(&self, watch: &Watch) {
        if let Self::Listen(listener) = self {
            listener.leave(watch);
        }
    }

    /// The peer is gone: looks for the next one, after a short pause if `soon`, a long one after an unsuitable peer.
    pub(crate) fn parted(&mut self, soon: bool, watch: &Watch) {
        match self {
            Self::Listen(listener) => {
                let _nobody_can_connect = listener.watch(watch);
            }
            Self::Connect(dialer) => {
                dialer.pause_ns = if soon { RETRY_NS.0 } else { RETRY_NS.1 };
                dialer.again();
            }
            Self::Given => {}
        }
    }

    /// Time of the next attempt, in addition to the watch's events.
    pub(crate) fn wake(&self) -> Option<Time> {
        match self {
            Self::Listen(listener) => listener.wake(),
            Self::Connect(_) | Self::Given => None,
        }
    }
}

impl Dialer {
    /// The reason why the last attempt failed, with the remedy if waiting does not help.
    fn why(&self) -> String {
        match self.failed.as_ref().unwrap_or(&JoinError::Nobody) {
            JoinError::OtherKind if self.kind == SocketType::SEQPACKET => {
                "that is no pair's socket, but of bytes, as those of VMs' ports and of streams are: name that of the peer's [uplink]"
                    .to_owned()
            }
            JoinError::OtherKind => "that is no stream's socket, but of messages, as pairs' are: name another, or take \
                                     kind = \"pair\" here"
                .to_owned(),
            failed => failed.to_string(),
        }
    }

    /// Sets the timer, and the next pause.
    fn again(&mut self) {
        let at = Timespec { tv_sec: self.pause_ns / 1_000_000_000, tv_nsec: self.pause_ns % 1_000_000_000 };
        let once = Itimerspec { it_interval: Timespec::default(), it_value: at };
        let _never_refused = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
        self.pause_ns = (self.pause_ns * 2).min(RETRY_NS.1);
    }
}
