//! The MSI-X table and its pending-bit array (PCI 3.0 §6.8.2): a message is sent when it may be, else remembered once.

use crate::interrupts::{Message, Raise};
use crate::layout::offsets;
use crate::registers as r;

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

/// An MSI-X table with its pending bits. Messages that a write released are taken with [`Msix::next_due`]: the call that releases
/// them says so, and they stay pending, visible in the array, until they are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Msix {
    entries: Box<[Entry]>,
    pending: Box<[u64]>,
    /// Enabled, and not masked as a whole.
    open: bool,
}

impl Msix {
    /// A table of `vectors` (at least 1, at most 2048: more or fewer are clamped), as after reset: all masked, disabled.
    #[must_use]
    pub fn new(vectors: u16) -> Self {
        let vectors = vectors.clamp(1, r::MSIX_VECTORS);
        Self {
            entries: vec![Entry::RESET; usize::from(vectors)].into_boxed_slice(),
            pending: vec![0; usize::from(vectors.div_ceil(64))].into_boxed_slice(),
            open: false,
        }
    }

    /// Back to what [`Msix::new`] made.
    pub fn reset(&mut self) {
        let Self { entries, pending, open } = self;
        entries.fill(Entry::RESET);
        pending.fill(0);
        *open = false;
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
        (self.pending.len() * 8) as u64
    }

    /// Reads the table, at any offset and width; beyond it are ones.
    pub fn read_table(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in offsets(offset).zip(data) {
            let entry = self.entry_index(at).and_then(|index| self.entries.get(index));
            *byte = entry.map_or(0xff, |entry| entry.to_bytes()[at as usize % r::MSIX_ENTRY]);
        }
    }

    /// Writes the table, at any offset and width; beyond it nothing happens. True if messages are due now ([`Msix::next_due`]).
    #[must_use = "released messages must be taken with next_due"]
    pub fn write_table(&mut self, offset: u64, data: &[u8]) -> bool {
        for (at, &byte) in offsets(offset).zip(data) {
            let Some(entry) = self.entry_index(at).and_then(|index| self.entries.get_mut(index)) else {
                break;
            };
            let mut bytes = entry.to_bytes();
            bytes[at as usize % r::MSIX_ENTRY] = byte;
            *entry = Entry::from_bytes(bytes);
        }
        self.has_due()
    }

    /// Reads the pending-bit array, at any offset and width; beyond it are ones. It ignores writes, so that there is no `write_pba`.
    pub fn read_pba(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in offsets(offset).zip(data) {
            let word = usize::try_from(at / 8).ok().and_then(|index| self.pending.get(index));
            *byte = word.map_or(0xff, |word| word.to_le_bytes()[at as usize % 8]);
        }
    }

    /// Whether messages may go at all: enabled, and not masked as a whole. True if messages are due now. [`crate::Function`] calls it
    /// for the table that it owns.
    #[must_use = "released messages must be taken with next_due"]
    pub fn set_open(&mut self, open: bool) -> bool {
        self.open = open;
        self.has_due()
    }

    /// Masks or unmasks one vector, as a transport does whose client keeps the table itself. True if messages are due now.
    #[must_use = "released messages must be taken with next_due"]
    pub fn set_masked(&mut self, vector: u16, masked: bool) -> bool {
        if let Some(entry) = self.entries.get_mut(usize::from(vector)) {
            entry.masked = masked;
        }
        self.has_due()
    }

    /// Whether that vector's own mask bit is set; a vector that does not exist is masked.
    #[must_use]
    pub fn is_masked(&self, vector: u16) -> bool {
        self.entries.get(usize::from(vector)).is_none_or(|entry| entry.masked)
    }

    /// Raises a vector: the message to send now, or remembered until it may go.
    #[must_use = "the message must be delivered"]
    pub fn raise(&mut self, vector: u16) -> Raise {
        let Some(entry) = self.entries.get(usize::from(vector)) else {
            return Raise::Absent;
        };
        if self.open && !entry.masked {
            return Raise::Deliver(Message { vector, address: entry.address, data: entry.data });
        }
        if let Some(word) = self.pending.get_mut(usize::from(vector / 64)) {
            *word |= 1 << (vector % 64);
        }
        Raise::Pending
    }

    /// Takes back a raise that is still pending, as when the device's cause is cleared meanwhile (§6.8.3.5 allows it).
    pub fn withdraw(&mut self, vector: u16) {
        if let Some(word) = self.pending.get_mut(usize::from(vector / 64)) {
            *word &= !(1 << (vector % 64));
        }
    }

    /// Whether a pending message may go now.
    #[must_use]
    pub fn has_due(&self) -> bool {
        self.due_vector().is_some()
    }

    /// Takes the next pending message that may go now, lowest vector first; its pending bit is cleared.
    #[must_use = "the message must be delivered"]
    pub fn next_due(&mut self) -> Option<Message> {
        let vector = self.due_vector()?;
        let entry = self.entries.get(usize::from(vector))?;
        *self.pending.get_mut(usize::from(vector / 64))? &= !(1 << (vector % 64));
        Some(Message { vector, address: entry.address, data: entry.data })
    }

    fn due_vector(&self) -> Option<u16> {
        if !self.open {
            return None;
        }
        for (group, mut word) in (0_u16..).zip(self.pending.iter().copied()) {
            while word != 0 {
                let vector = group * 64 + word.trailing_zeros() as u16;
                if !self.is_masked(vector) {
                    return Some(vector);
                }
                word &= word - 1;
            }
        }
        None
    }

    fn entry_index(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset / r::MSIX_ENTRY as u64).ok()
    }

    /// The table's and the pending bits' bytes.
    pub(crate) fn save(&self) -> (Vec<u8>, Vec<u64>) {
        let Self { entries, pending, open: _ } = self;
        (entries.iter().flat_map(|entry| entry.to_bytes()).collect(), pending.to_vec())
    }

    /// Takes bytes that [`Msix::check`] has found good.
    pub(crate) fn restore(&mut self, table: &[u8], pending: &[u64]) {
        let (chunks, _) = table.as_chunks();
        for (entry, bytes) in self.entries.iter_mut().zip(chunks) {
            *entry = Entry::from_bytes(*bytes);
        }
        for (word, &saved) in self.pending.iter_mut().zip(pending) {
            *word = saved;
        }
    }

    /// What is wrong with saved bytes, if anything.
    pub(crate) fn check(&self, table: &[u8], pending: &[u64]) -> Result<(), &'static str> {
        if table.len() != self.entries.len() * r::MSIX_ENTRY {
            return Err("MSI-X table size");
        }
        if pending.len() != self.pending.len() {
            return Err("MSI-X pending-bit array size");
        }
        let (chunks, _) = table.as_chunks();
        if chunks.iter().any(|bytes| Entry::from_bytes(*bytes).to_bytes() != *bytes) {
            return Err("MSI-X table: reserved bits");
        }
        let used = self.vectors() % 64;
        let spare = if used == 0 { 0 } else { u64::MAX << used };
        if pending.last().is_some_and(|word| word & spare != 0) {
            return Err("MSI-X pending-bit array: bits beyond the last vector");
        }
        Ok(())
    }
}
