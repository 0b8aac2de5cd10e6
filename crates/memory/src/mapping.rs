//! One file (or private pages) mapped into this process, guarded against a peer that truncates the file.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use vm_memory::volatile_memory::VolatileSlice;

use crate::blank::is_blank;
use crate::guard;
use crate::pages::Pages;

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The range lies (partly) behind the end of its file.
    #[error("the memory file has {file} bytes, but the range asked for ends at byte {end}")]
    BeyondFile {
        /// The file's size in bytes.
        file: u64,
        /// Where the range would end.
        end: u64,
    },
    /// Zero bytes, or a length or offset that the address space cannot hold.
    #[error("a memory region of {0} bytes cannot be mapped")]
    Length(u64),
    /// The operating system refused.
    #[error("mapping guest memory: {0}")]
    Os(#[from] std::io::Error),
    /// Too many mappings are alive in this process.
    #[error("more than {0} guest memory regions are mapped: detach a VM first")]
    TooMany(usize),
}

/// Bytes mapped into this process, readable (and usually writable) by others at the same time.
///
/// If the file behind it shrinks, the touched pages turn to zeros and [`Mapping::damaged`] says so; the process lives.
#[derive(Debug)]
pub struct Mapping {
    pages: Pages,
    /// Where in the pages the bytes that were asked for begin, and how many they are.
    skew: usize,
    len: usize,
    /// The file, and where in it they begin.
    file: Option<(File, u64)>,
    damaged: &'static AtomicBool,
    slot: guard::Slot,
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, shared.
    pub fn of_file(fd: OwnedFd, offset: u64, len: u64, writable: bool) -> Result<Self, MappingError> {
        let size = usize::try_from(len).ok().filter(|&n| n > 0).ok_or(MappingError::Length(len))?;
        let end = offset.checked_add(len).ok_or(MappingError::Length(len))?;
        let file = File::from(fd);
        let held = file.metadata()?.len();
        if end > held {
            return Err(MappingError::BeyondFile { file: held, end });
        }
        let (pages, skew) = Pages::of_file(&file, offset, end, writable).map_err(std::io::Error::from)?;
        Self::guarded(pages, skew, size, Some((file, offset)))
    }

    /// Private pages of this process, zeroed: for buffers that this side owns.
    pub fn private(len: usize) -> Result<Self, MappingError> {
        if len == 0 {
            return Err(MappingError::Length(0));
        }
        let pages = Pages::private(len).map_err(std::io::Error::from)?;
        Self::guarded(pages, 0, len, None)
    }

    fn guarded(pages: Pages, skew: usize, len: usize, file: Option<(File, u64)>) -> Result<Self, MappingError> {
        let watched = guard::watch(pages.start().addr(), pages.len());
        let (slot, damaged) = watched.ok_or(MappingError::TooMany(guard::SLOTS))?;
        Ok(Self { pages, skew, len, file, damaged, slot })
    }

    /// The bytes, for bounded volatile access.
    pub fn bytes(&self) -> VolatileSlice<'_> {
        // SAFETY: the pages hold `skew + len` bytes and stay mapped while the slice borrows `self`; nobody makes a reference
        // to what lies in them.
        unsafe { VolatileSlice::new(self.pages.start().add(self.skew), self.len) }
    }

    /// Length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether the file has nothing but zeros here: nobody has written to it yet, or he who did has a private copy of it. Holes are
    /// not touched, and no more than the first 4 MiB of data are read.
    pub fn is_blank(&self) -> bool {
        self.file.as_ref().is_some_and(|(file, start)| is_blank(file, *start, start.saturating_add(self.len())))
    }

    /// True once the peer took pages away under us (truncated its file, or the host ran out of them).
    pub fn damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        guard::forget(self.slot);
    }
}

/// A new memory file of `len` bytes that cannot shrink or grow any more: what a guest shares, or a doorbell page.
pub fn shared_file(name: &str, len: u64) -> Result<OwnedFd, MappingError> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(std::io::Error::from)?;
    rustix::fs::ftruncate(&fd, len).map_err(std::io::Error::from)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(std::io::Error::from)?;
    Ok(fd)
}
