//! A descriptor ring as its device reads and writes it: a range that was translated once.

use std::sync::atomic::{Ordering, fence};

use vm_memory::Bytes;
use vm_memory::volatile_memory::VolatileSlice;

use crate::copy::Word;
use crate::map::Rights;
use crate::prefetch::{self, Touch};

/// A range of guest memory, translated once. Accesses beyond its end read zeros and write nothing.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    bytes: VolatileSlice<'a>,
    rights: Rights,
}

impl<'a> Window<'a> {
    pub(crate) fn new(bytes: VolatileSlice<'a>, rights: Rights) -> Self {
        Self { bytes, rights }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True for a window of no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Copies `N` bytes out (a descriptor). Not atomic: what the copy says is what counts.
    #[inline]
    pub fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        #[cfg(feature = "count")]
        crate::count::one();
        let mut out = [0; N];
        if offset.checked_add(N).is_none_or(|end| end > self.bytes.len()) {
            return out;
        }
        let bytes = self.bytes.ptr_guard();
        // SAFETY: `offset + N` bytes lie within the slice, which was range-checked when it was made and stays mapped
        // while it lives. Accesses are volatile, because the other side may write meanwhile.
        unsafe {
            let from = bytes.as_ptr().add(offset);
            let (words, tail) = out.as_chunks_mut::<8>();
            for (i, word) in words.iter_mut().enumerate() {
                *word = from.add(8 * i).cast::<Word>().read_volatile().bytes();
            }
            for (i, byte) in tail.iter_mut().enumerate() {
                *byte = from.add(N - N % 8 + i).read_volatile();
            }
        }
        out
    }

    /// Stores eight bytes at any place. Not atomic.
    #[inline]
    pub fn write_u64(&self, offset: usize, value: u64) {
        if !self.rights.write || offset.checked_add(8).is_none_or(|end| end > self.bytes.len()) {
            return;
        }
        // SAFETY: as in `read`; and the window may be written.
        unsafe {
            self.bytes.ptr_guard_mut().as_ptr().add(offset).cast::<Word>().write_volatile(Word::of(value.to_le()))
        }
    }

    /// Hints that bytes will be touched soon.
    #[inline]
    pub fn prefetch(&self, offset: usize, len: usize, touch: Touch) {
        let len = len.min(self.bytes.len().saturating_sub(offset));
        if len > 0 {
            prefetch::lines(self.bytes.ptr_guard().as_ptr().wrapping_add(offset), len, touch);
        }
    }

    /// Copies bytes in. Not atomic.
    pub fn write(&self, offset: usize, from: &[u8]) {
        if self.rights.write
            && let Ok(piece) = self.bytes.subslice(offset, from.len())
        {
            piece.copy_from(from);
        }
    }

    /// One atomic 16-bit read with acquire ordering; an unaligned place is read by bytes.
    #[inline]
    pub fn load_u16(&self, offset: usize) -> u16 {
        match self.bytes.load::<u16>(offset, Ordering::Acquire) {
            Ok(value) => u16::from_le(value),
            Err(_) => u16::from_le_bytes(self.read(offset)),
        }
    }

    /// One atomic 32-bit read with acquire ordering; an unaligned place is read by bytes.
    #[inline]
    pub fn load_u32(&self, offset: usize) -> u32 {
        match self.bytes.load::<u32>(offset, Ordering::Acquire) {
            Ok(value) => u32::from_le(value),
            Err(_) => u32::from_le_bytes(self.read(offset)),
        }
    }

    /// One atomic 16-bit write with release ordering: everything written before is seen by who sees this.
    #[inline]
    pub fn store_u16(&self, offset: usize, value: u16) {
        if !self.rights.write {
            return;
        }
        if self.bytes.store(value.to_le(), offset, Ordering::Release).is_err() {
            fence(Ordering::Release);
            self.write(offset, &value.to_le_bytes());
        }
    }

    /// One atomic 32-bit write with release ordering.
    pub fn store_u32(&self, offset: usize, value: u32) {
        if !self.rights.write {
            return;
        }
        if self.bytes.store(value.to_le(), offset, Ordering::Release).is_err() {
            fence(Ordering::Release);
            self.write(offset, &value.to_le_bytes());
        }
    }

    /// One atomic 8-bit write with release ordering: a status byte that hands a descriptor over.
    pub fn store_u8(&self, offset: usize, value: u8) {
        if self.rights.write {
            let _beyond_the_end_writes_nothing = self.bytes.store(value, offset, Ordering::Release);
        }
    }
}

/// A full barrier between a write that hands something over and the read that looks whether the other side sleeps.
pub fn full_barrier() {
    fence(Ordering::SeqCst);
}
