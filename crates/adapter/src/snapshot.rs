//! Saved state: a name, a version, and the adapter's own fields, validated before they are taken.
//!
//! An adapter keeps what must survive in one struct with serde's derives, so that a new field cannot be forgotten;
//! [`encode`] and [`decode`] put it into an envelope.
//!
//! A state of an older version is read by a chain of conversions, one per version ([`Version`]):
//!
//! ```text
//! bytes of v1 ─► V1 ─from_before─► V2 ─from_before─► V3, which the adapter takes
//! ```
//! The struct of an older version stays as it was saved. Golden files hold it to that (`crates/trials/tests/golden`).

use nicety_memory::Window;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

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
    /// A newer version of Nicety wrote it, or one so old that it is not read any more.
    #[error("state version {found}; this version reads {oldest} to {newest}")]
    Version {
        /// The version found.
        found: u16,
        /// The oldest that can be read.
        oldest: u16,
        /// The newest, which is what this Nicety writes.
        newest: u16,
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
    /// The state, all of it: saving a restored adapter gives the same bytes. Deadlines are saved as they are, as times of
    /// the adapter's own clock: after a restore that clock goes on from the time of saving.
    fn save(&self) -> Vec<u8>;

    /// As [`Snapshot::save`], of an adapter whose guest has mapped its doorbells: what the guest has written there, which
    /// sends no message, is part of the state.
    fn save_mapped(&self, _page: &Window<'_>) -> Vec<u8> {
        self.save()
    }

    /// Takes a saved state whole, or refuses it and changes nothing. It cannot ask for anything here: the caller sends
    /// [`Event::Restored`](crate::Event::Restored) before the adapter goes on.
    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError>;
}

/// A version of an adapter's state, which knows the version before it.
pub trait Version: DeserializeOwned {
    /// Its number in the envelope, above that of the version before.
    const NUMBER: u16;

    /// The version before; [`Nothing`] if this is the oldest that is read.
    type Before: Version;

    /// Converts a state of the version before.
    ///
    /// # Errors
    /// What it says cannot be.
    fn from_before(before: Self::Before) -> Result<Self, RestoreError>;
}

/// No version: where a chain of conversions ends.
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
    // Writing plain data to a growing vector cannot fail; an empty state is refused on restoring.
    postcard::to_allocvec(&(kind, version, state)).unwrap_or_default()
}

/// The adapter's name and the version on an envelope, and what is in it.
///
/// # Errors
/// The bytes are no envelope.
pub fn label(saved: &[u8]) -> Result<(&str, u16, &[u8]), RestoreError> {
    let (kind, rest) = postcard::take_from_bytes::<&str>(saved).map_err(|_| RestoreError::Damaged)?;
    let (version, rest) = postcard::take_from_bytes::<u16>(rest).map_err(|_| RestoreError::Damaged)?;
    Ok((kind, version, rest))
}

/// Takes an adapter's state out of its envelope, and converts it if it is an older one.
///
/// # Errors
/// It is another adapter's, of a version that is not read, damaged, or cannot be converted.
pub fn decode<T: Version>(kind: &'static str, saved: &[u8]) -> Result<T, RestoreError> {
    let (found, version, state) = label(saved)?;
    if found != kind {
        return Err(RestoreError::Kind { found: found.to_owned(), wanted: kind });
    }
    let unknown = || RestoreError::Version { found: version, oldest: oldest::<T>(), newest: T::NUMBER };
    read::<T>(version, state).unwrap_or_else(|| Err(unknown()))
}

/// The state of a version as one of version `T`; `None` if no version of the chain has that number.
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

    /// What one saved at first: a colour by its number.
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
