//! Transmission: code shared by both modes, and the ring of C+ mode.

use nicety_adapter::{
    Batch, Budget, Checksum, Context, Draft, DraftError, ErrorPlace, Frames, Offload, Pick, PortId, Progress, Reason,
    Segment, SegmentKind,
};
use nicety_frame::{L3Kind, L4Kind, Layout, Tag, Tci, checksum};
use nicety_memory::{Rights, Window};

use super::registers::{self as r, cause, tcr};
use super::ring::{self, Descriptor, EOR, FS, LS, MAX};
use super::{NOWHERE, Rtl8139, TRANSMIT_RING};

const LGSEN: u32 = 1 << 27;
const MSS: u32 = 0x7ff;
const IPCS: u32 = 1 << 18;
const UDPCS: u32 = 1 << 17;
const TCPCS: u32 = 1 << 16;
const TAGC: u32 = 1 << 17;
/// Underrun and error summary, for data that could not be read.
const UNF_TES: u32 = 1 << 25 | 1 << 23;
/// Maximum bytes of the headers of TCP over IPv4, with a tag.
const HEADERS: usize = 18 + 60 + 60;
/// The EtherType that the chip treats as a tag.
pub(super) const TAG_TYPE: u16 = 0x8100;

/// State of the transmitter in its ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transmit {
    /// The next descriptor to fetch.
    pub next: u32,
    /// A packet was abandoned: descriptors up to its end are skipped.
    pub skipping: bool,
    /// The oldest descriptor that was fetched and not completed, and the number of them from it on.
    oldest: u32,
    fetched: u32,
    /// Descriptors among them that could not be read, a bit for each.
    failed: u64,
    /// The abandoned packet could not be read.
    blamed: bool,
}

impl Transmit {
    /// The position at a descriptor of a ring, with nothing fetched.
    pub fn at(next: u32, skipping: bool) -> Self {
        Self { next, skipping, oldest: next, ..Self::default() }
    }

    fn advance(&mut self, descriptors: u32, next: u32) {
        self.fetched += descriptors;
        self.next = next;
    }

    /// Whether the walk has gone all the way round: fetched descriptors are not completed, so the chip still owns them.
    fn has_walked(&self, index: u32, descriptors: u32) -> bool {
        descriptors > 0 && (index == self.oldest || descriptors >= MAX)
    }
}

/// Result of a walk over one packet.
enum Walk {
    /// The packet is in the batch: number of its descriptors, and the next one.
    Taken(u32, u32),
    /// Its last descriptor is not there yet.
    Partial,
    /// The batch has no room for it now.
    Full,
    /// The packet was dropped.
    Dropped(Reason),
}

impl Rtl8139 {
    pub(super) fn transmit_address(&self) -> u64 {
        let address = self.registers.of(r::TSAD);
        u64::from(address[1]) << 32 | u64::from(address[0])
    }

    /// Whether transmitted frames return to this adapter only.
    pub(super) fn loops(&self) -> bool {
        self.registers[r::TCR] & tcr::LOOPBACK == tcr::LOOPBACK
    }

    /// Allocates a private batch before the first frame of a loopback.
    pub(super) fn prepare_loopback(&mut self) {
        if self.loops() && self.looped.is_none() {
            self.looped = Some(Box::default());
        }
    }

    /// Walks the ring or the slots into a batch. In loopback the batch is private, and is received at once.
    pub(super) fn fetch_packets(&mut self, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if !self.transmits() || !self.function.bus_master() {
            return Progress { more: false, armed: true };
        }
        let own = if self.loops() { self.looped.take() } else { None };
        let Some(mut own) = own else {
            let progress = self.walk(budget, batch, false, cx);
            batch.generation = self.generation;
            if batch.is_empty() {
                self.give_back(cx);
            }
            return progress;
        };
        own.start(cx.memory, PortId::default(), 0);
        let progress = self.walk(budget, &mut own, true, cx);
        let mut picks = [Pick::whole(0); nicety_adapter::PACKETS];
        for (pick, packet) in picks.iter_mut().zip(0..) {
            pick.packet = packet;
        }
        let frames = Frames::new(&own, picks.get(..own.len()).unwrap_or_default());
        self.receive_looped(&frames, cx);
        own.release();
        self.looped = Some(own);
        self.give_back(cx);
        progress
    }

    fn walk(&mut self, budget: Budget, batch: &mut Batch, looped: bool, cx: &mut Context<'_>) -> Progress {
        match self.ring_mode().0 {
            true => self.walk_ring(budget, batch, looped, cx),
            false => self.walk_slots(budget, batch, looped, cx),
        }
    }

    fn walk_ring(&mut self, budget: Budget, batch: &mut Batch, looped: bool, cx: &mut Context<'_>) -> Progress {
        let idle = Progress { more: false, armed: true };
        let again = Progress { more: true, armed: false };
        let memory = std::sync::Arc::clone(cx.memory);
        let Ok(ring) = ring::open(&memory, self.transmit_address(), Rights::READ) else {
            self.blame_ring(TRANSMIT_RING, cx);
            self.saw_ring(TRANSMIT_RING, Some(NOWHERE), cx);
            return idle;
        };
        loop {
            let next = self.transmit.next;
            if self.transmit.fetched == 0 {
                self.transmit.oldest = next;
            }
            if !ring::holds(&ring, next) {
                self.blame_ring(TRANSMIT_RING, cx);
                self.saw_ring(TRANSMIT_RING, Some(NOWHERE), cx);
                return idle;
            }
            let first = Descriptor::read(&ring, next);
            self.saw_ring(TRANSMIT_RING, None, cx);
            if !first.is_owned() {
                return idle;
            }
            if !budget.allows(batch) || self.transmit.has_walked(next, self.transmit.fetched) {
                return again;
            }
            if self.transmit.skipping {
                self.skip(next, first);
                continue;
            }
            match self.take_packet(&ring, first, looped, batch, cx) {
                Walk::Taken(descriptors, next) => self.transmit.advance(descriptors, next),
                Walk::Partial => return idle,
                Walk::Full => return again,
                Walk::Dropped(reason) => {
                    self.dropped(reason, &ring, next, cx);
                    self.tally.send_errors += 1;
                    self.tally.aborted = self.tally.aborted.wrapping_add(1);
                    self.transmit.skipping = true;
                    self.transmit.blamed = is_error(reason);
                    self.skip(next, first);
                }
            }
        }
    }

    /// Counts a dropped packet, and notes its driver's mistake: the first descriptor from `first` on that is wrong by itself, or
    /// `first`.
    #[cold]
    fn dropped(&self, reason: Reason, ring: &Window<'_>, first: u32, cx: &mut Context<'_>) {
        let word = u64::from(Descriptor::read(ring, first).first);
        let (mut at, mut found) = (first, (first, word));
        for _ in 0..MAX {
            if reason != Reason::BadAddress || !ring::holds(ring, at) {
                break;
            }
            let Descriptor { first, address, .. } = Descriptor::read(ring, at);
            if cx.memory.translate(address, first & 0xffff, Rights::READ, |_| true).is_err() {
                found = (at, address);
                break;
            }
            if first & LS != 0 {
                break;
            }
            at = ring::after(at, first);
        }
        let expected = match reason {
            Reason::BadDescriptor => Some("a descriptor with LS within a ring that has its end marked (EOR)"),
            Reason::BadOffload => Some("LGSEN, IPCS, UDPCS, TCPCS and an MSS that fit the frame's headers"),
            _ => None,
        };
        cx.drop_transmit(reason, ErrorPlace::transmit(0, found.0), found.1, expected);
    }

    /// Completes a descriptor of an abandoned packet.
    fn skip(&mut self, index: u32, descriptor: Descriptor) {
        self.transmit.failed |= u64::from(self.transmit.blamed) << (index % MAX);
        self.transmit.skipping = descriptor.first & LS == 0;
        self.transmit.advance(1, descriptor.after(index));
    }

    /// Takes one packet, from its first descriptor to the one with LS.
    fn take_packet(
        &mut self,
        ring: &Window<'_>,
        first: Descriptor,
        looped: bool,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Walk {
        let was_empty = batch.is_empty();
        let head = if first.first & (LGSEN | IPCS | UDPCS | TCPCS) != 0 { HEADERS } else { 0 };
        let Some(mut draft) = batch.draft(head) else { return Walk::Full };
        let (mut at, mut descriptor, mut descriptors) = (self.transmit.next, first, 1);
        loop {
            match draft.push(descriptor.address, descriptor.first & 0xffff) {
                Ok(()) => {}
                Err(DraftError::BatchFull) if !was_empty => return Walk::Full,
                Err(error) => return Walk::Dropped(error.into()),
            }
            at = descriptor.after(at);
            if descriptor.first & LS != 0 {
                break;
            }
            if self.transmit.has_walked(at, self.transmit.fetched + descriptors) {
                // One packet without an end fills the ring, which would never advance again.
                return if self.transmit.fetched == 0 { Walk::Dropped(Reason::BadDescriptor) } else { Walk::Full };
            }
            if !ring::holds(ring, at) {
                return Walk::Dropped(Reason::BadDescriptor);
            }
            descriptor = Descriptor::read(ring, at);
            descriptors += 1;
            if !descriptor.is_owned() {
                return Walk::Partial;
            }
        }
        // The last descriptor's offloads count: older versions of Linux's 8139cp.c omit LGSEN from the first.
        match self.finish(draft, descriptor.first, descriptor.second, looped, cx) {
            Ok(()) => Walk::Taken(descriptors, at),
            Err(reason) => Walk::Dropped(reason),
        }
    }

    /// Adds a complete packet, from the ring or from a slot, to the batch.
    pub(super) fn finish(
        &mut self,
        mut draft: Draft<'_>,
        commands: u32,
        tag: u32,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), Reason> {
        if !looped && !self.link() {
            return Err(Reason::LinkDown);
        }
        if draft.len() < 14 {
            return Err(Reason::TooShort);
        }
        draft.pad_to(60);
        let mut offload = offload(&mut draft, commands).ok_or(Reason::BadOffload)?;
        if tag & TAGC != 0 && draft.tag(Tag { tpid: TAG_TYPE, tci: Tci((tag as u16).swap_bytes()) }) {
            offload = offload.behind_tag();
        }
        let len = draft.len();
        let frames = offload.segment.map_or(1, |segment| segment.frames(len)).into();
        draft.finish(offload, 0)?;
        self.tally.sent += frames;
        self.carried += u64::from(len);
        if !looped {
            cx.counters.sent(0, frames, len.into());
        }
        Ok(())
    }

    /// Completes fetched descriptors and slots, and interrupts.
    pub(super) fn give_back(&mut self, cx: &mut Context<'_>) {
        self.give_slots_back(cx);
        let Transmit { oldest, fetched, failed, .. } = self.transmit;
        if fetched == 0 || !self.function.bus_master() {
            return;
        }
        (self.transmit.fetched, self.transmit.failed) = (0, 0);
        let memory = std::sync::Arc::clone(cx.memory);
        let Ok(ring) = ring::open(&memory, self.transmit_address(), Rights::BOTH) else {
            return self.blame_ring(TRANSMIT_RING, cx);
        };
        let mut at = oldest;
        let mut size = 0;
        for _ in 0..fetched {
            if !ring::holds(&ring, at) {
                break;
            }
            let place = at as usize * ring::DESCRIPTOR;
            let first = ring.load_u32(place);
            let errors = if failed >> (at % MAX) & 1 != 0 { UNF_TES } else { 0 };
            ring.store_u32(place, first & (EOR | FS | LS | 0xffff) | errors);
            size = if first & EOR != 0 { at + 1 } else { size };
            at = ring::after(at, first);
        }
        if size != 0 {
            self.transmit_size = size;
        }
        if failed != 0 {
            self.cause(cause::TER, cx);
        }
        self.transmitted(fetched, self.transmit_size / 2, cx);
    }
}

/// Whether the chip reports a drop as an error: only for data that could not be read. Other frames are also lost on a wire without
/// a report.
pub(super) fn is_error(reason: Reason) -> bool {
    matches!(reason, Reason::BadAddress | Reason::NotShared | Reason::BadDescriptor)
}

/// Performs the offloads that concern the head, and returns the rest as a neutral offload. `None` if the request is invalid. A
/// packet that is not IPv4, or has another protocol than the request, stays unchanged.
fn offload(draft: &mut Draft<'_>, commands: u32) -> Option<Offload> {
    if commands & (LGSEN | IPCS | UDPCS | TCPCS) == 0 {
        return Some(Offload::default());
    }
    let len = draft.len();
    let head = draft.head_mut();
    let layout = Layout::parse(head);
    let l3 = layout.l3.filter(|l3| l3.kind == L3Kind::V4);
    if commands & LGSEN != 0 {
        let (_, l4) = (l3?, layout.l4.filter(|l4| l4.kind == L4Kind::Tcp)?);
        let mss = (commands >> 16 & MSS) as u16;
        let segment = Segment::of(SegmentKind::Tcp, mss, layout.headers_len, len)?;
        if len < u32::from(layout.headers_len) {
            return None;
        }
        let field = checksum::prepare(head, &layout, len)?;
        return Some(Offload { checksum: Checksum::Partial { start: l4.offset, field }, segment: Some(segment) });
    }
    let Some(l3) = l3 else { return Some(Offload::default()) };
    if commands & IPCS != 0 {
        let start = usize::from(l3.offset);
        head.get_mut(start + 10..start + 12)?.fill(0);
        let sum = checksum::sum(head.get(start..start + usize::from(l3.len))?).checksum();
        head.get_mut(start + 10..start + 12)?.copy_from_slice(&sum.to_be_bytes());
    }
    let wanted = |kind| commands & if kind == L4Kind::Tcp { TCPCS } else { UDPCS } != 0;
    let Some(l4) = layout.l4.filter(|l4| wanted(l4.kind)) else { return Some(Offload::default()) };
    let Some(covered) = layout.l4_total_len(head) else { return Some(Offload::default()) };
    let partial = checksum::pseudo(head, &layout, covered as u32)?.fold();
    let field = l4.checksum_at();
    head.get_mut(field..field + 2)?.copy_from_slice(&partial.to_be_bytes());
    Some(Offload { checksum: Checksum::Partial { start: l4.offset, field: field as u16 }, segment: None })
}
