//! A worker's inbox: notes from other workers, control threads and the ports' shells.
//!
//! A note to an awake worker costs a short lock and no system call. A sleeping worker is woken by one write to an eventfd, for
//! any number of notes.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use nicety_adapter::{News, NotedError, PortId, Reason, Stall, Time};
use nicety_memory::Refusal;
use nicety_peer::Bell;
use rustix::event::{EventfdFlags, eventfd};

use crate::run::kept_uplinks::UplinkHold;
use crate::run::kicks::KickInFlight;
use crate::run::order::Order;
use crate::run::saved::{PortState, SaveError};

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
    /// Have the keeper hold what an uplink has opened, from now on.
    Hold(PortId, UplinkHold),
    /// Save a port and stop it.
    Save(PortId, std::sync::mpsc::Sender<Result<PortState, SaveError>>),
    /// Restore a port.
    Restore(PortId, Box<PortState>, std::sync::mpsc::Sender<Result<(), SaveError>>),
    /// Stand still, and take orders: see `Order`.
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
    /// Report flows that are due.
    Flows,
    /// End.
    Stop,
}

/// A list of notes, and the eventfd that wakes the worker.
#[derive(Debug)]
pub struct Inbox {
    notes: Mutex<Vec<Note>>,
    asleep: AtomicBool,
    /// A [`Note::Flows`] is on its way.
    asked_for_flows: AtomicBool,
    wakes: AtomicU64,
    /// Nanoseconds in which the worker has worked, without its waits; and the time since which it works, or 0.
    worked_ns: AtomicU64,
    works_since: AtomicU64,
    /// The worker never sleeps.
    always_polls: AtomicBool,
    bell: OwnedFd,
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> std::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            notes: Mutex::default(),
            asleep: AtomicBool::new(false),
            asked_for_flows: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            worked_ns: AtomicU64::new(0),
            works_since: AtomicU64::new(0),
            always_polls: AtomicBool::new(false),
            bell,
        })
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

    /// Asks for flows that are due, unless the worker has not heard the last call yet.
    pub fn ask_for_flows(&self) {
        if !self.asked_for_flows.swap(true, Ordering::Relaxed) {
            self.push(Note::Flows);
        }
    }

    /// The worker has heard that it was asked for flows.
    pub fn flows_are_asked_for(&self) {
        self.asked_for_flows.store(false, Ordering::Relaxed);
    }

    /// Whether the worker polls all the time from now on.
    pub fn set_always_polls(&self, always: bool) {
        if self.always_polls.swap(always, Ordering::Relaxed) != always {
            // Ends a wait of the other kind. A full counter does so too.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether the worker never sleeps.
    pub fn always_polls(&self) -> bool {
        self.always_polls.load(Ordering::Relaxed)
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

    /// Marks the worker, which has slept, as awake.
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of times that the worker has slept and woken.
    pub fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Relaxed)
    }

    /// The worker begins to wait. It calls this and [`works`](Self::works) itself.
    pub fn rests(&self, now: Time) {
        let since = self.works_since.swap(0, Ordering::Relaxed);
        if since != 0 {
            self.worked_ns.fetch_add(now.0.saturating_sub(since), Ordering::Relaxed);
        }
    }

    /// The worker's wait has ended.
    pub fn works(&self, now: Time) {
        if self.works_since.load(Ordering::Relaxed) == 0 {
            self.works_since.store(now.0.max(1), Ordering::Relaxed);
        }
    }

    /// Nanoseconds in which the worker has worked. A call while it begins or ends to wait may miss the last stretch.
    pub fn worked_ns(&self, now: Time) -> u64 {
        let (worked, since) = (self.worked_ns.load(Ordering::Relaxed), self.works_since.load(Ordering::Relaxed));
        worked + if since == 0 { 0 } else { now.0.saturating_sub(since) }
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
