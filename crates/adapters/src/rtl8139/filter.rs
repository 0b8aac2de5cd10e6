//! The receiver's address filter, and reasons why a frame was not taken.

use nicety_adapter::Reason;
use nicety_frame::{Mac, crc};

use super::Rtl8139;
use super::registers::{self as r, rcr};

/// Maximum pieces of guest memory for one frame: as many buffers as a ring has, each across a page boundary.
pub(super) const PIECES: usize = 128;

/// The rule by which a frame passed the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// The adapter's own address.
    Own,
    Broadcast,
    Multicast,
    /// Promiscuous mode.
    Any,
}

/// Why a frame was not written to guest memory.
pub(super) enum Miss {
    /// There is no room yet for this frame of the packet.
    NoRoom(u32),
    Never(Reason),
}

impl Rtl8139 {
    /// The rule by which a frame with this head passes; `None` if it does not.
    pub(super) fn wants_frame(&self, head: &[u8]) -> Option<Match> {
        let (mode, mut mac) = (self.registers[r::RCR], [0; 6]);
        mac.copy_from_slice(head.get(..6)?);
        let [a, b, c, d] = self.registers[r::IDR0].to_le_bytes();
        let [e, f, ..] = self.registers[r::IDR4].to_le_bytes();
        if mac == [0xff; 6] {
            return (mode & rcr::AB != 0).then_some(Match::Broadcast);
        }
        if mac[0] & 1 != 0 {
            let bit = (crc::multicast_be(Mac(mac)) >> 26) as usize;
            let hashed = self.registers.of(r::MAR)[bit >> 5] >> (bit & 31) & 1 != 0;
            return (mode & rcr::AM != 0 && hashed).then_some(Match::Multicast);
        }
        let own = mac == [a, b, c, d, e, f];
        match (own && mode & rcr::APM != 0, mode & rcr::AAP != 0) {
            (true, _) => Some(Match::Own),
            (false, any) => any.then_some(Match::Any),
        }
    }
}
