//! The driver's receive filter: `ifflags` and `LADRF`, as of the last UPDATE_IFF and UPDATE_LADRF.

use nicety_frame::{Mac, crc};
use serde::{Deserialize, Serialize};

/// VMXNET_IFF_*. DIRECTED (8) is ignored: OpenBSD's vic never sets it and expects its own frames; Linux's driver always sets it,
/// and all bits above (vmxnet_set_multicast_list).
const PROMISCUOUS: u32 = 1;
const BROADCAST: u32 = 1 << 1;
const MULTICAST: u32 = 1 << 2;

/// The filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// The known bits of `ifflags`.
    flags: u32,
    /// A bit for each hash of an address.
    ladrf: [u32; 2],
}

impl Filter {
    /// UPDATE_IFF.
    pub fn set_flags(&mut self, flags: u32) {
        self.flags = flags & (PROMISCUOUS | BROADCAST | MULTICAST);
    }

    /// UPDATE_LADRF.
    pub fn set_ladrf(&mut self, ladrf: [u32; 2]) {
        self.ladrf = ladrf;
    }

    /// Whether every frame passes.
    pub fn is_promiscuous(&self) -> bool {
        self.flags & PROMISCUOUS != 0
    }

    /// Whether saved state is valid.
    pub fn valid(&self) -> bool {
        self.flags & !(PROMISCUOUS | BROADCAST | MULTICAST) == 0
    }

    /// Whether a frame with this head passes the filter.
    pub fn wants(&self, own: Mac, head: &[u8]) -> bool {
        let Some(&target) = head.first_chunk::<6>() else { return false };
        if self.is_promiscuous() {
            return true;
        }
        let target = Mac(target);
        if target.is_broadcast() {
            self.flags & BROADCAST != 0
        } else if target.is_multicast() {
            self.flags & MULTICAST != 0 && self.has(target)
        } else {
            target == own
        }
    }

    /// The hash is the six upper bits of the address's CRC; the table is read as little-endian words.
    fn has(&self, target: Mac) -> bool {
        let hash = crc::multicast_le(target) >> 26;
        self.ladrf[(hash >> 5) as usize & 1] >> (hash & 31) & 1 != 0
    }
}
