//! A function's state as plain data, and as bytes with a version; validated before it is restored.

use crate::function::Function;
use crate::msix::Msix;
use crate::registers as r;

/// The state of a [`Function`]: everything that a guest or the device can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Configuration space, 256 or 4096 bytes; the INTx level is in its status register.
    pub bytes: Vec<u8>,
    /// The MSI-X table, 16 bytes a vector, if it has one.
    pub msix_table: Option<Vec<u8>>,
}

/// Reasons why saved state was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// The bytes do not begin with the mark of a saved function.
    #[error("this is not a saved PCI function")]
    Mark,
    /// The version is unknown to this program.
    #[error("saved in version {0}; this program reads version 1")]
    Version(u16),
    /// The bytes end in the middle of a field.
    #[error("saved PCI function ends within {0}")]
    Short(&'static str),
    /// There are more bytes than fields.
    #[error("{0} bytes after the end of a saved PCI function")]
    Long(usize),
    /// The size of the space differs from this function's.
    #[error("configuration space of {saved} bytes; this function's has {here}")]
    Size {
        /// Bytes saved.
        saved: usize,
        /// Bytes that this function has.
        here: usize,
    },
    /// Read-only bits differ: another device, or another model of it.
    #[error(
        "configuration byte {offset:#05x} ({name}) is {saved:#04x}; here its read-only bits are those of {here:#04x}"
    )]
    ReadOnly {
        /// Offset of the byte.
        offset: usize,
        /// Name of the register that contains it.
        name: &'static str,
        /// The byte that was saved.
        saved: u8,
        /// The byte after reset here.
        here: u8,
    },
    /// A field has a value that is impossible here.
    #[error("{0} cannot be as saved")]
    Field(&'static str),
}

const MARK: [u8; 4] = *b"NPCI";
const VERSION: u16 = 1;
/// The transport keeps pending messages: their fields are empty here.
const NOTHING_PENDING: u32 = 0;

/// Number of 64-bit words with a bit for each vector.
fn words(vectors: usize) -> usize {
    vectors.div_ceil(64)
}

impl Function {
    /// Everything that a guest or the device can change.
    #[must_use]
    pub fn save(&self) -> Saved {
        let Self { layout: _, bytes, msix } = self;
        Saved { bytes: bytes.to_vec(), msix_table: msix.as_ref().map(Msix::save) }
    }

    /// Restores saved state, if it fits this function; otherwise nothing changes.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn restore(&mut self, saved: &Saved) -> Result<(), SavedError> {
        let Saved { bytes, msix_table } = saved;
        self.check_bytes(bytes)?;
        match (&self.msix, msix_table) {
            (Some(here), Some(table)) => here.check(table).map_err(SavedError::Field)?,
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => return Err(SavedError::Field("whether there is an MSI-X table")),
        }
        self.bytes.copy_from_slice(bytes);
        if let (Some(here), Some(table)) = (&mut self.msix, msix_table) {
            here.restore(table);
        }
        self.clamp_vectors();
        Ok(())
    }

    fn check_bytes(&self, bytes: &[u8]) -> Result<(), SavedError> {
        if bytes.len() != self.bytes.len() {
            return Err(SavedError::Size { saved: bytes.len(), here: self.bytes.len() });
        }
        for (offset, (&saved, rule)) in bytes.iter().zip(&self.layout.bytes).enumerate() {
            if (saved ^ rule.reset) & !rule.changeable() != 0 {
                let name = r::name(offset);
                return Err(SavedError::ReadOnly { offset, name, saved, here: rule.reset });
            }
        }
        if let Some(at) = self.layout.power {
            let capabilities = self.read16(at + 2);
            let state = bytes.get(at + r::POWER_CONTROL).map_or(0, |byte| u16::from(*byte) & r::POWER_STATE);
            let missing =
                state == 1 && capabilities & r::POWER_D1 == 0 || state == 2 && capabilities & r::POWER_D2 == 0;
            if missing {
                return Err(SavedError::Field("power state: one that the function lacks"));
            }
        }
        Ok(())
    }
}

impl Saved {
    /// The state as bytes: mark, version, then each field with its length, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { bytes, msix_table } = self;
        let mut out = Vec::with_capacity(bytes.len() + 64);
        out.extend(MARK);
        out.extend(VERSION.to_le_bytes());
        // The lengths are bounded: 4096 bytes, 2048 vectors.
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend(bytes);
        out.extend(NOTHING_PENDING.to_le_bytes());
        let table = msix_table.as_deref().unwrap_or_default();
        out.extend((table.len() as u32).to_le_bytes());
        out.extend(table);
        out.extend(std::iter::repeat_n(0, 8 * words(table.len() / r::MSIX_ENTRY)));
        out
    }

    /// Reads bytes that [`Saved::to_bytes`] wrote. [`Function::restore`] checks whether they fit a function.
    ///
    /// # Errors
    /// Another mark or version, an impossible length, too few bytes or too many.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SavedError> {
        let mut rest = Rest(bytes);
        if rest.array("mark").map_err(|_| SavedError::Mark)? != MARK {
            return Err(SavedError::Mark);
        }
        let version = u16::from_le_bytes(rest.array("version")?);
        if version != VERSION {
            return Err(SavedError::Version(version));
        }
        let size = u32::from_le_bytes(rest.array("size")?) as usize;
        if size != r::SPACE && size != r::EXPRESS_SPACE {
            return Err(SavedError::Field("size of configuration space"));
        }
        let space = rest.take(size, "configuration space")?.to_vec();
        let mut pending = u64::from(u32::from_le_bytes(rest.array("MSI pending")?));
        let table_size = u32::from_le_bytes(rest.array("MSI-X table size")?) as usize;
        let vectors = table_size / r::MSIX_ENTRY;
        if !table_size.is_multiple_of(r::MSIX_ENTRY) || vectors > usize::from(r::MSIX_VECTORS) {
            return Err(SavedError::Field("MSI-X table size"));
        }
        let msix_table = match vectors {
            0 => None,
            _ => Some(rest.take(table_size, "MSI-X table")?.to_vec()),
        };
        for _ in 0..words(vectors) {
            pending |= u64::from_le_bytes(rest.array("MSI-X pending bits")?);
        }
        if pending != NOTHING_PENDING.into() {
            return Err(SavedError::Field("pending messages"));
        }
        match rest.0.len() {
            0 => Ok(Self { bytes: space, msix_table }),
            more => Err(SavedError::Long(more)),
        }
    }
}

struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], SavedError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(SavedError::Short(field))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], SavedError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SavedError::Short(field))?;
        self.0 = rest;
        Ok(*taken)
    }
}
