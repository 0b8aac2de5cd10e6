//! A descriptor ring as its device accesses it: a range that is translated once.

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use crate::map::{Fault, Map};
use crate::mapping::Mapping;
use crate::prefetch::{self, Touch};
use crate::region::Rights;
use crate::span::Span;
use crate::touch;

/// A range of guest memory, translated once. Beyond its end reads return zeros and writes do nothing. Reading allocates no page of
/// its file.
///
/// The range may lie in several regions, as behind an IOMMU. Accesses beyond the first region leave the fast path at the same check
/// as accesses beyond the window's end: the fast path pays nothing for them.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    first: *mut u8,
    /// Bytes in its first region.
    len: usize,
    may_write: bool,
    /// The mapping, unless all pages of the window are known to exist.
    unknown: Option<&'a Mapping>,
    /// The whole range, if it lies in several regions.
    whole: Option<Whole<'a>>,
    mapping: PhantomData<&'a Mapping>,
}

/// A mapped range of a map.
#[derive(Clone, Copy, Debug)]
struct Whole<'a> {
    map: &'a Map,
    address: u64,
    len: usize,
}

impl Default for Window<'_> {
    /// An empty window.
    fn default() -> Self {
        Self { first: std::ptr::null_mut(), len: 0, may_write: true, unknown: None, whole: None, mapping: PhantomData }
    }
}

impl<'a> Window<'a> {
    /// `len` bytes of a mapping from `offset`; they must lie within.
    #[inline]
    pub(crate) fn new(mapping: &'a Mapping, offset: usize, len: usize, rights: Rights) -> Self {
        let unknown = (!mapping.is_known(offset, len)).then_some(mapping);
        let len = mapping.slice(offset, len).len();
        let first = mapping.at(offset);
        Self { first, len, may_write: rights.write, unknown, whole: None, mapping: PhantomData }
    }

    /// The window of a range that begins with this one. The whole range is mapped with the same rights.
    pub(crate) fn with_rest(self, map: &'a Map, address: u64, len: u32) -> Self {
        Self { whole: Some(Whole { map, address, len: len as usize }), ..self }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.whole.map_or(self.len, |whole| whole.len)
    }

    /// True for a window of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The map and the address of these bytes, if they lie within a window of several regions.
    fn further(&self, offset: usize, len: usize) -> Option<(&'a Map, u64)> {
        let whole = self.whole.filter(|whole| len <= whole.len && offset <= whole.len - len)?;
        Some((whole.map, whole.address.checked_add(offset as u64)?))
    }

    /// A load outside the first region: from a window of its bytes, or from several regions. Takes the window by value, as below: with
    /// a pointer passed on, the fast path would reload the window's fields at each access.
    #[cold]
    #[inline(never)]
    fn load_further<const N: usize>(self, offset: usize, load: fn(&Window<'a>) -> [u8; N]) -> Option<[u8; N]> {
        let (map, address) = self.further(offset, N)?;
        if let Some(tape) = map.tape() {
            let mut out = [0; N];
            tape.read(&mut out, |out| {
                let part = map.window_within(address, N, Rights::READ).filter(|part| part.len == N);
                match part {
                    Some(part) => out.copy_from_slice(&load(&part)),
                    // The whole range is mapped, otherwise there would be no window.
                    None => drop(map.read_past_tape(address, out)),
                }
            });
            return Some(out);
        }
        if let Some(part) = map.window_within(address, N, Rights::READ).filter(|part| part.len == N) {
            return Some(load(&part));
        }
        let mut out = [0; N];
        map.read(address, &mut out).ok().map(|()| out)
    }

    /// A store outside the first region: to a window of its bytes, or to several regions.
    #[cold]
    #[inline(never)]
    fn store_further<const N: usize>(self, offset: usize, bytes: [u8; N], store: fn(&Window<'a>, [u8; N])) {
        let Some((map, address)) = self.further(offset, N).filter(|_| self.may_write) else { return };
        match map.window_within(address, N, Rights::WRITE) {
            Some(part) if part.len == N => {
                if let Some(tape) = map.tape() {
                    tape.write(&bytes);
                }
                store(&part, bytes);
            }
            _ => {
                fence(Ordering::Release);
                self.write_further(offset, &bytes);
            }
        }
    }

    /// A write outside the first region.
    #[cold]
    #[inline(never)]
    fn write_further(self, offset: usize, from: &[u8]) {
        if let Some((map, address)) = self.further(offset, from.len()).filter(|_| self.may_write) {
            // The whole range is mapped, otherwise there would be no window.
            let _written = map.write(address, from);
        }
    }

    /// The address of `len` bytes, if all of them are within the first region.
    #[inline(always)]
    fn place(&self, offset: usize, len: usize) -> Option<*mut u8> {
        (len <= self.len && offset <= self.len - len).then(|| self.first.wrapping_add(offset))
    }

    /// The bytes at an address whose page may be missing: they must come from the mapping instead.
    #[inline(always)]
    fn source<const N: usize>(&self, place: *mut u8) -> Option<[u8; N]> {
        match self.unknown {
            None => None,
            Some(mapping) => absent(mapping, place),
        }
    }

    /// Like [`Window::place`], for a write, if allowed; counts the allocated pages.
    #[inline(always)]
    fn target(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let place = self.place(offset, len).filter(|_| self.may_write)?;
        if let Some(mapping) = self.unknown {
            mapping.allocate_at(place, len);
        }
        Some(place)
    }

    /// Copies `N` bytes out (a descriptor). Not atomic: use only the copy.
    #[inline]
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        #[cfg(feature = "count")]
        crate::count::one();
        let mut out = [0; N];
        let Some(place) = self.place(offset, N) else {
            return self.load_further(offset, |part| part.read(0)).unwrap_or([0; N]);
        };
        if let Some(bytes) = self.source(place) {
            return bytes;
        }
        let (words, tail) = out.as_chunks_mut::<8>();
        // SAFETY: `N` bytes from there lie within, and these are some of them.
        unsafe {
            for (i, word) in words.iter_mut().enumerate() {
                *word = touch::load_u64(place.wrapping_add(8 * i)).to_ne_bytes();
            }
            if !tail.is_empty() {
                touch::read(place.wrapping_add(N - N % 8), tail);
            }
        }
        out
    }

    /// Copies 16-bit numbers out (a ring of them). A number beyond the end is zero. Not atomic.
    pub fn read_u16s(&self, offset: usize, out: &mut [u16]) {
        #[cfg(feature = "count")]
        crate::count::one();
        match (self.place(offset, 2 * out.len()), self.unknown) {
            // SAFETY: `place` checked that all bytes are within; any two bytes are a number.
            (Some(place), None) => unsafe {
                touch::read(place, std::slice::from_raw_parts_mut(out.as_mut_ptr().cast(), 2 * out.len()));
                out.iter_mut().for_each(|number| *number = u16::from_le(*number));
            },
            _ => out.iter_mut().enumerate().for_each(|(i, number)| *number = self.load_u16(offset + 2 * i)),
        }
    }

    /// Copies entries of 16 bytes out (descriptors), by their indices; one beyond the end is zero. Not atomic.
    #[inline(always)]
    pub fn gather(&self, indices: &[u16], out: &mut [u128]) {
        let last = indices.iter().fold(0, |last, index| last.max(*index));
        match (self.place(16 * usize::from(last), 16), self.unknown) {
            (Some(_), None) => {
                #[cfg(feature = "count")]
                crate::count::one();
                for (entry, index) in out.iter_mut().zip(indices) {
                    let place = self.first.wrapping_add(16 * usize::from(*index));
                    // SAFETY: it ends where the last entry does or before, and that one lies within.
                    *entry = u128::from_le(unsafe { touch::load_u128(place) });
                }
            }
            _ => self.gather_singly(indices, out),
        }
    }

    #[cold]
    #[inline(never)]
    fn gather_singly(&self, indices: &[u16], out: &mut [u128]) {
        for (entry, index) in out.iter_mut().zip(indices) {
            *entry = u128::from_le_bytes(self.read(16 * usize::from(*index)));
        }
    }

    /// Stores eight bytes, aligned or not. Not atomic.
    #[inline]
    pub fn write_u64(&self, offset: usize, value: u64) {
        let Some(place) = self.target(offset, 8) else {
            return self.store_further(offset, value.to_le_bytes(), |part, bytes| part.write(0, &bytes));
        };
        // SAFETY: it lies within.
        unsafe { touch::store_u64(place, value.to_le()) };
    }

    /// Stores consecutive 64-bit numbers (entries of a ring), or none if they do not all lie within. Not atomic.
    pub fn write_u64s(&self, offset: usize, values: &[u64]) {
        let Some(place) = self.target(offset, 8 * values.len()) else { return self.write_u64s_further(offset, values) };
        if cfg!(target_endian = "big") {
            values.iter().enumerate().for_each(|(i, value)| self.write_u64(offset + 8 * i, *value));
            return;
        }
        // SAFETY: `target` checked that all bytes are within, and the numbers have as many bytes.
        unsafe { touch::write(std::slice::from_raw_parts(values.as_ptr().cast(), 8 * values.len()), place) };
    }

    #[cold]
    #[inline(never)]
    fn write_u64s_further(&self, offset: usize, values: &[u64]) {
        if self.further(offset, 8 * values.len()).is_some() {
            values.iter().enumerate().for_each(|(i, value)| self.write_u64(offset + 8 * i, *value));
        }
    }

    /// Hints that bytes will be accessed soon. Beyond the first region there are no hints.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize, touch: Touch) {
        let len = len.min(self.len.saturating_sub(offset));
        if len > 0 {
            prefetch::lines(self.first.wrapping_add(offset), len, touch);
        }
    }

    /// Hints that the cache line of a byte will be accessed soon.
    #[inline]
    pub fn prefetch_line(&self, offset: usize, touch: Touch) {
        prefetch::line(self.first.wrapping_add(offset), touch);
    }

    /// Copies bytes in. Not atomic.
    pub fn write(&self, offset: usize, from: &[u8]) {
        let Some(place) = self.target(offset, from.len()) else { return self.write_further(offset, from) };
        // SAFETY: `target` checked that all bytes are within.
        unsafe { touch::write(from, place) };
    }

    /// An atomic 16-bit load with acquire ordering; unaligned numbers are read byte by byte.
    #[inline]
    pub fn load_u16(&self, offset: usize) -> u16 {
        let Some(place) = self.place(offset, 2) else {
            return self.load_further(offset, |part| part.load_u16(0).to_le_bytes()).map_or(0, u16::from_le_bytes);
        };
        if let Some(bytes) = self.source(place) {
            return u16::from_le_bytes(bytes);
        }
        if !place.addr().is_multiple_of(2) {
            return u16::from_le_bytes(self.read(offset));
        }
        // SAFETY: it lies within, and is aligned.
        u16::from_le(unsafe { touch::load_u16(place) })
    }

    /// An atomic 32-bit load with acquire ordering; unaligned numbers are read byte by byte.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        let Some(place) = self.place(offset, 4) else {
            return self.load_further(offset, |part| part.load_u32(0).to_le_bytes()).map_or(0, u32::from_le_bytes);
        };
        if let Some(bytes) = self.source(place) {
            return u32::from_le_bytes(bytes);
        }
        if !place.addr().is_multiple_of(4) {
            return u32::from_le_bytes(self.read(offset));
        }
        // SAFETY: it lies within, and is aligned.
        u32::from_le(unsafe { touch::load_u32(place) })
    }

    /// An atomic 64-bit load with acquire ordering; unaligned numbers are not atomic.
    #[inline]
    pub fn load_u64(&self, offset: usize) -> u64 {
        let Some(place) = self.place(offset, 8) else {
            return self.load_further(offset, |part| part.load_u64(0).to_le_bytes()).map_or(0, u64::from_le_bytes);
        };
        if let Some(bytes) = self.source(place) {
            return u64::from_le_bytes(bytes);
        }
        // SAFETY: it lies within.
        u64::from_le(unsafe { touch::load_u64(place) })
    }

    /// Loads pairs of 64-bit numbers (descriptors), each pair's second number first: that one says whether the other is valid. Aligned
    /// numbers are atomic, with acquire ordering.
    #[inline(always)]
    pub fn load_pairs<const N: usize>(&self, offset: usize) -> [[u64; 2]; N] {
        let mut pairs = [[0; 2]; N];
        match (self.place(offset, 16 * N), self.unknown) {
            (Some(place), None) => {
                for (index, pair) in pairs.iter_mut().enumerate() {
                    // SAFETY: `place` has checked that all of them lie within.
                    pair[1] = u64::from_le(unsafe { touch::load_u64(place.wrapping_add(16 * index + 8)) });
                }
                for (index, pair) in pairs.iter_mut().enumerate() {
                    // SAFETY: as above.
                    pair[0] = u64::from_le(unsafe { touch::load_u64(place.wrapping_add(16 * index)) });
                }
            }
            _ => self.load_pairs_singly(offset, &mut pairs),
        }
        pairs
    }

    #[cold]
    #[inline(never)]
    fn load_pairs_singly(&self, offset: usize, pairs: &mut [[u64; 2]]) {
        for (index, pair) in pairs.iter_mut().enumerate() {
            pair[1] = self.load_u64(offset + 16 * index + 8);
            pair[0] = self.load_u64(offset + 16 * index);
        }
    }

    /// Stores the second number of each of consecutive pairs of 64-bit numbers (a descriptor's flags), the first pair's last. Aligned
    /// stores are atomic, with release ordering.
    #[inline(always)]
    pub fn store_seconds(&self, offset: usize, count: usize, value: impl Fn(usize) -> u64) {
        let place = self.target(offset, 16 * count).filter(|place| place.addr().is_multiple_of(8));
        fence(Ordering::Release);
        for index in (0..count).rev() {
            let value = value(index);
            match place {
                // SAFETY: `target` has checked that all of them lie within.
                Some(place) => unsafe { touch::store_u64(place.wrapping_add(16 * index + 8), value.to_le()) },
                None => self.store_u64(offset + 16 * index + 8, value),
            }
        }
    }

    /// An atomic 16-bit store with release ordering: a reader of the value sees all earlier writes.
    #[inline]
    pub fn store_u16(&self, offset: usize, value: u16) {
        let Some(place) = self.target(offset, 2) else {
            return self.store_further(offset, value.to_le_bytes(), |part, bytes| {
                part.store_u16(0, u16::from_le_bytes(bytes))
            });
        };
        if !place.addr().is_multiple_of(2) {
            fence(Ordering::Release);
            return self.write(offset, &value.to_le_bytes());
        }
        // SAFETY: it lies within, and is aligned.
        unsafe { touch::store_u16(place, value.to_le()) };
    }

    /// An atomic 32-bit store with release ordering: a reader of the value sees all earlier writes.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32) {
        let Some(place) = self.target(offset, 4) else {
            return self.store_further(offset, value.to_le_bytes(), |part, bytes| {
                part.store_u32(0, u32::from_le_bytes(bytes))
            });
        };
        if !place.addr().is_multiple_of(4) {
            fence(Ordering::Release);
            return self.write(offset, &value.to_le_bytes());
        }
        // SAFETY: it lies within, and is aligned.
        unsafe { touch::store_u32(place, value.to_le()) };
    }

    /// An atomic 64-bit store with release ordering: a reader of the value sees all earlier writes.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        let Some(place) = self.target(offset, 8) else {
            return self.store_further(offset, value.to_le_bytes(), |part, bytes| {
                part.store_u64(0, u64::from_le_bytes(bytes))
            });
        };
        fence(Ordering::Release);
        if !place.addr().is_multiple_of(8) {
            return self.write(offset, &value.to_le_bytes());
        }
        // SAFETY: it lies within.
        unsafe { touch::store_u64(place, value.to_le()) };
    }

    /// An atomic 8-bit store with release ordering: a status byte that passes on a descriptor.
    pub fn store_u8(&self, offset: usize, value: u8) {
        let Some(place) = self.target(offset, 1) else {
            return self.store_further(offset, [value], |part, [value]| part.store_u8(0, value));
        };
        // SAFETY: it lies within.
        unsafe { touch::store_u8(place, value) };
    }
}

/// The place of a window, for later calls: while the map is the same, nothing has to be translated again.
#[derive(Clone, Copy, Debug, Default)]
pub struct WindowPlace {
    /// Empty if the window must be translated each time.
    span: Span,
    may_write: bool,
}

impl WindowPlace {
    /// The window. `None` if it must be translated: of another map, not on known pages of one region, or with a log of what is written.
    #[inline(always)]
    pub fn open<'a>(&self, map: &'a Map) -> Option<Window<'a>> {
        let Self { span, may_write } = *self;
        let first = map.known(span).filter(|_| !map.is_logged())?;
        #[cfg(feature = "count")]
        crate::count::one();
        // The identifier shows that the span is of this map, which keeps its mapping.
        Some(Window { first, len: span.len as usize, may_write, unknown: None, whole: None, mapping: PhantomData })
    }
}

impl Map {
    /// The place of a [window](Map::window).
    pub fn window_place(&self, address: u64, len: u32, rights: Rights) -> WindowPlace {
        WindowPlace { span: self.whole(address, len, rights).unwrap_or_default(), may_write: rights.write }
    }

    /// A range translated once, for many small accesses: a descriptor ring. Accesses to the first region are fast; each access
    /// beyond it is looked up.
    pub fn window(&self, address: u64, len: u32, rights: Rights) -> Result<Window<'_>, Fault> {
        #[cfg(feature = "count")]
        crate::count::one();
        if rights.write && self.is_logged() {
            self.note(address, len);
        }
        if let Some((offset, region)) = self.locate(address, rights)
            && region.len - offset >= u64::from(len)
            && let Some((mapping, start)) = &region.place
        {
            return Ok(Window::new(mapping, (start + offset) as usize, len as usize, rights));
        }
        self.window_in_pieces(address, len, rights)
    }

    #[cold]
    #[inline(never)]
    fn window_in_pieces(&self, address: u64, len: u32, rights: Rights) -> Result<Window<'_>, Fault> {
        if len == 0 {
            return Ok(Window::default());
        }
        self.check(address, len, rights)?;
        let first = match self.tape() {
            // No byte is in its first region.
            Some(_) => Window { may_write: rights.write, ..Window::default() },
            None => self.window_within(address, len as usize, rights).ok_or(Fault::Refused { address, len })?,
        };
        Ok(first.with_rest(self, address, len))
    }

    /// A window of the range's start, as far as it lies in one region.
    pub(crate) fn window_within(&self, address: u64, len: usize, rights: Rights) -> Option<Window<'_>> {
        let (offset, region) = self.locate_any(address, rights)?;
        let (mapping, start) = region.place.as_ref()?;
        let len = usize::try_from(region.len - offset).map_or(len, |here| here.min(len));
        Some(Window::new(mapping, (start + offset) as usize, len, rights))
    }
}

/// The content of a missing page, which must not be read through the mapping; `None` if the page exists.
#[cold]
#[inline(never)]
fn absent<const N: usize>(mapping: &Mapping, place: *const u8) -> Option<[u8; N]> {
    (!mapping.is_there(place, N)).then(|| mapping.read_at(place))
}

/// A full barrier between a write that hands work over and the read that checks whether the other side sleeps.
pub fn full_barrier() {
    fence(Ordering::SeqCst);
}
