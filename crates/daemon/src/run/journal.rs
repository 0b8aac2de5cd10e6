//! The part of a port that survives its process: a record in a memory file, and a group of descriptors. The keeper holds both
//! (docs/adr/0022). If the daemon is killed, the next one reads the record and goes on with the same VMM.
//!
//! ```text
//! 0     which half is valid (0: none, 1, 2) │ bytes of each record │ noted batch: is there one, its bytes, its first header
//! 36    bytes of the changes behind each record
//! 44    a time since which all messages have come that wait, in milliseconds (0: not known)
//! 4096  half 1: a PortRecord, then Changes      half 2: the same
//! then  the positions of rings, if the adapter keeps any
//!
//! The head also has the answers to the last batch, and how much of them was sent (`nicety_peer::Tally`).
//! ```
//! A record is written at the moment something in it changes: a session begins, a file is mapped, an eventfd is connected, the
//! configuration space is written. Never for a frame. The new one is written into the other half, then one store makes it valid, so that
//! a kill between any two instructions leaves a whole record.
//!
//! A vIOMMU maps and unmaps thousands of times a second. If that is all that has changed, it is put behind the record, and one store of
//! the changes' length makes it valid: a change takes some 40 bytes, however many regions there are.
//!
//! While the port cannot be kept as it is, no record is valid: an old one would have the next daemon use memory that its VMM has taken
//! back.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode};
use nicety_keeper::{ChannelError, FDS_MAX, Group, Holder, Renewal};
use nicety_memory::{Map, Mapping, Rights, Window, shared_file};
use nicety_peer::{Origin, Table, Tally};
use nicety_vfio_user::Batch;
use serde::{Deserialize, Serialize};

use crate::run::image::{FunctionImage, RegionImage};

const KIND: &str = "nicety-kept";
/// Bytes of a half: room for a record of as many regions as a VMM may map. Only pages that were written take memory.
const HALF: u64 = 4 << 20;
/// The same in journals whose records have version 1.
const HALF_1: u64 = 1 << 20;
const HEAD: u64 = 4096;
/// Offset of the positions of rings.
const RINGS: u64 = rings_at(HALF);
/// Most bytes of them.
const RINGS_MAX: u64 = 1 << 20;
/// Offsets in the head.
const VALID: usize = 0;
const LENGTHS: [usize; 2] = [4, 8];
const NOTED: usize = 12;
const NOTED_BYTES: usize = 16;
const NOTED_FIRST: usize = 20;
const CHANGES: [usize; 2] = [36, 40];
const LOOKED: usize = 44;
/// Most bytes of changes behind a shorter record. Behind a longer one there are as many as the record has: so a new record, which takes
/// their place, costs no more than they did.
const CHANGES_MAX: u64 = 64 << 10;

const fn rings_at(half: u64) -> u64 {
    HEAD + 2 * half
}

/// A port with its VMM, but for what changes with every frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PortRecord {
    /// The number of the group of descriptors that it refers to.
    group: u64,
    function: FunctionImage,
    /// Messages whose effect is in it.
    batch: Option<Batch>,
}

/// Version 1: no changes lie behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record1 {
    group: u64,
    function: FunctionImage,
    batch: Option<Batch>,
}

impl Version for PortRecord {
    const NUMBER: u16 = 2;
    type Before = Record1;

    fn from_before(Record1 { group, function, batch }: Record1) -> Result<Self, RestoreError> {
        Ok(Self { group, function, batch })
    }
}

impl Version for Record1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

/// Changes of a VMM's memory, behind a record. Their form is the record's: another one takes another version of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Changes {
    list: Vec<Change>,
    /// Messages whose effect they are.
    batch: Option<Batch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Change {
    Map(RegionImage),
    /// First address and bytes.
    Unmap(u64, u64),
    UnmapAll,
}

/// A change of a VMM's memory, in files that are mapped already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryChange {
    /// A region is there.
    Map {
        /// First bus address.
        base: u64,
        /// Bytes.
        len: u64,
        /// A device's rights.
        rights: Rights,
        /// Its file's number in this process, and the offset there in bytes. `None`: announced and not shared.
        file: Option<(RawFd, u64)>,
    },
    /// The regions within this range have gone: first address, and bytes.
    Unmap(u64, u64),
    /// All regions have gone.
    UnmapAll,
}

/// When it is worth another try to keep a port, although nothing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// In some milliseconds from now.
    Soon,
    /// When the port has been calm for a while.
    Later,
    /// Not before something changes.
    Changed,
}

/// The reason why a port would not survive a kill now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotKept {
    /// The reason in words.
    pub why: String,
    /// When to try again.
    pub again: Again,
}

impl NotKept {
    /// Not before something changes.
    pub fn lasting(why: impl Into<String>) -> Self {
        Self { why: why.into(), again: Again::Changed }
    }
}

impl From<ChannelError> for NotKept {
    fn from(error: ChannelError) -> Self {
        let again = match error {
            ChannelError::NotHeld(_) => Again::Later,
            error if error.is_passing() => Again::Soon,
            _ => Again::Changed,
        };
        Self { why: format!("the keeper: {error}"), again }
    }
}

/// Groups of descriptors that a port may send to the keeper, as a token bucket. A VMM can change its interrupts and its memory without end.
#[derive(Clone, Copy, Debug)]
struct Groups {
    left: u32,
    at_ns: u64,
    /// None was left, and it is not half full again.
    is_exceeded: bool,
}

impl Groups {
    /// Most at once: a VM that starts changes its interrupts some hundred times.
    const MAX: u32 = if cfg!(test) { 400 } else { 1000 };
    /// Afterwards one in this time.
    const PERIOD_NS: u64 = if cfg!(test) { 50_000_000 } else { 20_000_000 };

    fn new() -> Self {
        Self { left: Self::MAX, at_ns: 0, is_exceeded: false }
    }

    /// Whether another group may be sent.
    fn is_left(&mut self, now_ns: u64) -> bool {
        let fresh = now_ns.saturating_sub(self.at_ns) / Self::PERIOD_NS;
        if fresh > 0 {
            self.left = self.left.saturating_add(u32::try_from(fresh).unwrap_or(Self::MAX)).min(Self::MAX);
            self.at_ns = now_ns;
        }
        self.is_exceeded = if self.is_exceeded { self.left < Self::MAX / 2 } else { self.left == 0 };
        !self.is_exceeded
    }

    /// The VMM goes on although it has exceeded them: it is not calm.
    fn goes_on(&mut self, now_ns: u64) {
        if self.is_exceeded {
            (self.left, self.at_ns) = (0, now_ns);
        }
    }

    fn exceeded() -> NotKept {
        let a_second = 1_000_000_000 / Self::PERIOD_NS;
        let why =
            format!("its VMM changes its interrupts or its memory too often: more than {a_second} times a second");
        NotKept { why, again: Again::Later }
    }
}

impl From<&'static str> for NotKept {
    fn from(why: &'static str) -> Self {
        Self::lasting(why)
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
    /// The number of the last group that the keeper has got. 0: none.
    group: u64,
    /// The descriptors of the group, by their numbers in this process. Empty: the keeper holds none.
    members: Vec<Origin>,
    /// The keeper may hold something of the port.
    may_be_held: bool,
    /// Groups that may still be sent.
    groups: Groups,
    /// The record's session has exchanged versions: a VMM does that once.
    pub is_greeted: bool,
    /// The reason why no record is valid.
    pub lacks: Option<NotKept>,
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
    /// A time since which all messages have come that wait: [`Clock::monotonic_ms`](crate::clock::Clock::monotonic_ms).
    pub looked_ms: Option<u32>,
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
        Ok(Self {
            name,
            holder,
            file,
            map,
            rings,
            tally,
            group: 0,
            members: Vec::new(),
            // A predecessor's.
            may_be_held: true,
            groups: Groups::new(),
            is_greeted: false,
            lacks: None,
        })
    }

    /// Counts what a session of the port sends. `None`: its page could not be mapped.
    pub fn tally(&self) -> Option<Arc<Tally>> {
        self.tally.clone()
    }

    /// The part for the positions of rings, if its adapter keeps any.
    pub fn rings(&self) -> Option<&Arc<Map>> {
        self.rings.as_ref()
    }

    /// The keeper.
    pub fn holder(&self) -> &Arc<Holder> {
        &self.holder
    }

    /// When it is to be written again, or the [holder](Journal::holder) to be asked to retry, although nothing changes.
    pub fn owes(&self) -> Again {
        match &self.lacks {
            _ if self.holder.owes() => Again::Soon,
            Some(lacks) => lacks.again,
            None => Again::Changed,
        }
    }

    /// Descriptors that the keeper holds already: the table of the next [write](Journal::write) need not have them.
    pub fn held(&self) -> &[Origin] {
        let is_held = self.lacks.is_none() && self.holder.renews() && self.holder.lost(&self.name).is_none();
        if is_held { &self.members } else { &[] }
    }

    /// Whether a write would find that the port still may not be kept: it is not calm, or the keeper has not closed what it held.
    /// `is_change`: something has changed, and this is not only another try.
    pub fn waits(&mut self, now_ns: u64, is_change: bool) -> bool {
        if is_change {
            self.groups.goes_on(now_ns);
        }
        let is_later = self.lacks.as_ref().is_some_and(|lacks| lacks.again == Again::Later);
        is_later && (!self.groups.is_left(now_ns) || !self.holder.may_hold(&self.name))
    }

    /// Looks whether the keeper still holds what it was sent.
    pub fn confirm(&mut self) {
        if self.lacks.is_none()
            && let Some(lost) = self.holder.lost(&self.name)
        {
            self.lack(lost.into());
        }
    }

    /// Keeps the port as it is now. `number` is a time in nanoseconds: higher than those of earlier groups of this name. Returns the bytes
    /// written; 0 if it [lacks](Journal::lacks) something.
    pub fn write(&mut self, number: u64, function: FunctionImage, table: &Table, batch: Option<Batch>) -> u64 {
        match self.try_write(number, function, table, batch) {
            Ok(bytes) => {
                self.lacks = None;
                bytes
            }
            Err(lacks) => {
                self.lack(lacks);
                0
            }
        }
    }

    /// The port cannot be kept as it is now.
    pub fn lack(&mut self, lacks: NotKept) {
        if let Ok(head) = head(&self.map) {
            head.store_u32(VALID, 0);
        }
        // A record of a daemon before this one is valid for what it held, and is written no more. And a connection that the keeper holds
        // would hide its end from the VMM.
        if lacks.again != Again::Soon || self.members.is_empty() {
            if self.may_be_held {
                self.forget();
                self.may_be_held = false;
            }
            self.members.clear();
        }
        self.lacks = Some(lacks);
    }

    fn try_write(
        &mut self,
        number: u64,
        function: FunctionImage,
        table: &Table,
        batch: Option<Batch>,
    ) -> Result<u64, NotKept> {
        let members = table.origins();
        let is_new = self.lacks.is_some() || self.members.is_empty() || members != self.members;
        let group = if is_new { number.max(self.group + 1) } else { self.group };
        let bytes = encode(KIND, PortRecord::NUMBER, &PortRecord { group, function, batch });
        if bytes.len() as u64 > HALF {
            return Err(NotKept::lasting(format!("{} bytes of state are too many", bytes.len())));
        }
        if members.len() >= FDS_MAX {
            let words = format!("{} descriptors are too many: at most {}", members.len(), FDS_MAX - 1);
            return Err(NotKept::lasting(words));
        }
        if is_new {
            if !self.groups.is_left(number) {
                return Err(Groups::exceeded());
            }
            self.send(group, &members, table)?;
            self.groups.left -= 1;
            (self.members, self.group) = (members, group);
            self.may_be_held = true;
        }
        let head = head(&self.map)?;
        // The kill may come at any store: the valid half is untouched until the last one.
        let other = if head.load_u32(VALID) == 1 { 1 } else { 0 };
        let at = HEAD + other as u64 * HALF;
        self.map.write(at, &bytes).map_err(|_| "writing the journal")?;
        head.store_u32(LENGTHS[other], bytes.len() as u32);
        head.store_u32(CHANGES[other], 0);
        fence(Ordering::Release);
        head.store_u32(VALID, other as u32 + 1);
        if is_new {
            // It waits, if there is no room: until then the keeper holds both.
            let _without_a_keeper = self.holder.forget(&self.name, group);
        }
        Ok(bytes.len() as u64)
    }

    /// Sends a group to the keeper: only what it does not hold yet.
    fn send(&self, group: u64, members: &[Origin], table: &Table) -> Result<(), ChannelError> {
        let fds: Vec<BorrowedFd<'_>> = table.iter().collect();
        if !table.is_beside() {
            let fds: Vec<BorrowedFd<'_>> = [self.file.as_fd()].into_iter().chain(fds).collect();
            return self.holder.hold(&self.name, group, &fds);
        }
        // The journal's file is the first of each group.
        let older: BTreeMap<&Origin, u16> = self.members.iter().zip(1..).collect();
        let places: Vec<Option<u16>> =
            std::iter::once(Some(0)).chain(members.iter().map(|member| older.get(member).copied())).collect();
        self.holder.renew(&self.name, group, Renewal { from: self.group, places: &places }, &fds)
    }

    /// Keeps changes of the VMM's memory, where nothing else has changed. Returns the bytes written; `None` if a whole record must be
    /// written instead.
    pub fn append(&self, changes: &[MemoryChange], batch: Option<Batch>) -> Option<u64> {
        if self.lacks.is_some() {
            return None;
        }
        let list = changes.iter().map(|change| self.change(change)).collect::<Option<_>>()?;
        let bytes = postcard::to_allocvec(&Changes { list, batch }).ok()?;
        let head = head(&self.map).ok()?;
        let half = (head.load_u32(VALID) as usize).checked_sub(1).filter(|half| *half < 2)?;
        let (record, before) = (u64::from(head.load_u32(LENGTHS[half])), u64::from(head.load_u32(CHANGES[half])));
        let after = before + bytes.len() as u64;
        if after > record.max(CHANGES_MAX).min(HALF.saturating_sub(record)) {
            return None;
        }
        self.map.write(HEAD + half as u64 * HALF + record + before, &bytes).ok()?;
        fence(Ordering::Release);
        head.store_u32(CHANGES[half], after as u32);
        Some(bytes.len() as u64)
    }

    /// A change with its file's index among the descriptors that the keeper holds.
    fn change(&self, change: &MemoryChange) -> Option<Change> {
        Some(match *change {
            MemoryChange::Map { base, len, rights: Rights { read, write }, file } => {
                let index = |fd| u32::try_from(self.members.iter().position(|(member, _)| *member == fd)?).ok();
                let file = match file {
                    Some((fd, offset)) => Some((index(fd)?, offset)),
                    None => None,
                };
                Change::Map(RegionImage { base, len, read, write, file })
            }
            MemoryChange::Unmap(base, len) => Change::Unmap(base, len),
            MemoryChange::UnmapAll => Change::UnmapAll,
        })
    }

    /// Notes messages that are about to be answered and have changed nothing that is kept.
    pub fn note(&self, batch: Batch) {
        let Ok(head) = head(&self.map) else { return };
        head.store_u32(NOTED, 0);
        head.write(NOTED_FIRST, &batch.first);
        head.store_u32(NOTED_BYTES, batch.len);
        fence(Ordering::Release);
        head.store_u32(NOTED, 1);
    }

    /// Notes a time since which all messages have come that wait.
    pub fn note_look(&self, ms: u32) {
        if let Ok(head) = head(&self.map) {
            head.store_u32(LOOKED, ms);
        }
    }

    /// The keeper holds nothing of the port any more.
    pub fn forget(&self) {
        // Without a keeper nothing is held.
        let _ = self.holder.forget(&self.name, u64::MAX);
    }
}

/// Reads the journal of a port that was held in these groups. The error is a sentence for a person.
pub fn read(groups: Vec<Group>) -> Result<Kept, String> {
    let (mut last, mut why) = (None, "the keeper held none of its descriptors".to_owned());
    for Group { number, mut fds, .. } in groups {
        if fds.is_empty() {
            continue;
        }
        let file = fds.remove(0);
        // Each group has the same journal, which names one of them.
        match record(&file) {
            Ok((record, batches, rings)) if record.group == number => last = Some((record, batches, rings, file, fds)),
            Ok(_) => why = "the keeper did not hold its last descriptors".to_owned(),
            Err(error) => why = error,
        }
    }
    let (record, batches, rings, file, fds) = last.ok_or(why)?;
    let mut table = Table::default();
    fds.into_iter().for_each(|fd| table.push(fd));
    let tally = Tally::of(&file).ok().map(Arc::new);
    let looked_ms = looked(&file).filter(|ms| *ms != 0);
    Ok(Kept { function: record.function, table, batches, rings, tally, looked_ms })
}

/// See [`Journal::note_look`].
fn looked(file: &OwnedFd) -> Option<u32> {
    let map = mapped(file, 0, HEAD).ok()?;
    head(&map).ok().map(|head| head.load_u32(LOOKED))
}

/// Bytes of the valid record of a journal, and of the changes behind it.
#[cfg(test)]
pub fn lengths(file: &OwnedFd) -> (u32, u32) {
    let map = mapped(file, 0, RINGS).unwrap();
    let head = head(&map).unwrap();
    let half = head.load_u32(VALID) as usize - 1;
    (head.load_u32(LENGTHS[half]), head.load_u32(CHANGES[half]))
}

/// The record with the changes behind it, the last batches, and the positions of rings.
fn record(file: &OwnedFd) -> Result<(PortRecord, Vec<Batch>, Vec<u8>), String> {
    let len = File::from(file.try_clone().map_err(|error| error.to_string())?).metadata().map_or(0, |file| file.len());
    let half_bytes = if len < RINGS { HALF_1 } else { HALF };
    let map = mapped(file, 0, rings_at(half_bytes))?;
    let head = head(&map)?;
    let half = match head.load_u32(VALID) {
        1 => 0,
        2 => 1,
        _ => return Err("its journal is empty: it was not kept when the daemon was killed".into()),
    };
    let bytes = |at: u64, len: u32, most: u64| {
        let mut bytes = vec![0; u64::from(len).min(most) as usize];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        let at = HEAD + half as u64 * half_bytes + at;
        map.read(at, &mut bytes).map(|()| bytes).map_err(|_| "reading the journal".to_owned())
    };
    let record_len = head.load_u32(LENGTHS[half]);
    let damaged = |error: RestoreError| format!("its journal: {error}");
    let mut record: PortRecord = decode(KIND, &bytes(0, record_len, half_bytes)?).map_err(damaged)?;
    let most = half_bytes.saturating_sub(record_len.into());
    apply(&mut record, &bytes(record_len.into(), head.load_u32(CHANGES[half]), most)?)?;
    let mut batches: Vec<Batch> = record.batch.into_iter().collect();
    if head.load_u32(NOTED) == 1 {
        batches.push(Batch { first: head.read(NOTED_FIRST), len: head.load_u32(NOTED_BYTES) });
    }
    let rings_at = rings_at(half_bytes);
    let mut rings = vec![0; len.saturating_sub(rings_at).min(RINGS_MAX) as usize];
    if !rings.is_empty() {
        mapped(file, rings_at, rings.len() as u64)?.read(0, &mut rings).map_err(|_| "reading the journal")?;
    }
    Ok((record, batches, rings))
}

/// Makes the changes that lie behind a record.
fn apply(record: &mut PortRecord, mut bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Ok(());
    }
    let vmm = record.function.vmm.as_mut().ok_or("its journal has changes of no VM's memory")?;
    let mut regions: BTreeMap<u64, RegionImage> = vmm.regions.drain(..).map(|region| (region.base, region)).collect();
    while !bytes.is_empty() {
        let (changes, rest) =
            postcard::take_from_bytes::<Changes>(bytes).map_err(|error| format!("its journal: {error}"))?;
        bytes = rest;
        record.batch = changes.batch.or(record.batch);
        for change in changes.list {
            match change {
                Change::Map(region) => _ = regions.insert(region.base, region),
                Change::Unmap(base, len) => {
                    let end = base.saturating_add(len);
                    let is_within = |base: &u64, region: &mut RegionImage| base.saturating_add(region.len) <= end;
                    regions.extract_if(base..end, is_within).for_each(drop);
                }
                Change::UnmapAll => regions.clear(),
            }
        }
    }
    vmm.session.set_maps(regions.values().map(|region| (region.base, region.len)));
    vmm.regions = regions.into_values().collect();
    Ok(())
}

fn mapped(file: &OwnedFd, offset: u64, len: u64) -> Result<Map, String> {
    let words = |error: &dyn std::fmt::Display| format!("mapping the journal: {error}");
    let copy = file.try_clone().map_err(|error| words(&error))?;
    let mapping = Mapping::of_file(copy, offset, len, true).map_err(|error| words(&error))?;
    Map::default().with(0, Arc::new(mapping), Rights::BOTH).map_err(|error| words(&error))
}

fn head(map: &Map) -> Result<Window<'_>, &'static str> {
    map.window(0, HEAD as u32, Rights::BOTH).map_err(|_| "the journal is not mapped")
}

#[cfg(test)]
#[path = "journal_test.rs"]
mod tests;
