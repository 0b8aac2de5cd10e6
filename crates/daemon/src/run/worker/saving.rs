//! Saves, stops and restores a port. The port's worker does so between two turns and two messages.

use std::os::fd::AsFd;

use nicety_adapter::PortId;
use nicety_adapter::trace::Event;

use super::connections::Watched;
use super::{Worker, unmask};
use crate::run::port_log::Kind;
use crate::run::saved::{PortState, SaveError};
use crate::run::service::{Link, Service, Talk};

impl Worker {
    /// Saves a port and stops it. Its VMM's messages and unmask signals wait until the port is restored.
    pub(super) fn save(&mut self, id: PortId) -> Result<PortState, SaveError> {
        self.settle_flood(id);
        let Some(service) = self.services.get_mut(&id) else { return Err(SaveError::NoVm) };
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return Err(SaveError::NoVm) };
        let now = self.clock.now();
        let Talk { session, timeout, unmask, stopped, since, .. } = talk;
        if !session.is_settled() {
            return Err(SaveError::Busy);
        }
        if !*stopped {
            // The guest's writes so far are part of the state.
            device.scan_doorbells();
        }
        let state = device.stop().ok_or(SaveError::Failed)?;
        *stopped = true;
        since.get_or_insert(now);
        timeout.end();
        unmask::forget(&self.epoll, unmask.take());
        Watched::STILL.watch(&self.epoll, session.as_fd(), id);
        self.plane.switch().forget(id);
        tell(service, Kind::Saved, "its state was saved, and it stands still");
        Ok(state)
    }

    /// Restores a port that its VM does not use, or that [`Worker::save`] has stopped.
    pub(super) fn restore(&mut self, id: PortId, state: &PortState) -> Result<(), SaveError> {
        self.settle_flood(id);
        let Some(service) = self.services.get_mut(&id) else { return Err(SaveError::NoVm) };
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return Err(SaveError::NoVm) };
        if !talk.session.is_settled() {
            return Err(SaveError::Busy);
        }
        if !talk.stopped && service.port.state().driven {
            return Err(SaveError::InUse);
        }
        device.restore(state)?;
        self.plane.switch().arrived(id);
        talk.stopped = false;
        Watched::of(&talk.session).watch(&self.epoll, talk.session.as_fd(), id);
        unmask::watch(&self.epoll, id, device.unmask(), &mut talk.unmask, &service.log);
        tell(service, Kind::Restored, "it goes on from a saved state");
        // Messages may wait in the session's own buffer.
        if !self.unread_sessions.contains(&id) {
            self.unread_sessions.push_back(id);
        }
        Ok(())
    }
}

/// Writes to the log and to the trace. Without the event the trace would make no sense.
fn tell(service: &Service, kind: Kind, what: &str) {
    service.log.say(kind, what);
    if let Some(recorder) = &service.recorder {
        recorder.note(Event::Mark(what.to_owned()));
    }
}
