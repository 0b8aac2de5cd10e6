//! Two ends joined by a socket: two daemons, or a daemon and a program. Packets pass whole, their offloads told in a
//! small header, which `message.rs` describes.
//!
//! A peer may say what it likes: what is no packet is dropped and counted, and a peer that goes takes with it what was
//! under way, nothing else. An end that listens takes the next peer then, an end that connects tries again.

mod leaving;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, PortId, Progress, Reason, Time, Uplink};
use nicety_memory::Span;
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};

use crate::buffers::{Buffers, SLOT_BYTES};
use crate::message::{self, HEADER_BYTES, NotHello};
use crate::socket::{self, SocketError, watching};
use crate::system::{self, MESSAGES, Received};
use crate::watch::{Watch, writable};
use crate::way::Way;

/// Messages that arrive ahead of their turn at most: a slot each.
const SLOTS: usize = 64;
/// From slot to slot. Not a multiple of a page, so that heads of short packets do not share the same cache sets.
const SLOT_STRIDE: u32 = SLOT_BYTES + 64;
/// Bytes that are written ahead of one call that sends them.
const LEAVING_BYTES: u32 = 256 << 10;
/// What the socket is asked to hold. The host's `net.core.wmem_max` may allow less.
const SOCKET_BYTES: usize = 1 << 20;
/// How many bytes one receiving call should bring, about.
const RECEIVE_BYTES: u32 = 64 << 10;

/// Why a peer was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// It closed its end, or its process ended.
    Gone,
    /// It speaks another version than ours, 1.
    Version(u16),
    /// Its first message was no hello.
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

/// See the module's page.
#[derive(Debug)]
pub struct Pair {
    peer: Option<OwnedFd>,
    /// The hello of the peer whose messages are read was one.
    greeted: bool,
    way: Way,
    parting: Option<Parting>,
    watch: Watch,
    arrived: Buffers,
    /// Slots that a batch points into.
    lent: u64,
    /// Messages that have arrived and were not fetched yet: slot, and length.
    ready: ArrayVec<(u8, Received), SLOTS>,
    /// How many of them were fetched.
    taken: usize,
    /// Messages that the next receiving call asks for.
    burst: usize,
    received: ArrayVec<Received, MESSAGES>,
    leaving: Buffers,
    full: bool,
    room: bool,
}

impl Pair {
    /// Both ends of a new pair.
    pub fn connected() -> Result<(Self, Self), SocketError> {
        let (one, other) = socket::pair(SocketType::SEQPACKET)?;
        Ok((Self::over(one)?, Self::over(other)?))
    }

    /// An end that waits at `path` for a peer, and for the next one when it has gone. A stale socket is replaced.
    pub fn listen(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let mut this = Self::alone()?;
        this.way = Way::listen(path.as_ref(), SocketType::SEQPACKET, &this.watch)?;
        Ok(this)
    }

    /// An end that joins the peer that listens at `path`, now or later, and again when the peer has gone.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, SocketError> {
        let mut this = Self::alone()?;
        this.way = Way::connect(path.as_ref(), SocketType::SEQPACKET, &this.watch)?;
        if let Some(fd) = this.way.dial() {
            this.try_to_join(fd);
        }
        Ok(this)
    }

    /// Whether a peer is there that has said hello.
    pub fn joined(&self) -> bool {
        self.peer.is_some() && self.greeted
    }

    /// Why the last peer was left.
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
            way: Way::Given,
            parting: None,
            watch: Watch::new().map_err(watching)?,
            arrived: Buffers::new(SLOT_STRIDE * SLOTS as u32)?,
            lent: 0,
            ready: ArrayVec::new(),
            taken: 0,
            burst: MESSAGES,
            received: ArrayVec::new(),
            leaving: Buffers::new(LEAVING_BYTES)?,
            full: false,
            room: false,
        })
    }

    /// Says hello to a peer, and listens to it. Its socket is empty: the hello fits.
    fn join(&mut self, fd: OwnedFd) -> io::Result<()> {
        let _the_default_will_do = sockopt::set_socket_send_buffer_size(&fd, SOCKET_BYTES);
        let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
        rustix::net::send(&fd, &message::hello(), flags)?;
        self.watch.add(&fd)?;
        self.way.met(&self.watch);
        self.peer = Some(fd);
        self.greeted = false;
        Ok(())
    }

    fn part(&mut self, why: Parting) {
        let Some(peer) = self.peer.take() else { return };
        self.watch.remove(&peer);
        self.parting = Some(why);
        self.full = false;
        self.way.parted(why == Parting::Gone, &self.watch);
    }

    /// Takes a peer that waits, or tries to join one if it is time to.
    fn seek(&mut self, now: Time) {
        if self.peer.is_some() || self.taken < self.ready.len() {
            return;
        }
        if let Some(fd) = self.way.seek(&self.watch, now) {
            self.try_to_join(fd);
        }
    }

    /// As [`Pair::join`], where the peer may have gone already, or have no room for a hello.
    fn try_to_join(&mut self, fd: OwnedFd) {
        if self.join(fd).is_err() {
            self.way.parted(true, &self.watch);
        }
    }

    fn slot(&self, slot: u8) -> u32 {
        u32::from(slot) * SLOT_STRIDE
    }

    /// Receives into slots that are free. False if nothing more is there now.
    fn receive(&mut self) -> bool {
        self.ready.clear();
        self.taken = 0;
        let Some(peer) = &self.peer else { return false };
        let mut slots = ArrayVec::<u8, SLOTS>::new();
        let free = (0..SLOTS as u8).filter(|slot| self.lent & (1 << slot) == 0);
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

    /// Judges the first message of a peer. True if the message was it.
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
            let _it_has_gone = self.watch.room(peer, false);
            (self.full, self.room) = (false, true);
        }
        if self.lent != 0 && !self.arrived.held() {
            self.lent = 0;
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
                    self.lent |= 1 << slot;
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
            self.lent &= !1u64.checked_shl(packet.cookie as u32).unwrap_or(0);
        }
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _now: Time) -> Delivery {
        self.room = false;
        leaving::deliver(self, frames, counters)
    }

    fn vacant(&self) -> Option<String> {
        let parting = self.parting.filter(|parting| *parting != Parting::Gone);
        match &self.peer {
            Some(_) if self.greeted => None,
            Some(_) => Some("somebody has joined, and has not said hello yet".to_owned()),
            None => Some(self.way.vacant(parting)),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.descriptor())
    }

    fn wake(&self) -> Option<Time> {
        if self.room { Some(Time::ZERO) } else { self.way.wake() }
    }
}
