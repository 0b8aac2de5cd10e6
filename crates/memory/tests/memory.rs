//! Guest memory as a device sees it: translation, rights, holes, and a peer's changes to its file while we use it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_memory::{
    Absent, CopySum, DirtyLog, Fault, Files, Map, MapError, Mapping, MappingError, Rights, Span, Translator, copy,
    copy_sum, shared_file,
};

fn two_regions() -> Map {
    let low = Arc::new(Mapping::private(0x1000).unwrap());
    let high = Arc::new(Mapping::private(0x2000).unwrap());
    Map::default().with(0, low, Rights::BOTH).unwrap().with(0x1000, high, Rights::READ).unwrap()
}

/// proc_pid_smaps(5): `dd` in the flags of a mapping that core dumps leave out.
#[test]
fn a_core_dump_of_this_process_has_no_memory_of_a_vm() {
    // Not a whole number of pages.
    let name = "not-in-a-dump";
    let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 0x5000).unwrap();
    let _mapping = Mapping::of_file(file, 0x1000, 0x2900, true).unwrap();
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut flags = all.split_once(name).unwrap().1.lines().filter_map(|line| line.strip_prefix("VmFlags:"));
    let flags = flags.next().unwrap();
    assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
}

fn spans(map: &Map, at: u64, len: u32, rights: Rights) -> Result<Vec<Span>, Fault> {
    let mut out = Vec::new();
    map.translate(at, len, rights, |span| {
        out.push(span);
        true
    })?;
    Ok(out)
}

#[test]
fn a_range_over_two_regions_translates_to_two_spans_and_reads_as_one() {
    let map = two_regions();
    map.write(0xff0, &[7; 16]).unwrap();
    let spans = spans(&map, 0xff0, 32, Rights::READ).unwrap();
    assert_eq!(spans.iter().map(Span::len).collect::<Vec<_>>(), [16, 16]);
    let mut bytes = [1; 32];
    map.read(0xff0, &mut bytes).unwrap();
    assert_eq!(bytes, [[7u8; 16], [0; 16]].concat()[..]);
}

#[test]
fn a_write_that_reaches_a_read_only_region_writes_nothing_at_all() {
    let map = two_regions();
    assert!(matches!(map.write(0xff0, &[9; 32]), Err(Fault::Refused { .. })));
    let mut bytes = [1; 16];
    map.read(0xff0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
}

#[test]
fn holes_wraps_and_the_far_end_are_refused() {
    let map = two_regions();
    for (at, len) in [(0x2fff, 2), (0x3000, 1), (u64::MAX, 1), (u64::MAX - 3, 8), (0, u32::MAX)] {
        assert!(matches!(spans(&map, at, len, Rights::READ), Err(Fault::Refused { .. })), "{at:#x}+{len:#x}");
    }
}

#[test]
fn memory_that_was_not_shared_is_told_from_memory_that_is_not_there() {
    let map = two_regions().with_absent(0x10_0000, 0x1000, Rights::BOTH).unwrap();
    let fault = map.read(0x10_0ff8, &mut [0; 8]).unwrap_err();
    assert_eq!(fault, Fault::Absent(Absent { address: 0x10_0ff8, len: 8 }));
    assert_eq!(map.absent_bytes(), 0x1000);
}

#[test]
fn overlapping_empty_and_wrapping_regions_are_not_taken() {
    let map = two_regions();
    assert!(map.with_absent(0x2fff, 1, Rights::BOTH).is_err());
    assert!(map.with_absent(0x3000, 0, Rights::BOTH).is_err());
    assert!(map.with_absent(u64::MAX, 2, Rights::BOTH).is_err());
    assert!(map.without(0x1000, 0x1000).is_err());
    assert_eq!(map.without(0x1000, 0x2000).unwrap().regions(), 1);
    assert_eq!(map.without_within(0, u64::MAX).regions(), 0);
}

#[test]
fn a_vm_shares_4_tib_at_most() {
    const TIB: u64 = 1 << 40;
    // A file of holes.
    let file = shared_file("vast", 5 * TIB).unwrap();
    let mapping = |len| Mapping::of_file(file.try_clone().unwrap(), 0, len, true);
    assert!(matches!(mapping(5 * TIB), Err(MappingError::Length(_))));
    let three = Map::default().with(0, Arc::new(mapping(3 * TIB).unwrap()), Rights::BOTH).unwrap();
    let two = Arc::new(mapping(2 * TIB).unwrap());
    assert!(matches!(three.with(8 * TIB, two, Rights::BOTH), Err(MapError::TooMuch)));
    let all = three.with(8 * TIB, Arc::new(mapping(TIB).unwrap()), Rights::BOTH).unwrap();
    assert_eq!(all.mapped_bytes(), 4 * TIB);
}

#[test]
fn a_batch_that_still_holds_an_old_map_keeps_its_memory() {
    let old = Arc::new(two_regions());
    let span = spans(&old, 0, 8, Rights::READ).unwrap()[0];
    old.write(0, b"in fligh").unwrap();
    let new = old.without(0, 0x1000).unwrap();
    assert!(new.read(0, &mut [0; 8]).is_err());
    let mut bytes = [0; 8];
    old.read_span(span, &mut bytes);
    assert_eq!(&bytes, b"in fligh");
}

#[test]
fn a_map_of_a_file_reaches_no_further_than_the_file() {
    let fd = shared_file("test", 0x2000).unwrap();
    let error = Mapping::of_file(fd, 0x1000, 0x2000, true).unwrap_err();
    assert!(matches!(error, MappingError::BeyondFile { file: 0x2000, end: 0x3000 }), "{error}");
}

#[test]
fn a_peer_that_truncates_its_memory_file_damages_its_own_mapping_only() {
    let fd = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, 0x4000).unwrap();
    let mapping = Arc::new(Mapping::of_file(fd.try_clone().unwrap(), 0, 0x4000, true).unwrap());
    let map = Map::default().with(0, mapping, Rights::BOTH).unwrap();
    let other = two_regions();
    map.write(0x2000, b"alive").unwrap();
    assert!(!map.damaged());
    let before = nicety_memory::damages();
    rustix::fs::ftruncate(&fd, 0).unwrap();
    let mut bytes = [1; 5];
    map.read(0x2000, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 5]);
    assert!(map.damaged() && nicety_memory::damages() > before);
    assert!(!other.damaged());
}

/// Mapping other pages there would wait for the file's lock, which its owner may hold (docs/adr/0012).
#[test]
#[cfg(target_arch = "x86_64")]
fn every_kind_of_access_to_memory_that_has_gone_ends_at_once_reads_zeros_and_maps_nothing() {
    const PAGE: usize = 4096;
    let fd = rustix::fs::memfd_create("gone", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&fd, &[7; 4 * PAGE], 0).unwrap();
    let mapping = Arc::new(Mapping::of_file(fd.try_clone().unwrap(), 0, 4 * PAGE as u64, true).unwrap());
    let map = Map::default().with(0, Arc::clone(&mapping), Rights::BOTH).unwrap();
    let own = two_regions();
    // All of its pages are known to exist.
    map.read(0, &mut [0; 4 * PAGE]).unwrap();
    let cut = PAGE as u64;
    let (over, beyond) =
        (spans(&map, cut - 8, 600, Rights::BOTH).unwrap()[0], spans(&map, 2 * cut, 5000, Rights::BOTH).unwrap()[0]);
    let target = spans(&own, 0, 600, Rights::BOTH).unwrap()[0];
    let window = map.window(cut, 64, Rights::BOTH).unwrap();
    rustix::fs::ftruncate(&fd, cut).unwrap();

    let zeros = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    let mut bytes = [9; 600];
    assert_eq!(map.read_span(over, &mut bytes), 600);
    assert!(bytes[..8] == [7; 8] && zeros(&bytes[8..]), "what is before the cut is there");
    let mut bytes = [9; 5000];
    map.read_span(beyond, &mut bytes);
    assert!(zeros(&bytes));
    map.write(cut - 8, &[5; 5000]).unwrap();
    map.read_span(over, &mut bytes);
    assert!(bytes[..8] == [5; 8] && zeros(&bytes[8..600]));
    for summed in [false, true] {
        own.write(0, &[9; 600]).unwrap();
        map.write(cut - 8, &[5; 8]).unwrap();
        let mut sum = CopySum::default();
        let copied = if summed { copy_sum(&map, over, &own, target, &mut sum) } else { copy(&map, over, &own, target) };
        own.read_span(target, &mut bytes[..600]);
        assert!(copied == 600 && bytes[..8] == [5; 8] && zeros(&bytes[8..600]));
        assert!(!summed || sum.fold() == u16::from_ne_bytes([5, 5]).wrapping_mul(4));
        // Copies into it, and within it in both directions.
        copy(&own, target, &map, over);
        copy_sum(&own, target, &map, over, &mut sum);
        copy(&map, over, &map, over.piece(4, 500));
        copy(&map, over.piece(4, 500), &map, over);
    }
    // It ends within a block, behind some that were copied and summed.
    let behind = spans(&map, cut - 200, 600, Rights::BOTH).unwrap()[0];
    map.write(cut - 200, &[5; 200]).unwrap();
    own.write(0, &[9; 600]).unwrap();
    let mut sum = CopySum::default();
    assert_eq!(copy_sum(&map, behind, &own, target, &mut sum), 600);
    own.read_span(target, &mut bytes[..600]);
    assert!(bytes[..200] == [5; 200] && zeros(&bytes[200..600]));
    assert_eq!(u32::from(sum.fold()), 0x0505 * 100 % 0xffff);
    own.write(0, &[6; 600]).unwrap();
    copy_sum(&own, target, &map, behind, &mut sum);
    map.read(cut - 200, &mut bytes[..200]).unwrap();
    assert!(bytes[..200] == [6; 200], "what is before the cut arrives");
    assert_eq!(
        (window.read::<16>(0), window.read::<7>(3), window.load_u16(2), window.load_u32(4)),
        ([0; 16], [0; 7], 0, 0)
    );
    window.write_u64(0, 1);
    window.write(1, &[1; 40]);
    window.store_u8(0, 1);
    window.store_u16(2, 1);
    window.store_u32(4, 1);
    assert_eq!(window.read::<64>(0), [0; 64]);
    assert!(map.damaged() && !own.damaged());
    let is_mapped = std::fs::read_to_string("/proc/self/maps").unwrap().contains("/memfd:gone");
    assert!(is_mapped, "nothing was put there instead");
}

#[test]
fn copies_within_one_memory_that_overlap_arrive_as_they_were_at_any_length() {
    let map = Map::private(8192).unwrap();
    let bytes: Vec<u8> = (0..8192u32).map(|at| (at * 7 + at / 251) as u8).collect();
    for len in [1, 2, 3, 7, 8, 9, 31, 32, 33, 100, 129, 191, 192, 193, 255, 256, 257, 300, 2047, 2048, 4000] {
        for (from, to) in [(0, 1), (1, 0), (5, 40), (40, 5), (64, 64), (100, 0), (0, 100), (3, 4100)] {
            map.write(0, &bytes).unwrap();
            let span = |at| spans(&map, at, len, Rights::BOTH).unwrap()[0];
            copy(&map, span(from), &map, span(to));
            let mut expected = bytes.clone();
            expected.copy_within(from as usize..(from + u64::from(len)) as usize, to as usize);
            let mut found = vec![0; 8192];
            map.read(0, &mut found).unwrap();
            assert!(found == expected, "{len} bytes from {from} to {to}");
        }
    }
}

#[test]
fn a_switch_full_of_vms_finds_room_for_all_their_regions() {
    // 1,023 ports, each with a buffer of its own and a dozen regions, as with QEMU.
    let all: Vec<Mapping> = (0..1023 * 13).map(|_| Mapping::private(4096).unwrap()).collect();
    assert!(all.iter().all(|mapping| !mapping.damaged()));
}

#[test]
fn a_hole_punched_in_a_memory_file_reads_as_zeros() {
    let fd = shared_file("punched", 0x4000).unwrap();
    let map = Map::default()
        .with(0, Arc::new(Mapping::of_file(fd.try_clone().unwrap(), 0, 0x4000, true).unwrap()), Rights::BOTH)
        .unwrap();
    map.write(0x1000, &[5; 16]).unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&fd, flags, 0, 0x4000).unwrap();
    let mut bytes = [1; 16];
    map.read(0x1000, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
    assert!(!map.damaged());
}

/// Blocks of 512 bytes that the file occupies.
fn blocks(fd: &OwnedFd) -> i64 {
    rustix::fs::fstat(fd).unwrap().st_blocks
}

/// A memory file of holes, and a map of it from address 0.
fn sparse(len: u64) -> (OwnedFd, Map) {
    let fd = shared_file("sparse", len).unwrap();
    let mapping = Mapping::of_file(fd.try_clone().unwrap(), 0, len, true).unwrap();
    (fd, Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap())
}

#[test]
fn reading_and_copying_from_pages_that_nobody_has_touched_gives_zeros_and_allocates_none() {
    let (fd, map) = sparse(1 << 20);
    let target = Map::private(0x3000).unwrap();
    let to = spans(&target, 0, 0x3000, Rights::WRITE).unwrap()[0];
    for at in [0, 0xffe, 0x1000, 0x3_f800, 0x8_0000, 0xf_d000] {
        let mut bytes = [1; 0x2800];
        map.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 0x2800]);
        let from = spans(&map, at, 0x2800, Rights::READ).unwrap()[0];
        target.write(0, &[1; 0x2800]).unwrap();
        assert_eq!(copy(&map, from, &target, to), 0x2800);
        target.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 0x2800]);
        target.write(0, &[1; 0x2800]).unwrap();
        let mut sum = CopySum::default();
        assert_eq!((copy_sum(&map, from, &target, to, &mut sum), sum.fold()), (0x2800, 0));
        target.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 0x2800]);
        let window = map.window(at, 0x2800, Rights::BOTH).unwrap();
        assert_eq!((window.load_u16(2), window.load_u32(0x1ffc), window.read::<16>(0xff8)), (0, 0, [0; 16]));
        assert_eq!((window.load_u16(1), window.load_u32(0xffe), window.read::<16>(0x27f8)), (0, 0, [0; 16]));
    }
    assert_eq!((blocks(&fd), map.allocated_bytes()), (0, 0));
}

#[test]
fn what_the_guest_writes_to_a_page_that_was_not_there_is_read_at_once_beside_holes_and_by_any_access() {
    let (fd, map) = sparse(1 << 20);
    let target = Map::private(0x4000).unwrap();
    let to = spans(&target, 0, 0x4000, Rights::WRITE).unwrap()[0];
    let window = map.window(0, 1 << 20, Rights::BOTH).unwrap();
    for (page, byte) in [(0, 1), (3, 2), (63, 3), (64, 4), (2, 5), (255, 6)] {
        let at = page << 12;
        assert_eq!(window.load_u16(at as usize), 0);
        assert_eq!(rustix::io::pwrite(&fd, &[byte; 0x1000], at).unwrap(), 0x1000);
        let value = u16::from_le_bytes([byte; 2]);
        assert_eq!((window.load_u16(at as usize), window.read::<2>(at as usize + 0xffe)), (value, [byte; 2]));
        let mut around = [0; 0x2000];
        let first = at.saturating_sub(0x800).min((1 << 20) - 0x2000);
        map.read(first, &mut around).unwrap();
        let mut wanted = [0; 0x2000];
        rustix::io::pread(&fd, &mut wanted, first).unwrap();
        assert!(around == wanted, "page {page}");
        let from = spans(&map, first, 0x2000, Rights::READ).unwrap()[0];
        copy(&map, from, &target, to);
        target.read(0, &mut around).unwrap();
        assert!(around == wanted, "page {page}");
        let (mut of_copy, mut of_bytes) = (CopySum::default(), CopySum::default());
        copy_sum(&map, from, &target, to, &mut of_copy);
        of_bytes.add(&wanted);
        assert_eq!(of_copy.fold(), of_bytes.fold());
    }
    assert_eq!((blocks(&fd), map.allocated_bytes()), (6 * 8, 0));
}

#[test]
fn pages_that_writing_allocates_are_counted_once() {
    let (fd, map) = sparse(1 << 20);
    rustix::io::pwrite(&fd, &[1], 0x5000).unwrap();
    map.write(0x4ff0, &[1; 0x20]).unwrap();
    map.write(0x4000, &[1; 8]).unwrap();
    map.window(0x8000, 0x4000, Rights::BOTH).unwrap().store_u16(0x2000, 1);
    let (source, to) = (Map::private(0x2000).unwrap(), spans(&map, 0x2_0000, 0x2000, Rights::WRITE).unwrap()[0]);
    let from = spans(&source, 0, 0x2000, Rights::READ).unwrap()[0];
    copy(&source, from, &map, to);
    assert_eq!(map.allocated_bytes(), 4 * 4096);
    assert_eq!(blocks(&fd), 5 * 8);
}

#[test]
fn memory_is_blank_until_anybody_but_us_writes_to_it_and_looking_allocates_none() {
    let (fd, map) = sparse(64 << 20);
    assert!(map.is_blank());
    map.write(0x1000, &[1; 8192]).unwrap();
    assert!(map.is_blank(), "what we write is nothing");
    assert_eq!(blocks(&fd), 2 * 8);
    rustix::io::pwrite(&fd, &[0], 48 << 20).unwrap();
    assert!(!map.is_blank());
    let position = rustix::fs::seek(&fd, rustix::fs::SeekFrom::Current(0)).unwrap();
    assert_eq!(position, 0, "the peer's own position in its file stays");
}

#[test]
fn memory_that_is_not_there_or_not_shared_is_not_blank() {
    assert!(!Map::default().is_blank());
    assert!(!Map::default().with_absent(0, 0x1000, Rights::BOTH).unwrap().is_blank());
    assert!(!Map::private(0x1000).unwrap().is_blank(), "nobody else ever writes to it");
}

#[test]
fn the_sum_of_copied_bytes_is_that_of_rfc_1071_at_every_length_and_split() {
    // RFC 1071, section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2 (with the carries folded).
    let mut sum = CopySum::default();
    sum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!(sum.fold(), 0xddf2);
    let map = Map::private(0x1000).unwrap();
    let bytes: Vec<u8> = (0..256u32).map(|i| (i * 37 + 11) as u8).collect();
    map.write(0, &bytes).unwrap();
    for len in 0..=256u32 {
        for split in [0, 1, len / 2, len] {
            let split = split.min(len);
            let from = spans(&map, 0, len, Rights::READ).unwrap()[..].first().copied().unwrap_or_default();
            let to = spans(&map, 0x801, len, Rights::WRITE).unwrap()[..].first().copied().unwrap_or_default();
            let mut sum = CopySum::default();
            copy_sum(&map, from.piece(0, split), &map, to.piece(0, split), &mut sum);
            copy_sum(&map, from.piece(split, len), &map, to.piece(split, len), &mut sum);
            let mut words: u32 = 0;
            for pair in bytes[..len as usize].chunks(2) {
                words += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            }
            while words > 0xffff {
                words = (words & 0xffff) + (words >> 16);
            }
            assert_eq!(u32::from(sum.fold()), words, "length {len}, split at {split}");
            let mut copied = vec![0; len as usize];
            map.read(0x801, &mut copied).unwrap();
            assert_eq!(copied, bytes[..len as usize]);
        }
    }
}

#[test]
fn copies_tolerate_overlap_and_stop_at_the_shorter_span() {
    let map = Map::private(64).unwrap();
    map.write(0, b"abcdefgh").unwrap();
    let from = spans(&map, 0, 8, Rights::READ).unwrap()[0];
    let to = spans(&map, 2, 6, Rights::WRITE).unwrap()[0];
    assert_eq!(copy(&map, from, &map, to), 6);
    let mut bytes = [0; 8];
    map.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"ababcdef");
}

#[test]
fn a_window_reads_zeros_beyond_its_end_and_obeys_its_rights() {
    let map = two_regions();
    let window = map.window(0x1000, 16, Rights::READ).unwrap();
    window.store_u32(0, 1);
    window.write(0, &[1]);
    assert_eq!(window.read::<4>(0), [0; 4]);
    assert_eq!(window.read::<4>(14), [0; 4]);
    let window = map.window(1, 16, Rights::BOTH).unwrap();
    window.store_u16(0, 0x1234);
    window.store_u32(3, 0x5678_9abc);
    assert_eq!((window.load_u16(0), window.load_u32(3)), (0x1234, 0x5678_9abc), "unaligned places work too");
}

/// Sixteen pages in pieces of these lengths, repeated; in the file they lie in reverse order.
fn pieces(lengths: &[u64], rights: Rights) -> (OwnedFd, Map) {
    const LEN: u64 = 16 * 4096;
    let (file, files) = (shared_file("pieces", LEN).unwrap(), Files::new(1));
    let (mut map, mut at) = (Map::default(), 0);
    for len in lengths.iter().cycle() {
        let len = (*len).min(LEN - at);
        let piece = files.piece(file.try_clone().unwrap(), LEN - at - len, len, true).unwrap();
        map = map.with(0x10_0000 + at, piece, rights).unwrap();
        at += len;
        if at == LEN {
            return (file, map);
        }
    }
    unreachable!("every length is more than 0")
}

#[test]
fn a_window_over_many_regions_is_read_and_written_as_over_one() {
    for lengths in [&[4096][..], &[512], &[1, 7, 2, 1000, 64]] {
        let (_file, map) = pieces(lengths, Rights::BOTH);
        let whole = Map::private(0x10_0000 + 16 * 4096).unwrap();
        let [window, model] = [&map, &whole].map(|map| map.window(0x10_0003, 65_000, Rights::BOTH).unwrap());
        assert_eq!(window.len(), 65_000);
        let places = (0..200).chain((4000..4200).chain(64_900..65_010)).chain([usize::MAX, usize::MAX - 7]);
        for (number, at) in (0u64..).zip(places) {
            let value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for window in [&window, &model] {
                match number % 7 {
                    0 => window.store_u8(at, value as u8),
                    1 => window.store_u16(at, value as u16),
                    2 => window.store_u32(at, value as u32),
                    3 => window.store_u64(at, value),
                    4 => window.write_u64(at, value),
                    5 => window.write(at, &[value.to_le_bytes(); 5].concat()),
                    _ => window.write_u64s(at, &[value, !value, value ^ 7]),
                }
            }
        }
        let all = |map: &Map| {
            let mut bytes = vec![0; 16 * 4096];
            map.read(0x10_0000, &mut bytes).unwrap();
            bytes
        };
        assert!(all(&map) == all(&whole), "{lengths:?}");
        for at in (0..200).chain(4000..4200).chain(64_900..65_010) {
            let seen = [&window, &model].map(|window| {
                let mut numbers = [0; 5];
                window.read_u16s(at, &mut numbers);
                let loads = (window.load_u16(at), window.load_u32(at), window.load_u64(at));
                (numbers, loads, window.read::<1>(at), window.read::<16>(at))
            });
            assert_eq!(seen[0], seen[1], "{lengths:?} at {at}");
        }
    }
}

#[test]
fn a_window_over_many_regions_has_their_rights_and_none_over_a_hole() {
    let (_file, map) = pieces(&[512], Rights::READ);
    let fault = Fault::Refused { address: 0x10_0100, len: 0x8000 };
    assert_eq!(map.window(0x10_0100, 0x8000, Rights::BOTH).unwrap_err(), fault);
    let window = map.window(0x10_0100, 0x8000, Rights::READ).unwrap();
    window.store_u32(0x1000, 1);
    window.write(0x1000, &[1]);
    assert_eq!(window.read::<4>(0x1000), [0; 4]);
    for hole in (0x10_0000..0x10_8200).step_by(512) {
        let gone = map.without(hole, 512).unwrap();
        let is_hit = (0x10_0000..0x10_8200).contains(&hole);
        assert_eq!(gone.window(0x10_0100, 0x8000, Rights::READ).is_err(), is_hit, "{hole:#x}");
        let absent = gone.with_absent(hole, 512, Rights::BOTH).unwrap();
        let expected = Absent { address: hole.max(0x10_0100), len: 512.min(hole + 512 - 0x10_0100) as u32 };
        let expected = Absent { len: expected.len.min((0x10_8100 - expected.address) as u32), ..expected };
        assert_eq!(absent.window(0x10_0100, 0x8000, Rights::READ).unwrap_err(), Fault::Absent(expected));
        let again = gone.with(hole, Arc::new(Mapping::private(512).unwrap()), Rights::READ).unwrap();
        assert_eq!(again.window(0x10_0100, 0x8000, Rights::READ).unwrap().load_u64(0x4000), 0);
    }
}

/// Numbers of this process's mappings and open descriptors of files with this name.
fn mapped_and_open(name: &str) -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_it = |path: std::path::PathBuf| path.to_string_lossy().contains(&format!("/memfd:{name} "));
    let open = files.filter(|file| std::fs::read_link(file.as_ref().unwrap().path()).is_ok_and(is_it)).count();
    (maps.matches(&format!("/memfd:{name} ")).count(), open)
}

#[test]
fn regions_of_a_file_share_a_mapping_and_a_descriptor_until_the_last_goes() {
    const NAME: &str = "regions-of-a-file";
    let fd = shared_file(NAME, 1 << 30).unwrap();
    let files = Files::new(1);
    let mut map = Map::default();
    // From the last page of the file to the first.
    for number in 0..20_000u64 {
        let piece = files.piece(fd.try_clone().unwrap(), (19_999 - number) << 12, 4096, true).unwrap();
        map = map.with(number << 13, piece, Rights::BOTH).unwrap();
    }
    assert_eq!((mapped_and_open(NAME), map.regions(), map.mapped_bytes()), ((1, 2), 20_000, 20_000 << 12));
    for number in [0, 1, 4711, 19_999] {
        map.write((number << 13) + 8, &number.to_le_bytes()).unwrap();
        let mut bytes = [0; 8];
        rustix::io::pread(&fd, &mut bytes, ((19_999 - number) << 12) + 8).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number);
        assert!(map.read((number << 13) + 4090, &mut [0; 8]).is_err(), "a region ends where it ends");
    }
    let other = shared_file(NAME, 4096).unwrap();
    let refused = files.piece(other.try_clone().unwrap(), 0, 4096, true).unwrap_err();
    assert!(matches!(refused, MappingError::TooManyFiles(1)), "{refused}");
    map = map.without_within(0, 19_999 << 13);
    assert_eq!(map.regions(), 1);
    assert_eq!(mapped_and_open(NAME).0, 1);
    drop(map);
    // A thread unmaps it.
    let end = Instant::now() + Duration::from_secs(20);
    while mapped_and_open(NAME) != (0, 2) {
        assert!(Instant::now() < end, "{:?}", mapped_and_open(NAME));
        std::thread::yield_now();
    }
    let _held = files.piece(other, 0, 4096, true).unwrap();
    let third = shared_file(NAME, 4096).unwrap();
    files.piece(third.try_clone().unwrap(), 0, 4096, true).unwrap_err();
    // It was taken by an earlier process, whose limit was higher.
    files.piece_again(third, 0, 4096, true).unwrap();
}

#[test]
fn a_piece_gives_no_more_than_its_descriptor_and_its_file() {
    let fd = shared_file("pieces", 1 << 20).unwrap();
    let reader = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let (reader, files) = (reader.unwrap(), Files::default());
    let writable = files.piece(fd.try_clone().unwrap(), 0, 1 << 20, true).unwrap();
    let asked = files.piece(reader.try_clone().unwrap(), 0, 4096, true);
    assert!(matches!(asked, Err(MappingError::ReadOnly)), "{asked:?}");
    files.piece(reader, 0, 4096, false).unwrap();
    for (offset, len) in [(1 << 20, 1), (0, (1 << 20) + 1), (u64::MAX, 2), (0, 0), (4096, 5 << 40)] {
        assert!(files.piece(fd.try_clone().unwrap(), offset, len, true).is_err(), "{offset:#x}+{len:#x}");
    }
    drop(writable);
}

#[test]
fn a_span_of_another_map_is_of_no_bytes() {
    let (one, other) = (two_regions(), two_regions());
    let span = spans(&one, 0, 8, Rights::READ).unwrap()[0];
    let clone = one.clone();
    assert_eq!((one.bytes(span).len(), clone.bytes(span).len(), other.bytes(span).len()), (8, 8, 0));
    assert_eq!(Map::default().bytes(Span::default()).len(), 0);
    let mut changed = [1; 8];
    assert_eq!(one.without(0x1000, 0x2000).unwrap().read_span(span, &mut changed), 0);
}

/// A log of this many pages, and its file.
fn log_of(pages: u64) -> (Arc<DirtyLog>, OwnedFd) {
    let file = shared_file("log", pages / 8).unwrap();
    let bitmap = Files::default().piece(file.try_clone().unwrap(), 0, pages / 8, true).unwrap();
    (Arc::new(DirtyLog::new(bitmap).unwrap()), file)
}

/// Removes and returns the pages in a log.
fn take_pages(file: &OwnedFd, pages: u64) -> Vec<u64> {
    let mut bits = vec![0; pages as usize / 8];
    rustix::io::pread(file, &mut bits, 0).unwrap();
    rustix::io::pwrite(file, &vec![0; bits.len()], 0).unwrap();
    (0..pages).filter(|page| bits[*page as usize / 8] >> (page % 8) & 1 != 0).collect()
}

#[test]
fn every_way_to_write_is_logged_after_the_write_and_no_way_to_read_is() {
    let (log, file) = log_of(512);
    let memory = Arc::new(Mapping::private(0x20_0000).unwrap());
    let map = Map::default().with(0, memory, Rights::BOTH).unwrap().logged(Some(log));
    let mut bytes = [0; 64];
    map.read(0x1ff0, &mut bytes).unwrap();
    map.window(0x3000, 0x2000, Rights::READ).unwrap();
    let mut translator = Translator::new(&map);
    assert!(translator.whole(0x7000, 8, Rights::READ).is_some());
    map.publish_log();
    assert_eq!(take_pages(&file, 512), [0; 0]);

    map.write(0x1ff0, &[1; 64]).unwrap();
    assert_eq!(take_pages(&file, 512), [0; 0], "not before the write is over");
    map.window(0x3ffe, 4, Rights::BOTH).unwrap().store_u16(2, 7);
    assert!(translator.whole(0x7000, 0x1000, Rights::WRITE).is_some());
    assert!(map.whole(0x9fff, 1, Rights::WRITE).is_some());
    let mut targets = Translator::new(&map);
    assert!([0xb000, 0xb800, 0xc000].iter().all(|at| targets.target(*at, 8).is_some()));
    let place = map.window_place(0x10_0000, 8, Rights::BOTH);
    assert!(place.open(&map).is_none(), "each window for writing is logged");
    spans(&map, 0x4_0000, 0x4_1000, Rights::WRITE).unwrap();
    map.publish_log();
    let many = 0x40..0x81;
    assert_eq!(
        take_pages(&file, 512),
        [1, 2, 3, 4, 7, 9, 11, 12].into_iter().chain(many).chain([0x100]).collect::<Vec<_>>()
    );
    map.publish_log();
    assert_eq!(take_pages(&file, 512), [0; 0], "once");
}

/// A guest can name this much in a descriptor; the log of each would take 16,384 words.
#[test]
fn of_a_buffer_of_4_gib_what_a_packet_may_reach_is_logged() {
    const GIB: u64 = 1 << 30;
    let (log, file) = log_of(1 << 20);
    let mapping = Mapping::of_file(shared_file("buffer", 8 * GIB).unwrap(), 0, 8 * GIB, true).unwrap();
    let map = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap().logged(Some(log));
    assert!(Translator::new(&map).whole(0x7000, u32::MAX, Rights::WRITE).is_some());
    map.publish_log();
    assert_eq!(take_pages(&file, 1 << 20), (7..7 + 1024).collect::<Vec<_>>());
}

#[test]
fn a_log_that_is_too_short_or_gone_or_taken_away_logs_what_it_can() {
    let (log, file) = log_of(64);
    let memory = Arc::new(Mapping::private(0x20_0000).unwrap());
    let plain = Map::default().with(0, memory, Rights::BOTH).unwrap();
    let map = plain.logged(Some(log));
    map.write(0x3_f000, &[1; 0x4000]).unwrap();
    map.publish_log();
    assert_eq!(take_pages(&file, 64), [63]);
    assert!(map.whole(0x20_0000, 1, Rights::WRITE).is_none(), "beyond memory nothing is written");
    let silent = map.logged(None);
    silent.write(0, &[1]).unwrap();
    silent.publish_log();
    assert_eq!(take_pages(&file, 64), [0; 0]);

    let file = rustix::fs::memfd_create("log", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let files = Files::default();
    assert!(DirtyLog::new(files.piece(file.try_clone().unwrap(), 4, 8, true).unwrap()).is_none(), "no whole words");
    let log = DirtyLog::new(files.piece(file.try_clone().unwrap(), 0, 4096, true).unwrap()).unwrap();
    let map = plain.logged(Some(Arc::new(log)));
    rustix::fs::ftruncate(&file, 0).unwrap();
    map.write(0, &[1]).unwrap();
    map.publish_log();
}
