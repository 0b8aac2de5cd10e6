//! Memory for DMA, with its physical addresses (Linux, Documentation/admin-guide/mm/pagemap.rst): huge pages, or ordinary pages
//! that are physically contiguous. The kernel must not move them: it never moves huge pages, and ordinary ones only with
//! compaction.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use nicety_drivers::Arena;
use nicety_memory::{Map, Mapping, Rights, shared_file};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::param::page_size;

use crate::Fallible;

/// Bytes of a piece: a huge page. A driver's largest buffer fits into one.
const PIECE: u64 = 2 << 20;
/// Number of pieces that a driver's rings and buffers need.
const PIECES: usize = 4;
/// Bytes of ordinary pages that are allocated at a time. They come from the kernel's blocks of 4 MB, so such an allocation contains
/// one piece.
const ALLOCATION: u64 = 2 * PIECE;
/// Divisor: at most this part of the free memory is allocated for ordinary pages.
const FREE_DIVISOR: u64 = 2;
/// The adapters have 32-bit addresses.
const LIMIT: u64 = 1 << 32;
/// Fields of a pagemap entry: page present, and page number.
const PRESENT: u64 = 1 << 63;
const NUMBER: u64 = (1 << 55) - 1;
/// These files exist in a kernel with huge pages, and in a kernel with compaction.
const HAS_HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";
const HAS_COMPACTION: &str = "/proc/sys/vm/compact_memory";

/// See the module's documentation.
pub struct Memory {
    /// The memory by physical addresses.
    pub map: Arc<Map>,
    /// All of the memory, for a driver.
    pub arena: Arena,
}

/// A piece, and its physical address.
type Piece = (Mapping, u64);

impl Memory {
    /// Allocates the memory, for as long as this process lives.
    pub fn new() -> Fallible<Self> {
        let pieces = if Path::new(HAS_HUGE_PAGES).exists() { huge_pages()? } else { ordinary_pages()? };
        let (mut map, mut places) = (Map::default(), Vec::new());
        for (piece, at) in pieces {
            map = map.with(at, Arc::new(piece), Rights::BOTH)?;
            // The map reads known pages in place: make each page known.
            (at..at + PIECE).step_by(page_size()).try_for_each(|page| map.write(page, &[0]))?;
            places.push(at);
        }
        Ok(Self { map: Arc::new(map), arena: Arena::of_pages(places.leak(), PIECE) })
    }
}

fn huge_pages() -> Fallible<Vec<Piece>> {
    let bytes = PIECES as u64 * PIECE;
    let file = hugetlb(bytes).map_err(|error| {
        format!("no {PIECES} huge pages of 2 MB: {error}; `echo {PIECES} >{HAS_HUGE_PAGES}` asks for them")
    })?;
    let (_whole, places) = places(&file, bytes)?;
    let pieces = (0..bytes).step_by(PIECE as usize).zip(places.chunks(PIECE as usize / page_size()));
    let pieces = pieces.map(|(offset, pages)| {
        let at = pages.first().copied().unwrap_or(LIMIT);
        if at + PIECE > LIMIT {
            return Err(format!(
                "a huge page lies at {at:#x}, beyond the 4 GB that these adapters reach: boot with less memory, or mem=4G"
            )
            .into());
        }
        Ok((piece(&file, offset)?, at))
    });
    pieces.collect()
}

/// A file of huge pages. Mapping it reserves them all, or fails.
fn hugetlb(bytes: u64) -> Fallible<OwnedFd> {
    let file = memfd_create("nicety-dma", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)?;
    ftruncate(&file, bytes)?;
    let again = file.try_clone()?;
    Mapping::of_file(again, 0, bytes, true)?;
    Ok(file)
}

fn ordinary_pages() -> Fallible<Vec<Piece>> {
    if Path::new(HAS_COMPACTION).exists() {
        return Err("this kernel has no huge pages (CONFIG_HUGETLBFS), and moves all others (CONFIG_COMPACTION)".into());
    }
    // From here on mapped memory stays in RAM.
    mlockall(MlockAllFlags::FUTURE).map_err(|error| format!("keeping pages in memory (mlockall): {error}"))?;
    let (mut pieces, mut passed) = (Vec::new(), Vec::new());
    for _ in 0..available()? / FREE_DIVISOR / ALLOCATION {
        let file = shared_file("nicety-dma", ALLOCATION)?;
        // Map the pieces before the whole is unmapped: so their pages are never free.
        let (_whole, places) = places(&file, ALLOCATION)?;
        for first in runs(&places, PIECE as usize / page_size()) {
            let at = places.get(first).copied().unwrap_or(LIMIT);
            if at + PIECE <= LIMIT {
                pieces.push((piece(&file, (first * page_size()) as u64)?, at));
            }
        }
        if pieces.len() >= PIECES {
            return Ok(pieces);
        }
        // A file that was closed would be allocated again.
        passed.push(file);
    }
    Err(format!(
        "half of the free memory has only {} of {PIECES} pieces of 2 MB in a row below 4 GB: start this sooner after boot, or give \
         the guest more memory",
        pieces.len()
    )
    .into())
}

/// First index of each run of `pages` contiguous pages. Runs do not overlap.
fn runs(places: &[u64], pages: usize) -> Vec<usize> {
    let (mut firsts, mut first, mut before) = (Vec::new(), 0, None);
    for (index, &place) in places.iter().enumerate() {
        if before.replace(place).is_none_or(|before| before + page_size() as u64 != place) {
            first = index;
        }
        if index + 1 - first == pages {
            firsts.push(first);
            first = index + 1;
        }
    }
    firsts
}

/// Bytes available without swapping or reclaiming other memory.
fn available() -> Fallible<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|error| format!("/proc/meminfo: {error}"))?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.split_whitespace().next());
    let kilobytes = kilobytes.and_then(|word| word.parse::<u64>().ok()).ok_or("/proc/meminfo has no MemAvailable")?;
    Ok(kilobytes << 10)
}

/// Maps a piece of a file.
fn piece(file: &OwnedFd, offset: u64) -> Fallible<Mapping> {
    let file = file.try_clone()?;
    Ok(Mapping::of_file(file, offset, PIECE, true)?)
}

/// Touches the pages of a file, and finds their physical addresses.
fn places(file: &OwnedFd, bytes: u64) -> Fallible<(Arc<Mapping>, Vec<u64>)> {
    let file = file.try_clone()?;
    let whole = Arc::new(Mapping::of_file(file, 0, bytes, true)?);
    let map = Map::default().with(0, Arc::clone(&whole), Rights::BOTH)?;
    (0..bytes).step_by(page_size()).try_for_each(|page| map.write(page, &[0]))?;
    let begin = whole.bytes().ptr_guard().as_ptr().addr();
    let places = physical(begin as u64, bytes as usize / page_size())?;
    Ok((whole, places))
}

/// The physical addresses of pages of this process.
fn physical(address: u64, pages: usize) -> Fallible<Vec<u64>> {
    let (page, mut entries) = (page_size() as u64, vec![0; 8 * pages]);
    let map = File::open("/proc/self/pagemap")
        .map_err(|error| format!("/proc/self/pagemap: {error}: the kernel needs CONFIG_PROC_PAGE_MONITOR"))?;
    map.read_exact_at(&mut entries, 8 * (address / page)).map_err(|error| format!("/proc/self/pagemap: {error}"))?;
    let (entries, _) = entries.as_chunks();
    let place = |entry: &[u8; 8]| {
        let entry = u64::from_ne_bytes(*entry);
        if entry & PRESENT == 0 || entry & NUMBER == 0 {
            return Err("/proc/self/pagemap shows no page numbers: it takes root (CAP_SYS_ADMIN)".into());
        }
        Ok((entry & NUMBER) * page)
    };
    entries.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_lie_one_behind_the_other_are_found_and_none_is_in_two_rows() {
        let page = page_size() as u64;
        let places = |numbers: &[u64]| numbers.iter().map(|number| number * page).collect::<Vec<_>>();
        assert_eq!(runs(&places(&[7, 8, 9, 3, 4, 5, 6, 7]), 3), [0, 3]);
        assert_eq!(runs(&places(&[1, 2, 3, 4, 5, 6, 7]), 3), [0, 3]);
        assert_eq!(runs(&places(&[3, 2, 1, 0, 2, 4]), 2), [0; 0]);
        assert_eq!(runs(&places(&[9, 1, 2]), 2), [1]);
        assert_eq!(runs(&[], 2), [0; 0]);
    }

    #[test]
    fn a_file_has_a_physical_address_for_each_of_its_pages_or_it_is_said_what_is_missing() {
        let page = page_size() as u64;
        let file = shared_file("places", 8 * page).unwrap();
        match places(&file, 8 * page) {
            Ok((_, mut places)) => {
                assert!(places.iter().all(|place| place % page == 0), "{places:x?}");
                places.sort_unstable();
                places.dedup();
                assert_eq!(places.len(), 8);
            }
            Err(error) => assert!(error.to_string().starts_with("/proc/self/pagemap"), "{error}"),
        }
    }
}
