//! Saved state: a name, a version, and the adapter's own fields, which are validated before use.
//!
//! An adapter keeps all saved fields in one struct with serde's derives, so that a new field cannot be forgotten; [`encode`] and
//! [`decode`] add and remove an envelope.
//!
//! A state of an older version is read by a chain of conversions, one per version ([`Version`]):
//!
//! ```text
//! bytes of v1 ─► V1 ─from_before─► V2 ─from_before─► V3, which the adapter takes
//! ```
//! The struct of an older version never changes. Golden files check that (`crates/trials/tests/golden`).

use nicety_memory::Window;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Reasons why saved state was refused. The adapter is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The state is another adapter's.
    #[error("this is the state of a {found:?}, not of a {wanted:?}")]
    Kind {
        /// The adapter in the state.
        found: String,
        /// The adapter to restore.
        wanted: &'static str,
    },
    /// A newer version of Nicety wrote it, or the version is too old to read.
    #[error("state version {found}; this version reads {oldest} to {newest}")]
    Version {
        /// The version found.
        found: u16,
        /// The oldest that can be read.
        oldest: u16,
        /// The newest, which this Nicety writes.
        newest: u16,
    },
    /// The bytes are damaged or cut.
    #[error("the saved state is damaged or cut short")]
    Damaged,
    /// A field has an impossible value.
    #[error("the saved state is impossible: {0}")]
    Impossible(&'static str),
}

/// State that can be saved and restored: between batches, with nothing in flight.
pub trait Snapshot {
    /// The whole state: saving a restored adapter gives the same bytes. Deadlines are saved unchanged, as times of the adapter's
    /// own clock: after a restore that clock continues from the time of saving.
    fn save(&self) -> Vec<u8>;

    /// Like [`Snapshot::save`], for an adapter with mapped doorbells: the guest's writes to the page, which cause no event, are part
    /// of the state.
    fn save_mapped(&self, _page: &Window<'_>) -> Vec<u8> {
        self.save()
    }

    /// Restores a whole saved state, or refuses it and changes nothing. The adapter cannot make requests here. So the caller sends
    /// [`Event::Restored`](crate::Event::Restored) before the adapter continues.
    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError>;
}

/// A version of an adapter's state, which knows the previous version.
pub trait Version: DeserializeOwned {
    /// Its number in the envelope, higher than the previous version's.
    const NUMBER: u16;

    /// The previous version; [`Nothing`] if this is the oldest that can be read.
    type Before: Version;

    /// Converts a state of the previous version.
    ///
    /// # Errors
    /// The state has impossible values.
    fn from_before(before: Self::Before) -> Result<Self, RestoreError>;
}

/// No version: the end of a chain of conversions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nothing {}

impl Version for Nothing {
    const NUMBER: u16 = 0;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

/// Puts an adapter's state into an envelope.
pub fn encode<T: Serialize>(kind: &str, version: u16, state: &T) -> Vec<u8> {
    // Writing plain data to a growing vector cannot fail; restore refuses an empty state.
    postcard::to_allocvec(&(kind, version, state)).unwrap_or_default()
}

/// The adapter's name, the version and the content of an envelope.
///
/// # Errors
/// The bytes are not an envelope.
pub fn label(saved: &[u8]) -> Result<(&str, u16, &[u8]), RestoreError> {
    let (kind, rest) = postcard::take_from_bytes::<&str>(saved).map_err(|_| RestoreError::Damaged)?;
    let (version, rest) = postcard::take_from_bytes::<u16>(rest).map_err(|_| RestoreError::Damaged)?;
    Ok((kind, version, rest))
}

/// Takes an adapter's state out of its envelope, and converts an older version.
///
/// # Errors
/// The state is another adapter's, has a version that cannot be read, is damaged, or cannot be converted.
pub fn decode<T: Version>(kind: &'static str, saved: &[u8]) -> Result<T, RestoreError> {
    let (found, version, state) = label(saved)?;
    if found != kind {
        return Err(RestoreError::Kind { found: found.to_owned(), wanted: kind });
    }
    let unknown = || RestoreError::Version { found: version, oldest: oldest::<T>(), newest: T::NUMBER };
    read::<T>(version, state).unwrap_or_else(|| Err(unknown()))
}

/// A state of the given version, converted to `T`; `None` if the chain has no version of that number.
fn read<T: Version>(version: u16, state: &[u8]) -> Option<Result<T, RestoreError>> {
    if T::NUMBER == 0 || version > T::NUMBER {
        return None;
    }
    if version == T::NUMBER {
        return Some(match postcard::take_from_bytes::<T>(state) {
            Ok((state, [])) => Ok(state),
            _ => Err(RestoreError::Damaged),
        });
    }
    read::<T::Before>(version, state).map(|before| before.and_then(T::from_before))
}

/// The number of the oldest version of a chain.
fn oldest<T: Version>() -> u16 {
    match <T::Before as Version>::NUMBER {
        0 => T::NUMBER,
        _ => oldest::<T::Before>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first saved struct: a colour by its number.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct V2 {
        colour: u8,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct V3 {
        colour: String,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct V5 {
        colour: String,
        bright: bool,
    }

    impl Version for V2 {
        const NUMBER: u16 = 2;
        type Before = Nothing;

        fn from_before(before: Nothing) -> Result<Self, RestoreError> {
            match before {}
        }
    }

    impl Version for V3 {
        const NUMBER: u16 = 3;
        type Before = V2;

        fn from_before(V2 { colour }: V2) -> Result<Self, RestoreError> {
            match colour {
                1 => Ok(V3 { colour: "red".to_owned() }),
                _ => Err(RestoreError::Impossible("colour")),
            }
        }
    }

    impl Version for V5 {
        const NUMBER: u16 = 5;
        type Before = V3;

        fn from_before(V3 { colour }: V3) -> Result<Self, RestoreError> {
            Ok(V5 { colour, bright: true })
        }
    }

    #[test]
    fn an_older_state_is_read_through_every_version_between() {
        let red = V5 { colour: "red".to_owned(), bright: true };
        assert_eq!(decode::<V5>("lamp", &encode("lamp", 2, &V2 { colour: 1 })).as_ref(), Ok(&red));
        assert_eq!(decode::<V5>("lamp", &encode("lamp", 3, &V3 { colour: "red".to_owned() })).as_ref(), Ok(&red));
        assert_eq!(decode::<V5>("lamp", &encode("lamp", 5, &red)).as_ref(), Ok(&red));
        let impossible = decode::<V5>("lamp", &encode("lamp", 2, &V2 { colour: 9 }));
        assert_eq!(impossible, Err(RestoreError::Impossible("colour")));
    }

    #[test]
    fn a_version_that_is_no_link_of_the_chain_is_refused_and_the_ends_are_named() {
        for found in [0, 1, 4, 6, u16::MAX] {
            let refused = decode::<V5>("lamp", &encode("lamp", found, &1u8));
            assert_eq!(refused, Err(RestoreError::Version { found, oldest: 2, newest: 5 }));
        }
    }

    #[test]
    fn what_is_cut_too_long_or_anothers_is_refused() {
        let saved = encode("lamp", 2, &V2 { colour: 1 });
        for cut in 0..saved.len() {
            assert_eq!(decode::<V5>("lamp", &saved[..cut]), Err(RestoreError::Damaged));
        }
        assert_eq!(decode::<V5>("lamp", &[&saved[..], &[0]].concat()), Err(RestoreError::Damaged));
        assert!(matches!(decode::<V5>("door", &saved), Err(RestoreError::Kind { .. })));
    }
}
