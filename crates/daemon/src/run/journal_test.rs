use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use nicety_keeper::Channel;

use super::*;
use crate::run::image::VmmImage;

fn function(listener: u32) -> FunctionImage {
    FunctionImage { listener, page: None, empty_page: None, vmm: None }
}

/// Groups of descriptors that have arrived at the keeper.
fn groups(channel: &Channel) -> Vec<Group> {
    let mut groups = Vec::new();
    while let Ok(message) = channel.receive(Duration::ZERO) {
        let number = u64::from_le_bytes(*message.content.first_chunk().unwrap());
        if !message.fds.is_empty() {
            groups.push(Group { name: "vm1".to_owned(), number, fds: message.fds });
        }
    }
    groups
}

fn journal() -> (Journal, Channel) {
    let (ours, keeper) = Channel::pair().unwrap();
    (Journal::new("vm1", Arc::new(Holder::from(ours)), 8).unwrap(), keeper)
}

#[test]
fn the_last_whole_record_is_read_with_the_descriptors_that_it_names() {
    let (mut journal, keeper) = journal();
    let mut table = Table::default();
    let (end, other) = std::os::unix::net::UnixStream::pair().unwrap();
    table.put(&end).unwrap();
    journal.write(7, function(0), &table, None);
    // The same descriptors: no message.
    journal.write(8, function(1), &table, None);
    let batch = Batch { first: [9; 16], len: 80 };
    journal.write(9, function(2), &table, Some(batch));
    journal.note(Batch { first: [8; 16], len: 40 });
    let held = groups(&keeper);
    assert_eq!(held.len(), 1);
    let kept = read(held).unwrap();
    assert_eq!((kept.function, kept.table.len()), (function(2), 1));
    assert_eq!(kept.batches, [batch, Batch { first: [8; 16], len: 40 }]);
    // A new group came, and the process was killed before it was in the record.
    table.put(&other).unwrap();
    journal.write(10, function(3), &table, None);
    let held = groups(&keeper);
    assert_eq!(held.len(), 1);
    let mut more = vec![Group { name: "vm1".to_owned(), number: 99, fds: Vec::new() }];
    more.extend(held);
    assert_eq!(read(more).unwrap().function, function(3));
}

/// A region of a page, in this file.
fn map(base: u64, file: Option<(RawFd, u64)>) -> MemoryChange {
    MemoryChange::Map { base, len: 4096, rights: Rights::BOTH, file }
}

#[test]
fn changes_of_memory_are_read_with_the_record_before_them_and_cost_the_same_however_many_regions_there_are() {
    const REGIONS: u64 = 20_000;
    let (mut journal, keeper) = journal();
    let (mut table, ram) = (Table::default(), tempfile::tempfile().unwrap());
    assert_eq!(table.put(&ram), Ok(0));
    let regions = |vmm: &mut VmmImage, count: u64| {
        let region = |number| {
            let file = Some((0, number * 4096));
            RegionImage { base: number << 12, len: 4096, read: true, write: true, file }
        };
        vmm.regions = (0..count).map(region).collect();
        vmm.session.set_maps(vmm.regions.iter().map(|region| (region.base, region.len)));
    };
    let mut whole = crate::run::image::tests::function();
    regions(whole.vmm.as_mut().unwrap(), REGIONS);
    let record_bytes = journal.write(1, whole.clone(), &table, None);
    let batch = |number: u8| Some(Batch { first: [number; 16], len: 40 });
    let (fd, first, last) = (ram.as_raw_fd(), 7 << 40, 8 << 40);
    let mut longest = 0;
    for number in 1..=200 {
        let there = journal.append(&[map(first, Some((fd, 8192)))], batch(number)).unwrap();
        let gone = journal.append(&[MemoryChange::Unmap(first, 4096)], batch(number)).unwrap();
        longest = longest.max(there).max(gone);
    }
    println!("a record of {REGIONS} regions has {record_bytes} bytes, a change {longest} at most");
    assert!(longest <= 64, "{longest}");
    assert!(journal.append(&[MemoryChange::Unmap(0, (REGIONS - 1) << 12), map(last, None)], batch(7)).is_some());
    let kept = read(groups(&keeper)).unwrap();
    let vmm = whole.vmm.as_mut().unwrap();
    let absent = RegionImage { base: last, len: 4096, read: true, write: true, file: None };
    vmm.regions = vec![vmm.regions.pop().unwrap(), absent];
    vmm.session.set_maps(vmm.regions.iter().map(|region| (region.base, region.len)));
    assert_eq!((kept.function, kept.batches), (whole, Vec::from_iter(batch(7))));
    // A file that the keeper does not hold takes a whole record.
    assert_eq!(journal.append(&[map(first, Some((fd + 1, 0)))], None), None);
}

#[test]
fn so_many_changes_lie_behind_a_record_that_the_next_one_costs_no_more_than_they_did() {
    let (mut journal, keeper) = journal();
    let function = crate::run::image::tests::function();
    let table = Table::default();
    let record_bytes = journal.write(1, function.clone(), &table, None);
    let change = [map(1 << 40, None), MemoryChange::UnmapAll];
    let appended: Vec<u64> = std::iter::from_fn(|| journal.append(&change, None)).collect();
    let sum: u64 = appended.iter().sum();
    assert!((CHANGES_MAX - 64..=CHANGES_MAX).contains(&sum), "{sum}");
    assert!(record_bytes < sum);
    journal.write(2, function, &table, None);
    assert!(journal.append(&change, None).is_some());
    assert!(read(groups(&keeper)).unwrap().function.vmm.unwrap().regions.is_empty());
}

#[test]
fn a_port_that_finds_the_keeper_full_is_not_kept_until_there_is_room_and_no_old_record_is_taken() {
    let (mut journal, keeper) = journal();
    let (mut table, [file, other]) = (Table::default(), [(); 2].map(|()| tempfile::tempfile().unwrap()));
    table.put(&file).unwrap();
    journal.write(1, function(0), &table, None);
    while journal.holder().hold("other", 0, &[file.as_fd()]).is_ok() {}
    assert_eq!(journal.write(2, function(1), &table, None), read_bytes(&function(1)), "it needs no message");
    table.put(&other).unwrap();
    assert_eq!(journal.write(3, function(2), &table, None), 0);
    assert!(journal.owes() == Again::Soon && journal.lacks.as_ref().unwrap().why.starts_with("the keeper: no answer"));
    assert_eq!(journal.append(&[MemoryChange::UnmapAll], None), None);
    let first = groups(&keeper).remove(0);
    let why = read(vec![first]).unwrap_err();
    assert!(why.contains("it was not kept when the daemon was killed"), "{why}");
    assert_ne!(journal.write(4, function(3), &table, None), 0);
    assert!(journal.owes() != Again::Soon && journal.lacks.is_none());
    assert_eq!(read(groups(&keeper)).unwrap().function, function(3));
    // What can never be kept lets the keeper close what it holds.
    let files: Vec<_> = (0..FDS_MAX).map(|_| tempfile::tempfile().unwrap()).collect();
    files.iter().for_each(|file| _ = table.put(file).unwrap());
    assert_eq!(journal.write(5, function(4), &table, None), 0);
    let lacks = journal.lacks.clone().unwrap();
    assert_eq!((lacks.why.as_str(), lacks.again), ("202 descriptors are too many: at most 199", Again::Changed));
    let message = keeper.receive(Duration::ZERO).unwrap();
    assert_eq!(message.content[..8], u64::MAX.to_le_bytes());
}

/// Its predecessor's record is of what that daemon knew last.
#[test]
fn a_journal_that_finds_the_keeper_full_at_its_first_record_has_its_predecessors_forgotten() {
    let (mut journal, keeper) = journal();
    let file = tempfile::tempfile().unwrap();
    let mut held = vec![Group { name: "vm1".to_owned(), number: 1, fds: Vec::new() }];
    while journal.holder().hold("other", 0, &[file.as_fd()]).is_ok() {}
    assert_eq!(journal.write(2, function(0), &Table::default(), None), 0);
    assert_eq!(journal.owes(), Again::Soon);
    // There is room again: what waits comes first.
    assert!(!groups(&keeper).is_empty());
    assert!(journal.holder().retry());
    let message = keeper.receive(Duration::ZERO).unwrap();
    let (number, name) = message.content.split_first_chunk().unwrap();
    assert_eq!((message.kind, name), (nicety_keeper::kind::FORGET, &b"vm1"[..]));
    held.retain(|group| group.number >= u64::from_le_bytes(*number));
    assert!(held.is_empty());
}

/// The bytes of a record.
fn read_bytes(function: &FunctionImage) -> u64 {
    encode(KIND, PortRecord::NUMBER, &PortRecord { group: 1, function: function.clone(), batch: None }).len() as u64
}

/// A daemon of another build, of which an upgrade was refused, reads such records after a kill. Another form takes another version, and a
/// conversion of this one. Only `NICETY_GOLDEN=write` makes the file of a new version.
#[test]
fn records_of_each_version_are_read_and_this_version_is_written_as_it_was() {
    let file =
        |version: u16| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/kept-v{version}.image"));
    let (group, batch) = (30, Some(Batch { first: [31; 16], len: 32 }));
    let function = crate::run::image::tests::function();
    let region = function.vmm.as_ref().unwrap().regions[0].clone();
    let list = vec![Change::Map(region), Change::Unmap(33, 34), Change::UnmapAll];
    let changes = postcard::to_allocvec(&Changes { list: list.clone(), batch }).unwrap();
    let record = PortRecord { group, function: function.clone(), batch };
    let today = [encode(KIND, PortRecord::NUMBER, &record), changes.clone()].concat();
    let first = encode(KIND, Record1::NUMBER, &Record1 { group, function, batch });
    if std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
        for (version, bytes) in [(Record1::NUMBER, &first), (PortRecord::NUMBER, &today)] {
            if !file(version).exists() {
                std::fs::write(file(version), bytes).unwrap();
            }
        }
    }
    assert_eq!(std::fs::read(file(1)).unwrap(), first);
    assert_eq!(std::fs::read(file(PortRecord::NUMBER)).unwrap(), today);
    assert_eq!(decode::<PortRecord>(KIND, &first), Ok(record.clone()));
    let (bytes, behind) = today.split_at(today.len() - changes.len());
    assert_eq!(decode::<PortRecord>(KIND, bytes), Ok(record));
    let (read, rest) = postcard::take_from_bytes::<Changes>(behind).unwrap();
    assert_eq!((read, rest), (Changes { list, batch }, &[][..]));
}

/// A journal of an earlier program has shorter halves, and nothing behind its record.
#[test]
fn a_journal_of_the_first_version_is_read() {
    let function = crate::run::image::tests::function();
    let record = Record1 { group: 5, function: function.clone(), batch: None };
    let bytes = encode(KIND, Record1::NUMBER, &record);
    let file = shared_file("nicety-journal", rings_at(HALF_1) + 8).unwrap();
    let map = mapped(&file, 0, rings_at(HALF_1) + 8).unwrap();
    map.write(HEAD + HALF_1, &bytes).unwrap();
    map.write(rings_at(HALF_1), &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let head = head(&map).unwrap();
    head.store_u32(LENGTHS[1], bytes.len() as u32);
    head.store_u32(VALID, 2);
    let kept = read(vec![Group { name: "vm1".to_owned(), number: 5, fds: vec![file] }]).unwrap();
    assert_eq!((kept.function, kept.rings), (function, vec![1, 2, 3, 4, 5, 6, 7, 8]));
}
