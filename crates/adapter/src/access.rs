//! A driver's access to a device: its region, its offset, its value, and the name of the register there.

use std::fmt;
use std::str::FromStr;

/// Bytes of the widest access whose value is recorded.
pub const VALUE_BYTES: usize = 8;

/// A part of a PCI function that is accessed by offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// The region of a base address register, 0 to 5.
    Bar(u8),
    /// The option ROM.
    Rom,
    /// Configuration space.
    Config,
}

/// An access by the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// True for a write, false for a read.
    pub write: bool,
    /// The region.
    pub region: Region,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub width: u32,
    /// The little-endian value; zero for an access wider than [`VALUE_BYTES`].
    pub value: u64,
}

/// A register's name, for a person: `TDT`, or `MTA[5]`, the sixth of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegisterName {
    /// The name in the data sheet.
    pub word: &'static str,
    /// The index among several.
    pub index: Option<u32>,
}

impl Access {
    /// The access with these bytes.
    pub fn of(write: bool, region: Region, offset: u64, data: &[u8]) -> Access {
        let mut bytes = [0; VALUE_BYTES];
        if let Some(place) = bytes.get_mut(..data.len()) {
            place.copy_from_slice(data);
        }
        Access { write, region, offset, width: data.len() as u32, value: u64::from_le_bytes(bytes) }
    }

    /// Whether its value is known.
    pub fn has_value(&self) -> bool {
        self.width as usize <= VALUE_BYTES
    }
}

impl fmt::Display for RegisterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            Some(index) => write!(f, "{}[{index}]", self.word),
            None => f.write_str(self.word),
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Region::Bar(number) => write!(f, "bar{number}"),
            Region::Rom => f.write_str("rom"),
            Region::Config => f.write_str("config"),
        }
    }
}

impl FromStr for Region {
    type Err = String;

    fn from_str(word: &str) -> Result<Region, String> {
        match word {
            "rom" => Ok(Region::Rom),
            "config" => Ok(Region::Config),
            _ => match word.strip_prefix("bar").and_then(|digit| digit.parse().ok()) {
                Some(number @ 0..=5) => Ok(Region::Bar(number)),
                _ => Err(format!("`{word}` is no region: bar0 to bar5, rom, config")),
            },
        }
    }
}
