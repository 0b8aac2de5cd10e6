//! Descriptors that go from one process to the next one beside a saved state, which names each by its index.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};

use crate::PeerFd;

/// A table of descriptors. The old process [puts](Table::put) them in, the new one [takes](Table::take) them out.
#[derive(Debug, Default)]
pub struct Table {
    list: Vec<Option<PeerFd>>,
    /// The index of each descriptor that was put in: one that many parts of a state use is passed once.
    known: BTreeMap<RawFd, u32>,
}

impl Table {
    /// Duplicates a descriptor into the table. Returns its index: the same one for the same descriptor. So it must not be closed while
    /// the table is filled.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn put(&mut self, fd: impl AsFd) -> Result<u32, Errno> {
        let fd = fd.as_fd();
        if let Some(index) = self.known.get(&fd.as_raw_fd()) {
            return Ok(*index);
        }
        let index = u32::try_from(self.list.len()).map_err(|_| Errno::MFILE)?;
        self.list.push(Some(PeerFd::from(fcntl_dupfd_cloexec(fd, 0)?)));
        self.known.insert(fd.as_raw_fd(), index);
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

    /// All descriptors that were not taken, in order.
    pub fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.list.iter().flatten().map(AsFd::as_fd)
    }

    /// The numbers of the descriptors that were put in, in order: of the originals, not of the duplicates.
    pub fn origins(&self) -> Vec<RawFd> {
        let mut origins: Vec<(u32, RawFd)> = self.known.iter().map(|(fd, index)| (*index, *fd)).collect();
        origins.sort_unstable();
        origins.into_iter().map(|(_, fd)| fd).collect()
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
