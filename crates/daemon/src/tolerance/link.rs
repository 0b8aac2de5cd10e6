//! One connection between two daemons. It never waits.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use nicety_sealed::{HELLO, Key, Opener, Sealer};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use super::message::{Message, PROTOCOL};
use crate::daemon::random;

/// With more bytes waiting for the peer the connection ends.
const WAITING_MOST: usize = 64 << 20;
/// Reads in a row: other ports have messages too.
const READS: usize = 16;

/// See the module's page.
pub struct Link {
    stream: TcpStream,
    is_connecting: bool,
    ours: [u8; HELLO],
    theirs: Vec<u8>,
    joined: Option<(Sealer, Opener)>,
    out: Vec<u8>,
    /// Bytes sent and received.
    pub traffic: [u64; 2],
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn hello(key: &Key) -> [u8; HELLO] {
    let nonce = u128::from(random()) << 64 | u128::from(random());
    // Another build may do otherwise than the recorded adapter.
    let build = key.number(&format!("build {}", nicety_version::BUILD));
    key.hello(PROTOCOL, build, 0, nonce.to_le_bytes())
}

impl Link {
    /// Connects to a peer.
    pub fn connect(to: SocketAddr, key: &Key) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        let is_connecting = match connect(&socket, &to) {
            Ok(()) => false,
            Err(Errno::INPROGRESS) => true,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { is_connecting, ..Self::accepted(socket.into(), key)? })
    }

    /// A peer has connected.
    pub fn accepted(stream: TcpStream, key: &Key) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let ours = hello(key);
        let (theirs, out) = (Vec::new(), ours.to_vec());
        Ok(Self { stream, is_connecting: false, ours, theirs, joined: None, out, traffic: [0; 2] })
    }

    /// The events to wait for.
    pub fn events(&self) -> PollFlags {
        if self.out.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Whether the peer has the key.
    pub fn is_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Queues a message. Nothing happens before the peer has joined.
    pub fn send(&mut self, message: &Message) {
        if let Some((sealer, _)) = &mut self.joined {
            sealer.seal(&message.to_bytes(), &mut self.out);
        }
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// The connection has ended, or the peer takes nothing.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.is_connecting {
            match sockopt::socket_error(&self.stream)? {
                Ok(()) if self.stream.peer_addr().is_ok() => self.is_connecting = false,
                Ok(()) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            self.stream.set_nodelay(true)?;
        }
        let mut sent = 0;
        while let Some(rest) = self.out.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.out.drain(..sent);
        self.traffic[0] += sent as u64;
        if self.out.len() > WAITING_MOST { Err(io::Error::other("it takes nothing any more")) } else { Ok(()) }
    }

    /// Reads the messages that are there.
    ///
    /// # Errors
    /// The connection has ended, or is of no use.
    pub fn read(&mut self, key: &Key, messages: &mut Vec<Message>) -> io::Result<()> {
        if self.is_connecting {
            return Ok(());
        }
        let mut bytes = vec![0; 64 << 10];
        for _ in 0..READS {
            let read = match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::Error::other("the connection has ended")),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            self.traffic[1] += read as u64;
            let mut rest = bytes.get(..read).unwrap_or_default();
            if self.joined.is_none() {
                let (hello, after) = rest.split_at(rest.len().min(HELLO - self.theirs.len()));
                self.theirs.extend_from_slice(hello);
                rest = after;
                let Ok(theirs) = self.theirs.as_slice().try_into() else { continue };
                self.joined = Some(key.joined(&self.ours, theirs).map_err(io::Error::other)?);
            }
            let Some((_, opener)) = &mut self.joined else { continue };
            opener.push(rest);
            while let Some(body) = opener.open().map_err(io::Error::other)? {
                let message = Message::from_bytes(&body);
                messages.push(message.ok_or_else(|| io::Error::other("a message is malformed"))?);
            }
        }
        Ok(())
    }
}
