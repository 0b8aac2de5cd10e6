//! The TCP header (RFC 9293 section 3.1).

use crate::bytes::put_options;
use crate::{BuildError, Malformed};

/// Length of the header without options.
pub const HEADER_LEN: usize = 20;
/// Offset of the checksum in the header.
pub const CHECKSUM_OFFSET: usize = 16;

/// The control bits.
pub mod flag {
    /// No more data from the sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Push function.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement field is valid.
    pub const ACK: u8 = 0x10;
    /// The urgent pointer is valid.
    pub const URG: u8 = 0x20;
    /// Congestion was seen (RFC 3168).
    pub const ECE: u8 = 0x40;
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// The header, read in place.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    head: &'a [u8; HEADER_LEN],
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Reads `segment`, which begins with the header and must hold all of it, options included.
    #[inline]
    pub fn parse(segment: &'a [u8]) -> Result<Self, Malformed> {
        let head: &[u8; HEADER_LEN] = segment.first_chunk().ok_or(Malformed::Short)?;
        let view = Self { head, bytes: segment };
        if view.header_len() < HEADER_LEN {
            return Err(Malformed::Length);
        }
        if segment.len() < view.header_len() {
            return Err(Malformed::Short);
        }
        Ok(view)
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

    /// Sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        u32::from_be_bytes([self.head[4], self.head[5], self.head[6], self.head[7]])
    }

    /// Acknowledgement number.
    pub fn acknowledgement(&self) -> u32 {
        u32::from_be_bytes([self.head[8], self.head[9], self.head[10], self.head[11]])
    }

    /// Header length in bytes, options included: 20 to 60.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.head[12] >> 4) * 4
    }

    /// The control bits, as in [`flag`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.head[13]
    }

    /// Window field, not scaled.
    pub fn window(&self) -> u16 {
        u16::from_be_bytes([self.head[14], self.head[15]])
    }

    /// Checksum field.
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.head[16], self.head[17]])
    }

    /// Urgent pointer.
    pub fn urgent(&self) -> u16 {
        u16::from_be_bytes([self.head[18], self.head[19]])
    }

    /// Options.
    pub fn options(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..self.header_len()).unwrap_or_default()
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        self.bytes.get(self.header_len()..).unwrap_or_default()
    }
}

/// The fixed part of the header, changed in place. The caller updates the checksum.
#[derive(Debug)]
pub struct Edit<'a>(&'a mut [u8; HEADER_LEN]);

impl<'a> Edit<'a> {
    /// Takes the header at the start of `segment`.
    pub fn parse(segment: &'a mut [u8]) -> Result<Self, Malformed> {
        View::parse(segment)?;
        segment.first_chunk_mut().map(Self).ok_or(Malformed::Short)
    }

    /// Changes the sequence number.
    pub fn set_sequence(&mut self, sequence: u32) {
        [self.0[4], self.0[5], self.0[6], self.0[7]] = sequence.to_be_bytes();
    }

    /// Changes the acknowledgement number.
    pub fn set_acknowledgement(&mut self, acknowledgement: u32) {
        [self.0[8], self.0[9], self.0[10], self.0[11]] = acknowledgement.to_be_bytes();
    }

    /// Changes the control bits.
    pub fn set_flags(&mut self, flags: u8) {
        self.0[13] = flags;
    }

    /// Changes the window.
    pub fn set_window(&mut self, window: u16) {
        [self.0[14], self.0[15]] = window.to_be_bytes();
    }

    /// Changes the checksum.
    pub fn set_checksum(&mut self, checksum: u16) {
        [self.0[16], self.0[17]] = checksum.to_be_bytes();
    }
}

/// The header's plain form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// The control bits, as in [`flag`].
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options: at most 40 bytes, in steps of 4.
    pub options: &'a [u8],
}

impl Header<'_> {
    /// Writes the header with a checksum of 0 at the start of `out` and returns its length.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let len = put_options(out, HEADER_LEN, self.options)?;
        let head: &mut [u8; HEADER_LEN] = out.first_chunk_mut().ok_or(BuildError::NoRoom)?;
        [head[0], head[1]] = self.source_port.to_be_bytes();
        [head[2], head[3]] = self.destination_port.to_be_bytes();
        [head[4], head[5], head[6], head[7]] = self.sequence.to_be_bytes();
        [head[8], head[9], head[10], head[11]] = self.acknowledgement.to_be_bytes();
        // At most 60 bytes, thus at most 15 words.
        head[12] = ((len / 4) as u8 & 0xf) << 4;
        head[13] = self.flags;
        [head[14], head[15]] = self.window.to_be_bytes();
        [head[16], head[17]] = [0, 0];
        [head[18], head[19]] = self.urgent.to_be_bytes();
        Ok(len)
    }
}
