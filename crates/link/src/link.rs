//! One connection. It never blocks; each call does a bounded amount of work.
//!
//! ```text
//! socket ──► incoming (ciphertext, 64 KiB) ──► rustls (plaintext, 16 KiB and a record) ──► `read`
//! socket ◄── rustls (ciphertext, 256 KiB) ◄── `write`
//! ```
//! Each stage takes more only when the next one has room, so an owner that does not read stops the peer.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketType, recv, sendmsg, sockopt};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, Error, ServerConnection};

use crate::{FirstBytes, LinkError, Secret};

/// A handshake that takes longer ends the connection.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// Bytes of ciphertext that are read at once.
const INCOMING_BYTES: usize = 64 << 10;
/// With this much plaintext waiting for the owner nothing more is decrypted. rustls itself refuses above this.
const PLAINTEXT_BYTES_MAX: usize = 16 << 10;
/// Most bytes of ciphertext that wait for the socket.
const OUTGOING_BYTES_MAX: usize = 256 << 10;
/// Most reads of the socket in a call, and most writes: a handshake needs two.
const CALLS_MAX: usize = 8;

/// See the module's page.
pub struct Link {
    socket: OwnedFd,
    tls: Connection,
    /// Ciphertext that rustls has not taken: `incoming[taken..filled]`.
    incoming: Box<[u8]>,
    taken: usize,
    filled: usize,
    /// Bytes of plaintext in rustls.
    readable: usize,
    first: FirstBytes,
    handshake_end: Option<Instant>,
    is_finishing: bool,
    /// The peer's close_notify is here.
    has_ended: bool,
    /// TLS failed: nothing more is decrypted.
    refused: Option<LinkError>,
    /// Nothing more comes from the socket.
    lost: Option<LinkError>,
    /// Nothing more goes to the socket.
    unsent: Option<LinkError>,
    traffic: [u64; 2],
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?})", self.socket)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket as rustls writes to it, whatever its flags.
struct Outgoing<'a>(&'a OwnedFd);

impl Write for Outgoing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(sendmsg(self.0, pieces, &mut SendAncillaryBuffer::default(), flags)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link {
    /// The end that connected. The socket may still be connecting.
    ///
    /// # Errors
    /// It is no TCP or UNIX stream socket.
    pub fn connect(socket: OwnedFd, secret: &Secret) -> Result<Self, LinkError> {
        // rustls asks for a name. It is neither sent nor checked: the key is the name.
        let name = ServerName::try_from("nicety").map_err(|_| Error::General("a name".into()))?;
        Self::new(socket, ClientConnection::new(secret.connects.clone(), name)?.into())
    }

    /// The end that accepted.
    ///
    /// # Errors
    /// It is no TCP or UNIX stream socket.
    pub fn accept(socket: OwnedFd, secret: &Secret) -> Result<Self, LinkError> {
        Self::new(socket, ServerConnection::new(secret.accepts.clone())?.into())
    }

    fn new(socket: OwnedFd, mut tls: Connection) -> Result<Self, LinkError> {
        let family = sockopt::socket_domain(&socket)?;
        if sockopt::socket_type(&socket)? != SocketType::STREAM {
            return Err(LinkError::Socket);
        }
        match family {
            // What is written goes at once: with Nagle's algorithm a checkpoint waits for a delayed acknowledgement.
            AddressFamily::INET | AddressFamily::INET6 => sockopt::set_tcp_nodelay(&socket, true)?,
            AddressFamily::UNIX => {}
            _ => return Err(LinkError::Socket),
        }
        tls.set_buffer_limit(Some(OUTGOING_BYTES_MAX));
        Ok(Self {
            socket,
            tls,
            incoming: vec![0; INCOMING_BYTES].into(),
            taken: 0,
            filled: 0,
            readable: 0,
            first: FirstBytes::default(),
            handshake_end: Some(Instant::now() + HANDSHAKE_TIME_MAX),
            is_finishing: false,
            has_ended: false,
            refused: None,
            lost: None,
            unsent: None,
            traffic: [0; 2],
        })
    }

    /// The events to wait for. None: leave the descriptor out of the poll, because poll reports a peer that is gone in any case, over
    /// and over.
    pub fn events(&self) -> PollFlags {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.wants_bytes());
        events.set(PollFlags::OUT, !self.is_flushed() && self.unsent.is_none() && self.lost.is_none());
        events
    }

    /// When to call [`Link::turn`] at the latest, even if the socket is silent. `None` after the handshake.
    pub fn deadline(&self) -> Option<Instant> {
        self.handshake_end
    }

    /// Whether the handshake is over, and the peer has the key. The end that connects knows it first: a peer that is not served after
    /// all, such as one too many, still looks established for a moment.
    pub fn is_established(&self) -> bool {
        !self.tls.is_handshaking() && self.refused.is_none()
    }

    /// Whether [`Link::read`] may return bytes without another [`Link::turn`].
    pub fn is_readable(&self) -> bool {
        self.readable > 0 || (self.taken < self.filled && self.refused.is_none())
    }

    /// Whether the system has taken all that was written.
    pub fn is_flushed(&self) -> bool {
        !self.tls.wants_write()
    }

    /// Bytes sent and received since the last call, as ciphertext.
    pub fn take_traffic(&mut self) -> [u64; 2] {
        std::mem::take(&mut self.traffic)
    }

    /// Does what the socket allows now: goes on with the handshake, receives, sends.
    ///
    /// # Errors
    /// The connection is of no use any more. As long as plaintext is left to read, and after an orderly end, there is no error here.
    pub fn turn(&mut self) -> Result<(), LinkError> {
        for _ in 0..CALLS_MAX {
            self.decrypt();
            if !self.wants_bytes() || !self.receive() {
                break;
            }
        }
        self.decrypt();
        if self.tls.is_handshaking() {
            if self.refused.is_none() && self.handshake_end.is_some_and(|end| Instant::now() >= end) {
                self.refused = Some(LinkError::Silent);
            }
        } else {
            self.handshake_end = None;
        }
        self.close_if_asked();
        self.send();
        match self.failure() {
            Some(why) if !self.is_readable() => Err(why),
            _ => Ok(()),
        }
    }

    /// Reads plaintext. Returns its length: 0 if there is none now. Call it until it returns less than `bytes` has room for: poll does
    /// not know of bytes that are already here.
    ///
    /// # Errors
    /// There is no more: [`LinkError::Ended`] after an orderly end, otherwise the reason.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<usize, LinkError> {
        let mut count = 0;
        while let Some(rest) = bytes.get_mut(count..).filter(|rest| !rest.is_empty()) {
            // An end is this file's to know: `Ok(0)` and errors say nothing new.
            let read = self.tls.reader().read(rest).unwrap_or(0);
            self.readable = self.readable.saturating_sub(read);
            count += read;
            if read == 0 {
                if self.taken == self.filled || self.refused.is_some() {
                    break;
                }
                self.decrypt();
            }
        }
        if count > 0 || bytes.is_empty() || self.is_readable() {
            return Ok(count);
        }
        match self.failure() {
            Some(why) => Err(why),
            None if self.has_ended => Err(LinkError::Ended),
            None => Ok(0),
        }
    }

    /// Encrypts as many of these bytes as there is room for. Returns how many. [`Link::turn`] sends them, those of before the handshake
    /// once the peer has shown its key.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let has_failed = self.refused.is_some() || self.lost.is_some() || self.unsent.is_some();
        if self.is_finishing || has_failed {
            return 0;
        }
        self.tls.writer().write(bytes).unwrap_or(0)
    }

    /// Says that nothing more will be written. [`Link::turn`] tells the peer, behind all that was written. The other direction goes on.
    ///
    /// Drop the link when [`Link::read`] says that the peer has ended too, or after a time: a socket that is closed while it has bytes to
    /// read loses those that are on their way to the peer.
    pub fn finish(&mut self) {
        self.is_finishing = true;
        self.close_if_asked();
    }

    fn close_if_asked(&mut self) {
        // rustls sends it once.
        if self.is_finishing && self.is_established() {
            self.tls.send_close_notify();
        }
    }

    fn wants_bytes(&self) -> bool {
        self.taken == self.filled && !self.has_ended && self.refused.is_none() && self.lost.is_none()
    }

    /// The reason why the link is of no use, if that is known.
    fn failure(&self) -> Option<LinkError> {
        if self.has_ended {
            return self.unsent.clone();
        }
        // A peer that refuses says why, and then closes: what it said counts more than that writing to it fails.
        self.refused.clone().or_else(|| self.lost.clone()).or_else(|| self.unsent.clone())
    }

    /// Fills `incoming`, which is empty. Returns whether bytes came.
    fn receive(&mut self) -> bool {
        (self.taken, self.filled) = (0, 0);
        match recv(&self.socket, &mut *self.incoming, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.lost = Some(LinkError::Cut),
            Ok((count, _)) => {
                self.filled = count.min(self.incoming.len());
                self.traffic[1] += self.filled as u64;
                self.first.push(self.incoming.get(..self.filled).unwrap_or_default());
                if self.tls.is_handshaking() && !self.first.may_be_tls() {
                    self.refused = Some(LinkError::NotTls(self.first));
                }
                return true;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => self.lost = Some(errno.into()),
        }
        false
    }

    /// Gives rustls ciphertext until there is plaintext enough.
    fn decrypt(&mut self) {
        while self.refused.is_none() && self.readable < PLAINTEXT_BYTES_MAX {
            let Some(mut rest) = self.incoming.get(self.taken..self.filled).filter(|rest| !rest.is_empty()) else {
                break;
            };
            match self.tls.read_tls(&mut rest) {
                // Nothing after a close_notify counts (RFC 8446, section 6.1).
                Ok(0) if self.has_ended => self.taken = self.filled,
                Ok(count) if count > 0 => self.taken += count,
                Ok(_) | Err(_) => self.refused = Some(LinkError::Tls(Error::General("a record is too long".into()))),
            }
            match self.tls.process_new_packets() {
                Ok(state) => {
                    self.readable = state.plaintext_bytes_to_read();
                    self.has_ended |= state.peer_has_closed();
                }
                Err(error) => self.refused = Some(error.into()),
            }
        }
    }

    fn send(&mut self) {
        for _ in 0..CALLS_MAX {
            if self.is_flushed() || self.unsent.is_some() {
                return;
            }
            match self.tls.write_tls(&mut Outgoing(&self.socket)) {
                Ok(count) => self.traffic[0] += count as u64,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return,
                    Some(Errno::INTR) => {}
                    Some(errno) => self.unsent = Some(errno.into()),
                    None => self.unsent = Some(LinkError::Cut),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_silent_or_slow_handshake_ends_at_its_deadline() {
        let secret = Secret::new(&[7; 32]).unwrap();
        for begin in [Link::connect, Link::accept] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut link = begin(ours.into(), &secret).unwrap();
            let left = link.deadline().unwrap() - Instant::now();
            assert!(left <= HANDSHAKE_TIME_MAX && left > HANDSHAKE_TIME_MAX / 2);
            // A record that never comes to its end.
            theirs.write_all(&[22, 3, 3, 2, 0]).unwrap();
            assert_eq!((link.turn(), link.is_established()), (Ok(()), false));
            link.handshake_end = Some(Instant::now());
            let why = link.turn().unwrap_err();
            assert_eq!(why, LinkError::Silent);
            assert!(why.to_string().starts_with("no handshake within 10 s"), "{why}");
            assert_eq!(link.read(&mut [0; 8]), Err(LinkError::Silent));
        }
    }

    #[test]
    fn a_link_that_is_established_has_no_deadline() {
        let secret = Secret::new(&[7; 32]).unwrap();
        let (one, two) = UnixStream::pair().unwrap();
        let mut links = [Link::connect(one.into(), &secret).unwrap(), Link::accept(two.into(), &secret).unwrap()];
        for _ in 0..4 {
            links.iter_mut().for_each(|link| link.turn().unwrap());
        }
        assert!(links.iter().all(|link| link.is_established() && link.deadline().is_none()));
    }
}
