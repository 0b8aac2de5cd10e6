//! Entries of a driver's ring, read ahead of their turns: all their heads at once, each head's descriptor once; and entries of the
//! device's ring, written together.
//!
//! Most chains are one descriptor of memory in one region. Such a one is translated some entries before its turn, when its first bytes
//! are asked for, and is not looked at again. Any other is walked in its turn ([`Areas::chain`]).

use nicety_adapter::PACKETS;
use nicety_memory::{Map, Rights, Span, Touch, Translator};

use super::ring::{Areas, INDIRECT, NEXT, Ring, WRITE};

/// How many entries before its turn a buffer's first bytes are asked for.
const AHEAD: u16 = 4;

/// Entries that wait, from a place in the driver's ring on; their buffers are for the device to write, or to read.
pub(super) struct Ahead<'m, const WRITES: bool> {
    memory: Translator<'m>,
    first: u16,
    len: u16,
    /// How many were looked at.
    looked: u16,
    /// Bytes of each buffer that are asked for.
    foreseen: u32,
    heads: [u16; PACKETS],
    descriptors: [u128; PACKETS],
    /// Of no bytes, if the chain is to be walked.
    spans: [Span; PACKETS],
}

impl<'m, const WRITES: bool> Ahead<'m, WRITES> {
    const TOUCH: Touch = if WRITES { Touch::Write } else { Touch::Read };
    const RIGHTS: Rights = if WRITES { Rights::WRITE } else { Rights::READ };

    /// No entries. So many of the first bytes of their buffers will be asked for.
    pub fn new(memory: &'m Map, foreseen: u32) -> Self {
        Self {
            memory: Translator::new(memory),
            first: 0,
            len: 0,
            looked: 0,
            foreseen,
            heads: [0; PACKETS],
            descriptors: [0; PACKETS],
            spans: [Span::default(); PACKETS],
        }
    }

    /// Reads the next entries of a ring, of which so many wait at least, and hints at what of its device's ring they will be given
    /// back in.
    pub fn read(&mut self, ring: &Ring, areas: &Areas<'_>, entries: u16) {
        self.len = entries.min(ring.size).min(PACKETS as u16);
        (self.first, self.looked) = (ring.next, 0);
        let heads = &mut self.heads[..usize::from(self.len)];
        areas.heads(self.first, heads);
        heads.iter().for_each(|head| areas.foresee(*head));
        for (descriptor, head) in self.descriptors.iter_mut().zip(&*heads) {
            *descriptor = areas.descriptor(*head);
        }
        areas.foresee_used(ring.used, self.len);
        (0..AHEAD).for_each(|_| self.look());
    }

    /// Translates the next buffer, if it is its chain's only one, and asks for its first bytes.
    #[inline(always)]
    pub fn look(&mut self) {
        if self.looked >= self.len {
            return;
        }
        let index = usize::from(self.looked) % PACKETS;
        self.looked += 1;
        let descriptor = self.descriptors[index];
        let (address, len, flags) = (descriptor as u64, (descriptor >> 64) as u32, (descriptor >> 96) as u16);
        self.spans[index] = if flags & (NEXT | INDIRECT | WRITE) == if WRITES { WRITE } else { 0 }
            && let Some(span) = self.memory.whole(address, len, Self::RIGHTS)
        {
            span.prefetch(self.foreseen, Self::TOUCH);
            span
        } else {
            let touch = if flags & INDIRECT == 0 { Self::TOUCH } else { Touch::Read };
            self.memory.map().prefetch(address, len.min(self.foreseen), touch);
            Span::default()
        };
    }

    /// The head and the only buffer of an entry; nothing if it was not read ahead, or its chain is to be walked.
    #[inline(always)]
    pub fn only(&self, entry: u16) -> Option<(u16, Span)> {
        let index = entry.wrapping_sub(self.first);
        if index >= self.looked {
            return None;
        }
        let index = usize::from(index) % PACKETS;
        let span = self.spans[index];
        if span.is_empty() { None } else { Some((self.heads[index], span)) }
    }
}

/// Entries of a device's ring that are to be written.
pub(super) struct Returns {
    len: usize,
    entries: [u64; PACKETS],
}

impl Returns {
    pub fn new() -> Self {
        Self { len: 0, entries: [0; PACKETS] }
    }

    /// Gives a chain back, of which so many bytes were written. It is in the ring after [`Returns::write`].
    #[inline]
    pub fn push(&mut self, ring: &mut Ring, areas: &Areas<'_>, head: u16, bytes: u32) {
        if self.len == PACKETS {
            self.write(ring, areas);
        }
        if let Some(entry) = self.entries.get_mut(self.len) {
            *entry = u64::from(head) | u64::from(bytes) << 32;
            self.len += 1;
            ring.used = ring.used.wrapping_add(1);
        }
    }

    /// Fills the entries of the device's ring; the driver does not see them before [`Ring::publish`].
    pub fn write(&mut self, ring: &Ring, areas: &Areas<'_>) {
        let entries = self.entries.get(..self.len).unwrap_or_default();
        areas.fill(ring.used.wrapping_sub(self.len as u16), entries);
        self.len = 0;
    }
}
