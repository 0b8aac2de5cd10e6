//! Keeps ports in case this process is killed: see [`crate::run::journal`].
//!
//! The keeper may have no room for a port's descriptors, or this process no descriptor left for their duplicates. Then the port is not
//! kept, `nicety ports` says so, and its worker tries again every few milliseconds.

use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nicety_adapter::PortId;
use nicety_keeper::Holder;
use nicety_peer::Table;
use nicety_vfio_user::{Batch, SessionError};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::late::give_up;
use super::{KEEPER, MESSAGE_COST, Worker};
use crate::clock::Clock;
use crate::run::device::Kept;
use crate::run::journal::{Again, Journal, NotKept};
use crate::run::kept_uplinks::UplinkHold;
use crate::run::service::{Link, Service, Talk};

/// The time between two tries.
const RETRY: Duration = Duration::from_millis(10);
/// The same for a port that exceeded a limit.
const RETRY_LATER: Duration = Duration::from_secs(1);

impl Worker {
    /// Keeps a port from now on, with its VMM if one is connected. Returns whether the worker [owes](Worker::owe) the keeper something.
    #[must_use]
    pub(super) fn keep(service: &mut Service, clock: Clock) -> Again {
        if service.journal.is_none() {
            return Again::Changed;
        }
        let mut batch = None;
        if let Link::Function { session: Some(talk), .. } = &mut service.link {
            talk.session.keep(service.journal.as_ref().and_then(Journal::tally));
            // Another process has handled these, and the VMM has not read their answers.
            batch = talk.session.batch();
            batch.iter().for_each(|batch| talk.session.keep_answers(batch));
        }
        write(service, batch, Kept::Changed, clock)
    }

    /// The keeper holds ports of this worker.
    pub(super) fn kept_by(&mut self, keeper: Arc<Holder>) {
        if self.keeper.is_none()
            && let Some(fd) = keeper.hears()
        {
            // Each worker hears of each message, whoever reads it. If it cannot be watched, a port's next change finds it.
            let flags = EventFlags::IN | EventFlags::ET;
            let _not_watched = epoll::add(&self.epoll, fd, EventData::new_u64(KEEPER), flags);
        }
        self.keeper = Some(keeper);
    }

    /// The keeper does not hold some ports any more, or may hold them again.
    pub(super) fn hear_keeper(&mut self) {
        for id in self.services.ports() {
            let Some(Service { journal: Some(journal), log, .. }) = self.services.get_mut(&id) else { continue };
            journal.confirm();
            if journal.lacks.is_some() {
                log.keeps(journal.lacks.as_ref());
                let owes = journal.owes();
                self.owe(id, owes);
            }
        }
    }

    /// Answers the messages that were just handled. If the port is kept: keeps their effects first, and consumes them last.
    pub(super) fn finish(&mut self, id: PortId) -> Result<(), SessionError> {
        let clock = self.clock;
        let Some(service) = self.services.get_mut(&id) else { return Ok(()) };
        let adapter = service.schedule.take_changed();
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return Ok(()) };
        if !talk.session.is_kept() {
            give_up(&mut talk.session, &mut talk.since, clock.now());
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
        let mut owes = Again::Changed;
        if change != Kept::Unchanged {
            owes = write(service, batch, change, clock);
        } else if let Some(batch) = batch
            && talk.session.owes_answers()
            && let Some(journal) = &service.journal
        {
            journal.note(batch);
        }
        let done = match &mut service.link {
            Link::Function { session: Some(talk), .. } => {
                // Once more: to keep the effects takes much of a worker's time, so it is often then that a process is stopped.
                give_up(&mut talk.session, &mut talk.since, clock.now());
                talk.session.finish()
            }
            _ => Ok(()),
        };
        self.owe(id, owes);
        done
    }

    /// The keeper had no room for this port, or it exceeds a limit: the worker tries again.
    pub(super) fn owe(&mut self, id: PortId, again: Again) {
        let after = match again {
            Again::Changed => return,
            Again::Soon => RETRY,
            Again::Later => RETRY_LATER,
        };
        if !self.owed.contains(&id) {
            self.owed.push(id);
        }
        let at = self.clock.now().after(after);
        if self.retry_at.is_none_or(|retry_at| at < retry_at) {
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
                    self.owe(id, Again::Soon);
                }
                continue;
            };
            if service.hold.is_some() {
                self.hold_again(id);
                continue;
            }
            let Some(journal) = &mut service.journal else { continue };
            journal.confirm();
            let lacks = journal.lacks.is_some();
            let Link::Function { device, session, .. } = &mut service.link else { continue };
            let batch = match session {
                Some(talk) if talk.session.is_within_batch() => {
                    // Its end keeps all of it.
                    device.put_change(Kept::Changed);
                    continue;
                }
                Some(talk) => talk.session.batch(),
                None => None,
            };
            let owes = match lacks {
                true => write_if(service, batch, Kept::Changed, false, clock),
                false if !is_sent => Again::Soon,
                false => Again::Changed,
            };
            self.owe(id, owes);
        }
    }

    /// The keeper holds what an uplink has opened from now on.
    pub(super) fn hold(&mut self, id: PortId, hold: UplinkHold) {
        let Some(service) = self.services.get_mut(&id) else { return };
        let keeper = Arc::clone(hold.holder());
        service.hold = Some(hold);
        self.kept_by(keeper);
        self.hold_again(id);
    }

    /// The descriptors of an uplink may be others now.
    pub(super) fn hold_again(&mut self, id: PortId) {
        let number = self.clock.origin_ns() + self.clock.now().0;
        let Some(Service { hold: Some(hold), port, .. }) = self.services.get(&id) else { return };
        // One that has failed has closed them.
        let is_held = port.hand_over(|parts| hold.hold(&parts, number));
        if is_held == Some(false) {
            self.owe(id, Again::Soon);
        }
    }

    /// The keeper closes what it holds of an uplink that is closed.
    pub(super) fn let_go(&mut self, id: PortId, hold: &UplinkHold) {
        hold.forget();
        if hold.holder().owes() {
            self.owe(id, Again::Soon);
        }
    }

    /// The keeper closes what it holds of a port that is closed.
    pub(super) fn forget(&mut self, id: PortId, journal: &Journal) {
        journal.forget();
        if journal.holder().owes() {
            self.owe(id, Again::Soon);
        }
    }
}

/// Writes what has changed, and charges the port for it. Returns whether the worker owes the keeper something.
fn write(service: &mut Service, batch: Option<Batch>, change: Kept, clock: Clock) -> Again {
    write_if(service, batch, change, true, clock)
}

/// Like [`write`]. `is_change`: something has changed, and this is not only another try.
fn write_if(service: &mut Service, batch: Option<Batch>, change: Kept, is_change: bool, clock: Clock) -> Again {
    let Service { link: Link::Function { device, .. }, journal: Some(journal), credit, .. } = service else {
        return Again::Changed;
    };
    // A later record would find the adapter in the middle of something.
    let _kept_now = device.take_change();
    let changes = device.take_memory_changes();
    if change == Kept::Memory
        && let Some(bytes) = journal.append(&changes, batch)
    {
        *credit -= i64::try_from(bytes).unwrap_or(i64::MAX);
        return Again::Changed;
    }
    // The clock of a daemon that follows a killed one begins at 0.
    let number = clock.origin_ns() + clock.now().0;
    if !device.is_keepable() {
        journal.lack(NotKept::lasting(
            "its VMM takes interrupts by a UNIX socket, which the keeper does not hold: only eventfds and pipes",
        ));
    } else if !journal.waits(number, is_change) {
        write_record(service, batch, number);
    }
    let Service { journal: Some(journal), log, .. } = service else { return Again::Changed };
    log.keeps(journal.lacks.as_ref());
    journal.owes()
}

/// Writes a record.
fn write_record(service: &mut Service, batch: Option<Batch>, number: u64) {
    let Service { link: Link::Function { listener, device, session }, journal: Some(journal), credit, .. } = service
    else {
        return;
    };
    let is_greeted = session.as_ref().is_some_and(|talk| talk.session.is_ready());
    let mut table = Table::beside(journal.held());
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
            let bytes = journal.write(number, function, &table, batch);
            let descriptors = i64::try_from(table.iter().count()).unwrap_or(i64::MAX);
            *credit -= i64::try_from(bytes).unwrap_or(i64::MAX) + descriptors * MESSAGE_COST;
            journal.is_greeted = is_greeted;
        }
        Err(errno) => {
            let why = format!("duplicating its descriptors: {errno} (ulimit -n)");
            journal.lack(NotKept { why, again: Again::Soon });
        }
    }
}
