//! Random numbers of the system.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A new secret number each time.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
