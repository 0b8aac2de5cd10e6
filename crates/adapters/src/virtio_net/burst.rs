//! Chains of a transmit ring, read ahead: those that are one buffer in one memory region each, as most are.
//!
//! Short frames that request nothing are taken in a run, one after another. Any other chain is taken in its turn.

use nicety_adapter::{Budget, PACKETS, Plain};
use nicety_memory::{Map, Readable, Rights, Span, Touch, Translator};

use super::chain::{INDIRECT, NEXT, Token, WRITE};
use super::registers::Header;
use super::ring::Ring;
use super::ring::areas::Areas;

/// Chains from a position in the driver's ring on.
pub(super) struct Burst<'m, const PACKED: bool> {
    memory: Translator<'m>,
    first: u16,
    len: u16,
    /// The token of each chain.
    chains: [u64; PACKETS],
    /// The buffer of each; without bytes if it is not readable as it is, or is not the only one.
    buffers: [(u64, Readable<'m>); PACKETS],
}

impl<'m, const PACKED: bool> Burst<'m, PACKED> {
    /// The next chains of a ring that were [`seen`](Areas::seen), at most `most`. `prefetch_len` first bytes of each buffer are
    /// prefetched.
    #[inline(always)]
    pub fn read(
        memory: &'m Map,
        prefetch_len: u32,
        ring: &Ring,
        areas: &Areas<'_, PACKED>,
        seen: u16,
        most: u16,
    ) -> Self {
        let (first, mut chains, mut memory) = (ring.next, [0; PACKETS], Translator::new(memory));
        let mut buffers = [(0, Readable::default()); PACKETS];
        let len = areas.read_rooms(first, seen, most, &mut chains, &mut buffers, |address, len, flags| {
            if flags & (NEXT | INDIRECT | WRITE) == 0
                && let Some(buffer) = memory.readable(address, len)
            {
                buffer.prefetch(prefetch_len);
                return (address, buffer);
            }
            memory.map().prefetch(address, len.min(prefetch_len), Touch::Read);
            (address, Readable::default())
        });
        areas.prefetch_used(ring.used, len);
        Self { memory, first, len, chains, buffers }
    }

    /// Number of the chain at a position, if it was read ahead.
    #[inline(always)]
    fn number(&self, areas: &Areas<'_, PACKED>, at: u16) -> Option<usize> {
        let number = areas.distance(self.first, at);
        (number < self.len).then_some(number.into())
    }

    /// Whether the chain at a position starts with a descriptor that was read ahead.
    #[inline(always)]
    pub fn has_read(&self, areas: &Areas<'_, PACKED>, at: u16) -> bool {
        self.number(areas, at).is_some()
    }

    /// The only buffer of the chain at a position, with its token; `None` if the chain was not read ahead or must be walked.
    #[inline]
    pub fn only(&mut self, areas: &Areas<'_, PACKED>, at: u16) -> Option<(Token, Span)> {
        let number = self.number(areas, at)?;
        let ((address, buffer), chain) = (self.buffers.get(number)?, self.chains.get(number)?);
        if buffer.is_empty() {
            return None;
        }
        Some((Token(*chain as u32), self.memory.whole(*address, buffer.len(), Rights::READ)?))
    }

    /// Adds frames to a run, from the chain at a position on: as long as they are short and request nothing, and the budget and this
    /// number of descriptors allow it. Returns the number of chains taken.
    #[inline(always)]
    pub fn take(
        &self,
        areas: &Areas<'_, PACKED>,
        at: u16,
        header_len: u32,
        budget: Budget,
        plain: &mut Plain<'_>,
    ) -> u16 {
        let Some(from) = self.number(areas, at) else { return 0 };
        let most = (areas.steps_left() as usize).min(budget.packets.saturating_sub(plain.len()));
        let until = usize::from(self.len).min(from.saturating_add(most));
        let (Some(chains), Some(buffers)) = (self.chains.get(from..until), self.buffers.get(from..until)) else {
            return 0;
        };
        let before = plain.len();
        for (chain, (_, buffer)) in chains.iter().zip(buffers) {
            let is_full = plain.bytes() >= budget.bytes && !plain.is_empty();
            if is_full || !Header::requests_nothing(buffer.load_u16()) || !plain.push(*buffer, header_len, *chain) {
                break;
            }
        }
        plain.len().wrapping_sub(before) as u16
    }
}
