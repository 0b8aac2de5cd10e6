//! Snapshots of a port.

use nicety_adapter::{Counters, Reason, Stall, Time};
use nicety_memory::Refused;

use crate::stage::ClassState;

/// A snapshot of a port's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whether a VM is attached, or it is an uplink.
    pub attached: bool,
    /// Whether the guest's driver has started the adapter; an uplink needs none.
    pub driven: bool,
    /// Packets that the attached VM has sent; `counters` includes those of earlier VMs.
    pub sent: u64,
    /// Its counters.
    pub counters: Counters,
    /// The features that the guest's driver turned on.
    pub features: Vec<&'static str>,
    /// Packets that the attached VM has received; `counters` includes those of earlier VMs.
    pub received: u64,
    /// Frames for it that were dropped because of its receive buffers, which lie in no memory or have no length.
    pub misplaced: u64,
    /// The queues that its driver broke.
    pub stalls: Vec<Stall>,
    /// Why its receiver takes no frame now ([`receive_block`](nicety_adapter::Adapter::receive_block)).
    pub receive_block: Option<&'static str>,
    /// Frames in the receive buffer.
    pub backlog_frames: usize,
    /// The time since which the oldest frame waits for receive buffers of the guest.
    pub starved_since: Option<Time>,
    /// Bytes of the receive buffer in use.
    pub backlog_bytes: u64,
    /// Guest memory mapped here, in bytes.
    pub shared_bytes: u64,
    /// Guest memory that the VMM announced but did not share, in bytes.
    pub absent_bytes: u64,
    /// Guest memory first touched by our writes, in bytes: our control group pays for it.
    pub allocated_bytes: u64,
    /// Accesses to guest memory that its map refused the adapter, of this and earlier VMs.
    pub refused: Refused,
    /// Changes of its memory map, by this and earlier VMs.
    pub memory_changes: u64,
    /// The port may not send, because an uplink has no room for its frames.
    pub held: bool,
    /// Its state was saved and it is stopped: see [`Port::stop`](super::Port::stop).
    pub stopped: bool,
    /// The VMM took back shared memory.
    pub damaged: bool,
    /// The classes of an uplink with I/O control.
    pub classes: Vec<ClassState>,
    /// The classes of the frames that come in by this uplink, if I/O control divides them.
    pub inward_classes: Vec<ClassState>,
    /// The reason why an uplink can pass no frames for now.
    pub vacant: Option<String>,
    /// A remark for a person about an uplink that passes frames.
    pub remark: Option<String>,
    /// The panic message, if the adapter or uplink panicked. The port passes no frames any more.
    pub failed: Option<String>,
}

impl State {
    /// A team's state: it has no queue of its own.
    pub fn of_team() -> Self {
        Self { attached: true, driven: true, ..Self::default() }
    }

    /// Adds the state of a part of the same port.
    pub fn add_part(&mut self, part: Self) {
        self.attached |= part.attached;
        self.driven |= part.driven;
        self.sent += part.sent;
        self.received += part.received;
        self.misplaced += part.misplaced;
        self.counters.add_part(&part.counters);
        self.stalls.extend(part.stalls);
        // A part may have no queue that the driver uses.
        self.receive_block = self.receive_block.and(part.receive_block);
        self.backlog_frames += part.backlog_frames;
        self.backlog_bytes += part.backlog_bytes;
        self.starved_since = [self.starved_since, part.starved_since].into_iter().flatten().min();
        self.refused.reads += part.refused.reads;
        self.refused.writes += part.refused.writes;
        self.refused.last = self.refused.last.or(part.refused.last);
        self.held |= part.held;
        self.damaged |= part.damaged;
        self.failed = self.failed.take().or(part.failed);
    }
}

/// Frames that a guest's receive buffers could not take: see [`State::misplaced`].
pub(super) fn misplaced(counters: &Counters) -> u64 {
    [Reason::BadAddress, Reason::BadDescriptor].iter().map(|reason| counters.receive_drops[*reason as usize]).sum()
}
