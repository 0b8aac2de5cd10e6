//! The IPv4 header (RFC 791 section 3.1).

use crate::bytes::put_options;
use crate::sum::sum;
use crate::{BuildError, Malformed};
pub use core::net::Ipv4Addr;

/// Length of the header without options.
pub const HEADER_LEN: usize = 20;
/// Offset of the source address in the header.
pub const SOURCE_OFFSET: usize = 12;
/// Offset of the destination address in the header.
pub const DESTINATION_OFFSET: usize = 16;

/// Values of the protocol field, the same for IPv6's next header (IANA).
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// Encapsulating Security Payload.
    pub const ESP: u8 = 50;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
}

/// The header, read in place. The length fields are returned as written, unchecked: they may be 0 in a head prepared
/// for segmentation.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    head: &'a [u8; HEADER_LEN],
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads `packet`, which begins with the header and must hold all of it, options included.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        let head: &[u8; HEADER_LEN] = packet.first_chunk().ok_or(Malformed::Short)?;
        let view = Self { head, bytes: packet };
        if head[0] >> 4 != 4 {
            return Err(Malformed::Version);
        }
        if view.header_len() < HEADER_LEN {
            return Err(Malformed::Length);
        }
        if packet.len() < view.header_len() {
            return Err(Malformed::Short);
        }
        Ok(view)
    }

    /// Header length in bytes, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.head[0] & 0xf) * 4
    }

    /// DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        self.head[1]
    }

    /// Total length field, in bytes.
    #[inline]
    pub fn total_len(&self) -> u16 {
        u16::from_be_bytes([self.head[2], self.head[3]])
    }

    /// Identification.
    #[inline]
    pub fn id(&self) -> u16 {
        u16::from_be_bytes([self.head[4], self.head[5]])
    }

    /// "Don't fragment".
    pub fn dont_fragment(&self) -> bool {
        self.head[6] & 0x40 != 0
    }

    /// "More fragments".
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.head[6] & 0x20 != 0
    }

    /// Fragment offset, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(u16::from_be_bytes([self.head[6], self.head[7]]) & 0x1fff) * 8
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        self.head[8]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.head[9]
    }

    /// Header checksum field.
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.head[10], self.head[11]])
    }

    /// Whether the header checksum is right.
    pub fn checksum_ok(&self) -> bool {
        self.bytes.get(..self.header_len()).is_some_and(|header| sum(header).verify())
    }

    /// Source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.head[12], self.head[13], self.head[14], self.head[15])
    }

    /// Destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.head[16], self.head[17], self.head[18], self.head[19])
    }

    /// Options; empty in nearly every packet.
    pub fn options(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..self.header_len()).unwrap_or_default()
    }

    /// The payload, cut at the total length if more bytes (padding) are there.
    pub fn payload(&self) -> &'a [u8] {
        let end = usize::from(self.total_len()).min(self.bytes.len());
        self.bytes.get(self.header_len()..end).unwrap_or_default()
    }
}

/// The header, changed in place. The checksum is stale until [`Edit::fill_checksum`].
#[derive(Debug)]
pub struct Edit<'a>(&'a mut [u8]);

impl<'a> Edit<'a> {
    /// Takes the header at the start of `packet`.
    pub fn parse(packet: &'a mut [u8]) -> Result<Self, Malformed> {
        let len = View::parse(packet)?.header_len();
        packet.get_mut(..len).map(Self).ok_or(Malformed::Short)
    }

    fn put<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        // `parse` has shown that at least 20 bytes are there, and every caller writes below that.
        let written = crate::bytes::put(self.0, at, value);
        debug_assert!(written.is_some());
    }

    /// Changes the total length.
    pub fn set_total_len(&mut self, total_len: u16) {
        self.put(2, total_len.to_be_bytes());
    }

    /// Changes the identification.
    pub fn set_id(&mut self, id: u16) {
        self.put(4, id.to_be_bytes());
    }

    /// Changes the time to live.
    pub fn set_ttl(&mut self, ttl: u8) {
        self.put(8, [ttl]);
    }

    /// Changes DSCP and ECN.
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        self.put(1, [traffic_class]);
    }

    /// Changes the source address.
    pub fn set_source(&mut self, address: Ipv4Addr) {
        self.put(SOURCE_OFFSET, address.octets());
    }

    /// Changes the destination address.
    pub fn set_destination(&mut self, address: Ipv4Addr) {
        self.put(DESTINATION_OFFSET, address.octets());
    }

    /// Computes the header checksum and writes it.
    pub fn fill_checksum(&mut self) {
        self.put(10, [0, 0]);
        let checksum = sum(self.0).checksum();
        self.put(10, checksum.to_be_bytes());
    }
}

/// The header's plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub id: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// "Don't fragment".
    pub dont_fragment: bool,
    /// "More fragments".
    pub more_fragments: bool,
    /// Fragment offset in units of 8 bytes, 0 to 8191; higher bits are dropped.
    pub fragment_offset_8: u16,
    /// Options: at most 40 bytes, in steps of 4.
    pub options: &'a [u8],
    /// Length of the payload.
    pub payload_len: usize,
}

impl Default for Header<'_> {
    fn default() -> Self {
        Self {
            source: Ipv4Addr::UNSPECIFIED,
            destination: Ipv4Addr::UNSPECIFIED,
            protocol: 0,
            ttl: 64,
            id: 0,
            traffic_class: 0,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset_8: 0,
            options: &[],
            payload_len: 0,
        }
    }
}

impl Header<'_> {
    /// Writes the header with its checksum at the start of `out` and returns its length.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let len = put_options(out, HEADER_LEN, self.options)?;
        let total = self.payload_len.checked_add(len).and_then(|total| u16::try_from(total).ok());
        let total = total.ok_or(BuildError::Length)?.to_be_bytes();
        let head: &mut [u8; HEADER_LEN] = out.first_chunk_mut().ok_or(BuildError::NoRoom)?;
        let flags = (u16::from(self.dont_fragment) << 14) | (u16::from(self.more_fragments) << 13);
        let fragment = (flags | (self.fragment_offset_8 & 0x1fff)).to_be_bytes();
        // At most 60 bytes, so at most 15 words.
        head[0] = 0x40 | ((len / 4) as u8 & 0xf);
        head[1] = self.traffic_class;
        [head[2], head[3]] = total;
        [head[4], head[5]] = self.id.to_be_bytes();
        [head[6], head[7]] = fragment;
        [head[8], head[9]] = [self.ttl, self.protocol];
        [head[10], head[11]] = [0, 0];
        [head[12], head[13], head[14], head[15]] = self.source.octets();
        [head[16], head[17], head[18], head[19]] = self.destination.octets();
        let header = out.get(..len).ok_or(BuildError::NoRoom)?;
        let checksum = sum(header).checksum();
        crate::bytes::put(out, 10, checksum.to_be_bytes()).ok_or(BuildError::NoRoom)?;
        Ok(len)
    }
}
