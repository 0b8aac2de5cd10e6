//! Entries of a driver's ring, read ahead: all their heads at once, then each head's descriptor once; and entries of the device's
//! ring, written together.
//!
//! Most chains are one descriptor in one memory region. Such a chain is translated some entries before its turn, when its first
//! bytes are prefetched, and is not read again. Any other chain is walked in its turn ([`Areas::chain`]).

use nicety_adapter::PACKETS;
use nicety_memory::{Map, Rights, Span, Touch, Translator};

use super::chain::{INDIRECT, NEXT, Token, WRITE};
use super::ring::Ring;
use super::ring::areas::Areas;

/// Prefetch distance of a buffer's first bytes, in entries.
const AHEAD: u16 = 4;

/// Entries read ahead from a position in the driver's ring; the device writes their buffers, or reads them.
pub(super) struct Ahead<'m, const WRITES: bool, const PACKED: bool> {
    memory: Translator<'m>,
    first: u16,
    len: u16,
    /// Number of entries translated.
    looked: u16,
    /// Bytes of each buffer to prefetch.
    prefetch_len: u32,
    /// Heads of a split ring, identifiers of a packed one.
    names: [u16; PACKETS],
    descriptors: [u128; PACKETS],
    /// Empty if the chain must be walked.
    spans: [Span; PACKETS],
}

impl<'m, const WRITES: bool, const PACKED: bool> Ahead<'m, WRITES, PACKED> {
    const TOUCH: Touch = if WRITES { Touch::Write } else { Touch::Read };
    const RIGHTS: Rights = if WRITES { Rights::WRITE } else { Rights::READ };

    /// No entries yet. `prefetch_len` first bytes of each buffer will be prefetched.
    pub fn new(memory: &'m Map, prefetch_len: u32) -> Self {
        Self {
            memory: Translator::new(memory),
            first: 0,
            len: 0,
            looked: 0,
            prefetch_len,
            names: [0; PACKETS],
            descriptors: [0; PACKETS],
            spans: [Span::default(); PACKETS],
        }
    }

    /// Reads the next entries of a ring that were [`seen`](Areas::seen), at most `most`, and prefetches the entries of the device's
    /// ring for their completions.
    #[inline(always)]
    pub fn read(&mut self, ring: &Ring, areas: &Areas<'_, PACKED>, seen: u16, most: u16) {
        (self.first, self.looked) = (ring.next, 0);
        self.len = areas.read_ahead(self.first, seen, most, &mut self.names, &mut self.descriptors);
        areas.prefetch_used(ring.used, self.len);
        (0..AHEAD).for_each(|_| self.look());
    }

    /// Translates the next buffer if it is its chain's only one, and prefetches its first bytes.
    #[inline(always)]
    pub fn look(&mut self) {
        if self.looked >= self.len {
            return;
        }
        let index = usize::from(self.looked) % PACKETS;
        self.looked += 1;
        let descriptor = self.descriptors[index];
        let (address, len) = (descriptor as u64, (descriptor >> 64) as u32);
        let flags = Areas::<PACKED>::flags(descriptor);
        self.spans[index] = if flags & (NEXT | INDIRECT | WRITE) == if WRITES { WRITE } else { 0 }
            && let Some(span) = self.memory.whole(address, len, Self::RIGHTS)
        {
            span.prefetch(self.prefetch_len, Self::TOUCH);
            span
        } else {
            let touch = if flags & INDIRECT == 0 { Self::TOUCH } else { Touch::Read };
            self.memory.map().prefetch(address, len.min(self.prefetch_len), touch);
            Span::default()
        };
    }

    /// The only buffer of the chain at a position, with its token; `None` if the chain was not read ahead or must be walked.
    #[inline(always)]
    pub fn only(&self, areas: &Areas<'_, PACKED>, at: u16) -> Option<(Token, Span)> {
        let index = areas.distance(self.first, at);
        if index >= self.looked {
            return None;
        }
        let index = usize::from(index) % PACKETS;
        let span = self.spans[index];
        if span.is_empty() { None } else { Some((Areas::<PACKED>::token_of_one(self.names[index]), span)) }
    }
}

/// Chains to be completed.
pub(super) struct Returns {
    len: usize,
    entries: [u64; PACKETS],
}

impl Returns {
    pub fn new() -> Self {
        Self { len: 0, entries: [0; PACKETS] }
    }

    /// Completes a chain, with this many bytes written. The ring has it after [`Returns::write`].
    #[inline]
    pub fn push<const PACKED: bool>(&mut self, ring: &mut Ring, areas: &Areas<'_, PACKED>, token: Token, bytes: u32) {
        if self.len == PACKETS {
            self.write(ring, areas);
        }
        if let Some(entry) = self.entries.get_mut(self.len) {
            *entry = token.with_bytes(bytes);
            self.len += 1;
        }
    }

    /// Fills the entries of the device's ring; the driver of a split one sees them only after [`Areas::show`].
    pub fn write<const PACKED: bool>(&mut self, ring: &mut Ring, areas: &Areas<'_, PACKED>) {
        areas.give_back(ring, self.entries.get(..self.len).unwrap_or_default());
        self.len = 0;
    }
}
