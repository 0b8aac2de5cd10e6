//! Reasons why a header cannot be read or built. All protocol modules share them, so a caller handles one type.

use core::fmt;

/// Reasons why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Fewer bytes than the header with its options.
    Short,
    /// The version or format field names another protocol.
    Version,
    /// The header's own length field is less than the smallest header, or its total length less than the header.
    Length,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the bytes end before the header does",
            Self::Version => "the version field names another protocol",
            Self::Length => "a length field is smaller than the header itself",
        })
    }
}

impl core::error::Error for Malformed {}

/// Reasons why a header cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BuildError {
    /// The buffer is shorter than the header.
    NoRoom,
    /// Options must be at most 40 bytes, in steps of 4.
    Options,
    /// The payload is too long for the length field.
    Length,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRoom => "the buffer is shorter than the header",
            Self::Options => "options must be at most 40 bytes, in steps of 4",
            Self::Length => "the payload is longer than the length field can say",
        })
    }
}

impl core::error::Error for BuildError {}
