//! The log of written pages: a bitmap that the device sets and a VMM reads and clears while it migrates a guest (vhost-user.rst,
//! "Migration": bit n of byte m means that page 8 m + n, of 4 KiB, was written).
//!
//! A page must be logged after the write, because the VMM clears the bit and then reads the page. So a range is noted when it is
//! translated for writing, and its bits are set after the call that wrote it ([`DirtyLog::publish`]).

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::MappingError;
use crate::files::Piece;
use crate::mapping::Mapping;
use crate::touch;

/// Bytes of a page of the log (VHOST_LOG_PAGE), as a power of two.
const PAGE_BITS: u32 = 12;

/// Bytes that are logged of a range, from its start: no ring is longer, and no packet. A guest may name 4 GiB.
const NOTED_MAX: u32 = 4 << 20;

/// See the module's page.
#[derive(Debug)]
pub struct DirtyLog {
    bitmap: Piece,
    /// The first and the last page of each range that was translated for writing since the last publish.
    noted: Mutex<Vec<(u64, u64)>>,
}

impl DirtyLog {
    /// A log in this piece of memory, which both sides map. `None` unless it consists of whole 64-bit words.
    pub fn new(bitmap: impl Into<Piece>) -> Option<Self> {
        let bitmap = bitmap.into();
        let first = bitmap.mapping.at(bitmap.offset as usize);
        let is_whole = first.addr().is_multiple_of(8) && bitmap.len.is_multiple_of(8);
        is_whole.then(|| Self { bitmap, noted: Mutex::default() })
    }

    /// A log in memory of our own, of this many pages from address 0.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn private(pages: u64) -> Result<Self, MappingError> {
        let bytes = pages.div_ceil(64).max(1).saturating_mul(8);
        let bitmap = Arc::new(Mapping::private(usize::try_from(bytes).unwrap_or(usize::MAX))?);
        Ok(Self { bitmap: bitmap.into(), noted: Mutex::default() })
    }

    /// Its file, the offset there and its length in bytes. `None` for a log in memory of our own.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64, u64)> {
        let (file, offset) = self.bitmap.file()?;
        Some((file, offset, self.bitmap.len))
    }

    /// Logs what another log still has: pages that its reader has not taken. Call it when nobody writes into that one any more.
    pub fn take_over(&self, old: &Self) {
        self.add(old.words());
    }

    /// The words that are not 0, with their numbers: bit `n` of word `m` is page `64 m + n`.
    pub fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.bitmap.len / 8).filter_map(|word| {
            let source = self.bitmap.mapping.slice((self.bitmap.offset + 8 * word) as usize, 8);
            if source.is_empty() {
                return None;
            }
            // SAFETY: they are eight bytes of the mapping, which the piece keeps.
            let bits = u64::from_le(unsafe { touch::load_u64(source.ptr_guard().as_ptr()) });
            (bits != 0).then_some((word, bits))
        })
    }

    /// Logs the pages of these words too. Pages beyond the bitmap's end have no bits.
    pub fn add(&self, words: impl IntoIterator<Item = (u64, u64)>) {
        let own = self.bitmap.len / 8;
        words.into_iter().filter(|(word, _)| *word < own).for_each(|(word, bits)| self.set(word, bits));
    }

    /// The same log for a device beside this one: a range that one of them has noted is published by that one, after its write.
    pub(crate) fn beside(&self) -> Self {
        Self { bitmap: self.bitmap.clone(), noted: Mutex::default() }
    }

    /// Notes a range that will be written, but only its first 4 MiB: devices write no further.
    pub(crate) fn note(&self, address: u64, len: u32) {
        let Some(last) = u64::from(len.min(NOTED_MAX)).checked_sub(1).and_then(|last| address.checked_add(last)) else {
            return;
        };
        let pages = (address >> PAGE_BITS, last >> PAGE_BITS);
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.last() != Some(&pages) {
            noted.push(pages);
        }
    }

    /// The noted ranges were written: sets their bits. Pages beyond the bitmap's end have none.
    pub fn publish(&self) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        for (first, last) in noted.drain(..) {
            let words = self.bitmap.len / 8;
            for word in (first / 64..=last / 64).take_while(|word| *word < words) {
                let from = if word == first / 64 { u64::MAX << (first % 64) } else { u64::MAX };
                let to = if word == last / 64 { u64::MAX >> (63 - last % 64) } else { u64::MAX };
                self.set(word, from & to);
            }
        }
    }

    fn set(&self, word: u64, bits: u64) {
        let target = self.bitmap.mapping.target((self.bitmap.offset + 8 * word) as usize, 8);
        if !target.is_empty() {
            // SAFETY: they are eight bytes of the mapping, which the piece keeps.
            unsafe { touch::or_u64(target.ptr_guard_mut().as_ptr(), bits.to_le()) };
        }
    }
}
