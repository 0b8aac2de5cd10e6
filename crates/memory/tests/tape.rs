//! A tape has every byte that is read, whatever way it is read, and plays the same bytes over other memory.

use std::sync::Arc;

use nicety_memory::{CopySum, Map, Mapping, Rights, Span, Tape, Taped, Translator, copy, copy_sum};

const PAGE: u64 = 4096;

/// Memory in two regions, so that a range can lie in both.
fn memory(tape: &Arc<Tape>, fill: u8) -> Map {
    let page = || Arc::new(Mapping::private(PAGE as usize).unwrap());
    let map = Map::default().with(0, page(), Rights::BOTH).unwrap();
    let map = map.with(PAGE, page(), Rights::BOTH).unwrap();
    let bytes: Vec<u8> = (0..2 * PAGE).map(|at| (at as u8).wrapping_mul(7) ^ fill).collect();
    map.write(0, &bytes).unwrap();
    map.taped(Arc::clone(tape))
}

fn span(map: &Map, address: u64, len: u32) -> Span {
    let mut found = Span::default();
    let take = |span| {
        found = span;
        true
    };
    map.translate(address, len, Rights::BOTH, take).unwrap();
    found
}

/// Reads in every way, and writes what was read.
fn work(map: &Map, private: &Map) -> Vec<u8> {
    let mut seen = Vec::new();
    let mut bytes = [0; 300];
    map.read(PAGE - 100, &mut bytes).unwrap();
    seen.extend(bytes);
    let window = map.window(PAGE - 16, 64, Rights::BOTH).unwrap();
    seen.extend(window.read::<16>(0));
    seen.extend(window.read::<12>(10));
    seen.extend(window.load_u16(3).to_le_bytes());
    seen.extend(window.load_u32(16).to_le_bytes());
    seen.extend(window.load_u64(24).to_le_bytes());
    let mut numbers = [0; 8];
    window.read_u16s(12, &mut numbers);
    seen.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    window.store_u16(0, u16::from(seen[5]));
    window.store_u32(40, u32::from(seen[6]));
    window.write_u64(14, u64::from(seen[7]));
    window.write(20, &seen[..9]);
    assert_eq!(Translator::new(map).whole(64, 16, Rights::BOTH), None, "a map with a tape has no fast path");
    let whole = span(map, 64, 16);
    seen.extend(map.read_words::<4>(whole).iter().flat_map(|word| word.to_le_bytes()));
    map.write_words(whole, [u32::from(seen[8]); 4]);
    let ours = private.whole(0, 5000, Rights::BOTH).unwrap();
    let theirs = span(map, 200, 700);
    assert_eq!(copy(map, theirs, private, ours), 700);
    let mut sum = CopySum::default();
    assert_eq!(copy_sum(map, theirs.piece(100, 333), private, ours.piece(700, 333), &mut sum), 333);
    seen.extend(sum.fold().to_le_bytes());
    let mut copied = [0; 1033];
    private.read(0, &mut copied).unwrap();
    seen.extend(copied);
    copy(private, ours, map, theirs);
    map.write(PAGE - 3, &seen[..8]).unwrap();
    seen
}

#[test]
fn a_tape_plays_what_was_read_over_other_memory_and_the_same_is_written() {
    let private = Map::private(8192).unwrap();
    let tape = Arc::new(Tape::default());
    let map = memory(&tape, 0);
    tape.record();
    let seen = work(&map, &private);
    let Taped { read, written, is_whole } = tape.close();
    assert!(is_whole);
    assert_eq!(read.len(), 300 + 16 + 12 + 2 + 4 + 8 + 16 + 16 + 700 + 333);
    let other = memory(&tape, 0xa5);
    tape.play(read.clone());
    assert_eq!(work(&other, &private), seen);
    let played = tape.close();
    assert!(played.is_whole);
    assert_eq!(played.written, written);
    // A reader of more than there is gets zeros, and is noticed; so is one of less.
    for len in [read.len() - 1, read.len() + 1] {
        let mut bytes = read.clone();
        bytes.resize(len, 0);
        tape.play(bytes);
        work(&other, &private);
        assert!(!tape.close().is_whole);
    }
    // Other bytes are written otherwise.
    let mut bytes = read;
    bytes[5] ^= 1;
    tape.play(bytes);
    work(&other, &private);
    assert_ne!(tape.close().written, written);
}

#[test]
fn a_closed_tape_and_another_thread_s_accesses_leave_no_bytes() {
    let private = Map::private(8192).unwrap();
    let tape = Arc::new(Tape::default());
    let map = memory(&tape, 0);
    let seen = work(&map, &private);
    assert_eq!(tape.close().read, []);
    let map = memory(&tape, 0);
    tape.record();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(work(&map, &private) == seen));
    });
    assert_eq!(tape.close().read, []);
}
