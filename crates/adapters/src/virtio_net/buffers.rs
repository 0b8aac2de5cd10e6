//! Receive ring buffers for one frame.

use arrayvec::ArrayVec;
use nicety_memory::Span;

use super::chain::Token;
use super::registers::header;

/// Maximum chains and spans of one frame: 64 KB in pieces of 256 bytes, plus a margin.
pub(super) const PIECES: usize = 300;

/// Buffers for one frame.
pub(super) struct FrameBuffers {
    /// Token and capacity of each chain.
    pub chains: ArrayVec<(Token, u32), PIECES>,
    /// Number of ring entries (packed: descriptors) of the chains.
    pub slots: u32,
    /// Place for the header.
    pub header: ArrayVec<Span, { header::HASH_LEN }>,
    /// Place for the frame.
    pub spans: ArrayVec<Span, PIECES>,
    /// Capacity of all chains in bytes.
    pub room: u32,
}

impl FrameBuffers {
    pub fn new() -> Self {
        Self { chains: ArrayVec::new(), slots: 0, header: ArrayVec::new(), spans: ArrayVec::new(), room: 0 }
    }

    /// Adds a span. Its first bytes are for the header, until the header is complete.
    pub fn push(&mut self, span: Span, header_len: u32) -> Option<()> {
        let for_header = header_len.saturating_sub(self.room).min(span.len());
        if for_header > 0 {
            self.header.try_push(span.piece(0, for_header)).ok()?;
        }
        let rest = span.piece(for_header, span.len());
        self.room = self.room.checked_add(span.len())?;
        if !rest.is_empty() && !self.spans.last_mut().is_some_and(|last| last.joins(rest)) {
            self.spans.try_push(rest).ok()?;
        }
        Some(())
    }
}
