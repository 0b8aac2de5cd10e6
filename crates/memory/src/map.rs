//! What a device may reach: bus addresses onto mapped regions.

use std::sync::Arc;

use vm_memory::volatile_memory::VolatileSlice;

use crate::blank::Look;
use crate::mapping::{Mapping, MappingError};
use crate::prefetch::{self, Touch};
use crate::window::Window;

/// How many regions one map holds at most: QEMU has fewer than 20, libvfio-user's default limit is 65535.
pub const MAX_REGIONS: usize = 1024;

/// How many bytes a VM may share, in all regions together: 4 TiB.
pub const MAX_BYTES: u64 = 4 << 40;

/// What a device may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The device may read (DMA from the guest).
    pub read: bool,
    /// The device may write (DMA to the guest).
    pub write: bool,
}

impl Rights {
    /// Both ways: ordinary RAM.
    pub const BOTH: Self = Self { read: true, write: true };
    /// Reads only: a ROM.
    pub const READ: Self = Self { read: true, write: false };
    /// Writes only.
    pub const WRITE: Self = Self { read: false, write: true };

    fn allow(self, wanted: Self) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }
}

/// A range that exists in the guest but that we hold no mapping of: fetch it, then try again.
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
    /// Nothing there, or not allowed: no RAM, a hole, a device's own registers, a read-only region.
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

/// Why a region was not taken.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// It overlaps a region that is there already.
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
    /// No region begins and ends like that.
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
    /// The operating system's reasons.
    #[error(transparent)]
    Mapping(#[from] MappingError),
}

#[derive(Clone, Debug)]
struct Region {
    base: u64,
    len: u64,
    rights: Rights,
    mapping: Option<Arc<Mapping>>,
}

/// Translated guest memory: a piece of one region of one [`Map`]. It means nothing with another map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    region: u32,
    len: u32,
    offset: u64,
}

impl Span {
    /// Bytes.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True for a span of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The piece `[from, from + len)` of this span, cut at its end.
    pub fn piece(&self, from: u32, len: u32) -> Span {
        let from = from.min(self.len);
        Span { region: self.region, offset: self.offset + u64::from(from), len: len.min(self.len - from) }
    }

    /// Appends `next` if it lies right behind this span in the same region.
    pub fn joins(&mut self, next: Span) -> bool {
        let adjacent = self.region == next.region && self.offset + u64::from(self.len) == next.offset;
        match (adjacent, self.len.checked_add(next.len)) {
            (true, Some(len)) => {
                self.len = len;
                true
            }
            _ => false,
        }
    }
}

/// The memory that one device may reach. Immutable; see the crate's page.
#[derive(Clone, Debug, Default)]
pub struct Map {
    regions: Vec<Region>,
}

impl Map {
    /// No memory at all: every access is refused.
    pub fn empty() -> Arc<Map> {
        Arc::default()
    }

    /// One private region of `len` bytes at address 0, for buffers that this side owns.
    pub fn private(len: usize) -> Result<Map, MapError> {
        Map::default().with(0, Arc::new(Mapping::private(len)?), Rights::BOTH)
    }

    /// This map and one more region.
    pub fn with(&self, base: u64, mapping: Arc<Mapping>, rights: Rights) -> Result<Map, MapError> {
        self.insert(Region { base, len: mapping.len(), rights, mapping: Some(mapping) })
    }

    /// This map and a region that the peer has told of but not shared.
    pub fn with_absent(&self, base: u64, len: u64, rights: Rights) -> Result<Map, MapError> {
        self.insert(Region { base, len, rights, mapping: None })
    }

    fn insert(&self, region: Region) -> Result<Map, MapError> {
        let (base, len) = (region.base, region.len);
        let end = base.checked_add(len).filter(|_| len > 0).ok_or(MapError::Bounds { base, len })?;
        if self.regions.len() >= MAX_REGIONS {
            return Err(MapError::TooMany);
        }
        if region.mapping.is_some() && self.mapped_bytes() + len > MAX_BYTES {
            return Err(MapError::TooMuch);
        }
        let place = self.regions.partition_point(|r| r.base < base);
        let before = place.checked_sub(1).and_then(|i| self.regions.get(i));
        let overlaps =
            before.is_some_and(|r| r.base + r.len > base) || self.regions.get(place).is_some_and(|r| r.base < end);
        if overlaps {
            return Err(MapError::Overlap { base, len });
        }
        let mut regions = self.regions.clone();
        regions.insert(place, region);
        Ok(Map { regions })
    }

    /// This map without the region that lies exactly there.
    pub fn without(&self, base: u64, len: u64) -> Result<Map, MapError> {
        let mut regions = self.regions.clone();
        let place =
            regions.iter().position(|r| r.base == base && r.len == len).ok_or(MapError::Unknown { base, len })?;
        regions.remove(place);
        Ok(Map { regions })
    }

    /// This map without any region that lies within `[base, base + len)`: the form of unmap that covers several.
    pub fn without_within(&self, base: u64, len: u64) -> Map {
        let end = base.saturating_add(len);
        let regions = self.regions.iter().filter(|r| !(r.base >= base && r.base + r.len <= end)).cloned().collect();
        Map { regions }
    }

    /// Number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Bytes that are known but not shared with us; 0 when all is well.
    pub fn absent_bytes(&self) -> u64 {
        self.regions.iter().filter(|r| r.mapping.is_none()).map(|r| r.len).sum()
    }

    /// Bytes that are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        self.regions.iter().filter(|r| r.mapping.is_some()).map(|r| r.len).sum()
    }

    /// Whether there is shared memory, and nothing but zeros in any of it: see [`Mapping::is_blank`]. No more is read of all regions
    /// together than of one.
    pub fn is_blank(&self) -> bool {
        self.is_blank_by(&mut Look::new())
    }

    pub(crate) fn is_blank_by(&self, look: &mut Look) -> bool {
        let mut shared = self.regions.iter().filter_map(|r| r.mapping.as_ref()).peekable();
        shared.peek().is_some() && shared.all(|m| m.is_blank_by(look))
    }

    /// True once a peer has taken pages of any region away (see [`Mapping::damaged`]).
    pub fn damaged(&self) -> bool {
        self.regions.iter().filter_map(|r| r.mapping.as_ref()).any(|m| m.damaged())
    }

    #[inline]
    fn locate(&self, address: u64, wanted: Rights) -> Option<(usize, u64, &Region)> {
        let index = self.regions.partition_point(|r| r.base <= address).checked_sub(1)?;
        let region = self.regions.get(index)?;
        let offset = address - region.base;
        (offset < region.len && region.rights.allow(wanted)).then_some((index, offset, region))
    }

    /// Calls `each` with the translated pieces of a range, in order, and only if the whole range is there.
    /// `each` returns false to refuse.
    #[inline]
    fn pieces(&self, address: u64, len: u32, wanted: Rights, mut each: impl FnMut(Span) -> bool) -> Result<(), Fault> {
        #[cfg(feature = "count")]
        crate::count::one();
        if let Some((region, offset, found)) = self.locate(address, wanted)
            && found.mapping.is_some()
            && found.len - offset >= u64::from(len)
        {
            let whole = Span { region: region as u32, offset, len };
            return if each(whole) { Ok(()) } else { Err(Fault::Refused { address, len }) };
        }
        self.walk(address, len, wanted, |_| true)?;
        self.walk(address, len, wanted, each)
    }

    /// The same, region by region, stopping at the first that is not there.
    fn walk(&self, address: u64, len: u32, wanted: Rights, mut each: impl FnMut(Span) -> bool) -> Result<(), Fault> {
        let refused = Fault::Refused { address, len };
        address.checked_add(u64::from(len)).ok_or(refused)?;
        let (mut at, mut left) = (address, len);
        while left > 0 {
            let (region, offset, found) = self.locate(at, wanted).ok_or(refused)?;
            let here = u32::try_from(found.len - offset).unwrap_or(u32::MAX).min(left);
            if found.mapping.is_none() {
                return Err(Fault::Absent(Absent { address: at, len: here }));
            }
            if !each(Span { region: region as u32, offset, len: here }) {
                return Err(refused);
            }
            left -= here;
            at += u64::from(here);
        }
        Ok(())
    }

    /// Translates a range to spans, appended through `push`, which returns false when it has no room (an error).
    pub fn translate(
        &self,
        address: u64,
        len: u32,
        wanted: Rights,
        push: impl FnMut(Span) -> bool,
    ) -> Result<(), Fault> {
        self.pieces(address, len, wanted, push)
    }

    /// The bytes of a span of this map; empty if the span is not of this map.
    #[inline]
    pub fn bytes(&self, span: Span) -> VolatileSlice<'_> {
        let slice = self
            .regions
            .get(span.region as usize)
            .and_then(|r| r.mapping.as_ref())
            .and_then(|m| m.bytes().subslice(usize::try_from(span.offset).ok()?, span.len as usize).ok());
        slice.unwrap_or_else(|| VolatileSlice::from(&mut [][..]))
    }

    /// Reads guest memory. All or nothing.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let len = u32::try_from(into.len()).map_err(|_| Fault::Refused { address, len: u32::MAX })?;
        #[cfg(feature = "count")]
        crate::count::bytes(into.len());
        let mut done = 0;
        self.pieces(address, len, Rights::READ, |span| {
            let n = span.len as usize;
            self.bytes(span).copy_to(&mut into[done..done + n]);
            done += n;
            true
        })
    }

    /// Writes guest memory. All or nothing.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let len = u32::try_from(from.len()).map_err(|_| Fault::Refused { address, len: u32::MAX })?;
        #[cfg(feature = "count")]
        crate::count::bytes(from.len());
        let mut done = 0;
        self.pieces(address, len, Rights::WRITE, |span| {
            let n = span.len as usize;
            self.bytes(span).copy_from(&from[done..done + n]);
            done += n;
            true
        })
    }

    /// Reads the bytes of a span of this map into `into` (the shorter of both).
    pub fn read_span(&self, span: Span, into: &mut [u8]) -> usize {
        #[cfg(feature = "count")]
        crate::count::bytes(into.len().min(span.len as usize));
        self.bytes(span).copy_to(into)
    }

    /// Writes to a span of this map.
    pub fn write_span(&self, span: Span, from: &[u8]) {
        #[cfg(feature = "count")]
        crate::count::bytes(from.len().min(span.len as usize));
        self.bytes(span).copy_from(from);
    }

    /// Hints that the first `len` bytes from an address will be touched soon. Nothing happens if they are not there.
    #[inline]
    pub fn prefetch(&self, address: u64, len: u32, touch: Touch) {
        if let Some((_, offset, region)) = self.locate(address, Rights { read: false, write: false })
            && let Some(mapping) = &region.mapping
            && let Ok(offset) = usize::try_from(offset)
        {
            prefetch::lines(mapping.bytes().ptr_guard().as_ptr().wrapping_add(offset), len as usize, touch);
        }
    }

    /// A range translated once, for many small accesses: a descriptor ring. It must lie in one region.
    pub fn window(&self, address: u64, len: u32, rights: Rights) -> Result<Window<'_>, Fault> {
        let mut only = None;
        self.pieces(address, len, rights, |span| only.replace(span).is_none())?;
        let span = only.unwrap_or_default();
        Ok(Window::new(self.bytes(span), rights))
    }
}
