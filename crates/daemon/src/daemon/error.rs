//! Why a daemon or a port cannot start.

use nicety_adapters::CreateError;
use nicety_memory::MapError;
use nicety_plane::PlaneError;
use nicety_vfio_user::ListenError;

use crate::recorder::RecordError;

/// Why a daemon, or one of its ports, could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port's socket.
    #[error("port {port}: {source}")]
    Socket {
        /// The port.
        port: String,
        /// Why not.
        source: ListenError,
    },
    /// The port's adapter.
    #[error("port {port}: {source}")]
    Adapter {
        /// The port.
        port: String,
        /// Why not.
        source: CreateError,
    },
    /// Memory for the port.
    #[error("port {port}: {source}")]
    Memory {
        /// The port.
        port: String,
        /// Why not.
        source: MapError,
    },
    /// The switch.
    #[error("port {port}: {source}")]
    Switch {
        /// The port.
        port: String,
        /// Why not.
        source: PlaneError,
    },
    /// Doorbells that cannot be mapped.
    #[error("port {port}: {adapter} has no doorbells that can be mapped: leave doorbells = \"mapped\" out")]
    Doorbells {
        /// The port.
        port: String,
        /// Its adapter.
        adapter: &'static str,
    },
    /// An adapter that cannot connect to its VMM.
    #[error("port {port}: {adapter} is reached by vfio-user, where a VMM connects: leave role = \"connect\" out")]
    Connects {
        /// The port.
        port: String,
        /// Its adapter.
        adapter: &'static str,
    },
    /// Its trace.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The operating system.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}
