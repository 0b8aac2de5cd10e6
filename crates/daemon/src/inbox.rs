//! What reaches a worker from outside its loop: other workers, control threads, the ports' shells.
//!
//! A worker that is awake costs its callers a short lock and no system call; one that sleeps is woken by one write
//! to an eventfd, however many notes come meanwhile.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use nicety_adapter::{News, PortId, Reason, Stall, Time};
use nicety_bell::Bell;
use rustix::event::{EventfdFlags, eventfd};

use crate::kicks::OnTheWay;
use crate::saved::{PortState, SaveError};

/// One message to a worker.
#[derive(Debug)]
pub enum Note {
    /// Give a port a turn.
    Schedule(PortId),
    /// Give a port a turn at this time.
    Wake(PortId, Time),
    /// A port waits among the newcomers to be taken over.
    Serve,
    /// Give a port up: its VM is disconnected, its socket removed. The sender is told when that has happened.
    Remove(PortId, std::sync::mpsc::Sender<()>),
    /// Save a port and stop it.
    Save(PortId, std::sync::mpsc::Sender<Result<PortState, SaveError>>),
    /// Restore a port.
    Restore(PortId, Box<PortState>, std::sync::mpsc::Sender<Result<(), SaveError>>),
    /// Watch (or no longer watch) a ring's kick.
    Kick(PortId, u16, Option<Bell>, OnTheWay),
    /// A change of a port's memory is made.
    Mapped(PortId),
    /// A port's guest has broken a queue: the operator shall hear of it.
    Stalled(PortId, Stall),
    /// A port's policy has refused what its guest sent: the operator shall hear of it.
    Refused(PortId, Reason),
    /// Something happened at an uplink's other end: the operator shall hear of it.
    News(PortId, News),
    /// A port has failed: its VM loses its adapter, and the operator shall hear of it.
    Failed(PortId),
    /// End.
    Stop,
}

/// See the module's page.
#[derive(Debug)]
pub struct Inbox {
    notes: Mutex<Vec<Note>>,
    asleep: AtomicBool,
    bell: OwnedFd,
}

impl Inbox {
    /// An empty one.
    pub fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { notes: Mutex::default(), asleep: AtomicBool::new(false), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Note>> {
        self.notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a note, and wakes the worker if it sleeps.
    pub fn push(&self, note: Note) {
        self.lock().push(note);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // A full counter means that it is being woken already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether no note waits.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Moves all notes into `into`, which is empty.
    pub fn take(&self, into: &mut Vec<Note>) {
        std::mem::swap(&mut *self.lock(), into);
    }

    /// Declares the worker asleep. False if there are notes already: it must not sleep.
    pub fn sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let empty = self.lock().is_empty();
        if !empty {
            self.asleep.store(false, Ordering::SeqCst);
        }
        empty
    }

    /// The worker is awake again.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// The bell has rung: it is to be quiet again.
    pub fn rung(&self) {
        let mut count = [0; 8];
        let _another_took_it = rustix::io::read(&self.bell, &mut count);
    }

    /// What becomes readable when a sleeping worker must wake.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }
}
