//! The connection to the other host.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use nicety_tolerance::channel::{self, HELLO, Reader, Writer};
use nicety_tolerance::{Key, Message};
use rustix::event::PollFlags;

/// Bytes that wait for the other host. With more the connection ends: what was lost is sent again on the next one.
const WAITING: usize = 16 << 20;

/// See the module's page.
pub struct Link {
    stream: TcpStream,
    ours: [u8; HELLO],
    theirs: Vec<u8>,
    joined: Option<(Writer, Reader)>,
    out: Vec<u8>,
    /// Bytes sent and received since [`Link::take_traffic`].
    traffic: [u64; 2],
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Link {
    /// Begins with our hello.
    pub fn new(stream: TcpStream, ours: [u8; HELLO]) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, ours, theirs: Vec::new(), joined: None, out: ours.to_vec(), traffic: [0; 2] })
    }

    /// The events to wait for.
    pub fn events(&self) -> PollFlags {
        if self.out.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Queues a message. Before the other side's hello it is lost, which the hosts expect.
    pub fn send(&mut self, message: &Message) {
        if let Some((writer, _)) = &mut self.joined {
            writer.write(message, &mut self.out);
        }
    }

    /// Bytes sent and received since the last call.
    pub fn take_traffic(&mut self) -> [u64; 2] {
        std::mem::take(&mut self.traffic)
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.out.drain(..sent);
                    self.traffic[0] += sent as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.out.len() > WAITING { Err(io::Error::other("it takes nothing any more")) } else { Ok(()) }
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// The connection has ended, or is of no use.
    pub fn read(&mut self, key: &Key, messages: &mut Vec<Message>) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        // A fixed number of reads: the guest has work too.
        for _ in 0..16 {
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
                self.joined = Some(channel::joined(key, &self.ours, theirs).map_err(io::Error::other)?);
            }
            let Some((_, reader)) = &mut self.joined else { continue };
            reader.push(rest);
            while let Some(message) = reader.read().map_err(io::Error::other)? {
                messages.push(message);
            }
        }
        Ok(())
    }
}
