//! A worker's VMMs: they connect, talk, and go or are sent away.

use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::time::Duration;

use nicety_adapter::trace::Event;
use nicety_adapter::{PortId, Stall};
use nicety_vfio_user::{Accepted, Session, SessionError};
use rustix::event::epoll::{self, EventFlags};
use tracing::{debug, info, warn};

use super::{SESSION, Worker, token};
use crate::patience::{PATIENCE, Patience};
use crate::service::{Link, Talk};

/// How long a socket is left alone after a connection could not be accepted (no descriptors left, say): it stays readable.
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

impl Worker {
    pub(super) fn socket(&mut self, id: PortId) {
        let Some(service) = self.services.get_mut(&id) else { return };
        match &mut service.link {
            Link::Uplink(_) => {
                service.port.ready();
                self.enqueue(id);
            }
            Link::Function { listener, session, .. } => match listener.accept(session.is_some()) {
                Ok(Accepted::Client(socket, peer)) => {
                    let mut fresh = Box::new(Session::new(socket));
                    fresh.limit_dma_maps(nicety_memory::MAX_REGIONS);
                    let mut patience = Patience::default();
                    self.timers.extend(patience.begin(self.clock.now()).map(|at| Reverse((at, id))));
                    let talk = session.insert(Talk { session: fresh, patience });
                    let added = epoll::add(&self.epoll, talk.session.as_fd(), token(id, SESSION), EventFlags::IN);
                    info!(port = service.name, pid = peer.map(|p| p.pid), "a VMM has connected");
                    if let Err(error) = added {
                        warn!(port = service.name, "its connection cannot be watched: {error}");
                    }
                    service.port.attach();
                    if let Some(recorder) = &service.recorder {
                        recorder.note(Event::Connect);
                    }
                }
                Ok(Accepted::Refused(peer)) => {
                    let pid = peer.map(|p| p.pid);
                    warn!(port = service.name, pid, "a second VMM was refused: the port has one already");
                }
                Ok(Accepted::Nobody) => {}
                Err(error) => {
                    warn!(port = service.name, "a connection was not accepted, the next try is in {DEAF:?}: {error}");
                    let at = self.clock.now().after(DEAF);
                    let _it_is_watched = epoll::delete(&self.epoll, listener.as_fd());
                    service.deaf_until = Some(at);
                    self.timers.push(Reverse((at, id)));
                }
            },
            Link::Rings { .. } => {}
        }
    }

    pub(super) fn session(&mut self, id: PortId) {
        self.settle_flood(id);
        let Some(service) = self.services.get_mut(&id) else { return };
        let Link::Function { device, session: Some(Talk { session, patience }), .. } = &mut service.link else {
            return;
        };
        let had = (session.wants_read(), session.wants_write());
        let mut handled = 0;
        let result = loop {
            match session.receive(device.as_mut()) {
                Ok(progress) => {
                    handled += progress.handled;
                    if !progress.more || session.wants_write() {
                        break Ok(());
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = result {
            let closed = matches!(error, SessionError::Closed);
            self.disconnect(id, if closed { Why::Closed } else { Why::Broken(error) });
            return;
        }
        let wants = (session.wants_read(), session.wants_write());
        if wants != had {
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, wants.0);
            flags.set(EventFlags::OUT, wants.1);
            let _its_session_is_watched = epoll::modify(&self.epoll, session.as_fd(), token(id, SESSION), flags);
        }
        if handled > 0 || (had.1 && !wants.1) {
            patience.end();
        }
        // While its answers are not taken, nothing more of it is read.
        if wants.1 || session.is_within_message() {
            self.timers.extend(patience.begin(self.clock.now()).map(|at| Reverse((at, id))));
        }
    }

    /// A guest has broken one of its queues; a hostile one does so again and again.
    pub(super) fn stalled(&mut self, id: PortId, stall: Stall) {
        let now = self.clock.now();
        let Some(service) = self.services.get_mut(&id) else { return };
        service.complaints.warn(now, &service.name, stall);
    }

    /// The VM is gone, or must go: the port waits for the next one.
    pub(super) fn disconnect(&mut self, id: PortId, why: Why) {
        let now = self.clock.now();
        let Some(service) = self.services.get_mut(&id) else { return };
        if let Link::Function { device, session, .. } = &mut service.link
            && let Some(Talk { mut session, .. }) = session.take()
        {
            match &why {
                Why::Closed => info!(port = service.name, "the VMM has disconnected"),
                Why::Removed => info!(port = service.name, "the VMM is disconnected: its port is closed"),
                Why::Silent => warn!(port = service.name, "the VMM is disconnected: it said nothing for {PATIENCE:?}"),
                Why::Stopped => warn!(
                    port = service.name,
                    "the VMM is disconnected: it stopped within a message, which was not whole after {PATIENCE:?}"
                ),
                Why::Unread => {
                    warn!(port = service.name, "the VMM is disconnected: it did not take its answers for {PATIENCE:?}")
                }
                Why::Damaged => warn!(
                    port = service.name,
                    "the VMM is disconnected: it took back memory that it had shared (was its memory file truncated, or is there \
                     no huge page left?)"
                ),
                Why::Broken(error) => warn!(port = service.name, "the VMM is disconnected: {error}"),
            }
            debug!(port = service.name, counters = ?session.counters(), "its session");
            session.disconnect(device.as_mut());
            if let Some(recorder) = &service.recorder {
                recorder.note(Event::Disconnect);
            }
            let _it_closes_anyway = epoll::delete(&self.epoll, session.as_fd());
            service.port.detach(now);
            device.renew();
        } else if let Link::Rings { .. } = &service.link
            && matches!(why, Why::Damaged)
        {
            warn!(port = service.name, "the front end took back memory that it had shared: its port is stopped");
            service.port.detach(now);
        }
    }
}
