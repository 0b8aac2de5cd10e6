//! UNIX sockets at a path: one that listens, with one peer at a time, or one that joins it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nicety_memory::MapError;
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Why an uplink over a socket could not be made, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens there.
    #[error("{} is in use: another process listens there; stop it, or choose another path", .0.display())]
    InUse(PathBuf),
    /// Something else than a socket is there; it is left alone.
    #[error("{} exists and is not a socket: remove it, or choose another path", .0.display())]
    NotASocket(PathBuf),
    /// Nobody listens there.
    #[error("nobody listens at {}: start the other end first", .0.display())]
    Nobody(PathBuf),
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

/// A socket that listens; its file goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _somebody_removed_it = rustix::fs::unlink(&self.path);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Listener {
    /// Listens at `path`. A socket that nobody listens at any more is replaced.
    pub(crate) fn bind(path: &Path, kind: SocketType) -> Result<Self, SocketError> {
        let address = SocketAddrUnix::new(path).map_err(os("listening at", path))?;
        let fd = socket(path, kind)?;
        // The file takes the socket's own mode: it is the owner's alone from its first moment.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(os("protecting the socket", path))?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) => {
                let found = rustix::fs::lstat(path).map_err(os("looking at", path))?;
                if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
                    return Err(SocketError::NotASocket(path.to_owned()));
                }
                match rustix::net::connect(&socket(path, kind)?, &address) {
                    Err(Errno::CONNREFUSED) => {}
                    _ => return Err(SocketError::InUse(path.to_owned())),
                }
                rustix::fs::unlink(path).map_err(os("removing the old socket", path))?;
                rustix::net::bind(&fd, &address)
            }
            other => other,
        }
        .map_err(os("listening at", path))?;
        let listener = Self { fd, path: path.to_owned() };
        rustix::net::listen(&listener.fd, 1).map_err(os("listening at", path))?;
        Ok(listener)
    }

    /// A peer that waits, if there is one.
    pub(crate) fn accept(&self) -> Option<OwnedFd> {
        rustix::net::accept_with(&self.fd, FLAGS).ok()
    }
}

/// Joins whoever listens at `path`.
pub(crate) fn connect(path: &Path, kind: SocketType) -> Result<OwnedFd, SocketError> {
    let address = SocketAddrUnix::new(path).map_err(os("connecting to", path))?;
    let fd = socket(path, kind)?;
    rustix::net::connect(&fd, &address).map_err(|error| match error {
        Errno::NOENT | Errno::CONNREFUSED => SocketError::Nobody(path.to_owned()),
        // Its queue is full: it has a peer already, and another one waits.
        Errno::AGAIN => SocketError::InUse(path.to_owned()),
        error => os("connecting to", path)(error),
    })?;
    Ok(fd)
}

/// Two sockets joined to each other.
pub(crate) fn pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd), SocketError> {
    rustix::net::socketpair(AddressFamily::UNIX, kind, FLAGS, None).map_err(os("making a socket pair", Path::new("")))
}

fn socket(path: &Path, kind: SocketType) -> Result<OwnedFd, SocketError> {
    rustix::net::socket_with(AddressFamily::UNIX, kind, FLAGS, None).map_err(os("making a socket for", path))
}

fn os(doing: &'static str, path: &Path) -> impl Fn(Errno) -> SocketError {
    move |error| SocketError::Os { doing, path: path.to_owned(), source: error.into() }
}

/// The error of a socket that cannot be watched.
pub(crate) fn watching(source: io::Error) -> SocketError {
    SocketError::Os { doing: "watching a socket", path: PathBuf::new(), source }
}
