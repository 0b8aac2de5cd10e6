//! Chains of a transmit ring, read ahead: those that are one buffer in one memory region each, as most are.
//!
//! Short frames that request nothing are taken in a run, one after another. Any other chain is taken in its turn.

use nicety_adapter::{Batch, Budget, HEAD_BYTES, PACKETS, QueueCounters};
use nicety_memory::{Map, Readable, Rights, Span, Touch, Translator};

use super::chain::{INDIRECT, NEXT, Token, WRITE};
use super::registers::{Header, header};
use super::ring::Ring;
use super::ring::areas::Areas;

/// Bytes of a frame to prefetch: header and private head.
const PREFETCH_BYTES: u32 = (header::LEN + HEAD_BYTES) as u32;

/// Chains from a position in the driver's ring on.
pub(super) struct Burst<'m, const PACKED: bool> {
    memory: Translator<'m>,
    first: u16,
    len: u16,
    /// The token of each chain, if it is one descriptor alone.
    chains: [u64; PACKETS],
    /// The first descriptor of each chain.
    descriptors: [u128; PACKETS],
    /// The buffer of each; without bytes if it is not the only one of its chain, or cannot be read as it is.
    buffers: [Readable<'m>; PACKETS],
}

impl<'m, const PACKED: bool> Burst<'m, PACKED> {
    /// No chains yet.
    pub fn new(memory: &'m Map) -> Self {
        Self {
            memory: Translator::new(memory),
            first: 0,
            len: 0,
            chains: [0; PACKETS],
            descriptors: [0; PACKETS],
            buffers: [Readable::default(); PACKETS],
        }
    }

    /// Reads the next chains of a ring that were [`seen`](Areas::seen), at most `most`, and prefetches their buffers' first bytes.
    // Not inlined, as `take` is not: each loop has all registers.
    #[inline(never)]
    pub fn read(&mut self, ring: &Ring, areas: &Areas<'_, PACKED>, seen: u16, most: u16) {
        self.first = ring.next;
        self.len = areas.read_burst(self.first, seen, most, &mut self.chains, &mut self.descriptors);
        let descriptors = self.descriptors.iter().take(self.len.into());
        for (buffer, descriptor) in self.buffers.iter_mut().zip(descriptors) {
            let (address, len) = (*descriptor as u64, (*descriptor >> 64) as u32);
            if Areas::<PACKED>::flags(*descriptor) & (NEXT | INDIRECT | WRITE) == 0
                && let Some(readable) = self.memory.readable(address, len)
            {
                readable.prefetch();
                *buffer = readable;
            } else {
                self.memory.map().prefetch(address, len.min(PREFETCH_BYTES), Touch::Read);
                *buffer = Readable::default();
            }
        }
        areas.prefetch_used(ring.used, self.len);
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
        let descriptor = *self.descriptors.get(number)?;
        if self.buffers.get(number)?.is_empty() {
            return None;
        }
        let span = self.memory.whole(descriptor as u64, (descriptor >> 64) as u32, Rights::READ)?;
        Some((Token(*self.chains.get(number)? as u32), span))
    }

    /// Adds packets to the batch, from the ring's next chain on. It stops at a packet that has several buffers or requests an offload, and
    /// at the limits of the budget and of descriptors. The budget must allow the first packet. Returns the counts of what it has taken.
    #[inline(never)]
    pub fn take(
        &mut self,
        ring: &mut Ring,
        areas: &Areas<'_, PACKED>,
        header_len: u32,
        budget: Budget,
        batch: &mut Batch,
    ) -> QueueCounters {
        let Some(from) = self.number(areas, ring.next) else { return QueueCounters::default() };
        let (packets, bytes) = (batch.len(), batch.bytes());
        let most = (areas.steps_left() as usize).min(budget.packets.saturating_sub(packets));
        let until = usize::from(self.len).min(from.saturating_add(most));
        let Self { memory, chains, descriptors, buffers, .. } = self;
        let mut plain = batch.plain();
        for number in from..until.min(PACKETS) {
            let buffer = buffers[number];
            let span = || memory.whole(descriptors[number] as u64, buffer.len(), Rights::READ);
            let requests_nothing = Header::requests_nothing(buffer.load_u16());
            if !requests_nothing || !plain.push(buffer, header_len, chains[number], span) {
                break;
            }
            if plain.bytes() >= budget.bytes {
                break;
            }
        }
        plain.end();
        let taken = batch.len().wrapping_sub(packets);
        areas.note_ones(taken as u32);
        ring.next = areas.after(ring.next, taken as u16);
        let (packets, bytes) = (taken as u64, batch.bytes().wrapping_sub(bytes));
        QueueCounters { packets, frames: packets, bytes }
    }
}
