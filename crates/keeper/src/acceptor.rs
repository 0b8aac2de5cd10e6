//! The acceptor: a process of the keeper's own program that accepts the control socket's connections for daemons (docs/adr/0027).
//!
//! ```text
//! client ──HTTP──► control socket ──accept──► acceptor ──Connection(descriptor, bytes read)──► daemon ──answer──► client
//!                                                │ Named("tap tap0")
//!                                                ▼
//!                                             keeper
//! ```
//! It reads the first request of a connection before the daemon has the connection. If that is a change by an authorised user, what it
//! opens is named at the keeper. The daemon answers, and closes the connection. So a daemon, which may be compromised, can neither make
//! nor repeat a user's request.
//!
//! The daemon makes the control socket, and offers it to the keeper. All daemons of a keeper receive by one connection: what one has not
//! read when it is replaced or killed, the next one reads. The acceptor never receives by it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SeekFrom, memfd_create, seek};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{Shutdown, SocketAddrUnix, SocketType, getsockname, shutdown};

use crate::channel::{CONTENT_MAX, Channel, ChannelError, Message};
use crate::protocol::kind;

/// Pause before another acceptor is started in the place of one that has ended.
const PAUSE: Duration = Duration::from_secs(1);
/// Most bytes that are read of a connection before a daemon has it: a host file of 16 MiB with the head of its request.
const READ_MAX: usize = 17 << 20;

/// The keeper's side.
#[derive(Debug, Default)]
pub(crate) struct Acceptor {
    /// The connection to daemons: the acceptor's end, and the daemons'. Both outlive acceptors and daemons.
    ends: Option<(Channel, Channel)>,
    running: Option<(Child, Channel)>,
    /// The control socket whose connections are accepted.
    control: Option<OwnedFd>,
    /// That of a daemon that does not serve yet.
    offered: Option<OwnedFd>,
    /// The time at which the last acceptor was started.
    started: Option<Instant>,
}

impl Acceptor {
    /// A daemon offers its control socket, and learns how connections come to it. The daemon may be compromised: only the socket at the
    /// path that the host file had when the keeper began is taken. Returns the descriptors to close.
    pub fn offer(&mut self, Message { mut fds, .. }: Message, path: Option<&Path>) -> Vec<OwnedFd> {
        if let [socket, asker] = &fds[..]
            && path.is_some_and(|path| is_listening_at(socket, path))
            && let Some((_, theirs)) = self.ends()
        {
            let asker = asker.as_fd();
            if send(asker, theirs.as_fd()).is_ok() {
                self.offered = Some(fds.swap_remove(0));
            }
        }
        fds
    }

    fn ends(&mut self) -> Option<&(Channel, Channel)> {
        if self.ends.is_none() {
            self.ends = Channel::pair().ok();
        }
        self.ends.as_ref()
    }

    /// Another daemon serves: if it has offered its control socket, that is accepted from, and else none: it accepts by itself.
    pub fn take_over(&mut self) {
        self.control = self.offered.take();
        self.tell();
    }

    /// The heir does not serve. The daemon before it goes on.
    pub fn heir_failed(&mut self) {
        self.offered = None;
    }

    /// The daemon has died. The next one makes its control socket anew, where this one must not be found.
    pub fn daemon_died(&mut self) {
        self.offered = None;
        if let Some(control) = self.control.take() {
            // Nobody connects from now on (unix(7), ECONNREFUSED), also while the acceptor still has a descriptor.
            let _ = shutdown(&control, Shutdown::Both);
            self.tell();
        }
    }

    /// Tells the acceptor where it accepts. One that does not read is ended: the keeper waits for nobody, and the next one is told.
    fn tell(&mut self) {
        let Some((process, channel)) = &mut self.running else { return };
        let fds: Vec<BorrowedFd<'_>> = self.control.iter().map(AsFd::as_fd).collect();
        if channel.send(kind::CONTROL, b"", &fds, Duration::ZERO).is_err() {
            // It may have ended already.
            let _ = process.kill();
            let _status = process.wait();
            self.running = None;
        }
    }

    /// The end for another acceptor, if one is to be started now.
    pub fn end_for_next(&mut self, now: Instant) -> Option<OwnedFd> {
        if let Some((process, _)) = &mut self.running
            && matches!(process.try_wait(), Ok(Some(_)))
        {
            self.running = None;
        }
        if self.running.is_some() || self.control.is_none() || self.started.is_some_and(|at| now < at + PAUSE) {
            return None;
        }
        self.started = Some(now);
        self.ends()?.0.as_fd().try_clone_to_owned().ok()
    }

    /// The acceptor that was started, if it could be.
    pub fn started(&mut self, started: Option<(Child, Channel)>) {
        self.running = started;
        self.tell();
    }

    /// The time at which an acceptor is started, if none runs and one is needed.
    pub fn starts_at(&self) -> Option<Instant> {
        let waits = self.running.is_none() && self.control.is_some();
        self.started.filter(|_| waits).map(|at| at + PAUSE)
    }

    /// The next message of the acceptor. It is trusted as an opener is.
    pub fn next_message(&mut self) -> Option<Message> {
        let (process, channel) = self.running.as_mut()?;
        match channel.receive(Duration::ZERO) {
            Ok(message) => Some(message),
            Err(ChannelError::Late(_)) => None,
            Err(_closed) => {
                // It ends, or is of no use.
                let _ = process.kill();
                let _status = process.wait();
                self.running = None;
                None
            }
        }
    }

    /// The descriptor to wait for.
    pub fn polled(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|(_, channel)| channel.as_fd())
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Some((process, _)) = &mut self.running {
            // It may have ended already.
            let _ = process.kill();
            let _status = process.wait();
        }
    }
}

/// Answers a daemon.
fn send(asker: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<(), ChannelError> {
    Channel::from(asker.try_clone_to_owned().map_err(|_| ChannelError::DescriptorsLost)?).send(
        kind::CONTROL,
        b"",
        &[fd],
        Duration::ZERO,
    )
}

/// Whether this is a listening byte-stream socket at this path.
fn is_listening_at(socket: &OwnedFd, path: &Path) -> bool {
    let name = getsockname(socket).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    let is_there = SocketAddrUnix::new(path).is_ok_and(|wanted| name == Some(wanted));
    is_there && socket_type(socket) == Ok(SocketType::STREAM) && socket_acceptconn(socket) == Ok(true)
}

/// A message of the keeper to an acceptor.
#[derive(Debug)]
pub enum Heard {
    /// Accept the connections of this socket, and of no other one.
    Listen(OwnedFd),
    /// Accept none.
    Rest,
    /// There is no message.
    Nothing,
    /// The keeper has ended.
    End,
}

/// An acceptor's channels.
#[derive(Debug)]
pub struct Accepting {
    keeper: Channel,
    daemons: Channel,
}

impl Accepting {
    pub(crate) fn new(keeper: Channel, daemons: Channel) -> Self {
        Self { keeper, daemons }
    }

    /// The descriptor to wait for: the keeper's messages.
    pub fn keeper(&self) -> BorrowedFd<'_> {
        self.keeper.as_fd()
    }

    /// The descriptor by which connections are passed on. It is only written to.
    pub fn daemons(&self) -> BorrowedFd<'_> {
        self.daemons.as_fd()
    }

    /// The next message of the keeper.
    pub fn heard(&self) -> Heard {
        match self.keeper.receive(Duration::ZERO) {
            Ok(Message { kind: kind::CONTROL, mut fds, .. }) => fds.pop().map_or(Heard::Rest, Heard::Listen),
            Ok(_) | Err(ChannelError::Late(_)) => Heard::Nothing,
            Err(_) => Heard::End,
        }
    }

    /// Passes a connection on to the daemon, with what was read of it. Waits so long at most for the daemon to read.
    ///
    /// # Errors
    /// The daemon does not read ([`ChannelError::is_passing`]), or the system refuses.
    pub fn pass(&self, connection: BorrowedFd<'_>, read: &[u8], within: Duration) -> Result<(), ChannelError> {
        if read.len() <= CONTENT_MAX {
            return self.daemons.send(kind::CONNECTION, read, &[connection], within);
        }
        let file = memfd_create("request", MemfdFlags::CLOEXEC)?;
        let mut left = read;
        while !left.is_empty() {
            let written = rustix::io::write(&file, left)?;
            left = left.get(written..).unwrap_or_default();
        }
        seek(&file, SeekFrom::Start(0))?;
        self.daemons.send(kind::CONNECTION, b"", &[connection, file.as_fd()], within)
    }
}

/// A connection of the control socket.
#[derive(Debug)]
pub struct Connection {
    /// The socket. It does not block.
    pub socket: OwnedFd,
    /// The bytes that were read of it.
    pub read: Vec<u8>,
}

/// A daemon's end: connections come by it.
#[derive(Debug)]
pub struct Connections(Channel);

impl From<OwnedFd> for Connections {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl AsFd for Connections {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Connections {
    /// The next connection. `None`: there is none now.
    ///
    /// # Errors
    /// There will be none, or this process has too many descriptors.
    pub fn next(&self) -> Result<Option<Connection>, ChannelError> {
        let mut message = match self.0.receive(Duration::ZERO) {
            Ok(message) => message,
            Err(ChannelError::Late(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let file = (message.fds.len() == 2).then(|| message.fds.pop()).flatten();
        match (message.kind, message.fds.pop()) {
            (kind::CONNECTION, Some(socket)) => {
                let read = file.map_or(Ok(message.content), |file| whole(&file))?;
                Ok(Some(Connection { socket, read }))
            }
            _ => Ok(None),
        }
    }
}

/// The rest of a file.
fn whole(file: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    while all.len() <= READ_MAX {
        match rustix::io::read(file, &mut piece)? {
            0 => break,
            read => all.extend_from_slice(&piece[..read]),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn pair() -> (Accepting, Connections) {
        let (ours, theirs) = Channel::pair().unwrap();
        (Accepting::new(Channel::pair().unwrap().0, ours), Connections(theirs))
    }

    #[test]
    fn a_connection_comes_with_all_that_was_read_of_it_however_long_that_is() {
        let (accepting, connections) = pair();
        for length in [0, 5, CONTENT_MAX, CONTENT_MAX + 1, 16 << 20] {
            let (client, ours) = UnixStream::pair().unwrap();
            let read: Vec<u8> = (0..length).map(|at| at as u8).collect();
            accepting.pass(ours.as_fd(), &read, SOON).unwrap();
            let connection = connections.next().unwrap().unwrap();
            assert!(connection.read == read, "{length}");
            rustix::io::write(&connection.socket, b"!").unwrap();
            let mut said = [0];
            assert_eq!((rustix::io::read(&client, &mut said), said), (Ok(1), *b"!"));
        }
        assert!(connections.next().unwrap().is_none());
    }

    #[test]
    fn who_does_not_read_is_not_waited_for_and_what_one_daemon_leaves_the_next_one_reads() {
        let (accepting, connections) = pair();
        let (_client, ours) = UnixStream::pair().unwrap();
        let full = (0..10_000).find_map(|_| accepting.pass(ours.as_fd(), &[0; 4096], Duration::ZERO).err());
        assert!(full.is_some_and(ChannelError::is_passing), "{full:?}");
        let next = Connections::from(connections.as_fd().try_clone_to_owned().unwrap());
        drop(connections);
        assert!(next.next().unwrap().is_some());
    }

    #[test]
    fn only_the_listening_socket_at_the_control_socket_s_path_is_taken() {
        let dir = std::env::temp_dir().join(format!("nicety-acceptor-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("control.sock");
        let listener: OwnedFd = UnixListener::bind(&path).unwrap().into();
        let other: OwnedFd = UnixListener::bind(dir.join("vm1.sock")).unwrap().into();
        let connected: OwnedFd = UnixStream::connect(&path).unwrap().into();
        let is_taken = |socket: &OwnedFd| {
            let mut acceptor = Acceptor::default();
            let (ours, theirs) = Channel::pair().unwrap();
            let fds = vec![socket.try_clone().unwrap(), theirs.into()];
            drop(acceptor.offer(Message { kind: kind::CONTROL, content: Vec::new(), fds }, Some(&path)));
            assert!(acceptor.control.is_none(), "who only offers does not serve");
            (acceptor.offered.is_some(), ours.receive(Duration::ZERO).is_ok())
        };
        assert_eq!(is_taken(&listener), (true, true));
        assert_eq!((is_taken(&other), is_taken(&connected)), ((false, false), (false, false)));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
