//! Stretches: what a translator remembers of the pages around an address.

use std::sync::Arc;

use super::*;
use crate::{Mapping, shared_file};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Memory of which only the first 5 MiB, a page at 6 MiB, and all from 8 MiB to 15 MiB exist.
fn map() -> Map {
    let mapping = Mapping::of_file(shared_file("stretches", 16 * MIB).unwrap(), 0, 16 * MIB, true).unwrap();
    let map = Map::default().with(MIB, Arc::new(mapping), Rights::BOTH).unwrap();
    for (from, to) in [(0, 5 * MIB), (6 * MIB, 6 * MIB + PAGE), (8 * MIB, 15 * MIB)] {
        for at in (from..to).step_by(PAGE as usize) {
            map.write(MIB + at, &at.to_le_bytes()).unwrap();
        }
    }
    map
}

#[test]
fn a_stretch_is_of_whole_chunks_or_of_the_known_pages_of_one_word() {
    let map = map();
    let stretch = |at: u64| {
        let mut translator = Translator::new(&map);
        let is_known = translator.readable(MIB + at, 1).is_some();
        (is_known, translator.from.wrapping_sub(MIB), translator.readable)
    };
    assert_eq!(stretch(17), (true, 0, 4 * MIB), "the first chunk is whole, the second is not");
    assert_eq!(stretch(4 * MIB), (true, 4 * MIB, 64 * PAGE));
    assert_eq!(stretch(6 * MIB + 9), (true, 6 * MIB, PAGE));
    assert_eq!(stretch(9 * MIB), (true, 8 * MIB, 4 * MIB));
    assert_eq!(stretch(15 * MIB - 1), (true, 15 * MIB - 64 * PAGE, 64 * PAGE));
    let (is_known, _, readable) = stretch(15 * MIB);
    assert_eq!((is_known, readable), (false, 0));
}

#[test]
fn a_range_beyond_a_stretch_is_found_and_what_is_not_known_is_not_readable() {
    let map = map();
    let mut translator = Translator::new(&map);
    let mut bytes = [0; 16];
    let at = MIB + 4 * MIB + 64 * PAGE;
    let over = translator.readable(at - 8, 16).unwrap();
    assert_eq!((over.read(8, &mut bytes), &bytes[..8]), (8, &(at - MIB).to_le_bytes()[..]));
    assert!(translator.readable(MIB + 5 * MIB - 8, 16).is_none(), "its last page does not exist");
    let span = translator.whole(MIB + 5 * MIB - 8, 16, Rights::READ).unwrap();
    assert!(!span.known);
    assert!(translator.readable(17 * MIB - 8, 16).is_none(), "it ends beyond the region");
    assert!(translator.readable(MIB - 8, 16).is_none(), "it begins before the region");
}

#[test]
fn a_stretch_ends_with_its_region_and_has_its_rights() {
    let mapping = Arc::new(Mapping::private(4 * PAGE as usize).unwrap());
    let piece = |offset, len| crate::Piece { mapping: Arc::clone(&mapping), offset, len };
    let map = Map::default()
        .with(0, piece(PAGE, PAGE), Rights::READ)
        .unwrap()
        .with(PAGE, piece(2 * PAGE, PAGE), Rights::WRITE)
        .unwrap();
    let mut translator = Translator::new(&map);
    assert!(translator.readable(8, 8).is_some());
    assert_eq!((translator.from, translator.readable, translator.writable), (0, PAGE, 0));
    assert!(translator.readable(PAGE - 8, 16).is_none());
    assert!(translator.readable(PAGE + 8, 8).is_none());
    assert!(translator.whole(PAGE + 8, 8, Rights::WRITE).is_some());
    assert_eq!((translator.from, translator.readable, translator.writable), (PAGE, 0, PAGE));
    assert_eq!(translator.whole(PAGE + 8, 8, Rights::BOTH), None);
}

#[test]
fn few_bytes_are_read_as_far_as_they_go() {
    let map = Map::private(4096).unwrap();
    map.write(0, &[1, 2, 3]).unwrap();
    let mut translator = Translator::new(&map);
    let mut bytes = [9; 4];
    let two = translator.readable(0, 2).unwrap();
    assert_eq!((two.load_u16(), two.read(1, &mut bytes), bytes), (0x201, 1, [2, 9, 9, 9]));
    assert_eq!((two.read(7, &mut bytes), bytes), (0, [2, 9, 9, 9]));
    let one = translator.readable(2, 1).unwrap();
    assert_eq!((one.load_u16(), one.len(), one.is_empty()), (0, 1, false));
    assert!(Readable::default().is_empty());
}
