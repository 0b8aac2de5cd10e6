//! Memory of our own for frames: one region at address 0, made once.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nicety_adapter::PACKET_BYTES;
use nicety_memory::{Map, MapError, Mapping, Rights, Span};

/// Longest packet with a header of 16 bytes, in whole cache lines.
pub(crate) const SLOT_BYTES: u32 = (PACKET_BYTES + 16).next_multiple_of(64);

/// A region, and the spans in it.
#[derive(Debug)]
pub(crate) struct Buffers {
    map: Arc<Map>,
    whole: Span,
}

impl Buffers {
    pub(crate) fn new(bytes: u32) -> Result<Self, MapError> {
        Self::of(Map::private(bytes as usize)?, bytes)
    }

    /// The first bytes of a memory file of ours.
    pub(crate) fn of_file(file: OwnedFd, bytes: u32) -> Result<Self, MapError> {
        let mapping = Mapping::of_file(file, 0, bytes.into(), true)?;
        Self::of(Map::default().with(0, Arc::new(mapping), Rights::BOTH)?, bytes)
    }

    fn of(map: Map, bytes: u32) -> Result<Self, MapError> {
        let map = Arc::new(map);
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

    /// Address of the first byte in this process.
    pub(crate) fn address(&self) -> u64 {
        self.map.bytes(self.whole).ptr_guard_mut().as_ptr().addr() as u64
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
