//! Closing descriptors that the keeper holds no more.
//!
//! close(2) may wait for as long as a VMM likes: for a TCP socket with SO_LINGER that lies in the queue of a UNIX socket (socket(7)), for
//! the lock of a pipe, or for that of an epoll that holds the descriptor. So other threads close, and each owner has threads of its own:
//! a VMM whose descriptors are slow to close holds up its own port's, and nobody else's.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::pace;

/// Most threads of an owner.
const THREADS_MAX: usize = 2;
/// Most threads of all owners. Further descriptors wait, and are tried again.
const ALL_THREADS_MAX: usize = 512;
/// A thread that has nothing to close ends after this time: a port that changes often does not start one for each change.
const IDLE: Duration = Duration::from_secs(1);
/// A thread's stack: it calls close(2).
const STACK: usize = 64 << 10;

/// Threads of all owners.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The descriptors of an owner that wait to be closed.
#[derive(Clone, Debug)]
pub(crate) struct Closing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    come: Condvar,
    /// Descriptors of all owners that are not closed yet.
    all: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<OwnedFd>,
    /// Descriptors that wait or are being closed.
    open: usize,
    threads: usize,
    /// Threads that wait for a descriptor.
    idle: usize,
}

impl Closing {
    /// `all` counts the descriptors of all owners that are not closed yet.
    pub fn new(all: &Arc<AtomicUsize>) -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), come: Condvar::new(), all: Arc::clone(all) }))
    }

    /// Closes these, in order.
    pub fn close(&self, fds: impl IntoIterator<Item = OwnedFd>) {
        let mut state = self.0.state();
        let before = state.waiting.len();
        state.waiting.extend(fds);
        let added = state.waiting.len() - before;
        state.open += added;
        self.0.all.fetch_add(added, Ordering::Relaxed);
        self.0.start(&mut state);
    }

    /// Descriptors that are not closed yet.
    pub fn open(&self) -> usize {
        self.0.state().open
    }

    /// Starts a thread for what waits without one: the system may have refused it before. True if something still waits for a thread.
    pub fn retry(&self) -> bool {
        let mut state = self.0.state();
        if state.threads == 0 {
            self.0.start(&mut state);
        }
        !state.waiting.is_empty() && state.threads == 0
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn start(self: &Arc<Self>, state: &mut State) {
        if state.idle > 0 {
            self.come.notify_one();
        }
        if state.waiting.len() <= state.idle || state.threads == THREADS_MAX {
            return;
        }
        if THREADS.fetch_add(1, Ordering::Relaxed) >= ALL_THREADS_MAX {
            THREADS.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("closing".into()).stack_size(STACK);
        match thread.spawn(move || shared.work()) {
            Ok(_detached) => state.threads += 1,
            Err(_lacking) => _ = THREADS.fetch_sub(1, Ordering::Relaxed),
        }
    }

    fn work(&self) {
        // No VM waits for it.
        pace::calm_this_thread();
        let mut state = self.state();
        loop {
            while let Some(fd) = state.waiting.pop_front() {
                drop(state);
                drop(fd);
                state = self.state();
                state.open -= 1;
                self.all.fetch_sub(1, Ordering::Relaxed);
            }
            state.idle += 1;
            let waited = self.come.wait_timeout(state, IDLE).unwrap_or_else(|poisoned| poisoned.into_inner());
            state = waited.0;
            state.idle -= 1;
            if waited.1.timed_out() && state.waiting.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}
