//! A transmit ring of Intel's controllers: legacy, data and context descriptors (Intel 317453, 3.3 and 3.4; 82574 datasheet, 7.2)
//! become packets of a batch. Chips from the 82575 on have other data and context descriptors (`igb/transmit.rs`).
//!
//! ```text
//!  63                                   32 31       24 23  20 19                 0
//! | buffer address                                                                |  legacy, data
//! | special (VLAN) | CSS/POPTS | status | command | CSO/type | length             |
//! | TUCSE          | TUCSO     | TUCSS  | IPCSE              | IPCSO  | IPCSS      |  context
//! | MSS            | HDRLEN    | status | command | type 0  | PAYLEN               |
//! ```

use nicety_adapter::{
    Admitted, Batch, Budget, Checksum, Context, Draft, DraftError, ErrorPlace, Offload, Progress, Reason, Segment,
    SegmentKind,
};
use nicety_frame::ethernet::ethertype;
use nicety_frame::{L3Kind, L4Kind, Layout, Tag, Tci, checksum, vlan};
use nicety_memory::{Rights, Window};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::registers::*;
use super::statistics::Statistics;
use super::{DESCRIPTOR, NOWHERE};
use crate::charge::STEPS_PAID;

/// Maximum descriptors after which one call starts no other packet, whatever the ring holds.
const WALK: u32 = 2048;
/// Maximum descriptors of a packet: many may have no bytes. Linux's drivers need some tens.
const PACKET_WALK: u32 = 1024;

/// Bytes of the longest frame of any of these chips, with tags and check sequence (317453, 13.4.22: LPE). Linux's igb_tso counts
/// headers in eight bits; when the count wraps, its MSS field becomes 0xffff, and its packet would leave uncut.
const LONGEST: u32 = 16_384;

/// Expectations of a packet that is refused.
const NO_END: &str = "a descriptor with EOP before the ring is full (command word)";
const OFFSETS: &str =
    "checksum and segmentation fields (context or legacy descriptor) that lie in the frame's own headers";

const EOP: u32 = 1 << 24;
/// Legacy: insert a checksum. Data and context: segment.
const IC_TSE: u32 = 1 << 26;
const TCP: u32 = 1 << 24;
const RS: u32 = 1 << 27;
const RPS: u32 = 1 << 28;
const IDE: u32 = 1 << 31;
const DEXT: u32 = 1 << 29;
const VLE: u32 = 1 << 30;
/// Bits 23:20 of an extended descriptor.
const TYPE: u32 = 0xf << 20;
/// Data, fourth word: take a departure time stamp (82574).
const TS: u32 = 1 << 4;
/// Status: done.
const DD: u8 = 1;

/// A context: parameters of the next packets' offloads (manual, 3.3.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloads {
    ip_start: u8,
    ip_field: u8,
    ip_end: u16,
    start: u8,
    field: u8,
    end: u16,
    tcp: bool,
    headers: u8,
    mss: u16,
}

/// The contexts of the 8254x and the 82574.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classic {
    /// Context for packets that are not segmented.
    plain: Offloads,
    /// Context for segmentation: the chip keeps both.
    segmented: Offloads,
}

/// State of a transmitter. The contexts that a driver has given determine the meaning of its descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transmit<C = Classic> {
    /// The next descriptor to fetch; TDH follows when the batch is complete.
    pub next: u32,
    /// A packet was abandoned: descriptors up to its end are skipped.
    pub skipping: bool,
    /// The contexts.
    pub contexts: C,
}

/// A chip's data and context descriptors.
pub trait Contexts: Copy + std::fmt::Debug + Default + Send + Serialize + DeserializeOwned {
    /// Whether the descriptor is a context.
    fn is_context(descriptor: Descriptor) -> bool;

    /// Bytes of a data descriptor's buffer.
    fn data_len(descriptor: Descriptor) -> u32;

    /// Stores a context.
    fn keep(&mut self, descriptor: Descriptor);

    /// The request in a packet's first data descriptor.
    fn request(&self, first: Descriptor) -> Request;
}

/// A descriptor, in the fields that all kinds share.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// Address of its buffer; the first eight bytes of a context.
    pub address: u64,
    /// Length, kind, command.
    pub lower: u32,
    /// Status, options.
    pub upper: u32,
}

impl Descriptor {
    fn read(ring: &Window<'_>, index: u32) -> Self {
        let bytes: [u8; 16] = ring.read(index as usize * DESCRIPTOR);
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self { address: u64::from(word(4)) << 32 | u64::from(word(0)), lower: word(8), upper: word(12) }
    }

    fn extended(self) -> bool {
        self.lower & DEXT != 0
    }

    fn is_context<C: Contexts>(self) -> bool {
        self.extended() && C::is_context(self)
    }

    /// Bytes of its buffer: 16 bits in a legacy one.
    fn len<C: Contexts>(self) -> u32 {
        if self.extended() { C::data_len(self) } else { self.lower & 0xffff }
    }

    fn context(self) -> Offloads {
        let a = self.address.to_le_bytes();
        let s = self.upper.to_le_bytes();
        Offloads {
            ip_start: a[0],
            ip_field: a[1],
            ip_end: u16::from_le_bytes([a[2], a[3]]),
            start: a[4],
            field: a[5],
            end: u16::from_le_bytes([a[6], a[7]]),
            tcp: self.lower & TCP != 0,
            headers: s[1],
            mss: u16::from_le_bytes([s[2], s[3]]),
        }
    }
}

impl From<Offloads> for Task {
    fn from(offloads: Offloads) -> Self {
        let Offloads { ip_start, ip_field, ip_end: _, start, field, end, tcp, headers, mss } = offloads;
        Self {
            ip_start: ip_start.into(),
            ip_field: ip_field.into(),
            start: start.into(),
            field: field.into(),
            end,
            tcp,
            headers: headers.into(),
            mss,
        }
    }
}

impl Contexts for Classic {
    fn is_context(descriptor: Descriptor) -> bool {
        descriptor.lower & TYPE == 0
    }

    fn data_len(descriptor: Descriptor) -> u32 {
        descriptor.lower & 0xf_ffff
    }

    fn keep(&mut self, descriptor: Descriptor) {
        *(if descriptor.lower & IC_TSE != 0 { &mut self.segmented } else { &mut self.plain }) = descriptor.context();
    }

    fn request(&self, first: Descriptor) -> Request {
        let segment = first.lower & IC_TSE != 0;
        let options = (first.upper >> 8) as u8;
        Request {
            segment,
            ip_checksum: options & 1 != 0,
            checksum: options & 2 != 0,
            task: if segment { self.segmented } else { self.plain }.into(),
            tag: (first.lower & VLE != 0).then_some((first.upper >> 16) as u16),
            stamp: first.upper & TS != 0,
        }
    }
}

/// Result of a walk over one packet.
enum Walk {
    /// The packet is in the batch.
    Taken(u32),
    /// Its last descriptor is not there yet.
    Partial,
    /// The batch has no room for it now.
    Full,
    /// The packet was dropped, and counted.
    Dropped,
}

/// Places of a packet's checksums, and its segmentation. Offsets are from its first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// First byte of the IP header.
    pub ip_start: u16,
    /// Offset of its checksum field.
    pub ip_field: u16,
    /// First byte that the transport checksum covers.
    pub start: u16,
    /// Offset of its field.
    pub field: u16,
    /// Last byte that it covers; 0: the packet's last.
    pub end: u16,
    /// Segment TCP, not UDP.
    pub tcp: bool,
    /// Bytes of all headers.
    pub headers: u16,
    /// Payload bytes of a segment.
    pub mss: u16,
}

/// Request of a packet's first descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Segment the packet.
    pub segment: bool,
    /// Compute the IPv4 header's checksum.
    pub ip_checksum: bool,
    /// Compute the transport checksum.
    pub checksum: bool,
    /// Places for it.
    pub task: Task,
    /// Tag to insert.
    pub tag: Option<u16>,
    /// Take a departure time stamp.
    pub stamp: bool,
}

/// Size in descriptors and first address of a transmit ring.
pub fn ring(registers: &Bank, queue: usize) -> (u32, u64) {
    let of = |name| registers.of(name).get(queue).copied().unwrap_or(0);
    (of(TDLEN) / DESCRIPTOR as u32, u64::from(of(TDBAH)) << 32 | u64::from(of(TDBAL)))
}

/// One transmit queue, during one call.
#[derive(Debug)]
pub struct Sender<'a, C> {
    /// Number of the queue.
    pub queue: usize,
    /// Its state.
    pub state: &'a mut Transmit<C>,
    /// The chip's registers.
    pub registers: &'a mut Bank,
    /// Frames can be sent.
    pub link_up: bool,
    /// Frames return to this adapter only.
    pub looped: bool,
    /// Tags are inserted only while CTRL.VME is set.
    pub tags_by_mode: bool,
    /// The batch has a packet that requests a departure time stamp.
    pub stamped: bool,
    /// A ring without a length has one descriptor, sent once for each write of 1 to TDT.
    pub takes_lone: bool,
    /// Frames with the tag of a VLAN that is not in VFTA are dropped: a card's check of a virtual function (82599 datasheet, "VLAN
    /// anti-spoofing").
    pub checks_tags: bool,
    /// Descriptors walked in this call.
    pub walked: u32,
}

/// Completed descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// At least one descriptor is completed.
    pub any: bool,
    /// Their number.
    pub descriptors: u32,
    /// Descriptors whose driver requested a report.
    pub reported: u32,
    /// All of these may wait for an interrupt.
    pub delayed: bool,
    /// The ring is empty now.
    pub empty: bool,
}

impl<C: Contexts> Sender<'_, C> {
    fn register(&self, name: Reg) -> u32 {
        self.registers.of(name).get(self.queue).copied().unwrap_or(0)
    }

    /// Whether the ring is a lone descriptor. Positions are 0 and 1 then, and completion takes TDT back to 0.
    fn is_lone(&self) -> bool {
        self.takes_lone && self.register(TDLEN) == 0 && self.register(TDT) == 1
    }

    /// Number of the ring's positions, its address, and its bytes.
    fn place(&self) -> (u32, u64, u32) {
        let (size, base) = ring(self.registers, self.queue);
        if self.is_lone() { (2, base, DESCRIPTOR as u32) } else { (size, base, size * DESCRIPTOR as u32) }
    }

    /// Walks the ring into a batch. Returns the progress, and why the ring cannot be walked.
    pub fn walk(
        &mut self,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> (Progress, Option<&'static str>) {
        let idle = Progress { more: false, armed: true };
        let (size, base, bytes) = self.place();
        let tail = self.register(TDT);
        if self.state.next == tail {
            return (idle, None);
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let ring = memory.window(base, bytes, Rights::READ);
        let placed = self.state.next < size && tail < size;
        let (Ok(ring), true) = (&ring, placed) else {
            self.blame_ring(ring.is_ok(), size, base, cx);
            let why = if ring.is_err() { NOWHERE } else { super::fault::OUTSIDE };
            return (idle, Some(why));
        };
        let progress = self.walk_ring(ring, size, budget, batch, cx);
        cx.out.charge(self.walked.saturating_sub(STEPS_PAID * batch.len() as u32));
        (progress, None)
    }

    fn walk_ring(
        &mut self,
        ring: &Window<'_>,
        size: u32,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Progress {
        let idle = Progress { more: false, armed: true };
        let tail = self.register(TDT);
        while self.state.next != tail {
            if self.walked >= WALK || !budget.allows(batch) {
                return Progress { more: true, armed: false };
            }
            let next = self.state.next;
            let first = Descriptor::read(ring, next);
            let after = if next + 1 == size { 0 } else { next + 1 };
            if self.state.skipping || first.is_context::<C>() {
                self.walked += 1;
                if first.is_context::<C>() {
                    self.state.contexts.keep(first);
                } else {
                    self.state.skipping = first.lower & EOP == 0;
                }
                self.state.next = after;
                continue;
            }
            match self.take_packet(ring, size, first, batch, cx) {
                Walk::Taken(end) => self.state.next = end,
                Walk::Partial if (tail + size - next) % size < size - 1 => return idle,
                Walk::Full => return Progress { more: true, armed: false },
                // A ring full of one packet without an end would never advance again.
                Walk::Partial => {
                    self.dropped(Reason::BadDescriptor, next, first.lower.into(), Some(NO_END), cx);
                    self.state.skipping = true;
                }
                Walk::Dropped => self.state.skipping = true,
            }
        }
        idle
    }

    /// Counts a dropped packet, and notes its driver's mistake: the descriptor, and the value found there.
    #[cold]
    fn dropped(
        &self,
        reason: Reason,
        at: u32,
        value: u64,
        expected: Option<&'static str>,
        cx: &mut Context<'_>,
    ) -> Walk {
        cx.drop_transmit(reason, ErrorPlace::transmit(self.queue as u16, at), value, expected);
        Walk::Dropped
    }

    /// Notes that a ring cannot be walked: it is not `within` memory, or a position lies beyond its end.
    #[cold]
    fn blame_ring(&self, within: bool, size: u32, base: u64, cx: &mut Context<'_>) {
        let tail = self.register(TDT);
        let (name, value, expected) = match within {
            false => (TDBAL, base, super::TRANSMIT_RING_EXPECTED),
            true if tail >= size => (TDT, tail.into(), "a tail within the ring (TDT below TDLEN / 16)"),
            true => (TDH, self.state.next.into(), "a head within the ring (TDH below TDLEN / 16)"),
        };
        cx.guest_error(self.registers.table().error_place(name, self.queue), value, expected);
    }

    fn request(&self, first: Descriptor) -> Request {
        let mut request = if first.extended() {
            self.state.contexts.request(first)
        } else {
            // Legacy: CSS is in the options field, CSO in the type field.
            let (start, field) = (u16::from((first.upper >> 8) as u8), u16::from((first.lower >> 16) as u8));
            Request {
                checksum: first.lower & IC_TSE != 0,
                task: Task { start, field, ..Task::default() },
                tag: (first.lower & VLE != 0).then_some((first.upper >> 16) as u16),
                ..Request::default()
            }
        };
        request.tag = request.tag.filter(|_| !self.tags_by_mode || self.registers[CTRL] & ctrl::VME != 0);
        request
    }

    /// Takes one packet, from its first descriptor to the one with EOP.
    fn take_packet(
        &mut self,
        ring: &Window<'_>,
        size: u32,
        first: Descriptor,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Walk {
        let before = self.walked;
        let request = self.request(first);
        let tail = self.register(TDT);
        let was_empty = batch.is_empty();
        let Task { headers, field, ip_field, .. } = request.task;
        let head = usize::from(headers).max(usize::from(field) + 2).max(usize::from(ip_field) + 2);
        let Some(mut draft) = batch.draft(head) else { return Walk::Full };
        let (mut at, mut descriptor) = (self.state.next, first);
        loop {
            match draft.push(descriptor.address, if descriptor.is_context::<C>() { 0 } else { descriptor.len::<C>() }) {
                Ok(()) => {}
                Err(DraftError::BatchFull) if !was_empty => return Walk::Full,
                Err(error) => return self.dropped(error.into(), at, descriptor.address, None, cx),
            }
            self.walked += 1;
            at = if at + 1 == size { 0 } else { at + 1 };
            if descriptor.lower & EOP != 0 && !descriptor.is_context::<C>() {
                break;
            }
            if at == tail {
                return Walk::Partial;
            }
            if self.walked - before >= PACKET_WALK {
                return self.dropped(Reason::TooManyPieces, at, descriptor.lower.into(), None, cx);
            }
            descriptor = Descriptor::read(ring, at);
        }
        if !self.looped && !self.link_up {
            return self.dropped(Reason::LinkDown, at, 0, None, cx);
        }
        if draft.len() < 14 {
            return self.dropped(Reason::TooShort, self.state.next, draft.len().into(), None, cx);
        }
        if self.registers[TCTL] & tctl::PSP != 0 {
            draft.pad_to(60);
        }
        let Some(admitted) = self.admit(&mut draft, &request) else {
            self.registers.count(TSCTFC, request.segment.into());
            let asked = u64::from(first.upper) << 32 | u64::from(first.lower);
            return self.dropped(Reason::BadOffload, self.state.next, asked, Some(OFFSETS), cx);
        };
        if self.checks_tags && !self.may_tag(draft.head_mut()) {
            return self.dropped(Reason::Forged, self.state.next, 0, None, cx);
        }
        self.finish(draft, admitted, request, cx);
        Walk::Taken(at)
    }

    /// Whether a frame has no tag, or that of a VLAN in VFTA. The VLAN is that of the first tag that is not of VLAN 0: whoever receives
    /// the frame takes those before it off (IEEE 802.1Q-2018, 6.9.1; Linux: vlan_do_receive). A driver can ask for no service VLAN.
    #[inline(never)]
    fn may_tag(&self, head: &[u8]) -> bool {
        let Some(tag) = vlan::stack(head).find(|tag| tag.tci.id() != 0) else {
            // A head of nothing but tags may have another one behind it.
            return vlan::stack(head).count() < (head.len() - vlan::TAG_OFFSET) / vlan::TAG_LEN;
        };
        let id = tag.tci.id();
        let is_granted =
            || self.registers.of(VFTA).get(usize::from(id >> 5)).is_some_and(|word| word >> (id & 31) & 1 != 0);
        tag.tpid == ethertype::VLAN && is_granted()
    }

    /// Inserts the tag, and checks the descriptors' request against the packet.
    fn admit(&self, draft: &mut Draft<'_>, request: &Request) -> Option<Admitted> {
        let mut offload = offload(draft, request)?;
        if let Some(control) = request.tag
            && draft.tag(Tag { tpid: self.registers[VET] as u16, tci: Tci(control) })
        {
            offload = offload.behind_tag();
        }
        draft.admit(offload).ok()
    }

    fn finish(&mut self, mut draft: Draft<'_>, admitted: Admitted, request: Request, cx: &mut Context<'_>) {
        let mut destination = [0; 6];
        destination.copy_from_slice(&draft.head_mut()[..6]);
        let (offload, len) = (admitted.offload(), draft.len());
        let (frames, full, last) = match offload.segment {
            Some(segment) => {
                let (frames, mss) = (segment.frames(len), u32::from(segment.mss));
                (frames, u32::from(segment.headers) + mss, len - (frames - 1) * mss)
            }
            None => (1, len, len),
        };
        if offload.segment.is_some() {
            self.registers.count(TSCTC, 1);
        }
        self.registers.count_sent(&destination, frames, full, last);
        if !self.looped {
            cx.counters.sent(self.queue as u16, u64::from(frames), u64::from(len));
        }
        self.stamped |= request.stamp;
        draft.finish_admitted(admitted, 0);
    }

    fn set_head(&mut self, head: u32) {
        if let Some(register) = self.registers.of_mut(TDH).get_mut(self.queue) {
            *register = head;
        }
    }

    /// Returns the lone descriptor to the driver.
    fn begin_lone(&mut self) {
        self.set_head(0);
        self.state.next = 0;
        if let Some(tail) = self.registers.of_mut(TDT).get_mut(self.queue) {
            *tail = 0;
        }
    }

    /// Completes fetched descriptors.
    pub fn give_back(&mut self, cx: &mut Context<'_>) -> Completed {
        let (size, base, bytes) = self.place();
        let (mut at, next) = (self.register(TDH), self.state.next);
        if at == next {
            return Completed::default();
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let ring = memory.window(base, bytes, Rights::BOTH);
        let within = ring.is_ok();
        let (Ok(ring), true) = (ring, at < size && next < size) else {
            self.blame_ring(within, size, base, cx);
            self.set_head(next);
            return Completed::default();
        };
        let (mut descriptors, mut reported, mut delayed) = (0, 0, true);
        while at != next {
            let place = at as usize * DESCRIPTOR;
            let command = ring.load_u32(place + 8);
            descriptors += 1;
            if command & (RS | RPS) != 0 {
                ring.store_u8(place + 12, DD);
                reported += 1;
                delayed &= command & IDE != 0;
            }
            at = if at + 1 == size { 0 } else { at + 1 };
        }
        let empty = next == self.register(TDT);
        if self.is_lone() {
            self.begin_lone();
        } else {
            self.set_head(next);
        }
        Completed { any: true, descriptors, reported, delayed, empty }
    }
}

/// Performs the offloads that concern the head, and returns the rest as a neutral offload. `None` if the request is invalid.
fn offload(draft: &mut Draft<'_>, request: &Request) -> Option<Offload> {
    let task = &request.task;
    if request.segment {
        return segment(draft, task);
    }
    let len = draft.len();
    if request.ip_checksum {
        make_header_checksum(draft.head_mut(), task)?;
    }
    if !request.checksum {
        return Some(Offload::default());
    }
    let Task { start, field, end, .. } = *task;
    // TUCSE of 0 means the packet's end. Padding after it adds nothing to the sum.
    let whole = end == 0 || u32::from(end) + 1 >= len;
    whole.then_some(Offload { checksum: Checksum::Partial { start, field }, segment: None })
}

/// Computes the checksum of the IPv4 header that the parser finds; `None` if the request has another offset. The header's own end
/// counts: FreeBSD's if_em.c (em_transmit_checksum_setup) gives an IPCSE one byte after it.
fn make_header_checksum(head: &mut [u8], task: &Task) -> Option<()> {
    let l3 = Layout::parse(head).l3.filter(|l3| l3.kind == L3Kind::V4 && l3.offset == task.ip_start)?;
    let (at, field) = (usize::from(l3.offset), usize::from(task.ip_field));
    let sum = checksum::sum(head.get(at..at + usize::from(l3.len))?).checksum();
    let named = head.get_mut(field..field + 2).filter(|_| field == at + 10)?;
    named.copy_from_slice(&sum.to_be_bytes());
    Some(())
}

/// A packet to be segmented. Drivers leave its length fields at 0 (e1000_tso in Linux's e1000_main.c) and its pseudo-header without
/// a length. Here they become the whole packet's, the form in which the switch has all packets.
fn segment(draft: &mut Draft<'_>, task: &Task) -> Option<Offload> {
    let len = draft.len();
    let head = draft.head_mut();
    let layout = Layout::parse(head);
    let (l3, l4) = (layout.l3?, layout.l4?);
    let kind = match (task.tcp, l4.kind) {
        (true, L4Kind::Tcp) => SegmentKind::Tcp,
        (false, L4Kind::Udp) => SegmentKind::Udp,
        _ => return None,
    };
    let segment = Segment::of(kind, task.mss, layout.headers_len, len)?;
    let frame = u32::from(task.headers) + u32::from(task.mss);
    if task.headers != layout.headers_len || len < u32::from(layout.headers_len) || frame > LONGEST {
        return None;
    }
    let (ip, transport) = (usize::from(l3.offset), usize::from(l4.offset));
    // Segmentation ignores a length that does not fit in 16 bits.
    let below = |from: usize| u16::try_from(len as usize - from).unwrap_or(u16::MAX);
    let (at, value) = match l3.kind {
        L3Kind::V4 => (ip + 2, below(ip)),
        L3Kind::V6 => (ip + 4, below(ip + 40)),
    };
    head.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    if l3.kind == L3Kind::V4 {
        head.get_mut(ip + 10..ip + 12)?.fill(0);
        let sum = checksum::sum(head.get(ip..ip + usize::from(l3.len))?).checksum();
        head.get_mut(ip + 10..ip + 12)?.copy_from_slice(&sum.to_be_bytes());
    }
    if kind == SegmentKind::Udp {
        head.get_mut(transport + 4..transport + 6)?.copy_from_slice(&below(transport).to_be_bytes());
    }
    let partial = checksum::pseudo(head, &layout, len - l4.offset as u32)?.fold();
    let field = l4.checksum_at();
    head.get_mut(field..field + 2)?.copy_from_slice(&partial.to_be_bytes());
    let checksum = Checksum::Partial { start: l4.offset, field: field as u16 };
    Some(Offload { checksum, segment: Some(segment) })
}
