//! The fixed IPv6 header (RFC 8200 section 3). Extension headers are walked in `layout`.

use crate::bytes::{array_at, put};
use crate::{BuildError, Malformed};
pub use core::net::Ipv6Addr;

/// Length of the fixed header.
pub const HEADER_LEN: usize = 40;
/// Offset of the source address in the header.
pub const SOURCE_OFFSET: usize = 8;
/// Offset of the destination address in the header.
pub const DESTINATION_OFFSET: usize = 24;

/// Next header values of extension headers: RFC 8200 section 4, and IANA's registry "IPv6 Extension Header Types". `layout` walks the
/// first four.
pub mod extension {
    /// Hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// Routing.
    pub const ROUTING: u8 = 43;
    /// Fragment.
    pub const FRAGMENT: u8 = 44;
    /// Destination options.
    pub const DESTINATION: u8 = 60;
    /// Authentication header (RFC 4302). It counts its length in words of 4 bytes, and follows an IPv4 header too.
    pub const AUTHENTICATION: u8 = 51;
    /// Mobility header (RFC 6275).
    pub const MOBILITY: u8 = 135;
    /// Host identity protocol (RFC 7401).
    pub const HOST_IDENTITY: u8 = 139;
    /// Shim6 (RFC 5533).
    pub const SHIM6: u8 = 140;
}

/// The fixed header, read in place. The payload length is returned as written, unchecked: it may be 0 in a head prepared
/// for segmentation.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    head: &'a [u8; HEADER_LEN],
    rest: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads `packet`, which begins with the header.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = packet.split_first_chunk().ok_or(Malformed::Short)?;
        if head[0] >> 4 != 6 {
            return Err(Malformed::Version);
        }
        Ok(Self { head, rest })
    }

    /// DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        (self.head[0] << 4) | (self.head[1] >> 4)
    }

    /// Flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        u32::from_be_bytes([0, self.head[1] & 0xf, self.head[2], self.head[3]])
    }

    /// Payload length field in bytes: all bytes behind the fixed header, extension headers included.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        u16::from_be_bytes([self.head[4], self.head[5]])
    }

    /// Type of the header that follows.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.head[6]
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.head[7]
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        address_at(self.head, SOURCE_OFFSET)
    }

    /// Destination address of this hop; see `L3::destination_at` for the final one.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        address_at(self.head, DESTINATION_OFFSET)
    }

    /// The bytes behind the fixed header, cut at the payload length if more bytes (padding) are there.
    pub fn payload(&self) -> &'a [u8] {
        let end = usize::from(self.payload_len()).min(self.rest.len());
        self.rest.get(..end).unwrap_or_default()
    }
}

fn address_at(head: &[u8; HEADER_LEN], at: usize) -> Ipv6Addr {
    array_at::<16>(head, at).map_or(Ipv6Addr::UNSPECIFIED, |octets| Ipv6Addr::from(*octets))
}

/// The fixed header, changed in place.
#[derive(Debug)]
pub struct Edit<'a>(&'a mut [u8; HEADER_LEN]);

impl<'a> Edit<'a> {
    /// Takes the header at the start of `packet`.
    pub fn parse(packet: &'a mut [u8]) -> Result<Self, Malformed> {
        View::parse(packet)?;
        packet.first_chunk_mut().map(Self).ok_or(Malformed::Short)
    }

    /// Changes the payload length.
    pub fn set_payload_len(&mut self, payload_len: u16) {
        [self.0[4], self.0[5]] = payload_len.to_be_bytes();
    }

    /// Changes the hop limit.
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.0[7] = hop_limit;
    }

    /// Changes DSCP and ECN.
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        self.0[0] = 0x60 | (traffic_class >> 4);
        self.0[1] = (traffic_class << 4) | (self.0[1] & 0xf);
    }
}

/// The fixed header's plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Type of the header that follows.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label; bits beyond 20 are dropped.
    pub flow_label: u32,
    /// Length of the bytes behind the fixed header.
    pub payload_len: usize,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            source: Ipv6Addr::UNSPECIFIED,
            destination: Ipv6Addr::UNSPECIFIED,
            next_header: 59,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            payload_len: 0,
        }
    }
}

impl Header {
    /// Writes the header at the start of `out` and returns its length.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let payload_len = u16::try_from(self.payload_len).map_err(|_| BuildError::Length)?;
        let head: &mut [u8; HEADER_LEN] = out.first_chunk_mut().ok_or(BuildError::NoRoom)?;
        let first = (6 << 28) | (u32::from(self.traffic_class) << 20) | (self.flow_label & 0xf_ffff);
        [head[0], head[1], head[2], head[3]] = first.to_be_bytes();
        [head[4], head[5]] = payload_len.to_be_bytes();
        [head[6], head[7]] = [self.next_header, self.hop_limit];
        put(head, SOURCE_OFFSET, self.source.octets()).ok_or(BuildError::NoRoom)?;
        put(head, DESTINATION_OFFSET, self.destination.octets()).ok_or(BuildError::NoRoom)?;
        Ok(HEADER_LEN)
    }
}
