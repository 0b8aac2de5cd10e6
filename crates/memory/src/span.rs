//! Translated guest memory.

use std::ptr::NonNull;

use crate::mapping::Mapping;
use crate::prefetch::{self, Touch};

/// Translated guest memory: a piece of one region of one [`Map`](crate::Map). Valid only with that map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub(crate) mapping: Option<NonNull<Mapping>>,
    /// The address of its first byte.
    pub(crate) first: *mut u8,
    /// The identifier of the map.
    pub(crate) id: u64,
    pub(crate) len: u32,
    /// All of its pages are known to exist, permanently.
    pub(crate) known: bool,
}

// SAFETY: any thread may use its mapping. Only `Map` uses it, together with the map that keeps the mapping.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Default for Span {
    /// An empty span.
    fn default() -> Self {
        Self { mapping: None, first: std::ptr::null_mut(), id: 0, len: 0, known: false }
    }
}

impl Span {
    /// A part of a mapping of that map; it must lie within.
    #[inline(always)]
    pub(crate) fn of(mapping: &Mapping, at: usize, len: u32, id: u64) -> Self {
        let known = mapping.is_known(at, len as usize);
        Self { mapping: Some(NonNull::from(mapping)), first: mapping.at(at), id, len, known }
    }

    /// Bytes of a mapping of that map from an address on; they must lie within, and all of their pages must be known to exist.
    #[inline(always)]
    pub(crate) fn of_known(mapping: &Mapping, first: *mut u8, len: u32, id: u64) -> Self {
        Self { mapping: Some(NonNull::from(mapping)), first, id, len, known: true }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// True for a span of no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part `[from, from + len)` of this span, truncated at its end.
    #[inline]
    pub fn piece(&self, from: u32, len: u32) -> Span {
        let from = from.min(self.len);
        Span { first: self.first.wrapping_add(from as usize), len: len.min(self.len - from), ..*self }
    }

    /// Appends `next` if it follows this span directly in the same mapping.
    #[inline]
    pub fn joins(&mut self, next: Span) -> bool {
        let same = self.mapping == next.mapping && self.id == next.id;
        let adjacent = same && self.first.wrapping_add(self.len as usize) == next.first;
        match (adjacent, self.len.checked_add(next.len)) {
            (true, Some(len)) => {
                self.len = len;
                self.known &= next.known;
                true
            }
            _ => false,
        }
    }

    /// Hints that its first `len` bytes will be accessed soon.
    #[inline]
    pub fn prefetch(&self, len: u32, touch: Touch) {
        prefetch::lines(self.first, len.min(self.len) as usize, touch);
    }
}
