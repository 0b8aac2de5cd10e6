//! Pages mapped into this process, and unmapped whole.
//!
//! A file of huge pages (hugetlbfs, `memfd_create` with `MFD_HUGETLB`) is mapped by the huge page: mmap(2) takes no other
//! offset and rounds the length up by itself, and munmap(2) and `MAP_FIXED` want both rounded (mmap(2), "Huge page
//! (Huge TLB) mappings"). VMMs offer pieces of such a file by their own page, 4 KiB: all of the piece's huge pages are mapped.

use std::fs::File;
use std::ptr::null_mut;

use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// `HUGETLBFS_MAGIC` of <linux/magic.h>: statfs(2) has the size of a huge page in `f_bsize`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// A mapping, whole. Unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Pages {
    start: *mut u8,
    len: usize,
}

// SAFETY: the address is this value's own to unmap, and stays mapped while it lives; what lies there is only ever reached by
// volatile copies, from any thread.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// All pages of a file that have a byte of `[offset, end)`, shared, and how far into them `offset` lies. The range is not empty.
    pub fn of_file(file: &File, offset: u64, end: u64, writable: bool) -> Result<(Self, usize), Errno> {
        let page = huge_page(file)?.unwrap_or(1);
        let skew = offset % page;
        let first = offset - skew;
        let rounded = end.checked_next_multiple_of(page).ok_or(Errno::OVERFLOW)?;
        let len = usize::try_from(rounded - first).map_err(|_| Errno::OVERFLOW)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the place, so that nothing is mapped over.
        let start = unsafe { mmap(null_mut(), len, protection, flags, file, first) }?;
        // Less than a page that fits into `len`.
        Ok((Self { start: start.cast(), len }, skew as usize))
    }

    /// Zeroed pages of this process alone.
    pub fn private(len: usize) -> Result<Self, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as in `of_file`.
        let start = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Ok(Self { start: start.cast(), len })
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped, and whoever reached into it borrowed this value.
        if let Err(errno) = unsafe { munmap(self.start.cast(), self.len) } {
            tracing::error!("{} bytes of guest memory stay mapped until this process ends: munmap: {errno}", self.len);
            debug_assert!(false, "munmap of {:?}+{:#x}: {errno}", self.start, self.len);
        }
    }
}

/// The size of a file's huge pages, if it is made of them.
fn huge_page(file: &File) -> Result<Option<u64>, Errno> {
    let system = fstatfs(file)?;
    let is_huge = system.f_type as u32 == HUGETLBFS;
    Ok(u64::try_from(system.f_bsize).ok().filter(|&size| is_huge && size > 0))
}
