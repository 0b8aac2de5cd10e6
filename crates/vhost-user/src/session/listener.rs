//! The listening socket while a front end is connected: watches for further connections.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

/// The listening socket, and the pause during which it is not polled.
pub(super) struct SideListener<'a> {
    fd: Option<BorrowedFd<'a>>,
    on_connect: &'a mut dyn FnMut() -> Duration,
    paused_until: Option<Instant>,
}

impl<'a> SideListener<'a> {
    /// `on_connect` handles another connection when `fd` is readable. It returns how long to ignore the socket.
    pub(super) fn new(fd: Option<BorrowedFd<'a>>, on_connect: &'a mut dyn FnMut() -> Duration) -> Self {
        Self { fd, on_connect, paused_until: None }
    }

    /// The end of the pause, if there is one.
    pub(super) fn paused_until(&mut self, now: Instant) -> Option<Instant> {
        self.paused_until = self.paused_until.filter(|until| *until > now);
        self.paused_until
    }

    /// The descriptor to poll, unless connections are ignored.
    pub(super) fn watched(&self) -> Option<PollFd<'a>> {
        let fd = self.fd.filter(|_| self.paused_until.is_none());
        fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// Handles another connection.
    pub(super) fn accepted(&mut self) {
        let pause = (self.on_connect)();
        self.paused_until = Some(Instant::now() + pause);
    }
}
