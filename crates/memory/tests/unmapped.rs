//! A device never touches what is unmapped: random maps, unmaps and accesses against a model of pages, as behind an IOMMU.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nicety_memory::{Fault, Files, Map, Refusal, Refusals, Rights, Translator, shared_file};

const PAGE: u64 = 4096;
/// Pages of the file.
const PAGES: u64 = 16;
/// Pages of bus addresses. They begin at 0.
const ADDRESSES: u64 = 24;

/// The mappings, page by page: the page of the file, and the rights.
type Model = BTreeMap<u64, (u64, Rights)>;

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

/// The bytes of the file that an access reaches, in order. `None` if the device must be refused.
fn reached(model: &Model, address: u64, len: u64, wanted: Rights) -> Option<Vec<usize>> {
    (address..address + len)
        .map(|at| {
            let (page, rights) = model.get(&(at / PAGE))?;
            let allowed = (rights.read || !wanted.read) && (rights.write || !wanted.write);
            allowed.then_some((page * PAGE + at % PAGE) as usize)
        })
        .collect()
}

fn contents(file: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; (PAGES * PAGE) as usize];
    assert_eq!(rustix::io::pread(file, &mut bytes, 0), Ok(bytes.len()));
    bytes
}

/// Changes the map at random, as an IOMMU's driver does: a page or a few, with some rights.
fn change(random: &mut Random, files: &Files, file: &OwnedFd, map: &Map, model: &mut Model) -> Map {
    let (first, count) = (random.below(ADDRESSES), 1 + random.below(3));
    if random.below(2) == 0 {
        model.retain(|page, _| !(first..first + count).contains(page));
        return map.without_within(first * PAGE, count * PAGE);
    }
    if (first..first + count).any(|page| model.contains_key(&page)) || first + count > ADDRESSES {
        return map.clone();
    }
    let rights = [Rights::BOTH, Rights::READ, Rights::WRITE][random.below(3) as usize];
    let mut new = map.clone();
    for page in first..first + count {
        let place = random.below(PAGES);
        let copy = file.try_clone().unwrap();
        let piece = match files.piece_of_mapped(file.as_fd(), place * PAGE, PAGE, rights.write) {
            Some(piece) => piece,
            None => files.piece(copy, place * PAGE, PAGE, rights.write).unwrap(),
        };
        new = new.with(page * PAGE, piece, rights).unwrap();
        model.insert(page, (place, rights));
    }
    new
}

#[test]
fn a_device_never_touches_what_is_unmapped_and_each_refusal_is_counted_with_its_address_direction_and_length() {
    for seed in 1..=3 {
        let mut random = Random(seed);
        let file = shared_file("guest", PAGES * PAGE).unwrap();
        let fill: Vec<u8> = (0..PAGES * PAGE).map(|_| random.below(256) as u8).collect();
        rustix::io::pwrite(&file, &fill, 0).unwrap();
        let (files, refusals) = (Files::new(1), Arc::new(Refusals::default()));
        let (mut map, mut model, mut expected) = (Map::default(), Model::new(), (0, 0));
        map.report_to(&refusals);
        for step in 0..1500 {
            if random.below(3) == 0 {
                map = change(&mut random, &files, &file, &map, &mut model);
                map.report_to(&refusals);
            }
            let (address, len) = (random.below(ADDRESSES * PAGE), 1 + random.below(3 * PAGE / 2));
            let wanted = [Rights::READ, Rights::WRITE][random.below(2) as usize];
            let (before, reached) = (contents(&file), reached(&model, address, len, wanted));
            let refused = (refusals.refused().reads, refusals.refused().writes);
            assert_eq!(refused, expected, "seed {seed}, step {step}");
            let len = len as u32;
            let result = if wanted.write {
                map.write(address, &vec![step as u8; len as usize])
            } else {
                let mut read = vec![0; len as usize];
                let result = map.read(address, &mut read);
                if let Some(reached) = &reached {
                    assert!(
                        read.iter().zip(reached).all(|(byte, at)| *byte == before[*at]),
                        "seed {seed}, step {step}"
                    );
                }
                result
            };
            let mut after = before;
            match reached {
                Some(reached) => {
                    assert_eq!(result, Ok(()), "seed {seed}, step {step}");
                    if wanted.write {
                        reached.iter().for_each(|at| after[*at] = step as u8);
                    }
                }
                None => {
                    assert_eq!(result, Err(Fault::Refused { address, len }), "seed {seed}, step {step}");
                    let last = Some(Refusal { address, len, write: wanted.write });
                    assert_eq!(refusals.refused().last, last, "seed {seed}, step {step}");
                    *if wanted.write { &mut expected.1 } else { &mut expected.0 } += 1;
                    // Nor by the other ways to guest memory.
                    assert!(Translator::new(&map).whole(address, len, wanted).is_none());
                    assert!(map.window(address, len, wanted).is_err());
                    *if wanted.write { &mut expected.1 } else { &mut expected.0 } += 1;
                }
            }
            assert!(contents(&file) == after, "seed {seed}, step {step}: only what is mapped may be written");
        }
        assert!(expected.0 > 100 && expected.1 > 100, "{expected:?}");
    }
}

#[test]
fn what_was_translated_before_an_unmap_reaches_nothing_by_the_map_after_it() {
    let file = shared_file("guest", 2 * PAGE).unwrap();
    let files = Files::new(1);
    let piece = |page| files.piece(file.try_clone().unwrap(), page * PAGE, PAGE, true).unwrap();
    let map = Map::default().with(0, piece(0), Rights::BOTH).unwrap().with(PAGE, piece(1), Rights::BOTH).unwrap();
    let span = map.whole(0, 64, Rights::WRITE).unwrap();
    let unmapped = map.without(0, PAGE).unwrap();
    unmapped.write_span(span, &[1; 64]);
    let mut bytes = [0; 64];
    rustix::io::pread(&file, &mut bytes, 0).unwrap();
    assert_eq!(bytes, [0; 64]);
    assert_eq!(map.mappings(), unmapped.mappings(), "the file stays mapped for the other page");
}

#[test]
fn a_piece_is_taken_without_mapping_only_of_a_file_that_is_mapped_and_with_the_same_checks() {
    let (file, other) = (shared_file("guest", 4 * PAGE).unwrap(), shared_file("other", PAGE).unwrap());
    let files = Files::new(2);
    assert!(files.piece_of_mapped(&file, 0, PAGE, true).is_none(), "it is not mapped");
    let first = files.piece(file.try_clone().unwrap(), 0, PAGE, true).unwrap();
    assert!(files.piece_of_mapped(&file, 3 * PAGE, PAGE, true).is_some());
    assert!(files.piece_of_mapped(&other, 0, PAGE, true).is_none());
    for (offset, len) in [(3 * PAGE, 2 * PAGE), (0, 0), (u64::MAX, 2), (4 * PAGE, 1)] {
        assert!(files.piece_of_mapped(&file, offset, len, true).is_none(), "{offset:#x}, {len:#x}");
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let read_only = rustix::fs::open(path, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    assert!(files.piece_of_mapped(&read_only, 0, PAGE, true).is_none(), "it may not be written to");
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(PAGE).unwrap();
    let on_disk = files.piece(disk.try_clone().unwrap(), 0, PAGE, true).unwrap();
    assert!(files.piece_of_mapped(&disk, 0, PAGE, true).is_none(), "only memory files never make us wait");
    drop((first, on_disk));
    assert!(files.piece_of_mapped(&file, 0, PAGE, true).is_none(), "it is mapped no more");
}
