//! A worker's services for a port: interrupts to its VM, and turns.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::trace::Event;
use nicety_adapter::{News, NotedError, PortId, Reason, Set, Stall, Time};
use nicety_memory::Refusal;
use nicety_pci::Mode;
use nicety_peer::{Bell, Table};
use nicety_plane::Shell;
use nicety_vfio_user::Interrupts;
use rustix::io::Errno;
use tracing::warn;

use crate::clock::Clock;
use crate::run::inbox::{Inbox, Note};
use crate::run::recorder::Recorder;

/// The minimum time between two guest errors that are logged, and between two refused accesses.
const ERROR_LOG_NS: u64 = 1_000_000_000;

/// The path of a port's interrupts to its VM.
#[derive(Debug)]
pub enum Signals {
    /// An uplink has no interrupts.
    None,
    /// A PCI function behind vfio-user.
    Function {
        /// Eventfds, masks and pending bits.
        interrupts: Arc<Interrupts>,
        /// Whether messages are MSI-X or MSI, as set in the function's configuration space.
        msix: AtomicU8,
    },
    /// Rings behind vhost-user, with the eventfds of each.
    Rings(Mutex<Vec<RingBells>>),
}

/// A front end's eventfds for a ring.
#[derive(Debug, Default)]
pub struct RingBells {
    /// Signals completions to the driver.
    call: Option<Bell>,
    /// Signals that the ring is broken.
    error: Option<Bell>,
}

impl Signals {
    /// Signals of a PCI function with these interrupts.
    pub fn function(interrupts: Arc<Interrupts>) -> Self {
        Self::Function { interrupts, msix: AtomicU8::new(0) }
    }

    /// Signals of rings.
    pub fn rings() -> Self {
        Self::Rings(Mutex::default())
    }

    /// Sets the function's interrupt mode, which may have changed.
    pub fn set_mode(&self, mode: Mode) {
        if let Self::Function { msix, .. } = self {
            msix.store(u8::from(mode == Mode::Msix), Ordering::Relaxed);
        }
    }

    /// Connects a ring's call eventfd, or removes it. A new one is signalled once, because an interrupt may have been raised
    /// before. A spurious interrupt is harmless.
    pub fn set_call(&self, ring: u16, bell: Option<Bell>) {
        self.with_ring(ring, |bells| {
            if let Some(bell) = &bell {
                call(bell);
            }
            bells.call = bell;
        });
    }

    /// Connects a ring's error eventfd, or removes it.
    pub fn set_error(&self, ring: u16, bell: Option<Bell>) {
        self.with_ring(ring, |bells| bells.error = bell);
    }

    fn with_ring(&self, ring: u16, act: impl FnOnce(&mut RingBells)) {
        let Self::Rings(rings) = self else { return };
        let mut rings = lock(rings);
        let index = usize::from(ring);
        if rings.len() <= index {
            rings.resize_with(index + 1, RingBells::default);
        }
        act(&mut rings[index]);
    }

    /// The descriptors of all rings: calls, then errors.
    ///
    /// # Errors
    /// A descriptor cannot be duplicated.
    pub fn connections(&self, table: &mut Table) -> Result<[Vec<(u16, u32)>; 2], Errno> {
        let Self::Rings(rings) = self else { return Ok([Vec::new(), Vec::new()]) };
        let (mut calls, mut errors) = (Vec::new(), Vec::new());
        for (number, RingBells { call, error }) in (0..).zip(lock(rings).iter()) {
            for (bell, list) in [(call, &mut calls), (error, &mut errors)] {
                if let Some(bell) = bell {
                    list.push((number, table.put(bell)?));
                }
            }
        }
        Ok([calls, errors])
    }

    /// Removes all rings' eventfds.
    pub fn disconnect(&self) {
        if let Self::Rings(rings) = self {
            lock(rings).clear();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Prepares a thread that signals VMMs. Call it when the thread starts.
pub fn ready_to_ring() {
    if let Err(errno) = nicety_peer::ready() {
        warn!(
            "the kernel rings no eventfd for this thread ({errno}): a VMM that means harm could make it wait; is fs.aio-max-nr used up, \
             or asynchronous I/O not there?"
        );
    }
}

fn call(bell: &Bell) {
    // A front end that has gone needs no interrupt.
    let _ = bell.ring();
}

/// The daemon's shell of a port.
#[derive(Debug)]
pub struct PortShell {
    id: PortId,
    inbox: Arc<Inbox>,
    signals: Arc<Signals>,
    state: Arc<Schedule>,
    recorder: Option<Arc<Recorder>>,
    clock: Clock,
    /// The time of the next guest error that is logged, in nanoseconds.
    next_error_log: AtomicU64,
    /// The same for refused accesses.
    next_refusal_log: AtomicU64,
}

/// Whether a port is queued for a turn. The shell and the worker share it.
#[derive(Debug, Default)]
pub struct Schedule {
    queued: AtomicBool,
    written: AtomicU64,
    /// The adapter has asked to keep its state.
    changed: AtomicBool,
}

impl Schedule {
    /// Marks the port as queued. Returns false if it was queued already.
    pub fn queue(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    /// Begins the port's turn: from here on it may be queued again.
    pub fn begin(&self) {
        self.queued.store(false, Ordering::Release);
    }

    /// Whether the port is queued for a turn.
    pub fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Whether the adapter has asked to keep its state since the last call.
    pub fn take_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::Relaxed)
    }

    /// Counts on from this number of written descriptors.
    pub fn count_on(&self, written: u64) {
        self.written.store(written, Ordering::Relaxed);
    }

    /// The number of times that interrupt descriptors were written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

impl PortShell {
    /// The shell of a port that this worker owns.
    pub fn new(
        id: PortId,
        inbox: Arc<Inbox>,
        signals: Arc<Signals>,
        recorder: Option<Arc<Recorder>>,
        clock: Clock,
    ) -> Self {
        Self {
            id,
            inbox,
            signals,
            state: Arc::default(),
            recorder,
            clock,
            next_error_log: AtomicU64::new(0),
            next_refusal_log: AtomicU64::new(0),
        }
    }

    /// The port's number.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Whether its port is queued for a turn.
    pub fn schedule(&self) -> Arc<Schedule> {
        Arc::clone(&self.state)
    }
}

impl Shell for PortShell {
    fn messages(&self, mut vectors: Set) {
        self.state.written.fetch_add(u64::from(vectors.len()), Ordering::Relaxed);
        if let Some(recorder) = &self.recorder {
            let mut raised = vectors;
            while let Some(vector) = raised.pop() {
                recorder.note(Event::Interrupt(vector));
            }
        }
        match self.signals.as_ref() {
            Signals::None => {}
            Signals::Function { interrupts, msix } => {
                let msix = msix.load(Ordering::Relaxed) != 0;
                while let Some(vector) = vectors.pop() {
                    if msix {
                        interrupts.raise_msix(vector);
                    } else {
                        interrupts.raise_msi(vector);
                    }
                }
            }
            Signals::Rings(rings) => {
                let rings = lock(rings);
                while let Some(ring) = vectors.pop() {
                    if let Some(bell) = rings.get(usize::from(ring)).and_then(|bells| bells.call.as_ref()) {
                        call(bell);
                    }
                }
            }
        }
    }

    fn line(&self, level: bool) {
        if let Some(recorder) = &self.recorder {
            recorder.note(Event::Line(level));
        }
        if let Signals::Function { interrupts, .. } = self.signals.as_ref()
            && interrupts.set_line(level)
        {
            self.state.written.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn schedule(&self) {
        if self.state.queue() {
            self.inbox.push(Note::Schedule(self.id));
        }
    }

    fn wake_at(&self, time: Time) {
        self.inbox.push(Note::Wake(self.id, time));
    }

    fn always_polls(&self) -> bool {
        self.inbox.always_polls()
    }

    fn now(&self, _given: Time) -> Time {
        self.clock.now()
    }

    fn stalled(&self, number: u16, stall: Stall) {
        if let Signals::Rings(rings) = self.signals.as_ref()
            && let Some(bell) = lock(rings).get(usize::from(number)).and_then(|bells| bells.error.as_ref())
        {
            call(bell);
        }
        // The worker logs it: the caller holds the port's lock, and the log may be slow.
        self.inbox.push(Note::Stalled(self.id, stall));
    }

    fn guest_error(&self, error: &NotedError) {
        if let Some(recorder) = &self.recorder {
            recorder.guest_error(error);
        }
        // The worker logs it, as above. A guest may make mistakes at full speed: one note a second.
        if error.at.0 >= self.next_error_log.load(Ordering::Relaxed) {
            self.next_error_log.store(error.at.after_ns(ERROR_LOG_NS).0, Ordering::Relaxed);
            self.inbox.push(Note::GuestError(self.id, *error));
        }
    }

    fn refused_access(&self, refusal: &Refusal) {
        // As above.
        let now = self.clock.now();
        if now.0 >= self.next_refusal_log.load(Ordering::Relaxed) {
            self.next_refusal_log.store(now.after_ns(ERROR_LOG_NS).0, Ordering::Relaxed);
            self.inbox.push(Note::RefusedAccess(self.id, *refusal));
        }
    }

    fn refused(&self, reason: Reason) {
        self.inbox.push(Note::Refused(self.id, reason));
    }

    fn changed(&self) {
        self.state.changed.store(true, Ordering::Relaxed);
    }

    fn news(&self, news: News) {
        self.inbox.push(Note::News(self.id, news));
    }

    fn failed(&self, _cause: &str) {
        if let Signals::Rings(rings) = self.signals.as_ref() {
            lock(rings).iter().filter_map(|bells| bells.error.as_ref()).for_each(call);
        }
        self.inbox.push(Note::Failed(self.id));
    }
}
