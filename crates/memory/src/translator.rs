//! Translates many addresses of one map, for reads and for writes.

use std::marker::PhantomData;

use crate::map::Map;
use crate::mapping::Mapping;
use crate::prefetch::{self, LINE, Touch};
use crate::region::Rights;
use crate::span::Span;
use crate::target::Target;
use crate::touch;

impl Map {
    /// The span of a range, if all of it lies in one shared region with these rights. For many, use [`Translator`].
    pub fn whole(&self, address: u64, len: u32, wanted: Rights) -> Option<Span> {
        Translator::new(self).whole(address, len, wanted)
    }
}

/// Translates many addresses of one map: it remembers the region of the last one, and the *stretch* around it: bytes of that region
/// whose pages are all known to exist. Within a stretch a translation is a subtraction and two comparisons.
#[derive(Debug)]
pub struct Translator<'m> {
    map: &'m Map,
    /// First bus address of the stretch, and where it is mapped.
    from: u64,
    first: *mut u8,
    /// Bytes of the stretch that may be read; all or none.
    readable: u64,
    /// Bytes of the stretch that may be written and need not be logged; all or none.
    writable: u64,
    /// First bus address of the region.
    base: u64,
    /// Bytes of the region. 0 before the first translation.
    len: u64,
    rights: Rights,
    is_logged: bool,
    /// The region's mapping, and the region's offset in it.
    place: Option<(&'m Mapping, usize)>,
}

impl<'m> Translator<'m> {
    /// A translator for a map.
    pub fn new(map: &'m Map) -> Self {
        Self {
            map,
            from: 0,
            first: std::ptr::null_mut(),
            readable: 0,
            writable: 0,
            base: 0,
            len: 0,
            rights: Rights::BOTH,
            is_logged: map.is_logged(),
            place: None,
        }
    }

    /// The map.
    #[inline]
    pub fn map(&self) -> &'m Map {
        self.map
    }

    /// Bytes of the stretch with these rights.
    #[inline(always)]
    fn room(&self, wanted: Rights) -> u64 {
        match (wanted.read, wanted.write) {
            (true, false) => self.readable,
            (false, true) => self.writable,
            _ => self.readable.min(self.writable),
        }
    }

    /// Offset of a range in the stretch, if the stretch has these rights and all of the range.
    #[inline(always)]
    fn offset(&self, address: u64, len: u32, wanted: Rights) -> Option<usize> {
        let (offset, room) = (address.wrapping_sub(self.from), self.room(wanted));
        (offset < room && u64::from(len) <= room - offset).then_some(offset as usize)
    }

    /// The span of a range, if all of it lies in one shared region with these rights.
    #[inline(always)]
    pub fn whole(&mut self, address: u64, len: u32, wanted: Rights) -> Option<Span> {
        #[cfg(feature = "count")]
        crate::count::one();
        match (self.offset(address, len, wanted), self.place) {
            (Some(offset), Some((mapping, _))) => {
                Some(Span::of_known(mapping, self.first.wrapping_add(offset), len, self.map.id()))
            }
            _ => self.look_up(address, len, wanted),
        }
    }

    /// A range to be read, if all of it lies in one shared region whose pages there are known to exist.
    #[inline(always)]
    pub fn readable(&mut self, address: u64, len: u32) -> Option<Readable<'m>> {
        #[cfg(feature = "count")]
        crate::count::one();
        if let Some(offset) = self.offset(address, len, Rights::READ) {
            return Some(Readable { first: self.first.wrapping_add(offset), len, memory: PhantomData });
        }
        let span = self.look_up(address, len, Rights::READ)?;
        span.known.then_some(Readable { first: span.first, len, memory: PhantomData })
    }

    /// A range to be written, if all of it lies in one shared region that the device may write. It is logged, if writes are.
    #[inline(always)]
    pub fn target(&mut self, address: u64, len: u32) -> Option<Target<'m>> {
        #[cfg(feature = "count")]
        crate::count::one();
        if let Some(offset) = self.offset(address, len, Rights::WRITE) {
            return Some(Target::known(self.first.wrapping_add(offset), len));
        }
        let span = self.look_up(address, len, Rights::WRITE)?;
        let (mapping, _) = self.place?;
        Some(Target::of(span, mapping))
    }

    /// Like [`Translator::whole`], for a range outside the stretch. Remembers the stretch around its first byte.
    #[cold]
    #[inline(never)]
    fn look_up(&mut self, address: u64, len: u32, wanted: Rights) -> Option<Span> {
        if address.wrapping_sub(self.base) >= self.len {
            self.find(address)?;
        }
        let offset = address.wrapping_sub(self.base);
        let (mapping, start) = self.place?;
        self.stretch(mapping, start, offset as usize);
        let fits = u64::from(len) <= self.len.wrapping_sub(offset) && self.rights.allow(wanted);
        // A region lies within its mapping.
        if fits {
            Some(Span::of(mapping, start.wrapping_add(offset as usize), len, self.map.id()))
        } else if self.is_logged {
            self.logged(address, len, wanted)
        } else {
            None
        }
    }

    /// Sets the stretch to the bytes around this offset of the region that are on known pages.
    fn stretch(&mut self, mapping: &Mapping, start: usize, offset: usize) {
        let known = mapping.known_around(start.wrapping_add(offset));
        let end = start.saturating_add(usize::try_from(self.len).unwrap_or(usize::MAX));
        let (first, end) = (known.start.max(start), known.end.min(end));
        let bytes = end.saturating_sub(first) as u64;
        self.from = self.base.wrapping_add(first.saturating_sub(start) as u64);
        self.first = mapping.at(first);
        self.readable = if self.rights.read { bytes } else { 0 };
        self.writable = if self.rights.write { bytes } else { 0 };
    }

    /// Like [`Translator::whole`], for a write that was refused only because it must be logged.
    #[cold]
    #[inline(never)]
    fn logged(&self, address: u64, len: u32, wanted: Rights) -> Option<Span> {
        let offset = address.wrapping_sub(self.base);
        let (mapping, start) = self.place?;
        let is_within = u64::from(len) <= self.len.wrapping_sub(offset);
        (is_within && wanted.write && self.map.may(address, wanted)).then(|| {
            self.map.note(address, len);
            Span::of(mapping, start.wrapping_add(offset as usize), len, self.map.id())
        })
    }

    /// Finds and remembers the region of an address.
    fn find(&mut self, address: u64) -> Option<()> {
        let region = self.map.region(address).filter(|_| self.map.tape().is_none())?;
        (self.base, self.len, self.rights) = (region.base, region.len, region.rights);
        // Every write must be logged.
        self.rights.write &= !self.is_logged;
        self.place = region.place.as_ref().map(|(mapping, start)| (&**mapping, *start as usize));
        (self.readable, self.writable) = (0, 0);
        Some(())
    }
}

/// Bytes of a map that its device may read, and whose pages are known to exist. They can change at any time: read a value once and use
/// the copy.
#[derive(Clone, Copy, Debug)]
pub struct Readable<'m> {
    /// At least `len` bytes from here are mapped while the map is borrowed.
    first: *const u8,
    len: u32,
    memory: PhantomData<&'m Map>,
}

impl Default for Readable<'_> {
    /// No bytes.
    fn default() -> Self {
        Self { first: std::ptr::null(), len: 0, memory: PhantomData }
    }
}

impl Readable<'_> {
    /// Bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True for no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first bytes as a little-endian number; 0 if there are fewer than two.
    #[inline(always)]
    pub fn load_u16(&self) -> u16 {
        #[cfg(feature = "count")]
        crate::count::bytes(2);
        if self.len < 2 {
            return 0;
        }
        // SAFETY: so many bytes are mapped there.
        u16::from_le(unsafe { touch::load_u16(self.first) })
    }

    /// Copies the bytes from `from` on, as many as there is room for. Returns their number. Fastest for 32 bytes and more.
    #[inline(always)]
    pub fn read<const N: usize>(&self, from: u32, into: &mut [u8; N]) -> usize {
        const { assert!(N <= touch::FEW) };
        let len = N.min(self.len.saturating_sub(from) as usize);
        #[cfg(feature = "count")]
        crate::count::bytes(len);
        // SAFETY: so many bytes are mapped there, and `into` has room for them.
        unsafe { touch::read_few(self.first.wrapping_add(from as usize), into.as_mut_ptr(), len) };
        len
    }

    /// Hints that its first bytes will be read soon: up to two cache lines, and a third one of a longer range.
    #[inline(always)]
    pub fn prefetch(&self) {
        prefetch::line(self.first, Touch::Read);
        prefetch::line(self.first.wrapping_add(LINE), Touch::Read);
        if self.len as usize > 2 * LINE {
            prefetch::line(self.first.wrapping_add(2 * LINE), Touch::Read);
        }
    }
}

#[cfg(test)]
#[path = "translator_test.rs"]
mod tests;
