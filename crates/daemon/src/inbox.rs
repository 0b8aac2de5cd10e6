//! A worker's inbox: notes from other workers, control threads and the ports' shells.
//!
//! A note to an awake worker costs a short lock and no system call. A sleeping worker is woken by one write to an eventfd, for
//! any number of notes.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use nicety_adapter::{News, NotedError, PortId, Reason, Stall, Time};
use nicety_memory::Refusal;
use nicety_peer::Bell;
use rustix::event::{EventfdFlags, eventfd};

use crate::kicks::KickInFlight;
use crate::saved::{PortState, SaveError};
use crate::worker::Order;

/// One message to a worker.
#[derive(Debug)]
pub enum Note {
    /// Give a port a turn.
    Schedule(PortId),
    /// Give a port a turn at this time.
    Wake(PortId, Time),
    /// Take over a port from the newcomers' channel.
    Serve,
    /// Release ports: disconnect their VMs, remove their sockets. Then answer the sender.
    Remove(Vec<PortId>, std::sync::mpsc::Sender<()>),
    /// Watch another descriptor of an uplink.
    Descriptor(PortId, Option<OwnedFd>),
    /// Save a port and stop it.
    Save(PortId, std::sync::mpsc::Sender<Result<PortState, SaveError>>),
    /// Restore a port.
    Restore(PortId, Box<PortState>, std::sync::mpsc::Sender<Result<(), SaveError>>),
    /// Stand still, and take orders: see [`Order`].
    Freeze(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<Order>),
    /// Watch a ring's kick descriptor, or stop watching it.
    Kick(PortId, u16, Option<Bell>, KickInFlight),
    /// A change of a port's memory is done.
    Mapped(PortId),
    /// A port's guest has broken a queue: log it.
    Stalled(PortId, Stall),
    /// A port's guest has made a mistake: log it.
    GuestError(PortId, NotedError),
    /// A port's adapter was refused an access to guest memory: log it.
    RefusedAccess(PortId, Refusal),
    /// A port's policy has refused a frame of its guest: log it.
    Refused(PortId, Reason),
    /// An event at an uplink's peer: log it.
    News(PortId, News),
    /// A port has failed: disconnect its VM, and log it.
    Failed(PortId),
    /// Answer the sender: the worker still finishes its rounds.
    Probe(std::sync::mpsc::Sender<()>),
    /// End.
    Stop,
}

/// A list of notes, and the eventfd that wakes the worker.
#[derive(Debug)]
pub struct Inbox {
    notes: Mutex<Vec<Note>>,
    asleep: AtomicBool,
    bell: OwnedFd,
}

impl Inbox {
    /// An empty inbox.
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
            // A full counter means that the worker is being woken already.
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

    /// Marks the worker as asleep. Returns false if there are notes already: then it must not sleep.
    pub fn sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let empty = self.lock().is_empty();
        if !empty {
            self.asleep.store(false, Ordering::SeqCst);
        }
        empty
    }

    /// Marks the worker as awake.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Clears the eventfd after a wake-up.
    pub fn rung(&self) {
        let mut count = [0; 8];
        let _already_read = rustix::io::read(&self.bell, &mut count);
    }

    /// The eventfd that wakes a sleeping worker.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }
}
