//! Guest memory as a device sees it: translation, rights, holes, and what a peer can do to its file under us.

use std::sync::Arc;

use nicety_memory::{
    Absent, CopySum, Fault, Map, MapError, Mapping, MappingError, Rights, Span, copy, copy_sum, shared_file,
};

fn two_regions() -> Map {
    let low = Arc::new(Mapping::private(0x1000).unwrap());
    let high = Arc::new(Mapping::private(0x2000).unwrap());
    Map::default().with(0, low, Rights::BOTH).unwrap().with(0x1000, high, Rights::READ).unwrap()
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
    // Of holes.
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

#[test]
fn a_switch_full_of_vms_finds_room_for_all_their_regions() {
    // 1,023 ports, each with a buffer of its own and the dozen regions that QEMU has.
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

#[test]
fn memory_is_blank_until_anybody_writes_what_is_not_zero_and_looking_takes_no_pages() {
    let fd = shared_file("blank", 64 << 20).unwrap();
    let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks;
    let mapped = |offset, len| {
        let mapping = Mapping::of_file(fd.try_clone().unwrap(), offset, len, true).unwrap();
        Map::default().with(0x1000, Arc::new(mapping), Rights::BOTH).unwrap()
    };
    let (whole, low) = (mapped(0, 64 << 20), mapped(0, 32 << 20));
    assert!(whole.is_blank() && low.is_blank());
    assert_eq!(blocks(), 0);
    whole.write(0x1000, &[0; 8192]).unwrap();
    assert!(whole.is_blank(), "zeros are nothing");
    whole.write(0x1000 + (48 << 20), &[1]).unwrap();
    assert!(!whole.is_blank() && low.is_blank(), "what counts lies within the region");
    low.write(0x1000 + (1 << 20), &[1]).unwrap();
    assert!(!low.is_blank());
    assert!(!mapped(32 << 20, 32 << 20).is_blank());
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
    for len in 0..=200u32 {
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
    assert!(map.window(0xff0, 32, Rights::READ).is_err(), "a window lies in one region");
    let window = map.window(1, 16, Rights::BOTH).unwrap();
    window.store_u16(0, 0x1234);
    window.store_u32(3, 0x5678_9abc);
    assert_eq!((window.load_u16(0), window.load_u32(3)), (0x1234, 0x5678_9abc), "unaligned places work too");
}
