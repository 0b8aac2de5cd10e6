//! Saved state: a name, a version, and the adapter's own fields, validated before they are taken.
//!
//! An adapter keeps what must survive in one struct with serde's derives, so that a new field cannot be forgotten;
//! [`encode`] and [`decode`] put it into an envelope.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why saved state was not taken. The adapter is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It is another adapter's.
    #[error("this is the state of a {found:?}, not of a {wanted:?}")]
    Kind {
        /// The adapter that it is of.
        found: String,
        /// The adapter that it was given to.
        wanted: &'static str,
    },
    /// Another version of Nicety wrote it.
    #[error("state version {found}; this version reads {wanted}")]
    Version {
        /// The version found.
        found: u16,
        /// The version that can be read.
        wanted: u16,
    },
    /// The bytes are damaged or cut.
    #[error("the saved state is damaged or cut short")]
    Damaged,
    /// A field holds what no device could.
    #[error("the saved state is impossible: {0}")]
    Impossible(&'static str),
}

/// What can be saved and restored: between batches, with nothing in flight.
pub trait Snapshot {
    /// The state, all of it: saving a restored adapter gives the same bytes.
    fn save(&self) -> Vec<u8>;

    /// Takes a saved state whole, or refuses it and changes nothing. It cannot ask for anything here: whoever restores it
    /// [tells it so](crate::Event::Restored) before it goes on.
    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError>;
}

/// Puts an adapter's state into an envelope.
pub fn encode<T: Serialize>(kind: &str, version: u16, state: &T) -> Vec<u8> {
    // Writing plain data to a growing vector cannot fail; an empty state is refused on restoring.
    postcard::to_allocvec(&(kind, version, state)).unwrap_or_default()
}

/// Takes an adapter's state out of its envelope.
pub fn decode<T: DeserializeOwned>(kind: &'static str, version: u16, saved: &[u8]) -> Result<T, RestoreError> {
    let (found, rest) = postcard::take_from_bytes::<&str>(saved).map_err(|_| RestoreError::Damaged)?;
    if found != kind {
        return Err(RestoreError::Kind { found: found.to_owned(), wanted: kind });
    }
    let (found, rest) = postcard::take_from_bytes::<u16>(rest).map_err(|_| RestoreError::Damaged)?;
    if found != version {
        return Err(RestoreError::Version { found, wanted: version });
    }
    match postcard::take_from_bytes::<T>(rest) {
        Ok((state, [])) => Ok(state),
        _ => Err(RestoreError::Damaged),
    }
}
