//! A port's state, to be saved in one daemon and restored in another.
//!
//! ```text
//! "nicety-port", version │ the time by the adapter's clock │ the adapter's state, in its own envelope │ masks, pending interrupts
//! ```
//! Saving stops the port: it reads no message of its VMM, sends and receives nothing, and raises no interrupt. The state excludes
//! everything that the VMM provides again: memory, eventfds, the protocol version.

use nicety_adapter::snapshot::{Nothing, RestoreError, Version, decode, encode, label};
use nicety_vfio_user::SavedInterrupts;
use serde::{Deserialize, Serialize};

/// The name in the envelope.
const KIND: &str = "nicety-port";

/// A saved port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// The time of saving by the adapter's clock, in nanoseconds.
    pub(crate) at_ns: u64,
    /// The adapter's state, in its own envelope.
    #[serde(with = "nicety_plane::bytes")]
    pub(crate) adapter: Vec<u8>,
    /// The transport's state.
    pub(crate) interrupts: SavedInterrupts,
}

impl Version for PortState {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl PortState {
    /// Encodes the state.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(KIND, Self::NUMBER, self)
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// The bytes are not a saved port, are truncated, or have a version that cannot be read.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RestoreError> {
        match decode(KIND, bytes) {
            // Any text may look like the name of another kind.
            Err(RestoreError::Kind { .. }) => Err(RestoreError::Damaged),
            decoded => decoded,
        }
    }

    /// The adapter's name, and the version of its state.
    ///
    /// # Errors
    /// The state is damaged.
    pub fn adapter(&self) -> Result<(&str, u16), RestoreError> {
        label(&self.adapter).map(|(name, version, _)| (name, version))
    }
}

/// Reasons why a port was not saved or not restored. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// There is no port of this name.
    #[error("there is no port {0:?}")]
    Missing(String),
    /// The port is not a PCI function.
    #[error("port {0} has no state of its own: a vhost-user front end keeps its rings, and an uplink has none")]
    NoFunction(String),
    /// No VM is attached.
    #[error("no VM is attached to the port: its VMM brings memory and interrupts, and must be connected")]
    NoVm,
    /// A message is being handled.
    #[error("the port's VMM waits for an answer: it must send nothing while the port is saved or restored; try again")]
    Busy,
    /// A driver uses the adapter.
    #[error("the port is in use: the driver of its VM has started the adapter")]
    InUse,
    /// The port has failed.
    #[error("the port has failed: `nicety port restart` renews it")]
    Failed,
    /// Its worker is busy.
    #[error("the port's worker did not answer in time: try again")]
    Late,
    /// The state is invalid.
    #[error(transparent)]
    State(#[from] RestoreError),
}

#[cfg(test)]
mod tests {
    use nicety_vfio_user::SavedVectors;

    use super::*;

    fn state() -> PortState {
        PortState { at_ns: 7, adapter: encode("lamp", 3, &1u8), interrupts: SavedInterrupts::default() }
    }

    #[test]
    fn a_state_that_is_cut_longer_or_something_else_is_damaged() {
        let bytes = state().to_bytes();
        assert_eq!(PortState::from_bytes(&bytes), Ok(state()));
        assert_eq!(state().adapter(), Ok(("lamp", 3)));
        for cut in 0..bytes.len() {
            assert_eq!(PortState::from_bytes(&bytes[..cut]), Err(RestoreError::Damaged), "{cut}");
        }
        let letter = b" a letter, a host file, or anything else that somebody has written".to_vec();
        for other in [[&bytes[..], &[0]].concat(), encode("lamp", 3, &1u8), letter] {
            assert_eq!(PortState::from_bytes(&other), Err(RestoreError::Damaged));
        }
    }

    /// Only `NICETY_GOLDEN=write` makes the file of a new version.
    #[test]
    fn a_saved_port_of_each_version_is_read_and_this_version_is_written_as_it_was() {
        let folder = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let of = |version: u16| folder.join(format!("port-v{version}.state"));
        let vectors = |first| SavedVectors { masked: vec![first], pending: vec![first + 1, first + 2] };
        let interrupts = SavedInterrupts { line_masked: true, msi: vectors(1), msix: vectors(4) };
        let port = PortState { interrupts, ..state() };
        if !of(PortState::NUMBER).exists() && std::env::var_os("NICETY_GOLDEN").is_some_and(|what| what == "write") {
            std::fs::write(of(PortState::NUMBER), port.to_bytes()).unwrap();
        }
        for version in 1..=PortState::NUMBER {
            let golden = std::fs::read(of(version)).unwrap();
            assert_eq!(PortState::from_bytes(&golden).as_ref(), Ok(&port), "version {version}");
        }
        assert_eq!(std::fs::read(of(PortState::NUMBER)).unwrap(), port.to_bytes());
    }

    #[test]
    fn a_newer_version_is_named() {
        let newer = encode(KIND, 2, &state());
        assert_eq!(PortState::from_bytes(&newer), Err(RestoreError::Version { found: 2, oldest: 1, newest: 1 }));
    }
}
