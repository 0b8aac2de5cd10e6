//! A tag that advances by bytes at a rate: of real time, or of virtual time by shares.

use nicety_adapter::Rate;

/// Binary digits behind the point of [`Curve::per_byte`]. A frame of 64 bytes at 10 Tbit/s still counts exactly enough (0.01 %).
const POINT: u32 = 24;
/// Virtual time per byte of a share of one: so much that a share of 100 divides it well.
const SHARE: u64 = 1 << 8;

/// See the module's page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Curve {
    /// The tag.
    pub at: u64,
    /// The part of the tag below 1.
    rest: u32,
    /// Time per byte, in units of 2⁻²⁴; 0 if there is no such curve.
    per_byte: u64,
}

impl Curve {
    /// Nanoseconds at a rate. No curve without one.
    pub fn of_rate(rate: Option<Rate>) -> Self {
        let per_byte =
            rate.map_or(0, |rate| ((8_000_000_000u128 << POINT) / u128::from(rate.bits_per_second())) as u64);
        Self { per_byte: per_byte.max(rate.is_some().into()), ..Self::default() }
    }

    /// Virtual time by a share.
    pub fn of_shares(shares: u16) -> Self {
        Self { per_byte: (SHARE << POINT) / u64::from(shares.max(1)), ..Self::default() }
    }

    /// The virtual time that a frame of this length takes of all shares.
    pub fn of_all(bytes: u64, shares: u32) -> u64 {
        bytes.saturating_mul(SHARE) / u64::from(shares.max(1))
    }

    #[inline]
    pub fn is_there(&self) -> bool {
        self.per_byte != 0
    }

    /// The same tag with another rate.
    pub fn change(&mut self, other: Self) {
        self.per_byte = other.per_byte;
    }

    /// The time of this many bytes.
    #[inline]
    pub fn span(&self, bytes: u64) -> u64 {
        u64::try_from((u128::from(bytes) * u128::from(self.per_byte)) >> POINT).unwrap_or(u64::MAX)
    }

    /// Advances the tag, which was at `from` at the earliest.
    #[inline]
    pub fn advance(&mut self, from: u64, bytes: u64) {
        if self.at < from {
            (self.at, self.rest) = (from, 0);
        }
        let sum = u128::from(bytes) * u128::from(self.per_byte) + u128::from(self.rest);
        self.at = self.at.saturating_add(u64::try_from(sum >> POINT).unwrap_or(u64::MAX));
        self.rest = sum as u32 & ((1 << POINT) - 1);
    }

    /// Sets the tag.
    #[inline]
    pub fn set(&mut self, at: u64) {
        (self.at, self.rest) = (at, 0);
    }
}
