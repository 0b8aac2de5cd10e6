//! Descriptors and memory of a peer, such as a VMM, used without waiting for the peer: its descriptors are signalled and read here
//! ([`Bell`]), closed ([`PeerFd`], `descriptor.rs`), and its memory is unmapped (`release.rs`). How much of what was sent a peer has
//! acknowledged or read: [`unacknowledged`].
//!
//! A descriptor by which two processes signal each other: an interrupt, a call, a kick (a doorbell). Signalling and clearing never
//! block on the peer, whatever flags and count the peer sets.
//!
//! O_NONBLOCK is not enough. The flag belongs to the open file, which both sides share: a hostile peer clears it and fills the
//! counter, and the next write blocks for ever. Handling of each kind:
//!
//! | | signalled | read |
//! |---|---|---|
//! | eventfd | by the kernel itself (`signal.rs`) | RWF_NOWAIT |
//! | UNIX stream socket | MSG_DONTWAIT | no: readers wait for each other |
//! | pipe | RWF_NOWAIT | RWF_NOWAIT |
//!
//! Anything else is refused. Pipes are for User-Mode Linux, which an eventfd cannot interrupt. A peer that may read into memory
//! without providing its pages can hold a pipe's lock for as long as it likes (docs/adr/0010).
#![deny(unsafe_code)]

mod descriptor;
mod peek;
mod release;
mod signal;
mod table;
mod tally;
mod unacknowledged;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nicety_sandbox::ProcFile;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlink};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, read, write};
use rustix::net::{AddressFamily, SendFlags, SocketType, send, sockopt};

pub use descriptor::{
    Account, CLOSING_MAX, PeerFd, UNCLOSED_MAX, left_open, serial, this_thread_pays, this_threads_is_exceeded,
};
pub use peek::peek_from;
pub use release::{holds_much, release, this_thread_may_wait, unmap};
pub use table::{Origin, Table};
pub use tally::Tally;
pub use unacknowledged::unacknowledged;

/// Prepares this thread to signal (else its first signal does), and starts the threads that close descriptors and unmap memory. An
/// error says why the kernel cannot signal eventfds for this thread (no CONFIG_AIO, a sandbox, `fs.aio-max-nr` exhausted).
/// Signalling still works then, but a hostile peer that wins a race can block it.
pub fn ready() -> Result<(), Errno> {
    release::ready();
    descriptor::ready();
    signal::ready()
}

const ONE: [u8; 8] = 1u64.to_ne_bytes();
/// preadv2(2)'s "no offset": neither eventfds nor pipes have one.
const NOWHERE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Our own eventfd, which a peer signals: it can block only itself.
    Own,
    /// A peer's eventfd.
    Eventfd,
    /// A UNIX stream socket: User-Mode Linux is signalled by one.
    Socket,
    /// A peer's pipe.
    Pipe,
}

/// A descriptor that becomes readable when an eight-byte 1 is written to it. A full counter counts as signalled.
#[derive(Debug)]
pub struct Bell {
    fd: PeerFd,
    kind: Kind,
}

impl Bell {
    /// A new eventfd of our own.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into(), kind: Kind::Own })
    }

    /// A peer's descriptor, for us to signal: an eventfd, a UNIX stream socket or a pipe. Anything else is refused.
    pub fn from_fd(fd: impl Into<PeerFd>) -> Result<Self, Errno> {
        let fd = fd.into();
        match sockopt::socket_domain(&fd) {
            Ok(AddressFamily::UNIX) if sockopt::socket_type(&fd)? == SocketType::STREAM => {
                Ok(Self { fd, kind: Kind::Socket })
            }
            Ok(_) => Err(Errno::INVAL),
            Err(_) => Self::of_a_file(fd),
        }
    }

    /// A peer's descriptor, for us to read: an eventfd or a pipe. Anything else is refused, and so is a semaphore eventfd
    /// (EFD_SEMAPHORE): one write of a large number would keep it readable almost for ever.
    pub fn to_hear(fd: impl Into<PeerFd>) -> Result<Self, Errno> {
        let bell = Self::of_a_file(fd.into())?;
        // Linux reports it since 6.5 (fs/eventfd.c, eventfd_show_fdinfo).
        let number = bell.as_fd().as_raw_fd();
        let info = ProcFile::FdInfo(number).read().unwrap_or_default();
        match info.lines().any(|line| line.strip_prefix("eventfd-semaphore:").is_some_and(|is| is.trim() != "0")) {
            true => Err(Errno::INVAL),
            false => Ok(bell),
        }
    }

    fn of_a_file(fd: PeerFd) -> Result<Self, Errno> {
        // fstat(2) cannot identify an eventfd, and it asks the file system, which may be the peer's own.
        let name = readlink(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), Vec::new())?;
        let kind = match name.as_bytes() {
            b"anon_inode:[eventfd]" => Kind::Eventfd,
            // A path would begin with a slash.
            name if name.starts_with(b"pipe:[") => Kind::Pipe,
            _ => return Err(Errno::INVAL),
        };
        // For kernels without non-blocking calls for these files.
        let flags = fcntl_getfl(&fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self { fd, kind })
    }

    /// Whether another process may hold it: an eventfd or a pipe. A socket may have others in flight, so its last close may wait.
    pub fn is_plain(&self) -> bool {
        self.kind != Kind::Socket
    }

    /// The [serial number](serial) of its descriptor.
    pub fn serial(&self) -> u64 {
        self.fd.serial()
    }

    /// Another handle of the same bell.
    pub fn try_clone(&self) -> Result<Self, std::io::Error> {
        Ok(Self { fd: self.fd.as_fd().try_clone_to_owned()?.into(), kind: self.kind })
    }

    /// Signals. An error means that the other end is closed.
    pub fn ring(&self) -> Result<(), Errno> {
        let rung = match self.kind {
            Kind::Own => write(&self.fd, &ONE).map(drop),
            Kind::Eventfd => signal::signal(self.fd.as_fd()).unwrap_or_else(|_unavailable| write_if_free(&self.fd)),
            Kind::Socket => send(&self.fd, &ONE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop),
            Kind::Pipe => match pwritev2(&self.fd, &[IoSlice::new(&ONE)], NOWHERE, ReadWriteFlags::NOWAIT) {
                Err(Errno::OPNOTSUPP) => write_if_free(&self.fd),
                rung => rung.map(drop),
            },
        };
        match rung {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            rung => rung,
        }
    }

    /// Clears the signal: the descriptor is no longer readable. True if it was set. Sockets are never read.
    pub fn clear(&self) -> bool {
        if self.kind == Kind::Socket {
            return false;
        }
        // A pipe holds one count per signal; it stays readable if more are left.
        let mut bytes = [0; 512];
        let taken = match preadv2(&self.fd, &mut [IoSliceMut::new(&mut bytes)], NOWHERE, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) if is_ready(&self.fd, PollFlags::IN) => read(&self.fd, &mut bytes),
            taken => taken,
        };
        taken.is_ok_and(|count| count > 0)
    }
}

/// Whether it can be read or written now. A peer that has cleared O_NONBLOCK may change that before we act, and block us. Kernels
/// without asynchronous I/O offer nothing better, nor do pipes before Linux 6.4.
fn is_ready(fd: &PeerFd, what: PollFlags) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, what)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

fn write_if_free(fd: &PeerFd) -> Result<(), Errno> {
    if is_ready(fd, PollFlags::OUT) { write(fd, &ONE).map(drop) } else { Ok(()) }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> OwnedFd {
        bell.fd.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_kernel_signals_no_eventfd_for_us_a_full_one_that_blocks_is_left_alone_all_the_same() {
        let full = PeerFd::from(eventfd(0, EventfdFlags::empty()).unwrap());
        write_if_free(&full).unwrap();
        write(&full, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        write_if_free(&full).unwrap();
        let mut count = [0; 8];
        read(&full, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), u64::MAX - 1);
    }
}
