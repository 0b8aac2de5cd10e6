//! Two ends joined by a socket: two daemons, or a daemon and a program. Packets pass whole; a small header carries their offloads
//! (`message.rs`).
//!
//! The peer is not trusted: an invalid message is dropped and counted. A peer that disconnects loses only the messages in flight. A
//! listening end then takes the next peer; a connecting end tries again.

mod leaving;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use arrayvec::ArrayVec;
use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, HandOver, News, PortId, Progress, Reason, Time, Uplink,
};
use nicety_memory::Span;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};

use crate::buffers::{Buffers, SLOT_BYTES};
use crate::handover::{Found, SavedLink};
use crate::message::{self, HEADER_BYTES, NotHello};
use crate::peer_source::PeerSource;
use crate::socket::{self, SocketError, watching};
use crate::system::{self, MESSAGES, Received};
use crate::watch::{Watch, writable};

/// Most messages that are received before they are fetched: one slot each.
const SLOTS: usize = 64;
/// Bytes from one slot to the next. Not a multiple of a page: heads of short packets would share cache sets.
const SLOT_STRIDE: u32 = SLOT_BYTES + 64;
/// Most bytes that are written before one call sends them.
const LEAVING_BYTES: u32 = 256 << 10;
/// Requested size of the socket's send buffer. The host's `net.core.wmem_max` may allow less.
const SOCKET_BYTES: usize = 1 << 20;
/// Approximate bytes that one receiving call should bring.
const RECEIVE_BYTES: u32 = 64 << 10;

/// The reason why the last peer was disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// It closed its end, or its process ended.
    Gone,
    /// It speaks another protocol version than ours, 1.
    Version(u16),
    /// Its first message was not a hello.
    Foreign,
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the peer closed the pair"),
            Self::Version(other) => {
                write!(f, "the peer speaks version {other} of the pair's protocol, this end {}", message::VERSION)
            }
            Self::Foreign => f.write_str("the peer is no end of a pair: it did not begin with a hello"),
        }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Pair {
    peer: Option<OwnedFd>,
    /// The current peer has sent a valid hello.
    greeted: bool,
    peer_source: PeerSource,
    parting: Option<Parting>,
    watch: Watch,
    arrived: Buffers,
    /// Bit mask of slots that a batch points into.
    borrowed: u64,
    /// Messages received and not fetched yet: slot, and length.
    ready: ArrayVec<(u8, Received), SLOTS>,
    /// Number of messages in `ready` that were fetched.
    taken: usize,
    /// Most messages that the next receiving call asks for.
    burst: usize,
    received: ArrayVec<Received, MESSAGES>,
    leaving: Buffers,
    full: bool,
    room: bool,
    /// Whether the last news was that a peer is there.
    is_told: bool,
}

impl Pair {
    /// Both ends of a new pair.
    pub fn connected() -> Result<(Self, Self), SocketError> {
        let (one, other) = socket::pair(SocketType::SEQPACKET)?;
        Ok((Self::over(one)?, Self::over(other)?))
    }

    /// Makes an end that listens at `path` for one peer after the other. A stale socket is replaced.
    pub fn listen(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let mut this = Self::alone()?;
        this.peer_source = PeerSource::listen(path.as_ref(), SocketType::SEQPACKET, &this.watch)?;
        Ok(this)
    }

    /// Makes an end that connects to the server at `path`, now or later, and again after a disconnect.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let mut this = Self::alone()?;
        this.peer_source = PeerSource::connect(path.as_ref(), SocketType::SEQPACKET, &this.watch)?;
        if let Some(fd) = this.peer_source.dial() {
            this.try_to_join(fd);
        }
        Ok(this)
    }

    /// Goes on with the parts of another process's pair at this path. It has nothing to send and joins nobody before its first turn.
    ///
    /// # Errors
    /// The state is damaged or another version's, or the path is gone.
    pub fn go_on(path: impl AsRef<Path>, state: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, SocketError> {
        let mut this = Self::alone()?;
        let found = SavedLink::find(state, descriptors, path.as_ref(), SocketType::SEQPACKET, &this.watch)?;
        let Found { saved, source, peer } = found;
        for ((bytes, cut), slot) in saved.arrived.iter().take(SLOTS).zip(0..) {
            let len = bytes.len().min(SLOT_BYTES as usize);
            this.arrived.map().write_span(this.arrived.span(this.slot(slot), len as u32), &bytes[..len]);
            this.ready.push((slot, Received { len: len as u32, cut: *cut }));
        }
        if let Some(peer) = &peer {
            this.watch.add(peer).map_err(watching)?;
            // Whether it has room is found out in the first turn.
            this.full = this.watch.room(peer, true).is_ok();
        }
        (this.peer_source, this.is_told, this.greeted) = (source, peer.is_some(), saved.greeted);
        this.peer = peer;
        Ok(this)
    }

    /// Messages that were received and not fetched.
    fn waiting(&self) -> Vec<(Vec<u8>, bool)> {
        let bytes = |&(slot, Received { len, cut }): &(u8, Received)| {
            let mut bytes = vec![0; len as usize];
            self.arrived.map().read_span(self.arrived.span(self.slot(slot), len), &mut bytes);
            (bytes, cut)
        };
        self.ready.iter().skip(self.taken).map(bytes).collect()
    }

    /// Whether a peer is connected and has sent its hello.
    pub fn joined(&self) -> bool {
        self.peer.is_some() && self.greeted
    }

    /// The reason why the last peer was disconnected.
    pub fn parting(&self) -> Option<Parting> {
        self.parting
    }

    fn over(fd: OwnedFd) -> Result<Self, SocketError> {
        let mut this = Self::alone()?;
        this.join(fd).map_err(watching)?;
        Ok(this)
    }

    fn alone() -> Result<Self, SocketError> {
        Ok(Self {
            peer: None,
            greeted: false,
            peer_source: PeerSource::Given,
            parting: None,
            watch: Watch::new().map_err(watching)?,
            arrived: Buffers::new(SLOT_STRIDE * SLOTS as u32)?,
            borrowed: 0,
            ready: ArrayVec::new(),
            taken: 0,
            burst: MESSAGES,
            received: ArrayVec::new(),
            leaving: Buffers::new(LEAVING_BYTES)?,
            full: false,
            room: false,
            is_told: false,
        })
    }

    /// Sends a hello to a peer, and watches it. Its socket is empty, so the hello fits.
    fn join(&mut self, fd: OwnedFd) -> io::Result<()> {
        let _default_size_kept = sockopt::set_socket_send_buffer_size(&fd, SOCKET_BYTES);
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        rustix::net::send(&fd, &message::hello(), flags)?;
        self.watch.add(&fd)?;
        self.peer_source.met(&self.watch);
        self.peer = Some(fd);
        self.greeted = false;
        Ok(())
    }

    fn part(&mut self, why: Parting) {
        let Some(peer) = self.peer.take() else { return };
        self.watch.remove(&peer);
        self.parting = Some(why);
        self.full = false;
        self.peer_source.parted(why == Parting::Gone, &self.watch);
    }

    /// Takes a waiting peer, or tries to connect if it is time to.
    fn seek(&mut self, now: Time) {
        if self.peer.is_some() || self.taken < self.ready.len() {
            return;
        }
        if let Some(fd) = self.peer_source.seek(&self.watch, now) {
            self.try_to_join(fd);
        }
    }

    /// Like [`Pair::join`], for a peer that may have gone already, or has no room for a hello.
    fn try_to_join(&mut self, fd: OwnedFd) {
        if self.join(fd).is_err() {
            self.peer_source.parted(true, &self.watch);
        }
    }

    fn slot(&self, slot: u8) -> u32 {
        u32::from(slot) * SLOT_STRIDE
    }

    /// Receives into free slots. False if there are no further messages now.
    fn receive(&mut self) -> bool {
        self.ready.clear();
        self.taken = 0;
        let Some(peer) = &self.peer else { return false };
        let mut slots = ArrayVec::<u8, SLOTS>::new();
        let free = (0..SLOTS as u8).filter(|slot| self.borrowed & (1 << slot) == 0);
        slots.extend(free.take(self.burst));
        let spans: ArrayVec<Span, SLOTS> =
            slots.iter().map(|&slot| self.arrived.span(self.slot(slot), SLOT_BYTES)).collect();
        if spans.is_empty() {
            return true;
        }
        let result = system::receive_many(peer.as_fd(), self.arrived.map(), &spans, &mut self.received);
        if let Err(error) = result {
            if !matches!(Errno::from_io_error(&error), Some(Errno::AGAIN | Errno::INTR)) {
                self.part(Parting::Gone);
            }
            return false;
        }
        let more = self.received.len() == spans.len();
        let mut bytes = 0u32;
        for (index, message) in std::mem::take(&mut self.received).into_iter().enumerate() {
            if message.len == 0 {
                self.part(Parting::Gone);
                break;
            }
            bytes = bytes.saturating_add(message.len);
            self.ready.push((slots[index], message));
        }
        let mean = bytes / (self.ready.len() as u32).max(1);
        self.burst = (RECEIVE_BYTES / mean.max(1)).clamp(2, MESSAGES as u32) as usize;
        more
    }

    /// Checks a peer's first message. True if this message was the first one.
    fn greet(&mut self, slot: u8, message: Received) -> bool {
        if self.greeted {
            return false;
        }
        let mut header = [0; HEADER_BYTES as usize];
        self.arrived.map().read_span(self.arrived.span(self.slot(slot), HEADER_BYTES), &mut header);
        match message::check_hello(header, message.len) {
            Ok(()) => self.greeted = true,
            Err(fault) => {
                self.taken = self.ready.len();
                self.part(match fault {
                    NotHello::Foreign => Parting::Foreign,
                    NotHello::Version(other) => Parting::Version(other),
                });
            }
        }
        true
    }

    fn draft(&self, slot: u8, message: Received, batch: &mut Batch) -> Result<(), Reason> {
        if message.cut {
            return Err(Reason::TooLong);
        }
        let at = self.slot(slot);
        let mut header = [0; HEADER_BYTES as usize];
        self.arrived.map().read_span(self.arrived.span(at, HEADER_BYTES), &mut header);
        let len = message.len.checked_sub(HEADER_BYTES).ok_or(Reason::BadDescriptor)?;
        let asked = message::decode(header, len).ok_or(Reason::BadDescriptor)?;
        if len < 14 {
            return Err(Reason::TooShort);
        }
        let mut draft = batch.draft(asked.head_wanted()).ok_or(Reason::BufferFull)?;
        draft.push_span(self.arrived.span(at + HEADER_BYTES, len)).map_err(|_| Reason::TooLong)?;
        let offload = asked.vet(draft.head_mut(), len).ok_or(Reason::BadOffload)?;
        draft.finish(offload, u64::from(slot))
    }
}

impl Uplink for Pair {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.room = false;
        if let Some(peer) = self.peer.as_ref().filter(|peer| self.full && writable(peer)) {
            let _gone = self.watch.room(peer, false);
            (self.full, self.room) = (false, true);
        }
        if self.borrowed != 0 && !self.arrived.held() {
            self.borrowed = 0;
        }
        self.seek(now);
        batch.start(self.arrived.map(), port, 0);
        let (mut messages, mut drained) = (0, false);
        while budget.allows(batch) && messages < budget.packets.max(1) {
            let Some(&(slot, message)) = self.ready.get(self.taken) else {
                if drained {
                    break;
                }
                drained = !self.receive();
                if self.ready.is_empty() {
                    break;
                }
                continue;
            };
            self.taken += 1;
            messages += 1;
            if self.greet(slot, message) {
                continue;
            }
            match self.draft(slot, message, batch) {
                Ok(()) => {
                    self.borrowed |= 1 << slot;
                    let packet = batch.packets().last();
                    let (frames, bytes) = packet.map_or((1, 0), |packet| (packet.frames(), packet.len()));
                    counters.sent(0, u64::from(frames), u64::from(bytes));
                }
                Err(reason) => counters.transmit_drop(reason),
            }
        }
        let armed = drained && self.taken == self.ready.len();
        Progress { more: !armed, armed }
    }

    fn complete(&mut self, batch: &Batch) {
        for packet in batch.packets() {
            self.borrowed &= !1u64.checked_shl(packet.cookie as u32).unwrap_or(0);
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _now: Time) -> Delivery {
        self.room = false;
        leaving::deliver(self, frames, counters)
    }

    fn carrier(&self) -> bool {
        self.joined()
    }

    fn vacant(&self) -> Option<String> {
        let parting = self.parting.filter(|parting| *parting != Parting::Gone);
        match &self.peer {
            Some(_) if self.greeted => None,
            Some(_) => Some("somebody has joined, and has not said hello yet".to_owned()),
            None => Some(self.peer_source.vacant(parting)),
        }
    }

    fn news(&mut self) -> Option<News> {
        let is_there = self.peer.is_some() && self.greeted;
        if std::mem::replace(&mut self.is_told, is_there) == is_there {
            return None;
        }
        Some(self.vacant().map_or_else(|| News::Back("its peer has joined".to_owned()), News::Vacant))
    }

    fn hand_over(&self) -> HandOver<'_> {
        let saved = SavedLink { greeted: self.greeted, arrived: self.waiting(), ..SavedLink::default() };
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
