//! Splits an access of any width and offset into accesses of at most four bytes, each within one dword, for 32-bit registers.

use std::ops::Range;

/// Pieces of an access of `len` bytes at an offset: the offset of each, and its range in the access's bytes.
pub(crate) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset.saturating_add(done as u64);
        let begin = done;
        done = len.min(begin + 4 - (at & 3) as usize);
        Some((at, begin..done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_at_dwords_and_cover_every_byte_once() {
        let all = |offset, len| pieces(offset, len).collect::<Vec<_>>();
        assert_eq!(all(8, 4), [(8, 0..4)]);
        assert_eq!(all(8, 8), [(8, 0..4), (12, 4..8)]);
        assert_eq!(all(7, 6), [(7, 0..1), (8, 1..5), (12, 5..6)]);
        assert_eq!(all(5, 2), [(5, 0..2)]);
        assert_eq!(all(5, 0), []);
        assert_eq!(all(u64::MAX - 1, 3), [(u64::MAX - 1, 0..2), (u64::MAX, 2..3)]);
    }
}
