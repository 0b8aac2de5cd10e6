//! Keeps ports in case this process is killed: see [`crate::journal`].
//!
//! The keeper may have no room for a port's descriptors, or this process no descriptor left for their duplicates. Then the port is not
//! kept, `nicety ports` says so, and its worker tries again every few milliseconds.

use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::PortId;
use nicety_peer::Table;
use nicety_vfio_user::{Batch, SessionError};
use rustix::io::Errno;
use rustix::process::Pid;

use super::{MESSAGE_COST, Worker};
use crate::clock::Clock;
use crate::device::Kept;
use crate::journal::{Journal, NotKept};
use crate::kept_uplinks::UplinkHold;
use crate::service::{Link, Service, Talk};

/// The time between two tries.
const RETRY: Duration = Duration::from_millis(10);

impl Worker {
    /// Keeps a port from now on, with its VMM if one is connected. Returns whether the worker [owes](Worker::owe) the keeper something.
    #[must_use]
    pub(super) fn keep(service: &mut Service, clock: Clock) -> bool {
        if service.journal.is_none() {
            return false;
        }
        let mut batch = None;
        if let Link::Function { session: Some(talk), .. } = &mut service.link {
            talk.session.keep(service.journal.as_ref().and_then(Journal::tally));
            // Another process has handled these, and the VMM has not read their answers.
            batch = talk.session.batch();
            batch.iter().for_each(|batch| talk.session.keep_answers(batch));
        }
        write(service, batch, Kept::Renewed, clock)
    }

    /// Answers the messages that were just handled. If the port is kept: keeps their effects first, and consumes them last.
    pub(super) fn finish(&mut self, id: PortId) -> Result<(), SessionError> {
        let clock = self.clock;
        let Some(service) = self.services.get_mut(&id) else { return Ok(()) };
        let adapter = service.schedule.take_changed();
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return Ok(()) };
        if !talk.session.is_kept() {
            return talk.session.flush();
        }
        let is_greeted = talk.session.is_ready() && service.journal.as_ref().is_some_and(|journal| !journal.is_greeted);
        let change = device.take_change().max(if adapter || is_greeted { Kept::Changed } else { Kept::Unchanged });
        if talk.session.is_within_batch() {
            device.put_change(change);
            return Ok(());
        }
        let batch = talk.session.batch();
        if let Some(batch) = &batch
            && (change != Kept::Unchanged || talk.session.owes_answers())
        {
            talk.session.keep_answers(batch);
        }
        let mut owes = false;
        if change != Kept::Unchanged {
            owes = write(service, batch, change, clock);
        } else if let Some(batch) = batch
            && talk.session.owes_answers()
            && let Some(journal) = &service.journal
        {
            journal.note(batch);
        }
        let done = match &mut service.link {
            Link::Function { session: Some(talk), .. } => talk.session.finish(),
            _ => Ok(()),
        };
        if owes {
            self.owe(id);
        }
        done
    }

    /// The keeper had no room for this port: the worker tries again soon.
    pub(super) fn owe(&mut self, id: PortId) {
        if !self.owed.contains(&id) {
            self.owed.push(id);
        }
        if self.retry_at.is_none() {
            let at = self.clock.now().after(RETRY);
            self.retry_at = Some(at);
            self.timers.push(Reverse((at, id)));
        }
    }

    /// Tries again to keep what the worker owes the keeper.
    pub(super) fn keep_owed(&mut self) {
        self.retry_at = None;
        let clock = self.clock;
        for id in std::mem::take(&mut self.owed) {
            let is_sent = self.keeper.as_ref().is_none_or(|keeper| keeper.retry());
            let Some(service) = self.services.get_mut(&id) else {
                // The port was closed: only that the keeper is to forget it was owed.
                if !is_sent {
                    self.owe(id);
                }
                continue;
            };
            if service.hold.is_some() {
                self.hold_again(id);
                continue;
            }
            let lacks = service.journal.as_ref().is_some_and(|journal| journal.lacks.is_some());
            let Link::Function { device, session, .. } = &mut service.link else { continue };
            let batch = match session {
                Some(talk) if talk.session.is_within_batch() => {
                    // Its end keeps all of it.
                    device.put_change(Kept::Renewed);
                    continue;
                }
                Some(talk) => talk.session.batch(),
                None => None,
            };
            let owes = if lacks { write(service, batch, Kept::Renewed, clock) } else { !is_sent };
            if owes {
                self.owe(id);
            }
        }
    }

    /// The keeper holds what an uplink has opened from now on.
    pub(super) fn hold(&mut self, id: PortId, hold: UplinkHold) {
        let Some(service) = self.services.get_mut(&id) else { return };
        self.keeper = Some(Arc::clone(hold.holder()));
        service.hold = Some(hold);
        self.hold_again(id);
    }

    /// The descriptors of an uplink may be others now.
    pub(super) fn hold_again(&mut self, id: PortId) {
        let number = self.clock.origin_ns() + self.clock.now().0;
        let Some(Service { hold: Some(hold), port, .. }) = self.services.get(&id) else { return };
        // One that has failed has closed them.
        let is_held = port.hand_over(|parts| hold.hold(&parts, number));
        if is_held == Some(false) {
            self.owe(id);
        }
    }

    /// The keeper closes what it holds of an uplink that is closed.
    pub(super) fn let_go(&mut self, id: PortId, hold: &UplinkHold) {
        hold.forget();
        if hold.holder().owes() {
            self.owe(id);
        }
    }

    /// The keeper closes what it holds of a port that is closed.
    pub(super) fn forget(&mut self, id: PortId, journal: &Journal) {
        journal.forget();
        if journal.holder().owes() {
            self.owe(id);
        }
    }
}

/// Writes what has changed, and charges the port for it. Returns whether the worker owes the keeper something.
fn write(service: &mut Service, batch: Option<Batch>, change: Kept, clock: Clock) -> bool {
    let Service { link: Link::Function { listener, device, session }, journal: Some(journal), credit, log, .. } =
        service
    else {
        return false;
    };
    // A later record would find the adapter in the middle of something.
    let _kept_now = device.take_change();
    let changes = device.take_memory_changes();
    if change == Kept::Memory
        && let Some(bytes) = journal.append(&changes, batch)
    {
        *credit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        return false;
    }
    let is_greeted = session.as_ref().is_some_and(|talk| talk.session.is_ready());
    let mut table = Table::default();
    let mut image = || -> Result<_, Errno> {
        let mut function = device.kept_image(listener.as_fd(), &mut table)?;
        if let Some(Talk { session, stopped: false, process, .. }) = session {
            let kept = session.save_kept(&mut table)?;
            function.vmm = device.vmm_image(kept, process.map(Pid::as_raw_pid), &mut table)?;
        }
        Ok(function)
    };
    match image() {
        Ok(function) => {
            // The clock of a daemon that follows a killed one begins at 0.
            let number = clock.origin_ns() + clock.now().0;
            let bytes = journal.write(number, function, &table, batch, change == Kept::Renewed);
            let descriptors = i64::try_from(table.len()).unwrap_or(i64::MAX);
            *credit -= i64::try_from(bytes).unwrap_or(i64::MAX) + descriptors * MESSAGE_COST;
            journal.is_greeted = is_greeted;
        }
        Err(errno) => {
            journal
                .lack(NotKept { why: format!("duplicating its descriptors: {errno} (ulimit -n)"), is_passing: true });
        }
    }
    log.keeps(journal.lacks.as_ref());
    journal.owes()
}
