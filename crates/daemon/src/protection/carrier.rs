//! The stream of copies of one protection: between QEMU's descriptor and the connection to the other host, both directions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nicety_link::{Link, LinkError};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Bytes of a piece.
const PIECE: usize = 64 << 10;
/// Most pieces of each direction in a turn: the thread has heartbeats to send, and epochs to release.
const PIECES: usize = 4;

/// See the module's page.
pub(super) struct Carrier {
    link: Link,
    qemu: OwnedFd,
    /// Bytes of QEMU that the connection has not taken yet: `out[out_at..]`.
    out: Vec<u8>,
    out_at: usize,
    /// Bytes for QEMU that it has not taken yet.
    into: Vec<u8>,
    into_at: usize,
    /// QEMU has closed its end.
    is_over: bool,
    /// Nothing more is read of QEMU's.
    is_paused: bool,
    /// More can be carried at once, whatever the descriptors say.
    pub has_more: bool,
    /// Bytes of QEMU's stream, out and in.
    pub carried: [u64; 2],
    /// Bytes on the wire, out and in.
    pub traffic: [u64; 2],
}

/// A stream of which nothing is under way, and which has no connection.
#[derive(Debug)]
pub(crate) struct Still {
    pub qemu: OwnedFd,
    /// Bytes that have come, and that QEMU has not taken yet.
    pub rest: Vec<u8>,
    /// As [`Carrier::carried`].
    pub carried: [u64; 2],
    /// As [`Carrier::traffic`].
    pub traffic: [u64; 2],
}

/// The reason why a stream has ended.
pub(super) enum Over {
    /// QEMU has closed it.
    Qemu,
    /// The connection to the other host.
    Link(LinkError),
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Qemu => f.write_str("QEMU has ended it"),
            Self::Link(why) => why.fmt(f),
        }
    }
}

impl Carrier {
    /// Between these two.
    pub fn new(link: Link, qemu: OwnedFd) -> Self {
        Self::again(link, Still { qemu, rest: Vec::new(), carried: [0; 2], traffic: [0; 2] })
    }

    /// A stream that has stood still goes on over this connection.
    pub fn again(link: Link, Still { qemu, rest, carried, traffic }: Still) -> Self {
        let (out, into) = (Vec::new(), rest);
        Self {
            link,
            qemu,
            out,
            out_at: 0,
            into,
            into_at: 0,
            is_over: false,
            is_paused: false,
            has_more: false,
            carried,
            traffic,
        }
    }

    /// From now on nothing more is read of QEMU's: the bytes that were, since the protection's begin.
    pub fn pause(&mut self) -> u64 {
        self.is_paused = true;
        self.carried[0]
    }

    /// After [`Carrier::pause`]: it goes on.
    pub fn go_on(&mut self) {
        self.is_paused = false;
    }

    /// After [`Carrier::pause`]: whether the system has all that was read of QEMU's.
    pub fn is_flushed(&self) -> bool {
        self.is_paused && self.out_at == self.out.len() && self.link.is_flushed()
    }

    /// After [`Carrier::pause`]: whether all of so many bytes has come that the other host has read of its QEMU's.
    pub fn has_all(&self, sent_there: u64) -> bool {
        self.is_paused && self.carried[1] == sent_there
    }

    /// Whether QEMU has all that has come.
    pub fn is_delivered(&self) -> bool {
        self.into_at == self.into.len()
    }

    /// QEMU's end, for [`Carrier::again`]. Ends the connection.
    pub fn into_still(self) -> Still {
        let Self { qemu, mut into, into_at, carried, traffic, .. } = self;
        into.drain(..into_at);
        Still { qemu, rest: into, carried, traffic }
    }

    /// Its descriptors, and what to wait for.
    pub fn polled(&self) -> [(BorrowedFd<'_>, PollFlags); 2] {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.out_at == self.out.len() && !self.is_over && !self.is_paused);
        events.set(PollFlags::OUT, self.into_at < self.into.len());
        [(self.link.as_fd(), self.link.events()), (self.qemu.as_fd(), events)]
    }

    /// Carries what is there. Returns whether anything moved.
    ///
    /// # Errors
    /// The stream has ended, and all that came has been delivered as far as QEMU takes it.
    pub fn turn(&mut self) -> Result<bool, Over> {
        let mut moved = false;
        self.has_more = true;
        for _ in 0..PIECES {
            let sent = self.outwards();
            let ended = self.link.turn();
            let came = self.inwards()?;
            let [out, into] = self.link.take_traffic();
            self.traffic = [self.traffic[0] + out, self.traffic[1] + into];
            moved |= sent || came;
            ended.map_err(Over::Link)?;
            if !sent && !came {
                self.has_more = false;
                break;
            }
        }
        if self.is_over && self.out_at == self.out.len() && self.link.is_flushed() {
            Err(Over::Qemu)
        } else {
            Ok(moved)
        }
    }

    /// Carries bytes from QEMU to the connection.
    fn outwards(&mut self) -> bool {
        if self.out_at == self.out.len() && !self.is_over && !self.is_paused {
            self.out.resize(PIECE, 0);
            self.out_at = 0;
            let count = match recv(&self.qemu, &mut self.out[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.is_over = true;
                    0
                }
                Ok((count, _)) => count,
                Err(Errno::AGAIN | Errno::INTR) => 0,
                Err(_) => {
                    self.is_over = true;
                    0
                }
            };
            self.out.truncate(count);
            self.carried[0] += count as u64;
        }
        let count = self.link.write(self.out.get(self.out_at..).unwrap_or_default());
        self.out_at += count;
        count > 0
    }

    /// Carries bytes from the connection to QEMU.
    fn inwards(&mut self) -> Result<bool, Over> {
        if self.into_at == self.into.len() {
            self.into.resize(PIECE, 0);
            self.into_at = 0;
            let read = self.link.read(&mut self.into);
            let count = read.as_ref().map_or(0, |count| *count);
            self.into.truncate(count);
            self.carried[1] += count as u64;
            read.map_err(Over::Link)?;
        }
        let rest = self.into.get(self.into_at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(false);
        }
        match send(&self.qemu, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => {
                self.into_at += count;
                Ok(count > 0)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(_) => Err(Over::Qemu),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use nicety_link::Secret;

    use super::*;

    /// Two carriers, and the ends that QEMU would have.
    fn joined() -> ([Carrier; 2], [UnixStream; 2]) {
        let secret = Secret::new(&[7; 32]).unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let links = [Link::connect(one.into(), &secret).unwrap(), Link::accept(other.into(), &secret).unwrap()];
        let ends = [(); 2].map(|()| UnixStream::pair().unwrap());
        let [(a, qemu_a), (b, qemu_b)] = ends;
        let [first, second] = links;
        ([Carrier::new(first, a.into()), Carrier::new(second, b.into())], [qemu_a, qemu_b])
    }

    #[test]
    fn bytes_come_out_as_they_went_in_both_ways_however_slowly_qemu_takes_them() {
        let ([mut one, mut other], [mut left, mut right]) = joined();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || {
            left.write_all(&sent).unwrap();
            let mut answer = [0; 3];
            left.read_exact(&mut answer).unwrap();
            answer
        });
        right.set_nonblocking(true).unwrap();
        let (mut came, mut piece) = (Vec::new(), [0; 10_000]);
        while came.len() < bytes.len() {
            one.turn().ok().unwrap();
            other.turn().ok().unwrap();
            if let Ok(count) = right.read(&mut piece) {
                came.extend_from_slice(&piece[..count]);
            }
        }
        assert!(came == bytes);
        right.write_all(b"yes").unwrap();
        while !writer.is_finished() {
            // The writer closes its end when it has its answer.
            let _ends = (one.turn(), other.turn());
        }
        assert_eq!(writer.join().unwrap(), *b"yes");
        assert_eq!((one.carried, other.carried), ([3_000_000, 3], [3, 3_000_000]));
        // TLS adds less than 3 %.
        assert!(one.traffic[0] < 3_090_000, "{:?}", one.traffic);
    }

    /// A daemon is replaced in this way: nothing is lost or comes twice, wherever the bytes were.
    #[test]
    fn a_stream_that_stands_still_goes_on_over_another_connection() {
        let ([mut one, mut other], [mut left, mut right]) = joined();
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || left.write_all(&sent).map(|()| left).unwrap());
        right.write_all(b"before").unwrap();
        right.set_nonblocking(true).unwrap();
        let (mut came, mut piece) = (Vec::new(), [0; 10_000]);
        let mut take = |came: &mut Vec<u8>| {
            if let Ok(count) = right.read(&mut piece) {
                came.extend_from_slice(&piece[..count]);
            }
        };
        while came.len() < 300_000 {
            let _moved = (one.turn().ok().unwrap(), other.turn().ok().unwrap());
            take(&mut came);
        }
        assert!(!one.is_flushed() && !other.has_all(other.carried[1]), "it was not paused");
        let [from_one, from_other] = [one.pause(), other.pause()];
        while !(one.is_flushed() && other.is_flushed() && one.has_all(from_other) && other.has_all(from_one)) {
            let _moved = (one.turn().ok().unwrap(), other.turn().ok().unwrap());
            take(&mut came);
        }
        let stills = [one, other].map(Carrier::into_still);
        let secret = Secret::new(&[7; 32]).unwrap();
        let (near, far) = UnixStream::pair().unwrap();
        let links = [Link::accept(near.into(), &secret).unwrap(), Link::connect(far.into(), &secret).unwrap()];
        let [(link, still), (far_link, far_still)] = {
            let [near, far] = links;
            let [one, other] = stills;
            [(near, one), (far, other)]
        };
        let (mut one, mut other) = (Carrier::again(link, still), Carrier::again(far_link, far_still));
        while came.len() < bytes.len() {
            let _moved = (one.turn().ok().unwrap(), other.turn().ok().unwrap());
            take(&mut came);
        }
        assert!(came == bytes);
        let mut left = writer.join().unwrap();
        let mut answer = [0; 6];
        left.read_exact(&mut answer).unwrap();
        assert_eq!((&answer, one.carried, other.carried), (b"before", [1_000_000, 6], [6, 1_000_000]));
    }

    #[test]
    fn an_end_of_either_is_told() {
        let ([mut one, mut other], [left, right]) = joined();
        for _ in 0..10 {
            one.turn().ok().unwrap();
            other.turn().ok().unwrap();
        }
        drop(left);
        let ended = (0..10).find_map(|_| one.turn().err());
        assert!(matches!(ended, Some(Over::Qemu)));
        drop(one);
        let ended = (0..10).find_map(|_| other.turn().err());
        assert!(matches!(ended, Some(Over::Link(LinkError::Cut))));
        drop(right);
    }
}
