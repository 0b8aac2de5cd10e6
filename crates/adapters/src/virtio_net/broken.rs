//! Reasons why a ring is broken: violations by its driver of virtio 1.2, section 2.7.

use nicety_memory::{Fault, Map};
use serde::{Deserialize, Serialize};

/// A ring violates the rules, or lies outside guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Broken {
    /// An area of the ring.
    Place,
    /// The driver's index (2.7.6).
    Index,
    /// An entry of the driver's ring (2.7.6).
    Head,
    /// A descriptor's `next` (2.7.5).
    Next,
    /// More steps than descriptors (2.7.5.2: loops are forbidden), or than any driver needs.
    Loop,
    /// A descriptor's length.
    Empty,
    /// A descriptor that names a table (2.7.5.3.1), or the table's address.
    Table,
    /// A buffer's address.
    Buffer,
    /// A receive buffer without the flag WRITE (5.1.6.3.1).
    ReadOnly,
    /// A command's chain (5.1.6.5).
    Answer,
    /// Nothing is broken: a translation was asked for. Never kept.
    Waits,
}

impl Broken {
    /// The breakage for a memory fault: `otherwise`, unless the memory is filled on demand.
    #[cold]
    pub fn of(fault: Fault, memory: &Map, otherwise: Broken) -> Broken {
        match fault {
            Fault::Absent(_) if memory.is_on_demand() => Broken::Waits,
            _ => otherwise,
        }
    }

    /// Whether memory that is mapped later may repair it: everything taken from the ring stays valid.
    pub fn lacks_memory(self) -> bool {
        matches!(self, Broken::Place | Broken::Table | Broken::Buffer)
    }

    /// The rule that was broken, in the words of virtio 1.2. The chain at that position of the ring broke it.
    pub fn expected(self) -> &'static str {
        match self {
            Broken::Place => "descriptor, driver and device areas in guest memory (2.6)",
            Broken::Index => "an index at most the queue's size ahead of the device (2.7.6)",
            Broken::Head => "a head below the queue's size (2.7.6)",
            Broken::Next => "a next field below the table's size (2.7.5)",
            Broken::Loop => "a chain without a loop, no longer than the queue and of at most 1024 buffers (2.7.5.2)",
            Broken::Empty => "descriptors with a length",
            Broken::Table => "an indirect table in guest memory, negotiated, not within another (2.7.5.3.1)",
            Broken::Buffer => "buffers in guest memory, which the device may write (2.7.5)",
            Broken::ReadOnly => "receive buffers with VIRTQ_DESC_F_WRITE (5.1.6.3.1)",
            Broken::Answer => "a device-writable byte for the ack (5.1.6.5)",
            Broken::Waits => "a translation",
        }
    }

    /// The reason as text, for the sentence of a [`Stall`](nicety_adapter::Stall).
    pub fn why(self) -> &'static str {
        match self {
            Broken::Place => "the ring lies where no memory is",
            Broken::Index => "the driver's index ran further ahead than the ring is long",
            Broken::Head => "the driver's ring names a head beyond the descriptor table",
            Broken::Next => "a chain of descriptors leaves its table",
            Broken::Loop => "a chain of descriptors loops, is longer than its table, or has more than 1024 buffers",
            Broken::Empty => "a descriptor is of no bytes",
            Broken::Table => "an indirect descriptor is not allowed there, or its table is malformed or in no memory",
            Broken::Buffer => "a buffer lies where no memory is, or where a device may not write",
            Broken::ReadOnly => "a receive buffer is not for the device to write",
            Broken::Answer => "a command has no room for its answer",
            Broken::Waits => "it waits for a translation",
        }
    }
}
