//! The limit on the work of one [`Session::receive`](super::Session::receive): other sessions wait meanwhile.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::codec::request::Writes;
use crate::codec::{Header, MULTI_WRITE_SIZE, errno_of};

/// Most messages of one call; QEMU combines at most 200 writes. A message that takes longer than a write counts as several, and
/// is always finished: a call ends with the first message that reaches this limit.
const MAX: u32 = 256;
/// Bytes of an access that take as long as handling a message.
const BYTES: u32 = 64;
/// The charge for a reset, or a change of memory or interrupts.
const CHANGE: u32 = 16;

/// The work of this call so far.
#[derive(Debug, Default)]
pub(super) struct Work(u32);

impl Work {
    /// Counts a message, or one write of several in a message.
    pub fn message(&mut self) {
        self.excess(1);
    }

    /// Counts an access to `count` bytes.
    pub fn bytes(&mut self, count: u32) {
        self.excess(count / BYTES);
    }

    /// Counts a change.
    pub fn change(&mut self) {
        self.excess(CHANGE);
    }

    /// Whether the call must end.
    pub fn is_enough(&self) -> bool {
        self.0 >= MAX
    }

    /// Counts a device's extra work, in accesses.
    pub fn excess(&mut self, accesses: u32) {
        self.0 = self.0.saturating_add(accesses);
    }

    /// The work so far, in messages.
    pub fn done(&self) -> u32 {
        self.0
    }
}

/// A saved [`Writing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedWriting {
    header: Vec<u8>,
    writes: Vec<u8>,
    done: u64,
    error: i32,
}

/// An unfinished REGION_WRITE_MULTI. Only the size of the message bounds its number of writes.
#[derive(Debug)]
pub(super) struct Writing {
    pub header: Header,
    writes: Vec<u8>,
    /// Bytes of finished writes.
    done: usize,
    /// The first error.
    pub outcome: Result<(), Errno>,
}

impl Writing {
    /// Starts with `done` finished writes and their outcome.
    pub fn begin(header: Header, writes: Writes<'_>, done: usize, outcome: Result<(), Errno>) -> Self {
        Self { header, writes: writes.bytes().to_vec(), done: done * MULTI_WRITE_SIZE, outcome }
    }

    /// Its header, its writes, the bytes of finished writes, and the first error's number or 0.
    pub fn save(&self) -> SavedWriting {
        let mut header = Vec::new();
        self.header.encode(&mut header);
        let error = self.outcome.err().map_or(0, Errno::raw_os_error);
        SavedWriting { header, writes: self.writes.clone(), done: self.done as u64, error }
    }

    /// `None` if the state is impossible.
    pub fn restore(saved: SavedWriting) -> Option<Self> {
        let SavedWriting { header, writes, done, error } = saved;
        let header = Header::decode(header.first_chunk()?);
        let done = usize::try_from(done).ok().filter(|done| *done < writes.len())?;
        let is_whole = writes.len().is_multiple_of(MULTI_WRITE_SIZE) && done.is_multiple_of(MULTI_WRITE_SIZE);
        let outcome = if error == 0 { Ok(()) } else { Err(errno_of(error.unsigned_abs())) };
        is_whole.then_some(Self { header, writes, done, outcome })
    }

    /// The unfinished writes.
    pub fn rest(&self) -> Writes<'_> {
        Writes(self.writes.get(self.done..).unwrap_or_default())
    }

    /// Adds `done` finished writes and their outcome.
    pub fn went_on(&mut self, done: usize, outcome: Result<(), Errno>) {
        self.done += done * MULTI_WRITE_SIZE;
        self.outcome = self.outcome.and(outcome);
    }

    /// Whether all writes are finished.
    pub fn is_done(&self) -> bool {
        self.done >= self.writes.len()
    }

    /// The number of writes.
    pub fn count(&self) -> u64 {
        (self.writes.len() / MULTI_WRITE_SIZE) as u64
    }
}
