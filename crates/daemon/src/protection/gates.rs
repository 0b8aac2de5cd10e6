//! The gates of a VM's ports, as its thread uses them.

use std::sync::Arc;

use nicety_memory::MapError;
use nicety_plane::{Epochs, GateMode};

use crate::run::protected::Protected;

/// The reason why a port is not protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// No such port.
    #[error("there is no port {0:?}: nicety ports lists them")]
    NoPort(String),
    /// Its state does not go with its guest.
    #[error("port {0:?}: {1}")]
    NoState(String, &'static str),
    /// There is no memory for its gate.
    #[error("port {port:?}: no memory for what waits: {source}")]
    Memory {
        /// Its name.
        port: String,
        /// The cause.
        source: MapError,
    },
}

/// The ports of a daemon, by their names.
pub trait Gates: Send + Sync {
    /// From now on frames of the port's guest wait for the protection of its VM. Or the guest is a twin, which sends and gets nothing.
    ///
    /// # Errors
    /// The port is not there, its state does not go with its guest, or there is no memory.
    fn protect(&self, port: &str, protected: &Arc<Protected>) -> Result<(), ProtectError>;

    /// The port's VM is not protected any more: all that its guest sends leaves. What waits still is dropped: open the gate before.
    ///
    /// # Errors
    /// The port is not there, or its state does not go with its guest.
    fn unprotect(&self, port: &str) -> Result<(), ProtectError>;

    /// Frames that may leave now do.
    ///
    /// # Errors
    /// The port is not there, or its state does not go with its guest.
    fn release(&self, port: &str) -> Result<(), ProtectError>;

    /// The port's VM, a twin, takes over.
    ///
    /// # Errors
    /// The port is not there, or its state does not go with its guest.
    fn own(&self, port: &str) -> Result<(), ProtectError>;

    /// The port's part of its VM's protection, if it has one.
    fn protected(&self, port: &str) -> Option<Arc<Protected>>;

    /// The gate of the port, if it has one.
    fn gate(&self, port: &str) -> Option<Arc<Epochs>>;

    /// Sets what happens to frames of the port's guest from now on. Without a gate all leave.
    ///
    /// # Errors
    /// The port is not there, or its state does not go with its guest.
    fn set_gate(&self, port: &str, mode: GateMode) -> Result<(), ProtectError>;
}
