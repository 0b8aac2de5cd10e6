//! Memory to memory: from one guest into another, once, with the Internet checksum on the way where it is needed.
//!
//! The sum is that of the bytes that were stored, whatever a guest does to the source meanwhile: each word is loaded
//! once, added and stored.

use vm_memory::volatile_memory::VolatileSlice;

use crate::map::{Map, Span};

/// The one's complement sum of copied bytes, before folding: native-endian words, as if the bytes began at an even place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySum {
    /// Words added, with carries kept above bit 31.
    sum: u64,
    /// Whether an odd number of bytes has gone by.
    odd: bool,
}

impl CopySum {
    /// The folded 16-bit sum in network byte order, not complemented (RFC 1071).
    pub fn fold(self) -> u16 {
        fold(self.sum).to_be()
    }

    /// Adds bytes that follow in the same packet.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut sum = 0u64;
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
        let rest = words.remainder();
        let mut tail = [0; 4];
        tail[..rest.len()].copy_from_slice(rest);
        sum += u64::from(u32::from_ne_bytes(tail));
        self.push(sum, bytes.len());
    }

    fn push(&mut self, sum: u64, len: usize) {
        let folded = fold(sum);
        self.sum += u64::from(if self.odd { folded.swap_bytes() } else { folded });
        self.odd ^= len % 2 == 1;
    }
}

fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// Copies the shorter of both spans; returns its length. Spans may overlap.
pub fn copy(source: &Map, from: Span, target: &Map, to: Span) -> u32 {
    let len = from.len().min(to.len());
    #[cfg(feature = "count")]
    crate::count::bytes(len as usize);
    source.bytes(from.piece(0, len)).copy_to_volatile_slice(target.bytes(to.piece(0, len)));
    len
}

/// Copies the shorter of both spans and adds what was stored to `sum`; returns the length.
pub fn copy_sum(source: &Map, from: Span, target: &Map, to: Span, sum: &mut CopySum) -> u32 {
    let len = from.len().min(to.len());
    let (from, to) = (source.bytes(from.piece(0, len)), target.bytes(to.piece(0, len)));
    let len = from.len().min(to.len());
    #[cfg(feature = "count")]
    crate::count::bytes(len);
    sum.push(copy_words(&from, &to, len), len);
    len as u32
}

/// Eight bytes at any address, for volatile access.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Word(u64);

impl Word {
    pub(crate) fn of(value: u64) -> Self {
        Self(value)
    }

    /// As they lay in memory.
    pub(crate) fn bytes(self) -> [u8; 8] {
        let Self(value) = self;
        value.to_ne_bytes()
    }
}

/// Loads, adds and stores word by word. Both slices hold at least `len` bytes.
fn copy_words(from: &VolatileSlice<'_>, to: &VolatileSlice<'_>, len: usize) -> u64 {
    let (source, target) = (from.ptr_guard(), to.ptr_guard_mut());
    let (source, target) = (source.as_ptr(), target.as_ptr());
    let mut sum = 0u64;
    let mut at = 0;
    // SAFETY: `at + 8 <= len` and `at < len` bound every access to both slices, which were range-checked when they
    // were made and stay mapped while they live. Accesses are volatile, because the other side may write meanwhile.
    unsafe {
        while at + 8 <= len {
            let word = source.add(at).cast::<Word>().read_volatile();
            target.add(at).cast::<Word>().write_volatile(word);
            let word = word.0;
            sum += (word & 0xffff_ffff) + (word >> 32);
            at += 8;
        }
        let mut tail = [0u8; 8];
        for byte in tail.iter_mut().take(len - at) {
            *byte = source.add(at).read_volatile();
            target.add(at).write_volatile(*byte);
            at += 1;
        }
        let word = u64::from_ne_bytes(tail);
        sum += (word & 0xffff_ffff) + (word >> 32);
    }
    sum
}
