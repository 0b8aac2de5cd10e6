//! Reasons why a session ends, each as a sentence for the operator. A guest alone can cause none of these.

use nicety_peer::UNCLOSED_MAX;
use rustix::io::Errno;

use crate::codec::{HeaderError, MAX_MESSAGE_FDS, Malformed};

/// The end of a session. In each case the caller calls [`crate::Session::disconnect`], which removes the client's memory and
/// interrupts, and drops the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The peer closed the connection between two messages: the normal end.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed the connection within a message.
    #[error("the peer closed the connection in the middle of a message")]
    ClosedWithinMessage,
    /// The stream cannot be split into messages any more.
    #[error("the peer sent something that is not vfio-user: {0}")]
    Header(#[from] HeaderError),
    /// The first bytes are vhost-user's: the client expects another device.
    #[error("the peer speaks vhost-user, not vfio-user")]
    VhostUser,
    /// The first message was not VERSION.
    #[error("the peer's first message is command {0} instead of VERSION (1)")]
    NoVersion(u16),
    /// The VERSION message cannot be read.
    #[error("the peer's VERSION message is wrong: {0}")]
    BadVersion(Malformed),
    /// The peer speaks another major version.
    #[error("the peer speaks version {0}.x of vfio-user; this side speaks 0.x")]
    OtherVersion(u16),
    /// A reply without a request.
    #[error("the peer replied to message {0} which was never sent")]
    UnexpectedReply(u16),
    /// A reply that does not fit its command.
    #[error("the peer's reply is wrong: {0}")]
    BadReply(Malformed),
    /// Too many descriptors for one message.
    #[error("the peer sent {0} file descriptors with one message; the limit is {MAX_MESSAGE_FDS}")]
    TooManyDescriptors(usize),
    /// Earlier descriptors of the peer are slow to close.
    #[error(
        "{UNCLOSED_MAX} of the file descriptors that the peer has sent before cannot be closed yet: closing them waits for the peer"
    )]
    DescriptorsStayOpen,
    /// The kernel dropped descriptors, because this process is at its limit.
    #[error("file descriptors of the peer were lost: raise the limit of open files (ulimit -n)")]
    DescriptorsLost,
    /// Receiving failed.
    #[error("receiving from the peer failed: {0}")]
    Receive(Errno),
    /// Sending failed.
    #[error("sending to the peer failed: {0}")]
    Send(Errno),
}
