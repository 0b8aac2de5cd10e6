//! Messages on the socket: a header, a body, descriptors. Calls block, so each session has its own thread.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use nicety_peer::{PeerFd, UNCLOSED_MAX, this_threads_is_exceeded};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::protocol::{BODY_MAX, FDS_MAX, Fields, HEADER_BYTES, NEED_REPLY, REPLY, TIMEOUT, VERSION, VERSION_MASK};

/// Reasons why a message could not be read or sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The connection ended between two messages.
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer closed the connection within a message")]
    Cut,
    #[error("the peer stopped within a message, or does not take its answer")]
    Stalled,
    #[error("a message of {0} bytes; the longest known has {BODY_MAX}")]
    TooLong(u32),
    #[error("the peer speaks vfio-user, not vhost-user")]
    VfioUser {
        /// The message number of the peer's command.
        id: u16,
    },
    #[error("header flags {0:#x}: not version {VERSION} of the protocol")]
    Version(u32),
    #[error("more than {FDS_MAX} descriptors with one message")]
    TooManyFds,
    #[error("{UNCLOSED_MAX} of its earlier descriptors cannot be closed yet: closing them waits for the peer")]
    StayOpen,
    #[error("the socket: {0}")]
    Os(#[from] Errno),
}

/// One message.
#[derive(Debug)]
pub(crate) struct Message {
    pub code: u32,
    pub flags: u32,
    pub body: Vec<u8>,
    pub fds: Vec<PeerFd>,
}

impl Message {
    pub fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Like [`Message::receive`], for a connection's first message. Reads only the header of a vfio-user message.
    pub fn receive_first(socket: BorrowedFd<'_>) -> Result<Self, WireError> {
        Self::receive_if(socket, |header| vfio_user(header).map_or(Ok(()), |id| Err(WireError::VfioUser { id })))
    }

    /// Waits for a whole message. A message in several pieces has [`TIMEOUT`] from its first piece on, plus the socket's own
    /// timeout for the last piece.
    pub fn receive(socket: BorrowedFd<'_>) -> Result<Self, WireError> {
        Self::receive_if(socket, |_| Ok(()))
    }

    fn receive_if(
        socket: BorrowedFd<'_>,
        judge: fn(&[u8; HEADER_BYTES]) -> Result<(), WireError>,
    ) -> Result<Self, WireError> {
        let mut header = [0; HEADER_BYTES];
        let (mut fds, mut end) = (Vec::new(), None);
        fill(socket, &mut header, &mut fds, &mut end)?;
        judge(&header)?;
        let mut fields = Fields(&header);
        let mut next = || fields.u32().unwrap_or(0);
        let (code, flags, len) = (next(), next(), next());
        if flags & VERSION_MASK != VERSION {
            return Err(WireError::Version(flags));
        }
        if len as usize > BODY_MAX {
            return Err(WireError::TooLong(len));
        }
        let mut body = vec![0; len as usize];
        end.get_or_insert_with(|| Instant::now() + TIMEOUT);
        fill(socket, &mut body, &mut fds, &mut end)?;
        Ok(Self { code, flags, body, fds })
    }

    /// The reply to a request.
    pub fn reply(code: u32, body: Vec<u8>) -> Self {
        Self { code, flags: VERSION | REPLY, body, fds: Vec::new() }
    }
}

/// The message number, if a connection starts with vfio-user's VERSION command, which is always the first (vfio-user.rst,
/// "Header"). The fields are: 16 bits of message number; 16 bits of command, 1; 32 bits of size, with this header's 16 bytes; 32
/// bits of flags, whose lowest four bits mark a command. No vhost-user request has that number.
fn vfio_user(header: &[u8; HEADER_BYTES]) -> Option<u16> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    let (command, size) = (u16::from_ne_bytes([c, d]), u32::from_ne_bytes([e, f, g, h]));
    let is_one = command == 1 && size >= 16 && u32::from_ne_bytes([i, j, k, l]) & 0xf == 0;
    is_one.then_some(u16::from_ne_bytes([a, b]))
}

/// Answers vfio-user's VERSION with the error EPROTONOSUPPORT, and waits a moment for the peer to disconnect. Closing a
/// connection with unread bytes resets it, and QEMU 11.1 does not survive that (`error_setv: Assertion '*errp == NULL' failed`).
pub(crate) fn decline_vfio_user(socket: BorrowedFd<'_>, id: u16) {
    // Size; a reply (1) with an error (0x20); the error.
    let words = [16, 0x21, Errno::PROTONOSUPPORT.raw_os_error() as u32];
    let reply = [[id, 1].map(u16::to_ne_bytes).concat(), words.map(u32::to_ne_bytes).concat()].concat();
    let _peer_gone = rustix::net::send(socket, &reply, SendFlags::NOSIGNAL);
    let moment = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
    // poll(2) always reports a hang-up.
    let _timeout = poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::empty())], Some(&moment));
}

/// Fills `buffer`. Descriptors may come with any part: some peers send a header and its body separately. `end` becomes the
/// message's deadline when the message begins.
fn fill(
    socket: BorrowedFd<'_>,
    mut buffer: &mut [u8],
    fds: &mut Vec<PeerFd>,
    end: &mut Option<Instant>,
) -> Result<(), WireError> {
    while !buffer.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let read = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let read = match read {
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Err(WireError::Closed),
            Err(Errno::AGAIN) => return Err(WireError::Stalled),
            read => read?,
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights.map(PeerFd::from));
            }
        }
        if !fds.is_empty() && this_threads_is_exceeded() {
            return Err(WireError::StayOpen);
        }
        if read.flags.contains(ReturnFlags::CTRUNC) || fds.len() > FDS_MAX {
            return Err(WireError::TooManyFds);
        }
        if read.bytes == 0 {
            return Err(if end.is_none() { WireError::Closed } else { WireError::Cut });
        }
        buffer = &mut buffer[read.bytes..];
        let end = *end.get_or_insert_with(|| Instant::now() + TIMEOUT);
        if !buffer.is_empty() && Instant::now() >= end {
            return Err(WireError::Stalled);
        }
    }
    Ok(())
}

/// Sends a message of the back end on its own socket, whole and at once, or not at all. It needs no reply.
pub(crate) fn send_now(socket: BorrowedFd<'_>, code: u32, body: &[u8]) -> Result<(), WireError> {
    let mut bytes = [code, VERSION, body.len() as u32].map(u32::to_ne_bytes).concat();
    bytes.extend_from_slice(body);
    let sent = rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == bytes.len() { Ok(()) } else { Err(WireError::Stalled) }
}

/// Sends a whole message.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    code: u32,
    flags: u32,
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), WireError> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    for word in [code, flags, body.len() as u32] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(body);
    let mut at = 0;
    while at < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if at == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(WireError::TooManyFds);
        }
        match sendmsg(socket, &[IoSlice::new(&bytes[at..])], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => at += sent,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(WireError::Stalled),
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(WireError::Closed),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
