//! Errors that prevent a daemon or a port from starting.

use nicety_adapters::CreateError;
use nicety_memory::MapError;
use nicety_plane::PlaneError;
use nicety_vfio_user::ListenError;

use crate::run::recorder::RecordError;

/// Reasons why a daemon, or one of its ports, could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port's socket cannot be made.
    #[error("port {port}: {source}")]
    Socket {
        /// The port.
        port: String,
        /// The cause.
        source: ListenError,
    },
    /// The port's adapter cannot be created.
    #[error("port {port}: {source}")]
    Adapter {
        /// The port.
        port: String,
        /// The cause.
        source: CreateError,
    },
    /// There is no memory for the port.
    #[error("port {port}: {source}")]
    Memory {
        /// The port.
        port: String,
        /// The cause.
        source: MapError,
    },
    /// The switch refused the port.
    #[error("port {port}: {source}")]
    Switch {
        /// The port.
        port: String,
        /// The cause.
        source: PlaneError,
    },
    /// The adapter's doorbells cannot be mapped.
    #[error("port {port}: {adapter} has no doorbells that can be mapped: leave doorbells = \"mapped\" out")]
    Doorbells {
        /// The port.
        port: String,
        /// Its adapter.
        adapter: &'static str,
    },
    /// The adapter cannot connect to its VMM.
    #[error("port {port}: {adapter} is reached by vfio-user, where a VMM connects: leave role = \"connect\" out")]
    Connects {
        /// The port.
        port: String,
        /// Its adapter.
        adapter: &'static str,
    },
    /// The uplink's team is not open.
    #[error("there is no team {0}, or this uplink is not in it")]
    NoTeam(String),
    /// The port's trace cannot be recorded.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}
