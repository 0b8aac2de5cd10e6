//! Whether a memory file has anything in it, told without touching its holes, in bounded work, and without waiting for the peer.
//!
//! It is the peer's file, and the same open file at both sides: opening it anew waits for whoever has a lease on it (fcntl(2)), and
//! its position is the peer's as well, which SEEK_DATA would move. mincore(2) tells the pages that there are, and what is read is read
//! where it lies. On a disk that is done with RWF_NOWAIT, which memory files (memfd, tmpfs, hugetlbfs) do not know nor need.
//!
//! A file of huge pages tells only those that this process has touched, but reads its holes as zeros without taking a page: there
//! holes count as data.

use std::fs::File;
use std::io::IoSliceMut;

use rustix::fs::fcntl_get_seals;
use rustix::io::{ReadWriteFlags, preadv2};
use vm_memory::MmapRegion;

/// How many bytes one look reads, over all regions: more zeros than a memory that is in use begins with. QEMU's first region is the
/// 640 KiB below the VGA window, in which firmware and kernels leave vectors, tables and trampolines.
const BYTES: usize = 1 << 20;
/// How many pages one look asks for, over all regions: 64 MiB of 4 KiB each.
const PAGES: usize = 16 << 10;
const PAGES_AT_ONCE: usize = 1 << 10;
const PIECE: usize = 64 << 10;

/// What is left of one look.
#[derive(Debug)]
pub(crate) struct Look {
    bytes: usize,
    pages: usize,
    piece: Vec<u8>,
}

impl Look {
    pub fn new() -> Self {
        Self { bytes: BYTES, pages: PAGES, piece: vec![0; PIECE] }
    }

    /// Whether `[from, end)` of a mapped file is all holes and zeros, as far as it is looked at. What cannot be looked at is not blank.
    pub fn is_blank(&mut self, region: &MmapRegion<()>, (from, end): (usize, usize), is_huge: bool) -> bool {
        let Some(file) = region.file_offset() else { return false };
        let (page, mut at) = (rustix::param::page_size(), from);
        while at < end && self.bytes > 0 && self.pages > 0 {
            let mut there = [1; PAGES_AT_ONCE];
            let mut place = at - at % page;
            let count = (end - place).div_ceil(page).min(self.pages).min(PAGES_AT_ONCE);
            let there = &mut there[..count];
            self.pages -= count;
            if !is_huge && !residents(region, place, there) {
                return false;
            }
            for run in there.chunk_by(|one, next| one & 1 == next & 1) {
                let next = place + run.len() * page;
                let piece = (file.start() + place.max(at) as u64, file.start() + next.min(end) as u64);
                if run[0] & 1 == 1 && !self.is_zero(file.file(), piece) {
                    return false;
                }
                place = next;
            }
            at = place;
        }
        true
    }

    fn is_zero(&mut self, file: &File, (mut from, end): (u64, u64)) -> bool {
        let never = if fcntl_get_seals(file).is_ok() { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
        while from < end && self.bytes > 0 {
            let most = self.bytes.min(PIECE).min(usize::try_from(end - from).unwrap_or(PIECE));
            let piece = &mut self.piece[..most];
            match preadv2(file, &mut [IoSliceMut::new(piece)], from, never) {
                // The file's end.
                Ok(0) => return true,
                Ok(count) if piece.iter().take(count).all(|&byte| byte == 0) => {
                    self.bytes -= count;
                    from += count as u64;
                }
                _ => return false,
            }
        }
        true
    }
}

/// Sets the lowest bit for each page of the region, from byte `place` on, that its file has in memory. False if nobody can tell.
fn residents(region: &MmapRegion<()>, place: usize, pages: &mut [u8]) -> bool {
    let bytes = pages.len() * rustix::param::page_size();
    if place.checked_add(bytes).is_none_or(|end| end > region.size().next_multiple_of(rustix::param::page_size())) {
        return false;
    }
    // SAFETY: the pages lie in a mapping that `region` keeps, and there is a byte for each of them; mincore(2) touches no page.
    unsafe { libc::mincore(region.as_ptr().add(place).cast(), bytes, pages.as_mut_ptr()) == 0 }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::{Map, Mapping, Rights, shared_file};

    /// Opening the file again would wait for /proc/sys/fs/lease-break-time, 45 s; longer than this.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_lease_on_a_memory_file_holds_up_nobody_who_looks_at_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        for (written, is_blank) in [(&[0; 8], true), (b"anything", false)] {
            file.write_all(written).unwrap();
            // SAFETY: neither takes a pointer; whoever breaks the lease sends SIGIO, which would end this process.
            let leased = unsafe {
                libc::signal(libc::SIGIO, libc::SIG_IGN);
                libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK)
            };
            assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
            let mapping = Mapping::of_file(OwnedFd::from(file.try_clone().unwrap()), 0, 4 << 20, true).unwrap();
            let (done, finished) = mpsc::channel();
            std::thread::spawn(move || done.send(mapping.is_blank()));
            assert_eq!(finished.recv_timeout(PATIENCE), Ok(is_blank));
        }
    }

    #[test]
    fn one_look_at_many_regions_is_bounded_in_bytes_and_in_pages() {
        const REGION: usize = 4 << 20;
        for bytes in [REGION, 0] {
            let fd = shared_file("looked at", REGION as u64).unwrap();
            rustix::io::pwrite(&fd, &vec![0; bytes], 0).unwrap();
            let mut map = Map::default();
            for number in 0..64 {
                let mapping = Mapping::of_file(fd.try_clone().unwrap(), 0, REGION as u64, true).unwrap();
                map = map.with(number * REGION as u64, Arc::new(mapping), Rights::BOTH).unwrap();
            }
            let before = read_by_this_thread();
            assert!(map.is_blank());
            let read = read_by_this_thread() - before;
            assert!(read <= (1 << 20) + 4096, "{read} bytes");
            let mut look = Look::new();
            assert!(map.is_blank_by(&mut look));
            assert!((look.bytes == 0) != (look.pages == 0), "{look:?}");
        }
    }

    /// proc(5), /proc/pid/io: bytes that were passed to read(2) and its like.
    fn read_by_this_thread() -> u64 {
        let io = std::fs::read_to_string("/proc/thread-self/io").unwrap();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    }
}
