//! Tracks which pages of a memory file exist: reading a missing page must not allocate it.
//!
//! Reading a hole through a mapping of a memfd or tmpfs allocates a page, as writing does, and charges the reader's memory control
//! group. A guest whose rings point all over untouched memory would fill ours. So a mapping has a bit for each page known to exist,
//! and reads only those through the mapping. For others it asks cachestat(2), 64 pages at once, and reads missing ones with
//! pread(2), which returns zeros for a hole and allocates nothing. The same works for a swapped-out page.
//!
//! Neither call blocks on a process that maps this file or punches holes in it: unlike mincore(2) and SEEK_DATA they take no
//! `mmap_lock`, `i_mmap_rwsem` or `i_rwsem`. Before Linux 6.5 there is no cachestat(2): then a page counts as known after it was
//! written, or read with a nonzero byte.
//!
//! Bits are never cleared: reading a page that existed and was punched out allocates it, as writing does.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use vm_memory::MmapRegion;

/// The bytes of a bit: a page, or a part of a larger one.
pub(crate) const PAGE: usize = 4096;
/// Pages per cachestat call: a word of bits.
const PAGES: usize = 64;
/// Pages of the longest range that is checked, of 4 MiB: a ring has 1 MiB at most (8254x manual, RDLEN), a packet 64 KiB.
const LOOK_MAX: usize = 1024;
/// Pages whose bytes are checked without cachestat(2): 2 MiB, some tenths of a millisecond.
const PAGES_LOOKED_AT: u64 = 512;
/// Bytes of a mapping that are checked for content, 64 MiB: the time of cachestat(2) grows with the number of existing pages.
const LOOK: u64 = 64 << 20;
/// The number of cachestat(2) on all architectures but Alpha.
const CACHESTAT: libc::c_long = 451;

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Presence {
    file: Arc<File>,
    /// The mapping's offset in the file, and its length.
    start: u64,
    len: usize,
    known: Known,
    /// Bytes of pages that our writes have allocated.
    allocated: AtomicU64,
}

/// A bit for each page that is known to exist, in chunks of 4 MiB of the file. A chunk takes its 128 bytes when its first page
/// becomes known, so a sparse file costs little. One piece with a bit per page took one of our pages for each page in 128 MiB.
#[derive(Debug)]
struct Known {
    /// The index of each chunk's first word; 0 while nothing is known of the chunk.
    chunks: Zeros<AtomicU32>,
    /// The words of the chunks, in the order of first use. The first chunk's words stay zero. Behind all of them, a bit for each chunk that
    /// is whole: all of its pages are known to exist.
    words: Zeros<AtomicU64>,
    /// Chunks of `words` that are taken, and their maximum.
    taken: AtomicUsize,
    room: usize,
}

/// Pages of a chunk, and words of bits.
const CHUNK: usize = 1024;
const WORDS: usize = CHUNK / PAGES;
/// Chunks lost when two threads take one for the same pages at the same time.
const LOST_MAX: usize = 64;

impl Known {
    fn new(pages: usize) -> io::Result<Self> {
        let chunks = pages.div_ceil(CHUNK);
        let room = 1 + chunks + LOST_MAX.min(chunks);
        let words = Zeros::new(room * WORDS + chunks.div_ceil(PAGES))?;
        Ok(Self { chunks: Zeros::new(chunks)?, words, taken: AtomicUsize::new(1), room })
    }

    /// The bits of a page and of its neighbours.
    #[inline(always)]
    fn word(&self, page: usize) -> u64 {
        let first = self.chunks.get(page / CHUNK).map_or(0, |chunk| chunk.load(Ordering::Relaxed));
        let word = self.words.get(first as usize + page / PAGES % WORDS);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Sets bits in the word of a page.
    fn set(&self, page: usize, bits: u64) {
        let Some(chunk) = self.chunks.get(page / CHUNK) else { return };
        let mut first = chunk.load(Ordering::Relaxed);
        if first == 0 {
            // No chunk is left for the last one if more than `LOST_MAX` were lost: its pages stay unknown.
            let taken = self.taken.fetch_add(1, Ordering::Relaxed);
            let Some(new) = u32::try_from(taken * WORDS).ok().filter(|_| taken < self.room) else { return };
            first = match chunk.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => new,
                Err(other) => other,
            };
        }
        if let Some(word) = self.words.get(first as usize + page / PAGES % WORDS)
            && word.fetch_or(bits, Ordering::Relaxed) | bits == u64::MAX
        {
            self.note_whole(page / CHUNK, first as usize);
        }
    }

    /// Notes that a chunk is whole, if it is. Its words begin at `first`.
    fn note_whole(&self, chunk: usize, first: usize) {
        let mut words = self.words.iter().skip(first).take(WORDS);
        if words.all(|word| word.load(Ordering::Relaxed) == u64::MAX)
            && let Some(whole) = self.whole(chunk)
        {
            whole.fetch_or(1 << (chunk % PAGES), Ordering::Relaxed);
        }
    }

    /// The word with a chunk's bit that it is whole.
    #[inline]
    fn whole(&self, chunk: usize) -> Option<&AtomicU64> {
        self.words.get(self.room * WORDS + chunk / PAGES)
    }

    /// The pages around one that are known with it, as far as one word tells: of pages, or of whole chunks. Empty if it is not known.
    fn around(&self, page: usize) -> Range<usize> {
        let (chunk, word) = (page / CHUNK, self.word(page));
        let whole = self.whole(chunk).map_or(0, |whole| whole.load(Ordering::Relaxed));
        if word != u64::MAX || whole >> (chunk % PAGES) & 1 == 0 {
            return ones_around(word, page);
        }
        let Range { start, end } = ones_around(whole, chunk);
        start * CHUNK..end * CHUNK
    }
}

/// The numbers around one whose bits are set in its word, if its own is. Bit 0 is of the next lower multiple of 64.
fn ones_around(word: u64, number: usize) -> Range<usize> {
    let bit = (number % PAGES) as u32;
    let above = (!(word >> bit)).trailing_zeros() as usize;
    let below = (!(word << (63 - bit))).leading_zeros() as usize;
    if above == 0 { number..number } else { number + 1 - below..number + above }
}

/// Numbers in pages that this process has never used: a page that stays zero takes no memory. An allocator promises zeros, but not such
/// pages: of memory that it has given out before it clears, and so touches, all.
#[derive(Debug)]
struct Zeros<T> {
    pages: MmapRegion<()>,
    len: usize,
    number: PhantomData<T>,
}

/// Numbers of which zero bytes are a valid value.
trait Number {}
impl Number for AtomicU32 {}
impl Number for AtomicU64 {}

impl<T: Number> Zeros<T> {
    fn new(len: usize) -> io::Result<Self> {
        let pages = MmapRegion::new(len.max(1) * size_of::<T>()).map_err(io::Error::other)?;
        Ok(Self { pages, len, number: PhantomData })
    }
}

impl<T: Number> Deref for Zeros<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has `len` numbers, begins with a page, and stays while `self` is borrowed. It began as zeros, which are
        // valid numbers, and is accessed only as these.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }
}

impl Presence {
    pub fn new(file: Arc<File>, start: u64, len: usize) -> io::Result<Self> {
        Ok(Self { file, start, len, known: Known::new(len.div_ceil(PAGE))?, allocated: AtomicU64::new(0) })
    }

    #[inline(always)]
    fn is_page_known(&self, page: usize) -> bool {
        self.known.word(page) >> (page % PAGES) & 1 == 1
    }

    /// Whether all pages of a range are known to exist; true for an empty range. Unknown for more than [`LOOK_MAX`] pages: a guest
    /// chooses the length.
    #[inline(always)]
    pub fn is_known(&self, offset: usize, len: usize) -> bool {
        let Some(rest) = len.checked_sub(1) else { return true };
        let (first, last) = (offset / PAGE, offset.wrapping_add(rest) / PAGE);
        self.is_page_known(first) && (last <= first || self.is_known_to(first + 1, last))
    }

    #[inline(never)]
    fn is_known_to(&self, first: usize, last: usize) -> bool {
        let mut page = first;
        while page <= last && last - first < LOOK_MAX {
            #[cfg(feature = "count")]
            crate::count::one();
            let (until, at) = (last.min(page | (PAGES - 1)), page % PAGES);
            let wanted = u64::MAX >> (PAGES - 1 - (until - page)) << at;
            if self.known.word(page) & wanted != wanted {
                return false;
            }
            page = until + 1;
        }
        page > last
    }

    /// Bytes around an offset whose pages are known to exist; empty if the offset's page is not known. They may end beyond the mapping.
    pub fn known_around(&self, offset: usize) -> Range<usize> {
        let Range { start, end } = self.known.around(offset / PAGE);
        start * PAGE..end * PAGE
    }

    /// Like [`Presence::is_known`], but asks the kernel if needed.
    pub fn look(&self, offset: usize, len: usize) -> bool {
        (offset / PAGE..=(offset + len.saturating_sub(1)) / PAGE).all(|page| self.look_at(page))
    }

    /// For tests: assumes that every page exists, as in a guest that has used all of its memory.
    #[cfg(feature = "count")]
    pub fn assume_all(&self) {
        (0..self.len.div_ceil(PAGE)).step_by(PAGES).for_each(|page| self.known.set(page, u64::MAX));
    }

    fn learn(&self, page: usize) {
        self.known.set(page, 1 << (page % PAGES));
    }

    /// Whether a page exists. Asks the kernel.
    fn look_at(&self, page: usize) -> bool {
        if self.is_page_known(page) {
            return true;
        }
        let first = page / PAGES * PAGES;
        let word = first..self.len.div_ceil(PAGE).min(first + PAGES);
        let Some(all) = self.cached(word.clone()) else { return false };
        if all == word.len() {
            self.known.set(first, u64::MAX.checked_shr((PAGES - all) as u32).unwrap_or(0));
            return true;
        }
        let there = all > 0 && self.cached(page..page + 1).is_some_and(|count| count > 0);
        if there {
            self.learn(page);
        }
        there
    }

    /// Number of these pages that are in memory.
    fn cached(&self, pages: std::ops::Range<usize>) -> Option<usize> {
        let bytes = pages.len() * PAGE;
        let found = cachestat(&self.file, self.start + (pages.start * PAGE) as u64, bytes as u64)?.cache as usize;
        Some((found * rustix::param::page_size()).min(bytes) / PAGE)
    }

    /// Reads the first part of a nonempty range.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Piece {
        let page = offset / PAGE;
        let rest = (page + 1) * PAGE - offset;
        if self.look_at(page) {
            return Piece::Mapped(rest.min(into.len()));
        }
        let most = (rest + (PAGES - 1 - page % PAGES) * PAGE).min(into.len());
        if self.read_file(offset, &mut into[..most]) { Piece::Read(most) } else { Piece::Mapped(rest.min(most)) }
    }

    /// Reads a range of the mapping from its file, which allocates no page. False if the range ends beyond the file's end: reading
    /// through the mapping detects that.
    pub fn read_file(&self, offset: usize, into: &mut [u8]) -> bool {
        #[cfg(feature = "count")]
        crate::count::one();
        let read = rustix::io::pread(&*self.file, &mut *into, self.start + offset as u64);
        let written = into.iter().position(|&byte| byte != 0);
        written.into_iter().for_each(|at| self.learn((offset + at) / PAGE));
        read == Ok(into.len())
    }

    /// Call it before a range is written: counts the allocated pages, and marks them as existing.
    pub fn allocate(&self, offset: usize, len: usize) {
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            if !self.look_at(page) {
                self.allocated.fetch_add(PAGE as u64, Ordering::Relaxed);
                self.learn(page);
            }
        }
    }

    /// Bytes of pages that our writes have allocated.
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    /// Whether only this process has ever written to its first part. False if that is unknown.
    pub fn is_blank(&self) -> bool {
        let look = LOOK.min(self.len as u64);
        let found = cachestat(&self.file, self.start, look);
        let ours = self.allocated().div_ceil(rustix::param::page_size() as u64);
        found.is_some_and(|found| found.cache + found.evicted <= ours || (ours == 0 && self.is_zero(look)))
    }

    /// Whether sampled pages of its first part are zero. A VMM with a private mapping makes the kernel allocate such pages, by its
    /// reads and its private writes.
    fn is_zero(&self, bytes: u64) -> bool {
        let page = rustix::param::page_size() as u64;
        let pages = bytes.div_ceil(page).max(1);
        let step = usize::try_from(pages.div_ceil(PAGES_LOOKED_AT)).unwrap_or(1);
        let mut held = vec![0; page as usize];
        (0..pages).step_by(step).chain([pages - 1]).all(|number| {
            let read = rustix::io::pread(&self.file, &mut held, self.start + number * page);
            read.is_ok_and(|read| held.iter().take(read).all(|byte| *byte == 0))
        })
    }
}

/// The result of [`Presence::read`]: at least one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// This many bytes were read.
    Read(usize),
    /// This many bytes must be read through the mapping.
    Mapped(usize),
}

/// `struct cachestat` of <linux/mman.h>, in pages of the system.
#[derive(Default)]
#[repr(C)]
struct Cached {
    cache: u64,
    dirty: u64,
    writeback: u64,
    /// Pages of a memory file that are swapped out.
    evicted: u64,
    recently_evicted: u64,
}

/// cachestat(2), Linux 6.5.
fn cachestat(file: &File, offset: u64, len: u64) -> Option<Cached> {
    #[cfg(feature = "count")]
    crate::count::one();
    let (range, mut found) = ([offset, len], Cached::default());
    // SAFETY: the kernel reads two numbers of 64 bits and writes one `struct cachestat`; both outlive the call.
    let failed = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut found, 0) };
    (failed == 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a slice that are in memory.
    fn resident<T>(slice: &[T]) -> usize {
        let bytes = std::mem::size_of_val(slice);
        let mut pages = vec![0; bytes.div_ceil(rustix::param::page_size())];
        // SAFETY: the range is a mapping of its own, and there is a byte for each of its pages.
        let failed = unsafe { libc::mincore(slice.as_ptr().cast_mut().cast(), bytes, pages.as_mut_ptr()) };
        assert_eq!(failed, 0, "it begins with a page");
        pages.iter().filter(|&page| page & 1 != 0).count()
    }

    /// A process that has run for long gets memory from its heap that was used before: an allocator must clear it, and so touch it all.
    #[test]
    fn what_is_known_of_a_large_file_takes_no_memory_until_a_page_is_known_whatever_was_freed_before() {
        const MIB: usize = 1 << 20;
        for round in 0..3 {
            // glibc serves blocks as large as one that it has freed from the heap (mallopt(3), M_MMAP_THRESHOLD).
            drop(vec![1_u8; 24 * MIB]);
            let (used, above) = (vec![1_u8; 20 * MIB], vec![1_u8; MIB]);
            drop(used);
            // 512 GiB: 16 MiB of words.
            let known = Known::new(512 << 30 >> 12).unwrap();
            drop(above);
            assert_eq!((resident(&known.chunks), resident(&known.words)), (0, 0), "round {round}");
            known.set(77 << 20, 1);
            assert_eq!((known.word(77 << 20), known.word(0)), (1, 0));
            assert!(resident(&known.chunks) > 0 && resident(&known.words) > 0);
        }
    }
}
