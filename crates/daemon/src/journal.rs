//! The part of a port that survives its process: a record in a memory file, and a group of descriptors. The keeper holds both
//! (docs/adr/0020). If the daemon is killed, the next one reads the record and goes on with the same VMM.
//!
//! ```text
//! 0     which half is valid (0: none, 1, 2) │ bytes of each half │ noted batch: is there one, its bytes, its first header
//! 4096  half 1: a Record                      half 2: a Record
//! then  the positions of rings, if the adapter keeps any
//!
//! The head also has the answers to the last batch, and how much of them was sent (`nicety_peer::Tally`).
//! ```
//! A record is written at the moment something in it changes: a session begins, memory is mapped, an eventfd is connected, the
//! configuration space is written. Never for a frame. The new one is written into the other half, then one store makes it valid, so that
//! a kill between any two instructions leaves a whole record.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_keeper::{Group, Holder};
use nicety_memory::{Map, Mapping, Rights, Window, shared_file};
use nicety_peer::{Table, Tally};
use nicety_vfio_user::Batch;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::image::FunctionImage;

const KIND: &str = "nicety-kept";
/// Bytes of a half. Only pages that were written take memory.
const HALF: u64 = 1 << 20;
const HEAD: u64 = 4096;
/// Offset of the positions of rings.
const RINGS: u64 = HEAD + 2 * HALF;
/// Most bytes of them.
const RINGS_MOST: u64 = 1 << 20;
/// Offsets in the head.
const VALID: usize = 0;
const LENGTHS: [usize; 2] = [4, 8];
const NOTED: usize = 12;
const NOTED_BYTES: usize = 16;
const NOTED_FIRST: usize = 20;

/// A port with its VMM, but for what changes with every frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// The number of the group of descriptors that it refers to.
    group: u64,
    function: FunctionImage,
    /// Messages whose effect is in it.
    batch: Option<Batch>,
}

impl Version for Record {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

/// The journal of a port.
#[derive(Debug)]
pub struct Journal {
    name: String,
    holder: Arc<Holder>,
    file: OwnedFd,
    map: Map,
    /// The part for the positions of rings, if its adapter keeps any.
    rings: Option<Arc<Map>>,
    /// Counts what a session sends.
    tally: Option<Arc<Tally>>,
    /// The number of the group that the record refers to. 0: none.
    group: u64,
    /// The descriptors of the group, by their numbers in this process.
    members: Vec<RawFd>,
    /// The record's session has exchanged versions: a VMM does that once.
    pub is_greeted: bool,
    /// The keeper does not hold the port: why was logged.
    is_broken: bool,
}

/// A port of a daemon that was killed.
#[derive(Debug)]
pub struct Kept {
    /// Its function and VMM.
    pub function: FunctionImage,
    /// Their descriptors.
    pub table: Table,
    /// Messages that were handled and may be in the socket still.
    pub batches: Vec<Batch>,
    /// The positions of its rings.
    pub rings: Vec<u8>,
    /// The bytes that were sent of the answers to the last batch.
    pub tally: Option<Arc<Tally>>,
}

impl Journal {
    /// The journal of a new port.
    ///
    /// # Errors
    /// The system's.
    pub fn new(name: &str, holder: Arc<Holder>, rings_bytes: u64) -> std::io::Result<Self> {
        let file = shared_file("nicety-journal", RINGS + rings_bytes).map_err(std::io::Error::other)?;
        let map = mapped(&file, 0, RINGS).map_err(std::io::Error::other)?;
        let rings = (rings_bytes > 0).then(|| mapped(&file, RINGS, rings_bytes).map(Arc::new)).transpose();
        let (name, rings) = (name.to_owned(), rings.map_err(std::io::Error::other)?);
        let tally = Tally::of(&file).ok().map(Arc::new);
        let members = Vec::new();
        Ok(Self { name, holder, file, map, rings, tally, group: 0, members, is_greeted: false, is_broken: false })
    }

    /// Counts what a session of the port sends. `None`: its page could not be mapped.
    pub fn tally(&self) -> Option<Arc<Tally>> {
        self.tally.clone()
    }

    /// The part for the positions of rings, if its adapter keeps any.
    pub fn rings(&self) -> Option<&Arc<Map>> {
        self.rings.as_ref()
    }

    /// Keeps the port as it is now. `number` is a time in nanoseconds: higher than those of earlier groups of this name. `is_renewed`: a
    /// descriptor may be another one although it has the same number.
    pub fn write(
        &mut self,
        number: u64,
        function: FunctionImage,
        table: &Table,
        batch: Option<Batch>,
        is_renewed: bool,
    ) {
        if self.is_broken {
            return;
        }
        if let Err(why) = self.try_write(number, function, table, batch, is_renewed) {
            self.is_broken = true;
            warn!(port = self.name, "its VM would not survive if this process were killed: {why}");
            self.forget();
        }
    }

    fn try_write(
        &mut self,
        number: u64,
        function: FunctionImage,
        table: &Table,
        batch: Option<Batch>,
        is_renewed: bool,
    ) -> Result<(), String> {
        let members = table.origins();
        let is_new = is_renewed || self.group == 0 || members != self.members;
        let group = if is_new { number.max(self.group + 1) } else { self.group };
        if is_new {
            let fds: Vec<BorrowedFd<'_>> = [self.file.as_fd()].into_iter().chain(table.iter()).collect();
            self.holder.hold(&self.name, group, &fds).map_err(|error| format!("the keeper: {error}"))?;
            self.members = members;
        }
        let bytes = encode(KIND, Record::NUMBER, &Record { group, function, batch });
        if bytes.len() as u64 > HALF {
            return Err(format!("{} bytes of state are too many", bytes.len()));
        }
        let head = head(&self.map)?;
        // The kill may come at any store: the valid half is untouched until the last one.
        let other = if head.load_u32(VALID) == 1 { 1 } else { 0 };
        let at = HEAD + other as u64 * HALF;
        self.map.write(at, &bytes).map_err(|_| "writing the journal")?;
        head.store_u32(LENGTHS[other], bytes.len() as u32);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        head.store_u32(VALID, other as u32 + 1);
        self.group = group;
        if is_new {
            self.holder.forget(&self.name, group).map_err(|error| format!("the keeper: {error}"))?;
        }
        Ok(())
    }

    /// Notes messages that are about to be answered and have changed nothing that is kept.
    pub fn note(&self, batch: Batch) {
        let Ok(head) = head(&self.map) else { return };
        head.store_u32(NOTED, 0);
        head.write(NOTED_FIRST, &batch.first);
        head.store_u32(NOTED_BYTES, batch.len);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        head.store_u32(NOTED, 1);
    }

    /// The keeper holds nothing of the port any more.
    pub fn forget(&self) {
        // Without a keeper nothing is held.
        let _ = self.holder.forget(&self.name, u64::MAX);
    }
}

/// Reads the journal of a port that was held in these groups. The error is a sentence for a person.
pub fn read(groups: Vec<Group>) -> Result<Kept, String> {
    let mut last = None;
    for Group { number, mut fds, .. } in groups {
        if fds.is_empty() {
            continue;
        }
        let file = fds.remove(0);
        // Each group has the same journal, which names one of them.
        let Ok((record, batches)) = record(&file) else { continue };
        if record.group == number {
            last = Some((record, batches, file, fds));
        }
    }
    let (record, batches, file, fds) = last.ok_or("its journal is damaged")?;
    let mut rings = vec![
        0;
        File::from(file.try_clone().map_err(|error| error.to_string())?)
            .metadata()
            .map_or(0, |file| file.len())
            .saturating_sub(RINGS)
            .min(RINGS_MOST) as usize
    ];
    if !rings.is_empty() {
        mapped(&file, RINGS, rings.len() as u64)?.read(0, &mut rings).map_err(|_| "reading the journal")?;
    }
    let mut table = Table::default();
    fds.into_iter().for_each(|fd| table.push(fd));
    let tally = Tally::of(&file).ok().map(Arc::new);
    Ok(Kept { function: record.function, table, batches, rings, tally })
}

fn record(file: &OwnedFd) -> Result<(Record, Vec<Batch>), String> {
    let map = mapped(file, 0, RINGS)?;
    let head = head(&map)?;
    let half = match head.load_u32(VALID) {
        1 => 0,
        2 => 1,
        _ => return Err("its journal is empty".into()),
    };
    let len = u64::from(head.load_u32(LENGTHS[half])).min(HALF);
    let mut bytes = vec![0; len as usize];
    map.read(HEAD + half as u64 * HALF, &mut bytes).map_err(|_| "reading the journal")?;
    let record: Record = decode(KIND, &bytes).map_err(|error| error.to_string())?;
    let mut batches: Vec<Batch> = record.batch.into_iter().collect();
    if head.load_u32(NOTED) == 1 {
        batches.push(Batch { first: head.read(NOTED_FIRST), len: head.load_u32(NOTED_BYTES) });
    }
    Ok((record, batches))
}

fn mapped(file: &OwnedFd, offset: u64, len: u64) -> Result<Map, String> {
    let words = |error: &dyn std::fmt::Display| format!("mapping the journal: {error}");
    let copy = file.try_clone().map_err(|error| words(&error))?;
    let mapping = Mapping::of_file(copy, offset, len, true).map_err(|error| words(&error))?;
    Map::default().with(0, Arc::new(mapping), Rights::BOTH).map_err(|error| words(&error))
}

fn head(map: &Map) -> Result<Window<'_>, String> {
    map.window(0, HEAD as u32, Rights::BOTH).map_err(|_| "the journal is not mapped".into())
}

#[cfg(test)]
mod tests {
    use nicety_keeper::Channel;

    use super::*;

    fn function(listener: u32) -> FunctionImage {
        FunctionImage { listener, page: None, empty_page: None, vmm: None }
    }

    fn groups(channel: &Channel) -> Vec<Group> {
        let mut groups = Vec::new();
        while let Ok(message) = channel.receive(std::time::Duration::ZERO) {
            let number = u64::from_le_bytes(*message.content.first_chunk().unwrap());
            if !message.fds.is_empty() {
                groups.push(Group { name: "vm1".to_owned(), number, fds: message.fds });
            }
        }
        groups
    }

    #[test]
    fn the_last_whole_record_is_read_with_the_descriptors_that_it_names() {
        let (ours, keeper) = Channel::pair().unwrap();
        let mut journal = Journal::new("vm1", Arc::new(Holder::from(ours)), 8).unwrap();
        let mut table = Table::default();
        let (end, other) = std::os::unix::net::UnixStream::pair().unwrap();
        table.put(&end).unwrap();
        journal.write(7, function(0), &table, None, false);
        // The same descriptors: no message.
        journal.write(8, function(1), &table, None, false);
        let batch = Batch { first: [9; 16], len: 80 };
        journal.write(9, function(2), &table, Some(batch), false);
        journal.note(Batch { first: [8; 16], len: 40 });
        let held = groups(&keeper);
        assert_eq!(held.len(), 1);
        let kept = read(held).unwrap();
        assert_eq!((kept.function, kept.table.len()), (function(2), 1));
        assert_eq!(kept.batches, [batch, Batch { first: [8; 16], len: 40 }]);
        // A new group came, and the process was killed before it was in the record.
        table.put(&other).unwrap();
        journal.write(10, function(3), &table, None, false);
        let held = groups(&keeper);
        assert_eq!(held.len(), 1);
        let mut more = vec![Group { name: "vm1".to_owned(), number: 99, fds: Vec::new() }];
        more.extend(held);
        assert_eq!(read(more).unwrap().function, function(3));
    }
}
