//! Counters that GET_STATS writes into the queue descriptors (`struct UPT1_TxStats`, `UPT1_RxStats`): ten 64-bit numbers each way.
//! They continue over the driver's resets, as Linux `vmxnet3_get_stats64` expects.

use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

/// Counters of one queue, in the order of the structure: large packets and bytes (TSO or LRO), unicast, multicast, broadcast
/// packets and bytes, then two kinds of loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics([u64; 10]);

/// Transmit: errors. Receive: no buffer.
pub const LOSS_FIRST: usize = 8;
/// Transmit: discarded. Receive: errors.
pub const LOSS_SECOND: usize = 9;

impl Statistics {
    /// Counts a packet of `frames` frames.
    pub fn packet(&mut self, head: &[u8], frames: u32, bytes: u32, large: bool) {
        let target = head.first_chunk::<6>().map_or(Mac::ZERO, |&bytes| Mac(bytes));
        let at = if target.is_broadcast() {
            6
        } else if target.is_multicast() {
            4
        } else {
            2
        };
        let Self(numbers) = self;
        numbers[at] = numbers[at].wrapping_add(u64::from(frames));
        numbers[at + 1] = numbers[at + 1].wrapping_add(u64::from(bytes));
        if large {
            numbers[0] = numbers[0].wrapping_add(u64::from(frames));
            numbers[1] = numbers[1].wrapping_add(u64::from(bytes));
        }
    }

    /// Bytes of all packets so far.
    pub fn bytes(&self) -> u64 {
        let Self(numbers) = self;
        numbers[3].wrapping_add(numbers[5]).wrapping_add(numbers[7])
    }

    /// Counts a loss.
    pub fn lose(&mut self, kind: usize) {
        if let Some(number) = self.0.get_mut(kind) {
            *number = number.wrapping_add(1);
        }
    }

    /// The structure in memory.
    pub fn to_bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (word, number) in words.iter_mut().zip(self.0) {
            *word = number.to_le_bytes();
        }
        bytes
    }
}
