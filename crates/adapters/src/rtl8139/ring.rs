//! Format shared by the two descriptor rings of C+ mode (RTL8169 1.21, descriptor formats).
//!
//! ```text
//!  31  30  29 28 27    26           16 15                0
//! | OWN|EOR|FS|LS|LGSEN| MSS          | length            |  transmit: IPCS 18, UDPCS 17, TCPCS 16 without LGSEN
//! | OWN|EOR|FS|LS| MAR 26 PAM 25 BAR 24 ... PID 17:16, IPF 15, UDPF 14, TCPF 13 | length 12:0 |  receive
//! | TAGC 17 (out), TAVA 16 (in)       | tag, bytes swapped |
//! | buffer address, low; high                             |
//! ```

use nicety_memory::{Fault, Map, Rights, Window};

/// Maximum descriptors of a ring (8139cp.c uses as many; the chip's limit).
pub const MAX: u32 = 64;
/// Bytes of a descriptor.
pub const DESCRIPTOR: usize = 16;

/// The chip owns the descriptor.
pub const OWN: u32 = 1 << 31;
/// Last descriptor of the ring.
pub const EOR: u32 = 1 << 30;
/// First descriptor of a packet.
pub const FS: u32 = 1 << 29;
/// Last descriptor of a packet.
pub const LS: u32 = 1 << 28;

/// A descriptor, read once.
#[derive(Clone, Copy)]
pub struct Descriptor {
    pub first: u32,
    pub second: u32,
    pub address: u64,
}

impl Descriptor {
    pub fn read(ring: &Window<'_>, index: u32) -> Self {
        let bytes: [u8; DESCRIPTOR] = ring.read(index as usize * DESCRIPTOR);
        let all = u128::from_le_bytes(bytes);
        Self { first: all as u32, second: (all >> 32) as u32, address: (all >> 64) as u64 }
    }

    pub fn is_owned(self) -> bool {
        self.first & OWN != 0
    }

    /// The descriptor after this one, which is at `index`.
    pub fn after(self, index: u32) -> u32 {
        after(index, self.first)
    }
}

/// The descriptor after the one at `index`, whose first word this is.
pub fn after(index: u32, first: u32) -> u32 {
    if first & EOR != 0 || index + 1 >= MAX { 0 } else { index + 1 }
}

/// Whether the chip owns the descriptor at `index`, if it is in memory.
pub fn is_owned(ring: &Window<'_>, index: u32) -> bool {
    holds(ring, index) && ring.load_u32(index as usize * DESCRIPTOR) & OWN != 0
}

/// Whether a ring's memory includes the descriptor at `index`.
pub fn holds(ring: &Window<'_>, index: u32) -> bool {
    (index as usize + 1) * DESCRIPTOR <= ring.len()
}

/// The ring at an address: room for [`MAX`] descriptors, or for as many as memory allows. Only its last descriptor shows its size.
/// Addresses are multiples of 256.
pub fn open(memory: &Map, address: u64, rights: Rights) -> Result<Window<'_>, Fault> {
    let base = address & !0xff;
    let window = |descriptors: u32| memory.window(base, descriptors * DESCRIPTOR as u32, rights);
    window(MAX).or_else(|_| {
        let (mut fits, mut not) = (1, MAX);
        while not - fits > 1 {
            let middle = (fits + not) / 2;
            *(if window(middle).is_ok() { &mut fits } else { &mut not }) = middle;
        }
        window(fits)
    })
}
