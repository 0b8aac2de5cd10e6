//! The files that one VM shares. Each is mapped once, as a whole, with one descriptor, however many regions lie in it.
//!
//! A VM may offer thousands of regions (an IOMMU's pages) in a file or two. One mapping per region would take a descriptor and a system
//! call each, and use up the process's 65,530 mappings (proc(5), vm.max_map_count). So regions are pieces of few mappings, and each VM
//! has a limit that leaves mappings to the others.
//!
//! Device and inode identify a file. A mapped file keeps its inode, so no other file gets the same number while it is mapped. If
//! the kernel reuses a number nevertheless (a memfd's has 32 bits), both files belong to the same VM.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat};

use crate::error::{MAX_BYTES, MappingError};
use crate::mapping::Mapping;
use crate::origin::{self, Origin};

/// A part of a mapping, for a region.
#[derive(Clone, Debug)]
pub struct Piece {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[cfg(feature = "count")]
impl Piece {
    /// A part of the piece, for tests. It must lie within the piece.
    pub fn part(&self, offset: u64, len: u64) -> Self {
        Self { mapping: Arc::clone(&self.mapping), offset: self.offset + offset, len }
    }

    /// For tests: assumes that every page of its mapping exists, as in a guest that has used all of its memory.
    pub fn assume_all(&self) {
        self.mapping.assume_all();
    }
}

impl Piece {
    /// Its file, and its offset there in bytes. `None` for private pages.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.mapping.file_at(self.offset)
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// A part of the piece; `None` if it does not lie within, or is empty.
    pub fn within(&self, offset: u64, len: u64) -> Option<Self> {
        let is_within = len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.len);
        is_within.then(|| Self { mapping: Arc::clone(&self.mapping), offset: self.offset + offset, len })
    }
}

impl From<Arc<Mapping>> for Piece {
    /// The whole mapping.
    fn from(mapping: Arc<Mapping>) -> Self {
        Self { len: mapping.len(), offset: 0, mapping }
    }
}

/// See the module's page.
#[derive(Debug)]
pub struct Files {
    most: usize,
    mapped: Mutex<Vec<Mapped>>,
}

#[derive(Debug)]
struct Mapped {
    id: Id,
    bytes: u64,
    mapping: Weak<Mapping>,
}

/// Device and inode, and whether the descriptor may write: a read-only one cannot give a writable mapping.
type Id = (u64, u64, bool);

impl Files {
    /// A table in which at most `most` files can be mapped at once.
    pub fn new(most: usize) -> Self {
        Self { most, mapped: Mutex::default() }
    }

    /// Like [`Files::piece`], but only if the file is mapped already: maps nothing, and never waits, neither for the kernel's locks of
    /// that file nor for a thread in [`Files::piece`]. `None` if that is not possible, or the piece is not allowed. Only for memory
    /// files: the kernel alone answers for them (see `origin.rs`).
    pub fn piece_of_mapped(&self, fd: impl AsFd, offset: u64, len: u64, writable: bool) -> Option<Piece> {
        let fd = fd.as_fd();
        if origin::check_quickly(fd)? != Origin::Memory {
            return None;
        }
        let end = offset.checked_add(len).filter(|_| len > 0)?;
        let held = fstat(fd).ok()?;
        let may_write = may_write(fd).ok()?;
        if end > u64::try_from(held.st_size).unwrap_or(0) || (writable && !may_write) {
            return None;
        }
        let mapped = self.mapped.try_lock().ok()?;
        let mapping = find(&mapped, (held.st_dev, held.st_ino, may_write), end)?;
        Some(Piece { mapping, offset, len })
    }

    /// Maps `len` bytes of a file from `offset`. Never blocks on the file's sender: the kernel itself must serve the file; any
    /// other file is dropped untouched.
    pub fn piece<F: AsFd + Into<OwnedFd>>(
        &self,
        fd: F,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Piece, MappingError> {
        self.piece_of(fd, offset, len, writable, self.most)
    }

    /// Like [`Files::piece`], for what the VM shared with an earlier process: the limit of today takes nothing away from it. A limit by
    /// the number of ports is lower when there are more ports.
    pub fn piece_again<F: AsFd + Into<OwnedFd>>(
        &self,
        fd: F,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Piece, MappingError> {
        self.piece_of(fd, offset, len, writable, MAX)
    }

    fn piece_of<F: AsFd + Into<OwnedFd>>(
        &self,
        fd: F,
        offset: u64,
        len: u64,
        writable: bool,
        most: usize,
    ) -> Result<Piece, MappingError> {
        let origin = origin::check(fd.as_fd())?;
        let file = File::from(fd.into());
        let end = offset.checked_add(len).filter(|_| (1..=MAX_BYTES).contains(&len));
        let end = end.ok_or(MappingError::Length(len))?;
        let held = fstat(&file).map_err(std::io::Error::from)?;
        let size = u64::try_from(held.st_size).unwrap_or(0);
        if end > size {
            return Err(MappingError::BeyondFile { file: size, end });
        }
        let may_write = may_write(&file)?;
        if writable && !may_write {
            return Err(MappingError::ReadOnly);
        }
        let id = (held.st_dev, held.st_ino, may_write);
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|one| one.mapping.strong_count() > 0);
        if let Some(mapping) = find(&mapped, id, end) {
            return Ok(Piece { mapping, offset, len });
        }
        if mapped.len() >= most {
            return Err(MappingError::TooManyFiles(most));
        }
        if mapped.iter().map(|one| one.bytes).sum::<u64>().saturating_add(size) > MAX_BYTES {
            return Err(MappingError::FilesTooLarge);
        }
        let mapping = Arc::new(Mapping::of_checked(origin, file, 0, size, may_write)?);
        mapped.push(Mapped { id, bytes: size, mapping: Arc::downgrade(&mapping) });
        Ok(Piece { mapping, offset, len })
    }
}

/// The mapping of the first `end` bytes of a file, if there is one.
fn find(mapped: &[Mapped], id: Id, end: u64) -> Option<Arc<Mapping>> {
    let mut alive = mapped.iter().filter(|one| one.id == id).filter_map(|one| one.mapping.upgrade());
    alive.find(|mapping| mapping.len() >= end && !mapping.damaged())
}

/// Whether a descriptor allows writes to its file. The file may be sealed against writes (fcntl(2), F_SEAL_WRITE).
fn may_write(file: impl AsFd) -> Result<bool, MappingError> {
    let file = file.as_fd();
    let flags = fcntl_getfl(file).map_err(std::io::Error::from)?;
    let sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE));
    Ok(flags & OFlags::RWMODE == OFlags::RDWR && !sealed)
}

/// Most files that a VM may share, unless the process has few descriptors.
const MAX: usize = 256;
static LIMIT: AtomicUsize = AtomicUsize::new(MAX);

/// Limits the files that each VM may share from now on: at most `most`, and at most 256.
pub fn limit_files(most: usize) {
    LIMIT.store(most.min(MAX), Ordering::Relaxed);
}

impl Default for Files {
    /// A table with the limit for each VM.
    fn default() -> Self {
        Self::new(LIMIT.load(Ordering::Relaxed))
    }
}
