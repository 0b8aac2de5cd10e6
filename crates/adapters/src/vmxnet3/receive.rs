//! Receive: packets into posted buffers, with completions (`struct Vmxnet3_RxDesc`, `Vmxnet3_RxCompDesc`,
//! `Vmxnet3_RxCompDescExt`).
//!
//! A packet starts in a *head* buffer of ring 0. The rest goes into *body* buffers: those after it in ring 0 if there are any
//! (version 6 and earlier with a large MTU), else those of ring 1. Body buffers of ring 0 that the previous packet did not need are
//! skipped; drivers accept that (`vmxnet3_rq_rx_complete`: "device may have skipped some rx descs"). A small packet goes to the
//! data ring's entry instead of the head buffer.

use arrayvec::ArrayVec;
use nicety_adapter::interrupts::ReceiveModeration;
use nicety_adapter::{Checked, Context, ErrorPlace, Frames, Pick, Piece, Reason, Scratch, Short, Unfolded, Wants};
use nicety_frame::{Fragment, L3Kind, L4Kind, Layout, checksum, ethernet::ethertype};
use nicety_memory::{Fault, Map, Rights, Span, Translator, Window};
use serde::{Deserialize, Serialize};

use super::registers::feature;
use super::rss::Hash;
use super::shared::{PIECES, ReceiveConf, Ring, Setup};
use super::statistics::{LOSS_FIRST, LOSS_SECOND, Statistics};

/// Maximum spans of one piece: its buffers, and a margin for buffers across memory regions.
const SPANS: usize = 2 * PIECES;
/// Completion types.
const TYPE_PLAIN: u32 = 3;
const TYPE_LRO: u32 = 4;
/// Minimum size of ring 1 for uncut packets: it must hold the largest packet.
const BODIES_FOR_LRO: u32 = 32;

/// A receive queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiveQueue {
    pub rings: [Ring; 2],
    pub completions: Ring,
    pub data: u64,
    pub data_len: u16,
    pub vector: u8,
    /// Address of its queue descriptor.
    pub at: u64,
    /// VMXNET3_ERR_*; 0 while the queue runs.
    pub error: u32,
    pub statistics: Statistics,
    /// A packet was refused, and room has not been reported since.
    pub starved: bool,
    /// The last refusal was for lack of body buffers.
    pub lacks_bodies: bool,
    /// The driver leaves interrupt moderation to the device.
    pub moderated: bool,
    /// Time of the next allowed interrupt, with moderation.
    pub moderation: ReceiveModeration,
    /// Completion index at the last interrupt.
    pub signalled_index: u32,
}

/// The queue's rings, translated for one call.
pub struct Windows<'m> {
    rings: [Window<'m>; 2],
    completions: Window<'m>,
    targets: Translator<'m>,
}

/// One packet as it arrives at one queue.
pub struct Arrival<'a> {
    /// The frames it belongs to.
    pub frames: &'a Frames<'a>,
    /// Its pick.
    pub pick: Pick,
    /// Its hash.
    pub hash: Hash,
    /// The queue's number.
    pub number: u16,
}

/// Result of a packet's delivery.
pub enum Outcome {
    /// Accepted, or dropped and counted.
    Done,
    /// No room for this frame of the packet, nor for those after it.
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

/// Buffers for a frame.
struct Plan {
    slots: ArrayVec<Slot, PIECES>,
    rings: [Ring; 2],
    from_data: bool,
    /// Body buffers skipped before the head.
    passed: u32,
}

/// Why no plan was possible.
enum Miss {
    /// No room yet: head or body buffers are lacking.
    NoRoom { bodies: bool },
    /// These rings can never hold the frame.
    Never(Reason),
}

/// The same for a packet, with its frame `from`.
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

/// Offloads that the driver of this device accepts.
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
    /// State after ACTIVATE_DEV.
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
            signalled_index: 0,
        }
    }

    /// Whether saved state is valid.
    pub fn valid(&self) -> bool {
        let bodies = self.rings[1].size == 0 || self.rings[1].valid(4096);
        let data = self.data_len == 0 || (self.data_len.is_multiple_of(64) && self.data_len <= 2048);
        self.rings[0].valid(4096) && bodies && self.completions.valid(8192) && data
    }

    /// Unsignalled completions use so many buffers that the driver should post more, or no buffer is left.
    pub fn is_short(&self) -> bool {
        self.starved || self.taken() >= self.rings[0].size / 2
    }

    /// Unsignalled completions.
    pub fn taken(&self) -> u32 {
        let Ring { next, size, .. } = self.completions;
        next.wrapping_add(size).wrapping_sub(self.signalled_index) % size.max(1)
    }

    /// Translates its rings.
    pub fn windows<'m>(&self, memory: &'m Map) -> Result<Windows<'m>, Fault> {
        let [heads, bodies] = &self.rings;
        let bodies = if bodies.size == 0 { heads } else { bodies };
        let rings = [heads.window(memory, Rights::READ)?, bodies.window(memory, Rights::READ)?];
        let completions = self.completions.window(memory, Rights::WRITE)?;
        Ok(Windows { rings, completions, targets: Translator::new(memory) })
    }

    /// Whether buffers were posted since the refusal.
    pub fn has_room(&self, memory: &Map) -> bool {
        let ring = &self.rings[usize::from(self.lacks_bodies)];
        ring.size > 0 && ring.window(memory, Rights::READ).is_ok_and(|window| posted(&window, ring).is_some())
    }

    /// Delivers one packet, whole or segmented into frames.
    pub fn deliver(
        &mut self,
        windows: &mut Windows<'_>,
        arrival: &Arrival<'_>,
        setup: &Setup,
        wants: Wants,
        cx: &mut Context<'_>,
    ) -> Outcome {
        match self.deliver_short(windows, arrival, setup, &wants, cx) {
            Some(()) => Outcome::Done,
            None => self.deliver_unfolded(windows, arrival, setup, wants, cx),
        }
    }

    /// Delivers a short frame that nothing changes to one buffer, as most are. `None` if it must be unfolded: then nothing has changed.
    #[inline]
    fn deliver_short(
        &mut self,
        windows: &mut Windows<'_>,
        arrival: &Arrival<'_>,
        setup: &Setup,
        wants: &Wants,
        cx: &mut Context<'_>,
    ) -> Option<()> {
        let frame = Short::of(arrival.frames, arrival.pick, wants)?;
        let [heads, _] = &windows.rings;
        let head = posted(heads, &self.rings[0]).filter(|head| !head.body)?;
        let (index, len) = (self.rings[0].next, frame.bytes().len() as u32);
        let is_data = len <= u32::from(self.data_len);
        let address = if is_data { self.data_at(index) } else { head.address };
        if !is_data && len > head.len || !windows.targets.target(address, len)?.write::<0>(0, frame.bytes()) {
            return None;
        }
        let (packet, hash) = (frame.packet(), arrival.hash);
        let asked = setup.features & feature::CHECKSUM != 0;
        let layout = arrival.frames.batch.layout(packet);
        let seen = flags(layout, frame.bytes(), false, frame.checked(), asked);
        let queue = u32::from(arrival.number) + if is_data { 2 * u32::from(setup.receive) } else { 0 };
        let low = index & 0xfff | queue << 16 | 1 << 15 | 1 << 14;
        let words = [hash.kind << 26 | seen.unchecked | low, hash.value, len & 0x3fff, seen.bits | TYPE_PLAIN << 24];
        self.complete_one(windows, words);
        self.rings[0].advance();
        self.statistics.packet(frame.bytes(), 1, len, false);
        cx.counters.received(arrival.number, 1, len.into());
        Some(())
    }

    /// Delivers one packet of any kind.
    #[inline(always)]
    fn deliver_unfolded(
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
                // The buffers cannot hold it uncut. They may hold its frames.
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
            // Skipping as many buffers as a frame may use is normal, and is not charged.
            cx.out.charge(std::mem::take(&mut plan.passed).saturating_sub(PIECES as u32));
            planned.map_err(|miss| match miss {
                Miss::NoRoom { bodies } => Stop::NoRoom { bodies, from: index },
                Miss::Never(reason) => Stop::Never(reason),
            })?;
            let Some(mut piece) = unfolded.piece(index, &mut scratch) else { break };
            let written = write(&plan, &mut piece, cx.memory);
            let checked = written.unwrap_or(Checked::Unknown);
            if let Err(reason) = written {
                if lost.is_none() {
                    plan.blame(arrival.number, cx);
                }
                lost = Some(reason);
            }
            let asked = setup.features & feature::CHECKSUM != 0;
            // A packet no longer than one segment is a single piece; its headers were completed as well.
            let made = unfolded.packet().offload.segment.is_some() && piece.offload.segment.is_none();
            let words = words(&piece, flags(piece.layout(), head, made, checked, asked), arrival, written.is_err());
            self.complete(windows, &plan, words, arrival.number, setup.receive);
        }
        let packet = unfolded.packet();
        if let Some(reason) = lost {
            self.lose(reason, cx);
            return Ok(());
        }
        let large = !cut && packet.frames() > 1;
        self.statistics.packet(head, packet.frames(), packet.len(), large);
        cx.counters.received(arrival.number, u64::from(packet.frames()), u64::from(packet.len()));
        Ok(())
    }

    /// Address of an entry of the data ring.
    fn data_at(&self, index: u32) -> u64 {
        self.data.wrapping_add(u64::from(index) * u64::from(self.data_len))
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
            let address = self.data_at(index);
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
                // No body buffer will ever come: the heads are too short.
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

    /// The next head buffer of ring 0, after skipped body buffers.
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

    /// Completes a frame's buffers.
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
            self.complete_one(windows, [a | low, b, c | len, d]);
        }
        self.rings = plan.rings;
    }

    /// Writes a completion, with its generation last.
    #[inline]
    fn complete_one(&mut self, windows: &Windows<'_>, [a, b, c, d]: [u32; 4]) {
        let at = self.completions.next as usize * 16;
        let last = d | u32::from(self.completions.generation) << 31;
        windows.completions.write_u64(at, u64::from(a) | u64::from(b) << 32);
        windows.completions.store_u64(at + 8, u64::from(c) | u64::from(last) << 32);
        self.completions.advance();
    }
}

/// Words shared by the completions of a frame.
struct Words {
    /// The words of the first completion: for an uncut packet it has the segmentation data.
    first: [u32; 4],
    /// The words of the other completions.
    plain: [u32; 4],
    /// Added to the last completion's length if the frame is damaged.
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
            // The hash field has the count of segments; the checksum field has their size.
            let mss = u32::from(segment.mss);
            first = [seen.unchecked, frames.min(255), tag, seen.bits | TYPE_LRO << 24 | mss];
        }
    }
    Words { first, plain, error: if lost { 1 << 14 } else { 0 } }
}

/// Writes a frame into its buffers. If they are not in memory, returns the reason: the frame is lost like one damaged on the wire,
/// and an error completion returns the buffers.
fn write(plan: &Plan, piece: &mut Piece<'_>, memory: &Map) -> Result<Checked, Reason> {
    let mut spans = ArrayVec::<Span, SPANS>::new();
    for slot in plan.slots.iter().filter(|slot| slot.len > 0) {
        let translated = memory.translate(slot.address, slot.len, Rights::WRITE, |span| spans.try_push(span).is_ok());
        translated.map_err(Reason::from)?;
    }
    Ok(piece.write(memory, &spans))
}

impl Plan {
    /// Notes the buffer that is in no memory.
    #[cold]
    fn blame(&self, queue: u16, cx: &mut Context<'_>) {
        let is_bad = |slot: &&Slot| {
            slot.len > 0 && cx.memory.translate(slot.address, slot.len, Rights::WRITE, |_| true).is_err()
        };
        let bad = self.slots.iter().find(is_bad).or(self.slots.first());
        let (ring, index, address) = bad.map_or((0, 0, 0), |slot| (slot.ring, slot.index, slot.address));
        let expected = match (self.from_data, ring) {
            (true, _) => "a receive data ring in guest memory that the device may write (rxDataRingBasePA)",
            (false, 0) => "a buffer of ring 1 in guest memory that the device may write",
            (false, _) => "a buffer of ring 2 in guest memory that the device may write",
        };
        cx.guest_error(ErrorPlace::receive(queue, index), address, expected);
    }

    /// Whether this plan alone has used up ring 1.
    fn wraps(&self, before: &[Ring; 2]) -> bool {
        let [_, now] = &self.rings;
        let [_, then] = before;
        now.next == then.next && now.generation != then.generation
    }
}

/// Protocol and checksum fields of a completion.
struct Seen {
    /// Bits of the fourth word.
    bits: u32,
    /// `cnc` in the first word.
    unchecked: u32,
}

/// `head` is the packet's own; `made`: the headers were made for this piece, and are correct.
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
