//! Private memory for frames: one region at address 0, made once.

use std::sync::Arc;

use nicety_adapter::PACKET_BYTES;
use nicety_memory::{Map, MapError, Rights, Span};

/// Longest packet with a header of 16 bytes, in whole cache lines.
pub(crate) const SLOT_BYTES: u32 = (PACKET_BYTES + 16).next_multiple_of(64);

/// A private region, and the spans in it.
#[derive(Debug)]
pub(crate) struct Buffers {
    map: Arc<Map>,
    whole: Span,
}

impl Buffers {
    pub(crate) fn new(bytes: u32) -> Result<Self, MapError> {
        let map = Arc::new(Map::private(bytes as usize)?);
        let mut whole = Span::default();
        let take = |span| {
            whole = span;
            true
        };
        map.translate(0, bytes, Rights::BOTH, take).map_err(|_| MapError::Unknown { base: 0, len: bytes.into() })?;
        Ok(Self { map, whole })
    }

    pub(crate) fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// The bytes `[at, at + len)`, cut at the end.
    pub(crate) fn span(&self, at: u32, len: u32) -> Span {
        self.whole.piece(at, len)
    }

    pub(crate) fn len(&self) -> u32 {
        self.whole.len()
    }

    /// Whether a batch still points into it.
    pub(crate) fn held(&self) -> bool {
        Arc::strong_count(&self.map) > 1
    }
}
