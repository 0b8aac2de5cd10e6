//! The header of VXLAN (RFC 7348 section 5), and what a tunnel adds to a frame.
//!
//! ```text
//!  0      1        4                  7        8
//!  flags  reserved network identifier reserved the frame, from its destination address on
//! ```

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: u32 = 8;
/// The port that IANA has assigned.
pub const PORT: u16 = 4789;

/// The flag I: the network identifier is valid.
const VALID: u8 = 0x08;
const UDP_BYTES: u32 = 8;
const IPV4_BYTES: u32 = 20;
const IPV6_BYTES: u32 = 40;
const ETHERNET_BYTES: u32 = 14;

pub(crate) type Header = [u8; HEADER_BYTES as usize];

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

/// The text is no network identifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no VXLAN network identifier: a number from 1 to 16777215")]
pub struct VniError(String);

impl FromStr for Vni {
    type Err = VniError;

    fn from_str(text: &str) -> Result<Self, VniError> {
        text.parse().ok().and_then(Self::new).ok_or_else(|| VniError(text.to_owned()))
    }
}

pub(crate) fn encode(vni: Vni) -> Header {
    let [_, a, b, c] = vni.0.to_be_bytes();
    [VALID, 0, 0, 0, a, b, c, 0]
}

/// The network identifier. `None` without the flag I. Reserved bits are ignored on receipt.
pub(crate) fn decode(header: Header) -> Option<u32> {
    let [flags, _, _, _, a, b, c, _] = header;
    (flags & VALID != 0).then(|| u32::from_be_bytes([0, a, b, c]))
}

/// The longest frame that a tunnel carries between these addresses, without a tag: the network below carries IP packets of `mtu` bytes.
pub(crate) fn frame_max(mtu: u16, own: IpAddr) -> u32 {
    let ip = if own.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
    u32::from(mtu).saturating_sub(ip + UDP_BYTES + HEADER_BYTES)
}

/// The largest MTU that guests behind such a tunnel may have.
pub fn inner_mtu(mtu: u16, own: IpAddr) -> u32 {
    frame_max(mtu, own).saturating_sub(ETHERNET_BYTES)
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
    fn an_ethernet_of_1500_bytes_leaves_guests_1450_over_ipv4_and_1430_over_ipv6() {
        assert_eq!(inner_mtu(1500, "192.0.2.1".parse().unwrap()), 1450);
        assert_eq!(inner_mtu(1500, "2001:db8::1".parse().unwrap()), 1430);
        assert_eq!(inner_mtu(9000, "192.0.2.1".parse().unwrap()), 8950);
        assert_eq!(inner_mtu(0, "192.0.2.1".parse().unwrap()), 0);
    }

    #[test]
    fn an_identifier_has_24_bits_and_is_not_0() {
        assert_eq!("16777215".parse(), Ok(Vni(16_777_215)));
        for text in ["0", "16777216", "-1", "", "ten"] {
            let error = text.parse::<Vni>().unwrap_err().to_string();
            assert_eq!(error, format!("{text:?} is no VXLAN network identifier: a number from 1 to 16777215"));
        }
    }
}
