//! What an adapter wants of the world. Plain state: the port looks at it after each call and once a turn acts on it.

use crate::time::Time;

/// A set of small numbers: queues, or interrupt vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u128);

impl Set {
    /// Numbers that can be in it: all below this one.
    pub const NUMBERS: u16 = 128;

    /// Adds a number below 128; larger ones are no member of any set.
    pub fn insert(&mut self, number: u16) {
        self.0 |= 1u128.checked_shl(u32::from(number)).unwrap_or(0);
    }

    /// Removes a number.
    pub fn remove(&mut self, number: u16) {
        self.0 &= !1u128.checked_shl(u32::from(number)).unwrap_or(0);
    }

    /// Whether the number is in it.
    pub fn contains(&self, number: u16) -> bool {
        self.0 & 1u128.checked_shl(u32::from(number)).unwrap_or(0) != 0
    }

    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// How many members.
    pub fn len(&self) -> u32 {
        self.0.count_ones()
    }

    /// Adds all of another's.
    pub fn extend(&mut self, other: Set) {
        self.0 |= other.0;
    }

    /// Whether it has a member in common with another.
    pub fn overlaps(&self, other: Set) -> bool {
        self.0 & other.0 != 0
    }

    /// Takes the smallest member out that is not below `from`, or else the smallest.
    pub fn pop_from(&mut self, from: u16) -> Option<u16> {
        let Self(members) = *self;
        let upper = members & u128::MAX.checked_shl(u32::from(from)).unwrap_or(0);
        let number = if upper != 0 { upper } else { members }.trailing_zeros() as u16;
        self.remove(number);
        (members != 0).then_some(number)
    }

    /// Takes the smallest member out.
    pub fn pop(&mut self) -> Option<u16> {
        (self.0 != 0).then(|| {
            let number = self.0.trailing_zeros();
            self.0 &= self.0 - 1;
            number as u16
        })
    }
}

/// See the module's page. Setting the same wish twice is one wish: one interrupt however many senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    /// Transmit queues with descriptors to fetch.
    pub work: Set,
    /// Receive queues that had refused frames and have buffers again.
    pub room: Set,
    /// Interrupt messages to send: MSI or MSI-X vectors, or a ring's call.
    pub messages: Set,
    /// Queues that have just broken, and [say why](crate::Adapter::stall): receive queue n is number 2n, transmit queue n
    /// is 2n + 1, as virtio-net's rings are.
    pub stalled: Set,
    /// Descriptors read beyond the usual number for the frames carried: work that the frames' bytes do not show. The port is
    /// charged with them.
    pub excess: u32,
    /// The INTx line, if it changed: the level now.
    pub line: Option<bool>,
    /// The next time to call [`tick`](crate::Adapter::tick); whatever was asked before is replaced.
    pub wake: Option<Time>,
}

impl Outbox {
    /// Charges the port with so many descriptors, see [`Outbox::excess`].
    pub fn charge(&mut self, descriptors: u32) {
        self.excess = self.excess.saturating_add(descriptors);
    }

    /// Asks for a tick at `time`, or earlier if that was asked already.
    pub fn wake_by(&mut self, time: Time) {
        self.wake = Some(self.wake.map_or(time, |earlier| earlier.min(time)));
    }
}
