//! Choices of a trial: seeded randomness, the same on every machine (SplitMix64; Steele, Lea, Flood 2014), or a fuzzer's bytes. One
//! hostile guest serves both.

/// A source of choices.
#[derive(Clone, Debug)]
pub struct Random(Source);

#[derive(Clone, Debug)]
enum Source {
    Seed(u64),
    Bytes { data: Vec<u8>, at: usize },
}

impl Random {
    /// Choices from a seed.
    pub fn new(seed: u64) -> Self {
        Self(Source::Seed(seed))
    }

    /// Choices from a fuzzer's input. Each consumes the fewest bytes that can encode its alternatives, so that a changed byte
    /// changes one choice. After the end of the input every choice is the first alternative.
    pub fn of_bytes(data: &[u8]) -> Self {
        Self(Source::Bytes { data: data.to_vec(), at: 0 })
    }

    /// Whether a fuzzer's bytes are used up. Always false with a seed.
    pub fn spent(&self) -> bool {
        matches!(&self.0, Source::Bytes { data, at } if *at >= data.len())
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.draw(8)
    }

    /// At least `count` random bytes.
    fn draw(&mut self, count: usize) -> u64 {
        match &mut self.0 {
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let x = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                x ^ (x >> 31)
            }
            Source::Bytes { data, at } => {
                let mut word = [0; 8];
                let rest = data.get(*at..).unwrap_or_default();
                let some = count.min(8).min(rest.len());
                word[..some].copy_from_slice(&rest[..some]);
                *at += count;
                u64::from_le_bytes(word)
            }
        }
    }

    /// A number below `end`. `end` is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        let end = end.max(1);
        let bits = u64::BITS - (end - 1).leading_zeros();
        self.draw(bits.div_ceil(8) as usize) % end
    }

    /// True with probability 1/n.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        if let Source::Bytes { .. } = self.0 {
            // A frame would use up the input: its bytes are generated from two input bytes.
            return Self::new(self.draw(2)).fill(bytes);
        }
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.bits().to_le_bytes()[..chunk.len()]);
        }
    }

    /// A number that a hostile guest might write: small, huge, an address in its memory, a power of two.
    pub fn nasty(&mut self, memory: u64) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => self.below(64),
            3 => 1 << self.below(64),
            4 => self.below(memory) & !0xf,
            5 => memory.saturating_sub(self.below(64)),
            6 => self.bits() & self.bits(),
            _ => self.bits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_of_a_seed_are_the_published_ones() {
        // Vigna's splitmix64.c with x = 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
        assert!(!random.spent());
    }

    #[test]
    fn a_choice_takes_as_few_bytes_as_can_name_its_answers() {
        let mut random = Random::of_bytes(&[3, 200, 1, 2, 0xff]);
        assert_eq!(random.below(16), 3);
        assert_eq!(random.below(256), 200);
        assert_eq!(random.below(1 << 16), 0x0201);
        assert_eq!(random.below(1), 0, "nothing to choose takes nothing");
        assert!(!random.spent());
        assert_eq!(random.bits(), 0xff);
        assert!(random.spent());
        assert_eq!(random.below(100), 0);
    }
}
