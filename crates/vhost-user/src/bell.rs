//! A notification by file descriptor: an eventfd, or a socket (User-Mode Linux's calls are).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, read, write};
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// A descriptor that is rung by writing a one of eight bytes, and becomes readable. Ringing never blocks: a bell that
/// is full has been rung.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    socket: bool,
}

impl Bell {
    /// A bell of our own.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, socket: false })
    }

    /// A descriptor of the peer's. It is made non-blocking; something that can be no bell (a file, a directory, a
    /// device) is refused.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Errno> {
        let kind = FileType::from_raw_mode(fstat(&fd)?.st_mode);
        let socket = kind == FileType::Socket;
        // An eventfd has no file type at all.
        if !matches!(kind, FileType::Socket | FileType::Fifo | FileType::Unknown) {
            return Err(Errno::INVAL);
        }
        let flags = fcntl_getfl(&fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self { fd, socket })
    }

    /// Another handle of the same bell.
    pub fn try_clone(&self) -> Result<Self, std::io::Error> {
        Ok(Self { fd: self.fd.try_clone()?, socket: self.socket })
    }

    /// Rings. An error means that the other end has gone.
    pub fn ring(&self) -> Result<(), Errno> {
        let one = 1u64.to_ne_bytes();
        let rung = if self.socket {
            send(&self.fd, &one, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        } else {
            write(&self.fd, &one)
        };
        match rung {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Takes the ringing back: the descriptor is no longer readable. True if it had been rung.
    pub fn clear(&self) -> bool {
        let mut bytes = [0; 512];
        let taken = if self.socket {
            recv(&self.fd, &mut bytes[..], RecvFlags::DONTWAIT).map(|(n, _)| n)
        } else {
            // A pipe holds one count per ringing; what is left stays readable.
            read(&self.fd, &mut bytes[..])
        };
        taken.is_ok_and(|n| n > 0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> OwnedFd {
        bell.fd
    }
}
