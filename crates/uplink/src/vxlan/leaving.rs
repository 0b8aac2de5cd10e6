//! Sending by a tunnel. Frames are written one behind the other, each behind its header. A *run* is frames of one flow to the same hosts, of
//! one length but for the last: the kernel cuts it into datagrams behind the card's queue (UDP_SEGMENT), or the card does. A packet that was
//! to be cut is cut here once, and is a run. Single frames of a batch are written flow by flow, so those of one flow are a run, too, although
//! guests send in turn. The order within a flow stays.
//!
//! Runs that find no room in a socket stay, and no frame is taken until they are sent.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use arrayvec::ArrayVec;
use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{
    Checked, Counters, Delivery, Frames, PACKETS, Packet, Pick, Piece, Reason, Scratch, Unfolded, Wants,
};
use nicety_frame::ethernet::ethertype;
use nicety_frame::vxlan;
use nicety_memory::{MapError, Span};
use rustix::io::Errno;

use super::answers::{Answers, Limit};
use super::guide::{self, Guide, Route};
use super::hops::{HOPS_MAX, Table};
use super::saved::{SavedMessage, SavedTunnel};
use super::sockets::SOURCES;
use super::wire::HEADER_BYTES;
use crate::buffers::Buffers;
use crate::system::{self, Address, Departing, MESSAGES};

/// Most bytes that are written before they are sent.
const LEAVING_BYTES: u32 = 256 << 10;
/// Most bytes of a run: the payload of a UDP datagram over IPv4.
const RUN_BYTES: u32 = 65_535 - 20 - 8;
/// Most datagrams of a run (`UDP_MAX_SEGMENTS` of Linux until 6.9).
const RUN_DATAGRAMS: u32 = 64;
/// Most messages that wait: a broadcast is one for each hop.
const WAITING_MAX: usize = 4 * HOPS_MAX;
const WRONG: RestoreError = RestoreError::Impossible("waiting messages");
/// Runs begin at a cache line.
const ALIGN: u32 = 64;
/// The part of a frame that is quoted if its way is too narrow.
const QUOTED_BYTES: usize = 512;

/// A message that is written and not sent yet.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// The place of its bytes.
    at: u32,
    departing: Departing,
    socket: u8,
    count: Count,
    /// The hop that it goes to. `None`: another process wrote it.
    hop: Option<u16>,
}

impl Message {
    /// Counts its frames as sent to its hop, or as dropped on the way.
    fn count(&self, table: &mut Table, is_dropped: bool) {
        let Departing { span, to, segment } = self.departing;
        if let (Some(hop), Some(to)) = (self.hop, to.ip()) {
            let frames = if segment == 0 { 1 } else { span.len().div_ceil(segment.into()) };
            let bytes = span.len().saturating_sub(frames * HEADER_BYTES);
            table.went(hop, to, (frames, bytes), is_dropped);
        }
    }

    fn save(&self) -> Option<SavedMessage> {
        let Self { at, departing: Departing { span, to, segment }, socket, count, hop: _ } = *self;
        let (to, port, len) = (to.ip()?, to.port(), span.len());
        Some(SavedMessage { to, port, socket, segment, at, len, count: [count.packets, count.frames, count.bytes] })
    }
}

/// The counts for a message that was sent or dropped. Of a run to several hosts the first message that can be sent has the counts of all.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    packets: u32,
    frames: u32,
    bytes: u32,
}

/// Frames one behind the other that have one destination.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u32,
    end: u32,
    /// Bytes of each datagram but the last.
    segment: u32,
    datagrams: u32,
    /// The last datagram is shorter: no other can follow.
    closed: bool,
    route: Route,
    count: Count,
}

/// Errors of the last sending calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trouble {
    /// The peers to which the last message could not be sent, and the error of each, in the order of their addresses.
    pub unreached: Vec<(IpAddr, Errno)>,
    /// The length of the last datagram that was longer than its way permits, if the kernel did not say what that permits.
    pub too_long: Option<u32>,
    /// The peer whose way carries shorter packets than it should, and how long these are.
    pub narrow: Option<(IpAddr, u32)>,
}

impl Trouble {
    /// A message was sent to a peer.
    fn sent(&mut self, peer: IpAddr) {
        if !self.unreached.is_empty()
            && let Ok(at) = self.place(peer)
        {
            self.unreached.remove(at);
        }
    }

    /// A message could not be sent to a peer.
    fn failed(&mut self, peer: IpAddr, error: Errno) {
        match self.place(peer) {
            Ok(at) => self.unreached[at].1 = error,
            Err(at) => self.unreached.insert(at, (peer, error)),
        }
    }

    fn place(&self, peer: IpAddr) -> Result<usize, usize> {
        self.unreached.binary_search_by_key(&peer, |(peer, _)| *peer)
    }

    /// Forgets what concerns a peer that is none any more.
    pub(super) fn forget_others(&mut self, is_peer: impl Fn(IpAddr) -> bool) {
        self.unreached.retain(|(peer, _)| is_peer(*peer));
        self.narrow.take_if(|(peer, _)| !is_peer(*peer));
    }

    /// The way to a peer carries IP packets of so many bytes. The narrowest way is kept.
    fn found(&mut self, peer: IpAddr, mtu: u32) {
        self.too_long = None;
        if self.narrow.is_none_or(|(known, narrowest)| known == peer || mtu < narrowest) {
            self.narrow = Some((peer, mtu));
        }
    }
}

#[derive(Debug)]
pub(super) struct Leaving {
    buffers: Buffers,
    /// First byte that is free.
    at: u32,
    run: Option<Run>,
    messages: Vec<Message>,
    /// Sockets that have no room, a bit each.
    blocked: u32,
    /// The kernel cuts runs. Without it each datagram is sent by itself.
    cuts: bool,
    pub trouble: Trouble,
    pub answers: Answers,
    /// Of questions to the kernel about an MTU.
    questions: Limit,
}

impl Leaving {
    pub(super) fn new() -> Result<Self, MapError> {
        Ok(Self {
            buffers: Buffers::new(LEAVING_BYTES)?,
            at: 0,
            run: None,
            messages: Vec::with_capacity(WAITING_MAX),
            blocked: 0,
            cuts: true,
            trouble: Trouble::default(),
            answers: Answers::default(),
            questions: Limit::default(),
        })
    }

    /// Sockets that have no room, a bit each.
    pub(super) fn blocked(&self) -> u32 {
        self.blocked
    }

    /// Whether messages wait for room.
    pub(super) fn is_waiting(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Saves the frames that wait for room.
    pub(super) fn save(&self, into: &mut SavedTunnel) {
        into.leaving = vec![0; self.at as usize];
        self.buffers.map().read_span(self.buffers.span(0, self.at), &mut into.leaving);
        into.messages = self.messages.iter().filter_map(Message::save).collect();
    }

    /// Goes on with that.
    ///
    /// # Errors
    /// A message is none of these bytes, or of no socket.
    pub(super) fn restore(&mut self, saved: &SavedTunnel, sockets: usize) -> Result<(), RestoreError> {
        self.at = u32::try_from(saved.leaving.len()).ok().filter(|len| *len <= LEAVING_BYTES).ok_or(WRONG)?;
        self.buffers.map().write_span(self.buffers.span(0, self.at), &saved.leaving);
        for message in saved.messages.iter().take(WAITING_MAX) {
            let end = message.at.checked_add(message.len).filter(|end| *end <= self.at && message.len > 0);
            let socket = Some(message.socket).filter(|socket| usize::from(*socket) < sockets);
            let (_, socket) = end.zip(socket).ok_or(WRONG)?;
            let span = self.buffers.span(message.at, message.len);
            let to = Address::new(SocketAddr::new(message.to, message.port));
            let [packets, frames, bytes] = message.count;
            let departing = Departing { span, to, segment: message.segment };
            let count = Count { packets, frames, bytes };
            self.messages.push(Message { at: message.at, departing, socket, count, hop: None });
            // Whether it has room is found out in the first turn.
            self.blocked |= 1 << socket;
        }
        Ok(())
    }

    /// Offers frames.
    pub(super) fn deliver(&mut self, frames: &Frames<'_>, guide: &mut Guide<'_>, counters: &mut Counters) -> Delivery {
        let delivery = self.write_all(frames, guide, counters);
        // What waits is sent in the next turn, which then reports that refused frames are wanted.
        if self.blocked == 0 {
            self.send(guide, counters);
        }
        delivery
    }

    /// Writes a batch, and sends it as far as it does not fit.
    fn write_all(&mut self, frames: &Frames<'_>, guide: &mut Guide<'_>, counters: &mut Counters) -> Delivery {
        let mut delivery = Delivery::default();
        let mut scratch = Scratch::new();
        for Turn { flow, index, .. } in turns(frames, guide) {
            let index = usize::from(index);
            let Some((pick, packet)) = of(frames, index) else { continue };
            if self.blocked != 0 {
                delivery.refuse(index, 0, pick.from.into());
                continue;
            }
            match self.packet((frames, pick, packet), flow, guide, &mut scratch, counters) {
                Ok(None) => {}
                Ok(Some(from)) => delivery.refuse(index, 0, from),
                Err(reason) => {
                    counters.receive_drop(reason);
                    if reason == Reason::TooLong {
                        let _untold = self.answers.too_long((frames, pick, packet), guide);
                    }
                }
            }
        }
        delivery
    }

    /// Writes a packet. The number of its first frame for which there is no room, if there is one.
    fn packet(
        &mut self,
        (frames, pick, packet): (&Frames<'_>, Pick, &Packet),
        flow: u64,
        guide: &mut Guide<'_>,
        scratch: &mut Scratch,
        counters: &mut Counters,
    ) -> Result<Option<u32>, Reason> {
        let wants = Wants { frame_max: guide.frame_max, strip: ethertype::VLAN, ..Wants::default() };
        let unfolded = Unfolded::new(frames, pick, wants)?;
        let mut route = None;
        for index in unfolded.wanted() {
            let mut piece = unfolded.piece(index, scratch).ok_or(Reason::BadOffload)?;
            let len = piece.len();
            // The limit above leaves room for tags.
            if len > guide.frame_max {
                return Err(Reason::TooLong);
            }
            let route = match route {
                Some(route) => route,
                None => *route.insert(guide.route(&piece, flow)?),
            };
            if !self.has_room(HEADER_BYTES + len) {
                self.send(guide, counters);
                if self.blocked != 0 {
                    return Ok(Some(index));
                }
            }
            let is_last = index + 1 == unfolded.count();
            let count = Count { packets: 1, frames: packet.frames(), bytes: packet.len() };
            self.write(&mut piece, route, if is_last { count } else { Count::default() }, guide);
        }
        Ok(None)
    }

    fn has_room(&self, bytes: u32) -> bool {
        self.at.next_multiple_of(ALIGN) + bytes <= self.buffers.len()
            && self.messages.len() + 2 * HOPS_MAX <= WAITING_MAX
    }

    /// Writes a frame behind the others: into the open run, or into another one.
    fn write(&mut self, piece: &mut Piece<'_>, route: Route, count: Count, guide: &Guide<'_>) {
        let len = HEADER_BYTES + piece.len();
        if !self.cuts || self.run.as_ref().is_none_or(|run| !run.takes(len, route)) {
            self.end_run(guide);
            self.at = self.at.next_multiple_of(ALIGN);
            let (start, segment, datagrams) = (self.at, len, 0);
            self.run =
                Some(Run { start, end: start, segment, datagrams, closed: false, route, count: Count::default() });
        }
        self.buffers.map().write_span(self.buffers.span(self.at, HEADER_BYTES), &vxlan::encode(route.vni));
        let body = self.buffers.span(self.at + HEADER_BYTES, piece.len());
        let _checked: Checked = piece.write(self.buffers.map(), &[body]);
        self.at += len;
        if let Some(run) = &mut self.run {
            run.end = self.at;
            run.datagrams += 1;
            run.closed = len < run.segment;
            run.count.packets += count.packets;
            run.count.frames += count.frames;
            run.count.bytes += count.bytes;
        }
    }

    /// Makes messages of the open run: one for each host.
    fn end_run(&mut self, guide: &Guide<'_>) {
        let Some(run) = self.run.take() else { return };
        let span = self.buffers.span(run.start, run.end - run.start);
        let segment = if run.datagrams > 1 { run.segment as u16 } else { 0 };
        let mut count = run.count;
        let mut message = |(hop, address): (u16, IpAddr)| {
            let to = Address::new(SocketAddr::new(address, guide.port));
            let (departing, socket, hop) = (Departing { span, to, segment }, run.route.socket, Some(hop));
            self.messages.push(Message { at: run.start, departing, socket, count: std::mem::take(&mut count), hop });
        };
        match run.route.hop {
            Some(number) => guide.table.hop(number).into_iter().for_each(|hop| message((number, hop.address))),
            None => guide.table.all_of(run.route.vni).for_each(message),
        }
    }

    /// Sends what is written. What finds no room stays.
    pub(super) fn send(&mut self, guide: &mut Guide<'_>, counters: &mut Counters) {
        self.end_run(guide);
        self.send_waiting(guide, counters);
    }

    /// Sends what waits.
    pub(super) fn send_waiting(&mut self, guide: &mut Guide<'_>, counters: &mut Counters) {
        self.blocked = 0;
        let used = self.messages.iter().fold(0u32, |used, message| used | 1 << message.socket);
        for (number, socket) in (0..).zip(guide.sockets).filter(|(number, _)| used & (1 << number) != 0) {
            self.send_by((number, socket), guide, counters);
        }
        let blocked = self.blocked;
        self.messages.retain(|message| blocked & (1 << message.socket) != 0 && !message.departing.span.is_empty());
        if self.messages.is_empty() {
            self.at = 0;
        }
    }

    /// Sends the messages of a socket. Those that are done have no bytes any more.
    fn send_by(&mut self, (number, socket): (u8, &OwnedFd), guide: &mut Guide<'_>, counters: &mut Counters) {
        let mut first = 0;
        loop {
            let mine = |message: &Message| message.socket == number && !message.departing.span.is_empty();
            let waiting = self.messages.iter().enumerate().skip(first).filter(|(_, message)| mine(message));
            let (places, departing): (ArrayVec<usize, MESSAGES>, ArrayVec<Departing, MESSAGES>) =
                waiting.take(MESSAGES).map(|(place, message)| (place, message.departing)).unzip();
            let Some(next) = places.first() else { return };
            first = *next;
            match system::send_datagrams(socket.as_fd(), self.buffers.map(), &departing) {
                Ok(sent) => {
                    for (place, departing) in places.iter().zip(&departing).take(sent.max(1)) {
                        if let Some(peer) = departing.to.ip() {
                            self.trouble.sent(peer);
                        }
                        let count = self.done(*place, guide.table, false);
                        if count.packets > 0 {
                            counters.received(0, count.frames.into(), count.bytes.into());
                        }
                    }
                }
                Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                    Errno::AGAIN | Errno::INTR => {
                        self.blocked |= 1 << number;
                        return;
                    }
                    errno => self.failed((first, socket), errno, guide, counters),
                },
            }
        }
    }

    /// A message could not be sent, and never can.
    fn failed(
        &mut self,
        (place, socket): (usize, &OwnedFd),
        errno: Errno,
        guide: &mut Guide<'_>,
        counters: &mut Counters,
    ) {
        let Some(&message) = self.messages.get(place) else { return };
        let segment = u32::from(message.departing.segment);
        // An interface without checksums cannot cut (`udp_send_skb` of net/ipv4/udp.c).
        if segment != 0 && errno == Errno::IO {
            self.cuts = false;
        }
        let reason = match errno {
            // A segment that is too long is invalid (EINVAL) before Linux 6.12.
            Errno::MSGSIZE => Reason::TooLong,
            Errno::INVAL if segment != 0 => Reason::TooLong,
            _ => Reason::UplinkRefused,
        };
        if reason == Reason::TooLong {
            self.returned(message.departing, socket, guide);
        } else if let Some(peer) = message.departing.to.ip() {
            self.trouble.failed(peer, errno);
        }
        let (at, count) = (message.at, self.done(place, guide.table, true));
        // A copy for another host, which was not sent yet, has the counts now. The last one counts as a drop if none was sent.
        let mut waiting = self.messages.iter_mut().filter(|other| other.at == at && !other.departing.span.is_empty());
        match waiting.next() {
            Some(other) if count.packets > 0 => other.count = count,
            _ => (0..count.packets).for_each(|_| counters.receive_drop(reason)),
        }
    }

    /// A datagram, or the first one of a run, is longer than its way permits. The kernel is asked for the limit as often as guests are told.
    fn returned(&mut self, run: Departing, socket: &OwnedFd, guide: &mut Guide<'_>) {
        if !self.questions.may(guide.now) {
            return;
        }
        self.questions.count(guide.now);
        let len = if run.segment == 0 { run.span.len() } else { run.segment.into() };
        let first = Departing { span: run.span.piece(0, len), ..run };
        let mtu = system::way_mtu(socket.as_fd(), self.buffers.map(), first);
        let Some((mtu, peer)) = mtu.zip(run.to.ip()) else {
            self.trouble.too_long = Some(len).filter(|_| self.trouble.narrow.is_none());
            return;
        };
        self.trouble.found(peer, mtu);
        let mut bytes = [0; HEADER_BYTES as usize + QUOTED_BYTES];
        let read = self.buffers.map().read_span(first.span.piece(0, bytes.len() as u32), &mut bytes);
        let Some((header, frame)) = bytes.get(..read).and_then(|bytes| bytes.split_first_chunk()) else { return };
        let Some(vni) = vxlan::decode(*header) else { return };
        let _untold = self.answers.returned((vni, frame, len - HEADER_BYTES), (guide.own, mtu), guide);
    }

    /// A message waits no more: it was sent, or dropped.
    fn done(&mut self, place: usize, table: &mut Table, is_dropped: bool) -> Count {
        let Some(message) = self.messages.get_mut(place) else { return Count::default() };
        message.count(table, is_dropped);
        message.departing.span = Span::default();
        std::mem::take(&mut message.count)
    }
}

/// A pick of a batch that leaves, in the order of sockets, flows and picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    socket: u8,
    flow: u64,
    /// The number of the pick.
    index: u8,
}

/// The turns of a batch: flow by flow.
fn turns(frames: &Frames<'_>, guide: &Guide<'_>) -> ArrayVec<Turn, PACKETS> {
    let turn = |(index, _, packet): (usize, Pick, &Packet)| {
        let flow = guide::flow(frames.batch.head(packet), frames.batch.layout(packet), guide.seed);
        Turn { socket: guide.socket(flow), flow, index: index as u8 }
    };
    let mut turns: ArrayVec<Turn, PACKETS> = frames.iter().map(turn).collect();
    if !turns.is_sorted() {
        turns.sort_unstable();
    }
    turns
}

fn of<'a>(frames: &Frames<'a>, index: usize) -> Option<(Pick, &'a Packet)> {
    let pick = *frames.picks.get(index)?;
    Some((pick, frames.batch.packet(pick.packet)?))
}

impl Run {
    fn takes(&self, len: u32, route: Route) -> bool {
        self.route == route
            && !self.closed
            && len <= self.segment
            && self.datagrams < RUN_DATAGRAMS
            && self.end - self.start + len <= RUN_BYTES
    }
}

const _: () = assert!(SOURCES <= 32);

#[cfg(test)]
#[path = "leaving_test.rs"]
mod tests;
