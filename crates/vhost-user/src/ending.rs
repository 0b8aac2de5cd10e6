//! Why a message was refused, and how a session ended.

use nicety_memory::MapError;

use crate::protocol::{Request, TIMEOUT};
use crate::wire::WireError;

/// Why a message was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Its body is not what the specification says.
    #[error("{0:?}: the body is not as specified")]
    Body(Request),
    /// It carried another number of descriptors than it should.
    #[error("{request:?}: {found} descriptors came with it, not {wanted}")]
    Descriptors {
        /// The message.
        request: Request,
        /// Those that came.
        found: usize,
        /// Those that should have.
        wanted: usize,
    },
    /// A descriptor that cannot be rung, or heard, without waiting for the front end.
    #[error(
        "{request:?}: the descriptor is no eventfd (for a kick: that is no semaphore) or pipe, nor, for a call, a UNIX stream socket ({errno})"
    )]
    NoBell {
        /// The message.
        request: Request,
        /// What the system says.
        errno: rustix::io::Errno,
    },
    /// A kick without a descriptor: the front end wants the ring to be polled.
    #[error(
        "SetVringKick: ring {ring} comes without a descriptor, which asks for it to be polled; rings are not polled here: let the front \
         end pass an eventfd"
    )]
    Unheard {
        /// The number.
        ring: u16,
    },
    /// Configuration space that there is not.
    #[error("GetConfig: {size} bytes from {offset} on do not lie within configuration space")]
    Config {
        /// The first byte asked for.
        offset: u32,
        /// How many.
        size: u32,
    },
    /// Features that are not offered, or changed while rings run.
    #[error("features {0:#x} are not offered, or cannot be changed while rings run")]
    Features(u64),
    /// No such ring.
    #[error("there is no ring {ring}; there are {rings}")]
    Ring {
        /// The number.
        ring: u32,
        /// How many there are.
        rings: u16,
    },
    /// A ring that lies where it cannot.
    #[error("ring {ring} cannot be started: {why}")]
    Place {
        /// The number.
        ring: u16,
        /// Why.
        why: &'static str,
    },
    /// A ring that lies in memory of which nothing is shared (QEMU: `share=on` is missing).
    #[error("ring {ring} cannot be started: the front end shares no memory")]
    Unshared {
        /// The number.
        ring: u16,
    },
    /// Memory that cannot be mapped.
    #[error("guest memory: {0}")]
    Memory(#[from] MapError),
    /// More than this port is for.
    #[error("an MTU of {asked} was asked for; this port's is {own}")]
    Mtu {
        /// By the front end.
        asked: u64,
        /// By the port.
        own: u16,
    },
    /// Nothing that is served, or nothing that was agreed on.
    #[error("request {0} is not served, or was not agreed on")]
    Unknown(u32),
}

/// How a session ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The front end closed its connection, between two messages.
    #[error("the front end has gone")]
    Gone,
    /// It connected, and said nothing.
    #[error("it said nothing for {TIMEOUT:?}")]
    Silent,
    /// Its first message is one of vfio-user: it takes the device for another.
    #[error("it speaks vfio-user, not vhost-user")]
    VfioUser,
    /// What came was no message of this protocol, or the socket failed.
    #[error("{0}")]
    Wire(String),
    /// A message was refused whose sender did not ask how it went.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<WireError> for Ended {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Closed => Ended::Gone,
            WireError::VfioUser { .. } => Ended::VfioUser,
            error => Ended::Wire(error.to_string()),
        }
    }
}
