//! Messages with descriptors on a socket that keeps their boundaries (unix(7), SOCK_SEQPACKET).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::protocol::{VERSION, Why};

/// Most descriptors of a message.
pub const FDS_MAX: usize = 200;
/// Linux's limit (unix(7), SCM_MAX_FD). There is room for so many: the kernel closes others at once, by the thread that receives, and a
/// VMM can make that wait.
const SCM_MAX: usize = 253;
/// Longest content of a message in bytes: a path or a sentence. More goes into a memory file.
pub(crate) const CONTENT_MAX: usize = 8 << 10;

/// A message.
#[derive(Debug)]
pub struct Message {
    /// Its kind.
    pub kind: u8,
    /// Its content.
    pub content: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// The content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }
}

/// Reasons why there is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelError {
    /// The other end is closed.
    #[error("the other process has closed the connection")]
    Closed,
    /// No message came in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The other end speaks another version, or another language.
    #[error("the other process is no nicety, or one that speaks another version of this protocol than {VERSION}")]
    Foreign(Option<u8>),
    /// The keeper holds nothing of this name.
    #[error("{0}")]
    NotHeld(Why),
    /// Descriptors were lost: this process has too many.
    #[error("descriptors were lost: raise the limit of open files (ulimit -n)")]
    DescriptorsLost,
    /// The message is too long, or has too many descriptors.
    #[error("a message is too long")]
    TooLong,
    /// The system's error.
    #[error("talking to the other process: {0}")]
    System(#[from] Errno),
}

impl ChannelError {
    /// Whether the same message may be sent later: the other end has no room now, or this user has too many descriptors on their way
    /// (unix(7), ETOOMANYREFS).
    pub fn is_passing(self) -> bool {
        matches!(self, Self::Late(_) | Self::System(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM))
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl From<OwnedFd> for Channel {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Channel {
    /// Two ends of a new connection.
    ///
    /// # Errors
    /// The system's.
    pub fn pair() -> Result<(Self, Self), Errno> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// Sends a message. Waits for the other end to read, at most for `within`.
    ///
    /// # Errors
    /// The message is too long, the other end is closed, does not read, or the system refuses.
    pub fn send(&self, kind: u8, content: &[u8], fds: &[BorrowedFd<'_>], within: Duration) -> Result<(), ChannelError> {
        if content.len() > CONTENT_MAX || fds.len() > FDS_MAX {
            return Err(ChannelError::TooLong);
        }
        let end = Instant::now() + within;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            let head = [VERSION, kind];
            let parts = [IoSlice::new(&head), IoSlice::new(content)];
            match sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, end, within)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Receives a message, if one comes in time. Its version is checked.
    ///
    /// # Errors
    /// None came, the other end is closed or speaks another version, or descriptors were lost.
    pub fn receive(&self, within: Duration) -> Result<Message, ChannelError> {
        self.receive_closing(within, drop)
    }

    /// Like [`Channel::receive`]. If a message is refused, `close` gets its descriptors.
    pub(crate) fn receive_closing(
        &self,
        within: Duration,
        close: impl FnOnce(Vec<OwnedFd>),
    ) -> Result<Message, ChannelError> {
        let end = Instant::now() + within;
        let mut bytes = vec![0; CONTENT_MAX + 2];
        let mut was_reset = false;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let received = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::IN, end, within)?;
                    continue;
                }
                Err(Errno::INTR) => continue,
                // The other end was closed with unread messages. Linux says so once, before the messages that it had sent.
                Err(Errno::CONNRESET) if !was_reset => {
                    was_reset = true;
                    continue;
                }
                Err(Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(errno) => return Err(errno.into()),
            };
            let mut fds = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            let why = match bytes.get(..received.bytes) {
                _ if received.flags.contains(ReturnFlags::CTRUNC) => ChannelError::DescriptorsLost,
                Some([VERSION, kind, content @ ..]) => {
                    return Ok(Message { kind: *kind, content: content.to_vec(), fds });
                }
                None | Some([]) => ChannelError::Closed,
                Some([version, ..]) => ChannelError::Foreign(Some(*version)),
            };
            close(fds);
            return Err(why);
        }
    }

    /// Waits until the other end has room, or that time.
    pub(crate) fn wait_for_room(&self, end: Instant) -> Result<(), ChannelError> {
        match self.wait(PollFlags::OUT, end, Duration::ZERO) {
            Err(ChannelError::Late(_)) => Ok(()),
            waited => waited,
        }
    }

    fn wait(&self, flags: PollFlags, end: Instant, within: Duration) -> Result<(), ChannelError> {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.0, flags)], Some(&timeout)) {
            Ok(0) => Err(ChannelError::Late(within)),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_message_arrives_whole_with_its_descriptors() {
        let (ours, theirs) = Channel::pair().unwrap();
        let (fd, _) = Channel::pair().unwrap();
        ours.send(7, b"/usr/bin/nicety", &[fd.as_fd(), fd.as_fd()], SOON).unwrap();
        ours.send(8, b"", &[], SOON).unwrap();
        let message = theirs.receive(SOON).unwrap();
        assert_eq!((message.kind, message.text().as_str(), message.fds.len()), (7, "/usr/bin/nicety", 2));
        assert_eq!(theirs.receive(SOON).unwrap().kind, 8);
        assert_eq!(theirs.receive(Duration::ZERO).unwrap_err(), ChannelError::Late(Duration::ZERO));
        drop(ours);
        assert_eq!(theirs.receive(SOON).unwrap_err(), ChannelError::Closed);
    }

    #[test]
    fn the_last_words_of_an_end_that_has_read_nothing_arrive() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(1, b"unread", &[], SOON).unwrap();
        theirs.send(2, b"no", &[], SOON).unwrap();
        drop(theirs);
        assert_eq!(ours.receive(SOON).unwrap().text(), "no");
        assert_eq!(ours.receive(SOON).unwrap_err(), ChannelError::Closed);
    }

    #[test]
    fn another_version_is_named() {
        let (ours, theirs) = Channel::pair().unwrap();
        rustix::net::send(&ours.0, &[9, 1], SendFlags::empty()).unwrap();
        assert_eq!(theirs.receive(SOON).unwrap_err(), ChannelError::Foreign(Some(9)));
    }

    #[test]
    fn descriptors_of_a_message_that_is_refused_are_closed_by_whom_the_receiver_names() {
        let (ours, theirs) = Channel::pair().unwrap();
        let (fd, _) = Channel::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(&ours.0, &[IoSlice::new(&[9, 1])], &mut control, SendFlags::empty()).unwrap();
        let mut closed = Vec::new();
        let refused = theirs.receive_closing(SOON, |fds| closed = fds).unwrap_err();
        assert_eq!((refused, closed.len()), (ChannelError::Foreign(Some(9)), 1));
    }

    #[test]
    fn who_does_not_read_is_waited_for_only_so_long() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let short = Duration::from_millis(1);
        let refused = (0..10_000).find_map(|_| ours.send(1, &[0; CONTENT_MAX], &[], short).err());
        assert_eq!(refused, Some(ChannelError::Late(short)));
        assert_eq!(ours.send(1, &[0; CONTENT_MAX + 1], &[], short), Err(ChannelError::TooLong));
    }
}
