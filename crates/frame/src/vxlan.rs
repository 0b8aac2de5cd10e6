//! The header of VXLAN (RFC 7348 section 5).
//!
//! ```text
//!  0      1        4                  7        8
//!  flags  reserved network identifier reserved the frame, from its destination address on
//! ```

use core::fmt;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;
/// The UDP port that IANA has assigned.
pub const PORT: u16 = 4789;

/// The flag I: the network identifier is valid.
const VALID: u8 = 0x08;

/// A VXLAN network identifier: 24 bits. 0 is none here, as it is a wildcard elsewhere (`external` devices of Linux).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The highest one.
    pub const MAX: u32 = (1 << 24) - 1;

    /// `None` unless it is 1 to [`Vni::MAX`].
    pub fn new(number: u32) -> Option<Self> {
        (1..=Self::MAX).contains(&number).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The header of a frame of this network.
pub fn encode(vni: Vni) -> [u8; HEADER_BYTES] {
    let [_, a, b, c] = vni.0.to_be_bytes();
    [VALID, 0, 0, 0, a, b, c, 0]
}

/// The network identifier, which may be none that [`Vni`] allows. `None` without the flag I. Reserved bits are ignored on receipt.
pub fn decode(header: [u8; HEADER_BYTES]) -> Option<u32> {
    let [flags, _, _, _, a, b, c, _] = header;
    (flags & VALID != 0).then(|| u32::from_be_bytes([0, a, b, c]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_as_rfc_7348_section_5_draws_it() {
        let header = encode(Vni::new(0x12_3456).unwrap());
        assert_eq!(header, [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(decode(header), Some(0x12_3456));
    }

    #[test]
    fn reserved_bits_are_ignored_and_a_header_without_the_flag_is_refused() {
        assert_eq!(decode([0xff, 1, 2, 3, 0, 0, 7, 0xff]), Some(7));
        assert_eq!(decode([0xf7, 0, 0, 0, 0, 0, 7, 0]), None);
    }

    #[test]
    fn an_identifier_has_24_bits_and_is_not_0() {
        assert_eq!(Vni::new(16_777_215), Some(Vni(16_777_215)));
        assert_eq!([0, 16_777_216].map(Vni::new), [None; 2]);
    }
}
