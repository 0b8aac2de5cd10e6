//! A guest of holes: the daemon pays only for existing pages, however far apart they lie.

use std::sync::Arc;

use nicety_memory::{Fault, Map, Mapping, Rights, shared_file};

const GIB: u64 = 1 << 30;
const BYTES: u64 = 4096 * GIB;
const APART: u64 = GIB / 2;

/// Bytes of this process's own memory (proc_pid_status(5)).
fn own_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// A device would walk all of them for each frame.
#[test]
fn a_range_over_more_regions_than_any_ring_has_pages_behind_an_iommu_is_refused() {
    let bytes = Arc::new(Mapping::private(4096).unwrap());
    let map =
        (0..2000u64).fold(Map::default(), |map, page| map.with(page << 12, Arc::clone(&bytes), Rights::BOTH).unwrap());
    let mut ring = vec![1; 1 << 20];
    map.read(0x800, &mut ring).unwrap();
    assert!(ring.iter().all(|&byte| byte == 0));
    let spans = |pages: u32| {
        let mut spans = 0;
        let push = |_| {
            spans += 1;
            true
        };
        map.translate(0, pages << 12, Rights::READ, push).map(|()| spans)
    };
    assert_eq!(spans(1024), Ok(1024));
    assert!(matches!(spans(1025), Err(Fault::Refused { .. })));
}

#[test]
fn what_is_known_of_a_sparse_file_of_4_tib_takes_little_memory() {
    let file = shared_file("vast", BYTES).unwrap();
    let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, BYTES, true).unwrap();
    let map = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
    let before = own_bytes();
    for at in (0..BYTES).step_by(APART as usize) {
        rustix::io::pwrite(&file, &at.to_le_bytes(), at).unwrap();
        let mut bytes = [0; 8];
        map.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, at.to_le_bytes());
    }
    // Again: they are known now.
    for at in (0..BYTES).step_by(APART as usize) {
        let mut bytes = [0; 8];
        map.read(at, &mut bytes).unwrap();
        assert_eq!(bytes, at.to_le_bytes());
    }
    let grown = own_bytes() - before;
    assert!(grown < BYTES / APART * 1024, "{} pages take {grown} bytes", BYTES / APART);
    assert_eq!(map.allocated_bytes(), 0);
}
