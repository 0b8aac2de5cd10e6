//! Descriptors that go from one process to the next one beside a saved state, which names each by its index.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::PeerFd;

/// A descriptor in this process: its number, and its [serial number](crate::serial), or 0 if its number is never used again while it
/// matters.
pub type Origin = (RawFd, u64);

/// A table of descriptors. The old process [puts](Table::put) them in, the new one [takes](Table::take) them out.
#[derive(Debug, Default)]
pub struct Table {
    list: Vec<Option<PeerFd>>,
    /// The index of each descriptor that was put in: one that many parts of a state use is passed once.
    known: BTreeMap<Origin, u32>,
    /// The descriptors that the receiver has already.
    held: BTreeSet<Origin>,
}

impl Table {
    /// A table for somebody who has these descriptors already: they get their indexes, and are not duplicated.
    pub fn beside(held: &[Origin]) -> Self {
        Self { held: held.iter().copied().collect(), ..Self::default() }
    }

    /// Whether it is for somebody who has [some](Self::beside) already.
    pub fn is_beside(&self) -> bool {
        !self.held.is_empty()
    }

    /// Duplicates a descriptor into the table. Returns its index: the same one for the same descriptor. So it must not be closed while
    /// the table is filled.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn put(&mut self, fd: impl AsFd) -> Result<u32, Errno> {
        self.put_as(fd, 0)
    }

    /// Like [`Table::put`], for a descriptor with a [serial number](crate::serial).
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn put_as(&mut self, fd: impl AsFd, serial: u64) -> Result<u32, Errno> {
        let fd = fd.as_fd();
        let origin = (fd.as_raw_fd(), serial);
        if let Some(index) = self.known.get(&origin) {
            return Ok(*index);
        }
        let index = u32::try_from(self.list.len()).map_err(|_| Errno::MFILE)?;
        let is_held = self.held.contains(&origin);
        let copy = if is_held { None } else { Some(PeerFd::from(fcntl_dupfd_cloexec(fd, 0)?)) };
        self.list.push(copy);
        self.known.insert(origin, index);
        Ok(index)
    }

    /// Adds a descriptor that has arrived.
    pub fn push(&mut self, fd: OwnedFd) {
        self.list.push(Some(fd.into()));
    }

    /// Takes a descriptor out. `None` if there is none at this index, or it was taken already.
    pub fn take(&mut self, index: u32) -> Option<PeerFd> {
        self.list.get_mut(index as usize)?.take()
    }

    /// The descriptor at this index, unless it was taken.
    pub fn get(&self, index: u32) -> Option<BorrowedFd<'_>> {
        self.list.get(index as usize)?.as_ref().map(AsFd::as_fd)
    }

    /// All descriptors that were duplicated and not taken, in order.
    pub fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.list.iter().flatten().map(AsFd::as_fd)
    }

    /// The descriptors that were put in, in order: the originals, not the duplicates.
    pub fn origins(&self) -> Vec<Origin> {
        let mut origins: Vec<(u32, Origin)> = self.known.iter().map(|(origin, index)| (*index, *origin)).collect();
        origins.sort_unstable();
        origins.into_iter().map(|(_, origin)| origin).collect()
    }

    /// Number of indexes.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether no descriptor was put in.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
