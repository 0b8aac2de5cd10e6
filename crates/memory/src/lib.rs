//! Guest memory: regions that come and go while frames are in flight, with permissions and bounded copies.
//!
//! A [`Map`] is an immutable picture of what a device may reach: guest-physical (bus) addresses onto regions that are
//! mapped here, or known but [absent](Fault::Absent). When a region comes or goes there is a new map, which shares with the old
//! one what has not changed. A batch in flight holds the old map, and keeps only its mappings alive.
//!
//! While a guest migrates its map has a [`Log`]: what is translated for writing is noted, and shown when the call is over.
//!
//! Guest memory can change at any time. Nothing here ever makes a Rust reference to it: bytes are copied in or out, with bounds checked
//! against the region. Read a value once and use the copy.
//!
//! `unsafe` lives in this crate: the signal guard (`guard.rs`), mapping (`mapping.rs`), touching (`touch.rs`), hints, the log of written
//! pages (`log.rs`), and which pages a file has (`presence.rs`); elsewhere the house forbids it.

mod copy;
mod files;
mod guard;
mod log;
mod map;
mod mapping;
mod origin;
mod pages;
mod prefetch;
mod presence;
mod region;
mod span;
mod touch;
mod translator;
mod tree;
mod window;

pub use copy::{CopySum, copy, copy_sum};
pub use files::{Files, Piece, limit_files};
pub use guard::damages;
pub use log::Log;
pub use map::{Absent, Fault, MAX_REGIONS, Map, MapError};
pub use mapping::{MAX_BYTES, Mapping, MappingError, shared_file};
pub use prefetch::Touch;
pub use region::Rights;
pub use span::Span;
pub use translator::Translator;
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
