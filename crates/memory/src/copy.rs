//! Copies from one guest's memory to another's, once, with the Internet checksum computed in the same pass where needed.
//!
//! The sum covers the bytes that were stored, even if a guest changes the source during the copy: each byte is loaded once, added
//! and stored.

use vm_memory::volatile_memory::VolatileSlice;

use crate::map::Map;
use crate::mapping::Mapping;
use crate::presence::PAGE;
use crate::span::Span;
use crate::touch;

/// The one's complement sum of copied bytes, before folding: native-endian words, as if the bytes started at an even address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySum {
    /// Words added, with carries kept above bit 31.
    sum: u64,
    /// Whether an odd number of bytes was added.
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
            sum = sum.wrapping_add(u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]])));
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

/// Copies the shorter of both spans; returns its length. Spans may overlap. Allocates no page of the source.
#[inline]
pub fn copy(source: &Map, from: Span, target: &Map, to: Span) -> u32 {
    let len = from.len().min(to.len());
    #[cfg(feature = "count")]
    crate::count::bytes(len as usize);
    if let (Some(from), Some(to)) = (source.known(from), target.known(to)) {
        // SAFETY: the identifiers show that each span is of its map, and both have `len` bytes.
        unsafe { touch::across(from, to, len as usize) };
        return len;
    }
    copy_unknown(source, from, target, to.piece(0, len));
    len
}

#[cold]
#[inline(never)]
fn copy_unknown(source: &Map, from: Span, target: &Map, to: Span) {
    let len = to.len();
    if source.tape().is_some() || target.tape().is_some() {
        return copy_taped(source, from.piece(0, len), target, to, |_| {});
    }
    let Some((mapping, offset)) = source.place(from) else { return };
    let to = target.target(to);
    if mapping.is_known(offset, len as usize) {
        touch::copy_across(&mapping.slice(offset, len as usize), &to);
    } else {
        by_pages(mapping, offset, &to, |_| {});
    }
}

/// Copies the shorter of both spans and adds the stored bytes to `sum`; returns the length. Allocates no page of the source.
pub fn copy_sum(source: &Map, from: Span, target: &Map, to: Span, sum: &mut CopySum) -> u32 {
    if !(from.known && to.known) && (source.tape().is_some() || target.tape().is_some()) {
        let len = from.len().min(to.len());
        copy_taped(source, from.piece(0, len), target, to.piece(0, len), |bytes| sum.add(bytes));
        return len;
    }
    let len = from.len().min(to.len());
    let Some((mapping, offset)) = source.place(from) else { return 0 };
    let to = target.target(to.piece(0, len));
    let from = mapping.slice(offset, len as usize);
    let len = from.len().min(to.len());
    #[cfg(feature = "count")]
    crate::count::bytes(len);
    if mapping.is_known(offset, len) {
        sum.push(touch::copy_summed(&from, &to), len);
    } else {
        by_pages(mapping, offset, &to, |bytes| sum.add(bytes));
    }
    len as u32
}

/// Copies from or to memory with a tape, through a private buffer, which is passed to `seen`. Both spans have the same length.
#[cold]
#[inline(never)]
fn copy_taped(source: &Map, from: Span, target: &Map, to: Span, mut seen: impl FnMut(&[u8])) {
    let (mut bytes, mut done) = ([0; PAGE], 0);
    while done < to.len() {
        let piece = &mut bytes[..PAGE.min((to.len() - done) as usize)];
        let len = piece.len() as u32;
        source.copy_out_of_unknown(from.piece(done, len), piece);
        target.copy_into_unknown(to.piece(done, len), piece);
        seen(piece);
        done += len;
    }
}

/// Copies from memory whose pages may be missing, through a private buffer, which is passed to `seen`.
#[cold]
#[inline(never)]
fn by_pages(from: &Mapping, offset: usize, to: &VolatileSlice<'_>, mut seen: impl FnMut(&[u8])) {
    let (mut bytes, mut done) = ([0; PAGE], 0);
    while done < to.len() {
        let len = PAGE.min(to.len() - done);
        let count = from.read(offset + done, &mut bytes[..len]);
        let Ok(piece) = to.subslice(done, count) else { return };
        touch::copy_in(&bytes[..count], &piece);
        seen(&bytes[..count]);
        if count < len {
            return;
        }
        done += len;
    }
}
