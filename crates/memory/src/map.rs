//! The memory that a device may access: bus addresses mapped to regions.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use vm_memory::volatile_memory::VolatileSlice;

use crate::dirty_log::DirtyLog;
use crate::error::{MAX_BYTES, MappingError};
use crate::files::Piece;
use crate::mapping::Mapping;
use crate::misses::Misses;
use crate::prefetch::{self, Touch};
use crate::refusals::{Refusal, Refusals};
use crate::region::{Region, Rights};
use crate::span::Span;
use crate::tape::Tape;
use crate::touch;
use crate::tree::{Sums, Tree};

/// Most regions of one map. QEMU has fewer than 20 without an IOMMU; libvfio-user's default limit is the same.
pub const MAX_REGIONS: usize = 65_535;

/// Most regions that one range may lie in: a guest chooses its length, a VMM the number of regions. A ring of 1 MiB behind an IOMMU
/// lies in 256.
const REGIONS_OF_A_RANGE: usize = 1024;

/// Number of files that [`Map::is_blank`] checks.
const BLANK_FILES: usize = 16;

/// A range that exists in the guest but is not mapped here: fetch it, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// First bus address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// Why an access to guest memory did not happen. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not mapped, or not allowed: no RAM, a hole, a device's own registers, a read-only region.
    #[error("DMA to {address:#x} ({len} bytes) is not guest memory, or not allowed")]
    Refused {
        /// First bus address.
        address: u64,
        /// Bytes.
        len: u32,
    },
    /// Guest memory that was not shared with us.
    #[error("guest memory at {:#x} is not shared (QEMU: memory-backend-memfd,share=on)", .0.address)]
    Absent(Absent),
}

/// Why a region was refused.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It overlaps another region.
    #[error("memory region {base:#x}+{len:#x} overlaps one that is mapped already")]
    Overlap {
        /// First bus address.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// It wraps around the address space, or is empty.
    #[error("memory region {base:#x}+{len:#x} is empty or ends beyond the address space")]
    Bounds {
        /// First bus address.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// There is no region with exactly this range.
    #[error("no memory region lies exactly at {base:#x}+{len:#x}")]
    Unknown {
        /// First bus address.
        base: u64,
        /// Bytes.
        len: u64,
    },
    /// More regions than [`MAX_REGIONS`].
    #[error("more than {MAX_REGIONS} memory regions")]
    TooMany,
    /// More bytes than [`MAX_BYTES`].
    #[error("more than {} TiB of memory", MAX_BYTES >> 40)]
    TooMuch,
    /// The operating system's error.
    #[error(transparent)]
    Mapping(#[from] MappingError),
}

/// One region of a map.
#[derive(Clone, Copy, Debug)]
pub struct RegionView<'a> {
    /// First bus address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// A device's rights to it.
    pub rights: Rights,
    /// Its file, and its offset there in bytes. `None` if it was announced and not shared, or is private.
    pub file: Option<(BorrowedFd<'a>, u64)>,
    /// The serial number of its file's descriptor in this process, 0 without a file.
    pub serial: u64,
}

/// The memory that one device may reach. Immutable; see the crate's page.
#[derive(Debug, Default)]
pub struct Map {
    regions: Tree,
    sums: Sums,
    /// The mappings of its regions, with the number of regions of each.
    mappings: Vec<(Arc<Mapping>, usize)>,
    /// Unique for each map; clones share it, because they have the same regions.
    id: u64,
    /// The index of the last region found, in a small map.
    last: AtomicUsize,
    /// Logs the pages that were translated for writing.
    log: Option<Arc<DirtyLog>>,
    /// Counts the accesses that were refused.
    refusals: Option<Arc<Refusals>>,
    /// Asks for addresses that are not translated yet.
    misses: Option<Arc<Misses>>,
    /// Tapes what is read and written. The map has its regions here then, and `regions` is empty: so every access takes the path for a
    /// range that is not in one region, and a map without a tape is not asked whether it has one.
    taped: Option<Arc<TapedRegions>>,
}

#[derive(Debug)]
struct TapedRegions {
    tape: Arc<Tape>,
    regions: Tree,
}

/// A region of a map, without its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First bus address.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The device's rights.
    pub rights: Rights,
    /// Whether it was shared.
    pub is_shared: bool,
}

impl Clone for Map {
    fn clone(&self) -> Self {
        let Self { regions, sums, mappings, id, last: _, log, refusals, misses, taped } = self;
        Self {
            regions: regions.clone(),
            sums: *sums,
            mappings: mappings.clone(),
            id: *id,
            last: AtomicUsize::new(0),
            log: log.clone(),
            refusals: refusals.clone(),
            misses: misses.clone(),
            taped: taped.clone(),
        }
    }
}

/// The last identifier.
static ID: AtomicU64 = AtomicU64::new(0);

impl Map {
    /// Other regions with the same log and the same misses.
    fn of(&self, regions: Tree, mappings: Vec<(Arc<Mapping>, usize)>) -> Self {
        let id = ID.fetch_add(1, Ordering::Relaxed) + 1;
        let (log, misses) = (self.log.clone(), self.misses.clone());
        let (sums, last) = (regions.sums(), AtomicUsize::new(0));
        Self { sums, regions, mappings, id, last, log, refusals: None, misses, taped: None }
    }

    /// An empty map that is filled on demand: an access to what it does not translate is [absent](Fault::Absent), and asked for there.
    /// Maps made from this one do the same.
    pub fn on_demand(misses: Arc<Misses>) -> Self {
        Self { misses: Some(misses), ..Self::default() }
    }

    /// Whether it is filled on demand.
    pub fn is_on_demand(&self) -> bool {
        self.misses.is_some()
    }

    /// Whether an access, mapped up to `reached`, misses a translation. Asks for it.
    #[cold]
    fn misses(&self, reached: u64, end: u64, wanted: Rights) -> bool {
        // A region without the right is an answer already.
        let Some(misses) = self.misses.as_ref().filter(|_| self.region(reached).is_none()) else { return false };
        misses.ask(reached, end, wanted.write);
        true
    }

    /// From now on accesses that this map refuses are counted there. Maps made from this one do not report.
    pub fn report_to(&mut self, refusals: &Arc<Refusals>) {
        self.refusals = Some(Arc::clone(refusals));
    }

    /// A refused access.
    #[cold]
    fn refuse(&self, address: u64, len: u32, wanted: Rights) -> Fault {
        if let Some(refusals) = &self.refusals {
            refusals.add(Refusal { address, len, write: wanted.write });
        }
        Fault::Refused { address, len }
    }

    /// No memory at all: every access is refused.
    pub fn empty() -> Arc<Map> {
        Arc::default()
    }

    /// One private region of `len` bytes at address 0, for our own buffers.
    pub fn private(len: usize) -> Result<Map, MapError> {
        Map::default().with(0, Arc::new(Mapping::private(len)?), Rights::BOTH)
    }

    /// This map plus one region: a whole mapping, or a piece of one.
    pub fn with(&self, base: u64, piece: impl Into<Piece>, rights: Rights) -> Result<Map, MapError> {
        let Piece { mapping, offset, len } = piece.into();
        self.insert(Region { base, len, rights, place: Some((mapping, offset)) })
    }

    /// This map plus a region that the peer has announced but not shared.
    pub fn with_absent(&self, base: u64, len: u64, rights: Rights) -> Result<Map, MapError> {
        self.insert(Region { base, len, rights, place: None })
    }

    fn insert(&self, region: Region) -> Result<Map, MapError> {
        let (base, len) = (region.base, region.len);
        let end = base.checked_add(len).filter(|_| len > 0).ok_or(MapError::Bounds { base, len })?;
        if region
            .place
            .as_ref()
            .is_some_and(|(mapping, offset)| offset.checked_add(len).is_none_or(|end| end > mapping.len()))
        {
            return Err(MapError::Bounds { base, len });
        }
        if self.sums.regions >= MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        if region.place.is_some() && self.sums.mapped + len > MAX_BYTES {
            return Err(MapError::TooMuch);
        }
        if self.tree().overlaps(base, end) {
            return Err(MapError::Overlap { base, len });
        }
        let mut mappings = self.mappings.clone();
        if let Some((mapping, _)) = &region.place {
            match mappings.iter_mut().find(|(known, _)| Arc::ptr_eq(known, mapping)) {
                Some((_, regions)) => *regions += 1,
                None => mappings.push((Arc::clone(mapping), 1)),
            }
        }
        Ok(self.of(self.tree().with(region), mappings))
    }

    /// This map without the region with exactly this range.
    pub fn without(&self, base: u64, len: u64) -> Result<Map, MapError> {
        let there = self.tree().find(base).is_some_and(|region| (region.base, region.len) == (base, len));
        if there { Ok(self.without_within(base, len)) } else { Err(MapError::Unknown { base, len }) }
    }

    /// This map without all regions within `[base, base + len)`: an unmap that covers several.
    pub fn without_within(&self, base: u64, len: u64) -> Map {
        let mut mappings = self.mappings.clone();
        let regions = self.tree().without(base, base.saturating_add(len), &mut |region| {
            if let Some((mapping, _)) = &region.place
                && let Some((_, regions)) = mappings.iter_mut().find(|(known, _)| Arc::ptr_eq(known, mapping))
            {
                *regions -= 1;
            }
        });
        mappings.retain(|(_, regions)| *regions > 0);
        self.of(regions, mappings)
    }

    /// The same memory with another log of written pages, or none. Maps made from this one use the same log.
    #[must_use]
    pub fn logged(&self, log: Option<Arc<DirtyLog>>) -> Map {
        Map { log, ..self.of(self.tree().clone(), self.mappings.clone()) }
    }

    /// The same memory for another device, which writes at the same time. Both log into the same bitmap.
    #[must_use]
    pub fn beside(&self) -> Map {
        let log = self.log.as_ref().map(|log| Arc::new(log.beside()));
        Map { log, ..self.clone() }
    }

    /// The same memory with a tape of what is read and written. Maps made from this one have none.
    #[must_use]
    pub fn taped(&self, tape: Arc<Tape>) -> Map {
        let map = self.logged(self.log.clone());
        let taped = Some(Arc::new(TapedRegions { tape, regions: self.tree().clone() }));
        Self { regions: Tree::default(), taped, refusals: self.refusals.clone(), ..map }
    }

    /// Its regions, by address.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::with_capacity(self.regions());
        self.tree().each(&mut |&Region { base, len, rights, ref place }| {
            places.push(Place { base, len, rights, is_shared: place.is_some() });
        });
        places
    }

    /// All translated ranges were written: publishes the log.
    #[inline]
    pub fn publish_log(&self) {
        if let Some(log) = &self.log {
            log.publish();
        }
    }

    /// Whether writes are logged.
    #[inline(always)]
    pub(crate) fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// The tape.
    pub(crate) fn tape(&self) -> Option<&Tape> {
        self.taped.as_ref().map(|taped| taped.tape.as_ref())
    }

    /// Its regions, with a tape or without.
    fn tree(&self) -> &Tree {
        self.taped.as_ref().map_or(&self.regions, |taped| &taped.regions)
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn note(&self, address: u64, len: u32) {
        if let Some(log) = &self.log {
            log.note(address, len);
        }
    }

    /// Number of files and private pieces that its regions lie in.
    pub fn mappings(&self) -> usize {
        self.mappings.len()
    }

    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.sums.regions
    }

    /// Bytes that are known but not shared with us; normally 0.
    pub fn absent_bytes(&self) -> u64 {
        self.sums.absent
    }

    /// Bytes that are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        self.sums.mapped
    }

    /// Calls `each` for every region, by address.
    pub fn each_region(&self, mut each: impl FnMut(RegionView<'_>)) {
        self.regions.each(&mut |Region { base, len, rights, place }| {
            let file = place.as_ref().and_then(|(mapping, offset)| mapping.file_at(*offset));
            let serial = place.as_ref().map_or(0, |(mapping, _)| mapping.serial());
            each(RegionView { base: *base, len: *len, rights: *rights, file, serial });
        });
    }

    /// Whether this process alone has written to the shared memory: see [`Mapping::is_blank`]. Checks the first `BLANK_FILES`
    /// files, which include a VM's RAM.
    pub fn is_blank(&self) -> bool {
        !self.mappings.is_empty() && self.mappings.iter().take(BLANK_FILES).all(|(mapping, _)| mapping.is_blank())
    }

    /// Bytes of pages that our writes have allocated: this process's memory control group pays for them.
    pub fn allocated_bytes(&self) -> u64 {
        self.mappings.iter().map(|(mapping, _)| mapping.allocated()).sum()
    }

    /// True once a peer has taken back pages of any region (see [`Mapping::damaged`]).
    pub fn damaged(&self) -> bool {
        self.mappings.iter().any(|(mapping, _)| mapping.damaged())
    }

    #[inline]
    pub(crate) fn locate(&self, address: u64, wanted: Rights) -> Option<(u64, &Region)> {
        let region = self.regions.at(address, &self.last)?;
        let offset = address.checked_sub(region.base)?;
        (offset < region.len && region.rights.allow(wanted)).then_some((offset, region))
    }

    /// Like [`Map::locate`], for maps with a tape, too.
    pub(crate) fn locate_any(&self, address: u64, wanted: Rights) -> Option<(u64, &Region)> {
        if self.taped.is_none() {
            return self.locate(address, wanted);
        }
        let region = self.region(address).filter(|region| region.rights.allow(wanted))?;
        Some((address - region.base, region))
    }

    /// `len` bytes of a region from `offset`, if it was shared.
    #[inline]
    fn span(&self, region: &Region, offset: u64, len: u32) -> Option<Span> {
        let (mapping, start) = region.place.as_ref()?;
        // A region lies within its mapping.
        Some(Span::of(mapping, (start + offset) as usize, len, self.id))
    }

    /// The region that an address lies in.
    pub(crate) fn region(&self, address: u64) -> Option<&Region> {
        self.tree().find(address).filter(|region| address - region.base < region.len)
    }

    /// Whether the region of an address has these rights.
    pub(crate) fn may(&self, address: u64, wanted: Rights) -> bool {
        self.region(address).is_some_and(|region| region.rights.allow(wanted))
    }

    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Calls `each` with the translated pieces of a range, in order, but only if the whole range is mapped. `each` returns false to
    /// refuse.
    #[inline]
    fn pieces(&self, address: u64, len: u32, wanted: Rights, mut each: impl FnMut(Span) -> bool) -> Result<(), Fault> {
        #[cfg(feature = "count")]
        crate::count::one();
        if wanted.write && self.is_logged() {
            self.note(address, len);
        }
        if let Some((offset, region)) = self.locate(address, wanted)
            && region.len - offset >= u64::from(len)
            && let Some(whole) = self.span(region, offset, len)
        {
            return if each(whole) { Ok(()) } else { Err(Fault::Refused { address, len }) };
        }
        self.check(address, len, wanted)?;
        self.walk(address, len, wanted, each)
    }

    /// Whether the whole range is mapped with these rights, in any number of regions.
    pub(crate) fn check(&self, address: u64, len: u32, wanted: Rights) -> Result<(), Fault> {
        let Some(end) = address.checked_add(u64::from(len)) else { return Err(self.refuse(address, len, wanted)) };
        let reached = self.tree().reach(address, end, wanted);
        if reached >= end {
            return Ok(());
        }
        let Some((offset, region)) = self.locate_any(reached, wanted) else {
            if self.misses(reached, end, wanted) {
                let len = u32::try_from(end - reached).unwrap_or(len);
                return Err(Fault::Absent(Absent { address: reached, len }));
            }
            return Err(self.refuse(address, len, wanted));
        };
        let here = u32::try_from((region.len - offset).min(end - reached)).unwrap_or(len);
        Err(Fault::Absent(Absent { address: reached, len: here }))
    }

    /// Like `pieces`, region by region, after [`Map::check`]. A range in too many regions is refused.
    fn walk(&self, address: u64, len: u32, wanted: Rights, mut each: impl FnMut(Span) -> bool) -> Result<(), Fault> {
        let refused = Fault::Refused { address, len };
        address.checked_add(u64::from(len)).ok_or(refused)?;
        let (mut at, mut left) = (address, len);
        for _ in 0..REGIONS_OF_A_RANGE {
            if left == 0 {
                return Ok(());
            }
            #[cfg(feature = "count")]
            crate::count::one();
            let (offset, region) = self.locate_any(at, wanted).ok_or(refused)?;
            let here = u32::try_from(region.len - offset).unwrap_or(u32::MAX).min(left);
            let absent = Fault::Absent(Absent { address: at, len: here });
            let span = self.span(region, offset, here).ok_or(absent)?;
            // All accesses to a map with a tape take the path for pages that may be missing.
            if !each(Span { known: span.known && self.taped.is_none(), ..span }) {
                return Err(refused);
            }
            left -= here;
            at += u64::from(here);
        }
        if left == 0 { Ok(()) } else { Err(self.refuse(address, len, wanted)) }
    }

    /// Translates a range to spans, passed to `push`. If `push` returns false, it has no room: an error.
    pub fn translate(
        &self,
        address: u64,
        len: u32,
        wanted: Rights,
        push: impl FnMut(Span) -> bool,
    ) -> Result<(), Fault> {
        self.pieces(address, len, wanted, push)
    }

    /// The mapping of a span of this map, and the offset in it.
    #[inline]
    pub(crate) fn place(&self, span: Span) -> Option<(&Mapping, usize)> {
        let mapping = span.mapping.filter(|_| span.id == self.id)?;
        // SAFETY: the identifier shows that this map or a clone of it made the span. Its regions keep the mapping for
        // as long as `self` is borrowed, because a map never changes.
        let mapping = unsafe { mapping.as_ref() };
        Some((mapping, mapping.offset_of(span.first)))
    }

    /// The address of a span of this map, if all its pages are known to exist.
    #[inline]
    pub(crate) fn known(&self, span: Span) -> Option<*mut u8> {
        (span.known && span.id == self.id).then_some(span.first)
    }

    /// The bytes of a span of this map; empty if the span belongs to another map. For our own memory only: reading a guest's memory
    /// here may allocate pages, which [`Map::read_span`] does not.
    #[inline]
    pub fn bytes(&self, span: Span) -> VolatileSlice<'_> {
        match self.place(span) {
            Some((mapping, offset)) => mapping.slice(offset, span.len as usize),
            None => VolatileSlice::from(&mut [][..]),
        }
    }

    /// The bytes of a span of this map, to be written.
    #[inline]
    pub(crate) fn target(&self, span: Span) -> VolatileSlice<'_> {
        match self.place(span) {
            Some((mapping, offset)) => mapping.target(offset, span.len as usize),
            None => VolatileSlice::from(&mut [][..]),
        }
    }

    #[inline(always)]
    fn copy_out(&self, span: Span, into: &mut [u8]) -> usize {
        let len = into.len().min(span.len as usize);
        if let Some(first) = self.known(span) {
            // SAFETY: the identifier shows that the span is of this map, and the span has that many bytes: as in `place`.
            unsafe { touch::read(first, &mut into[..len]) };
            return len;
        }
        self.copy_out_of_unknown(span, &mut into[..len])
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn copy_out_of_unknown(&self, span: Span, into: &mut [u8]) -> usize {
        let Some((mapping, offset)) = self.place(span) else { return 0 };
        match self.tape() {
            None => mapping.read(offset, into),
            Some(tape) => {
                let mut count = into.len();
                tape.read(into, |into| count = mapping.read(offset, into));
                count
            }
        }
    }

    #[inline(always)]
    fn copy_in(&self, span: Span, from: &[u8]) {
        let len = from.len().min(span.len as usize);
        if let Some(first) = self.known(span) {
            // SAFETY: the identifier shows that the span is of this map, and the span has that many bytes: as in `place`.
            unsafe { touch::write(&from[..len], first) };
            return;
        }
        self.copy_into_unknown(span.piece(0, len as u32), from);
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn copy_into_unknown(&self, span: Span, from: &[u8]) {
        if let Some(tape) = self.tape() {
            tape.write(&from[..from.len().min(span.len as usize)]);
        }
        touch::copy_in(from, &self.target(span));
    }

    /// Reads guest memory. All or nothing.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        #[cfg(feature = "count")]
        crate::count::bytes(into.len());
        if let Some(first) = self.known_at(address, into.len(), Rights::READ) {
            #[cfg(feature = "count")]
            crate::count::one();
            // SAFETY: so many bytes are mapped there.
            unsafe { touch::read(first, into) };
            return Ok(());
        }
        self.read_in_pieces(address, into)
    }

    /// The address at which a range is mapped, if all of it lies in one region with these rights, on pages known to exist.
    #[inline(always)]
    fn known_at(&self, address: u64, len: usize, wanted: Rights) -> Option<*mut u8> {
        let (offset, region) = self.locate(address, wanted)?;
        let (mapping, start) = region.place.as_ref()?;
        // A region lies within its mapping.
        let at = start.wrapping_add(offset) as usize;
        (len as u64 <= region.len.wrapping_sub(offset) && mapping.is_known(at, len)).then(|| mapping.at(at))
    }

    #[cold]
    #[inline(never)]
    fn read_in_pieces(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let len = u32::try_from(into.len()).map_err(|_| Fault::Refused { address, len: u32::MAX })?;
        let mut done = 0;
        self.pieces(address, len, Rights::READ, |span| {
            let n = span.len as usize;
            self.copy_out(span, &mut into[done..done + n]);
            done += n;
            true
        })
    }

    /// Like [`Map::read`], past the tape, which has its lock.
    pub(crate) fn read_past_tape(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        self.pieces(address, into.len() as u32, Rights::READ, |span| {
            let n = span.len as usize;
            if let Some((mapping, offset)) = self.place(span) {
                mapping.read(offset, &mut into[done..done + n]);
            }
            done += n;
            true
        })
    }

    /// Writes guest memory. All or nothing.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        #[cfg(feature = "count")]
        crate::count::bytes(from.len());
        if !self.is_logged()
            && let Some(first) = self.known_at(address, from.len(), Rights::WRITE)
        {
            #[cfg(feature = "count")]
            crate::count::one();
            // SAFETY: so many bytes are mapped there.
            unsafe { touch::write(from, first) };
            return Ok(());
        }
        self.write_in_pieces(address, from)
    }

    #[cold]
    #[inline(never)]
    fn write_in_pieces(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let len = u32::try_from(from.len()).map_err(|_| Fault::Refused { address, len: u32::MAX })?;
        let mut done = 0;
        self.pieces(address, len, Rights::WRITE, |span| {
            let n = span.len as usize;
            self.copy_in(span, &from[done..done + n]);
            done += n;
            true
        })
    }

    /// The first bytes of a span of this map as little-endian numbers. A number beyond the end is zero.
    #[inline(always)]
    pub fn read_words<const N: usize>(&self, span: Span) -> [u32; N] {
        let mut words = [0; N];
        if span.len as usize >= 4 * N
            && let Some(first) = self.known(span)
        {
            #[cfg(feature = "count")]
            crate::count::bytes(4 * N);
            for (i, word) in words.iter_mut().enumerate() {
                // SAFETY: the identifier shows that the span is of this map, and the span has that many bytes.
                *word = u32::from_le(unsafe { touch::load_u32(first.wrapping_add(4 * i)) });
            }
            return words;
        }
        self.words_of_unknown(span, &mut words);
        words
    }

    #[cold]
    #[inline(never)]
    fn words_of_unknown(&self, span: Span, words: &mut [u32]) {
        for (word, at) in words.iter_mut().zip((0..span.len / 4).map(|word| 4 * word)) {
            let mut bytes = [0; 4];
            self.read_span(span.piece(at, 4), &mut bytes);
            *word = u32::from_le_bytes(bytes);
        }
    }

    /// Writes little-endian numbers to the start of a span of this map, as many as fit.
    #[inline(always)]
    pub fn write_words<const N: usize>(&self, span: Span, words: [u32; N]) {
        if span.len as usize >= 4 * N
            && let Some(first) = self.known(span)
        {
            #[cfg(feature = "count")]
            crate::count::bytes(4 * N);
            for (i, word) in words.iter().enumerate() {
                // SAFETY: the identifier shows that the span is of this map, and the span has that many bytes.
                unsafe { touch::store_u32(first.wrapping_add(4 * i), word.to_le()) };
            }
            return;
        }
        self.words_into_unknown(span, &words);
    }

    #[cold]
    #[inline(never)]
    fn words_into_unknown(&self, span: Span, words: &[u32]) {
        for (word, at) in words.iter().zip((0..span.len / 4).map(|word| 4 * word)) {
            self.write_span(span.piece(at, 4), &word.to_le_bytes());
        }
    }

    /// Reads the bytes of a span of this map into `into` (the shorter of both).
    #[inline]
    pub fn read_span(&self, span: Span, into: &mut [u8]) -> usize {
        #[cfg(feature = "count")]
        crate::count::bytes(into.len().min(span.len as usize));
        self.copy_out(span, into)
    }

    /// Writes to a span of this map.
    #[inline]
    pub fn write_span(&self, span: Span, from: &[u8]) {
        #[cfg(feature = "count")]
        crate::count::bytes(from.len().min(span.len as usize));
        self.copy_in(span, from);
    }

    /// Hints that the first `len` bytes from an address will be accessed soon. Does nothing if they are not mapped.
    #[inline]
    pub fn prefetch(&self, address: u64, len: u32, touch: Touch) {
        if let Some((offset, region)) = self.locate(address, Rights { read: false, write: false })
            && let Some((mapping, start)) = &region.place
        {
            prefetch::lines(mapping.at((start + offset) as usize), len as usize, touch);
        }
    }
}
