//! The UDP header (RFC 768).

use crate::{BuildError, Malformed};

/// Length of the header.
pub const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = 6;

/// The header, read in place. The length field is returned as written, unchecked.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    head: &'a [u8; HEADER_LEN],
    rest: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads `datagram`, which begins with the header.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = datagram.split_first_chunk().ok_or(Malformed::Short)?;
        Ok(Self { head, rest })
    }

    /// Source port.
    #[inline]
    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.head[0], self.head[1]])
    }

    /// Destination port.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.head[2], self.head[3]])
    }

    /// Length field: header and payload, in bytes.
    #[inline]
    pub fn len(&self) -> u16 {
        u16::from_be_bytes([self.head[4], self.head[5]])
    }

    /// Whether the length field leaves no payload.
    pub fn is_empty(&self) -> bool {
        usize::from(self.len()) <= HEADER_LEN
    }

    /// Checksum field; 0 means that there is none.
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.head[6], self.head[7]])
    }

    /// The payload, cut at the length field if more bytes are there.
    pub fn payload(&self) -> &'a [u8] {
        let end = usize::from(self.len()).saturating_sub(HEADER_LEN).min(self.rest.len());
        self.rest.get(..end).unwrap_or_default()
    }
}

/// The header, changed in place. The caller updates the checksum.
#[derive(Debug)]
pub struct Edit<'a>(&'a mut [u8; HEADER_LEN]);

impl<'a> Edit<'a> {
    /// Takes the header at the start of `datagram`.
    pub fn parse(datagram: &'a mut [u8]) -> Result<Self, Malformed> {
        datagram.first_chunk_mut().map(Self).ok_or(Malformed::Short)
    }

    /// Changes the length field: header and payload, in bytes.
    pub fn set_len(&mut self, len: u16) {
        [self.0[4], self.0[5]] = len.to_be_bytes();
    }

    /// Changes the checksum.
    pub fn set_checksum(&mut self, checksum: u16) {
        [self.0[6], self.0[7]] = checksum.to_be_bytes();
    }
}

/// The header's plain form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Length of the payload.
    pub payload_len: usize,
}

impl Header {
    /// Writes the header with a checksum of 0 at the start of `out` and returns its length.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let len = self.payload_len.checked_add(HEADER_LEN).and_then(|len| u16::try_from(len).ok());
        let len = len.ok_or(BuildError::Length)?;
        let head: &mut [u8; HEADER_LEN] = out.first_chunk_mut().ok_or(BuildError::NoRoom)?;
        [head[0], head[1]] = self.source_port.to_be_bytes();
        [head[2], head[3]] = self.destination_port.to_be_bytes();
        [head[4], head[5]] = len.to_be_bytes();
        [head[6], head[7]] = [0, 0];
        Ok(HEADER_LEN)
    }
}
