//! `[ft]`: the key that daemons share, and the place where they connect (docs/fault-tolerance.md).

pub mod names;

use std::io;
use std::path::PathBuf;

use nicety_host::{ListenAddress, ToleranceConfig};
use nicety_sealed::{Key, Listener, Place};

/// The reason why daemons cannot connect to each other.
#[derive(Debug, thiserror::Error)]
pub enum ToleranceError {
    /// The key cannot be used.
    #[error("[ft] key {path}: {why}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Other daemons cannot connect.
    #[error("[ft] listen {address}: {source}; end who listens there, or name another place")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// The cause.
        source: io::Error,
    },
}

/// The key in this file.
fn key(path: &std::path::Path) -> Result<Key, ToleranceError> {
    let wrong = |why: String| ToleranceError::Key { path: path.to_owned(), why };
    let make = || format!("head -c 32 /dev/urandom > {}", path.display());
    let bytes = std::fs::read(path)
        .map_err(|error| wrong(format!("{error}; copy the key of the other hosts there, or make one: {}", make())))?;
    if bytes.len() < Key::BYTES_MIN {
        let least = Key::BYTES_MIN;
        return Err(wrong(format!("a key has at least {least} bytes: {}", make())));
    }
    Ok(Key::new(&bytes))
}

/// Does this at the address where peers connect.
fn at<T>(address: &ListenAddress, act: impl FnOnce(&Place) -> io::Result<T>) -> Result<T, ToleranceError> {
    let done = act(&match address {
        ListenAddress::Address(address) => Place::Tcp(*address),
        ListenAddress::Unix(path) => Place::Unix(path.clone()),
    });
    done.map_err(|source| ToleranceError::Listen { address: address.clone(), source })
}

/// Checks whether the key can be read, and whether other daemons could connect. Makes nothing.
pub(crate) fn check(ToleranceConfig { listen, key: path }: &ToleranceConfig) -> Result<(), ToleranceError> {
    key(path)?;
    listen.as_ref().map_or(Ok(()), |address| at(address, Listener::check))
}
