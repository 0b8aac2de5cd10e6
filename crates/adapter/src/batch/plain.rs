//! Runs of plain packets: whole in their private heads, without an offload. Most frames of a busy ring of short ones are.

use nicety_memory::Readable;

use super::{Batch, HEAD_BYTES, Head, Offload, PACKETS, Packet};

/// A run of plain packets that are added to a batch. The batch has them when the run is [over](Plain::end).
#[derive(Debug)]
pub struct Plain<'b> {
    packets: &'b mut [Packet; PACKETS],
    heads: &'b mut [Head; PACKETS],
    batch_len: &'b mut usize,
    batch_bytes: &'b mut u64,
    len: usize,
    bytes: u64,
}

impl Batch {
    /// Begins a run of plain packets.
    #[inline(always)]
    pub fn plain(&mut self) -> Plain<'_> {
        let Self { packets, heads, len: batch_len, bytes: batch_bytes, .. } = self;
        let (len, bytes) = (*batch_len, *batch_bytes);
        Plain { packets, heads, batch_len, batch_bytes, len, bytes }
    }
}

impl Plain<'_> {
    /// Shortest packet of a run: one that needs no padding.
    const SHORTEST: u32 = 60;
    /// Longest packet of a run.
    const LONGEST: u32 = HEAD_BYTES as u32;

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

    /// Adds the packet that begins `from` bytes into some of the sender's memory and ends with it. False if it is not of a run's lengths
    /// or the batch is full.
    #[inline(always)]
    pub fn push(&mut self, memory: Readable<'_>, from: u32, cookie: u64) -> bool {
        let (index, len) = (self.len, memory.len().wrapping_sub(from));
        if len.wrapping_sub(Self::SHORTEST) > Self::LONGEST - Self::SHORTEST || index >= PACKETS {
            return false;
        }
        let Head(head) = &mut self.heads[index];
        memory.read(from, &mut head[..len as usize]);
        self.packets[index] = Packet {
            cookie,
            payload: 0,
            head_len: len as u16,
            index: index as u16,
            spans_at: 0,
            spans: 0,
            offload: Offload::default(),
        };
        self.len = index + 1;
        self.bytes = self.bytes.wrapping_add(len.into());
        true
    }

    /// Ends the run.
    #[inline(always)]
    pub fn end(self) {
        (*self.batch_len, *self.batch_bytes) = (self.len, self.bytes);
    }
}
