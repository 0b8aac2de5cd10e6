//! Notices that this worker stood still for longer than a VMM waits for an answer: the process was stopped (SIGSTOP), its host swapped,
//! or a thread on which the VMM waits took too long.
//!
//! QEMU waits 5 s. Then it gives the request up: a read gives ones, a write counts as done, and the answer must not come with a payload
//! any more ([`Session::give_up`]). The kernel does not say how long a message has waited. But each look for events says that no other
//! message waited then. So a message is at most as old as the look before the one that found it, or as the time since which its port has
//! had messages that wait. A worker with a VMM therefore looks at least every [`LOOK`].
//!
//! A driver that was given ones may have believed them. So its adapter hears of it ([`Event::Unanswered`]).

use std::time::Duration;

use nicety_adapter::{Event, PortId, Time};
use nicety_vfio_user::Session;

use super::{EVENTS, Worker};
use crate::run::port_log::Kind;
use crate::run::service::{Link, Talk};

/// A request may have been given up after this time. QEMU's limit is 5 s (hw/vfio-user/pci.c, `x-msg-timeout`), and an answer needs a
/// moment to arrive.
pub const PATIENCE: Duration = Duration::from_millis(4_500);
/// The longest time between two looks of a worker with a VMM.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// The times of a worker's looks for events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    /// Before the last one.
    last: Time,
    /// Before the one before. What the last one found has come since.
    before: Time,
    /// Whether the last one may not have shown all.
    is_full: bool,
    /// When the journals last got it.
    noted: Time,
}

impl Looks {
    pub fn begin(now: Time) -> Self {
        Self { last: now, before: now, is_full: false, noted: now }
    }

    /// A look begins now.
    fn look(&mut self, now: Time) {
        if !self.is_full {
            self.before = self.last;
        }
        self.last = now;
    }

    /// The time at which the last look began.
    pub fn last(&self) -> Time {
        self.last
    }

    /// Notes the number of events that were found.
    pub fn found(&mut self, events: usize) {
        self.is_full = events == EVENTS;
    }

    /// A time since which all messages have come that the last look found.
    pub fn since(&self) -> Time {
        self.before
    }
}

/// Gives up the requests of a session that may have waited for too long, if they have come since this time. Later ones come after `now`.
pub(super) fn give_up(session: &mut Session, since: &mut Option<Time>, now: Time) {
    if since.is_some_and(|since| now.since(since) >= PATIENCE) {
        session.give_up();
        *since = Some(now);
    }
}

impl Worker {
    /// Before a look for events: how long the worker may sleep.
    pub(super) fn limit(&self, timeout: Option<Duration>) -> Option<Duration> {
        match self.vmms {
            0 => timeout,
            _ => Some(timeout.map_or(LOOK, |timeout| timeout.min(LOOK))),
        }
    }

    /// Notes a look that begins now.
    pub(super) fn looks(&mut self, now: Time) {
        self.looks.look(now);
        if now.since(self.looks.noted) < LOOK || self.keeper.is_none() {
            return;
        }
        self.looks.noted = now;
        for id in self.services.ports() {
            let Some(service) = self.services.get_mut(&id) else { continue };
            if let (Link::Function { session: Some(talk), .. }, Some(journal)) = (&service.link, &service.journal) {
                journal.note_look(self.clock.monotonic_ms(talk.since.unwrap_or(self.looks.last)));
            }
        }
    }

    /// Tells a port's adapter that accesses were given up, once all of them are handled.
    pub(super) fn tell_late(&mut self, id: PortId) {
        let now = self.clock.now();
        let Some(service) = self.services.get_mut(&id) else { return };
        let Link::Function { session: Some(Talk { session, .. }), .. } = &mut service.link else { return };
        if session.is_late() {
            return;
        }
        let accesses = session.take_late_accesses();
        if accesses == 0 {
            return;
        }
        service.port.with(now, |adapter, cx| adapter.notice(Event::Unanswered, cx));
        let what = "its VM waited for too long for this daemon, which stood still, and gave up";
        service.log.say(Kind::Late, format_args!("{what}; its driver is made to reset the adapter if it needs to be"));
    }
}
