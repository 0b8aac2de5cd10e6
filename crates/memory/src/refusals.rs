//! Accesses that a map has refused: an IOMMU's fault record. The memory is not there, or the device lacks the right.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An access that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// First bus address of the access.
    pub address: u64,
    /// Bytes of the access.
    pub len: u32,
    /// Whether the device wanted to write. False: to read.
    pub write: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, len, write } = self;
        let what = if *write { "write" } else { "read" };
        write!(f, "a {what} of {len} {} at {address:#x}", if *len == 1 { "byte" } else { "bytes" })
    }
}

/// Counts of refused accesses so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Refused reads: DMA from the guest's memory.
    pub reads: u64,
    /// Refused writes: DMA to the guest's memory.
    pub writes: u64,
    /// The last one.
    pub last: Option<Refusal>,
}

/// Counts the refusals of one device's maps. A map reports to it once told ([`Map::report_to`](crate::Map::report_to)).
#[derive(Debug, Default)]
pub struct Refusals {
    /// Reads and writes together.
    count: AtomicU64,
    refused: Mutex<Refused>,
}

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of refusals. It only grows.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The counts so far.
    pub fn refused(&self) -> Refused {
        *self.lock()
    }

    #[cold]
    pub(crate) fn add(&self, refusal: Refusal) {
        let mut refused = self.lock();
        let sum = if refusal.write { &mut refused.writes } else { &mut refused.reads };
        *sum = sum.wrapping_add(1);
        refused.last = Some(refusal);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}
