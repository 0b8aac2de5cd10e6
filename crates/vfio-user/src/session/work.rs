//! How much one [`Session::receive`](super::Session::receive) does: other sessions wait for their turns meanwhile.

use rustix::io::Errno;

use crate::codec::request::Writes;
use crate::codec::{Header, MULTI_WRITE_SIZE};

/// Most messages of one call; QEMU puts at most 200 writes together. What takes longer than a write counts for several, and is done
/// whole: a call ends with the first message that goes beyond this.
const MOST: u32 = 256;
/// Bytes that are read or written in as long a time as a message takes beside them.
const BYTES: u32 = 64;
/// What a reset counts for, or a change of memory or interrupts.
const CHANGE: u32 = 16;

/// What has been done since the call began.
#[derive(Debug, Default)]
pub(super) struct Work(u32);

impl Work {
    /// Another message, or another write of one that has many.
    pub fn message(&mut self) {
        self.excess(1);
    }

    /// An access to so many bytes.
    pub fn bytes(&mut self, count: u32) {
        self.excess(count / BYTES);
    }

    /// More than an access.
    pub fn change(&mut self) {
        self.excess(CHANGE);
    }

    /// Whether the call must end.
    pub fn is_enough(&self) -> bool {
        self.0 >= MOST
    }

    /// So many accesses' worth of what a device had to do for one.
    pub fn excess(&mut self, accesses: u32) {
        self.0 = self.0.saturating_add(accesses);
    }

    /// How much it is, in messages.
    pub fn done(&self) -> u32 {
        self.0
    }
}

/// A REGION_WRITE_MULTI on the way: the specification has no bound for its writes but the message's size.
#[derive(Debug)]
pub(super) struct Writing {
    pub header: Header,
    writes: Vec<u8>,
    /// Bytes of those that are done.
    done: usize,
    /// The first error.
    pub outcome: Result<(), Errno>,
}

impl Writing {
    /// So many are done, with this outcome.
    pub fn begin(header: Header, writes: Writes<'_>, done: usize, outcome: Result<(), Errno>) -> Self {
        Self { header, writes: writes.bytes().to_vec(), done: done * MULTI_WRITE_SIZE, outcome }
    }

    /// Those that are not done.
    pub fn rest(&self) -> Writes<'_> {
        Writes(self.writes.get(self.done..).unwrap_or_default())
    }

    /// So many more are done, with this outcome.
    pub fn went_on(&mut self, done: usize, outcome: Result<(), Errno>) {
        self.done += done * MULTI_WRITE_SIZE;
        self.outcome = self.outcome.and(outcome);
    }

    /// Whether all are done.
    pub fn is_done(&self) -> bool {
        self.done >= self.writes.len()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        (self.writes.len() / MULTI_WRITE_SIZE) as u64
    }
}
