//! The listening socket while a front end is connected: further connections.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

/// See the module's page.
pub(super) struct Door<'a> {
    fd: Option<BorrowedFd<'a>>,
    knocked: &'a mut dyn FnMut() -> Duration,
    shut_until: Option<Instant>,
}

impl<'a> Door<'a> {
    /// Readable when another connection arrives, which `knocked` handles; it returns how long to ignore the socket.
    pub(super) fn new(fd: Option<BorrowedFd<'a>>, knocked: &'a mut dyn FnMut() -> Duration) -> Self {
        Self { fd, knocked, shut_until: None }
    }

    /// Until when connections are ignored, if they are.
    pub(super) fn shut_until(&mut self, now: Instant) -> Option<Instant> {
        self.shut_until = self.shut_until.filter(|until| *until > now);
        self.shut_until
    }

    /// What to poll, unless connections are ignored.
    pub(super) fn watched(&self) -> Option<PollFd<'a>> {
        let fd = self.fd.filter(|_| self.shut_until.is_none());
        fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// Another connection has arrived.
    pub(super) fn knock(&mut self) {
        let pause = (self.knocked)();
        self.shut_until = Some(Instant::now() + pause);
    }
}
