//! A descriptor ring as its device accesses it: a range that was translated once.

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use crate::mapping::Mapping;
use crate::prefetch::{self, Touch};
use crate::region::Rights;
use crate::touch;

/// A range of guest memory, translated once. Beyond its end reads return zeros and writes do nothing. Reading allocates no page of
/// its file.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    first: *mut u8,
    len: usize,
    may_write: bool,
    /// The mapping, unless all pages of the window are known to exist.
    unknown: Option<&'a Mapping>,
    mapping: PhantomData<&'a Mapping>,
}

impl Default for Window<'_> {
    /// An empty window.
    fn default() -> Self {
        Self { first: std::ptr::null_mut(), len: 0, may_write: true, unknown: None, mapping: PhantomData }
    }
}

impl<'a> Window<'a> {
    /// `len` bytes of a mapping from `offset`; they must be all within.
    #[inline]
    pub(crate) fn new(mapping: &'a Mapping, offset: usize, len: usize, rights: Rights) -> Self {
        let unknown = (!mapping.is_known(offset, len)).then_some(mapping);
        let len = mapping.slice(offset, len).len();
        Self { first: mapping.at(offset), len, may_write: rights.write, unknown, mapping: PhantomData }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a window of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of `len` bytes, if all of them are within.
    #[inline(always)]
    fn place(&self, offset: usize, len: usize) -> Option<*mut u8> {
        (len <= self.len && offset <= self.len - len).then(|| self.first.wrapping_add(offset))
    }

    /// The bytes at an address if their page may be missing: they must come from the mapping instead.
    #[inline(always)]
    fn source<const N: usize>(&self, place: *mut u8) -> Option<[u8; N]> {
        match self.unknown {
            None => None,
            Some(mapping) => absent(mapping, place),
        }
    }

    /// As [`Window::place`], for a write, if allowed; counts the allocated pages.
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
        let Some(place) = self.place(offset, N) else { return out };
        if let Some(bytes) = self.source(place) {
            return bytes;
        }
        let (words, tail) = out.as_chunks_mut::<8>();
        // SAFETY: `N` bytes from there are within, and these are some of them.
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

    /// Stores eight bytes, aligned or not. Not atomic.
    #[inline]
    pub fn write_u64(&self, offset: usize, value: u64) {
        if let Some(place) = self.target(offset, 8) {
            // SAFETY: it lies within.
            unsafe { touch::store_u64(place, value.to_le()) };
        }
    }

    /// Stores consecutive 64-bit numbers (entries of a ring), but none if they are not all within. Not atomic.
    pub fn write_u64s(&self, offset: usize, values: &[u64]) {
        let Some(place) = self.target(offset, 8 * values.len()) else { return };
        if cfg!(target_endian = "big") {
            values.iter().enumerate().for_each(|(i, value)| self.write_u64(offset + 8 * i, *value));
            return;
        }
        // SAFETY: `target` checked that all bytes are within, and the numbers have as many bytes.
        unsafe { touch::write(std::slice::from_raw_parts(values.as_ptr().cast(), 8 * values.len()), place) };
    }

    /// Hints that bytes will be accessed soon.
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
        if let Some(place) = self.target(offset, from.len()) {
            // SAFETY: `target` checked that all bytes are within.
            unsafe { touch::write(from, place) };
        }
    }

    /// An atomic 16-bit load with acquire ordering; unaligned numbers are read byte by byte.
    #[inline]
    pub fn load_u16(&self, offset: usize) -> u16 {
        let Some(place) = self.place(offset, 2) else { return 0 };
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
        let Some(place) = self.place(offset, 4) else { return 0 };
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
        let Some(place) = self.place(offset, 8) else { return 0 };
        if let Some(bytes) = self.source(place) {
            return u64::from_le_bytes(bytes);
        }
        // SAFETY: it lies within.
        u64::from_le(unsafe { touch::load_u64(place) })
    }

    /// An atomic 16-bit store with release ordering: who sees it sees all earlier writes.
    #[inline]
    pub fn store_u16(&self, offset: usize, value: u16) {
        let Some(place) = self.target(offset, 2) else { return };
        if !place.addr().is_multiple_of(2) {
            fence(Ordering::Release);
            return self.write(offset, &value.to_le_bytes());
        }
        // SAFETY: it lies within, and is aligned.
        unsafe { touch::store_u16(place, value.to_le()) };
    }

    /// An atomic 32-bit store with release ordering: who sees it sees all earlier writes.
    #[inline]
    pub fn store_u32(&self, offset: usize, value: u32) {
        let Some(place) = self.target(offset, 4) else { return };
        if !place.addr().is_multiple_of(4) {
            fence(Ordering::Release);
            return self.write(offset, &value.to_le_bytes());
        }
        // SAFETY: it lies within, and is aligned.
        unsafe { touch::store_u32(place, value.to_le()) };
    }

    /// An atomic 64-bit store with release ordering: who sees it sees all earlier writes.
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) {
        let Some(place) = self.target(offset, 8) else { return };
        fence(Ordering::Release);
        if !place.addr().is_multiple_of(8) {
            return self.write(offset, &value.to_le_bytes());
        }
        // SAFETY: it lies within.
        unsafe { touch::store_u64(place, value.to_le()) };
    }

    /// An atomic 8-bit store with release ordering: a status byte that passes on a descriptor.
    pub fn store_u8(&self, offset: usize, value: u8) {
        if let Some(place) = self.target(offset, 1) {
            // SAFETY: it lies within.
            unsafe { touch::store_u8(place, value) };
        }
    }
}

/// The content of a missing page, which must not be read through the mapping; `None` if the page exists.
#[cold]
#[inline(never)]
fn absent<const N: usize>(mapping: &Mapping, place: *const u8) -> Option<[u8; N]> {
    (!mapping.is_there(place, N)).then(|| mapping.read_at(place))
}

/// A full barrier between a write that passes something on and the read that checks whether the other side sleeps.
pub fn full_barrier() {
    fence(Ordering::SeqCst);
}
