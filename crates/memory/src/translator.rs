//! Translates many addresses of one map.

use crate::map::Map;
use crate::mapping::Mapping;
use crate::region::Rights;
use crate::span::Span;

impl Map {
    /// The span of a range, if all of it lies in one shared region with these rights. For many, use [`Translator`].
    pub fn whole(&self, address: u64, len: u32, wanted: Rights) -> Option<Span> {
        Translator::new(self).whole(address, len, wanted)
    }
}

/// Translates many addresses of one map: it remembers the region of the last one.
#[derive(Debug)]
pub struct Translator<'m> {
    map: &'m Map,
    base: u64,
    /// 0 before the first translation.
    len: u64,
    rights: Rights,
    is_logged: bool,
    /// The region's mapping, and the region's offset in it.
    place: Option<(&'m Mapping, usize)>,
}

impl<'m> Translator<'m> {
    /// For a map.
    pub fn new(map: &'m Map) -> Self {
        Self { map, base: 0, len: 0, rights: Rights::BOTH, is_logged: map.is_logged(), place: None }
    }

    /// The map.
    #[inline]
    pub fn map(&self) -> &'m Map {
        self.map
    }

    /// The span of a range, if all of it lies in one shared region with these rights.
    #[inline(always)]
    pub fn whole(&mut self, address: u64, len: u32, wanted: Rights) -> Option<Span> {
        #[cfg(feature = "count")]
        crate::count::one();
        if address.wrapping_sub(self.base) >= self.len {
            self.find(address)?;
        }
        let offset = address.wrapping_sub(self.base);
        let (mapping, start) = self.place?;
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
    #[inline(never)]
    fn find(&mut self, address: u64) -> Option<()> {
        let region = self.map.region(address).filter(|_| self.map.tape().is_none())?;
        (self.base, self.len, self.rights) = (region.base, region.len, region.rights);
        // Every write must be logged.
        self.rights.write &= !self.is_logged;
        self.place = region.place.as_ref().map(|(mapping, start)| (&**mapping, *start as usize));
        Some(())
    }
}
