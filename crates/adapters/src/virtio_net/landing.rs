//! Buffers of a receive ring that one frame goes into.

use arrayvec::ArrayVec;
use nicety_memory::Span;

use super::chain::Token;
use super::registers::header;

/// Chains and spans of one frame at most: 64 KB in pieces of 256 bytes, and some.
pub(super) const PIECES: usize = 300;

/// Buffers for one frame.
pub(super) struct Landing {
    /// What each chain is given back by, and its room.
    pub chains: ArrayVec<(Token, u32), PIECES>,
    /// How many entries, or descriptors, of the ring they have.
    pub slots: u32,
    /// Where the header goes.
    pub header: ArrayVec<Span, { header::HASH_LEN }>,
    /// Where the frame goes.
    pub spans: ArrayVec<Span, PIECES>,
    /// Bytes of all chains.
    pub room: u32,
}

impl Landing {
    pub fn new() -> Self {
        Self { chains: ArrayVec::new(), slots: 0, header: ArrayVec::new(), spans: ArrayVec::new(), room: 0 }
    }

    /// Adds room: the first bytes are the header's.
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
