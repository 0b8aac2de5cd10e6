//! Memory for a device's writes, translated: receive buffers.

use crate::map::Map;
use crate::mapping::Mapping;
use crate::prefetch::{self, Touch};
use crate::presence::PAGE;
use crate::span::Span;
use crate::touch;

/// Memory that a device may write: a piece of one region. It borrows its map, so a write checks no identifier, as one to a [`Span`] does.
#[derive(Clone, Copy, Debug)]
pub struct Target<'m> {
    first: *mut u8,
    len: u32,
    /// The mapping, unless all pages are known to exist.
    unknown: Option<&'m Mapping>,
}

impl Default for Target<'_> {
    /// No bytes.
    fn default() -> Self {
        Self { first: std::ptr::null_mut(), len: 0, unknown: None }
    }
}

impl<'m> Target<'m> {
    /// Bytes of a region from an address on, all on pages known to exist.
    #[inline(always)]
    pub(crate) fn known(first: *mut u8, len: u32) -> Self {
        Self { first, len, unknown: None }
    }

    /// A span of a mapping.
    #[inline]
    pub(crate) fn of(span: Span, mapping: &'m Mapping) -> Self {
        Self { first: span.first, len: span.len, unknown: (!span.known).then_some(mapping) }
    }

    /// Bytes.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True for no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Hints that its first bytes will be written soon: the cache lines of the first and the last of `len`, of which `header` are a header.
    /// No bytes get no hint.
    #[inline(always)]
    pub fn prefetch(&self, header: u32, len: u32) {
        if self.len == 0 {
            return;
        }
        // A header alone in its line is most often there already, and is then only read.
        let is_alone = self.first as usize % prefetch::LINE + header as usize == prefetch::LINE;
        prefetch::line(self.first, if is_alone { Touch::Read } else { Touch::Write });
        prefetch::line(self.first.wrapping_add(len.saturating_sub(1) as usize), Touch::Write);
    }

    /// The address of these bytes, if they are within; counts the pages that a write allocates.
    #[inline(always)]
    fn place(&self, at: u32, len: usize) -> Option<*mut u8> {
        let room = self.len.checked_sub(at)?;
        if len > room as usize {
            return None;
        }
        let place = self.first.wrapping_add(at as usize);
        if let Some(mapping) = self.unknown {
            mapping.allocate_at(place, len);
        }
        Some(place)
    }

    /// Writes a header of `N` bytes (or none), a number in little-endian order, and bytes behind it. False if there is no room for both; then nothing
    /// is written.
    #[inline]
    pub fn write<const N: usize>(&self, header: u128, bytes: &[u8]) -> bool {
        let Some(first) = self.place(0, N.saturating_add(bytes.len())) else { return false };
        #[cfg(feature = "count")]
        crate::count::bytes(N + bytes.len());
        // SAFETY: `place` has checked that all these bytes are within.
        unsafe {
            store_header::<N>(first, header);
            touch::write(bytes, first.wrapping_add(N));
        }
        true
    }

    /// Like [`write`](Target::write), for 32 to 64 bytes to pages that are known to exist. False in any other case; then nothing is written.
    #[inline(always)]
    pub fn write_short<const N: usize>(&self, header: u128, bytes: &[u8]) -> bool {
        if !(32..=64).contains(&bytes.len())
            || self.unknown.is_some()
            || N.wrapping_add(bytes.len()) > self.len as usize
        {
            return false;
        }
        #[cfg(feature = "count")]
        crate::count::bytes(N + bytes.len());
        // SAFETY: all these bytes are within.
        unsafe {
            store_header::<N>(self.first, header);
            touch::write_short(bytes, self.first.wrapping_add(N));
        }
        true
    }

    /// Copies a span of `source` to an offset; nothing if there is no room for all of it. They may overlap. Allocates no page of the source.
    #[inline]
    pub fn copy(&self, at: u32, source: &Map, from: Span) {
        let len = from.len() as usize;
        #[cfg(feature = "count")]
        crate::count::bytes(len);
        let Some(to) = self.place(at, len) else { return };
        match source.known(from) {
            // SAFETY: the identifier shows that the span is of its map, and `place` has checked that all these bytes are within.
            Some(from) => unsafe { touch::across(from, to, len) },
            // SAFETY: as above.
            None => unsafe { copy_unknown(source, from, to) },
        }
    }
}

/// Stores the first bytes of a number in little-endian order, unless they are there already.
///
/// A guest that reads a header reads it before all else. If its line is not written, the guest's processor need not fetch it from this
/// one. DPDK's buffers have the header in a line of its own, and most frames have the same header.
///
/// # Safety
/// `N` bytes are mapped there.
#[inline(always)]
unsafe fn store_header<const N: usize>(first: *mut u8, header: u128) {
    const { assert!(N == 0 || N == 8 || N == 12 || N == 16, "whole words") }
    let (low, high) = (header as u64, (header >> 64) as u64);
    // SAFETY: as the caller guarantees.
    unsafe {
        let behind = first.wrapping_add(8);
        match N {
            8 if touch::load_u64(first) != low.to_le() => touch::store_u64(first, low.to_le()),
            12 if touch::load_u64(first) != low.to_le() || touch::load_u32(behind) != (high as u32).to_le() => {
                touch::store_u64(first, low.to_le());
                touch::store_u32(behind, (high as u32).to_le());
            }
            16 if touch::load_u64(first) != low.to_le() || touch::load_u64(behind) != high.to_le() => {
                touch::store_u64(first, low.to_le());
                touch::store_u64(behind, high.to_le());
            }
            _ => {}
        }
    }
}

/// Copies a span whose pages may be missing, or whose map has a tape, by way of a private buffer.
///
/// # Safety
/// As many bytes are mapped at `to`.
#[cold]
#[inline(never)]
unsafe fn copy_unknown(source: &Map, from: Span, to: *mut u8) {
    let (mut bytes, mut done) = ([0; PAGE], 0);
    while done < from.len() {
        let piece = from.piece(done, PAGE as u32);
        let read = source.copy_out_of_unknown(piece, &mut bytes[..piece.len() as usize]);
        // SAFETY: as the caller guarantees: `done` and `read` together are at most the span's length.
        unsafe { touch::write(&bytes[..read], to.wrapping_add(done as usize)) };
        done += piece.len();
    }
}
