//! An adapter's requests to the port. Plain state: the port reads it after each call, and carries out the requests once per turn.

use crate::time::Time;

/// A set of small numbers: queues, or interrupt vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set(u128);

impl Set {
    /// All members are below this number.
    pub const NUMBERS: u16 = 128;

    /// Adds a number below 128; larger ones are ignored.
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

    /// Number of members.
    pub fn len(&self) -> u32 {
        self.0.count_ones()
    }

    /// Adds all members of another set.
    pub fn extend(&mut self, other: Set) {
        self.0 |= other.0;
    }

    /// Whether it has a member in common with another.
    pub fn overlaps(&self, other: Set) -> bool {
        self.0 & other.0 != 0
    }

    /// Removes and returns the smallest member from `from` on, or else the smallest of all.
    pub fn pop_from(&mut self, from: u16) -> Option<u16> {
        let Self(members) = *self;
        let upper = members & u128::MAX.checked_shl(u32::from(from)).unwrap_or(0);
        let number = if upper != 0 { upper } else { members }.trailing_zeros() as u16;
        self.remove(number);
        (members != 0).then_some(number)
    }

    /// Removes and returns the smallest member.
    pub fn pop(&mut self) -> Option<u16> {
        (self.0 != 0).then(|| {
            let number = self.0.trailing_zeros();
            self.0 &= self.0 - 1;
            number as u16
        })
    }
}

/// See the module's page. A repeated request counts once: one interrupt for any number of senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    /// Transmit queues with descriptors to fetch.
    pub work: Set,
    /// Receive queues that refused frames and have buffers again.
    pub room: Set,
    /// Interrupt messages to send: MSI or MSI-X vectors, or a ring's call.
    pub messages: Set,
    /// Queues that have just broken; [`stall`](crate::Adapter::stall) gives the reason. Receive queue n has number 2n, transmit queue n
    /// has 2n + 1, as virtio-net's rings. [`Outbox::GUEST_ERROR`], [`Outbox::ASK`] and [`Outbox::KEEP`] are no queues.
    pub stalled: Set,
    /// Descriptors read beyond the usual number for the carried frames. The port is charged for them, because the frames' bytes do not
    /// include this work.
    pub excess: u32,
    /// The new level of the INTx line, if it changed.
    pub line: Option<bool>,
    /// The next time to call [`tick`](crate::Adapter::tick); replaces earlier requests.
    pub wake: Option<Time>,
}

impl Outbox {
    /// The member of [`stalled`](Outbox::stalled) that stands for new entries in the [list of guest errors](crate::Counters::errors). It
    /// shares the set with queues, so that a call without new entries needs no check of its own.
    pub const GUEST_ERROR: u16 = Set::NUMBERS - 1;
    /// The member of [`stalled`](Outbox::stalled) that stands for [asks](crate::Adapter::ask) to the adapter's family, for the same
    /// reason.
    pub const ASK: u16 = Set::NUMBERS - 2;

    /// The member of [`stalled`](Outbox::stalled) that stands for a change of registers that must survive this process, see
    /// [`Event::Lost`](crate::Event::Lost). Changes of the configuration space are kept in any case.
    pub const KEEP: u16 = Set::NUMBERS - 3;

    /// Charges the port for descriptors, see [`Outbox::excess`].
    pub fn charge(&mut self, descriptors: u32) {
        self.excess = self.excess.saturating_add(descriptors);
    }

    /// Requests a tick at `time`, or earlier if requested before.
    pub fn wake_by(&mut self, time: Time) {
        self.wake = Some(self.wake.map_or(time, |earlier| earlier.min(time)));
    }
}
