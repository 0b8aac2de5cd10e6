//! A guest driver's mistakes: where each was, the value that was found, and what the device expected there.
//!
//! An adapter reports them through [`Context::guest_error`](crate::Context::guest_error),
//! [`Context::bad_access`](crate::Context::bad_access), and the drops of [`Context`](crate::Context). A hostile guest causes them at
//! full speed, so an entry is plain data of constant size: text is made where the list is read.

use std::fmt;

use crate::access::{Region, RegisterName};
use crate::stall::Queue;
use crate::time::Time;
use crate::words::count;

/// Number of entries that are kept: the last ones.
pub const GUEST_ERRORS_KEPT: usize = 32;

/// The place of a mistake. Its words have only numbers of queues and descriptors, and offsets: nothing that a guest wrote becomes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorPlace {
    /// A register's value.
    Register {
        /// Its name in the data sheet.
        name: RegisterName,
        /// Region and offset; `None` if it is behind an address port, as a PCnet's CSRs.
        at: Option<(Region, u32)>,
    },
    /// An access that reaches no register: a hole, a wrong width, or a function that is asleep.
    Access {
        /// True for a write, false for a read.
        write: bool,
        /// The region.
        region: Region,
        /// Offset in the region, in bytes.
        offset: u64,
        /// Number of bytes.
        width: u32,
    },
    /// A queue's ring as a whole.
    Ring(Queue),
    /// A descriptor, an entry or a slot of a queue's ring.
    Descriptor(Queue, u32),
}

impl ErrorPlace {
    /// A descriptor of a transmit queue.
    pub fn transmit(queue: u16, index: u32) -> Self {
        Self::Descriptor(Queue::Transmit(queue), index)
    }

    /// A descriptor of a receive queue.
    pub fn receive(queue: u16, index: u32) -> Self {
        Self::Descriptor(Queue::Receive(queue), index)
    }
}

impl fmt::Display for ErrorPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register { name, at: Some((region, offset)) } => write!(f, "{name} ({region} {offset:#06x})"),
            Self::Register { name, at: None } => write!(f, "{name}"),
            Self::Access { write, region, offset, width } => {
                let way = if *write { "write" } else { "read" };
                write!(f, "{way} of {} at {region} {offset:#06x}", count(u64::from(*width), "byte"))
            }
            Self::Ring(queue) => write!(f, "{queue}"),
            Self::Descriptor(queue, index) => write!(f, "{queue}, descriptor {index}"),
        }
    }
}

/// A mistake of the guest's driver. Prints itself as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestError {
    /// Its place.
    pub place: ErrorPlace,
    /// The value found there: a register's, a buffer's address, or a descriptor's word. The expectation says which.
    pub value: u64,
    /// The device's expectation, in the words of its data sheet: `a tail within the ring (TDT < TDLEN / 16)`.
    pub expected: &'static str,
}

impl fmt::Display for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, value, expected } = self;
        match place {
            // A read of nothing has no value.
            ErrorPlace::Access { write: false, .. } => write!(f, "{place}; expected {expected}"),
            _ => write!(f, "{place}: {value:#x}; expected {expected}"),
        }
    }
}

/// A mistake in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedError {
    /// The number of mistakes up to and including this one, from 1.
    pub number: u64,
    /// The time, by the port's clock. If equal mistakes follow each other, this is the time of the last one.
    pub at: Time,
    /// Number of errors in a row with this place, value and expectation.
    pub times: u64,
    /// The mistake.
    pub error: GuestError,
}

impl fmt::Display for NotedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if self.times > 1 { write!(f, " ({} times)", self.times) } else { Ok(()) }
    }
}

/// The last mistakes of a port's guests, oldest first. Its memory is allocated once. It is no part of a saved state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestErrors {
    kept: Box<[Option<NotedError>; GUEST_ERRORS_KEPT]>,
    /// The place of the next entry.
    next: usize,
    /// All mistakes so far.
    noted: u64,
    /// The adapter's clock minus the port's, in nanoseconds.
    shift_ns: i64,
}

impl Default for GuestErrors {
    fn default() -> Self {
        Self { kept: Box::new([None; GUEST_ERRORS_KEPT]), next: 0, noted: 0, shift_ns: 0 }
    }
}

impl GuestErrors {
    /// Notes a mistake at a time of the adapter's clock. Constant time, no allocation.
    pub fn note(&mut self, error: GuestError, now: Time) {
        let at = Time(now.0.saturating_add_signed(self.shift_ns.saturating_neg()));
        self.noted = self.noted.wrapping_add(1);
        let number = self.noted;
        let last = (self.next + GUEST_ERRORS_KEPT - 1) % GUEST_ERRORS_KEPT;
        if let Some(Some(same)) = self.kept.get_mut(last).filter(|last| last.is_some_and(|last| last.error == error)) {
            (same.number, same.at, same.times) = (number, at, same.times.saturating_add(1));
            return;
        }
        if let Some(entry) = self.kept.get_mut(self.next) {
            *entry = Some(NotedError { number, at, times: 1, error });
        }
        self.next = (self.next + 1) % GUEST_ERRORS_KEPT;
    }

    /// Sets by how many nanoseconds the adapter's clock is ahead of the port's, as after a restore.
    pub fn set_shift(&mut self, shift_ns: i64) {
        self.shift_ns = shift_ns;
    }

    /// The number of mistakes so far. Only the last ones are kept.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// The kept entries, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &NotedError> {
        let (newer, older) = self.kept.split_at(self.next.min(GUEST_ERRORS_KEPT));
        older.iter().chain(newer).flatten()
    }

    /// The kept entries after mistake `number`, oldest first.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &NotedError> {
        self.iter().filter(move |entry| entry.number > number)
    }
}

#[cfg(test)]
#[path = "guest_error_test.rs"]
mod tests;
