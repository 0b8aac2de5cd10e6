//! Runs of plain packets: one span of the sender's memory each, without an offload. Most packets of a busy ring are.

use nicety_memory::{Readable, Span};

use super::{Batch, HEAD_BYTES, Head, Offload, PACKET_BYTES, PACKETS, Packet, SPANS};

/// A run of plain packets that are added to a batch. The batch has them when the run is [over](Plain::end).
#[derive(Debug)]
pub struct Plain<'b> {
    packets: &'b mut [Packet; PACKETS],
    heads: &'b mut [Head; PACKETS],
    spans: &'b mut Vec<Span>,
    batch_len: &'b mut usize,
    batch_bytes: &'b mut u64,
    len: usize,
    bytes: u64,
}

impl Batch {
    /// Begins a run of plain packets.
    #[inline(always)]
    pub fn plain(&mut self) -> Plain<'_> {
        let Self { packets, heads, spans, len: batch_len, bytes: batch_bytes, .. } = self;
        let (len, bytes) = (*batch_len, *batch_bytes);
        Plain { packets, heads, spans, batch_len, batch_bytes, len, bytes }
    }
}

/// Shortest packet of a run: one that needs no padding.
const SHORTEST: u32 = 60;
/// Bytes of a private head.
const HEAD: u32 = HEAD_BYTES as u32;

impl Plain<'_> {
    /// Number of the batch's packets.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the batch holds no packet.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all packets of the batch.
    #[inline(always)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the packet that begins `from` bytes into some of the sender's memory and ends with it. `span` is the same memory in the batch's
    /// map, and is asked for only if the packet does not fit into its private head. False if the packet is too short, too long or has no
    /// span, or if the batch is full.
    #[inline(always)]
    pub fn push(&mut self, memory: Readable<'_>, from: u32, cookie: u64, span: impl FnOnce() -> Option<Span>) -> bool {
        let (index, len) = (self.len, memory.len().wrapping_sub(from));
        let (Some(packet), Some(Head(head))) = (self.packets.get_mut(index), self.heads.get_mut(index)) else {
            return false;
        };
        let (Some(head), true) = (head.first_chunk_mut::<HEAD_BYTES>(), (SHORTEST..=PACKET_BYTES).contains(&len))
        else {
            return false;
        };
        memory.read(from, head);
        let plain = Packet {
            cookie,
            payload: 0,
            spans_at: 0,
            spans: 0,
            offload: Offload::default(),
            head_len: len as u16,
            index: index as u16,
        };
        if len <= HEAD {
            *packet = plain;
        } else {
            let Some(span) = span().filter(|_| self.spans.len() < SPANS) else { return false };
            let (spans_at, payload) = (self.spans.len() as u16, len - HEAD);
            self.spans.push(span.piece(from.saturating_add(HEAD), payload));
            *packet = Packet { payload, spans_at, spans: 1, head_len: HEAD as u16, ..plain };
        }
        self.len = index.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(len.into());
        true
    }

    /// Ends the run.
    #[inline(always)]
    pub fn end(self) {
        (*self.batch_len, *self.batch_bytes) = (self.len, self.bytes);
    }
}
