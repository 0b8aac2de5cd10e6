//! Targets, which are translated for a device's writes, and windows whose place is kept from call to call.

use std::sync::Arc;

use nicety_memory::{Map, Mapping, Rights, Span, Translator, shared_file};

const PAGE: u64 = 4096;
const HEADER: u128 = 0x1f1e_1d1c_1b1a_1918_1716_1514_1312_1110;

/// Regions of memory files of which no page exists yet, read-only memory, memory that was not shared, and holes between them.
fn map() -> Map {
    let file = |len| Arc::new(Mapping::of_file(shared_file("targets", len).unwrap(), 0, len, true).unwrap());
    let map = Map::default().with(PAGE, file(8 * PAGE), Rights::BOTH).unwrap();
    let map = map.with(9 * PAGE, file(4 * PAGE), Rights::READ).unwrap();
    map.with_absent(14 * PAGE, PAGE, Rights::BOTH).unwrap().with(16 * PAGE, file(9 * PAGE), Rights::BOTH).unwrap()
}

fn bytes_of(map: &Map, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    map.read(at, &mut bytes).unwrap();
    bytes
}

/// A seeded generator (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[test]
fn a_target_is_where_its_map_says_whatever_was_asked_before_and_counts_the_pages_that_it_allocates() {
    let (map, other) = (map(), map());
    let (mut random, mut found) = (Random(7), 0);
    let mut translator = Translator::new(&map);
    for step in 0..5_000u32 {
        let (address, len) = (random.below(26 * PAGE), 1 + random.below(6000) as u32);
        let target = translator.target(address, len);
        assert_eq!(target.is_some(), map.whole(address, len, Rights::WRITE).is_some(), "{address:#x} {len:#x}");
        let Some(target) = target else { continue };
        found += 1;
        assert_eq!(target.len(), len);
        // Seldom at first, so that the translator meets pages that exist beside pages that do not.
        if random.below(8) == 0 && len > 200 {
            let frame: Vec<u8> =
                (0..random.below(u64::from(len) - 16)).map(|at| (u64::from(step) + at) as u8).collect();
            assert!(target.write::<12>(HEADER, &frame));
            assert!(other.write(address, &[&HEADER.to_le_bytes()[..12], &frame].concat()).is_ok());
        }
        assert_eq!(map.allocated_bytes(), other.allocated_bytes(), "step {step}");
    }
    assert!((1_000..4_000).contains(&found), "{found}");
    for (at, len) in [(PAGE, 12 * PAGE), (16 * PAGE, 9 * PAGE)] {
        assert!(bytes_of(&map, at, len as usize) == bytes_of(&other, at, len as usize));
    }
    for address in [u64::MAX, u64::MAX - 1, 0, 25 * PAGE] {
        assert!(translator.target(address, 2).is_none(), "{address:#x}");
    }
    assert!(Translator::new(&Map::empty()).target(0, 1).is_none());
}

#[test]
fn a_header_or_none_and_a_frame_of_any_length_are_written_together_or_not_at_all() {
    fn one<const N: usize>(map: &Map, len: usize, room: usize) {
        let frame: Vec<u8> = (0..len).map(|at| (at * 5 + 1) as u8).collect();
        let expected = [&HEADER.to_le_bytes()[..N], &frame].concat();
        for short in [false, true] {
            map.write(PAGE, &[0xee; 600]).unwrap();
            let target = Translator::new(map).target(PAGE + 3, room as u32).unwrap();
            let is_written =
                if short { target.write_short::<N>(HEADER, &frame) } else { target.write::<N>(HEADER, &frame) };
            let fits = N + len <= room && (!short || (32..=64).contains(&len));
            assert_eq!(is_written, fits, "{N} and {len} of {room}, short: {short}");
            let found = bytes_of(map, PAGE + 3, 500);
            let (written, rest) = found.split_at(if fits { N + len } else { 0 });
            assert!(written == &expected[..written.len()] && rest.iter().all(|byte| *byte == 0xee), "{N} and {len}");
        }
    }
    let map = map();
    map.write(PAGE, &[0; 600]).unwrap();
    for len in 0..=300 {
        for room in [1, len, len + 7, len + 8, len + 11, len + 12, len + 15, len + 16, 400] {
            one::<0>(&map, len, room.max(1));
            one::<8>(&map, len, room.max(1));
            one::<12>(&map, len, room.max(1));
            one::<16>(&map, len, room.max(1));
        }
    }
}

#[test]
fn a_short_frame_goes_the_long_way_to_a_page_that_does_not_exist() {
    let map = map();
    let target = Translator::new(&map).target(2 * PAGE, 100).unwrap();
    assert!(!target.write_short::<12>(HEADER, &[1; 60]));
    assert_eq!(map.allocated_bytes(), 0);
    assert!(target.write::<12>(HEADER, &[1; 60]));
    assert_eq!(map.allocated_bytes(), PAGE);
    assert!(Translator::new(&map).target(2 * PAGE, 100).unwrap().write_short::<12>(HEADER, &[1; 60]));
}

#[test]
fn a_copy_to_a_target_brings_all_of_a_span_or_nothing_and_allocates_no_page_of_the_source() {
    let (source, map) = (map(), map());
    source.write(PAGE, &(0..2 * PAGE).map(|at| (at * 3) as u8).collect::<Vec<_>>()).unwrap();
    let allocated = source.allocated_bytes();
    let span = |at, len| source.whole(at, len, Rights::READ).unwrap_or_default();
    // The third page does not exist.
    for (from, len, room) in
        [(PAGE, 1400, 4000), (2 * PAGE + 100, 5000, 6000), (4 * PAGE, 4000, 5000), (PAGE, 1400, 1499)]
    {
        map.write(17 * PAGE, &[0xee; 7000]).unwrap();
        let target = Translator::new(&map).target(17 * PAGE, room).unwrap();
        target.copy(100, &source, span(from, len));
        let expected = match room < 100 + len {
            true => vec![0xee; 7000],
            false => [vec![0xee; 100], bytes_of(&source, from, len as usize), vec![0xee; 6900 - len as usize]].concat(),
        };
        assert!(bytes_of(&map, 17 * PAGE, 7000) == expected, "{len} bytes from {from:#x}");
    }
    assert_eq!(source.allocated_bytes(), allocated);
    // A span of another map has no bytes here, and what it would have overwritten stays.
    map.write(17 * PAGE, &[0xee; 100]).unwrap();
    Translator::new(&map).target(17 * PAGE, 100).unwrap().copy(0, &map, span(PAGE, 64));
    Translator::new(&map).target(17 * PAGE, 100).unwrap().copy(0, &map, Span::default());
    assert_eq!(bytes_of(&map, 17 * PAGE, 100), [0xee; 100]);
}

#[test]
fn a_window_s_place_opens_by_its_own_map_only_once_its_pages_exist() {
    let map = map();
    let place = |map: &Map, at, rights| map.window_place(at, 64, rights);
    assert!(place(&map, PAGE, Rights::BOTH).open(&map).is_none(), "the page does not exist");
    map.write(PAGE, &[7; 64]).unwrap();
    let known = place(&map, PAGE, Rights::BOTH);
    let window = known.open(&map).unwrap();
    window.store_u16(2, 0x1234);
    assert_eq!(
        (window.load_u32(0), window.load_u16(62), window.load_u16(63), window.len()),
        (0x1234_0707, 0x707, 0, 64)
    );
    let read = place(&map, PAGE, Rights::READ).open(&map).unwrap();
    read.store_u16(2, 0);
    assert_eq!(read.load_u16(2), 0x1234, "it was opened for reading");
    assert!(known.open(&map.clone()).is_some(), "the regions are the same");
    for other in [map.without(9 * PAGE, 4 * PAGE).unwrap(), map.without(PAGE, 8 * PAGE).unwrap(), map.logged(None)] {
        assert!(known.open(&other).is_none());
    }
    assert!(place(&map, 9 * PAGE, Rights::BOTH).open(&map).is_none(), "it may not be written");
    assert!(place(&map, 9 * PAGE - 32, Rights::READ).open(&map).is_none(), "two regions");
}
