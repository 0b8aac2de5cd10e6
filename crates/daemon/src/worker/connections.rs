//! A worker's VMMs: they connect, talk, and go or are sent away.

use std::cmp::Reverse;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_adapter::trace::Event;
use nicety_adapter::{News, PortId, Stall};
use nicety_vfio_user::{Accepted, Session, SessionError};
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::debug;

use super::farewell::{self, take_leave, turn_away};
use super::{MESSAGE_COST, SESSION, SOCKET, Worker, token};
use crate::descriptors::tell_left_open;
use crate::patience::{PATIENCE, Patience};
use crate::port_log::{Kind, PortLog};
use crate::report::is_unshared;
use crate::service::{Link, Talk};

/// How long a socket is left alone after a connection could not be accepted (no descriptors left, say): it stays readable; and after
/// a VMM came that speaks another protocol, or that was refused because there is one already: QEMU would come again thousands of times
/// a second. When the one that was there has gone, the next one need not wait.
pub const DEAF: Duration = Duration::from_secs(1);

/// Why a VM loses its adapter.
pub(super) enum Why {
    Closed,
    Removed,
    Silent,
    Stopped,
    Unread,
    Damaged,
    Broken(SessionError),
}

impl Why {
    fn say(&self, log: &PortLog) {
        let gone = |kind, why: &dyn Display| log.say(kind, format_args!("the VMM is disconnected: {why}"));
        match self {
            Self::Closed => log.say(Kind::Gone, "the VMM has disconnected"),
            Self::Removed => gone(Kind::Closed, &"its port is closed"),
            Self::Silent => gone(Kind::Silent, &format_args!("it said nothing for {PATIENCE:?}")),
            Self::Stopped => gone(
                Kind::Stopped,
                &format_args!("it stopped within a message, which was not whole after {PATIENCE:?}"),
            ),
            Self::Unread => gone(Kind::Unread, &format_args!("it did not take its answers for {PATIENCE:?}")),
            Self::Damaged => gone(
                Kind::Damaged,
                &"it took back memory that it had shared (was its memory file truncated, or is there no huge page left?)",
            ),
            Self::Broken(SessionError::VhostUser) => gone(Kind::Broken, &log.crossed("vhost-user", "vfio-user")),
            Self::Broken(error) => gone(Kind::Broken, error),
        }
    }
}

/// Whether a VMM has closed its connection, or its half of it, though more of it may be to be read.
fn has_hung_up(session: &Session) -> bool {
    let mut ready = [PollFd::from_borrowed_fd(session.as_fd(), PollFlags::RDHUP)];
    let gone = PollFlags::HUP | PollFlags::RDHUP;
    poll(&mut ready, Some(&Timespec::default())).is_ok() && ready[0].revents().intersects(gone)
}

impl Worker {
    pub(super) fn socket(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        match &mut service.link {
            Link::Uplink(_) => {
                service.port.ready();
                self.enqueue(id);
            }
            // First its last words, then the next one.
            Link::Function { session: Some(talk), .. } if has_hung_up(&talk.session) => {
                if !self.behind.contains(&id) {
                    self.behind.push_back(id);
                }
            }
            Link::Function { listener, session, .. } => match listener.accept(session.is_some()) {
                Ok(Accepted::Client(socket, peer)) => {
                    let mut fresh = Box::new(Session::new(socket));
                    fresh.limit_dma_maps(nicety_memory::MAX_REGIONS);
                    let mut patience = Patience::default();
                    self.timers.extend(patience.begin(self.clock.now()).map(|at| Reverse((at, id))));
                    let talk = session.insert(Talk { session: fresh, patience });
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
                    self.leave(turn_away(socket, farewell::PATIENCE));
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

    /// Leaves a port's socket alone for a while.
    fn deafen(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        let Link::Function { listener, .. } = &service.link else { return };
        let at = self.clock.now().after(DEAF);
        let _it_may_not_be_watched = epoll::delete(&self.epoll, listener.as_fd());
        service.deaf_until = Some(at);
        self.timers.push(Reverse((at, id)));
    }

    /// Its socket is watched again.
    pub(super) fn listen(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        if service.deaf_until.take().is_some()
            && let Some(fd) = service.descriptor()
        {
            let _it_was_watched_before = epoll::add(&self.epoll, fd, token(id, SOCKET), EventFlags::IN);
        }
    }

    /// Some of a VMM's messages, if they are next.
    pub(super) fn session(&mut self, id: PortId) {
        let rounds = self.rounds;
        let Some(service) = self.services.get_mut(&id) else { return };
        let may = service.may_hear(rounds);
        let Link::Function { device, session: Some(Talk { session, patience }), .. } = &mut service.link else {
            return;
        };
        if !may {
            self.behind.push_back(id);
            return;
        }
        let had = (session.wants_read(), session.wants_write());
        let progress = match session.receive(device.as_mut()) {
            Ok(progress) => progress,
            Err(error) => {
                let closed = matches!(error, SessionError::Closed);
                let crossed = matches!(error, SessionError::VhostUser);
                self.disconnect(id, if closed { Why::Closed } else { Why::Broken(error) });
                if crossed {
                    self.deafen(id);
                }
                return;
            }
        };
        service.heard = true;
        service.credit -= i64::from(progress.work) * MESSAGE_COST;
        if progress.more && !session.wants_write() {
            self.behind.push_back(id);
        }
        let wants = (session.wants_read(), session.wants_write());
        if wants != had {
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, wants.0);
            flags.set(EventFlags::OUT, wants.1);
            let _its_session_is_watched = epoll::modify(&self.epoll, session.as_fd(), token(id, SESSION), flags);
        }
        if progress.handled > 0 || (had.1 && !wants.1) {
            patience.end();
        }
        // While its answers are not taken, nothing more of it is read.
        if wants.1 || session.is_within_message() {
            self.timers.extend(patience.begin(self.clock.now()).map(|at| Reverse((at, id))));
        }
    }

    /// A guest has broken one of its queues; a hostile one does so again and again.
    pub(super) fn stalled(&mut self, id: PortId, stall: Stall) {
        let Some(service) = self.services.get(&id) else { return };
        // What mends a queue does not help where no ring can be read: the log has said what does.
        let told = matches!(&service.link, Link::Function { device, .. } if device.has_told());
        if !(told && is_unshared(&service.port.state())) {
            service.log.say(Kind::Stalled, stall);
        }
    }

    /// Something happened at an uplink's other end; whoever is there may come and go all day.
    pub(super) fn news(&mut self, id: PortId, news: News) {
        let Some(service) = self.services.get(&id) else { return };
        match news {
            News::Vacant(why) => service.log.say(Kind::Vacant, why),
            News::Back(what) => service.log.say(Kind::Back, what),
        }
    }

    /// Keeps a thread that takes leave of somebody. Those that have ended are joined, not let go of: see `nicety_bell`'s `Closers`.
    fn leave(&mut self, leaving: Option<JoinHandle<()>>) {
        for gone in self.leaving.extract_if(.., |leaving| leaving.is_finished()) {
            let _it_has_nothing_to_say = gone.join();
        }
        self.leaving.extend(leaving);
    }

    /// The VM is gone, or must go: the port waits for the next one.
    pub(super) fn disconnect(&mut self, id: PortId, why: Why) {
        let now = self.clock.now();
        let Some(service) = self.services.get_mut(&id) else { return };
        if let Link::Function { device, session, .. } = &mut service.link
            && let Some(Talk { mut session, .. }) = session.take()
        {
            why.say(&service.log);
            self.behind.retain(|port| *port != id);
            debug!(port = service.log.port(), counters = ?session.counters(), "its session");
            session.disconnect(device.as_mut());
            if let Some(recorder) = &service.recorder {
                recorder.note(Event::Disconnect);
            }
            let _it_closes_anyway = epoll::delete(&self.epoll, session.as_fd());
            service.port.detach(now);
            device.renew();
            if matches!(why, Why::Removed) {
                self.leave(take_leave(session, farewell::PATIENCE));
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
