//! The MSI-X table and its pending-bit array (PCI 3.0 §6.8.2). If the transport's client keeps the table, the client holds the masks and
//! the pending bits: the bits of the array are zero here.

use crate::cells::offsets;
use crate::registers as r;

/// An interrupt message: a 32-bit write to an address of the platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The address to which the function writes.
    pub address: u64,
    /// The word that it writes.
    pub data: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    address: u64,
    data: u32,
    masked: bool,
}

impl Entry {
    /// After reset every vector is masked (§6.8.2.9).
    const RESET: Self = Self { address: 0, data: 0, masked: true };

    fn to_bytes(self) -> [u8; r::MSIX_ENTRY] {
        let mut bytes = [0; r::MSIX_ENTRY];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.data.to_le_bytes());
        bytes[12] = u8::from(self.masked);
        bytes
    }

    /// The reserved bits (address 1:0, vector control 31:1) stay zero.
    fn from_bytes(bytes: [u8; r::MSIX_ENTRY]) -> Self {
        let whole = u128::from_le_bytes(bytes);
        Self { address: whole as u64 & !3, data: (whole >> 64) as u32, masked: whole >> 96 & 1 != 0 }
    }
}

/// An MSI-X table, and its pending-bit array, whose bits are never set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Msix {
    entries: Box<[Entry]>,
}

impl Msix {
    /// A table of `vectors` (at least 1, at most 2048: more or fewer are clamped), as after reset: all masked.
    #[must_use]
    pub fn new(vectors: u16) -> Self {
        let vectors = vectors.clamp(1, r::MSIX_VECTORS);
        Self { entries: vec![Entry::RESET; usize::from(vectors)].into_boxed_slice() }
    }

    /// Returns to the state after [`Msix::new`].
    pub fn reset(&mut self) {
        let Self { entries } = self;
        entries.fill(Entry::RESET);
    }

    /// Number of vectors.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        // `new` took a u16.
        self.entries.len() as u16
    }

    /// Bytes of the table.
    #[must_use]
    pub fn table_size(&self) -> u64 {
        (self.entries.len() * r::MSIX_ENTRY) as u64
    }

    /// Bytes of the pending-bit array: whole quadwords.
    #[must_use]
    pub fn pba_size(&self) -> u64 {
        8 * self.entries.len().div_ceil(64) as u64
    }

    /// Reads the table, at any offset and width; bytes beyond it are ones.
    pub fn read_table(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in offsets(offset).zip(data) {
            let entry = self.entry_index(at).and_then(|index| self.entries.get(index));
            *byte = entry.map_or(0xff, |entry| entry.to_bytes()[at as usize % r::MSIX_ENTRY]);
        }
    }

    /// Writes the table, at any offset and width; writes beyond it are ignored.
    pub fn write_table(&mut self, offset: u64, data: &[u8]) {
        for (at, &byte) in offsets(offset).zip(data) {
            let Some(entry) = self.entry_index(at).and_then(|index| self.entries.get_mut(index)) else {
                break;
            };
            let mut bytes = entry.to_bytes();
            bytes[at as usize % r::MSIX_ENTRY] = byte;
            *entry = Entry::from_bytes(bytes);
        }
    }

    /// Reads the pending-bit array, at any offset and width; bytes beyond it are ones. The array ignores writes, so there is no `write_pba`.
    pub fn read_pba(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in offsets(offset).zip(data) {
            *byte = if at < self.pba_size() { 0 } else { 0xff };
        }
    }

    /// Whether that vector's own mask bit is set; a vector that does not exist is masked.
    #[must_use]
    pub fn is_masked(&self, vector: u16) -> bool {
        self.entries.get(usize::from(vector)).is_none_or(|entry| entry.masked)
    }

    /// A vector's message, masked or not; `None` for a vector that does not exist.
    #[must_use]
    pub fn message(&self, vector: u16) -> Option<Message> {
        let entry = self.entries.get(usize::from(vector))?;
        Some(Message { address: entry.address, data: entry.data })
    }

    fn entry_index(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset / r::MSIX_ENTRY as u64).ok()
    }

    /// The table's bytes.
    pub(crate) fn save(&self) -> Vec<u8> {
        let Self { entries } = self;
        entries.iter().flat_map(|entry| entry.to_bytes()).collect()
    }

    /// Restores bytes that [`Msix::check`] has accepted.
    pub(crate) fn restore(&mut self, table: &[u8]) {
        let (chunks, _) = table.as_chunks();
        for (entry, bytes) in self.entries.iter_mut().zip(chunks) {
            *entry = Entry::from_bytes(*bytes);
        }
    }

    /// The fault in saved bytes, if there is one.
    pub(crate) fn check(&self, table: &[u8]) -> Result<(), &'static str> {
        if table.len() != self.entries.len() * r::MSIX_ENTRY {
            return Err("MSI-X table size");
        }
        let (chunks, _) = table.as_chunks();
        if chunks.iter().any(|bytes| Entry::from_bytes(*bytes).to_bytes() != *bytes) {
            return Err("MSI-X table: reserved bits");
        }
        Ok(())
    }
}
