//! One connection between two hosts: hellos first, messages then. It never waits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::net::sockopt;

use crate::{HELLO, Key, Message, Place, Reader, Stream, Writer, joined};

/// The connection ends when more bytes than this wait for the peer.
const WAITING_MAX: usize = 64 << 20;
/// Bytes of a read.
const READ_BYTES: usize = 64 << 10;
/// Reads in a row: the caller has other work too.
const READS: usize = 16;

/// See the module's page.
pub struct Link<M: Message> {
    stream: Stream,
    is_connecting: bool,
    ours: [u8; HELLO],
    theirs: Vec<u8>,
    joined: Option<(Writer<M>, Reader<M>)>,
    out: Vec<u8>,
    waiting_max: usize,
    /// Bytes sent and received since [`Link::take_traffic`].
    traffic: [u64; 2],
}

impl<M: Message> std::fmt::Debug for Link<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?})", self.stream)
    }
}

impl<M: Message> AsFd for Link<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<M: Message> Link<M> {
    /// Connects to a peer, and begins with our hello.
    ///
    /// # Errors
    /// There is no way to it, as far as is known at once. What is known later is an error of [`Link::flush`].
    pub fn connect(to: &Place, ours: [u8; HELLO]) -> io::Result<Self> {
        let (stream, is_connecting) = Stream::connect(to)?;
        Ok(Self { is_connecting, ..Self::new(stream, ours)? })
    }

    /// On a stream that is connected. It begins with our hello.
    ///
    /// # Errors
    /// The stream's options cannot be set.
    pub fn new(stream: impl Into<Stream>, ours: [u8; HELLO]) -> io::Result<Self> {
        let stream = stream.into();
        stream.prepare()?;
        let (theirs, out, waiting_max) = (Vec::new(), ours.to_vec(), WAITING_MAX);
        Ok(Self { stream, is_connecting: false, ours, theirs, joined: None, out, waiting_max, traffic: [0; 2] })
    }

    /// The events to wait for.
    pub fn events(&self) -> PollFlags {
        if self.out.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Whether the peer has the key.
    pub fn is_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Queues a message. Before the peer has joined it is lost.
    pub fn send(&mut self, message: &M) {
        if let Some((writer, _)) = &mut self.joined {
            writer.write(message, &mut self.out);
        }
    }

    /// Bytes sent and received since the last call.
    pub fn take_traffic(&mut self) -> [u64; 2] {
        std::mem::take(&mut self.traffic)
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// The connection has ended or was refused, or the peer takes too little: more than 64 MiB wait.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.is_connecting {
            match sockopt::socket_error(&self.stream)? {
                Ok(()) if self.stream.is_connected() => self.is_connecting = false,
                Ok(()) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
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
        if self.out.len() > self.waiting_max {
            Err(io::Error::other("it is too slow: the log is full"))
        } else {
            Ok(())
        }
    }

    /// Reads the messages that are there.
    ///
    /// # Errors
    /// The connection has ended, or is of no use. The messages before that are there.
    pub fn read(&mut self, key: &Key, messages: &mut Vec<M>) -> io::Result<()> {
        if self.is_connecting {
            return Ok(());
        }
        let mut bytes = vec![0; READ_BYTES];
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
                self.joined = Some(joined(key, &self.ours, theirs).map_err(io::Error::other)?);
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Protocol, SealError};

    /// A number, as its difference to the last one.
    #[derive(Debug, PartialEq, Eq)]
    struct Number(u64);

    impl Message for Number {
        type Past = u64;

        fn write(&self, past: &mut u64, body: &mut Vec<u8>) {
            body.extend_from_slice(&(self.0 - *past).to_le_bytes());
            *past = self.0;
        }

        fn read(body: &[u8], past: &mut u64) -> Result<Self, SealError> {
            let difference = body.try_into().map_err(|_| SealError::Malformed)?;
            *past += u64::from_le_bytes(difference);
            Ok(Self(*past))
        }
    }

    fn hello(key: &Key, nonce: u8) -> [u8; HELLO] {
        key.hello(Protocol { magic: *b"test", version: 1 }, 1, 1, [nonce; 16])
    }

    fn pair(keys: [&Key; 2]) -> [Link<Number>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = Link::connect(&Place::Tcp(listener.local_addr().unwrap()), hello(keys[0], 1)).unwrap();
        let (stream, _) = listener.accept().unwrap();
        [one, Link::new(stream, hello(keys[1], 2)).unwrap()]
    }

    /// Both sides take turns until this is true.
    fn until(
        links: &mut [Link<Number>; 2],
        key: &Key,
        mut done: impl FnMut(&mut [Link<Number>; 2], &[Number]) -> bool,
    ) {
        let (begun, mut heard) = (Instant::now(), Vec::new());
        while !done(links, &heard) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{heard:?}");
            for link in links.iter_mut() {
                link.read(key, &mut heard).unwrap();
                link.flush().unwrap();
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn messages_go_both_ways_once_both_have_joined_and_are_lost_before() {
        let key = Key::new(&[7; 32]);
        let mut links = pair([&key, &key]);
        links[0].send(&Number(1));
        until(&mut links, &key, |links, _| links.iter().all(Link::is_joined));
        links[0].send(&Number(10));
        links[0].send(&Number(11));
        until(&mut links, &key, |_, heard| heard == [Number(10), Number(11)]);
        links[1].send(&Number(5));
        until(&mut links, &key, |_, heard| heard == [Number(5)]);
        let [one, other] = links.each_mut().map(Link::take_traffic);
        // Each message is eight bytes, one of length and sixteen of tag.
        assert_eq!(one, [HELLO as u64 + 2 * 25, HELLO as u64 + 25]);
        assert_eq!(other, [one[1], one[0]]);
        assert_eq!(links[0].take_traffic(), [0, 0]);
    }

    #[test]
    fn a_peer_with_another_key_does_not_join() {
        let (key, other) = (Key::new(&[7; 32]), Key::new(&[8; 32]));
        let [mut one, mut two] = pair([&key, &other]);
        let begun = Instant::now();
        let why = loop {
            let _first = (one.flush(), two.flush());
            if let Err(why) = one.read(&key, &mut Vec::new()) {
                break why.to_string();
            }
            assert!(begun.elapsed() < Duration::from_secs(30));
        };
        assert!(why.contains("another key") && !one.is_joined(), "{why}");
    }

    #[test]
    fn a_peer_that_takes_too_little_loses_its_connection() {
        let key = Key::new(&[7; 32]);
        let mut links = pair([&key, &key]);
        until(&mut links, &key, |links, _| links.iter().all(Link::is_joined));
        let [mut one, _two] = links;
        one.waiting_max = 1 << 20;
        // The kernel's buffers for a connection take some MiB themselves.
        let why = (0..1 << 10).find_map(|_| {
            one.out.extend_from_slice(&[0; 64 << 10]);
            one.flush().err()
        });
        assert_eq!(why.expect("an end").to_string(), "it is too slow: the log is full");
        assert_eq!(one.out.len(), (1 << 20) + (64 << 10));
    }

    #[test]
    fn a_refused_connection_is_an_error_that_names_it() {
        let key = Key::new(&[7; 32]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let refused = Link::<Number>::connect(&Place::Tcp(nobody), hello(&key, 1)).and_then(|mut link| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(30) {
                link.flush()?;
            }
            Ok(())
        });
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
