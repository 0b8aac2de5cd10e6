//! Frames over a UNIX stream socket, as QEMU's `-netdev stream` (and its older `-netdev socket`) sends them. It joins a switch to a
//! QEMU without a tap and without rights, or to another switch.
//!
//! Each frame, from its destination address on and without a frame check sequence, follows its length: four bytes, big endian
//! (QEMU's `net/net.c`, `net_fill_rstate`, and `net/stream_data.c`). Nothing else passes, no offloads either: packets are cut and
//! checksums computed before they leave, and joined again when they arrive (`joining.rs`). Frames of less than 60 bytes are padded,
//! as on a wire, for those of QEMU's adapters that drop shorter ones.
//!
//! A frame that is too short or too long for the switch is dropped and counted; the next one is read. A length that QEMU accepts
//! from no peer either is invalid: the stream is out of step, and the peer is disconnected. A peer that disconnects loses its
//! incomplete frame; then a listening end takes the next peer, and a connecting end tries again.

mod arriving;
mod leaving;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, HandOver, News, PACKETS, PortId, Progress, Time, Uplink,
};
use nicety_memory::Map;
use rustix::net::SocketType;

use self::arriving::{Arriving, Next};
use self::leaving::Leaving;
use crate::handover::{Found, SavedLink};
use crate::joining::Joining;
use crate::peer_source::PeerSource;
use crate::socket::{self, SocketError, watching};
use crate::watch::{Watch, writable};

/// Bytes of a frame's length.
const PREFIX_BYTES: u32 = 4;
/// The reason why the last peer was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severed {
    /// It closed its end, or its process ended.
    Gone,
    /// It sent this invalid number as a frame's length.
    Length(u32),
}

impl fmt::Display for Severed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the peer closed the stream"),
            Self::Length(length) => {
                write!(f, "the peer does not send frames behind their lengths: {length} is no frame's length")
            }
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Stream {
    peer: Option<OwnedFd>,
    peer_source: PeerSource,
    severed: Option<Severed>,
    watch: Watch,
    arriving: Arriving,
    joining: Joining,
    /// A batch points into the received bytes.
    borrowed: bool,
    leaving: Leaving,
    full: bool,
    room: bool,
    /// Whether the last news was that a peer is there.
    is_told: bool,
}

impl Stream {
    /// Both ends of a new stream.
    pub fn connected() -> Result<(Self, Self), SocketError> {
        let (one, other) = socket::pair(SocketType::STREAM)?;
        let over = |fd| {
            let mut this = Self::new()?;
            this.join(fd).map_err(watching)?;
            Ok::<_, SocketError>(this)
        };
        Ok((over(one)?, over(other)?))
    }

    /// Makes an end that listens at `path` for one peer after the other. A stale socket is replaced.
    pub fn listen(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let mut this = Self::new()?;
        this.peer_source = PeerSource::listen(path.as_ref(), SocketType::STREAM, &this.watch)?;
        Ok(this)
    }

    /// Makes an end that connects to the server at `path`, now or later, and again after a disconnect.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let mut this = Self::new()?;
        this.peer_source = PeerSource::connect(path.as_ref(), SocketType::STREAM, &this.watch)?;
        if let Some(fd) = this.peer_source.dial() {
            this.try_to_join(fd);
        }
        Ok(this)
    }

    /// Goes on with the parts of another process's stream at this path. It sends nothing and joins nobody before its first turn.
    ///
    /// # Errors
    /// The state is damaged or another version's, or the path is gone.
    pub fn go_on(path: impl AsRef<Path>, state: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, SocketError> {
        let mut this = Self::new()?;
        let found = SavedLink::find(state, descriptors, path.as_ref(), SocketType::STREAM, &this.watch)?;
        let Found { saved, source, peer } = found;
        if let Some((bytes, _)) = saved.arrived.first() {
            this.arriving.restore(bytes, saved.skip);
        }
        this.leaving.restore(&saved.leaving);
        if let Some(peer) = &peer {
            this.watch.add(peer).map_err(watching)?;
            // Whether it has room is found out in the first turn, and what waits goes then.
            this.full = this.watch.room(peer, true).is_ok();
        }
        (this.peer_source, this.is_told, this.peer) = (source, peer.is_some(), peer);
        Ok(this)
    }

    /// Whether a peer is connected.
    pub fn joined(&self) -> bool {
        self.peer.is_some()
    }

    /// The reason why the last peer was disconnected.
    pub fn severed(&self) -> Option<Severed> {
        self.severed
    }

    fn new() -> Result<Self, SocketError> {
        Ok(Self {
            peer: None,
            peer_source: PeerSource::Given,
            severed: None,
            watch: Watch::new().map_err(watching)?,
            arriving: Arriving::new()?,
            joining: Joining::new(),
            borrowed: false,
            leaving: Leaving::new()?,
            full: false,
            room: false,
            is_told: false,
        })
    }

    fn join(&mut self, fd: OwnedFd) -> io::Result<()> {
        self.watch.add(&fd)?;
        self.peer_source.met(&self.watch);
        self.peer = Some(fd);
        Ok(())
    }

    fn part(&mut self, why: Severed) {
        let Some(peer) = self.peer.take() else { return };
        self.watch.remove(&peer);
        self.severed = Some(why);
        self.full = false;
        self.arriving.forget();
        self.leaving.forget();
        self.peer_source.parted(why == Severed::Gone, &self.watch);
    }

    /// Takes a waiting peer, or tries to connect if it is time to.
    fn seek(&mut self, now: Time) {
        if self.peer.is_some() {
            return;
        }
        if let Some(fd) = self.peer_source.seek(&self.watch, now) {
            self.try_to_join(fd);
        }
    }

    /// Like [`Stream::join`], for a peer that may have gone already.
    fn try_to_join(&mut self, fd: OwnedFd) {
        if self.join(fd).is_err() {
            self.peer_source.parted(true, &self.watch);
        }
    }

    /// Sends the waiting bytes, if the socket has room again.
    fn send_waiting(&mut self) {
        let Some(peer) = self.peer.as_ref().filter(|peer| self.full && writable(peer)) else { return };
        match self.leaving.send(peer) {
            Ok(true) => {
                let _gone = self.watch.room(peer, false);
                (self.full, self.room) = (false, true);
            }
            Ok(false) => {}
            Err(_) => self.part(Severed::Gone),
        }
    }
}

impl Uplink for Stream {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.room = false;
        self.send_waiting();
        if self.borrowed && self.arriving.held() {
            batch.start(&Map::empty(), port, 0);
            return Progress { more: true, armed: false };
        }
        self.seek(now);
        batch.start(self.arriving.map(), port, 0);
        let (mut frames, mut drained, mut armed) = (0, false, false);
        // A frame may end the open packet and be a packet of its own: two packets must fit.
        let enough = |batch: &Batch, joining: &Joining| {
            let bytes = batch.bytes() + joining.bytes();
            batch.len() + 2 > PACKETS || (bytes > 0 && bytes >= budget.bytes)
        };
        while frames < budget.packets.max(1) && !enough(batch, &self.joining) {
            match self.arriving.next() {
                Next::Frame(span) => {
                    frames += 1;
                    self.joining.take(self.arriving.map(), span, batch, counters);
                }
                Next::Dropped(reason) => {
                    frames += 1;
                    counters.transmit_drop(reason);
                }
                Next::Foreign(length) => self.part(Severed::Length(length)),
                Next::More => {
                    let Some(peer) = self.peer.as_ref().filter(|_| !drained) else {
                        armed = true;
                        break;
                    };
                    match self.arriving.read(peer, batch.is_empty() && !self.joining.is_open()) {
                        Ok(None) => break,
                        Ok(Some(all)) => drained = all,
                        Err(_) => self.part(Severed::Gone),
                    }
                }
            }
        }
        self.joining.close(batch, counters);
        self.borrowed = !batch.is_empty();
        Progress { more: !armed, armed }
    }

    fn complete(&mut self, _batch: &Batch) {
        self.borrowed = false;
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _now: Time) -> Delivery {
        self.room = false;
        leaving::deliver(self, frames, counters)
    }

    fn carrier(&self) -> bool {
        self.peer.is_some()
    }

    fn vacant(&self) -> Option<String> {
        let severed = self.severed.filter(|severed| *severed != Severed::Gone);
        self.peer.is_none().then(|| self.peer_source.vacant(severed))
    }

    fn news(&mut self) -> Option<News> {
        let is_there = self.peer.is_some();
        if std::mem::replace(&mut self.is_told, is_there) == is_there {
            return None;
        }
        Some(self.vacant().map_or_else(|| News::Back("its peer has joined".to_owned()), News::Vacant))
    }

    fn hand_over(&self) -> HandOver<'_> {
        let (arrived, skip) = self.arriving.save();
        let (arrived, leaving) = (vec![(arrived, false)], self.leaving.save());
        let saved = SavedLink { arrived, skip, leaving, ..SavedLink::default() };
        saved.parts(&self.peer_source, self.peer.as_ref().map(AsFd::as_fd))
    }

    fn own(&mut self) {
        self.peer_source.own();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.descriptor())
    }

    fn wake(&self) -> Option<Time> {
        if self.room { Some(Time::ZERO) } else { self.peer_source.wake() }
    }
}
