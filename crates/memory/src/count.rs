//! Counts this thread's work, for tests that bound the work of one call.

use std::cell::Cell;

pub use crate::blocks::take as take_blocks;

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

/// Accesses to guest memory and checks for its pages, since the last call.
pub fn take() -> u64 {
    ACCESSES.replace(0)
}

/// Bytes copied since the last call: from guest memory, to it, or within it.
pub fn take_bytes() -> u64 {
    BYTES.replace(0)
}
