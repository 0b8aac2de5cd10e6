//! Records on their way from workers to the thread that exports them.
//!
//! Each port that frames come from has a lane of its own. When no room is left, a port whose lane has less than its share (an equal part for
//! each port whose records wait) takes the place of a record of the longest lane; another port loses its own record. So a guest with a
//! million flows costs itself, and a port alone may use all room. Records leave some of each lane in turn.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nicety_ipfix::{NOT_ONE, Names, Port, Record};
use nicety_plane::FlowSink;

use super::lock;

/// Most records that wait: some 5 MB.
pub(super) const WAITING_MAX: usize = 32_768;
/// Records that leave of one lane before the next one's turn.
const TURN: usize = 16;

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

/// A record with the ports that its numbers meant when it was made. A port that is gone keeps its name, and no other one gets its records.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub record: Record,
    /// The port that the frames came from.
    pub from: Arc<Port>,
    /// The port that they went to. Without a name: none, or several.
    pub to: Arc<Port>,
    /// Directions in which it is to be reported yet, a bit each.
    pub directions: u8,
}

impl Waiting {
    /// Records as a collector gets them: one for each direction.
    pub fn reports(&self) -> u64 {
        self.directions.count_ones().into()
    }
}

/// Records by the names of the ports that their frames came from.
#[derive(Debug, Default)]
struct Lanes {
    lanes: BTreeMap<String, VecDeque<Waiting>>,
    /// Records in all lanes.
    waiting: usize,
    /// The lane from which records have left last.
    last: String,
    /// Records that were lost of each port that is there.
    lost: BTreeMap<String, u64>,
}

impl Lanes {
    /// Takes a record. Returns the one that is lost for it, if there is no room.
    fn add(&mut self, one: Waiting) -> Option<Waiting> {
        let name = &one.from.name;
        let own = self.lanes.get(name).map_or(0, VecDeque::len);
        let mut lost = None;
        if self.waiting >= WAITING_MAX {
            let lanes = self.lanes.len() + usize::from(own == 0);
            if own >= WAITING_MAX / lanes {
                return Some(one);
            }
            // A lane has more than its share, since this one has less.
            lost = self.lanes.values_mut().max_by_key(|lane| lane.len()).and_then(VecDeque::pop_back);
            self.waiting -= usize::from(lost.is_some());
        }
        match self.lanes.get_mut(name) {
            Some(lane) => lane.push_back(one),
            None => _ = self.lanes.insert(name.clone(), VecDeque::from([one])),
        }
        self.waiting += 1;
        lost
    }

    /// The lane behind the last one, in a circle.
    fn next(&self) -> Option<&String> {
        let behind = (Bound::Excluded(&self.last), Bound::Unbounded);
        let next = self.lanes.range::<String, _>(behind).next().or_else(|| self.lanes.first_key_value());
        next.map(|(name, _)| name)
    }

    fn drain(&mut self, most: usize, into: &mut VecDeque<Waiting>) {
        let mut left = most;
        while left > 0
            && let Some(name) = self.next().cloned()
            && let Some(lane) = self.lanes.get_mut(&name)
        {
            let count = TURN.min(left).min(lane.len());
            into.extend(lane.drain(..count));
            if lane.is_empty() {
                self.lanes.remove(&name);
            }
            (self.waiting, left, self.last) = (self.waiting - count, left - count, name);
        }
    }
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Queue {
    lanes: Mutex<Lanes>,
    counts: Counts,
}

impl Queue {
    /// The counters.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Records that were lost of each port that has lost any, by the ports that their frames came from.
    pub fn lost_by_port(&self) -> BTreeMap<String, u64> {
        lock(&self.lanes).lost.clone()
    }

    /// Forgets what ports have lost that are not among these.
    pub fn keep(&self, names: &Names) {
        lock(&self.lanes).lost.retain(|name, _| names.values().any(|port| port.name == *name));
    }

    /// So many records of frames that came from this port are lost.
    pub fn lose(&self, port: &str, records: u64) {
        self.note_lost(&mut lock(&self.lanes), port, records);
    }

    fn note_lost(&self, lanes: &mut Lanes, port: &str, records: u64) {
        self.counts.lost.fetch_add(records, Ordering::Relaxed);
        match lanes.lost.get_mut(port) {
            Some(lost) => *lost += records,
            None => _ = lanes.lost.insert(port.to_owned(), records),
        }
    }

    /// Whether no record waits.
    pub fn is_empty(&self) -> bool {
        lock(&self.lanes).waiting == 0
    }

    /// Moves at most so many records to the end of this list.
    pub fn drain(&self, most: usize, into: &mut VecDeque<Waiting>) {
        lock(&self.lanes).drain(most, into);
    }
}

/// The sink for workers' records while ports have these names.
#[derive(Debug)]
pub(super) struct Inlet {
    queue: Arc<Queue>,
    names: Arc<Names>,
    nobody: Arc<Port>,
}

impl Inlet {
    /// An inlet of this queue.
    pub fn new(queue: &Arc<Queue>, names: &Arc<Names>) -> Self {
        Self { queue: Arc::clone(queue), names: Arc::clone(names), nobody: Arc::default() }
    }

    fn port(&self, number: u16) -> Arc<Port> {
        Arc::clone(self.names.get(&number).unwrap_or(&self.nobody))
    }
}

impl FlowSink for Inlet {
    fn take(&self, records: &mut Vec<Record>) {
        let mut lanes = lock(&self.queue.lanes);
        for record in records.drain(..) {
            let outcome = record.key.outcome();
            let to = if outcome.egress == NOT_ONE { Arc::clone(&self.nobody) } else { self.port(outcome.egress) };
            let one = Waiting { record, from: self.port(record.ingress), to, directions: outcome.directions };
            if let Some(lost) = lanes.add(one) {
                self.queue.note_lost(&mut lanes, &lost.from.name, lost.reports());
            }
        }
    }

    fn displaced(&self) {
        self.queue.counts.displaced.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[path = "queue_test.rs"]
mod tests;
