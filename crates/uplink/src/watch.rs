//! A descriptor that stays the same while the descriptors behind it come and go: an epoll instance.
//!
//! A socket whose peer has hung up, or a deleted tap, is ready for ever, and would keep its worker awake. It is removed from the
//! epoll instance; the worker's own set does not change.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};

#[derive(Debug)]
pub(crate) struct Watch(OwnedFd);

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Makes this readable from now on whenever `fd` is.
    pub(crate) fn add(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(0), EventFlags::IN)?)
    }

    /// Makes this readable also when `fd` can be written, or no longer. On an error `fd` is not watched.
    pub(crate) fn room(&self, fd: impl AsFd, wanted: bool) -> io::Result<()> {
        let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(0), flags)?)
    }

    /// Makes this readable when `fd` can be written. Only then: what comes in at `fd` is nobody's.
    pub(crate) fn add_for_room(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(0), EventFlags::OUT)?)
    }

    /// Stops watching `fd`.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        let _not_watched = epoll::delete(&self.0, fd);
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether `fd` can be written now, or its other end has gone.
pub(crate) fn writable(fd: impl AsFd) -> bool {
    !polled(fd).is_empty()
}

/// Result of poll(2) for `fd` now: `OUT` if it can be written.
pub(crate) fn polled(fd: impl AsFd) -> PollFlags {
    let fd = fd.as_fd();
    let mut poll = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut poll, Some(&now)) {
        Ok(_) => poll[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
