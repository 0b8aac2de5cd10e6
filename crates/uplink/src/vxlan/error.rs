//! Errors of opening a tunnel, with the remedy.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nicety_adapter::snapshot::RestoreError;
use nicety_memory::MapError;
use rustix::io::Errno;

/// The reason why a tunnel could not be opened, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum VxlanError {
    /// Another socket has its port.
    #[error(
        "UDP port {} of {} is in use: another tunnel has it, or a vxlan device of the kernel (ip -d link show type vxlan); give this one \
         another address or `udp_port`, or remove the other", .0.port(), .0.ip()
    )]
    InUse(SocketAddr),
    /// No interface has its address.
    #[error("no interface of this host has the address {0}: give it to one (ip address add), or correct `address`")]
    NotHere(IpAddr),
    /// An address that cannot be the end of a tunnel.
    #[error("{0} cannot be the end of a tunnel: give an address of one host, not link-local")]
    Address(IpAddr),
    /// The daemon runs, and no thread of it may open sockets of this kind any more.
    #[error(
        "the sockets of a tunnel are opened when the daemon starts, before it confines itself: write uplink {0} into the host file, and \
         restart the daemon; `peers` alone can change while it runs"
    )]
    Running(String),
    /// An error of the operating system.
    #[error("{doing} {address}: {source}")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The address of the action.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// No memory for the buffers.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The state of another process's tunnel does not fit.
    #[error("going on with a tunnel: {0}")]
    State(RestoreError),
}

impl VxlanError {
    pub(super) fn os(doing: &'static str, address: SocketAddr, error: Errno) -> Self {
        Self::Os { doing, address, source: error.into() }
    }
}
