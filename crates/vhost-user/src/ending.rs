//! Reasons for refusing a message and for ending a session.

use nicety_memory::MapError;

use crate::protocol::{Request, TIMEOUT};
use crate::wire::WireError;

/// Why a message was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The body is malformed.
    #[error("{0:?}: the body is not as specified")]
    Body(Request),
    /// The number of descriptors is wrong.
    #[error("{request:?}: {found} descriptors came with it, not {wanted}")]
    Descriptors {
        /// The message.
        request: Request,
        /// The number received.
        found: usize,
        /// The number expected.
        wanted: usize,
    },
    /// A descriptor that cannot be signalled or read without blocking on the front end.
    #[error(
        "{request:?}: the descriptor is no eventfd (for a kick: that is no semaphore) or pipe, nor, for a call, a UNIX stream socket ({errno})"
    )]
    NoBell {
        /// The message.
        request: Request,
        /// The system's error.
        errno: rustix::io::Errno,
    },
    /// A kick without a descriptor: the front end requests polling.
    #[error(
        "SetVringKick: ring {ring} comes without a descriptor, which asks for it to be polled; rings are not polled here: let the front \
         end pass an eventfd"
    )]
    Unheard {
        /// The number.
        ring: u16,
    },
    /// A range outside configuration space.
    #[error("GetConfig: {size} bytes from {offset} on do not lie within configuration space")]
    Config {
        /// The first byte asked for.
        offset: u32,
        /// Its length in bytes.
        size: u32,
    },
    /// Features that are not offered, or a change while rings run.
    #[error("features {0:#x} are not offered, or cannot be changed while rings run")]
    Features(u64),
    /// No such ring.
    #[error("there is no ring {ring}; there are {rings}")]
    Ring {
        /// The number.
        ring: u32,
        /// The number of rings.
        rings: u16,
    },
    /// A ring at an impossible address.
    #[error("ring {ring} cannot be started: {why}")]
    Place {
        /// The number.
        ring: u16,
        /// The reason.
        why: &'static str,
    },
    /// A ring in unshared memory (QEMU: `share=on` is missing).
    #[error("ring {ring} cannot be started: the front end shares no memory")]
    Unshared {
        /// The number.
        ring: u16,
    },
    /// Memory that cannot be mapped.
    #[error("guest memory: {0}")]
    Memory(#[from] MapError),
    /// Written pages are not logged until the front end gives its log. No message is refused for this.
    #[error(
        "pages that this port writes are not logged until the front end gives its log ({why}): a live migration, or a copy for a twin, that \
         begins now may lack them, and its guest may read old bytes there; cancel it, and begin it again"
    )]
    Unlogged {
        /// The reason.
        why: String,
    },
    /// An MTU larger than the port's.
    #[error("an MTU of {asked} was asked for; this port's is {own}")]
    Mtu {
        /// The front end's.
        asked: u64,
        /// The port's.
        own: u16,
    },
    /// A transfer of the port's state that is not possible now.
    #[error("the port's state is not passed on: {why}")]
    State {
        /// The reason.
        why: &'static str,
    },
    /// The front end's pipe does not take the port's state.
    #[error("the port's state was not written to the front end's pipe: {errno}")]
    StateUnwritten {
        /// The system's error.
        errno: rustix::io::Errno,
    },
    /// A request that is not served, or was not negotiated.
    #[error("request {0} is not served, or was not agreed on")]
    Unknown(u32),
}

/// The end of a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The front end closed its connection, between two messages.
    #[error("the front end has gone")]
    Gone,
    /// The front end connected and sent nothing.
    #[error("it said nothing for {TIMEOUT:?}")]
    Silent,
    /// The first message is vfio-user's: the front end expects another device.
    #[error("it speaks vfio-user, not vhost-user")]
    VfioUser,
    /// The front end sent no message of this protocol, or the socket failed.
    #[error("{0}")]
    Wire(String),
    /// A message was refused, and the front end had not asked for a reply.
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
