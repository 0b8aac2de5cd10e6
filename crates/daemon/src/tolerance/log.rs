//! The log of one port: calls that wait to be sent, and figures.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nicety_adapter::tape::{Commit, Entry, Log};
use nicety_host::PeerAddress;
use rustix::event::{EventfdFlags, eventfd};

use super::message::MadeWith;
use super::report::ToleranceReport;
use crate::spec::PortSpec;

/// Most bytes of calls that wait to be sent. With more the log ends.
const WAITING_MAX: usize = 64 << 20;
/// Calls with which a log begins: the adapter's memory, its state, and the notice that it goes on from it.
const BEGINNING: usize = 3;
/// Latencies that are kept.
const LATENCIES: usize = 512;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Wakes the thread that sends.
#[derive(Debug)]
pub struct Bell {
    fd: OwnedFd,
    is_rung: AtomicBool,
    has_ended: AtomicBool,
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Bell {
    pub fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, is_rung: AtomicBool::new(false), has_ended: AtomicBool::new(false) })
    }

    pub fn ring(&self) {
        if !self.is_rung.swap(true, Ordering::AcqRel) {
            // A full counter means that it has been rung already.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    /// The thread is to end.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.ring();
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Before what was announced is looked at: what comes meanwhile rings again.
    pub fn answer(&self) {
        let _none = rustix::io::read(&self.fd, &mut [0; 8]);
        self.is_rung.store(false, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct Waiting {
    /// A log has begun after so many calls, and this was not sent yet.
    begun: Option<u64>,
    is_on: bool,
    is_overfull: bool,
    calls: VecDeque<Entry>,
    bytes: usize,
}

/// Calls to send.
#[derive(Debug, Default)]
pub struct Taken {
    /// A log begins here, after so many calls.
    pub begun: Option<u64>,
    /// The calls.
    pub calls: VecDeque<Entry>,
    /// Calls were lost: the log is of no use any more.
    pub is_overfull: bool,
}

/// Figures for a person.
#[derive(Debug, Default)]
pub struct Figures {
    /// Whether the peer follows, and why not.
    pub is_protected: bool,
    pub why_not: Option<String>,
    /// Calls that the peer has.
    pub known: u64,
    /// Bytes sent and received, of all connections.
    pub traffic: [u64; 2],
    latencies_us: VecDeque<u64>,
}

impl Figures {
    /// A message was acknowledged after this time.
    pub fn acknowledged(&mut self, after: Duration) {
        if self.latencies_us.len() == LATENCIES {
            self.latencies_us.pop_front();
        }
        self.latencies_us.push_back(after.as_micros().try_into().unwrap_or(u64::MAX));
    }
}

/// See the module's page.
#[derive(Debug)]
pub struct PortTape {
    pub port: String,
    pub adapter: &'static str,
    pub made_with: MadeWith,
    pub peer: PeerAddress,
    pub commit: Arc<Commit>,
    bell: Arc<Bell>,
    waiting: Mutex<Waiting>,
    figures: Mutex<Figures>,
}

impl PortTape {
    /// `is_closed`: its frames wait until a log has begun.
    pub fn new(spec: &PortSpec, peer: &PeerAddress, is_closed: bool, bell: Arc<Bell>) -> Self {
        let commit = Arc::new(Commit::new(is_closed));
        let (port, adapter) = (spec.config.name.clone(), spec.config.entry.about.name);
        let (waiting, figures) = (Mutex::default(), Mutex::default());
        let peer = peer.clone();
        Self { port, adapter, made_with: MadeWith::of(&spec.settings()), peer, commit, bell, waiting, figures }
    }

    /// Takes the calls that wait.
    pub fn take(&self) -> Taken {
        let mut waiting = lock(&self.waiting);
        if waiting.begun.is_some() && waiting.calls.len() < BEGINNING {
            // The rest comes at once, and rings again.
            return Taken::default();
        }
        waiting.bytes = 0;
        let calls = std::mem::take(&mut waiting.calls);
        let is_overfull = std::mem::take(&mut waiting.is_overfull);
        Taken { begun: waiting.begun.take(), calls, is_overfull }
    }

    /// Drops the waiting calls. The adapter's next calls are not logged until another log begins.
    pub fn end(&self) {
        *lock(&self.waiting) = Waiting::default();
    }

    pub fn figures(&self) -> MutexGuard<'_, Figures> {
        lock(&self.figures)
    }

    pub fn report(&self) -> ToleranceReport {
        let figures = self.figures();
        let (made, waiting) = (self.commit.made(), self.commit.waiting());
        let mut latencies: Vec<u64> = figures.latencies_us.iter().copied().collect();
        latencies.sort_unstable();
        ToleranceReport {
            peer: self.peer.to_string(),
            protected: figures.is_protected,
            why_not: figures.why_not.clone().filter(|_| !figures.is_protected),
            calls: made,
            lag_calls: if figures.is_protected { made.saturating_sub(figures.known) } else { 0 },
            sent_bytes: figures.traffic[0],
            received_bytes: figures.traffic[1],
            commit_median_microseconds: latencies.get(latencies.len() / 2).copied(),
            commit_most_microseconds: latencies.last().copied(),
            gate_packets: waiting.packets,
            gate_bytes: waiting.bytes,
            gate_is_full: waiting.is_full,
        }
    }
}

impl Log for PortTape {
    fn begin(&self, calls: u64) {
        *lock(&self.waiting) = Waiting { begun: Some(calls), is_on: true, ..Waiting::default() };
        self.bell.ring();
    }

    fn call(&self, entry: Entry) {
        let mut waiting = lock(&self.waiting);
        if !waiting.is_on {
            return;
        }
        waiting.bytes += entry.cost();
        if waiting.bytes > WAITING_MAX {
            *waiting = Waiting { is_overfull: true, ..Waiting::default() };
        } else {
            waiting.calls.push_back(entry);
        }
        drop(waiting);
        self.bell.ring();
    }
}
