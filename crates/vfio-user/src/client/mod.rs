//! The client's end, for a VMM or a test guest (vfio-user.rst, the client's side of every section).
//!
//! Calls block until the answer arrives, but no longer than the client's timeout. While a call waits, it answers the server's
//! DMA_READ and DMA_WRITE from the client's [`ClientMemory`].

mod calls;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::codec::version::{Capabilities, Version};
use crate::codec::{
    Command, FLAG_ERROR, FLAG_NO_REPLY, Fields, HEADER_SIZE, Header, Malformed, VERSION_MAJOR, VERSION_MINOR, errno_of,
    put_u64,
};
use crate::counters::Counters;
use crate::error::SessionError;
use crate::memory::{ClientMemory, NoMemory};
use crate::wire::{Fill, Inbound, Message, Outbound, reply_header};

pub use calls::RegionDetails;

/// The default timeout of a call; QEMU's is the same.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reasons why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// No connection.
    #[error("cannot connect to {path}: {errno}")]
    Connect {
        /// The socket.
        path: String,
        /// The cause.
        errno: Errno,
    },
    /// The server answered with an error. The session continues.
    #[error("the server refused {}: {errno}", command.name())]
    Refused {
        /// The command.
        command: Command,
        /// The server's reason.
        errno: Errno,
    },
    /// No answer in time. The session is over.
    #[error("the server did not answer {} within {timeout:?}", command.name())]
    Timeout {
        /// The command.
        command: Command,
        /// The timeout.
        timeout: Duration,
    },
    /// The connection broke, or the peer broke the protocol.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The answer does not fit the request.
    #[error("the server's answer is wrong: {0}")]
    BadAnswer(#[from] Malformed),
    /// The call exceeds a limit of the server: too large, or too many descriptors.
    #[error("the server does not take this: {0}")]
    Limit(&'static str),
    /// The system refused something on this side.
    #[error("a system call failed: {0}")]
    System(#[from] Errno),
}

/// A connection to a server.
pub struct Client {
    socket: OwnedFd,
    inbound: Inbound,
    outbound: Outbound,
    counters: Counters,
    next_id: u16,
    timeout: Duration,
    server: Capabilities,
    memory: Box<dyn ClientMemory + Send>,
    reply: Vec<u8>,
    reply_fds: Vec<OwnedFd>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("socket", &self.socket).field("server", &self.server).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects and exchanges versions, with the default timeout and no memory for DMA messages.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, ClientError> {
        Client::connect_with(path, DEFAULT_TIMEOUT, Box::new(NoMemory))
    }

    /// Connects and exchanges versions.
    pub fn connect_with(
        path: impl AsRef<Path>,
        timeout: Duration,
        memory: Box<dyn ClientMemory + Send>,
    ) -> Result<Client, ClientError> {
        let path = path.as_ref();
        let failed = |errno| ClientError::Connect { path: path.display().to_string(), errno };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        // `connect` would block only while the server's queue is full. NONBLOCK makes it fail at once instead.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
        connect(&socket, &address).map_err(failed)?;
        Client::from_socket(socket, timeout, memory)
    }

    /// Exchanges versions over a connected socket.
    pub fn from_socket(
        socket: OwnedFd,
        timeout: Duration,
        memory: Box<dyn ClientMemory + Send>,
    ) -> Result<Client, ClientError> {
        let mut client = Client {
            socket,
            inbound: Inbound::new(),
            outbound: Outbound::default(),
            counters: Counters::default(),
            next_id: 0,
            timeout,
            server: Capabilities::default(),
            memory,
            reply: Vec::new(),
            reply_fds: Vec::new(),
        };
        let ours = Version { major: VERSION_MAJOR, minor: VERSION_MINOR, capabilities: Capabilities::ours() };
        client.call(Command::Version, Vec::new(), |out| ours.encode(out))?;
        let theirs = Version::decode(&client.reply)?;
        if theirs.major != VERSION_MAJOR || theirs.minor > VERSION_MINOR {
            return Err(SessionError::OtherVersion(theirs.major).into());
        }
        client.server = theirs.capabilities;
        Ok(client)
    }

    /// The capabilities of the server.
    pub fn capabilities(&self) -> &Capabilities {
        &self.server
    }

    /// Counters of sent and received messages.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The memory that the server's DMA messages reach.
    pub fn memory(&mut self) -> &mut (dyn ClientMemory + Send) {
        self.memory.as_mut()
    }

    /// Answers the server's requests until `wait` has passed or `enough` are answered. Returns the number answered.
    pub fn serve(&mut self, wait: Duration, enough: u32) -> Result<u32, ClientError> {
        let deadline = Instant::now() + wait;
        let mut served = 0;
        loop {
            while served < enough {
                match self.inbound.next().map_err(SessionError::from)? {
                    None => break,
                    Some(message) if message.header.is_reply() => {
                        return Err(SessionError::UnexpectedReply(message.header.id).into());
                    }
                    Some(message) => {
                        self.counters.count_received(Command::from_number(message.header.command));
                        serve_one(&message, self.memory.as_mut(), &mut self.outbound, &mut self.counters);
                        served += 1;
                    }
                }
            }
            self.outbound.flush(&self.socket, None, &mut self.counters)?;
            if served >= enough && !self.outbound.is_pending() || !self.wait(deadline)? {
                return Ok(served);
            }
        }
    }

    fn push(&mut self, command: Command, flags: u32, fds: Vec<Arc<OwnedFd>>, write: impl FnOnce(&mut Vec<u8>)) -> u16 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.counters.count_sent(command);
        let header = Header { id, command: command as u16, size: HEADER_SIZE as u32, flags, error: 0 };
        self.outbound.put(header, write);
        if !fds.is_empty() {
            self.outbound.attach(fds);
        }
        id
    }

    /// Sends a command without waiting for an answer. Waits only for room in the socket.
    fn post(&mut self, command: Command, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), ClientError> {
        self.push(command, FLAG_NO_REPLY, Vec::new(), write);
        let deadline = Instant::now() + self.timeout;
        loop {
            self.outbound.flush(&self.socket, None, &mut self.counters)?;
            if !self.outbound.is_pending() {
                return Ok(());
            }
            if !self.wait(deadline)? {
                return Err(ClientError::Timeout { command, timeout: self.timeout });
            }
        }
    }

    /// Sends a command and waits for its answer. The answer's payload is in `self.reply`.
    fn call(
        &mut self,
        command: Command,
        fds: Vec<Arc<OwnedFd>>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), ClientError> {
        let id = self.push(command, 0, fds, write);
        let deadline = Instant::now() + self.timeout;
        loop {
            while let Some(message) = self.inbound.next().map_err(SessionError::from)? {
                let header = message.header;
                if !header.is_reply() {
                    self.counters.count_received(Command::from_number(header.command));
                    serve_one(&message, self.memory.as_mut(), &mut self.outbound, &mut self.counters);
                    continue;
                }
                self.counters.replies_received += 1;
                if header.id != id || header.command != command as u16 {
                    return Err(SessionError::UnexpectedReply(header.id).into());
                }
                if header.is_error() {
                    return Err(ClientError::Refused { command, errno: errno_of(header.error) });
                }
                self.reply.clear();
                self.reply.extend_from_slice(message.payload);
                self.reply_fds = message.fds.into_iter().map(OwnedFd::from).collect();
                return Ok(());
            }
            self.outbound.flush(&self.socket, None, &mut self.counters)?;
            if !self.wait(deadline)? {
                return Err(ClientError::Timeout { command, timeout: self.timeout });
            }
        }
    }

    /// Waits for bytes, or for room if there is something to send. Reads the bytes that arrived. Returns false after the
    /// deadline.
    fn wait(&mut self, deadline: Instant) -> Result<bool, ClientError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let events = if self.outbound.is_pending() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds = [PollFd::new(&self.socket, events)];
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
        match self.inbound.fill(self.socket.as_fd(), &mut self.counters)? {
            Fill::Bytes | Fill::Empty => Ok(true),
            Fill::Closed if self.inbound.has_partial() => Err(SessionError::ClosedWithinMessage.into()),
            Fill::Closed => Err(SessionError::Closed.into()),
        }
    }
}

/// Answers one command of the server.
fn serve_one(message: &Message<'_>, memory: &mut dyn ClientMemory, outbound: &mut Outbound, counters: &mut Counters) {
    let Message { header, payload, fds } = message;
    counters.fds_refused += fds.len() as u64;
    let mut reply = reply_header(header);
    let answer = outbound.push(reply, |out| {
        let mut fields = Fields(payload);
        let malformed = |_: Malformed| Errno::INVAL;
        let (address, count) = (fields.u64().map_err(malformed)?, fields.u64().map_err(malformed)?);
        put_u64(out, address);
        put_u64(out, count);
        let limit = crate::codec::MAX_DATA_TRANSFER as u64;
        match Command::from_number(header.command) {
            Some(Command::DmaRead) if count <= limit && fields.rest().is_empty() => {
                let at = out.len();
                out.resize(at + count as usize, 0);
                memory.read(address, out.get_mut(at..).unwrap_or(&mut []))
            }
            Some(Command::DmaWrite) if fields.rest().len() as u64 == count => memory.write(address, fields.rest()),
            Some(Command::DmaRead | Command::DmaWrite) => Err(Errno::TOOBIG),
            _ => Err(Errno::NOSYS),
        }?;
        // A command without reply is not answered.
        if header.no_reply() { Err(Errno::CANCELED) } else { Ok(()) }
    });
    if header.no_reply() {
        return;
    }
    counters.replies_sent += 1;
    if let Err(errno) = answer {
        counters.errors_sent += 1;
        reply.flags |= FLAG_ERROR;
        reply.error = errno.raw_os_error().unsigned_abs();
        outbound.put(reply, |_| {});
    }
}
