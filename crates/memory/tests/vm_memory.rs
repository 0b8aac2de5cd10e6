//! A VMM that has its guest's memory by the crate `vm-memory` gives it to a port, as the book shows.

use std::error::Error;

use nicety_memory::{Files, Map, Rights, shared_file};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};

/// The same memory, for a port.
fn map_of(memory: &GuestMemoryMmap) -> Result<Map, Box<dyn Error>> {
    let (files, mut map) = (Files::default(), Map::default());
    for region in memory.iter() {
        let place = region.file_offset().ok_or("anonymous memory: make it with a memory file")?;
        let piece = files.piece(place.file().try_clone()?, place.start(), region.len(), true)?;
        map = map.with(region.start_addr().0, piece, Rights::BOTH)?;
    }
    Ok(map)
}

#[test]
fn two_regions_of_one_file_are_the_vmms_and_the_ports() {
    let file = std::fs::File::from(shared_file("guest", 0x4000).unwrap());
    let region = |at, offset| {
        let place = FileOffset::new(file.try_clone().unwrap(), offset);
        GuestRegionMmap::from_range(GuestAddress(at), 0x2000, Some(place)).unwrap()
    };
    let memory = GuestMemoryMmap::from_regions(vec![region(0, 0), region(0x1_0000, 0x2000)]).unwrap();
    let map = map_of(&memory).unwrap();
    assert_eq!((map.regions(), map.mappings()), (2, 1), "the file is mapped once");
    memory.write_slice(b"from the VMM", GuestAddress(0x1_0ff8)).unwrap();
    let mut bytes = [0; 12];
    map.read(0x1_0ff8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from the VMM");
    map.write(0x1ff4, b"for the VMM!").unwrap();
    memory.read_slice(&mut bytes, GuestAddress(0x1ff4)).unwrap();
    assert_eq!(&bytes, b"for the VMM!");
    assert!(map.read(0x2000, &mut bytes).is_err(), "between the regions there is nothing");
}

#[test]
fn anonymous_memory_is_refused_with_the_remedy() {
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
    let error = map_of(&memory).unwrap_err().to_string();
    assert_eq!(error, "anonymous memory: make it with a memory file");
}

#[test]
fn the_book_shows_this() {
    let book = include_str!("../../../docs/writing-a-vmm.md");
    let shown = book
        .split("<!-- crates/memory/tests/vm_memory.rs -->\n```rust\n")
        .nth(1)
        .and_then(|rest| rest.split("```\n").next())
        .expect("the page has it");
    assert!(include_str!("vm_memory.rs").contains(shown), "{shown}");
}
