//! Receiving from a tunnel. Datagrams that the kernel has joined (UDP_GRO) come in one piece, and are taken apart here. What is in them is
//! not trusted: each is checked, and dropped and counted if it is wrong.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use nicety_adapter::{Reason, Time};
use nicety_frame::vlan::{TAG_LEN, TAG_OFFSET, is_tpid};
use nicety_frame::{Mac, Tag, Tci, vxlan};
use nicety_memory::{Map, MapError, Span};
use rustix::io::Errno;

use super::answers::{ANSWER_MAX, Answer, WAITING_MAX};
use super::hops::Table;
use super::networks::Networks;
use super::saved::SavedArrived;
use super::wire::{ETHERNET_BYTES, HEADER_BYTES};
use crate::buffers::{Buffers, SLOT_BYTES};
use crate::system::{self, Address, Landed, MESSAGES};

/// Pieces of memory: one for each message of a receiving call.
const SLOTS: usize = MESSAGES;
/// Bytes from one slot to the next. Not a multiple of a page: heads of short frames would share cache sets.
const SLOT_STRIDE: u32 = SLOT_BYTES + 64;
/// The place of our own answers, behind the slots.
const ANSWERS_AT: u32 = SLOT_STRIDE * SLOTS as u32;
/// Bytes from one answer to the next.
const ANSWER_STRIDE: u32 = (ANSWER_MAX as u32).next_multiple_of(64);
/// Approximate bytes that one receiving call should bring.
const RECEIVE_BYTES: u32 = 128 << 10;
/// The part of a datagram that is examined: both headers.
const EXAMINED: usize = (HEADER_BYTES + ETHERNET_BYTES) as usize;
/// A tag's length as an offset.
const TAG_BYTES: u32 = TAG_LEN as u32;
const _: () = assert!(TAG_BYTES <= HEADER_BYTES);

/// The facts by which a datagram is judged.
pub(super) struct Judge<'a> {
    pub table: &'a mut Table,
    pub networks: &'a Networks,
    /// The longest frame, without a tag.
    pub frame_max: u32,
    pub now: Time,
}

/// Messages that were received, and are not examined to the end.
#[derive(Debug)]
pub(super) struct Arriving {
    buffers: Buffers,
    ready: ArrayVec<(u8, Landed), SLOTS>,
    /// The message in `ready` that is examined, and the place in it.
    next: usize,
    at: u32,
    /// Bit mask of slots into which a batch points.
    lent: u64,
    /// Answers that were written for the batch.
    answers: u32,
    /// Most messages that the next receiving call asks for.
    burst: usize,
    received: ArrayVec<Landed, MESSAGES>,
    /// The host that has sent the message, as far as it was looked up.
    peer: Option<(IpAddr, Option<u16>)>,
}

impl Arriving {
    pub(super) fn new() -> Result<Self, MapError> {
        Ok(Self {
            buffers: Buffers::new(ANSWERS_AT + ANSWER_STRIDE * WAITING_MAX as u32)?,
            ready: ArrayVec::new(),
            next: 0,
            at: 0,
            lent: 0,
            answers: 0,
            burst: MESSAGES,
            received: ArrayVec::new(),
            peer: None,
        })
    }

    pub(super) fn map(&self) -> &Arc<Map> {
        self.buffers.map()
    }

    /// Whether a batch may still point into the buffers.
    pub(super) fn is_lent(&self) -> bool {
        (self.lent != 0 || self.answers != 0) && self.buffers.held()
    }

    /// Takes the buffers back: no batch points into them any more.
    pub(super) fn give_back(&mut self) {
        (self.lent, self.answers) = (0, 0);
    }

    /// Writes an answer of our own for the batch, which has at most [`WAITING_MAX`].
    pub(super) fn place(&mut self, answer: &Answer) -> Span {
        let at = ANSWERS_AT + self.answers.min(WAITING_MAX as u32 - 1) * ANSWER_STRIDE;
        let span = self.buffers.span(at, answer.len() as u32);
        self.buffers.map().write_span(span, answer);
        self.answers += 1;
        span
    }

    /// Whether all that was received was examined.
    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.ready.len()
    }

    /// Datagrams that were received and not examined.
    pub(super) fn save(&self) -> Vec<SavedArrived> {
        let saved = |(at, (slot, landed)): (u32, &(u8, Landed))| {
            let span = self.buffers.span(u32::from(*slot) * SLOT_STRIDE + at, landed.len - at);
            let mut bytes = vec![0; span.len() as usize];
            self.buffers.map().read_span(span, &mut bytes);
            Some(SavedArrived { from: landed.from.ip()?, segment: landed.segment, bytes })
        };
        let starts = std::iter::once(self.at).chain(std::iter::repeat(0));
        starts.zip(self.ready.iter().skip(self.next)).filter_map(saved).collect()
    }

    /// Goes on with that.
    pub(super) fn restore(&mut self, saved: &[SavedArrived]) {
        for (slot, saved) in (0..SLOTS as u8).zip(saved) {
            let len = saved.bytes.len().min(SLOT_BYTES as usize);
            self.buffers
                .map()
                .write_span(self.buffers.span(u32::from(slot) * SLOT_STRIDE, len as u32), &saved.bytes[..len]);
            let (from, segment) = (Address::new(SocketAddr::new(saved.from, 0)), saved.segment.max(1));
            self.ready.push((slot, Landed { len: len as u32, cut: false, segment, from }));
        }
    }

    /// Receives what is waiting, into slots that are free. True if there are no further messages now.
    pub(super) fn receive(&mut self, socket: &OwnedFd) -> bool {
        self.ready.clear();
        (self.next, self.at, self.peer) = (0, 0, None);
        let mut slots = ArrayVec::<u8, SLOTS>::new();
        slots.extend((0..SLOTS as u8).filter(|slot| self.lent & (1 << slot) == 0).take(self.burst));
        let spans: ArrayVec<Span, SLOTS> =
            slots.iter().map(|slot| self.buffers.span(u32::from(*slot) * SLOT_STRIDE, SLOT_BYTES)).collect();
        if spans.is_empty() {
            return false;
        }
        match system::receive_datagrams(socket.as_fd(), self.buffers.map(), &spans, &mut self.received) {
            Ok(()) => {}
            // The error of an earlier datagram, which was said of the socket.
            Err(error) => return matches!(Errno::from_io_error(&error), Some(Errno::AGAIN)),
        }
        let all = self.received.len() < spans.len();
        let bytes: u32 = self.received.iter().map(|landed| landed.len).sum();
        self.ready.extend(slots.into_iter().zip(self.received.drain(..)));
        let mean = bytes / (self.ready.len() as u32).max(1);
        self.burst = (RECEIVE_BYTES / mean.max(1)).clamp(4, MESSAGES as u32) as usize;
        all
    }

    /// The datagrams and bytes of the next message, if none of it was examined yet.
    pub(super) fn message(&self) -> Option<(u32, u32)> {
        let (_, landed) = self.ready.get(self.next).filter(|_| self.at == 0)?;
        Some((landed.len.div_ceil(landed.segment.max(1)), landed.len))
    }

    /// The next frame, with the tag of its VLAN. `None`: all was examined.
    pub(super) fn next(&mut self, judge: &mut Judge<'_>) -> Option<Result<Span, Reason>> {
        let &(slot, landed) = self.ready.get(self.next)?;
        let len = landed.segment.min(landed.len - self.at);
        let span = self.buffers.span(u32::from(slot) * SLOT_STRIDE + self.at, len);
        self.at += len;
        if self.at >= landed.len {
            (self.next, self.at) = (self.next + 1, 0);
        }
        let Some(hop) = self.hop(&landed, judge.table) else { return Some(Err(Reason::UnknownPeer)) };
        let result = if landed.cut { Err(Reason::TooLong) } else { self.frame(span, hop, judge) };
        judge.table.came(hop, span.len().saturating_sub(HEADER_BYTES), result.is_err());
        if result.is_ok() {
            self.lent |= 1 << slot;
        }
        Some(result)
    }

    /// The frame in a datagram of this hop.
    fn frame(&mut self, datagram: Span, hop: u16, judge: &mut Judge<'_>) -> Result<Span, Reason> {
        let mut bytes = [0; EXAMINED];
        let read = self.buffers.map().read_span(datagram.piece(0, EXAMINED as u32), &mut bytes);
        let (header, ethernet) = bytes.split_first_chunk().ok_or(Reason::NotVxlan)?;
        if read < HEADER_BYTES as usize {
            return Err(Reason::NotVxlan);
        }
        let vni = vxlan::decode(*header).ok_or(Reason::NotVxlan)?;
        let (vni, vlan) = judge.networks.vlan(vni).ok_or(Reason::UnknownNetwork)?;
        if read < EXAMINED {
            return Err(Reason::TooShort);
        }
        if datagram.len() - HEADER_BYTES > judge.frame_max {
            return Err(Reason::TooLong);
        }
        let (addresses, kind) = ethernet.split_first_chunk::<TAG_OFFSET>().ok_or(Reason::TooShort)?;
        // A frame with a tag of its own would be of another VLAN than its network's (RFC 7348 section 6.1).
        if kind.first_chunk().is_some_and(|kind| is_tpid(u16::from_be_bytes(*kind))) {
            return Err(Reason::Vlan);
        }
        let [.., a, b, c, d, e, f] = *addresses;
        judge.table.learn(vni, Mac([a, b, c, d, e, f]), hop, judge.now);
        if vlan == 0 {
            return Ok(datagram.piece(HEADER_BYTES, datagram.len()));
        }
        // The addresses move into the tunnel's header, and the tag takes their last bytes.
        let frame = datagram.piece(HEADER_BYTES - TAG_BYTES, datagram.len());
        let mut start = [0; TAG_OFFSET + TAG_LEN];
        start[..TAG_OFFSET].copy_from_slice(addresses);
        start[TAG_OFFSET..].copy_from_slice(&Tag::customer(Tci::new(0, false, vlan)).to_bytes());
        self.buffers.map().write_span(frame.piece(0, start.len() as u32), &start);
        Ok(frame)
    }

    /// The hop that has sent a message.
    fn hop(&mut self, landed: &Landed, table: &Table) -> Option<u16> {
        let address = landed.from.ip()?;
        match self.peer {
            Some((known, hop)) if known == address => hop,
            _ => {
                let hop = table.number(address);
                self.peer = Some((address, hop));
                hop
            }
        }
    }
}
