//! Errors of opening an interface's queues, with the remedy.

use std::io;

use nicety_memory::{MapError, MappingError};
use rustix::io::Errno;

/// The reason why an interface's queues could not be opened, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There is no such interface.
    #[error("there is no interface {0}: `ip link` shows those that there are")]
    Missing(String),
    /// A right is missing.
    #[error(
        "{doing} for {name} needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW in the initial user namespace (docs/installing.md): give \
         the daemon these, or use a tap"
    )]
    Rights {
        /// The interface.
        name: String,
        /// The step that the kernel refused.
        doing: &'static str,
    },
    /// Another socket has the queue.
    #[error("queue {queue} of {name} is taken by another process: end it, or use another interface")]
    Taken {
        /// The interface.
        name: String,
        /// The queue's number, from 0.
        queue: u16,
    },
    /// Another XDP program is attached.
    #[error(
        "another XDP program is attached to {0} (`ip link show {0}`): end the process that has attached it, or ip link set {0} xdp off"
    )]
    Program(String),
    /// Fewer queues than asked for.
    #[error(
        "{name} has no queue {queue}: give the uplink fewer (`queues`), or the interface more (ethtool -L {name} combined N)"
    )]
    NoQueue {
        /// The interface.
        name: String,
        /// The queue's number, from 0.
        queue: u16,
    },
    /// No Ethernet.
    #[error("{0} is no Ethernet interface: AF_XDP gives frames without an Ethernet header there")]
    NotEthernet(String),
    /// Frames of this MTU do not fit into one piece of shared memory.
    #[error("{name} has an MTU of {mtu}, and AF_XDP takes {most} here: ip link set {name} mtu {most}")]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// The greatest MTU in bytes.
        most: u32,
    },
    /// Neither the driver nor the kernel runs an XDP program there.
    #[error("no XDP program can be attached to {name}: {source}; use a tap and a bridge")]
    NoXdp {
        /// The interface.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// More pages than the user may lock.
    #[error(
        "the memory of {name}'s queues cannot be locked: {bytes} bytes for each queue are more than is left of the limit (`ulimit -l`; \
         systemd: LimitMEMLOCK=)"
    )]
    Locked {
        /// The interface.
        name: String,
        /// Bytes for each queue.
        bytes: u32,
    },
    /// This kernel has no AF_XDP.
    #[error("this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS): use a tap")]
    NoSockets,
    /// The daemon runs.
    #[error(
        "the queues of an interface are opened when the daemon starts, while it has the rights: write uplink {0} into the host file, \
         and restart the daemon"
    )]
    Running(String),
    /// State of another process that makes no sense.
    #[error("the state of {0}'s queue is damaged, or another version's")]
    State(String),
    /// An error of the operating system.
    #[error("{doing}: {source}")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// No memory for the frames.
    #[error(transparent)]
    Memory(#[from] MapError),
}

impl From<MappingError> for XdpError {
    fn from(error: MappingError) -> Self {
        Self::Memory(error.into())
    }
}

/// The error of an action, for an interface.
pub(super) fn os(name: &str, doing: &'static str) -> impl Fn(io::Error) -> XdpError {
    move |source| match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => XdpError::Rights { name: name.to_owned(), doing },
        _ => XdpError::Os { doing, source },
    }
}
