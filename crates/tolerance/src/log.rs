//! The log of calls, and the messages that carry it.

use std::collections::VecDeque;

use nicety_lease::NodeId;

use crate::call::{Call, GuestTime};

/// One call of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// When the guest was called.
    pub at: GuestTime,
    /// Its input.
    pub call: Call,
    /// The low byte of the guest's [`history`](crate::Machine::history) before this call: the first call after which two replicas
    /// differ is found with a probability of 255/256, and one of the next few otherwise.
    pub check: u8,
}

impl Entry {
    /// Bytes in memory, roughly.
    fn cost(&self) -> usize {
        let Call::Frame(frame) = &self.call else { return size_of::<Self>() };
        size_of::<Self>() + frame.len()
    }
}

/// A message between the two hosts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// From the primary: calls, or none as a sign of life.
    Log {
        /// The primary's [epoch](nicety_lease::Answer).
        epoch: u32,
        /// The number of calls before these.
        first: u64,
        /// Frames that follow from this many calls have left.
        released: u64,
        /// The calls.
        entries: Vec<Entry>,
        /// The guest's [`state`](crate::Machine::state) after them.
        state: Option<u64>,
    },
    /// From the secondary: the number of calls that it has. A sign of life, too.
    Known {
        /// Its sender.
        from: NodeId,
        /// Number of calls.
        calls: u64,
    },
    /// From the secondary: its replica differs. It has stopped.
    Diverged {
        /// Its sender.
        from: NodeId,
        /// The number of calls before the one after which they differ.
        call: u64,
    },
    /// From the primary: a piece of an image of the guest, which the secondary goes on from.
    Image {
        /// The primary's [epoch](nicety_lease::Answer).
        epoch: u32,
        /// The number of calls after which the image was made, that of the image included.
        calls: u64,
        /// When it was made.
        at: GuestTime,
        /// The guest's [`state`](crate::Machine::state) after it.
        state: u64,
        /// Bytes of the whole image.
        len: u64,
        /// Bytes before this piece.
        offset: u64,
        /// The piece.
        bytes: Vec<u8>,
    },
    /// From the secondary: the bytes of an image that it has. A sign of life, too.
    Assembled {
        /// Its sender.
        from: NodeId,
        /// The image's calls.
        calls: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// From the primary: the secondary needs calls that nobody has any more.
    TooOld {
        /// The first call that is there.
        base: u64,
    },
}

/// The calls so far, or the last ones of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// Calls before the first entry.
    base: u64,
    bytes: usize,
    limit: usize,
}

impl Log {
    /// A log that keeps about `limit` bytes, after so many calls that it does not have.
    pub fn new(base: u64, limit: usize) -> Self {
        Self { entries: VecDeque::new(), base, bytes: 0, limit }
    }

    /// Appends a call. Old ones that are not `needed` any more, by number, may go.
    pub fn push(&mut self, entry: Entry, needed: u64) {
        self.bytes += entry.cost();
        self.entries.push_back(entry);
        while self.bytes > self.limit && self.base < needed {
            let Some(old) = self.entries.pop_front() else { break };
            self.bytes -= old.cost();
            self.base += 1;
        }
    }

    /// Calls before the first that is kept.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The calls from number `first` on, as many as fit into `bytes`, but one at least.
    pub fn from(&self, first: u64, bytes: usize) -> Vec<Entry> {
        let mut room = bytes;
        let skipped = usize::try_from(first.saturating_sub(self.base)).unwrap_or(usize::MAX);
        let fits = |(index, entry): &(usize, &Entry)| {
            let fits = *index == 0 || entry.cost() <= room;
            room = room.saturating_sub(entry.cost());
            fits
        };
        self.entries.iter().skip(skipped).enumerate().take_while(fits).map(|(_, entry)| entry.clone()).collect()
    }
}
