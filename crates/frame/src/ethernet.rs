//! Addresses and the 14-byte header of Ethernet (IEEE 802.3-2018 clause 3.2, RFC 894).

use crate::{BuildError, Malformed};
use core::fmt;
use core::str::FromStr;

/// Length of the header without tags.
pub const HEADER_LEN: usize = 14;
/// Shortest frame without its FCS: shorter frames are padded to this length.
pub const FRAME_LEN_MIN: usize = 60;
/// Longest untagged frame of the standard MTU without its FCS.
pub const FRAME_LEN_MAX: usize = 1514;
/// Length of the frame check sequence.
pub const FCS_LEN: usize = 4;
/// Values of the type field below this are lengths (IEEE 802.3 clause 3.2.6).
pub const TYPE_MIN: u16 = 0x0600;

/// Values of the type field (IEEE registration authority).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// RARP.
    pub const RARP: u16 = 0x8035;
    /// 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// 802.1ad service tag.
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// MAC control (PAUSE).
    pub const MAC_CONTROL: u16 = 0x8808;
    /// Slow protocols (LACP, marker).
    pub const SLOW: u16 = 0x8809;
    /// LLDP.
    pub const LLDP: u16 = 0x88cc;
}

/// A MAC address, first byte on the wire first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All ones.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// All zeros: no address.
    pub const ZERO: Self = Self([0; 6]);

    /// Group address: the first bit on the wire is set. Broadcast is one of them.
    #[inline]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The address of all stations.
    #[inline]
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// One station's address: neither group nor zero. Only such an address can be an adapter's own.
    #[inline]
    pub const fn is_unicast(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }

    /// Locally administered: not from a manufacturer's range.
    #[inline]
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }

    /// Reserved for the link itself, never forwarded by a bridge: 01:80:c2:00:00:00 to :0f (IEEE 802.1Q table 8-1).
    #[inline]
    pub const fn is_link_local(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0, 0, last] if last <= 0x0f)
    }

    /// The address in the low 48 bits, first byte on the wire most significant: a key for tables.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl From<[u8; 6]> for Mac {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Mistakes in a written MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MacError {
    /// The address has both `:` and `-`.
    Mixed,
    /// The address does not have six parts; the number of parts.
    Parts(usize),
    /// The part with this number, counted from 1, is not two hexadecimal digits.
    Digits(usize),
}

impl fmt::Display for MacError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mixed => write!(f, "a MAC address has ':' or '-' between its parts, this one has both")?,
            Self::Parts(found) => write!(f, "a MAC address has 6 parts, this one has {found}")?,
            Self::Digits(part) => write!(f, "part {part} of the MAC address is not two hexadecimal digits")?,
        }
        f.write_str("; write it like 52:54:00:12:34:56 (or with '-' between the parts)")
    }
}

impl core::error::Error for MacError {}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let separator = if text.contains('-') { '-' } else { ':' };
        if text.contains('-') && text.contains(':') {
            return Err(MacError::Mixed);
        }
        let found = text.split(separator).count();
        if found != 6 {
            return Err(MacError::Parts(found));
        }
        let mut mac = [0; 6];
        for (index, (byte, part)) in mac.iter_mut().zip(text.split(separator)).enumerate() {
            // `from_str_radix` accepts a sign, an address must not have one.
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(MacError::Digits(index + 1));
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| MacError::Digits(index + 1))?;
        }
        Ok(Self(mac))
    }
}

/// The header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    head: &'a [u8; HEADER_LEN],
    payload: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads `frame`, which begins with the destination.
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Result<Self, Malformed> {
        let (head, payload) = frame.split_first_chunk().ok_or(Malformed::Short)?;
        Ok(Self { head, payload })
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = *self.head;
        Mac([a, b, c, d, e, f])
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Mac {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *self.head;
        Mac([a, b, c, d, e, f])
    }

    /// The type field; a length if below [`TYPE_MIN`]; a tag's TPID if the frame is tagged.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16::from_be_bytes([self.head[12], self.head[13]])
    }

    /// The payload, padding included.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The header, changed in place.
#[derive(Debug)]
pub struct Edit<'a>(&'a mut [u8; HEADER_LEN]);

impl<'a> Edit<'a> {
    /// Takes the header at the start of `frame`.
    pub fn parse(frame: &'a mut [u8]) -> Result<Self, Malformed> {
        frame.first_chunk_mut().map(Self).ok_or(Malformed::Short)
    }

    /// Changes the destination address.
    pub fn set_destination(&mut self, mac: Mac) {
        [self.0[0], self.0[1], self.0[2], self.0[3], self.0[4], self.0[5]] = mac.0;
    }

    /// Changes the source address.
    pub fn set_source(&mut self, mac: Mac) {
        [self.0[6], self.0[7], self.0[8], self.0[9], self.0[10], self.0[11]] = mac.0;
    }

    /// Changes the type field.
    pub fn set_ethertype(&mut self, ethertype: u16) {
        [self.0[12], self.0[13]] = ethertype.to_be_bytes();
    }
}

/// The header's plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Destination address.
    pub destination: Mac,
    /// Source address.
    pub source: Mac,
    /// The type field.
    pub ethertype: u16,
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let mut edit = Edit::parse(out).map_err(|_| BuildError::NoRoom)?;
        edit.set_destination(self.destination);
        edit.set_source(self.source);
        edit.set_ethertype(self.ethertype);
        Ok(HEADER_LEN)
    }
}
