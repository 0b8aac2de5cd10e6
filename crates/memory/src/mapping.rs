//! One file (or private pages) mapped into this process, guarded against a peer that truncates the file.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use nicety_peer::unmap;
use rustix::fs::{MemfdFlags, SealFlags};
use vm_memory::MmapRegion;
use vm_memory::volatile_memory::VolatileSlice;

use crate::error::{MAX_BYTES, MappingError};
use crate::guard;
use crate::origin::{self, Origin};
use crate::pages;
use crate::presence::{Piece, Presence};
use crate::touch;

/// Bytes mapped into this process, readable (and usually writable) by others at the same time.
///
/// If the file behind it shrinks, the lost part reads as zeros and [`Mapping::damaged`] is true; the process survives.
#[derive(Debug)]
pub struct Mapping {
    region: ManuallyDrop<Region>,
    /// The offset of the requested bytes in the pages, and their number.
    skew: usize,
    len: usize,
    /// For a memory file: which pages exist. A disk file's pages can be reclaimed, and the VM has reserved huge pages: neither
    /// needs this.
    presence: Option<Box<Presence>>,
    damaged: &'static AtomicBool,
    /// Distinguishes its file's descriptor from a later one with the same number.
    serial: u64,
}

/// Whole pages, and their entry in the table watched for truncation. They keep the entry until they are unmapped, so the table
/// bounds both.
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
    /// Maps `len` bytes of `fd` from `offset`, shared. Never blocks on the file's sender: the kernel itself must serve the file;
    /// any other file is dropped untouched.
    pub fn of_file<F: AsFd + Into<OwnedFd>>(
        fd: F,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Self, MappingError> {
        Self::of_checked(origin::check(fd.as_fd())?, File::from(fd.into()), offset, len, writable)
    }

    /// Like [`Mapping::of_file`], for a file of known origin.
    pub(crate) fn of_checked(
        origin: Origin,
        file: File,
        offset: u64,
        len: u64,
        writable: bool,
    ) -> Result<Self, MappingError> {
        let page = pages::size_of(&file).map_err(std::io::Error::from)?;
        let mut this = Self::by_pages(file, page, (offset, len), writable)?;
        if origin == Origin::Memory && page == 1 {
            let file = this.region.pages.file_offset().map(|file| Arc::clone(file.arc()));
            this.presence = file.map(|file| Presence::new(file, offset, this.len).map(Box::new)).transpose()?;
        }
        Ok(this)
    }

    fn by_pages(file: File, page: u64, (offset, len): (u64, u64), writable: bool) -> Result<Self, MappingError> {
        let size = usize::try_from(len).ok().filter(|&n| n > 0 && len <= MAX_BYTES).ok_or(MappingError::Length(len))?;
        let end = offset.checked_add(len).ok_or(MappingError::Length(len))?;
        let held = file.metadata()?.len();
        if end > held {
            return Err(MappingError::BeyondFile { file: held, end });
        }
        let (region, skew) = pages::around(file, page, (offset, end), writable)?;
        Self::guarded(region, skew, size)
    }

    /// Private pages of this process, zeroed: for our own buffers.
    pub fn private(len: usize) -> Result<Self, MappingError> {
        if len == 0 {
            return Err(MappingError::Length(0));
        }
        let region = MmapRegion::new(len).map_err(|error| std::io::Error::other(error.to_string()))?;
        Self::guarded(region, 0, len)
    }

    fn guarded(region: MmapRegion<()>, skew: usize, len: usize) -> Result<Self, MappingError> {
        let watched = guard::watch(region.as_ptr().addr(), region.size());
        let (slot, damaged) = watched.map_err(|full| match full {
            guard::Full::Slots => MappingError::TooMany(guard::SLOTS),
            guard::Full::Bytes => MappingError::TooMuch { len },
        })?;
        let region = ManuallyDrop::new(Region { pages: region, slot });
        Ok(Self { region, skew, len, presence: None, damaged, serial: nicety_peer::serial() })
    }

    /// The bytes, for bounded volatile access. Reading a missing page allocates it: this crate's `read` does not.
    pub fn bytes(&self) -> VolatileSlice<'_> {
        // SAFETY: the region holds `skew + len` bytes and stays mapped while the slice borrows `self`; there is no reference
        // to its content.
        unsafe { VolatileSlice::new(self.region.pages.as_ptr().add(self.skew), self.len) }
    }

    /// Length in bytes, never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// A part of the bytes; empty if it does not lie within.
    #[inline]
    pub(crate) fn slice(&self, offset: usize, len: usize) -> VolatileSlice<'_> {
        if offset > self.len || len > self.len - offset {
            return VolatileSlice::from(&mut [][..]);
        }
        // SAFETY: as in `bytes`, and this is a part of those bytes.
        unsafe { VolatileSlice::new(self.region.pages.as_ptr().add(self.skew).add(offset), len) }
    }

    /// Whether reading a range is known to allocate no page.
    #[inline]
    pub(crate) fn is_known(&self, offset: usize, len: usize) -> bool {
        self.presence.as_ref().is_none_or(|presence| presence.is_known(offset, len))
    }

    /// Bytes around one, all on pages known to exist. Not always as many as there are.
    #[inline]
    pub(crate) fn known_around(&self, offset: usize) -> Range<usize> {
        let known = self.presence.as_ref().map_or(0..self.len, |presence| presence.known_around(offset));
        known.start..known.end.min(self.len)
    }

    /// Copies bytes out, if they are all within. Allocates no page. Returns how many were copied.
    #[inline]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> usize {
        let from = self.slice(offset, into.len());
        if from.is_empty() || self.is_known(offset, from.len()) {
            return touch::copy_out(&from, into);
        }
        self.read_unknown(offset, into)
    }

    #[cold]
    #[inline(never)]
    fn read_unknown(&self, offset: usize, into: &mut [u8]) -> usize {
        let Some(presence) = &self.presence else { return 0 };
        let mut done = 0;
        while done < into.len() {
            match presence.read(offset + done, &mut into[done..]) {
                Piece::Read(count) => done += count,
                Piece::Mapped(count) => {
                    touch::copy_out(&self.slice(offset + done, count), &mut into[done..done + count]);
                    done += count;
                }
            }
        }
        done
    }

    /// The serial number of its file's descriptor.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The file, and the offset in it, of a byte. `None` for private pages.
    pub(crate) fn file_at(&self, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        let file = self.region.pages.file_offset()?;
        Some((file.file().as_fd(), file.start() + self.skew as u64 + offset))
    }

    /// The address of a byte.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.region.pages.as_ptr().wrapping_add(self.skew).wrapping_add(offset)
    }

    /// The offset of an address.
    #[inline]
    pub(crate) fn offset_of(&self, place: *const u8) -> usize {
        place.addr().wrapping_sub(self.at(0).addr())
    }

    /// Whether reading `len` bytes through the mapping allocates no page. Asks the kernel if that is not known yet.
    #[cold]
    #[inline(never)]
    pub(crate) fn is_there(&self, place: *const u8, len: usize) -> bool {
        self.presence.as_ref().is_none_or(|presence| presence.look(self.offset_of(place), len))
    }

    /// `N` bytes from an address in the mapping, if they all lie within; else zeros. For bytes that are
    /// [not there](Mapping::is_there): allocates no page, and does not check for the page again.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_at<const N: usize>(&self, place: *const u8) -> [u8; N] {
        let (offset, mut bytes) = (self.offset_of(place), [0; N]);
        let is_within = !self.slice(offset, N).is_empty();
        if is_within && !self.presence.as_ref().is_some_and(|presence| presence.read_file(offset, &mut bytes)) {
            self.read_unknown(offset, &mut bytes);
        }
        fence(Ordering::Acquire);
        bytes
    }

    /// Counts the pages allocated by a write to a range, given by its address.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate_at(&self, place: *const u8, len: usize) {
        self.allocate(self.offset_of(place), len);
    }

    /// A range to be written; counts the allocated pages.
    #[inline]
    pub(crate) fn target(&self, offset: usize, len: usize) -> VolatileSlice<'_> {
        let slice = self.slice(offset, len);
        if !slice.is_empty() && !self.is_known(offset, slice.len()) {
            self.allocate(offset, slice.len());
        }
        slice
    }

    /// Counts the pages allocated by a write to a range.
    #[cold]
    #[inline(never)]
    pub(crate) fn allocate(&self, offset: usize, len: usize) {
        self.presence.iter().for_each(|presence| presence.allocate(offset, len));
    }

    /// For tests: assumes that every page exists, as in a guest that has used all of its memory.
    #[cfg(feature = "count")]
    pub fn assume_all(&self) {
        self.presence.iter().for_each(|presence| presence.assume_all());
    }

    /// Bytes of pages that our writes have allocated in its file.
    pub fn allocated(&self) -> u64 {
        self.presence.as_ref().map_or(0, |presence| presence.allocated())
    }

    /// Whether only this process has written to the first 64 MiB of its file. False if that is unknown (huge pages, a file on a disk,
    /// Linux before 6.5).
    pub fn is_blank(&self) -> bool {
        self.presence.as_ref().is_some_and(|presence| presence.is_blank())
    }

    /// True once the peer has taken back pages (truncated its file, or the host ran out of them).
    pub fn damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `self` ends here, and nothing accesses the region again.
        let region = unsafe { ManuallyDrop::take(&mut self.region) };
        unmap((region, self.presence.take()));
    }
}

/// A new memory file of `len` bytes with a fixed size: for a guest to share, or a doorbell page.
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
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Map, Rights};

    const TIMEOUT: Duration = Duration::from_secs(20);

    /// Pieces that QEMU 11's q35 shares, one of them across two pages, and the file's end. `tests/huge.rs` tests files of huge pages;
    /// this test needs none.
    #[test]
    fn what_is_written_to_one_piece_is_read_in_another_that_shares_its_page() {
        const PAGE: u64 = 2 << 20;
        const LEN: u64 = 4 * PAGE;
        let fd = shared_file("pieces", LEN).unwrap();
        let piece = |offset, len| {
            let mapping = Mapping::by_pages(fd.try_clone().unwrap().into(), PAGE, (offset, len), true).unwrap();
            Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap()
        };
        let (low, high) = (piece(0, 0xa_0000), piece(0x10_0000, LEN - 0x10_0000));
        let (over, last) = (piece(PAGE - 0x1000, 0x2000), piece(LEN - 0x1000, 0x1000));
        low.write(0x9_fff8, b"low, top").unwrap();
        high.write(PAGE - 0x10_0000 - 4, b"over two").unwrap();
        high.write(LEN - 0x10_0000 - 8, b"very end").unwrap();
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
        for (name, bytes) in [("little", 64 << 10), ("much", 2 << 20)] {
            let file = shared_file(name, 8 << 20).unwrap();
            rustix::io::pwrite(&file, &vec![1; bytes], 0).unwrap();
            let mapping = Mapping::of_file(file, 0, 8 << 20, true).unwrap();
            assert!(is_mapped(name));
            drop(mapping);
            let end = Instant::now() + TIMEOUT;
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
