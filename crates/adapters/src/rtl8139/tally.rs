//! The chip's counters, and their dump into memory (DTCCR; struct cp_dma_stats in Linux's 8139cp.c).

use serde::{Deserialize, Serialize};

/// Bytes of a dump.
pub const DUMP_BYTES: usize = 64;

/// Events since the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Frames sent.
    pub sent: u64,
    /// Frames received.
    pub received: u64,
    /// Packets that could not be sent.
    pub send_errors: u64,
    /// Frames that could not be received.
    pub receive_errors: u32,
    /// Frames lost for lack of room.
    pub missed: u16,
    /// Frames received for the adapter's own address.
    pub unicast: u64,
    /// Broadcasts received.
    pub broadcast: u64,
    /// Frames received through the hash table.
    pub multicast: u32,
    /// Packets abandoned.
    pub aborted: u16,
}

impl Tally {
    /// The dump's bytes. Collisions, underruns and alignment errors do not occur.
    pub fn dump(&self) -> [u8; DUMP_BYTES] {
        let Self { sent, received, send_errors, receive_errors, missed, unicast, broadcast, multicast, aborted } =
            *self;
        let mut bytes = [0; DUMP_BYTES];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        put(0, &sent.to_le_bytes());
        put(8, &received.to_le_bytes());
        put(16, &send_errors.to_le_bytes());
        put(24, &receive_errors.to_le_bytes());
        put(28, &missed.to_le_bytes());
        put(40, &unicast.to_le_bytes());
        put(48, &broadcast.to_le_bytes());
        put(56, &multicast.to_le_bytes());
        put(60, &aborted.to_le_bytes());
        bytes
    }
}
