//! CRC-32 in Ethernet's form (IEEE 802.3-2018 clause 3.2.9): the frame check sequence, and the two forms that
//! adapters use as an index into their multicast filters.

use crate::Mac;

/// The generator polynomial, bits reversed.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The contribution of a byte at eight positions: one step takes eight bytes.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (if crc & 1 != 0 { POLYNOMIAL } else { 0 });
            bit += 1;
        }
        tables[0][value] = crc;
        value += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut value = 0;
        while value < 256 {
            let before = tables[table - 1][value];
            tables[table][value] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            value += 1;
        }
        table += 1;
    }
    tables
}

/// A CRC over consecutive pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc(u32);

impl Default for Crc {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc {
    /// The CRC of no bytes: all ones.
    pub const fn new() -> Self {
        Self(!0)
    }

    /// Adds the next piece.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut crc = self.0;
        for &[a, b, c, d, e, f, g, h] in words {
            let [a, b, c, d] = (crc ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
            crc = TABLES[7][usize::from(a)]
                ^ TABLES[6][usize::from(b)]
                ^ TABLES[5][usize::from(c)]
                ^ TABLES[4][usize::from(d)]
                ^ TABLES[3][usize::from(e)]
                ^ TABLES[2][usize::from(f)]
                ^ TABLES[1][usize::from(g)]
                ^ TABLES[0][usize::from(h)];
        }
        for byte in rest {
            crc = (crc >> 8) ^ TABLES[0][usize::from(crc as u8 ^ byte)];
        }
        self.0 = crc;
    }

    /// The register, shifting right, not complemented.
    pub const fn little_endian(self) -> u32 {
        self.0
    }

    /// The register, shifting left, not complemented.
    pub const fn big_endian(self) -> u32 {
        self.0.reverse_bits()
    }

    /// The frame check sequence: its `to_le_bytes` follow the frame on the wire.
    pub const fn fcs(self) -> u32 {
        !self.0
    }
}

/// The frame check sequence of a whole frame: its `to_le_bytes` follow the frame on the wire.
#[inline]
pub fn fcs(frame: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.push(frame);
    crc.fcs()
}

/// CRC of an address, register shifting right (Linux: `ether_crc_le`). LANCE and vmxnet index with its top 6 bits.
#[inline]
pub fn multicast_le(mac: Mac) -> u32 {
    let mut crc = Crc::new();
    crc.push(&mac.0);
    crc.little_endian()
}

/// CRC of an address, register shifting left (Linux: `ether_crc`). NE2000 and RTL8139 index with its top 6 bits.
#[inline]
pub fn multicast_be(mac: Mac) -> u32 {
    let mut crc = Crc::new();
    crc.push(&mac.0);
    crc.big_endian()
}
