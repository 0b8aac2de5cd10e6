//! Maps all pages that contain a piece of a file.
//!
//! A file of huge pages (hugetlbfs, `memfd_create` with `MFD_HUGETLB`) is mapped in huge pages (mmap(2), "Huge page (Huge TLB) mappings").
//! mmap(2) accepts no other offset, and rounds the length up by itself. munmap(2) and `MAP_FIXED` want both rounded. VMMs share pieces of
//! such a file in their own pages of 4 KiB. Then all huge pages of the piece are mapped.

use std::fs::File;
use std::io;

use rustix::fs::fstatfs;
use rustix::io::Errno;
use vm_memory::{FileOffset, MmapRegion};

/// `HUGETLBFS_MAGIC` of <linux/magic.h>: statfs(2) has the size of a huge page in `f_bsize`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// Maps, shared, all pages of `page` bytes that contain a part of `[offset, end)`. Returns also the distance from their start to
/// `offset`. The range is not empty.
pub(crate) fn around(
    file: File,
    page: u64,
    (offset, end): (u64, u64),
    writable: bool,
) -> io::Result<(MmapRegion<()>, usize)> {
    let skew = offset % page;
    let first = offset - skew;
    let rounded = end.checked_next_multiple_of(page).ok_or(Errno::OVERFLOW)?;
    let len = usize::try_from(rounded - first).map_err(|_| Errno::OVERFLOW)?;
    let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let region = MmapRegion::build(Some(FileOffset::new(file, first)), len, protection, flags);
    let region = region.map_err(|error| io::Error::other(error.to_string()))?;
    keep_from_dumps(&region)?;
    // Less than a page, so it fits into `len`.
    Ok((region, skew as usize))
}

/// Keeps the pages from a core dump of this process (madvise(2), MADV_DONTDUMP): they are a VM's.
fn keep_from_dumps(region: &MmapRegion<()>) -> io::Result<()> {
    // SAFETY: the mapping is whole, and its content and rights stay as they are.
    Ok(unsafe { rustix::mm::madvise(region.as_ptr().cast(), region.size(), rustix::mm::Advice::LinuxDontDump) }?)
}

/// The page size for mapping a file: that of its huge pages, or 1.
pub(crate) fn size_of(file: &File) -> Result<u64, Errno> {
    let system = fstatfs(file)?;
    let is_huge = system.f_type as u32 == HUGETLBFS;
    Ok(u64::try_from(system.f_bsize).ok().filter(|&size| is_huge && size > 0).unwrap_or(1))
}
