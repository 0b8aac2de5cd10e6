//! UNIX sockets at a path: one that listens, with one peer at a time, or a pair.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nicety_adapter::Time;
use nicety_memory::MapError;
use nicety_socket::{Accepted, ListenError, Listener};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::watch::Watch;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// How long a peer waits that could not be taken.
const PAUSE: Duration = Duration::from_secs(1);

/// Why an uplink over a socket could not be made, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// It cannot listen there.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The operating system's reasons.
    #[error("{doing} {}: {source}", path.display())]
    Os {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// No memory for its buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
}

/// A socket that listens, for one peer at a time; its file goes with it.
#[derive(Debug)]
pub(crate) struct Door {
    listener: Listener,
    /// A peer waits that could not be taken.
    shut_until: Option<Time>,
}

impl Door {
    /// Listens at `path`. A stale socket of ours is replaced.
    pub(crate) fn bind(path: &Path, kind: SocketType) -> Result<Self, SocketError> {
        let bind = if kind == SocketType::SEQPACKET { Listener::bind_messages } else { Listener::bind };
        Ok(Self { listener: bind(path)?, shut_until: None })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Has it watched.
    pub(crate) fn watch(&self, watch: &Watch) -> io::Result<()> {
        watch.add(&self.listener)
    }

    /// It need not be watched while a peer is there.
    pub(crate) fn leave(&self, watch: &Watch) {
        watch.remove(&self.listener);
    }

    /// A peer that waits, if there is one. One that cannot be taken, because no descriptors are left, keeps the socket
    /// readable: it is not watched for a while, so that it keeps no worker awake.
    pub(crate) fn accept(&mut self, watch: &Watch, now: Time) -> Option<OwnedFd> {
        if self.shut_until.is_some_and(|at| now < at) {
            return None;
        }
        if self.shut_until.take().is_some() {
            let _it_is_tried_again_in_a_while = self.watch(watch);
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

    /// When to look again, if it is not watched for a while.
    pub(crate) fn wake(&self) -> Option<Time> {
        self.shut_until
    }
}

/// Two sockets joined to each other.
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
