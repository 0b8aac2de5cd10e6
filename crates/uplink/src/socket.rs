//! UNIX sockets at a path: a listening one with one peer at a time, or a pair.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nicety_adapter::Time;
use nicety_adapter::snapshot::RestoreError;
use nicety_memory::MapError;
use nicety_socket::{Accepted, ListenError, Listener};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::watch::Watch;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Time until a peer that could not be accepted is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The reason why an uplink over a socket could not be made, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Listening at the path failed.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// An error of the operating system.
    #[error("{doing} {}: {source}", path.display())]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The path of the action.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No memory for the buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The state of another process's uplink does not fit.
    #[error("going on with {}: {source}", path.display())]
    State {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: RestoreError,
    },
}

/// A listening socket for one peer at a time. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct PeerListener {
    listener: Listener,
    /// Until then a peer waits that could not be accepted.
    shut_until: Option<Time>,
}

impl PeerListener {
    /// Listens at `path`. A stale socket of ours is replaced.
    pub(crate) fn bind(path: &Path, kind: SocketType) -> Result<Self, SocketError> {
        let bind = if kind == SocketType::SEQPACKET { Listener::bind_messages } else { Listener::bind };
        Ok(Self { listener: bind(path)?, shut_until: None })
    }

    /// Goes on with the listening socket of another process at this path.
    pub(crate) fn go_on(socket: OwnedFd, path: &Path) -> Result<Self, SocketError> {
        Ok(Self { listener: Listener::go_on(socket, path)?, shut_until: None })
    }

    /// The other process has let go of it: dropping this removes the file.
    pub(crate) fn own(&mut self) {
        self.listener.own();
    }

    /// The socket itself.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The socket's path.
    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Adds the socket to `watch`.
    pub(crate) fn watch(&self, watch: &Watch) -> io::Result<()> {
        watch.add(&self.listener)
    }

    /// Removes the socket from `watch`, while a peer is connected.
    pub(crate) fn leave(&self, watch: &Watch) {
        watch.remove(&self.listener);
    }

    /// Accepts a waiting peer. If no descriptors are left, accept(2) fails and the socket stays readable: it is unwatched for a
    /// while, to keep no worker awake.
    pub(crate) fn accept(&mut self, watch: &Watch, now: Time) -> Option<OwnedFd> {
        if self.shut_until.is_some_and(|at| now < at) {
            return None;
        }
        if self.shut_until.take().is_some() {
            let _retried_later = self.watch(watch);
        }
        match self.listener.accept(false) {
            Ok(Accepted::Client(peer, _)) => Some(peer),
            Ok(_) => None,
            Err(_) => {
                self.leave(watch);
                self.shut_until = Some(now.after(PAUSE));
                None
            }
        }
    }

    /// The time to try again, if the socket is unwatched for a while.
    pub(crate) fn wake(&self) -> Option<Time> {
        self.shut_until
    }
}

/// Two connected sockets.
pub(crate) fn pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd), SocketError> {
    rustix::net::socketpair(AddressFamily::UNIX, kind, FLAGS, None).map_err(os("making a socket pair", Path::new("")))
}

fn os(doing: &'static str, path: &Path) -> impl Fn(Errno) -> SocketError {
    move |error| SocketError::Os { doing, path: path.to_owned(), source: error.into() }
}

/// The error of a socket that cannot be watched.
pub(crate) fn watching(source: io::Error) -> SocketError {
    SocketError::Os { doing: "watching a socket", path: PathBuf::new(), source }
}
