//! A port's counters as plain data, for the next process that counts on.

use serde::{Deserialize, Serialize};

use crate::counters::{Counters, QueueCounters, Reason};

/// Saved counters. The list of the last guest errors is not saved, only their number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedCounters {
    /// Packets, frames and bytes of each queue, up to the last one that was used.
    pub transmit: Vec<(u64, u64, u64)>,
    /// The same, received.
    pub receive: Vec<(u64, u64, u64)>,
    /// Drops by the reason's name, without zeros. Names are saved because another version may know other reasons.
    pub transmit_drops: Vec<(String, u64)>,
    /// The same, received.
    pub receive_drops: Vec<(String, u64)>,
    /// Nanoseconds.
    pub transmit_throttled_ns: u64,
    /// Nanoseconds.
    pub receive_throttled_ns: u64,
    /// Register reads.
    pub reads: u64,
    /// Register writes.
    pub writes: u64,
    /// Interrupts.
    pub interrupts: u64,
    /// Accesses to holes.
    pub bad_accesses: u64,
    /// Violations of the device's protocol.
    pub guest_errors: u64,
}

impl SavedCounters {
    /// Whether all counts are so small that their sums cannot overflow. A count that grows by 10^9 a second reaches the limit in two years.
    pub fn are_plausible(&self) -> bool {
        const MAX: u64 = 1 << 56;
        let Self { transmit, receive, transmit_drops, receive_drops, .. } = self;
        let queues = transmit.iter().chain(receive).flat_map(|&(packets, frames, bytes)| [packets, frames, bytes]);
        let drops = transmit_drops.iter().chain(receive_drops).map(|(_, count)| *count);
        let Self { transmit_throttled_ns, receive_throttled_ns, reads, writes, interrupts, .. } = *self;
        let others = [transmit_throttled_ns, receive_throttled_ns, reads, writes, interrupts];
        queues.chain(drops).chain(others).chain([self.bad_accesses, self.guest_errors]).all(|count| count < MAX)
    }
}

fn save_queues(queues: &[QueueCounters]) -> Vec<(u64, u64, u64)> {
    let used = queues.iter().rposition(|queue| *queue != QueueCounters::default()).map_or(0, |last| last + 1);
    queues.iter().take(used).map(|queue| (queue.packets, queue.frames, queue.bytes)).collect()
}

fn restore_queues(queues: &mut [QueueCounters], saved: &[(u64, u64, u64)]) {
    for (queue, &(packets, frames, bytes)) in queues.iter_mut().zip(saved) {
        *queue = QueueCounters { packets, frames, bytes };
    }
}

fn save_drops(drops: &[u64]) -> Vec<(String, u64)> {
    let counted = Reason::ALL.iter().zip(drops).filter(|(_, count)| **count > 0);
    counted.map(|(reason, count)| (reason.name().to_owned(), *count)).collect()
}

/// A reason that this version does not know counts as `removed`, so that no frame is missing from the sum.
fn restore_drops(drops: &mut [u64], saved: &[(String, u64)]) {
    for (name, count) in saved {
        let reason = Reason::ALL.iter().find(|reason| reason.name() == name).unwrap_or(&Reason::Removed);
        if let Some(drop) = drops.get_mut(*reason as usize) {
            *drop = drop.wrapping_add(*count);
        }
    }
}

impl Counters {
    /// The numbers so far.
    pub fn save(&self) -> SavedCounters {
        SavedCounters {
            transmit: save_queues(&self.transmit),
            receive: save_queues(&self.receive),
            transmit_drops: save_drops(&self.transmit_drops),
            receive_drops: save_drops(&self.receive_drops),
            transmit_throttled_ns: self.transmit_throttled_ns,
            receive_throttled_ns: self.receive_throttled_ns,
            reads: self.reads,
            writes: self.writes,
            interrupts: self.interrupts,
            bad_accesses: self.bad_accesses(),
            guest_errors: self.guest_errors(),
        }
    }

    /// Counts on from saved numbers.
    pub fn restored(saved: &SavedCounters) -> Self {
        let mut counters = Self::default();
        restore_queues(&mut counters.transmit, &saved.transmit);
        restore_queues(&mut counters.receive, &saved.receive);
        restore_drops(&mut counters.transmit_drops, &saved.transmit_drops);
        restore_drops(&mut counters.receive_drops, &saved.receive_drops);
        counters.transmit_throttled_ns = saved.transmit_throttled_ns;
        counters.receive_throttled_ns = saved.receive_throttled_ns;
        counters.reads = saved.reads;
        counters.writes = saved.writes;
        counters.interrupts = saved.interrupts;
        counters.count_errors(saved.bad_accesses, saved.guest_errors);
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_on_from_where_they_were_saved() {
        let mut counters = Counters::default();
        counters.sent(0, 1, 60);
        counters.sent(31, 2, 3000);
        counters.received(1, 1, 1514);
        counters.receive_drop(Reason::BufferFull);
        counters.transmit_drop(Reason::Policy);
        counters.reads = 7;
        let saved = counters.save();
        assert_eq!((saved.transmit.len(), saved.receive.len()), (32, 2));
        assert_eq!(Counters::restored(&saved), counters);
    }

    #[test]
    fn a_drop_for_a_reason_of_another_version_is_still_counted() {
        let saved = SavedCounters { receive_drops: vec![("of-tomorrow".to_owned(), 3)], ..SavedCounters::default() };
        assert_eq!(Counters::restored(&saved).receive_drops.iter().sum::<u64>(), 3);
    }
}
