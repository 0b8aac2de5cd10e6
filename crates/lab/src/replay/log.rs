//! The log of a guest's inputs, and the messages between its two hosts.

use std::collections::VecDeque;

use nicety_protect::{Pairing, Run};

use super::input::{GuestTime, Input};

/// One input in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When the guest took it.
    pub at: GuestTime,
    /// The input.
    pub input: Input,
    /// The low byte of the guest's [`history`](super::Machine::history) before this input: the first input after which two replicas
    /// differ is found with a probability of 255/256, and one of the next few otherwise.
    pub check: u8,
}

impl Entry {
    /// Bytes in memory, roughly.
    fn cost(&self) -> usize {
        let Input::Frame(frame) = &self.input else { return size_of::<Self>() };
        size_of::<Self>() + frame.len()
    }
}

/// A message between the two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From a host without a guest: it may be the twin.
    Offer(Run),
    /// From the owner: inputs.
    Log(Piece),
    /// From the twin: its replica differs from the owner's after this many inputs. It has stopped.
    Differs(u64),
    /// From the owner: the first input that it has. A twin would need all.
    TooOld(u64),
    /// About who owns the guest, and which inputs the twin has.
    Protect(nicety_protect::Message),
}

/// A piece of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The protection.
    pub pairing: Pairing,
    /// The number of inputs before these.
    pub first: u64,
    /// Inputs follow without which the twin's copy of the guest is not whole.
    pub is_part: bool,
    /// The inputs.
    pub entries: Vec<Entry>,
    /// The guest's [`state`](super::Machine::state) after them.
    pub state: Option<u64>,
}

/// The inputs so far, or the last ones of them.
#[derive(Clone, Debug)]
pub struct Log {
    entries: VecDeque<Entry>,
    /// Inputs before the first entry.
    base: u64,
    bytes: usize,
    limit: usize,
}

impl Log {
    /// A log that keeps about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), base: 0, bytes: 0, limit }
    }

    /// Appends an input. Old ones that are not `needed` any more, by number, may go.
    pub fn push(&mut self, entry: Entry, needed: u64) {
        self.bytes += entry.cost();
        self.entries.push_back(entry);
        while self.bytes > self.limit && self.base < needed {
            let Some(old) = self.entries.pop_front() else { break };
            self.bytes -= old.cost();
            self.base += 1;
        }
    }

    /// Inputs before the first that is kept.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The inputs from number `first` on, as many as fit into `bytes`, but one at least.
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
