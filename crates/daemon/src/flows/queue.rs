//! Records on their way from workers to the thread that exports them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use nicety_plane::{FlowSink, Reported};

use super::lock;

/// Most records that wait: some 4 MB.
const WAITING_MAX: usize = 32_768;

/// Counters of an export.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Records that were sent.
    pub records: AtomicU64,
    /// Times that the templates were sent.
    pub templates: AtomicU64,
    /// Records that were lost.
    pub lost: AtomicU64,
    /// Flows that were reported early for lack of room.
    pub displaced: AtomicU64,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Vec<Reported>>,
    counts: Counts,
}

impl Queue {
    /// The counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Moves all records into this list, which is empty.
    pub fn drain(&self, into: &mut Vec<Reported>) {
        std::mem::swap(&mut *lock(&self.waiting), into);
    }
}

impl FlowSink for Queue {
    fn take(&self, records: &mut Vec<Reported>) {
        let mut waiting = lock(&self.waiting);
        let fitting = records.len().min(WAITING_MAX.saturating_sub(waiting.len()));
        waiting.extend(records.drain(..fitting));
        drop(waiting);
        self.counts.lost.fetch_add(records.len() as u64, Ordering::Relaxed);
        records.clear();
    }

    fn displaced(&self) {
        self.counts.displaced.fetch_add(1, Ordering::Relaxed);
    }
}
