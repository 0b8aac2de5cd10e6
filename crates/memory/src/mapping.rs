//! One file (or private pages) mapped into this process, guarded against a peer that truncates the file.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nicety_bell::{holds_much, release};
use rustix::fs::{MemfdFlags, SealFlags};
use vm_memory::MmapRegion;
use vm_memory::volatile_memory::VolatileSlice;

use crate::blank::Look;
use crate::guard;
use crate::map::MAX_BYTES;
use crate::origin;
use crate::pages;

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
    /// Zero bytes, more than a VM may have, or a length or offset that the address space cannot hold.
    #[error("a memory region of {0} bytes cannot be mapped")]
    Length(u64),
    /// The operating system refused.
    #[error("mapping guest memory: {0}")]
    Os(#[from] std::io::Error),
    /// The file is none that the kernel itself answers for.
    #[error(
        "memory must be a memory file (QEMU: memory-backend-memfd,share=on), or a file of a tmpfs, of hugetlbfs or of a disk that is \
         mounted here; this is none ({0})"
    )]
    Origin(String),
    /// Too many mappings are alive in this process.
    #[error("more than {0} guest memory regions are mapped: detach a VM first")]
    TooMany(usize),
    /// Too many bytes of all VMs are mapped in this process.
    #[error("with {len} bytes more, guest memory of more than {} TiB would be mapped: detach a VM first", guard::BYTES >> 40)]
    TooMuch {
        /// Of this mapping.
        len: usize,
    },
}

/// Bytes mapped into this process, readable (and usually writable) by others at the same time.
///
/// If the file behind it shrinks, the touched pages turn to zeros and [`Mapping::damaged`] says so; the process lives.
#[derive(Debug)]
pub struct Mapping {
    region: ManuallyDrop<Region>,
    /// Where in them the bytes that were asked for begin, and how many they are.
    skew: usize,
    len: usize,
    /// Whether its file is made of huge pages.
    is_huge: bool,
    damaged: &'static AtomicBool,
}

/// Whole pages, and their place among those that are watched for truncation: it is theirs until they are unmapped, so that there
/// are never more of either.
#[derive(Debug)]
struct Region {
    pages: MmapRegion<()>,
    slot: guard::Slot,
}

impl Drop for Region {
    fn drop(&mut self) {
        guard::forget(self.slot);
    }
}

impl Mapping {
    /// Maps `len` bytes of `fd` from `offset`, shared. Nothing waits for whoever the file is from: it must be one that the kernel
    /// itself answers for, and any other is dropped as it came.
    pub fn of_file<F: AsFd + Into<OwnedFd>>(
        fd: F,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Self, MappingError> {
        origin::check(fd.as_fd())?;
        let file = File::from(fd.into());
        let page = pages::size_of(&file).map_err(std::io::Error::from)?;
        Self::by_pages(file, page, offset, len, writable)
    }

    fn by_pages(file: File, page: u64, offset: u64, len: u64, writable: bool) -> Result<Self, MappingError> {
        let size = usize::try_from(len).ok().filter(|&n| n > 0 && len <= MAX_BYTES).ok_or(MappingError::Length(len))?;
        let end = offset.checked_add(len).ok_or(MappingError::Length(len))?;
        let held = file.metadata()?.len();
        if end > held {
            return Err(MappingError::BeyondFile { file: held, end });
        }
        let (region, skew) = pages::around(file, page, (offset, end), writable)?;
        Self::guarded(region, skew, size, page > 1)
    }

    /// Private pages of this process, zeroed: for buffers that this side owns.
    pub fn private(len: usize) -> Result<Self, MappingError> {
        if len == 0 {
            return Err(MappingError::Length(0));
        }
        let region = MmapRegion::new(len).map_err(|error| std::io::Error::other(error.to_string()))?;
        Self::guarded(region, 0, len, false)
    }

    fn guarded(region: MmapRegion<()>, skew: usize, len: usize, is_huge: bool) -> Result<Self, MappingError> {
        let watched = guard::watch(region.as_ptr().addr(), region.size());
        let (slot, damaged) = watched.map_err(|full| match full {
            guard::Full::Slots => MappingError::TooMany(guard::SLOTS),
            guard::Full::Bytes => MappingError::TooMuch { len },
        })?;
        Ok(Self { region: ManuallyDrop::new(Region { pages: region, slot }), skew, len, is_huge, damaged })
    }

    /// The bytes, for bounded volatile access.
    pub fn bytes(&self) -> VolatileSlice<'_> {
        // SAFETY: the region holds `skew + len` bytes and stays mapped while the slice borrows `self`; nobody makes a reference
        // to what lies in it.
        unsafe { VolatileSlice::new(self.region.pages.as_ptr().add(self.skew), self.len) }
    }

    /// Length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether the file has nothing but zeros here: nobody has written to it yet, or he who did has a private copy of it. Holes are
    /// not touched, and no more than 1 MiB is read.
    pub fn is_blank(&self) -> bool {
        self.is_blank_by(&mut Look::new())
    }

    pub(crate) fn is_blank_by(&self, look: &mut Look) -> bool {
        look.is_blank(&self.region.pages, (self.skew, self.skew + self.len), self.is_huge)
    }

    /// True once the peer took pages away under us (truncated its file, or the host ran out of them).
    pub fn damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the end of `self`, and nobody looks at the region again.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        // A file that is mapped is the kernel's own.
        if region.pages.file_offset().is_some_and(|file| holds_much(file.file().as_fd())) {
            release(region);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Map, Rights};

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Pieces as QEMU 11's q35 offers them, one over two pages, and the file's end. That a file of huge pages is mapped by those is for
    /// `tests/huge.rs`; that a piece is the right bytes needs none.
    #[test]
    fn what_is_written_to_one_piece_is_read_in_another_that_shares_its_page() {
        const PAGE: u64 = 2 << 20;
        const LEN: u64 = 4 * PAGE;
        let fd = shared_file("pieces", LEN).unwrap();
        let piece = |offset, len| {
            let mapping = Mapping::by_pages(fd.try_clone().unwrap().into(), PAGE, offset, len, true).unwrap();
            Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap()
        };
        let (low, high) = (piece(0, 0xa_0000), piece(0x10_0000, LEN - 0x10_0000));
        let (over, last) = (piece(PAGE - 0x1000, 0x2000), piece(LEN - 0x1000, 0x1000));
        assert!(low.is_blank());
        low.write(0x9_fff8, b"low, top").unwrap();
        high.write(PAGE - 0x10_0000 - 4, b"over two").unwrap();
        high.write(LEN - 0x10_0000 - 8, b"very end").unwrap();
        assert!(!low.is_blank() && !high.is_blank() && !last.is_blank());
        let read = |map: &Map, at| {
            let mut bytes = [0; 8];
            map.read(at, &mut bytes).unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        assert_eq!((read(&over, 0xffc), read(&last, 0xff8)), ("over two".into(), "very end".into()));
        let mut bytes = [0; 8];
        rustix::io::pread(&fd, &mut bytes, 0x9_fff8).unwrap();
        assert_eq!(&bytes, b"low, top");
        assert!(high.read(LEN - 0x10_0000, &mut bytes).is_err(), "the piece ends with the file");
    }

    #[test]
    fn memory_that_was_mapped_is_let_go_however_much_it_is() {
        let is_mapped = |name| std::fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("/memfd:{name}"));
        for (name, bytes, at_once) in [("little", 64 << 10, true), ("much", 2 << 20, false)] {
            let file = shared_file(name, 8 << 20).unwrap();
            rustix::io::pwrite(&file, &vec![1; bytes], 0).unwrap();
            let mapping = Mapping::of_file(file, 0, 8 << 20, true).unwrap();
            assert!(is_mapped(name));
            drop(mapping);
            assert!(!at_once || !is_mapped(name));
            let end = Instant::now() + PATIENCE;
            while is_mapped(name) {
                assert!(Instant::now() < end, "{name}");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        assert!(names.any(|name| name.trim() == "releasing"), "it was done by a thread");
    }
}
