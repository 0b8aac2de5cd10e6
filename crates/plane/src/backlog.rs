//! Frames that wait for a receiver, copied into our memory: a pool of blocks, and lanes of packets in it.
//!
//! A frame that its receiver refuses is copied here at once, and the sender's descriptors are returned (store-and-forward). So a guest
//! that does not read causes no head-of-line blocking. Without room the frame is dropped, with its reason.
//!
//! - A guest's adapter has a lane for each receive queue; all share the port's receive buffer. A full queue blocks no other.
//! - An uplink has a lane for each sending port, each with its own room: no sender fills the uplink's buffer for the others. A sender
//!   whose frames wait is *held* until little is left: its port fetches nothing, so none of its frames is dropped here.
//! - With I/O control an uplink has a lane for each class and port, and what comes in waits by class and receiving port.
//!
//! The order in which lanes are served is a scheduler's ([`Order`]), which knows no frames.
//!
//! ```text
//! lane 0 ──► packet ──► packet ──► packet        a packet: a chain of blocks of 512 bytes
//! lane 3 ──► packet                              free blocks: a chain, and all that were never used
//! ```

mod saved;

use std::sync::Arc;

use nicety_adapter::{
    Batch, Budget, Delivery, Edit, Frames, Offload, Packet, Pick, PortId, Reason, Segment, Set, Time,
};
use nicety_ioc::{Lane, QUANTUM_BYTES, Scheduler};
use nicety_memory::{Map, MapError, Rights, Span, copy};

use crate::order::{LaneKey, Order, peer_at};
use crate::rounds::{Grant, Rounds};
pub use saved::SavedFrame;
pub(crate) use saved::SavedOffload;

/// A packet takes whole blocks of the buffer.
const BLOCK_BYTES: u32 = 512;
/// The lane size with which a sender to an uplink loses nothing. The sender is held only while it uses more than a quarter. A batch must
/// still fit then: at most 64 packets, 64 KiB and the rest of the last packet.
pub const SENDER_BYTES: u32 = 256 << 10;
/// Marks the absence of a block.
const NONE: u32 = u32::MAX;

/// A waiting packet. Its number is that of its first block.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The packet behind it.
    next: u32,
    len: u32,
    /// Bytes on the wire, the headers of all segments included; 0 for a further copy of a packet that is charged elsewhere.
    wire_bytes: u32,
    /// Bytes of its private head.
    head: u16,
    from: u16,
    edit: Edit,
    offload: Offload,
    /// Since when it waits.
    since: Time,
}

/// Bytes on the wire, the headers of all segments included.
fn wire_bytes(len: u32, offload: &Offload) -> u32 {
    let repeated = |cut: Segment| (cut.frames(len) - 1).saturating_mul(u32::from(cut.headers));
    len.saturating_add(offload.segment.map_or(0, repeated))
}

/// A packet that is to wait.
#[derive(Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub batch: &'a Batch,
    pub packet: &'a Packet,
    /// Its private head, or another of the same length.
    pub head: &'a [u8],
    pub pick: Pick,
    /// Whether the packet is charged elsewhere, as a further copy of a packet for several receivers.
    pub is_free: bool,
}

impl<'a> Arrival<'a> {
    pub fn new(batch: &'a Batch, packet: &'a Packet, pick: Pick) -> Self {
        Self { batch, packet, head: batch.head(packet), pick, is_free: false }
    }
}

const NOTHING: Waiting = Waiting {
    next: NONE,
    len: 0,
    wire_bytes: 0,
    head: 0,
    from: 0,
    edit: Edit::Keep,
    offload: Offload { checksum: nicety_adapter::Checksum::AsIs, segment: None },
    since: Time::ZERO,
};

/// The packets of a lane.
#[derive(Clone, Copy, Debug)]
struct Chain {
    first: u32,
    last: u32,
    bytes: u32,
}

const EMPTY: Chain = Chain { first: NONE, last: NONE, bytes: 0 };

/// A port whose frames wait, or for which frames wait.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Bytes of its lanes.
    bytes: u32,
    /// It sends, and is held.
    is_held: bool,
    /// With I/O control: it is released as soon as little is left in any of its lanes.
    by_lane: bool,
    /// The tenure of the port that is held; 0 for none, or for one that was not named yet.
    tenure: u64,
}

/// The kind of its lanes: see [`LaneKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Queues,
    Peers,
}

impl Kind {
    #[inline]
    fn key(self, number: u16) -> LaneKey {
        match self {
            Self::Queues => LaneKey::Queue(number),
            Self::Peers => LaneKey::Peer(peer_at(number)),
        }
    }
}

/// Result of one call of [`Backlog::drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// The lane that was offered.
    pub lane: LaneKey,
    /// Packets that the receiver took, or that were dropped.
    pub packets: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Their bytes on the wire, the headers of all segments included.
    pub wire_bytes: u64,
    /// The receiver refused some.
    pub refused: bool,
    /// The lane's sender was released.
    pub released: bool,
}

/// See the module's page.
#[derive(Debug)]
pub struct Backlog {
    map: Arc<Map>,
    kind: Kind,
    /// The limit in bytes: of all lanes together (queues), or of each lane (peers).
    size: u32,
    /// The next block of the packet or of the free list, for each block that was ever used.
    blocks: Vec<u32>,
    waiting: Vec<Waiting>,
    blocks_most: u32,
    free: u32,
    used_blocks: u32,
    packets: usize,
    lanes: Vec<Chain>,
    /// The peers by port number; empty for queues.
    peers: Vec<Peer>,
    /// Knows the lanes with waiting packets.
    order: Order,
    /// The same lanes as a set; unused for peers.
    queues: Set,
    batch: Batch,
    picks: Vec<Pick>,
    offered: Vec<u32>,
}

impl Backlog {
    /// For an adapter: one lane per receive queue; all lanes share a buffer of this many bytes. Memory is allocated on first use.
    pub fn of_queues(bytes: u32) -> Result<Self, MapError> {
        Self::new(Kind::Queues, bytes, bytes.div_ceil(BLOCK_BYTES), nicety_adapter::QUEUES)
    }

    /// For an uplink: one lane of this many bytes, at most [`SENDER_BYTES`], per sending port. Memory is allocated on first use.
    pub fn of_senders(bytes: u32) -> Result<Self, MapError> {
        let bytes = bytes.min(SENDER_BYTES);
        let blocks = bytes.div_ceil(BLOCK_BYTES) * nicety_switch::PORTS as u32;
        Self::new(Kind::Peers, bytes, blocks, nicety_switch::PORTS)
    }

    /// For what comes in by an uplink: a lane of this many bytes for each class and receiver; four times as many for all.
    pub(crate) fn of_receivers(bytes: u32) -> Result<Self, MapError> {
        let blocks = bytes.div_ceil(BLOCK_BYTES).saturating_mul(4);
        Self::new(Kind::Peers, bytes, blocks, nicety_switch::PORTS)
    }

    fn new(kind: Kind, size: u32, blocks: u32, lanes: usize) -> Result<Self, MapError> {
        Ok(Self {
            map: Arc::new(Map::private((blocks.max(1) as usize) * BLOCK_BYTES as usize)?),
            kind,
            size,
            blocks: Vec::with_capacity(blocks as usize),
            waiting: Vec::with_capacity(blocks as usize),
            blocks_most: blocks,
            free: NONE,
            used_blocks: 0,
            packets: 0,
            lanes: vec![EMPTY; lanes],
            peers: vec![Peer::default(); if kind == Kind::Peers { lanes } else { 0 }],
            order: Order::Rounds(if kind == Kind::Peers { Rounds::fair(lanes) } else { Rounds::plain(lanes) }),
            queues: Set::default(),
            batch: Batch::new(),
            picks: Vec::with_capacity(nicety_adapter::PACKETS),
            offered: Vec::with_capacity(nicety_adapter::PACKETS),
        })
    }

    /// Whether no packet waits.
    pub fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.packets
    }

    /// Most bytes of a lane.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Bytes that all lanes together may have.
    pub(crate) fn pool_bytes(&self) -> u64 {
        u64::from(self.blocks_most) * u64::from(BLOCK_BYTES)
    }

    /// Bytes in use, in whole blocks.
    pub fn used(&self) -> u64 {
        u64::from(self.used_blocks) * u64::from(BLOCK_BYTES)
    }

    /// The receive queues that have packets waiting.
    pub fn queues(&self) -> Set {
        self.queues
    }

    /// The time since which the oldest packet has waited for a receive queue that is not in `open`.
    pub fn starved_since(&self, open: Set) -> Option<Time> {
        let mut queues = self.queues;
        std::iter::from_fn(|| queues.pop())
            .filter(|queue| !open.contains(*queue))
            .filter_map(|queue| self.lanes.get(usize::from(queue)))
            .filter_map(|lane| self.waiting.get(lane.first as usize))
            .map(|waiting| waiting.since)
            .min()
    }

    /// Whether a lane has room for a packet of `len` bytes.
    pub fn has_room(&self, lane: LaneKey, len: u32) -> bool {
        self.has_room_at(lane.number(), len)
    }

    fn has_room_at(&self, lane: u16, len: u32) -> bool {
        let bytes = in_blocks(len);
        let Some(found) = self.lanes.get(usize::from(lane)) else { return false };
        let in_lane = if self.kind == Kind::Peers { u64::from(found.bytes) } else { self.used() };
        len > 0 && in_lane + u64::from(bytes) <= u64::from(self.size.next_multiple_of(BLOCK_BYTES))
    }

    /// The drop reason for a packet of `len` bytes that finds no room.
    pub(crate) fn refusal(&self, len: u32) -> Reason {
        if len > self.size() { Reason::NoBuffer } else { Reason::BufferFull }
    }

    /// Copies a packet to the end of its lane. False if there is no room.
    pub fn push(&mut self, lane: LaneKey, batch: &Batch, packet: &Packet, pick: Pick, now: Time) -> bool {
        self.push_arrival(lane, Arrival::new(batch, packet, pick), now)
    }

    /// Like [`Self::push`].
    #[inline]
    pub(crate) fn push_arrival(&mut self, lane: LaneKey, arrival: Arrival<'_>, now: Time) -> bool {
        let Arrival { batch, packet, head, pick, is_free } = arrival;
        let (lane, len) = (lane.number(), packet.len());
        if !self.has_room_at(lane, len) {
            return false;
        }
        let Some(first) = self.take_blocks(len.div_ceil(BLOCK_BYTES)) else { return false };
        self.store(batch, packet, head, first);
        let Pick { from, edit, .. } = pick;
        let (head, offload) = (packet.head_len(), packet.offload);
        let wire_bytes = if is_free { 0 } else { wire_bytes(len, &offload) };
        let waiting = Waiting { next: NONE, len, wire_bytes, head, from, edit, offload, since: now };
        self.append(lane, first, waiting, now);
        true
    }

    /// Puts a packet, whose bytes are in its blocks, to the end of its lane.
    #[inline]
    fn append(&mut self, lane: u16, first: u32, waiting: Waiting, now: Time) {
        let bytes = in_blocks(waiting.len);
        let wire_bytes = waiting.wire_bytes;
        self.waiting[first as usize] = waiting;
        let found = &mut self.lanes[usize::from(lane)];
        if found.last == NONE {
            found.first = first;
            self.order.add(lane, wire_bytes, now);
            if self.kind == Kind::Queues {
                self.queues.insert(lane);
            }
        } else {
            self.waiting[found.last as usize].next = first;
        }
        found.last = first;
        found.bytes += bytes;
        if let Some(peer) = self.peers.get_mut(usize::from(peer_at(lane).port)) {
            peer.bytes += bytes;
        }
        self.packets += 1;
    }

    /// Takes a chain of `count` blocks. Returns the first.
    fn take_blocks(&mut self, count: u32) -> Option<u32> {
        if count > self.blocks_most - self.used_blocks {
            return None;
        }
        let (mut first, mut last) = (NONE, NONE);
        for _ in 0..count {
            let block = if self.free == NONE {
                self.blocks.push(NONE);
                self.waiting.push(NOTHING);
                self.blocks.len() as u32 - 1
            } else {
                let block = self.free;
                self.free = self.blocks[block as usize];
                block
            };
            match last {
                NONE => first = block,
                last => self.blocks[last as usize] = block,
            }
            last = block;
        }
        self.blocks[last as usize] = NONE;
        self.used_blocks += count;
        Some(first)
    }

    /// Returns a chain to the free list. The order stays, so the next packet gets adjacent blocks.
    fn give_back(&mut self, first: u32) {
        let (mut last, mut count) = (first, 1);
        while self.blocks[last as usize] != NONE {
            last = self.blocks[last as usize];
            count += 1;
        }
        self.blocks[last as usize] = std::mem::replace(&mut self.free, first);
        self.used_blocks -= count;
    }

    fn store(&self, batch: &Batch, packet: &Packet, mut head: &[u8], first: u32) {
        let mut spans = batch.spans(packet).iter().copied();
        let mut from = Span::default();
        pieces(&self.map, &self.blocks, first, packet.len(), |mut to| {
            while !to.is_empty() {
                let done = if head.is_empty() {
                    while from.is_empty() {
                        let Some(next) = spans.next() else { return false };
                        from = next;
                    }
                    let copied = copy(batch.source(), from, &self.map, to);
                    from = from.piece(copied, from.len());
                    copied
                } else {
                    let (now, rest) = head.split_at(head.len().min(to.len() as usize));
                    self.map.write_span(to.piece(0, now.len() as u32), now);
                    head = rest;
                    now.len() as u32
                };
                to = to.piece(done, to.len());
                if done == 0 {
                    return false;
                }
            }
            true
        });
    }

    /// Copies of the packets that wait, lane by lane.
    pub fn save(&self) -> Vec<SavedFrame> {
        let mut frames = Vec::with_capacity(self.packets);
        for (lane, found) in (0..).zip(&self.lanes) {
            let mut packet = found.first;
            while packet != NONE {
                let Waiting { next, len, wire_bytes: _, head, from, edit, offload, since } =
                    self.waiting[packet as usize];
                let (mut bytes, mut at) = (vec![0; len as usize], 0);
                pieces(&self.map, &self.blocks, packet, len, |span| {
                    let end = at + span.len() as usize;
                    let Some(bytes) = bytes.get_mut(at..end) else { return false };
                    self.map.read_span(span, bytes);
                    at = end;
                    true
                });
                frames.push(SavedFrame { lane, from, head, edit: edit.into(), offload: offload.into(), since, bytes });
                packet = next;
            }
        }
        frames
    }

    /// Puts a copied packet to the end of its lane. False if there is no room, or no such lane.
    pub fn push_saved(&mut self, frame: &SavedFrame, now: Time) -> bool {
        let SavedFrame { lane, from, head, edit, offload, since, bytes } = frame;
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if !self.has_room_at(*lane, len) || usize::from(*head) > bytes.len() {
            return false;
        }
        let Some(first) = self.take_blocks(len.div_ceil(BLOCK_BYTES)) else { return false };
        let mut left = &bytes[..];
        pieces(&self.map, &self.blocks, first, len, |span| {
            let (piece, rest) = left.split_at(left.len().min(span.len() as usize));
            self.map.write_span(span, piece);
            left = rest;
            true
        });
        let (edit, offload, since) = ((*edit).into(), (*offload).into(), *since);
        let wire_bytes = wire_bytes(len, &offload);
        let waiting = Waiting { next: NONE, len, wire_bytes, head: *head, from: *from, edit, offload, since };
        self.append(*lane, first, waiting, now);
        true
    }

    /// Offers the first packets of one lane in `open`, within the budget, and removes all that are not refused. On an error nothing was
    /// offered: no packet waits in such a lane, or limits hold all of them until the given time.
    pub fn drain(
        &mut self,
        open: impl Fn(LaneKey) -> bool,
        budget: Budget,
        now: Time,
        deliver: impl FnOnce(&Frames<'_>) -> Delivery,
    ) -> Result<Drained, Option<Time>> {
        let kind = self.kind;
        let Grant { lane, bytes } = self.order.pick(|lane| open(kind.key(lane)), now)?;
        self.draft(lane, Budget { bytes: budget.bytes.min(bytes), ..budget });
        let delivery = deliver(&Frames::new(&self.batch, &self.picks));
        self.batch.release();
        Ok(self.settle(lane, &delivery, now))
    }

    fn draft(&mut self, number: u16, budget: Budget) {
        let origin = self.kind.key(number).port();
        let Self { map, blocks, waiting, lanes, batch, picks, offered, .. } = self;
        batch.start(map, origin, 0);
        picks.clear();
        offered.clear();
        let mut packet = lanes[usize::from(number)].first;
        while packet != NONE && budget.allows(batch) {
            let Waiting { next, len, wire_bytes: _, head, from, edit, offload, since: _ } = waiting[packet as usize];
            let Some(mut draft) = batch.draft(head.into()) else { break };
            let mut whole = true;
            pieces(map, blocks, packet, len, |span| {
                whole = draft.push_span(span).is_ok();
                whole
            });
            if !whole {
                break;
            }
            draft.finish_copy(offload);
            picks.push(Pick { packet: picks.len() as u16, from, edit });
            offered.push(packet);
            packet = next;
        }
    }

    /// Removes from a lane the packets that were not refused.
    fn settle(&mut self, number: u16, delivery: &Delivery, now: Time) -> Drained {
        let lane = self.kind.key(number);
        let mut drained = Drained { lane, refused: delivery.refused() != 0, ..Drained::default() };
        for refusal in delivery.refusals() {
            if let Some(packet) = self.offered.get(usize::from(refusal.pick)) {
                self.waiting[*packet as usize].from = refusal.from;
            }
        }
        let mut lane = self.lanes[usize::from(number)];
        let (mut before, mut packet, mut freed) = (NONE, lane.first, 0);
        for pick in 0..self.offered.len() {
            let Waiting { next, len, wire_bytes, .. } = self.waiting[packet as usize];
            if delivery.is_refused(pick) {
                before = packet;
            } else {
                match before {
                    NONE => lane.first = next,
                    before => self.waiting[before as usize].next = next,
                }
                if lane.last == packet {
                    lane.last = before;
                }
                freed += len.next_multiple_of(BLOCK_BYTES);
                drained.packets += 1;
                drained.bytes += u64::from(len);
                drained.wire_bytes += u64::from(wire_bytes);
                self.give_back(packet);
            }
            packet = next;
        }
        self.packets -= drained.packets;
        lane.bytes -= freed;
        let port = usize::from(peer_at(number).port);
        if let Some(peer) = self.peers.get_mut(port) {
            peer.bytes -= freed;
            drained.released = peer.is_held && peer.bytes <= self.size / 4;
            peer.is_held &= !drained.released;
        }
        let is_empty = lane.first == NONE;
        if is_empty {
            self.queues.remove(number);
        }
        self.lanes[usize::from(number)] = lane;
        match &mut self.order {
            Order::Rounds(rounds) => rounds.served(number, drained.bytes, is_empty),
            // Nothing was sent: the lane is still the next.
            Order::Control(_) if drained.packets == 0 => {}
            Order::Control(scheduler) => {
                scheduler.served(drained.wire_bytes, request(&lane, &self.waiting), now);
                if let Some(sender) = self.peers.get_mut(port)
                    && sender.is_held
                    && sender.by_lane
                    && lane.bytes <= self.size / 4
                {
                    (sender.is_held, drained.released) = (false, true);
                }
            }
        }
        drained
    }

    /// Holds a sender until few of its frames wait. True if it was not held before.
    pub fn hold(&mut self, sender: PortId) -> bool {
        let Some(sender) = self.peers.get_mut(usize::from(sender.0)) else { return false };
        sender.bytes > 0 && !std::mem::replace(&mut sender.is_held, true)
    }

    /// Bytes that are few: a sender with so much in all its lanes, or in one of them, is released.
    pub(crate) fn few(&self) -> u32 {
        self.size / 4
    }

    /// A sender that is held is released as soon as little is left in any of its lanes, or in all.
    pub(crate) fn release_by_lane(&mut self, sender: PortId, by_lane: bool) {
        if let Some(sender) = self.peers.get_mut(usize::from(sender.0)) {
            sender.by_lane = by_lane;
        }
    }

    /// Names the held port by its tenure, because a port may leave while it is held, and another port may get its number. False if the
    /// sender was released meanwhile.
    pub fn name_holder(&mut self, sender: PortId, tenure: u64) -> bool {
        let Some(sender) = self.peers.get_mut(usize::from(sender.0)) else { return false };
        if sender.is_held {
            sender.tenure = tenure;
        }
        sender.is_held
    }

    /// Takes the tenure of a port that was held; `None` if it was not named.
    pub fn take_holder(&mut self, sender: PortId) -> Option<u64> {
        let sender = self.peers.get_mut(usize::from(sender.0))?;
        Some(std::mem::take(&mut sender.tenure)).filter(|tenure| *tenure != 0)
    }

    /// Releases all held senders, and returns them.
    pub fn let_all_go(&mut self) -> Vec<PortId> {
        let senders = self.peers.iter_mut().zip(0..);
        senders.filter_map(|(sender, number)| std::mem::take(&mut sender.is_held).then_some(PortId(number))).collect()
    }

    /// A sender has left: drops its hold.
    pub fn forget(&mut self, sender: PortId) {
        if let Some(sender) = self.peers.get_mut(usize::from(sender.0)) {
            (sender.is_held, sender.tenure) = (false, 0);
        }
    }

    /// Drops the hold on a port that has left before it was named.
    pub fn forget_unnamed(&mut self, sender: PortId) {
        if self.peers.get(usize::from(sender.0)).is_some_and(|sender| sender.tenure == 0) {
            self.forget(sender);
        }
    }

    /// Whether any sender is held that still has frames waiting.
    pub fn holds(&self) -> bool {
        !self.is_empty() && self.peers.iter().any(|sender| sender.is_held && sender.bytes > 0)
    }

    /// An uplink's lanes are served by this scheduler from now on, or round by round. What waits stays: `places` has the new number of
    /// each class so far, and the frames of one that has none are of class 0.
    pub(crate) fn change_order(&mut self, scheduler: Option<Box<Scheduler>>, places: &[u16], now: Time) {
        if self.kind == Kind::Queues {
            return;
        }
        let classes = scheduler.as_ref().map_or(1, |scheduler| scheduler.classes().max(1));
        let order = scheduler.map_or_else(|| Order::Rounds(Rounds::fair(nicety_switch::PORTS)), Order::Control);
        let old = std::mem::replace(&mut self.lanes, vec![EMPTY; classes * nicety_switch::PORTS]);
        self.order = order;
        for (number, lane) in (0..).zip(old).filter(|(_, lane)| lane.first != NONE) {
            let Lane { class, port } = peer_at(number);
            let class = places.get(usize::from(class)).copied().filter(|place| usize::from(*place) < classes);
            let number = LaneKey::Peer(Lane { class: class.unwrap_or(0), port }).number();
            let target = &mut self.lanes[usize::from(number)];
            if target.first == NONE {
                *target = lane;
            } else {
                self.waiting[target.last as usize].next = lane.first;
                *target = Chain { first: target.first, last: lane.last, bytes: target.bytes + lane.bytes };
            }
        }
        self.add_all(now);
    }

    /// The scheduler, if the uplink has I/O control.
    #[inline]
    pub(crate) fn scheduler(&mut self) -> Option<&mut Scheduler> {
        match &mut self.order {
            Order::Control(scheduler) => Some(scheduler),
            Order::Rounds(_) => None,
        }
    }

    /// Whether a class's lane has a reservation.
    pub(crate) fn is_reserved(&self, lane: Lane) -> bool {
        matches!(&self.order, Order::Control(scheduler) if scheduler.is_reserved(lane))
    }

    /// Bytes of a class's lane, in whole blocks.
    pub(crate) fn lane_bytes(&self, lane: Lane) -> u32 {
        self.lanes.get(usize::from(LaneKey::Peer(lane).number())).map_or(0, |lane| lane.bytes)
    }

    /// Since when the oldest packet of a class's lane waits.
    pub(crate) fn oldest(&self, lane: Lane) -> Option<Time> {
        let lane = self.lanes.get(usize::from(LaneKey::Peer(lane).number()))?;
        Some(self.waiting.get(lane.first as usize)?.since)
    }

    /// The lanes of a link with waiting packets, and how many wait in each.
    pub(crate) fn waiting_by_peer(&self) -> impl Iterator<Item = (Lane, u64)> {
        let count = |lane: &Chain| {
            let next = |packet: &u32| Some(self.waiting[*packet as usize].next).filter(|next| *next != NONE);
            std::iter::successors(Some(lane.first).filter(|first| *first != NONE), next).count() as u64
        };
        (0..).zip(&self.lanes).map(move |(number, lane)| (peer_at(number), count(lane))).filter(|(_, count)| *count > 0)
    }

    /// Removes all packets; returns the number of waiting ones.
    pub fn clear(&mut self) -> usize {
        match &mut self.order {
            Order::Control(scheduler) => {
                scheduler.clear();
                (0..self.lanes.len()).for_each(|lane| _ = self.clear_lane(lane));
            }
            Order::Rounds(_) => {
                while let Order::Rounds(rounds) = &mut self.order
                    && let Some(lane) = rounds.pop()
                {
                    self.clear_lane(lane.into());
                }
            }
        }
        self.peers.iter_mut().for_each(|peer| peer.bytes = 0);
        self.queues = Set::default();
        std::mem::take(&mut self.packets)
    }

    /// Removes the packets of a lane; returns how many.
    fn clear_lane(&mut self, lane: usize) -> usize {
        let mut packet = std::mem::replace(&mut self.lanes[lane], EMPTY).first;
        let mut packets = 0;
        while packet != NONE {
            let next = self.waiting[packet as usize].next;
            self.give_back(packet);
            packet = next;
            packets += 1;
        }
        packets
    }

    /// Removes what waits for a receiver, in each class; returns the number of packets.
    pub(crate) fn clear_receiver(&mut self, receiver: PortId) -> usize {
        let lanes = (usize::from(receiver.0)..self.lanes.len()).step_by(nicety_switch::PORTS);
        let packets: usize = lanes.map(|lane| self.clear_lane(lane)).sum();
        if packets == 0 {
            return 0;
        }
        self.packets -= packets;
        if let Some(peer) = self.peers.get_mut(usize::from(receiver.0)) {
            peer.bytes = 0;
        }
        if let Order::Control(scheduler) = &mut self.order {
            scheduler.clear();
        }
        // At a time that is past: the next pick finds what is due.
        self.add_all(Time::ZERO);
        packets
    }

    /// Tells a new or cleared order which lanes have packets.
    fn add_all(&mut self, now: Time) {
        for (number, lane) in (0..).zip(&self.lanes) {
            if let Some(request) = request(lane, &self.waiting) {
                self.order.add(number, request, now);
            }
        }
    }
}

/// Bytes on the wire that a lane sends when it is served: its only packet, or several short ones. `None` if it is empty.
fn request(lane: &Chain, waiting: &[Waiting]) -> Option<u32> {
    let first = waiting.get(lane.first as usize)?;
    let len = first.wire_bytes;
    Some(if lane.first == lane.last { len } else { len.max(QUANTUM_BYTES) })
}

/// Bytes that a packet takes: whole blocks.
pub(crate) fn in_blocks(len: u32) -> u32 {
    len.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

/// Calls `each` with the memory of a packet, block by block, until it returns false.
fn pieces(map: &Map, blocks: &[u32], first: u32, len: u32, mut each: impl FnMut(Span) -> bool) {
    let (mut block, mut left, mut more) = (first, len, true);
    while left > 0 && more && block != NONE {
        let here = left.min(BLOCK_BYTES);
        let place = u64::from(block) * u64::from(BLOCK_BYTES);
        // Our own memory: the translation cannot fail.
        let _translated = map.translate(place, here, Rights::BOTH, |span| {
            more = each(span);
            true
        });
        left -= here;
        block = blocks[block as usize];
    }
}
