//! The transmit ring: legacy, data and context descriptors (manual, 3.3 and 3.4), into packets of a batch.
//!
//! ```text
//!  63                                   32 31       24 23  20 19                 0
//! | buffer address                                                                |  legacy, data
//! | special (VLAN) | CSS/POPTS | status | command | CSO/type | length             |
//! | TUCSE          | TUCSO     | TUCSS  | IPCSE              | IPCSO  | IPCSS      |  context
//! | MSS            | HDRLEN    | status | command | type 0  | PAYLEN               |
//! ```

use nicety_adapter::{
    Batch, Budget, Checksum, Context, Draft, DraftError, Frames, Offload, Pick, PortId, Progress, Reason, Segment,
    SegmentKind,
};
use nicety_frame::{L3Kind, L4Kind, Layout, checksum};
use nicety_memory::{Fault, Rights, Window};
use serde::{Deserialize, Serialize};

use super::registers::{self as r, cause, ctrl, rctl, tctl};
use super::{DESCRIPTOR, E1000, NOWHERE, TRANSMIT_RING};

/// Descriptors that one call walks at most, whatever the ring says.
const WALK: usize = 2048;

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
/// Status: done.
const DD: u8 = 1;

/// A context: what the next packets' offloads mean (manual, 3.3.6).
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

/// Where the transmitter stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transmit {
    /// The next descriptor to fetch; TDH follows when the batch is complete.
    pub next: u32,
    /// A packet was given up: descriptors up to its end go unused.
    pub skipping: bool,
    /// Context for packets that are not segmented.
    plain: Offloads,
    /// Context for segmentation: the chip keeps both.
    segmented: Offloads,
}

/// A descriptor, in the fields that all kinds share.
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    lower: u32,
    upper: u32,
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

    fn is_context(self) -> bool {
        self.extended() && self.lower & TYPE == 0
    }

    /// Bytes of its buffer: 20 bits in a data descriptor, 16 in a legacy one.
    fn len(self) -> u32 {
        self.lower & if self.extended() { 0xf_ffff } else { 0xffff }
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

/// How a walk over one packet ended.
enum Walk {
    /// It is in the batch.
    Taken(u32),
    /// Its last descriptor is not there yet.
    Partial,
    /// The batch has no room for it now.
    Full,
    /// It goes nowhere.
    Dropped(Reason),
}

/// What the first descriptor of a packet asks for.
#[derive(Clone, Copy)]
struct Request {
    segment: bool,
    ip_checksum: bool,
    checksum: bool,
    offloads: Offloads,
    tag: Option<u16>,
}

impl E1000 {
    /// Ring size in descriptors and first address.
    pub(super) fn transmit_ring(&self) -> (u32, u64) {
        let base = u64::from(self.registers[r::TDBAH]) << 32 | u64::from(self.registers[r::TDBAL]);
        (self.registers[r::TDLEN] / DESCRIPTOR as u32, base)
    }

    /// Whether transmitted frames come back to this adapter and go nowhere else.
    pub(super) fn loops(&self) -> bool {
        self.phy.loops() || self.registers[r::RCTL] & rctl::LBM != 0
    }

    /// Has a private batch ready before the first frame of a loopback.
    pub(super) fn prepare_loopback(&mut self) {
        if self.loops() && self.looped.is_none() {
            self.looped = Some(Box::default());
        }
    }

    /// Walks the ring into a batch; in loopback into a private one, which is received at once.
    pub(super) fn fetch_ring(&mut self, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.show_line(cx);
        let idle = Progress { more: false, armed: true };
        if self.registers[r::TCTL] & tctl::EN == 0 || !self.function.bus_master() {
            return idle;
        }
        let own = if self.loops() { self.looped.take() } else { None };
        let Some(mut own) = own else {
            let progress = self.walk_ring(budget, batch, false, cx);
            batch.generation = self.generation;
            if batch.is_empty() {
                self.give_back(cx);
            }
            return progress;
        };
        own.start(cx.memory, PortId::default(), 0);
        let progress = self.walk_ring(budget, &mut own, true, cx);
        let mut picks = [Pick { packet: 0, edit: nicety_adapter::Edit::Keep }; nicety_adapter::PACKETS];
        for (pick, packet) in picks.iter_mut().zip(0..) {
            pick.packet = packet;
        }
        let frames = Frames { batch: &own, picks: picks.get(..own.len()).unwrap_or_default() };
        self.receive_looped(&frames, cx);
        own.release();
        self.looped = Some(own);
        self.give_back(cx);
        progress
    }

    fn walk_ring(&mut self, budget: Budget, batch: &mut Batch, looped: bool, cx: &mut Context<'_>) -> Progress {
        let idle = Progress { more: false, armed: true };
        let (size, base) = self.transmit_ring();
        let tail = self.registers[r::TDT];
        if self.transmit.next == tail {
            self.saw_ring(TRANSMIT_RING, None, cx);
            return idle;
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let ring = memory.window(base, size * DESCRIPTOR as u32, Rights::READ);
        let placed = self.transmit.next < size && tail < size;
        let (Ok(ring), true) = (&ring, placed) else {
            cx.counters.guest_errors += 1;
            let why = if ring.is_err() { NOWHERE } else { "its head or tail lies beyond its end" };
            self.saw_ring(TRANSMIT_RING, Some(why), cx);
            return idle;
        };
        self.saw_ring(TRANSMIT_RING, None, cx);
        let mut walked = 0;
        while self.transmit.next != tail {
            if walked >= WALK || !budget.allows(batch) {
                return Progress { more: true, armed: false };
            }
            let next = self.transmit.next;
            let first = Descriptor::read(ring, next);
            let after = if next + 1 == size { 0 } else { next + 1 };
            if self.transmit.skipping || first.is_context() {
                walked += 1;
                if first.is_context() {
                    let kind = &mut self.transmit;
                    *(if first.lower & IC_TSE != 0 { &mut kind.segmented } else { &mut kind.plain }) = first.context();
                } else {
                    self.transmit.skipping = first.lower & EOP == 0;
                }
                self.transmit.next = after;
                continue;
            }
            match self.take_packet(ring, size, first, looped, batch, cx) {
                Walk::Taken(end) => {
                    walked += ((end + size - next) % size) as usize;
                    self.transmit.next = end;
                }
                Walk::Partial if (tail + size - next) % size < size - 1 => return idle,
                Walk::Full => return Progress { more: true, armed: false },
                // A ring that is full of one packet without an end would never move again.
                Walk::Partial => self.drop_packet(Reason::BadDescriptor, cx),
                Walk::Dropped(reason) => self.drop_packet(reason, cx),
            }
        }
        idle
    }

    fn drop_packet(&mut self, reason: Reason, cx: &mut Context<'_>) {
        cx.counters.transmit_drop(reason);
        self.transmit.skipping = true;
    }

    fn request(&self, first: Descriptor) -> Request {
        let tagged = first.lower & VLE != 0 && self.registers[r::CTRL] & ctrl::VME != 0;
        let tag = tagged.then_some((first.upper >> 16) as u16);
        let options = (first.upper >> 8) as u8;
        if first.extended() {
            let segment = first.lower & IC_TSE != 0;
            let offloads = if segment { self.transmit.segmented } else { self.transmit.plain };
            return Request { segment, ip_checksum: options & 1 != 0, checksum: options & 2 != 0, offloads, tag };
        }
        // Legacy: CSS lies where the options are, CSO where the type is.
        let offloads = Offloads { start: options, field: (first.lower >> 16) as u8, ..Offloads::default() };
        Request { segment: false, ip_checksum: false, checksum: first.lower & IC_TSE != 0, offloads, tag }
    }

    /// One packet, from its first descriptor to the one with EOP.
    fn take_packet(
        &mut self,
        ring: &Window<'_>,
        size: u32,
        first: Descriptor,
        looped: bool,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Walk {
        let request = self.request(first);
        let tail = self.registers[r::TDT];
        let was_empty = batch.is_empty();
        let headers = usize::from(request.offloads.headers);
        let head = headers.max(usize::from(request.offloads.field) + 2).max(usize::from(request.offloads.ip_field) + 2);
        let Some(mut draft) = batch.draft(head) else { return Walk::Full };
        let (mut at, mut descriptor) = (self.transmit.next, first);
        loop {
            match draft.push(descriptor.address, if descriptor.is_context() { 0 } else { descriptor.len() }) {
                Ok(()) => {}
                Err(DraftError::BatchFull) if !was_empty => return Walk::Full,
                Err(error) => return Walk::Dropped(reason(error)),
            }
            at = if at + 1 == size { 0 } else { at + 1 };
            if descriptor.lower & EOP != 0 && !descriptor.is_context() {
                break;
            }
            if at == tail {
                return Walk::Partial;
            }
            descriptor = Descriptor::read(ring, at);
        }
        if !looped && !self.link_up {
            return Walk::Dropped(Reason::LinkDown);
        }
        if draft.len() < 14 {
            return Walk::Dropped(Reason::TooShort);
        }
        if self.registers[r::TCTL] & tctl::PSP != 0 {
            draft.pad_to(60);
        }
        let Some(offload) = offload(&mut draft, &request) else {
            if request.segment {
                self.count(r::TSCTFC, 1);
            }
            return Walk::Dropped(Reason::BadOffload);
        };
        self.finish(draft, offload, request, looped, cx);
        Walk::Taken(at)
    }

    fn finish(
        &mut self,
        mut draft: Draft<'_>,
        mut offload: Offload,
        request: Request,
        looped: bool,
        cx: &mut Context<'_>,
    ) {
        let mut destination = [0; 6];
        destination.copy_from_slice(&draft.head_mut()[..6]);
        if let Some(control) = request.tag
            && draft.tag(control)
        {
            if let Checksum::Partial { start, field } = &mut offload.checksum {
                (*start, *field) = (*start + 4, *field + 4);
            }
            if let Some(segment) = &mut offload.segment {
                segment.headers += 4;
            }
        }
        let len = draft.len();
        let (frames, full, last) = match offload.segment {
            Some(segment) => {
                let (frames, mss) = (segment.frames(len), u32::from(segment.mss));
                (frames, u32::from(segment.headers) + mss, len - (frames - 1) * mss)
            }
            None => (1, len, len),
        };
        if offload.segment.is_some() {
            self.count(r::TSCTC, 1);
        }
        self.count_sent(&destination, frames, full, last);
        if !looped {
            cx.counters.sent(0, u64::from(frames), u64::from(len));
        }
        draft.finish(offload, 0);
    }

    /// Gives fetched descriptors back, and interrupts if any asked for it.
    pub(super) fn give_back(&mut self, cx: &mut Context<'_>) {
        let (size, base) = self.transmit_ring();
        let (mut at, next) = (self.registers[r::TDH], self.transmit.next);
        if at == next || !self.function.bus_master() {
            return;
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let ring = memory.window(base, size * DESCRIPTOR as u32, Rights::BOTH);
        let (Ok(ring), true) = (ring, at < size && next < size) else {
            cx.counters.guest_errors += 1;
            self.registers[r::TDH] = next;
            return;
        };
        let (mut reported, mut delayed) = (0, true);
        while at != next {
            let place = at as usize * DESCRIPTOR;
            let command = ring.load_u32(place + 8);
            if command & (RS | RPS) != 0 {
                ring.store_u8(place + 12, DD);
                reported += 1;
                delayed &= command & IDE != 0;
            }
            at = if at + 1 == size { 0 } else { at + 1 };
        }
        self.registers[r::TDH] = next;
        let empty = next == self.registers[r::TDT];
        if reported > 0 {
            self.transmitted(reported, delayed, empty, cx);
        } else if empty {
            self.cause(cause::TXQE, cx);
        }
    }
}

fn reason(error: DraftError) -> Reason {
    match error {
        DraftError::Fault(Fault::Absent(_)) => Reason::NotShared,
        DraftError::Fault(Fault::Refused { .. }) => Reason::BadAddress,
        DraftError::TooManyPieces | DraftError::BatchFull => Reason::TooManyPieces,
        DraftError::TooLong => Reason::TooLong,
    }
}

/// Carries out what is to be done in the head, and says the rest in neutral words. `None` if it makes no sense.
fn offload(draft: &mut Draft<'_>, request: &Request) -> Option<Offload> {
    let offloads = &request.offloads;
    if request.segment {
        return segment(draft, offloads);
    }
    let len = draft.len();
    if request.ip_checksum {
        let end = if offloads.ip_end == 0 { len as usize } else { usize::from(offloads.ip_end) + 1 };
        let head = draft.head_mut();
        let sum = checksum::sum(head.get(usize::from(offloads.ip_start)..end)?).checksum();
        let at = usize::from(offloads.ip_field);
        head.get_mut(at..at + 2)?.copy_from_slice(&sum.to_be_bytes());
    }
    if !request.checksum {
        return Some(Offload::default());
    }
    let (start, field) = (u16::from(offloads.start), u16::from(offloads.field));
    // TUCSE of 0 means the packet's end; padding behind it sums to nothing.
    let whole = offloads.end == 0 || u32::from(offloads.end) + 1 >= len;
    if !whole || field < start || usize::from(field) + 2 > draft.head_mut().len() {
        return None;
    }
    Some(Offload { checksum: Checksum::Partial { start, field }, segment: None })
}

/// A packet to be segmented. Drivers leave its length fields at 0 (e1000_tso in Linux's e1000_main.c) and its
/// pseudo-header without a length: here they become the whole packet's, as everybody else on the switch has them.
fn segment(draft: &mut Draft<'_>, offloads: &Offloads) -> Option<Offload> {
    let len = draft.len();
    let head = draft.head_mut();
    let layout = Layout::parse(head);
    let (l3, l4) = (layout.l3?, layout.l4?);
    let kind = match (offloads.tcp, l4.kind) {
        (true, L4Kind::Tcp) => SegmentKind::Tcp,
        (false, L4Kind::Udp) => SegmentKind::Udp,
        _ => return None,
    };
    let segment = Segment::of(kind, offloads.mss, layout.headers_len, len)?;
    if u16::from(offloads.headers) != layout.headers_len || len < u32::from(layout.headers_len) {
        return None;
    }
    let (ip, transport) = (usize::from(l3.offset), usize::from(l4.offset));
    // What a 16-bit field cannot say is not looked at by whoever segments.
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
