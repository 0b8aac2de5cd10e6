//! Memory files of huge pages, shared in pieces of 4 KiB as QEMU does: low memory below the VGA window, ROMs, the rest.
//!
//! A mapping takes no page, so most of these tests run without one. A kernel without huge pages, or without a free one, is
//! reported and counted as skipped by `cargo xtask test`; no test changes the machine's pool.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nicety_memory::{Map, Mapping, MappingError, Rights};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstat, ftruncate, memfd_create};

const PAGE: u64 = 2 << 20;
const LEN: u64 = 4 * PAGE;
/// QEMU 11's q35 shares the first three; the fourth lies across two pages; the last ends the file.
const PIECES: [(u64, u64); 5] =
    [(0, 0xa_0000), (0xc_0000, 0x1000), (0x10_0000, LEN - 0x10_0000), (PAGE - 0x1000, 0x2000), (LEN - 0x1000, 0x1000)];

fn skipped(test: &str, reason: impl std::fmt::Display) {
    // Writes directly to stdout: the test harness hides the output of passing tests.
    let _written = writeln!(std::io::stdout(), "\nSKIPPED huge::{test}: {reason}");
}

/// A file of four huge pages, all holes, with the test's name; `None` if the machine has no free huge page.
fn file(test: &str) -> Option<OwnedFd> {
    // Mappings that the test drops are unmapped by its own thread, at once.
    nicety_peer::this_thread_may_wait();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    match memfd_create(test, flags).and_then(|fd| ftruncate(&fd, LEN).map(|()| fd)) {
        Ok(fd) => Some(fd),
        Err(errno) => {
            skipped(test, format_args!("no memory file of huge pages: {errno}"));
            None
        }
    }
}

fn mapped(fd: impl AsFd, (offset, len): (u64, u64)) -> Result<Mapping, MappingError> {
    Mapping::of_file(fd.as_fd().try_clone_to_owned().unwrap(), offset, len, true)
}

fn at_zero(mapping: Mapping) -> Map {
    Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap()
}

/// The ranges of this process that are mapped to a test's file: start, length, offset in the file.
fn ranges(test: &str) -> Vec<(u64, u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |digits: &str| u64::from_str_radix(digits, 16).unwrap();
    let ours = maps.lines().filter(|line| line.contains(&format!("/memfd:{test} ")));
    let range = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (start, end) = words[0].split_once('-').unwrap();
        (hex(start), hex(end) - hex(start), hex(words[2]))
    };
    ours.map(range).collect()
}

#[test]
fn a_piece_is_mapped_with_all_of_its_huge_pages_reached_alone_and_unmapped_whole() {
    let test = "a_piece_is_mapped_with_all_of_its_huge_pages_reached_alone_and_unmapped_whole";
    let Some(fd) = file(test) else { return };
    for (offset, len) in PIECES {
        let mapping = mapped(&fd, (offset, len)).unwrap();
        let (first, end) = (offset / PAGE * PAGE, (offset + len).next_multiple_of(PAGE));
        let [(start, bytes, from)] = ranges(test)[..] else { panic!("{:?}", ranges(test)) };
        assert_eq!((start % PAGE, bytes, from), (0, end - first, first), "{offset:#x}+{len:#x}");
        assert_eq!((mapping.len(), mapping.bytes().len() as u64), (len, len));
        let place = mapping.bytes().ptr_guard().as_ptr().addr() as u64;
        assert_eq!(place, start + offset - first, "where the piece begins");
        let map = at_zero(mapping);
        assert!(map.translate(0, len as u32, Rights::BOTH, |_| true).is_ok());
        assert!(map.translate(len - 1, 2, Rights::READ, |_| true).is_err(), "the pages' rest is not the piece's");
        drop(map);
        assert_eq!(ranges(test), [], "{offset:#x}+{len:#x} stays mapped");
    }
    assert_eq!(fstat(&fd).unwrap().st_blocks, 0, "no page was taken");
}

#[test]
fn a_piece_beyond_the_file_is_refused_and_the_file_does_not_grow() {
    let test = "a_piece_beyond_the_file_is_refused_and_the_file_does_not_grow";
    let Some(fd) = file(test) else { return };
    for (offset, len) in [(LEN - 0x1000, 0x2000), (LEN, 0x1000), (0, LEN + 1), (u64::MAX - 0xfff, 0xfff)] {
        let error = mapped(&fd, (offset, len)).unwrap_err();
        assert!(matches!(error, MappingError::BeyondFile { file: LEN, .. }), "{error}");
    }
    assert!(matches!(mapped(&fd, (u64::MAX, 2)), Err(MappingError::Length(2))));
    assert_eq!((fstat(&fd).unwrap().st_size as u64, ranges(test)), (LEN, vec![]));
}

#[test]
fn a_peer_that_truncates_its_file_damages_the_whole_piece_and_it_is_unmapped_all_the_same() {
    let test = "a_peer_that_truncates_its_file_damages_the_whole_piece_and_it_is_unmapped_all_the_same";
    let Some(fd) = file(test) else { return };
    let map = at_zero(mapped(&fd, (0x10_0000, PAGE)).unwrap());
    let other = at_zero(mapped(&fd, (0, 0xa_0000)).unwrap());
    ftruncate(&fd, 0).unwrap();
    let mut bytes = [1; 8];
    map.read(PAGE - 8, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
    assert!(map.damaged() && !other.damaged());
    let left = if cfg!(target_arch = "x86_64") { 2 } else { 1 };
    assert_eq!(ranges(test).len(), left, "nothing is put in its place where that is not needed; the other is there");
    map.write(0, &[7; 8]).unwrap();
    drop((map, other));
    assert_eq!(ranges(test), []);
}

/// The kernel raises the same signal for a page that it does not have and that was not reserved.
#[test]
fn a_page_that_the_host_does_not_have_damages_the_piece_and_not_the_process() {
    let test = "a_page_that_the_host_does_not_have_damages_the_piece_and_not_the_process";
    let Some(fd) = file(test) else { return };
    let any = fallocate(&fd, FallocateFlags::empty(), 0, PAGE);
    if any.is_ok() {
        return skipped(test, "this machine has free huge pages");
    }
    let map = at_zero(mapped(&fd, PIECES[0]).unwrap());
    map.write(0x1000, &[1; 8]).unwrap();
    assert!(map.damaged());
    drop(map);
    assert_eq!(ranges(test), []);
}
