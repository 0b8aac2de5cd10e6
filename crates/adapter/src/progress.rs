//! The limits of a fetch, and its result.

use crate::batch::Batch;

/// The limits of one call. At least one packet is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Most packets.
    pub packets: usize,
    /// Most bytes, after the first packet.
    pub bytes: u64,
}

impl Budget {
    /// The budget of a turn: 64 packets, 64 KiB.
    pub const TURN: Self = Self { packets: crate::batch::PACKETS, bytes: 64 << 10 };

    /// Whether one more packet may be fetched into this batch.
    pub fn allows(&self, batch: &Batch) -> bool {
        batch.is_empty() || (batch.len() < self.packets && batch.bytes() < self.bytes)
    }
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// There may be more: call again.
    pub more: bool,
    /// The queue is empty, and the guest's next doorbell will notify us: safe to sleep. If neither is set, poll.
    pub armed: bool,
}
