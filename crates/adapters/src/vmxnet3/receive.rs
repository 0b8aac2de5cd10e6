//! Receive: packets into posted buffers, with completions (`struct Vmxnet3_RxDesc`, `Vmxnet3_RxCompDesc`,
//! `Vmxnet3_RxCompDescExt`).
//!
//! A packet begins in a *head* buffer of ring 0. What does not fit follows in *body* buffers: those behind it in
//! ring 0 if there are any (version 6 and earlier with a large MTU), else those of ring 1. Body buffers of ring 0 that
//! the packet before had no use for are skipped; drivers take that (`vmxnet3_rq_rx_complete`: "device may have
//! skipped some rx descs"). A small packet goes to the data ring's entry instead of the head buffer.

use arrayvec::ArrayVec;
use nicety_adapter::interrupts::ReceiveModeration;
use nicety_adapter::{Checked, Context, Frames, Pick, Piece, Reason, Scratch, Unfolded, Wants};
use nicety_frame::{Fragment, L3Kind, L4Kind, Layout, checksum, ethernet::ethertype};
use nicety_memory::{Fault, Map, Rights, Span, Window};
use serde::{Deserialize, Serialize};

use super::registers::feature;
use super::rss::Hash;
use super::shared::{PIECES, ReceiveConf, Ring, Setup};
use super::statistics::{LOSS_FIRST, LOSS_SECOND, Statistics};

/// Spans of one piece at most: its buffers, and some that lie across memory regions.
const SPANS: usize = 2 * PIECES;
/// Completion types.
const TYPE_PLAIN: u32 = 3;
const TYPE_LRO: u32 = 4;
/// Ring 1 must hold the largest packet for packets to come uncut.
const BODIES_FOR_LRO: u32 = 32;

/// A receive queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiveQueue {
    pub rings: [Ring; 2],
    pub completions: Ring,
    pub data: u64,
    pub data_len: u16,
    pub vector: u8,
    /// Where its queue descriptor lies.
    pub at: u64,
    /// VMXNET3_ERR_*; 0 while it runs.
    pub error: u32,
    pub statistics: Statistics,
    /// It has refused, and has not reported room since.
    pub starved: bool,
    /// It was bodies that it lacked.
    pub lacks_bodies: bool,
    /// Its driver leaves it to the device how often it interrupts.
    pub moderated: bool,
    /// When it may interrupt next, if so.
    pub moderation: ReceiveModeration,
    /// Where its completions stood when it last did.
    pub told: u32,
}

/// Its rings for one call.
pub struct Windows<'m> {
    rings: [Window<'m>; 2],
    completions: Window<'m>,
}

/// What one packet looks like to one queue.
pub struct Arrival<'a> {
    /// The frames that it is one of.
    pub frames: &'a Frames<'a>,
    /// The pick.
    pub pick: Pick,
    /// Its hash.
    pub hash: Hash,
    /// The queue's number.
    pub number: u16,
}

/// How a packet's delivery ended.
pub enum Outcome {
    /// Taken, or dropped and counted.
    Done,
    /// No room for this frame of it, nor for those behind.
    Refused { from: u32 },
}

/// A buffer for a piece of a frame.
#[derive(Clone, Copy)]
struct Slot {
    ring: u16,
    index: u32,
    address: u64,
    len: u32,
}

/// Where a frame goes.
struct Plan {
    slots: ArrayVec<Slot, PIECES>,
    rings: [Ring; 2],
    from_data: bool,
    /// Bodies that were passed over on the way to a head.
    passed: u32,
}

/// Why there is no plan.
enum Miss {
    /// Not yet: heads are lacking, or bodies.
    NoRoom { bodies: bool },
    /// Not like this.
    Never(Reason),
}

/// The same of a packet: for its frame `from`.
enum Stop {
    NoRoom { bodies: bool, from: u32 },
    Never(Reason),
}

/// A descriptor that the driver has posted.
#[derive(Clone, Copy)]
struct Posted {
    address: u64,
    len: u32,
    body: bool,
}

fn posted(window: &Window<'_>, ring: &Ring) -> Option<Posted> {
    let at = ring.next as usize * 16;
    let word = window.load_u32(at + 8);
    if ring.size == 0 || (word >> 31 != 0) != ring.generation {
        return None;
    }
    Some(Posted { address: u64::from_le_bytes(window.read(at)), len: word & 0x3fff, body: word & 1 << 14 != 0 })
}

/// What the driver of this device takes.
pub fn wants(setup: &Setup, version: u8, bodies: u32) -> Wants {
    let on = |bit| setup.features & bit != 0;
    let uncut = on(feature::LRO) && version >= 2 && bodies >= BODIES_FOR_LRO;
    Wants {
        frame_max: setup.mtu + 14,
        tcp4: uncut,
        tcp6: uncut,
        udp: false,
        partial: false,
        strip: if on(feature::VLAN) { ethertype::VLAN } else { 0 },
        verify: on(feature::CHECKSUM),
    }
}

impl ReceiveQueue {
    /// As after ACTIVATE_DEV.
    pub fn new(conf: ReceiveConf, at: u64, statistics: Statistics) -> Self {
        let ReceiveConf { rings, completions, data, data_len, vector, moderated } = conf;
        Self {
            rings,
            completions,
            data,
            data_len,
            vector,
            at,
            error: 0,
            statistics,
            starved: false,
            lacks_bodies: false,
            moderated,
            moderation: ReceiveModeration::default(),
            told: 0,
        }
    }

    /// Whether the state can be.
    pub fn valid(&self) -> bool {
        let bodies = self.rings[1].size == 0 || self.rings[1].valid(4096);
        let data = self.data_len == 0 || (self.data_len.is_multiple_of(64) && self.data_len <= 2048);
        self.rings[0].valid(4096) && bodies && self.completions.valid(8192) && data
    }

    /// What was received and not told has taken so many buffers that the driver should post more, or it has none left.
    pub fn is_short(&self) -> bool {
        self.starved || self.taken() >= self.rings[0].size / 2
    }

    /// Completions that were not told.
    pub fn taken(&self) -> u32 {
        let Ring { next, size, .. } = self.completions;
        next.wrapping_add(size).wrapping_sub(self.told) % size.max(1)
    }

    /// Translates its rings.
    pub fn windows<'m>(&self, memory: &'m Map) -> Result<Windows<'m>, Fault> {
        let [heads, bodies] = &self.rings;
        let bodies = if bodies.size == 0 { heads } else { bodies };
        let rings = [heads.window(memory, Rights::READ)?, bodies.window(memory, Rights::READ)?];
        Ok(Windows { rings, completions: self.completions.window(memory, Rights::WRITE)? })
    }

    /// Whether buffers were posted since it refused.
    pub fn has_room(&self, memory: &Map) -> bool {
        let ring = &self.rings[usize::from(self.lacks_bodies)];
        ring.size > 0 && ring.window(memory, Rights::READ).is_ok_and(|window| posted(&window, ring).is_some())
    }

    /// Delivers one packet: whole, or the frames that it is cut into.
    pub fn deliver(
        &mut self,
        windows: &Windows<'_>,
        arrival: &Arrival<'_>,
        setup: &Setup,
        mut wants: Wants,
        cx: &mut Context<'_>,
    ) -> Outcome {
        loop {
            let unfolded = match Unfolded::new(arrival.frames, arrival.pick, wants) {
                Ok(unfolded) => unfolded,
                Err(reason) => return self.lose(reason, cx),
            };
            match self.deliver_pieces(windows, arrival, setup, &unfolded, cx) {
                Ok(()) => return Outcome::Done,
                Err(Stop::NoRoom { bodies, from }) => {
                    self.starved = true;
                    self.lacks_bodies = bodies;
                    self.statistics.lose(LOSS_FIRST);
                    return Outcome::Refused { from };
                }
                // The buffers cannot hold it uncut: as frames they may.
                Err(Stop::Never(_)) if (wants.tcp4 || wants.tcp6) && unfolded.packet().offload.segment.is_some() => {
                    (wants.tcp4, wants.tcp6) = (false, false);
                }
                Err(Stop::Never(reason)) => return self.lose(reason, cx),
            }
        }
    }

    fn lose(&mut self, reason: Reason, cx: &mut Context<'_>) -> Outcome {
        self.statistics.lose(LOSS_SECOND);
        cx.counters.receive_drop(reason);
        Outcome::Done
    }

    fn deliver_pieces(
        &mut self,
        windows: &Windows<'_>,
        arrival: &Arrival<'_>,
        setup: &Setup,
        unfolded: &Unfolded<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Stop> {
        let mut scratch = Scratch::new();
        let mut plan = Plan { slots: ArrayVec::new(), rings: self.rings, from_data: false, passed: 0 };
        let mut lost = None;
        let cut = unfolded.count() > 1;
        let head = arrival.frames.batch.head(unfolded.packet());
        for index in unfolded.wanted() {
            let planned = self.plan(windows, unfolded.len(index), setup.most_pieces, &mut plan);
            // As many as a frame could have taken are usual.
            cx.out.charge(std::mem::take(&mut plan.passed).saturating_sub(PIECES as u32));
            planned.map_err(|miss| match miss {
                Miss::NoRoom { bodies } => Stop::NoRoom { bodies, from: index },
                Miss::Never(reason) => Stop::Never(reason),
            })?;
            let Some(mut piece) = unfolded.piece(index, &mut scratch) else { break };
            let written = write(&plan, &mut piece, cx.memory);
            let checked = written.unwrap_or(Checked::Unknown);
            lost = written.err().or(lost);
            let asked = setup.features & feature::CHECKSUM != 0;
            // A packet no longer than a segment is one piece, and its headers are made as well.
            let made = unfolded.packet().offload.segment.is_some() && piece.offload.segment.is_none();
            let words = words(&piece, flags(piece.layout(), head, made, checked, asked), arrival, written.is_err());
            self.complete(windows, &plan, words, arrival.number, setup.receive);
        }
        let packet = unfolded.packet();
        if let Some(reason) = lost {
            cx.counters.guest_errors += 1;
            self.lose(reason, cx);
            return Ok(());
        }
        let large = !cut && packet.frames() > 1;
        self.statistics.packet(head, packet.frames(), packet.len(), large);
        cx.counters.received(arrival.number, u64::from(packet.frames()), u64::from(packet.len()));
        Ok(())
    }

    /// Finds buffers for a frame of `len` bytes.
    fn plan(&self, windows: &Windows<'_>, len: u32, most: u16, plan: &mut Plan) -> Result<(), Miss> {
        plan.slots.clear();
        (plan.rings, plan.from_data) = (self.rings, false);
        let [heads, bodies] = &windows.rings;
        let head = Self::head(heads, &mut plan.rings[0], &mut plan.passed)?;
        let index = plan.rings[0].next;
        plan.rings[0].advance();
        if len <= u32::from(self.data_len) {
            let address = self.data.wrapping_add(u64::from(index) * u64::from(self.data_len));
            plan.from_data = true;
            plan.slots.push(Slot { ring: 0, index, address, len });
            return Ok(());
        }
        let mut left = len - head.len.min(len);
        plan.slots.push(Slot { ring: 0, index, address: head.address, len: len - left });
        while left > 0 {
            if plan.slots.len() >= usize::from(most).min(PIECES) {
                return Err(Miss::Never(Reason::TooManyPieces));
            }
            let next = posted(heads, &plan.rings[0]);
            let (ring, body) = match (next, posted(bodies, &plan.rings[1])) {
                (Some(body @ Posted { body: true, .. }), _) => (0, body),
                _ if self.rings[1].size > 0 && plan.wraps(&self.rings) => {
                    return Err(Miss::Never(Reason::TooManyPieces));
                }
                (_, Some(body)) if self.rings[1].size > 0 => (1, body),
                // No body will ever come: the heads are too short.
                (Some(_), _) if self.rings[1].size == 0 => return Err(Miss::Never(Reason::TooLong)),
                _ => return Err(Miss::NoRoom { bodies: self.rings[1].size > 0 }),
            };
            let place = &mut plan.rings[usize::from(ring)];
            let used = body.len.min(left);
            plan.slots.push(Slot { ring, index: place.next, address: body.address, len: used });
            place.advance();
            left -= used;
        }
        Ok(())
    }

    /// The next head of ring 0, past unused bodies.
    fn head(window: &Window<'_>, ring: &mut Ring, passed: &mut u32) -> Result<Posted, Miss> {
        for _ in 0..ring.size {
            let next = posted(window, ring).ok_or(Miss::NoRoom { bodies: false })?;
            if !next.body {
                return Ok(next);
            }
            *passed += 1;
            ring.advance();
        }
        Err(Miss::NoRoom { bodies: false })
    }

    /// Gives a frame's buffers to the driver.
    fn complete(&mut self, windows: &Windows<'_>, plan: &Plan, words: Words, number: u16, queues: u16) {
        let last = plan.slots.len().saturating_sub(1);
        for (place, slot) in plan.slots.iter().enumerate() {
            let ring = if plan.from_data { 2 } else { slot.ring };
            let queue = u32::from(number) + u32::from(queues) * u32::from(ring);
            let mut own = words.plain;
            let mut low = slot.index & 0xfff | queue << 16;
            if place == 0 {
                own = words.first;
                low |= 1 << 15;
            }
            let mut len = slot.len & 0x3fff;
            if place == last {
                low |= 1 << 14;
                len |= words.error;
            }
            let [a, b, c, d] = own;
            let at = self.completions.next as usize * 16;
            let low = u128::from(a | low) | u128::from(b) << 32 | u128::from(c | len) << 64;
            windows.completions.write(at, &low.to_le_bytes()[..12]);
            windows.completions.store_u32(at + 12, d | u32::from(self.completions.generation) << 31);
            self.completions.advance();
        }
        self.rings = plan.rings;
    }
}

/// What the completions of a frame have in common.
struct Words {
    /// Of the first: a packet that came uncut says here how it may be cut.
    first: [u32; 4],
    /// Of the others.
    plain: [u32; 4],
    /// Added to the last one's length if the frame is damaged.
    error: u32,
}

fn words(piece: &Piece<'_>, seen: Seen, arrival: &Arrival<'_>, lost: bool) -> Words {
    let tag = piece.tag.map_or(0, |control| 1 << 15 | u32::from(control.0) << 16);
    let hash = arrival.hash;
    let plain = [hash.kind << 26 | seen.unchecked, hash.value, tag, seen.bits | TYPE_PLAIN << 24];
    let mut first = plain;
    if let Some(segment) = piece.offload.segment {
        let payload = piece.len().saturating_sub(u32::from(segment.headers));
        let frames = payload.div_ceil(u32::from(segment.mss).max(1));
        if frames > 1 {
            // Where the hash was: the count of segments. Where a checksum was: their size.
            let mss = u32::from(segment.mss);
            first = [seen.unchecked, frames.min(255), tag, seen.bits | TYPE_LRO << 24 | mss];
        }
    }
    Words { first, plain, error: if lost { 1 << 14 } else { 0 } }
}

/// Writes a frame into its buffers. The reason if they are not there: the frame is lost like one that was damaged on
/// the wire, and an error completion gives the buffers back.
fn write(plan: &Plan, piece: &mut Piece<'_>, memory: &Map) -> Result<Checked, Reason> {
    let mut spans = ArrayVec::<Span, SPANS>::new();
    for slot in plan.slots.iter().filter(|slot| slot.len > 0) {
        let translated = memory.translate(slot.address, slot.len, Rights::WRITE, |span| spans.try_push(span).is_ok());
        translated.map_err(Reason::from)?;
    }
    Ok(piece.write(memory, &spans))
}

impl Plan {
    /// Whether ring 1 has been used up by this plan alone.
    fn wraps(&self, before: &[Ring; 2]) -> bool {
        let [_, now] = &self.rings;
        let [_, then] = before;
        now.next == then.next && now.generation != then.generation
    }
}

/// What a completion says of a frame's protocols and checksums.
struct Seen {
    /// Bits of the fourth word.
    bits: u32,
    /// `cnc` in the first word.
    unchecked: u32,
}

/// `head` is the packet's own; `made`: its headers were made for this piece, and are right.
fn flags(layout: &Layout, head: &[u8], made: bool, checked: Checked, asked: bool) -> Seen {
    const FCS: u32 = 1 << 23;
    let Some(l3) = layout.l3 else { return Seen { bits: FCS, unchecked: 1 << 30 } };
    let v4 = l3.kind == L3Kind::V4;
    let mut bits = FCS | if v4 { 1 << 21 } else { 1 << 20 };
    if l3.fragment != Fragment::Whole {
        return Seen { bits: bits | 1 << 22, unchecked: 1 << 30 };
    }
    bits |= match layout.l4.map(|l4| l4.kind) {
        Some(L4Kind::Tcp) => 1 << 18,
        Some(L4Kind::Udp) => 1 << 17,
        None => 0,
    };
    if !asked || checked == Checked::Unknown || layout.l4.is_none() {
        return Seen { bits, unchecked: 1 << 30 };
    }
    let header = head.get(usize::from(l3.offset)..usize::from(l3.offset + l3.len));
    if v4 && (made || header.is_some_and(|header| checksum::sum(header).verify())) {
        bits |= 1 << 19;
    }
    if checked == Checked::Good {
        bits |= 1 << 16;
    }
    Seen { bits, unchecked: 0 }
}
