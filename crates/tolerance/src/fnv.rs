//! FNV-1a (draft-eastlake-fnv-17, section 2) over 64-bit words instead of bytes, with a final shift: finds divergence, resists nobody.

use std::hash::Hasher;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// A digest that grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(OFFSET)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            self.write_u64(rest.iter().rev().fold(rest.len() as u64, |sum, byte| sum << 8 | u64::from(*byte)));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(PRIME);
        // A product's low bits do not depend on the factor's high ones.
        self.0 ^= self.0 >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
