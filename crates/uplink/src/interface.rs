//! The common part of the queues of one interface: the tokens for what comes in, and the descriptors by which frames leave.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nicety_adapter::{Bucket, Rate, Time};

/// Most queues of an interface.
const QUEUES_MAX: usize = 16;
/// A queue whose turn it is may miss it for so long before another one takes it.
const MISSED_NS: u64 = 1_000_000;

/// See the module's page. A link with one queue has one of its own.
#[derive(Debug, Default)]
pub struct Interface {
    meter: Mutex<Option<Meter>>,
    /// The queues by their places.
    queues: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Interface {
    /// Calls `act` with the meter, which is new if there is none with this rate.
    pub(crate) fn metered<R>(&self, rate: Rate, burst_bytes: u64, act: impl FnOnce(&mut Meter) -> R) -> R {
        let mut meter = locked(&self.meter);
        match &mut *meter {
            Some(meter) if meter.rate == rate => act(meter),
            other => act(other.insert(Meter::new(rate, burst_bytes))),
        }
    }

    /// The queue at this place has this descriptor from now on. It is the queue's own: when the queue closes it, nobody keeps it open.
    pub(crate) fn register(&self, place: usize, fd: &Arc<OwnedFd>) {
        let mut queues = locked(&self.queues);
        if queues.len() <= place {
            queues.resize(place + 1, Weak::new());
        }
        queues[place] = Arc::downgrade(fd);
    }

    /// The descriptor of the queue on which answers for a sender are to come: by the number of its port, or part, as if each queue sent.
    pub(crate) fn queue_of(&self, sender: u16) -> Option<Arc<OwnedFd>> {
        let queues = locked(&self.queues);
        queues.get(usize::from(sender).checked_rem(queues.len())?)?.upgrade()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The tokens for what comes in. Queues that wait for them get them in the order in which they began to wait.
#[derive(Debug)]
pub(crate) struct Meter {
    rate: Rate,
    pub bucket: Bucket,
    /// Frames wait for tokens until then.
    starved: Option<Time>,
    /// The last turn ended then, with frames and tokens left.
    pub left_at: Option<Time>,
    /// By the queues' places: the time at which each began to wait, in turns; 0 for one that does not.
    turns: [u64; QUEUES_MAX],
    last_turn: u64,
}

impl Meter {
    fn new(rate: Rate, burst_bytes: u64) -> Self {
        let bucket = Bucket::new(rate, burst_bytes);
        Self { rate, bucket, starved: None, left_at: None, turns: [0; QUEUES_MAX], last_turn: 0 }
    }

    /// A queue fetches. Returns the bytes that it may have; `None`: it waits.
    pub fn begin(&mut self, place: usize, now: Time) -> Option<u64> {
        if let Some(at) = self.left_at.take() {
            self.bucket.resume(at, now);
        } else if let Some(at) = self.starved.take() {
            self.bucket.go_on(at, now);
        }
        if !self.bucket.ready(now) || (self.is_behind(place) && now < self.bucket.ready_at().after_ns(MISSED_NS)) {
            return None;
        }
        self.turns[place % QUEUES_MAX] = 0;
        Some(self.bucket.bytes(now).max(1))
    }

    fn is_behind(&self, place: usize) -> bool {
        let own = self.turns[place % QUEUES_MAX];
        self.turns.iter().any(|turn| *turn != 0 && (own == 0 || *turn < own))
    }

    /// A queue waits for tokens, or for its turn, until the time that is returned.
    pub fn wait(&mut self, place: usize, now: Time) -> Time {
        let turn = &mut self.turns[place % QUEUES_MAX];
        if *turn == 0 {
            self.last_turn += 1;
            *turn = self.last_turn;
        }
        if self.bucket.ready(now) {
            // Others are before it.
            return now.after_ns(MISSED_NS / 5);
        }
        *self.starved.insert(self.bucket.ready_at())
    }

    /// A queue waits no more: it is closed, or has no limit.
    pub fn leave(&mut self, place: usize) {
        self.turns[place % QUEUES_MAX] = 0;
    }
}
