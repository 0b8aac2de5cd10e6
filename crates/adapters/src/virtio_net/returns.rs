//! Entries of the device's ring, written together.

use nicety_adapter::PACKETS;

use super::chain::Token;
use super::ring::Ring;
use super::ring::areas::Areas;

/// Chains to be completed.
pub(super) struct Returns {
    len: usize,
    entries: [u64; PACKETS],
}

impl Returns {
    pub fn new() -> Self {
        Self { len: 0, entries: [0; PACKETS] }
    }

    /// Completes a chain, with this many bytes written. The ring has it after [`Returns::write`].
    #[inline]
    pub fn push<const PACKED: bool>(&mut self, ring: &mut Ring, areas: &Areas<'_, PACKED>, token: Token, bytes: u32) {
        if self.len == PACKETS {
            self.write(ring, areas);
        }
        if let Some(entry) = self.entries.get_mut(self.len) {
            *entry = token.with_bytes(bytes);
            self.len += 1;
        }
    }

    /// Fills the entries of the device's ring; the driver of a split one sees them only after [`Areas::show`].
    pub fn write<const PACKED: bool>(&mut self, ring: &mut Ring, areas: &Areas<'_, PACKED>) {
        areas.give_back(ring, self.entries.get(..self.len).unwrap_or_default());
        self.len = 0;
    }
}
