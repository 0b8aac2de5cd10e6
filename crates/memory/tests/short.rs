//! The most frequent operations on a frame's path: copies of few bytes, numbers at the start of a span, ring entries, many translations.

use std::sync::Arc;

use nicety_memory::{Map, Mapping, Rights, Span, Translator, shared_file};

const PAGE: u64 = 4096;

/// Several regions: memory, read-only memory, memory that was not shared, and holes between them.
fn map() -> Map {
    let piece = |len| Arc::new(Mapping::private(len).unwrap());
    let map = Map::default().with(0x1000, piece(0x2000), Rights::BOTH).unwrap();
    let map = map.with(0x3000, piece(0x1000), Rights::READ).unwrap();
    map.with_absent(0x6000, 0x1000, Rights::BOTH).unwrap().with(0x8000, piece(0x1000), Rights::BOTH).unwrap()
}

/// The map's own translation, if it is one span.
fn translated(map: &Map, address: u64, len: u32, wanted: Rights) -> Option<Span> {
    let mut spans = Vec::new();
    let push = |span| {
        spans.push(span);
        true
    };
    map.translate(address, len, wanted, push).ok().filter(|()| spans.len() == 1)?;
    spans.pop()
}

#[test]
fn a_translator_says_what_its_map_says_whatever_it_was_asked_before() {
    let map = map();
    let mut translator = Translator::new(&map);
    let (mut state, mut found) = (7u64, 0);
    for _ in 0..20_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (address, len) = (state % 0xa000, 1 + (state >> 20) as u32 % 0x1800);
        let wanted = [Rights::READ, Rights::WRITE, Rights::BOTH][(state >> 40) as usize % 3];
        let span = translator.whole(address, len, wanted);
        assert_eq!(span, translated(&map, address, len, wanted), "{address:#x} {len:#x} {wanted:?}");
        found += usize::from(span.is_some());
    }
    assert!((1_000..19_000).contains(&found), "{found}");
    for address in [u64::MAX, u64::MAX - 1, 0, 0x9000] {
        assert_eq!(translator.whole(address, 2, Rights::READ), None);
    }
}

#[test]
fn a_copy_of_any_length_brings_all_of_it_and_nothing_else() {
    let map = map();
    let source: Vec<u8> = (0..2300u16).map(|i| (i * 7 + i / 251) as u8).collect();
    for len in (0..=700).chain(2040..=2060) {
        let (at, to) = (len % 9, 0x1040 + len as u64 % 13);
        map.write(to - 1, &vec![0xee; len + 2]).unwrap();
        let span = translated(&map, to, len.max(1) as u32, Rights::BOTH).unwrap();
        map.write_span(span, &source[at..at + len]);
        let mut all = vec![0; len + 2];
        map.read(to - 1, &mut all).unwrap();
        assert!(all[0] == 0xee && all[len + 1] == 0xee && all[1..=len] == source[at..at + len], "{len}");
        let mut back = vec![0xdd; len + 2];
        map.read_span(span, &mut back[1..=len]);
        assert!(back[0] == 0xdd && back[len + 1] == 0xdd && back[1..=len] == source[at..at + len], "{len}");
    }
}

/// The file is truncated behind its first page: copies from there give zeros, and copies to there are lost.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_short_copy_over_the_end_of_what_a_peer_has_left_brings_what_is_there() {
    let fd = rustix::fs::memfd_create("cut", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::io::pwrite(&fd, &[7; 2 * PAGE as usize], 0).unwrap();
    let mapping = Arc::new(Mapping::of_file(fd.try_clone().unwrap(), 0, 2 * PAGE, true).unwrap());
    let map = Map::default().with(0, mapping, Rights::BOTH).unwrap();
    // All of its pages are known to exist.
    map.read(0, &mut [0; 2 * PAGE as usize]).unwrap();
    rustix::fs::ftruncate(&fd, PAGE).unwrap();
    for len in (1..=400usize).chain([1000, 2047, 2048]) {
        for there in [0, 1, len / 2, len - 1] {
            map.write(PAGE - 2048, &[7; 2048]).unwrap();
            let mut bytes = vec![9; len];
            map.read(PAGE - there as u64, &mut bytes).unwrap();
            let (kept, gone) = bytes.split_at(there);
            assert!(kept.iter().all(|&b| b == 7) && gone.iter().all(|&b| b == 0), "{there} of {len}");
            map.write(PAGE - there as u64, &vec![5; len]).unwrap();
            map.read(PAGE - there as u64, &mut bytes).unwrap();
            let (kept, gone) = bytes.split_at(there);
            assert!(kept.iter().all(|&b| b == 5) && gone.iter().all(|&b| b == 0), "{there} of {len}");
        }
    }
    assert!(map.damaged());
}

#[test]
fn numbers_at_the_beginning_of_a_span_are_little_endian_and_reach_no_further_than_it() {
    // Untouched pages, and pages of our own.
    let file = Arc::new(Mapping::of_file(shared_file("numbers", 4 * PAGE).unwrap(), 0, 4 * PAGE, true).unwrap());
    let sparse = Map::default().with(0, file, Rights::BOTH).unwrap();
    for (map, at) in [(&sparse, 0x1003), (&map(), 0x1003)] {
        let span = translated(map, at, 16, Rights::BOTH).unwrap();
        assert_eq!(map.read_words(span), [0; 3]);
        assert!(map.allocated_bytes() == 0, "reading allocates nothing");
        map.write_words(span, [0x0403_0201, 0x0807_0605, 0x0c0b_0a09]);
        let mut bytes = [0xff; 16];
        map.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 0, 0]);
        assert_eq!(map.read_words(span), [0x0403_0201, 0x0807_0605, 0x0c0b_0a09]);
        map.write_words(span.piece(0, 7), [u32::MAX; 3]);
        map.read(at, &mut bytes).unwrap();
        assert_eq!(bytes[..8], [255, 255, 255, 255, 5, 6, 7, 8], "as many as it has room for");
    }
    let other = Map::private(64).unwrap();
    let span = translated(&other, 0, 16, Rights::BOTH).unwrap();
    map().write_words(span, [1; 3]);
    assert_eq!((map().read_words(span), other.read_words(span)), ([0; 3], [0; 3]), "a span of another map");
}

#[test]
fn entries_of_a_ring_are_read_and_written_together_or_not_at_all() {
    let file = Arc::new(Mapping::of_file(shared_file("ring", 4 * PAGE).unwrap(), 0, 4 * PAGE, true).unwrap());
    let sparse = Map::default().with(0x1000, file, Rights::BOTH).unwrap();
    for map in [&sparse, &map()] {
        let window = map.window(0x1002, 64, Rights::BOTH).unwrap();
        let mut numbers = [9; 5];
        window.read_u16s(4, &mut numbers);
        assert_eq!(numbers, [0; 5]);
        window.write_u64s(0, &[0x0004_0003_0002_0001, 0x0008_0007_0006_0005]);
        for unaligned in [0, 1] {
            window.write(unaligned, &[1, 0, 2, 0, 3, 0, 4, 0, 5, 0]);
            window.read_u16s(unaligned, &mut numbers);
            assert_eq!(numbers, [1, 2, 3, 4, 5]);
        }
        window.write_u64s(56, &[1]);
        window.write_u64s(57, &[u64::MAX]);
        window.write_u64s(48, &[0, 0, u64::MAX]);
        assert_eq!((window.load_u16(56), window.load_u16(62)), (1, 0), "the entries of 48 and 57 were not all within");
        window.read_u16s(60, &mut numbers);
        assert!(numbers[2..] == [0; 3], "zero beyond its end");
    }
    let read_only = map();
    let window = read_only.window(0x3000, 64, Rights::READ).unwrap();
    window.write_u64s(0, &[1]);
    assert_eq!(window.load_u16(0), 0);
}

#[test]
fn entries_are_gathered_by_index_whatever_is_known_of_their_pages_and_beyond_the_end_they_are_zero() {
    let file = shared_file("entries", 8 * 4096).unwrap();
    let entry = |index: u16| u128::from(index) * 0x0101_0101_0101_0101_0101 + 1;
    let bytes: Vec<u8> = (0..512).flat_map(|index| entry(index).to_le_bytes()).collect();
    rustix::io::pwrite(&file, &bytes, 4096).unwrap();
    let mapping = Arc::new(Mapping::of_file(file, 0, 8 * 4096, true).unwrap());
    let map = Map::default().with(0, mapping, Rights::BOTH).unwrap();
    for _ in 0..2 {
        let window = map.window(4096, 2 * 4096, Rights::READ).unwrap();
        for indices in [&[3, 511, 0, 0, 17][..], &[5, 512, 6], &[u16::MAX], &[]] {
            let mut out = [7; 8];
            window.gather(indices, &mut out);
            let expected: Vec<_> = indices.iter().map(|&index| if index < 512 { entry(index) } else { 0 }).collect();
            assert_eq!(out[..indices.len()], expected);
            assert!(out[indices.len()..].iter().all(|entry| *entry == 7));
        }
        // The next window knows that the pages exist.
        map.write(4096, &bytes).unwrap();
    }
}
