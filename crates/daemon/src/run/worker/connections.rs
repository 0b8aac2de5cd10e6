//! A worker's VMMs: their connections, messages and disconnects.

use std::cmp::Reverse;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

use nicety_adapter::trace::Event;
use nicety_adapter::{News, NotedError, PortId, Reason, Stall, count};
use nicety_memory::{Refusal, Refused};
use nicety_plane::caught;
use nicety_vfio_user::{Accepted, Session, SessionError};
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;
use tracing::debug;

use super::farewell::{self, close_gently, decline_gently};
use super::late::give_up;
use super::{MESSAGE_COST, SESSION, SOCKET, Worker, token, unmask};
use crate::descriptors::warn_left_open;
use crate::run::port_log::{Kind, PortLog};
use crate::run::service::{ACCEPT_PAUSE, Link, Talk};
use crate::run::timeout::{TIMEOUT, Timeout};
use crate::sharing::Memory;

/// The reason why a VM loses its adapter.
pub(super) enum DisconnectReason {
    Closed,
    Removed,
    Silent,
    Stopped,
    Unread,
    Damaged,
    Failed,
    Broken(SessionError),
}

impl DisconnectReason {
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
            Self::Broken(SessionError::VhostUser) => gone(Kind::Broken, &log.wrong_protocol("vhost-user", "vfio-user")),
            Self::Broken(error) => {
                gone(Kind::Broken, &format_args!("{error}{}", nicety_sandbox::refused_here()));
            }
        }
    }
}

/// Whether a VMM has closed its connection or its half of it. Unread messages may remain.
fn has_hung_up(session: &Session) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(session.as_fd(), PollFlags::RDHUP)];
    let gone = PollFlags::HUP | PollFlags::RDHUP;
    poll(&mut ready, Some(&Timespec::default())).is_ok() && ready[0].revents().intersects(gone)
}

/// The events for which a session's descriptor is watched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    For(EventFlags),
    /// No events, not even its end: an end that cannot be handled yet would keep the worker awake.
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
        // The part of a message that has come stays in the socket: only more of it is an event.
        flags.set(EventFlags::ET, session.is_kept() && session.is_within_message());
        flags.set(EventFlags::OUT, session.wants_write());
        Self::For(flags)
    }

    /// Sets the events. The descriptor may be watched already.
    pub fn watch(self, epoll: &OwnedFd, session: BorrowedFd<'_>, id: PortId) {
        let _not_watched = match self {
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
            self.pause_accepting(id);
            return;
        }
        match &mut service.link {
            Link::Uplink(_) => {
                service.port.ready();
                self.enqueue(id);
            }
            // The pending mapping comes first. A VMM that finds the port taken will retry.
            Link::Function { session: Some(talk), .. } if talk.session.is_changing() && has_hung_up(&talk.session) => {
                self.pause_accepting(id);
            }
            // Handle the old VMM's last messages first, then the next VMM.
            Link::Function { session: Some(talk), .. } if has_hung_up(&talk.session) => {
                if !self.unread_sessions.contains(&id) {
                    self.unread_sessions.push_back(id);
                }
            }
            // Each connection would be another descriptor that is slow to close.
            Link::Function { device, .. } if device.account().is_exceeded() => {
                let why = SessionError::DescriptorsStayOpen;
                service.log.say(Kind::NotAccepted, format_args!("no VMM is let in: {why}"));
                self.pause_accepting(id);
            }
            Link::Function { listener, device, .. } if let Some(cause) = service.port.failure() => {
                if let Ok(Accepted::Refused(socket, peer)) = listener.accept(true) {
                    let socket = socket.charged_to(Some(device.account()));
                    service.log.say_of(
                        Kind::Failed,
                        peer.map(|p| p.pid),
                        format_args!("a VMM was refused: the port has failed: {cause}"),
                    );
                    self.keep_closer(decline_gently(socket, farewell::TIMEOUT));
                }
                self.pause_accepting(id);
            }
            Link::Function { .. } => self.accept(id),
            Link::Rings { .. } => {}
        }
    }

    /// Accepts a VMM, if one connects.
    fn accept(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        let Link::Function { listener, session, device } = &mut service.link else { return };
        match listener.accept(session.is_some()) {
            Ok(Accepted::Client(socket, peer)) => {
                let mut fresh = Box::new(Session::new(socket));
                fresh.limit_dma_maps(nicety_memory::MAX_REGIONS);
                fresh.charge_to(device.account());
                let mut timeout = Timeout::default();
                self.timers.extend(timeout.begin(self.clock.now()).map(|at| Reverse((at, id))));
                let talk = session.insert(Talk {
                    session: fresh,
                    timeout,
                    unmask: None,
                    stopped: false,
                    since: Some(self.clock.now()),
                    process: peer.and_then(|p| Pid::from_raw(p.pid)),
                });
                self.vmms += 1;
                let added = epoll::add(&self.epoll, talk.session.as_fd(), token(id, SESSION), EventFlags::IN);
                service.log.say_of(Kind::Connected, peer.map(|p| p.pid), "a VMM has connected");
                if let Err(error) = added {
                    service.log.say(Kind::NotServed, format_args!("its connection cannot be watched: {error}"));
                }
                service.port.attach();
                if let Some(recorder) = &service.recorder {
                    recorder.note(Event::Connect);
                }
                let owes = Self::keep(service, self.clock);
                self.owe(id, owes);
            }
            Ok(Accepted::Refused(socket, peer)) => {
                let socket = socket.charged_to(Some(device.account()));
                let pid = peer.map(|p| p.pid);
                service.log.say_of(Kind::Occupied, pid, "a second VMM was refused: the port has one already");
                self.pause_accepting(id);
                self.keep_closer(decline_gently(socket, farewell::TIMEOUT));
            }
            Ok(Accepted::Nobody) => {}
            Err(error) => {
                let what = format_args!("a connection was not accepted, the next try is in {ACCEPT_PAUSE:?}: {error}");
                service.log.say(Kind::NotAccepted, what);
                self.pause_accepting(id);
            }
        }
    }

    /// Stops watching a port's socket for a while.
    fn pause_accepting(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        let Link::Function { listener, .. } = &service.link else { return };
        let at = self.clock.now().after(ACCEPT_PAUSE);
        let _not_watched = epoll::delete(&self.epoll, listener.as_fd());
        service.accept_paused_until = Some(at);
        self.timers.push(Reverse((at, id)));
    }

    /// Watches a port's socket again.
    pub(super) fn listen(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        if service.accept_paused_until.take().is_some()
            && let Some(fd) = service.descriptor()
        {
            let _already_watched = epoll::add(&self.epoll, fd, token(id, SOCKET), EventFlags::IN);
        }
    }

    /// Handles some of a VMM's messages, if they are next.
    pub(super) fn session(&mut self, id: PortId) {
        let (rounds, now) = (self.rounds, self.clock.now());
        self.read_at = now;
        let Some(service) = self.services.get_mut(&id) else { return };
        let may = service.may_read_messages(rounds);
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return };
        talk.since.get_or_insert(self.looks.since());
        let Talk { session, unmask, stopped, since, .. } = talk;
        if *stopped {
            if has_hung_up(session) {
                self.disconnect(id, DisconnectReason::Closed);
            }
            return;
        }
        if !may {
            self.unread_sessions.push_back(id);
            return;
        }
        let had = Watched::of(session);
        nicety_sandbox::forget_refused_here();
        give_up(session, since, now);
        let progress = match caught(|| session.handle(device.as_mut())) {
            Ok(Ok(progress)) => progress,
            Err(cause) => {
                // The shell notifies this worker.
                service.port.fail(cause);
                return;
            }
            Ok(Err(error)) => {
                let closed = matches!(error, SessionError::Closed);
                let wrong_protocol = matches!(error, SessionError::VhostUser);
                self.disconnect(id, if closed { DisconnectReason::Closed } else { DisconnectReason::Broken(error) });
                if wrong_protocol {
                    self.pause_accepting(id);
                }
                return;
            }
        };
        give_up(session, since, self.clock.now());
        unmask::watch(&self.epoll, id, device.unmask(), unmask, &service.log);
        if let Err(error) = self.finish(id) {
            let closed = matches!(error, SessionError::Closed);
            self.disconnect(id, if closed { DisconnectReason::Closed } else { DisconnectReason::Broken(error) });
            return;
        }
        let Some(service) = self.services.get_mut(&id) else { return };
        let Link::Function { session: Some(Talk { session, timeout, since, .. }), .. } = &mut service.link else {
            return;
        };
        if !progress.more && session.is_settled() {
            *since = None;
        }
        service.messages_were_last = true;
        service.credit -= i64::from(progress.work) * MESSAGE_COST;
        if progress.more && !session.wants_write() {
            self.unread_sessions.push_back(id);
        }
        let wants = Watched::of(session);
        if wants != had {
            wants.watch(&self.epoll, session.as_fd(), id);
        }
        let wrote = |watched| matches!(watched, Watched::For(flags) if flags.contains(EventFlags::OUT));
        if progress.handled > 0 || (wrote(had) && !wrote(wants)) {
            timeout.end();
        }
        // While a VMM does not read its answers, its messages are not read.
        if wrote(wants) || session.is_within_message() {
            self.timers.extend(timeout.begin(self.clock.now()).map(|at| Reverse((at, id))));
        }
        self.tell_late(id);
    }

    /// The memory change that a port's VMM requested is done: answers it, and handles later messages.
    pub(super) fn mapped(&mut self, id: PortId) {
        if !self.unread_sessions.contains(&id) {
            self.session(id);
        }
    }

    /// Logs that a guest has broken one of its queues. A hostile guest does so repeatedly.
    pub(super) fn stalled(&mut self, id: PortId, stall: Stall) {
        let Some(service) = self.services.get(&id) else { return };
        // Advice about a queue does not help if no ring can be read. The log has the right advice already.
        let warned = matches!(&service.link, Link::Function { device, .. } if device.has_warned());
        if !(warned && Memory::Announced.is_unshared(&service.port.state())) {
            service.log.say(Kind::Stalled, stall);
        }
    }

    /// Logs a mistake of a guest's driver, at most one a second of each port. The number shows how many there were.
    pub(super) fn guest_error(&mut self, id: PortId, noted: NotedError) {
        if let Some(service) = self.services.get(&id) {
            service.log.say(Kind::GuestError, format_args!("guest error {}: {}", noted.number, noted.error));
        }
    }

    /// Logs an access to guest memory that a port's adapter was refused, at most one a second of each port.
    pub(super) fn refused_access(&mut self, id: PortId, refusal: &Refusal) {
        let Some(service) = self.services.get(&id) else { return };
        let Refused { reads, writes, .. } = service.port.state().refused;
        service.log.say(
            Kind::RefusedAccess,
            format_args!(
                "its adapter was refused {refusal}: no memory is mapped there for it (refused so far: {}, {})",
                count(reads, "read"),
                count(writes, "write")
            ),
        );
    }

    /// Logs that a port's policy refuses its guest's frames.
    pub(super) fn refused(&mut self, id: PortId, reason: Reason) {
        if let Some(service) = self.services.get(&id) {
            let name = reason.name();
            service
                .log
                .say(Kind::Forbidden, format_args!("its policy refuses what the VM sends: {name} (docs/switch.md)"));
        }
    }

    /// Logs an event at an uplink's peer. A peer may come and go all day.
    pub(super) fn news(&mut self, id: PortId, news: News) {
        self.plane.carrier_changed(id, self.clock.now());
        let Some(service) = self.services.get(&id) else { return };
        match news {
            News::Vacant(why) => service.log.say(Kind::Vacant, why),
            News::Back(what) => service.log.say(Kind::Back, what),
            News::Looped(what) => service.log.say(Kind::Looped, format_args!("{what} (docs/uplinks.md#loops)")),
            News::Moved(what) => service.log.say(Kind::Moved, what),
        }
        // A tap that was deleted, or another one that was attached.
        self.hold_again(id);
    }

    /// Handles a port's failure: its VM loses its adapter, and an uplink is not watched any more.
    pub(super) fn failed(&mut self, id: PortId) {
        self.settle_flood(id);
        let Some(service) = self.services.get_mut(&id) else { return };
        let Some(cause) = service.port.failure() else { return };
        service.log.say(Kind::Failed, format_args!("the port has failed: {cause}"));
        if let Link::Uplink(fd) = &mut service.link
            && let Some(fd) = fd.take()
        {
            let _not_watched = epoll::delete(&self.epoll, &fd);
        }
        self.disconnect(id, DisconnectReason::Failed);
    }

    /// Keeps a thread that closes a connection. Ended threads are joined, not detached: see `nicety_peer`'s `Closers`.
    pub(super) fn keep_closer(&mut self, closer: Option<JoinHandle<()>>) {
        for gone in self.closers.extract_if(.., |closer| closer.is_finished()) {
            let _thread_result = gone.join();
        }
        self.closers.extend(closer);
    }

    /// Disconnects the VM, which has gone or must go. The port waits for the next one.
    pub(super) fn disconnect(&mut self, id: PortId, why: DisconnectReason) {
        let now = self.clock.now();
        let Some(service) = self.services.get_mut(&id) else { return };
        if let Link::Function { device, session, .. } = &mut service.link
            && let Some(Talk { mut session, unmask, .. }) = session.take()
        {
            self.vmms -= 1;
            why.say(&service.log);
            let is_kept = session.is_kept();
            self.unread_sessions.retain(|port| *port != id);
            debug!(port = service.log.port(), counters = ?session.counters(), "its session");
            unmask::forget(&self.epoll, unmask);
            session.disconnect(device.as_mut());
            if let Some(recorder) = &service.recorder {
                recorder.note(Event::Disconnect);
            }
            let _not_watched = epoll::delete(&self.epoll, session.as_fd());
            service.port.detach(now);
            device.renew();
            if is_kept {
                // A descriptor that the keeper holds would hide the end from the VMM.
                let owes = Self::keep(service, self.clock);
                self.owe(id, owes);
            }
            if matches!(why, DisconnectReason::Removed | DisconnectReason::Failed) {
                self.keep_closer(close_gently(session, farewell::TIMEOUT));
            }
            self.listen(id);
            warn_left_open();
        } else if let Link::Rings { .. } = &service.link
            && matches!(why, DisconnectReason::Damaged)
        {
            service.log.say(Kind::Damaged, "the front end took back memory that it had shared: its port is stopped");
            service.port.detach(now);
        }
    }
}
