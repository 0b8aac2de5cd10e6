//! A worker's VMMs: they connect, talk, and disconnect or are disconnected.

use std::cmp::Reverse;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use nicety_adapter::trace::Event;
use nicety_adapter::{News, PortId, Reason, Stall};
use nicety_plane::caught;
use nicety_vfio_user::{Accepted, Session, SessionError};
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use tracing::debug;

use super::farewell::{self, take_leave, turn_away};
use super::{MESSAGE_COST, SESSION, SOCKET, Worker, token, unmask};
use crate::descriptors::tell_left_open;
use crate::port_log::{Kind, PortLog};
use crate::service::{DEAF, Link, Talk};
use crate::sharing::Memory;
use crate::timeout::{TIMEOUT, Timeout};

/// Why a VM loses its adapter.
pub(super) enum Why {
    Closed,
    Removed,
    Silent,
    Stopped,
    Unread,
    Damaged,
    Failed,
    Broken(SessionError),
}

impl Why {
    fn say(&self, log: &PortLog) {
        let gone = |kind, why: &dyn Display| log.say(kind, format_args!("the VMM is disconnected: {why}"));
        match self {
            Self::Closed => log.say(Kind::Gone, "the VMM has disconnected"),
            Self::Removed => gone(Kind::Closed, &"its port is closed"),
            Self::Silent => gone(Kind::Silent, &format_args!("it said nothing for {TIMEOUT:?}")),
            Self::Stopped => {
                gone(Kind::Stopped, &format_args!("it stopped within a message, which was not whole after {TIMEOUT:?}"))
            }
            Self::Unread => gone(Kind::Unread, &format_args!("it did not take its answers for {TIMEOUT:?}")),
            Self::Damaged => gone(
                Kind::Damaged,
                &"it took back memory that it had shared (was its memory file truncated, or is there no huge page left?)",
            ),
            Self::Failed => gone(Kind::Failed, &"its port has failed"),
            Self::Broken(SessionError::VhostUser) => gone(Kind::Broken, &log.crossed("vhost-user", "vfio-user")),
            Self::Broken(error) => gone(Kind::Broken, error),
        }
    }
}

/// Whether a VMM has closed its connection or its half of it. Unread messages may remain.
fn has_hung_up(session: &Session) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(session.as_fd(), PollFlags::RDHUP)];
    let gone = PollFlags::HUP | PollFlags::RDHUP;
    poll(&mut ready, Some(&Timespec::default())).is_ok() && ready[0].revents().intersects(gone)
}

/// The events that a session's descriptor is watched for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    For(EventFlags),
    /// None, not even its end: an end that may not be handled yet would keep the worker awake.
    Not,
}

impl Watched {
    /// Only its end.
    pub const STILL: Self = Self::For(EventFlags::empty());

    pub fn of(session: &Session) -> Self {
        if session.is_changing() {
            return Self::Not;
        }
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, session.wants_read());
        flags.set(EventFlags::OUT, session.wants_write());
        Self::For(flags)
    }

    /// Sets the events; the descriptor may be watched already.
    pub fn watch(self, epoll: &OwnedFd, session: BorrowedFd<'_>, id: PortId) {
        let _it_may_not_have_been_watched = match self {
            Self::For(flags) => match epoll::modify(epoll, session, token(id, SESSION), flags) {
                Err(Errno::NOENT) => epoll::add(epoll, session, token(id, SESSION), flags),
                modified => modified,
            },
            Self::Not => epoll::delete(epoll, session),
        };
    }
}

impl Worker {
    pub(super) fn socket(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        if let Link::Function { session: Some(talk), .. } = &mut service.link
            && !has_hung_up(&talk.session)
            && talk.is_ending()
        {
            self.deafen(id);
            return;
        }
        match &mut service.link {
            Link::Uplink(_) => {
                service.port.ready();
                self.enqueue(id);
            }
            // The pending mapping comes first; a VMM that finds the port taken will retry.
            Link::Function { session: Some(talk), .. } if talk.session.is_changing() && has_hung_up(&talk.session) => {
                self.deafen(id);
            }
            // First the old VMM's last messages, then the next VMM.
            Link::Function { session: Some(talk), .. } if has_hung_up(&talk.session) => {
                if !self.behind.contains(&id) {
                    self.behind.push_back(id);
                }
            }
            Link::Function { listener, .. } if let Some(cause) = service.port.failure() => {
                if let Ok(Accepted::Refused(socket, peer)) = listener.accept(true) {
                    service.log.say_of(
                        Kind::Failed,
                        peer.map(|p| p.pid),
                        format_args!("a VMM was refused: the port has failed: {cause}"),
                    );
                    self.leave(turn_away(socket, farewell::TIMEOUT));
                }
                self.deafen(id);
            }
            Link::Function { listener, session, .. } => match listener.accept(session.is_some()) {
                Ok(Accepted::Client(socket, peer)) => {
                    let mut fresh = Box::new(Session::new(socket));
                    fresh.limit_dma_maps(nicety_memory::MAX_REGIONS);
                    let mut timeout = Timeout::default();
                    self.timers.extend(timeout.begin(self.clock.now()).map(|at| Reverse((at, id))));
                    let talk = session.insert(Talk {
                        session: fresh,
                        timeout,
                        unmask: None,
                        stopped: false,
                        process: peer.and_then(|p| Pid::from_raw(p.pid)),
                    });
                    let added = epoll::add(&self.epoll, talk.session.as_fd(), token(id, SESSION), EventFlags::IN);
                    service.log.say_of(Kind::Connected, peer.map(|p| p.pid), "a VMM has connected");
                    if let Err(error) = added {
                        service.log.say(Kind::NotServed, format_args!("its connection cannot be watched: {error}"));
                    }
                    service.port.attach();
                    if let Some(recorder) = &service.recorder {
                        recorder.note(Event::Connect);
                    }
                }
                Ok(Accepted::Refused(socket, peer)) => {
                    let pid = peer.map(|p| p.pid);
                    service.log.say_of(Kind::Occupied, pid, "a second VMM was refused: the port has one already");
                    self.deafen(id);
                    self.leave(turn_away(socket, farewell::TIMEOUT));
                }
                Ok(Accepted::Nobody) => {}
                Err(error) => {
                    let what = format_args!("a connection was not accepted, the next try is in {DEAF:?}: {error}");
                    service.log.say(Kind::NotAccepted, what);
                    self.deafen(id);
                }
            },
            Link::Rings { .. } => {}
        }
    }

    /// Stops watching a port's socket for a while.
    fn deafen(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        let Link::Function { listener, .. } = &service.link else { return };
        let at = self.clock.now().after(DEAF);
        let _it_may_not_be_watched = epoll::delete(&self.epoll, listener.as_fd());
        service.deaf_until = Some(at);
        self.timers.push(Reverse((at, id)));
    }

    /// Watches its socket again.
    pub(super) fn listen(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        if service.deaf_until.take().is_some()
            && let Some(fd) = service.descriptor()
        {
            let _it_was_watched_before = epoll::add(&self.epoll, fd, token(id, SOCKET), EventFlags::IN);
        }
    }

    /// Handles some of a VMM's messages, if they are next.
    pub(super) fn session(&mut self, id: PortId) {
        let rounds = self.rounds;
        let Some(service) = self.services.get_mut(&id) else { return };
        let may = service.may_hear(rounds);
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return };
        let Talk { session, timeout, unmask, stopped, .. } = talk;
        if *stopped {
            if has_hung_up(session) {
                self.disconnect(id, Why::Closed);
            }
            return;
        }
        if !may {
            self.behind.push_back(id);
            return;
        }
        let had = Watched::of(session);
        let progress = match caught(|| session.receive(device.as_mut())) {
            Ok(Ok(progress)) => progress,
            Err(cause) => {
                // The shell notifies this worker.
                service.port.fail(cause);
                return;
            }
            Ok(Err(error)) => {
                let closed = matches!(error, SessionError::Closed);
                let crossed = matches!(error, SessionError::VhostUser);
                self.disconnect(id, if closed { Why::Closed } else { Why::Broken(error) });
                if crossed {
                    self.deafen(id);
                }
                return;
            }
        };
        unmask::watch(&self.epoll, id, device.unmask(), unmask, &service.log);
        service.heard = true;
        service.credit -= i64::from(progress.work) * MESSAGE_COST;
        if progress.more && !session.wants_write() {
            self.behind.push_back(id);
        }
        let wants = Watched::of(session);
        if wants != had {
            wants.watch(&self.epoll, session.as_fd(), id);
        }
        let wrote = |watched| matches!(watched, Watched::For(flags) if flags.contains(EventFlags::OUT));
        if progress.handled > 0 || (wrote(had) && !wrote(wants)) {
            timeout.end();
        }
        // While a VMM does not read its answers, no more of its messages are read.
        if wrote(wants) || session.is_within_message() {
            self.timers.extend(timeout.begin(self.clock.now()).map(|at| Reverse((at, id))));
        }
    }

    /// The memory change that its VMM requested is done: answers it, and handles later messages.
    pub(super) fn mapped(&mut self, id: PortId) {
        if !self.behind.contains(&id) {
            self.session(id);
        }
    }

    /// A guest has broken one of its queues; a hostile one does so repeatedly.
    pub(super) fn stalled(&mut self, id: PortId, stall: Stall) {
        let Some(service) = self.services.get(&id) else { return };
        // Advice about a queue does not help where no ring can be read; the log has already said what does.
        let told = matches!(&service.link, Link::Function { device, .. } if device.has_told());
        if !(told && Memory::Announced.is_unshared(&service.port.state())) {
            service.log.say(Kind::Stalled, stall);
        }
    }

    /// A port's policy refuses its guest's frames.
    pub(super) fn refused(&mut self, id: PortId, reason: Reason) {
        if let Some(service) = self.services.get(&id) {
            let name = reason.name();
            service
                .log
                .say(Kind::Forbidden, format_args!("its policy refuses what the VM sends: {name} (docs/switch.md)"));
        }
    }

    /// An event at an uplink's peer. A peer may come and go all day.
    pub(super) fn news(&mut self, id: PortId, news: News) {
        let Some(service) = self.services.get(&id) else { return };
        match news {
            News::Vacant(why) => service.log.say(Kind::Vacant, why),
            News::Back(what) => service.log.say(Kind::Back, what),
        }
    }

    /// A port has failed: its VM loses its adapter, and an uplink is not watched any more.
    pub(super) fn failed(&mut self, id: PortId) {
        self.settle_flood(id);
        let Some(service) = self.services.get_mut(&id) else { return };
        let Some(cause) = service.port.failure() else { return };
        service.log.say(Kind::Failed, format_args!("the port has failed: {cause}"));
        if let Link::Uplink(fd) = &mut service.link
            && let Some(fd) = fd.take()
        {
            let _it_may_not_be_watched = epoll::delete(&self.epoll, &fd);
        }
        self.disconnect(id, Why::Failed);
    }

    /// Keeps a thread that closes a connection. Ended threads are joined, not detached: see `nicety_bell`'s `Closers`.
    pub(super) fn leave(&mut self, leaving: Option<JoinHandle<()>>) {
        for gone in self.leaving.extract_if(.., |leaving| leaving.is_finished()) {
            let _it_has_nothing_to_say = gone.join();
        }
        self.leaving.extend(leaving);
    }

    /// The VM has gone or must go: the port waits for the next one.
    pub(super) fn disconnect(&mut self, id: PortId, why: Why) {
        let now = self.clock.now();
        let Some(service) = self.services.get_mut(&id) else { return };
        if let Link::Function { device, session, .. } = &mut service.link
            && let Some(Talk { mut session, unmask, .. }) = session.take()
        {
            why.say(&service.log);
            self.behind.retain(|port| *port != id);
            debug!(port = service.log.port(), counters = ?session.counters(), "its session");
            unmask::forget(&self.epoll, unmask);
            session.disconnect(device.as_mut());
            if let Some(recorder) = &service.recorder {
                recorder.note(Event::Disconnect);
            }
            let _it_closes_anyway = epoll::delete(&self.epoll, session.as_fd());
            service.port.detach(now);
            device.renew();
            if matches!(why, Why::Removed | Why::Failed) {
                self.leave(take_leave(session, farewell::TIMEOUT));
            }
            self.listen(id);
            tell_left_open();
        } else if let Link::Rings { .. } = &service.link
            && matches!(why, Why::Damaged)
        {
            service.log.say(Kind::Damaged, "the front end took back memory that it had shared: its port is stopped");
            service.port.detach(now);
        }
    }
}
