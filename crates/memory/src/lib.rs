//! Guest memory: regions that come and go while frames are in flight, with permissions and bounded copies.
//!
//! A [`Map`] is an immutable picture of what a device may reach: guest-physical (bus) addresses onto regions that are
//! mapped here, or known but [absent](Fault::Absent). It is replaced whole when a region comes or goes; whoever
//! still holds the old one (a batch in flight) keeps its mappings alive, and nobody else's.
//!
//! Guest memory changes under our hands at any time. Nothing here ever makes a Rust reference to it: bytes are
//! copied in or out, in bounds checked against the region, and a value that was read once is the value.
//!
//! `unsafe` lives in this crate: the signal guard (`guard.rs`), mapping (`mapping.rs`), copying, hints, and which pages a file has (`blank.rs`); elsewhere the house
//! forbids it.

mod blank;
mod copy;
mod guard;
mod map;
mod mapping;
mod origin;
mod pages;
mod prefetch;
mod window;

pub use copy::{CopySum, copy, copy_sum};
pub use guard::damages;
pub use map::{Absent, Fault, MAX_BYTES, MAX_REGIONS, Map, MapError, Rights, Span};
pub use mapping::{Mapping, MappingError, shared_file};
pub use prefetch::Touch;
pub use window::{Window, full_barrier};

/// Counts accesses to guest memory by this thread, for tests that bound the work that one call does.
#[cfg(feature = "count")]
pub mod count {
    use std::cell::Cell;

    thread_local! {
        static ACCESSES: Cell<u64> = const { Cell::new(0) };
        static BYTES: Cell<u64> = const { Cell::new(0) };
    }

    pub(crate) fn one() {
        ACCESSES.set(ACCESSES.get() + 1);
    }

    pub(crate) fn bytes(len: usize) {
        BYTES.set(BYTES.get() + len as u64);
    }

    /// Accesses since the last call.
    pub fn take() -> u64 {
        ACCESSES.replace(0)
    }

    /// Bytes that were copied since the last call: out of memory, into it, or from one into another.
    pub fn take_bytes() -> u64 {
        BYTES.replace(0)
    }
}
