//! Transmit: descriptors to packets, and back as completions (`struct Vmxnet3_TxDesc`, `Vmxnet3_TxCompDesc`).
//!
//! The doorbell: the driver rings when txNumDeferred reaches txThreshold, which is ours to write. While a queue is
//! being served it stands at [`NEVER_SOON`], so that a busy guest does not ring at all; before the queue is left it
//! is put back to 0 and the ring looked at once more. x86 may let the driver read the old threshold before its
//! descriptor is seen, so that a timer looks again [`RECHECK_NS`] later.

use std::collections::VecDeque;

use nicety_adapter::interrupts::CompletionDelay;
use nicety_adapter::{Batch, Budget, Checksum, Context, Draft, DraftError, Offload, PACKETS, Progress};
use nicety_adapter::{Reason, Segment, SegmentKind, Time};
use nicety_frame::{L4Kind, Layout, Tag, Tci, Tunnel, TunnelKind, checksum};
use nicety_memory::{Map, Rights, Window, full_barrier};
use serde::{Deserialize, Serialize};

use super::coalescing::Coalescing;
use super::registers::{CAP_GENEVE_CHECKSUM, CAP_GENEVE_OUTER, CAP_GENEVE_TSO, stopped};
use super::shared::{Ring, THRESHOLD, TransmitConf};
use super::statistics::{LOSS_FIRST, LOSS_SECOND, Statistics};

/// txThreshold while the queue is served: frames until the driver rings all the same.
const NEVER_SOON: u32 = 1024;
/// How long after arming the ring is looked at again.
const RECHECK_NS: u64 = 50_000;
/// Longest piece: a length of 0 says this (14 bits).
const PIECE_MOST: u32 = 1 << 14;

const OM_NONE: u32 = 0;
const OM_ENCAP: u32 = 1;
const OM_CHECKSUM: u32 = 2;
const OM_TSO: u32 = 3;

/// How a driver asks for the offloads of tunnels.
#[derive(Clone, Copy, Debug)]
pub enum Tunnels {
    /// Not at all, before version 4.
    No,
    /// By OM_ENCAP, whenever it likes (version 4 to 6).
    Mode,
    /// By `ext1`, for what it turned on in DCR (version 7).
    Capabilities(u32),
}

impl Tunnels {
    /// Of a version, with what was turned on.
    pub fn of(version: u8, capabilities: u32) -> Self {
        match version {
            ..4 => Self::No,
            4..7 => Self::Mode,
            7.. => Self::Capabilities(capabilities),
        }
    }

    /// Whether a tunnel's offload may be asked for.
    fn allow(self, kind: TunnelKind, segment: bool, outer: bool) -> bool {
        let vxlan = kind == TunnelKind::Vxlan;
        let own = if segment { CAP_GENEVE_TSO } else { CAP_GENEVE_CHECKSUM } << if vxlan { 2 } else { 0 };
        let outer = if outer { CAP_GENEVE_OUTER << u32::from(vxlan) } else { 0 };
        match self {
            Self::No => false,
            Self::Mode => true,
            Self::Capabilities(on) => on & (own | outer) == own | outer,
        }
    }
}

/// One fetched packet that waits to be given back.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    /// Index of its last descriptor.
    last: u16,
    /// How many it has.
    descriptors: u16,
    /// In a batch; otherwise it was dropped and goes back with its predecessor.
    in_batch: bool,
}

/// A transmit queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TransmitQueue {
    pub ring: Ring,
    pub completions: Ring,
    pub vector: u8,
    /// Where its queue descriptor lies.
    pub at: u64,
    /// VMXNET3_ERR_*; 0 while it runs.
    pub error: u32,
    pub statistics: Statistics,
    /// txThreshold stands at [`NEVER_SOON`].
    pub quiet: bool,
    /// When to look at the ring again.
    pub recheck: Option<Time>,
    /// Packets whose completion waits for an interrupt.
    pub delay: CompletionDelay,
    #[serde(skip)]
    fetched: VecDeque<Fetched>,
    /// Number of the first of `fetched`; a packet's cookie is its number.
    #[serde(skip)]
    first: u64,
}

/// A descriptor.
#[derive(Clone, Copy)]
struct Descriptor {
    address: u64,
    low: u32,
    high: u32,
}

impl Descriptor {
    fn read(ring: &Window<'_>, index: u32) -> Self {
        let all = u128::from_le_bytes(ring.read(index as usize * 16));
        Self { address: all as u64, low: (all >> 64) as u32, high: (all >> 96) as u32 }
    }

    fn len(&self) -> u32 {
        match self.low & (PIECE_MOST - 1) {
            0 => PIECE_MOST,
            len => len,
        }
    }

    fn is_unknown(&self) -> bool {
        self.low & 1 << 16 != 0
    }

    /// `oco`: segments in a tunnel get outer checksums.
    fn outer_checksum(&self) -> bool {
        self.low & 1 << 15 != 0
    }

    /// `ext1`: what is asked for is meant for the frame in a tunnel.
    fn inner(&self) -> bool {
        self.low & 1 << 17 != 0
    }

    /// MSS, or where the checksum goes.
    fn mss_or_field(&self) -> u16 {
        (self.low >> 18) as u16
    }

    /// Length of headers, or where the checksum starts.
    fn headers(&self) -> u16 {
        (self.high & 0x3ff) as u16
    }

    fn offload_mode(&self) -> u32 {
        self.high >> 10 & 3
    }

    fn is_last(&self) -> bool {
        self.high & 1 << 12 != 0
    }

    fn tag(&self) -> Option<u16> {
        (self.high & 1 << 15 != 0).then_some((self.high >> 16) as u16)
    }

    /// Bytes that the private head must hold.
    fn head(&self) -> usize {
        match self.offload_mode() {
            OM_TSO | OM_ENCAP => usize::from(self.headers()),
            OM_CHECKSUM if self.inner() => usize::from(self.headers()),
            OM_CHECKSUM => usize::from(self.mss_or_field()) + 2,
            _ => 0,
        }
    }
}

/// How one step of a fetch ended.
enum Step {
    /// No whole packet is there.
    Empty,
    /// A packet was taken, or dropped and counted.
    Taken,
    /// The batch has no room for it.
    Full,
    /// The ring is not to be understood: the queue stops.
    Broken(u32),
}

fn owned(ring: &Window<'_>, index: u32, generation: bool) -> bool {
    (ring.load_u32(index as usize * 16 + 8) & 1 << 14 != 0) == generation
}

impl TransmitQueue {
    /// As after ACTIVATE_DEV.
    pub fn new(conf: TransmitConf, at: u64, statistics: Statistics) -> Self {
        let TransmitConf { ring, completions, vector } = conf;
        let mut queue = Self {
            ring,
            completions,
            vector,
            at,
            error: 0,
            statistics,
            quiet: false,
            recheck: None,
            delay: CompletionDelay::default(),
            fetched: VecDeque::new(),
            first: 0,
        };
        queue.reserve();
        queue
    }

    /// Makes the room that fetching needs.
    pub fn reserve(&mut self) {
        self.fetched.reserve_exact(self.ring.size as usize);
    }

    /// Whether the state can be.
    pub fn valid(&self) -> bool {
        self.ring.valid(4096) && self.completions.valid(4096) && self.delay.fits()
    }

    /// Nothing fetched comes back any more.
    pub fn forget(&mut self) {
        self.first += self.fetched.len() as u64;
        self.fetched.clear();
        self.recheck = None;
    }

    /// Whether a descriptor waits to be fetched.
    pub fn has_work(&self, memory: &Map) -> bool {
        let window = self.ring.window(memory, Rights::READ);
        window.is_ok_and(|window| owned(&window, self.ring.next, self.ring.generation))
    }

    /// Walks the ring. The error is why the queue stopped.
    pub fn fetch(
        &mut self,
        number: u16,
        link: bool,
        tunnels: Tunnels,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Result<Progress, u32> {
        self.recheck = None;
        let memory = cx.memory;
        let ring = self.ring.window(memory, Rights::READ).map_err(|_| stopped::BAD_RING)?;
        let mut taken = 0;
        while budget.allows(batch) && taken < 2 * PACKETS && self.fetched.len() < self.ring.size as usize {
            match self.step(&ring, number, link, tunnels, batch, cx) {
                Step::Taken => {
                    taken += 1;
                    self.set_threshold(true, cx);
                }
                Step::Full => return Ok(Progress { more: true, armed: false }),
                Step::Broken(error) => return Err(error),
                Step::Empty if taken > 0 => break,
                Step::Empty => return Ok(self.arm(&ring, cx)),
            }
        }
        Ok(Progress { more: true, armed: false })
    }

    /// The ring is empty: makes sure that the driver rings.
    fn arm(&mut self, ring: &Window<'_>, cx: &mut Context<'_>) -> Progress {
        if !self.quiet {
            return Progress { more: false, armed: true };
        }
        self.set_threshold(false, cx);
        full_barrier();
        if owned(ring, self.ring.next, self.ring.generation) {
            return Progress { more: true, armed: false };
        }
        self.recheck = Some(cx.now.after_ns(RECHECK_NS));
        Progress { more: false, armed: true }
    }

    fn set_threshold(&mut self, quiet: bool, cx: &mut Context<'_>) {
        if self.quiet != quiet {
            self.quiet = quiet;
            let value = if quiet { NEVER_SOON } else { 0 };
            // If it cannot be written the driver rings more often than it need.
            let _rings_more = cx.memory.write(self.at + THRESHOLD, &value.to_le_bytes());
        }
    }

    /// Takes one packet.
    fn step(
        &mut self,
        window: &Window<'_>,
        number: u16,
        link: bool,
        tunnels: Tunnels,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Step {
        let mut ring = self.ring;
        if !owned(window, ring.next, ring.generation) {
            return Step::Empty;
        }
        let first = Descriptor::read(window, ring.next);
        let Some(mut draft) = batch.draft(first.head()) else { return Step::Full };
        let (mut descriptor, mut fault, mut descriptors) = (first, None, 0);
        loop {
            descriptors += 1;
            if descriptor.is_unknown() {
                return Step::Broken(stopped::DESCRIPTOR_TYPE);
            }
            if fault.is_none() {
                fault = draft.push(descriptor.address, descriptor.len()).err();
            }
            let last = ring.next;
            ring.advance();
            if descriptor.is_last() {
                if fault == Some(DraftError::BatchFull) {
                    return Step::Full;
                }
                let drafted = fault.map_or(Ok(()), |error| Err(Reason::from(error)));
                let sent = drafted.and_then(|()| self.finish(draft, &first, number, link, tunnels, cx));
                if let Err(reason) = sent {
                    cx.counters.transmit_drop(reason);
                    let kind = if reason == Reason::LinkDown { LOSS_SECOND } else { LOSS_FIRST };
                    self.statistics.lose(kind);
                    cx.counters.guest_errors += u64::from(reason != Reason::LinkDown);
                    cx.out.charge(u32::from(descriptors));
                }
                self.fetched.push_back(Fetched { last: last as u16, descriptors, in_batch: sent.is_ok() });
                self.ring = ring;
                return Step::Taken;
            }
            if ring.next == self.ring.next {
                return Step::Broken(stopped::NO_EOP);
            }
            if !owned(window, ring.next, ring.generation) {
                // Its end is not there yet: all of it will be read again.
                cx.out.charge(u32::from(descriptors));
                return Step::Empty;
            }
            descriptor = Descriptor::read(window, ring.next);
        }
    }

    /// Puts a whole packet into the batch.
    fn finish(
        &mut self,
        mut draft: Draft<'_>,
        first: &Descriptor,
        number: u16,
        link: bool,
        tunnels: Tunnels,
        cx: &mut Context<'_>,
    ) -> Result<(), Reason> {
        if draft.len() < 14 {
            return Err(Reason::TooShort);
        }
        if !link {
            return Err(Reason::LinkDown);
        }
        let mut offload = offload(&mut draft, first, tunnels)?;
        if let Some(tag) = first.tag() {
            if !draft.tag(Tag::customer(Tci(tag))) {
                return Err(Reason::BadOffload);
            }
            offload = offload.behind_tag();
        }
        draft.pad_to(nicety_frame::ethernet::FRAME_LEN_MIN);
        let len = draft.len();
        let frames = offload.segment.map_or(1, |segment| segment.frames(len));
        let admitted = draft.admit(offload)?;
        self.statistics.packet(draft.head_mut(), frames, len, offload.segment.is_some());
        draft.finish_admitted(admitted, self.first + self.fetched.len() as u64);
        cx.counters.sent(number, u64::from(frames), u64::from(len));
        Ok(())
    }

    /// Gives descriptors back up to packet `last`, and those dropped right behind it. Their interrupt waits for company, as
    /// the driver wants it to; true if there were any.
    pub fn give_back(&mut self, last: Option<u64>, coalescing: Coalescing, cx: &mut Context<'_>) -> Result<bool, u32> {
        if self.fetched.is_empty() {
            return Ok(false);
        }
        let memory = cx.memory;
        let window = self.completions.window(memory, Rights::WRITE).map_err(|_| stopped::BAD_RING)?;
        let (mut packets, mut descriptors) = (0, 0);
        while let Some(&Fetched { last: index, descriptors: own, in_batch }) = self.fetched.front() {
            if in_batch && last.is_none_or(|last| self.first > last) {
                break;
            }
            self.fetched.pop_front();
            self.first += 1;
            packets += 1;
            descriptors += u32::from(own);
            let at = self.completions.next as usize * 16;
            let generation = u32::from(self.completions.generation) << 31;
            window.write(at, &u128::from(index).to_le_bytes()[..12]);
            window.store_u32(at + 12, generation);
            self.completions.advance();
        }
        if packets > 0 {
            let (waiting, enough) = coalescing.completions(packets, descriptors, self.ring.size);
            self.delay.wait(waiting, enough, 0, cx.now);
        }
        Ok(packets > 0)
    }
}

/// What the first descriptor asks for, in neutral words.
fn offload(draft: &mut Draft<'_>, first: &Descriptor, tunnels: Tunnels) -> Result<Offload, Reason> {
    match (first.offload_mode(), tunnels) {
        (OM_NONE, _) => return Ok(Offload::default()),
        (OM_CHECKSUM | OM_TSO, Tunnels::Capabilities(_)) if first.inner() => {
            return tunneled(draft, first, tunnels).ok_or(Reason::BadOffload);
        }
        (OM_ENCAP, Tunnels::Mode) => return tunneled(draft, first, tunnels).ok_or(Reason::BadOffload),
        (mode, _) if mode == OM_ENCAP || first.inner() => return Err(Reason::BadOffload),
        _ => {}
    }
    match first.offload_mode() {
        OM_CHECKSUM => {
            let checksum = Checksum::Partial { start: first.headers(), field: first.mss_or_field() };
            Ok(Offload { checksum, segment: None })
        }
        OM_TSO => {
            let len = draft.len();
            let (headers, mss) = (first.headers(), first.mss_or_field());
            let checksum = complete_headers(draft.head_mut(), len, headers).ok_or(Reason::BadOffload)?;
            let segment = Segment::of(SegmentKind::Tcp, mss, headers, len).ok_or(Reason::BadOffload)?;
            Ok(Offload { checksum, segment: Some(segment) })
        }
        _ => Err(Reason::BadOffload),
    }
}

/// A head that is to be segmented becomes that of one big packet: Linux `vmxnet3_prepare_tso` leaves IPv4's header
/// checksum and the length in TCP's pseudo-header out.
fn complete_headers(head: &mut [u8], len: u32, headers: u16) -> Option<Checksum> {
    let layout = Layout::parse(head);
    let l4 = layout.l4?;
    if l4.kind != L4Kind::Tcp || layout.headers_len != headers || len < u32::from(headers) {
        return None;
    }
    let field = checksum::prepare(head, &layout, len)?;
    Some(Checksum::Partial { start: l4.offset, field })
}

/// The same for a frame in a tunnel. Its headers end where the descriptor says; where its checksum lies is told in version 7 only.
fn tunneled(draft: &mut Draft<'_>, first: &Descriptor, tunnels: Tunnels) -> Option<Offload> {
    let (len, mss) = (draft.len(), first.mss_or_field());
    let head = draft.head_mut();
    let outer = Layout::parse(head);
    let tunnel = Tunnel::parse(head, &outer)?;
    let inner = tunnel.inner;
    let (l4, field) = (inner.l4?, u16::try_from(inner.l4?.checksum_at()).ok()?);
    let cut = match first.offload_mode() {
        OM_ENCAP => mss != 0,
        mode => mode == OM_TSO,
    };
    let placed = cut || first.offload_mode() == OM_ENCAP || mss == field;
    let allowed = tunnels.allow(tunnel.kind, cut, cut && first.outer_checksum());
    if inner.headers_len != first.headers() || !placed || !allowed {
        return None;
    }
    let checksum = Checksum::Partial { start: l4.offset, field };
    if !cut {
        return Some(Offload { checksum, segment: None });
    }
    if l4.kind != L4Kind::Tcp || len < u32::from(inner.headers_len) {
        return None;
    }
    checksum::prepare(head, &inner, len)?;
    tunnel.seal(head, &outer, len, first.outer_checksum())?;
    Some(Offload { checksum, segment: Some(Segment::of(SegmentKind::Tunnel, mss, inner.headers_len, len)?) })
}
