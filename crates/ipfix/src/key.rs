//! What frames of one flow have in common.
//!
//! A key is eight words, so that it is compared and hashed without branches:
//!
//! ```text
//! 0  destination address, source address (first two bytes)
//! 1  source address, type behind the tags
//! 2  IPv4: source and destination. IPv6: source, first half
//! 3  IPv6: source, second half
//! 4  IPv6: destination, first half
//! 5  IPv6: destination, second half
//! 6  IPv4: destination again. Ports
//! 7  the switch's decision: receiver, reason of a drop, directions; protocol, version, VLAN
//! ```

use nicety_frame::{Fragment, L3Kind, L4Kind, Layout};

/// The receiver of a frame with several, or of one that the switch dropped.
pub const NOT_ONE: u16 = u16::MAX;

/// Bytes of a frame that the usual case looks at: Ethernet, IPv4 without options, TCP.
const USUAL: usize = 54;
/// The versions of the last word.
const V4: u64 = 0;
const V6: u64 = 6 << 40;
const NO_IP: u64 = 1 << 40;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What the switch does with the frames of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The receiver's number, or [`NOT_ONE`].
    pub egress: u16,
    /// The number of the reason plus one, or 0: they are forwarded.
    pub dropped: u8,
    /// [`Direction`](crate::Direction)s in which the flow is reported, a bit each.
    pub directions: u8,
}

/// What the frames of a flow have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key(pub(crate) [u64; 8]);

/// A frame as a flow's counters see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub(crate) key: Key,
    /// The half of TCP's fourth word that has its flags, as the frame has it (RFC 9293, section 3.1).
    pub(crate) flags: u16,
    /// Bytes before the IP header.
    l2_len: u16,
    /// The length that the IP header says. All ones: it says none.
    ip_len: u32,
}

/// No IP header says a length.
const NO_LEN: u32 = u32::MAX;

#[inline]
fn word(bytes: &[u8; USUAL], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[inline]
fn half(bytes: &[u8; USUAL], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

impl Seen {
    /// What a frame's head says.
    #[inline]
    pub fn of(head: &[u8]) -> Self {
        Self::usual(head).unwrap_or_else(|| Self::unusual(head))
    }

    /// What the head of an untagged frame of TCP or UDP over IPv4 says, without options and fragments. `None`: it is another one.
    ///
    /// Kept apart, and in the caller: half of the key's words are zeros there, which nobody then hashes and compares.
    #[expect(clippy::inline_always, reason = "without it a frame costs 60 instructions more")]
    #[inline(always)]
    pub fn usual(head: &[u8]) -> Option<Self> {
        let head = head.first_chunk::<USUAL>()?;
        // Type, version with the header's length, type of service, total length; then fragment, time to live, protocol.
        let (begin, middle) = (word(head, 12), half(head, 20));
        if begin & 0xff_ffff != 0x45_0008 || middle & 0xff3f != 0 {
            return None;
        }
        let flags = match (middle >> 24) as u8 {
            TCP => half(head, 46) as u16,
            UDP => 0,
            _ => return None,
        };
        let last = u64::from(middle >> 24) << 32 | V4;
        let key = [word(head, 0), word(head, 6), word(head, 26), 0, 0, 0, word(head, 30), last];
        Some(Self { key: Key(key), flags, l2_len: 14, ip_len: ((begin >> 32) as u16).swap_bytes().into() })
    }

    /// What any head says.
    #[cold]
    #[inline(never)]
    pub fn unusual(head: &[u8]) -> Self {
        let layout = Layout::parse(head);
        let at = |from: usize| {
            head.get(from..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let short = |from: usize| {
            head.get(from..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_be_bytes(*bytes))
        };
        let mut words = [at(0), at(6) & 0xffff_ffff_ffff, 0, 0, 0, 0, 0, 0];
        words[1] |= u64::from(layout.ethertype.swap_bytes()) << 48;
        let vlan = layout.tags[0].map_or(0, |tag| tag.tci.0 & 0xfff);
        words[7] |= u64::from(vlan) << 48;
        let (mut flags, mut ip_len, mut version) = (0, NO_LEN, NO_IP);
        if let Some(l3) = layout.l3 {
            let from = usize::from(l3.offset);
            version = match l3.kind {
                L3Kind::V4 => {
                    words[2] = at(from + 12);
                    words[6] |= words[2] >> 32;
                    ip_len = short(from + 2).into();
                    V4
                }
                L3Kind::V6 => {
                    (words[2], words[3], words[4], words[5]) =
                        (at(from + 8), at(from + 16), at(from + 24), at(from + 32));
                    // 0: a jumbogram, or a head that is prepared for segmentation.
                    ip_len = match short(from + 4) {
                        0 => NO_LEN,
                        payload => u32::from(payload) + 40,
                    };
                    V6
                }
            };
            words[7] |= u64::from(l3.protocol) << 32;
            if let Some(l4) = layout.l4.filter(|_| l3.fragment != Fragment::Later) {
                let from = usize::from(l4.offset);
                let ports = [short(from), short(from + 2)];
                words[6] |= u64::from(ports[0].swap_bytes()) << 32 | u64::from(ports[1].swap_bytes()) << 48;
                if l4.kind == L4Kind::Tcp {
                    flags = short(from + 12).swap_bytes();
                }
            }
        }
        words[7] |= version;
        Self { key: Key(words), flags, l2_len: layout.l2_len, ip_len }
    }

    /// The key with the switch's decision.
    #[inline]
    pub(crate) fn key_with(&self, outcome: Outcome) -> Key {
        let Outcome { egress, dropped, directions } = outcome;
        let mut key = self.key;
        key.0[7] |= u64::from(egress) | u64::from(dropped) << 16 | u64::from(directions) << 24;
        key
    }

    /// Bytes of the IP packet of one frame with this length: padding is none of them. Of another frame all behind the Ethernet header and
    /// its tags.
    #[inline]
    pub(crate) fn octets(&self, len: u32) -> u64 {
        // A head is no longer than its frame.
        len.wrapping_sub(self.l2_len.into()).min(self.ip_len).into()
    }

    /// The same of the frames of a segmentation, with so many bytes in all. The length in their one head is not theirs.
    pub(crate) fn octets_of(&self, frames: u32, wire_bytes: u64) -> u64 {
        match frames {
            1 => self.octets(u32::try_from(wire_bytes).unwrap_or(NO_LEN)),
            _ => wire_bytes.saturating_sub(u64::from(frames) * u64::from(self.l2_len)),
        }
    }
}

/// Multiplies, and folds both halves of the result: each bit of either word changes all bits.
#[inline]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product as u64) ^ (product >> 64) as u64
}

impl Key {
    /// Whether two keys are equal. The version is in the last word: only IPv6 has words 3 to 5.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        let [a, b, c, d, e, f, g, h] = self.0;
        let [a2, b2, c2, d2, e2, f2, g2, h2] = other.0;
        let short = a == a2 && b == b2 && c == c2 && g == g2 && h == h2;
        short && (self.0[7] & 0xff << 40 != V6 || (d == d2 && e == e2 && f == f2))
    }

    /// A number in which all its bits have a part.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        let [a, b, c, d, e, f, g, h] = self.0;
        // Rotated, so that the last bytes of addresses and ports are apart.
        let second = c.rotate_left(32) ^ d.rotate_left(17) ^ e.rotate_left(31) ^ f.rotate_left(47);
        // The digits of pi: a product with a number of few bits would say little.
        fold(a ^ second ^ 0x2436_a885_a308_d313, b.rotate_left(16) ^ g ^ h)
    }

    /// Address of the receiver's station.
    pub fn destination_mac(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.0[0].to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// Address of the sender's station.
    pub fn source_mac(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.0[1].to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// Type behind the tags.
    pub fn ethertype(&self) -> u16 {
        ((self.0[1] >> 48) as u16).swap_bytes()
    }

    /// VLAN of the outermost tag, or 0.
    pub fn vlan(&self) -> u16 {
        (self.0[7] >> 48) as u16
    }

    /// IP's version: 4, 6, or 0 for another protocol.
    pub fn version(&self) -> u8 {
        match self.0[7] & 0xff << 40 {
            V4 => 4,
            V6 => 6,
            _ => 0,
        }
    }

    /// Protocol behind IP.
    pub fn protocol(&self) -> u8 {
        (self.0[7] >> 32) as u8
    }

    /// Ports of source and destination; 0 without.
    pub fn ports(&self) -> [u16; 2] {
        [(self.0[6] >> 32) as u16, (self.0[6] >> 48) as u16].map(u16::swap_bytes)
    }

    /// IPv4's addresses of source and destination.
    pub fn ipv4(&self) -> [[u8; 4]; 2] {
        let [a, b, c, d, e, f, g, h] = self.0[2].to_le_bytes();
        [[a, b, c, d], [e, f, g, h]]
    }

    /// IPv6's addresses of source and destination.
    pub fn ipv6(&self) -> [[u8; 16]; 2] {
        let of = |at: usize| {
            let mut address = [0; 16];
            address[..8].copy_from_slice(&self.0[at].to_le_bytes());
            address[8..].copy_from_slice(&self.0[at + 1].to_le_bytes());
            address
        };
        [of(2), of(4)]
    }

    /// What the switch does with the frames.
    pub fn outcome(&self) -> Outcome {
        let word = self.0[7];
        Outcome { egress: word as u16, dropped: (word >> 16) as u8, directions: (word >> 24) as u8 }
    }
}

#[cfg(test)]
#[path = "key_test.rs"]
mod tests;
