//! Keeps ports in case this process is killed: see [`crate::journal`].

use std::os::fd::AsFd;

use nicety_adapter::PortId;
use nicety_peer::Table;
use nicety_vfio_user::{Batch, SessionError};
use rustix::io::Errno;
use rustix::process::Pid;

use super::Worker;
use crate::clock::Clock;
use crate::device::Kept;
use crate::journal::Journal;
use crate::service::{Link, Service, Talk};

impl Worker {
    /// Keeps a port from now on, with its VMM if one is connected.
    pub(super) fn keep(service: &mut Service, clock: Clock) {
        if service.journal.is_none() {
            return;
        }
        let mut batch = None;
        if let Link::Function { session: Some(talk), .. } = &mut service.link {
            talk.session.keep(service.journal.as_ref().and_then(Journal::tally));
            // Another process has handled these, and the VMM has not read their answers.
            batch = talk.session.batch();
            batch.iter().for_each(|batch| talk.session.keep_answers(batch));
        }
        write(service, batch, Kept::Renewed, clock);
    }

    /// Keeps the effects of the messages that were just handled, then answers and consumes them.
    pub(super) fn finish(&mut self, id: PortId) -> Result<(), SessionError> {
        let clock = self.clock;
        let Some(service) = self.services.get_mut(&id) else { return Ok(()) };
        let adapter = service.schedule.take_changed();
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return Ok(()) };
        if !talk.session.is_kept() {
            return Ok(());
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
        if change != Kept::Unchanged {
            write(service, batch, change, clock);
        } else if let Some(batch) = batch
            && talk.session.owes_answers()
            && let Some(journal) = &service.journal
        {
            journal.note(batch);
        }
        match &mut service.link {
            Link::Function { session: Some(talk), .. } => talk.session.finish(),
            _ => Ok(()),
        }
    }
}

/// Writes the journal's record. Nothing is kept of a port that cannot be saved now: the old record stays.
fn write(service: &mut Service, batch: Option<Batch>, change: Kept, clock: Clock) {
    let Service { link: Link::Function { listener, device, session }, journal: Some(journal), .. } = service else {
        return;
    };
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
    if let Ok(function) = image() {
        // The clock of a daemon that follows a killed one begins at 0.
        let number = clock.origin_ns() + clock.now().0;
        journal.write(number, function, &table, batch, change == Kept::Renewed);
        journal.is_greeted = is_greeted;
    }
}
