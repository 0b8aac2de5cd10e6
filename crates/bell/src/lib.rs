//! A descriptor by which two processes ring each other: an interrupt, a call, a kick. Whoever rings, or takes a ringing back,
//! does not wait for the other, whatever flags and count the other gives it.
//!
//! That O_NONBLOCK is set does not do: the flag belongs to the open file, which both have, and a peer that means harm clears
//! it and fills the counter, so that the next write to it waits for ever. What is done with each kind:
//!
//! | | rung | heard |
//! |---|---|---|
//! | eventfd | by the kernel itself (`signal.rs`) | RWF_NOWAIT |
//! | UNIX stream socket | MSG_DONTWAIT | no: readers wait for each other |
//! | pipe | RWF_NOWAIT | RWF_NOWAIT |
//!
//! Anything else is refused. Pipes are User-Mode Linux's, which no eventfd can interrupt. They have one lock for all, which a
//! peer holds for as long as it likes if it may read into memory whose pages it does not provide (docs/adr/0010).
#![deny(unsafe_code)]

mod lent;
mod release;
mod signal;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, readlink};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2, read, write};
use rustix::net::{AddressFamily, SendFlags, SocketType, send, sockopt};

pub use lent::{CLOSING_MOST, Lent, left_open};
pub use release::{holds_much, release};
pub use signal::ready;

const ONE: [u8; 8] = 1u64.to_ne_bytes();
/// What preadv2(2) takes for no offset: neither eventfds nor pipes have one.
const NOWHERE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An eventfd that was made here: whoever has it from us rings us, and is no danger to itself.
    Own,
    /// An eventfd of the peer's.
    Eventfd,
    /// A UNIX stream socket: User-Mode Linux is called by one.
    Socket,
    /// A pipe of the peer's.
    Pipe,
}

/// A descriptor that is rung by writing a one of eight bytes, and becomes readable. A bell that is full has been rung.
#[derive(Debug)]
pub struct Bell {
    fd: Lent,
    kind: Kind,
}

impl Bell {
    /// A bell of our own.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?.into(), kind: Kind::Own })
    }

    /// A descriptor of the peer's, to be rung: an eventfd, a UNIX stream socket or a pipe. Anything else is refused.
    pub fn from_fd(fd: impl Into<Lent>) -> Result<Self, Errno> {
        let fd = fd.into();
        match sockopt::socket_domain(&fd) {
            Ok(AddressFamily::UNIX) if sockopt::socket_type(&fd)? == SocketType::STREAM => {
                Ok(Self { fd, kind: Kind::Socket })
            }
            Ok(_) => Err(Errno::INVAL),
            Err(_) => Self::of_a_file(fd),
        }
    }

    /// A descriptor of the peer's, to be heard: an eventfd or a pipe. Anything else is refused, and so is an eventfd that gives its
    /// count one by one (EFD_SEMAPHORE): rung once with a large number, it would be heard for ever.
    pub fn to_hear(fd: impl Into<Lent>) -> Result<Self, Errno> {
        let bell = Self::of_a_file(fd.into())?;
        // Linux tells since 6.5 (fs/eventfd.c, eventfd_show_fdinfo).
        let number = bell.as_fd().as_raw_fd();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        match info.lines().any(|line| line.strip_prefix("eventfd-semaphore:").is_some_and(|is| is.trim() != "0")) {
            true => Err(Errno::INVAL),
            false => Ok(bell),
        }
    }

    fn of_a_file(fd: Lent) -> Result<Self, Errno> {
        // An eventfd has no type that fstat(2) would tell, and fstat asks the file system, which may be one of the peer's own.
        let name = readlink(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()), Vec::new())?;
        let kind = match name.as_bytes() {
            b"anon_inode:[eventfd]" => Kind::Eventfd,
            // A path would begin with a slash.
            name if name.starts_with(b"pipe:[") => Kind::Pipe,
            _ => return Err(Errno::INVAL),
        };
        // For kernels that do not know how to do without.
        let flags = fcntl_getfl(&fd)?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        }
        Ok(Self { fd, kind })
    }

    /// Another handle of the same bell.
    pub fn try_clone(&self) -> Result<Self, std::io::Error> {
        Ok(Self { fd: self.fd.as_fd().try_clone_to_owned()?.into(), kind: self.kind })
    }

    /// Rings. An error means that nobody can hear it: the other end has gone.
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

    /// Takes the ringing back: the descriptor is no longer readable. True if it had been rung. A socket is not heard.
    pub fn clear(&self) -> bool {
        if self.kind == Kind::Socket {
            return false;
        }
        // A pipe holds one count per ringing; what is left stays readable.
        let mut bytes = [0; 512];
        let taken = match preadv2(&self.fd, &mut [IoSliceMut::new(&mut bytes)], NOWHERE, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP) if is_ready(&self.fd, PollFlags::IN) => read(&self.fd, &mut bytes),
            taken => taken,
        };
        taken.is_ok_and(|count| count > 0)
    }
}

/// Whether it can be read or written now. Between this and doing so a peer that has cleared O_NONBLOCK may change it, and make
/// us wait: for kernels that signal no eventfd for us, and for pipes before Linux 6.4, there is no better way.
fn is_ready(fd: &Lent, what: PollFlags) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, what)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

fn write_if_free(fd: &Lent) -> Result<(), Errno> {
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
        let full = Lent::from(eventfd(0, EventfdFlags::empty()).unwrap());
        write_if_free(&full).unwrap();
        write(&full, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        write_if_free(&full).unwrap();
        let mut count = [0; 8];
        read(&full, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), u64::MAX - 1);
    }
}
