//! Transmit: descriptors become packets, and completions return them (`struct Vmxnet3_TxDesc`, `Vmxnet3_TxCompDesc`).
//!
//! The doorbell: the driver rings it when txNumDeferred reaches txThreshold, which the device writes. While a queue is served the
//! threshold is [`NEVER_SOON`], so a busy guest does not ring at all. Before the device leaves the queue it sets the threshold to 0
//! and checks the ring once more. x86 may let the driver read the old threshold before its descriptor is visible, so a timer checks
//! again [`RECHECK_NS`] later.

use std::collections::VecDeque;

use nicety_adapter::interrupts::CompletionDelay;
use nicety_adapter::{Batch, Budget, Checksum, Context, Draft, DraftError, ErrorPlace, Offload, PACKETS, Progress};
use nicety_adapter::{Reason, Segment, SegmentKind, Time};
use nicety_frame::{L4Kind, Layout, Tag, Tci, Tunnel, TunnelKind, checksum};
use nicety_memory::{Map, Rights, Window, full_barrier};
use serde::{Deserialize, Serialize};

use super::coalescing::Coalescing;
use super::registers::{CAP_GENEVE_CHECKSUM, CAP_GENEVE_OUTER, CAP_GENEVE_TSO, stopped};
use super::shared::{Ring, THRESHOLD, TransmitConf};
use super::statistics::{LOSS_FIRST, LOSS_SECOND, Statistics};

/// txThreshold while the queue is served: frames until the driver rings anyway.
const NEVER_SOON: u32 = 1024;
/// Delay from arming to the second check of the ring.
const RECHECK_NS: u64 = 50_000;
/// Longest piece, encoded as length 0 (14 bits).
const PIECE_MAX: u32 = 1 << 14;

const OM_NONE: u32 = 0;
const OM_ENCAP: u32 = 1;
const OM_CHECKSUM: u32 = 2;
const OM_TSO: u32 = 3;

/// The state of a queue that one call uses, besides its rings.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Number of the queue.
    pub number: u16,
    /// Whether the link is up.
    pub link: bool,
    /// The descriptors' way to describe a tunnel.
    pub tunnels: Tunnels,
}

/// The driver's way to request tunnel offloads.
#[derive(Clone, Copy, Debug)]
pub enum Tunnels {
    /// Not supported, before version 4.
    No,
    /// By OM_ENCAP, at any time (version 4 to 6).
    Mode,
    /// By `ext1`, for the capabilities enabled in DCR (version 7).
    Capabilities(u32),
}

impl Tunnels {
    /// The rule of a version with these enabled capabilities.
    pub fn of(version: u8, capabilities: u32) -> Self {
        match version {
            ..4 => Self::No,
            4..7 => Self::Mode,
            7.. => Self::Capabilities(capabilities),
        }
    }

    /// Whether a tunnel's offload may be requested.
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

/// Descriptors of a dropped packet that are searched for the wrong one.
const BLAMED_MAX: u16 = 64;

/// A fetched packet that is not completed yet.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    /// Index of its last descriptor.
    last: u16,
    /// Number of its descriptors.
    descriptors: u16,
    /// It is in a batch. Otherwise it was dropped, and is completed with its predecessor.
    in_batch: bool,
}

/// A transmit queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TransmitQueue {
    pub ring: Ring,
    pub completions: Ring,
    pub vector: u8,
    /// Address of its queue descriptor.
    pub at: u64,
    /// VMXNET3_ERR_*; 0 while the queue runs.
    pub error: u32,
    pub statistics: Statistics,
    /// txThreshold is [`NEVER_SOON`].
    pub quiet: bool,
    /// Time of the next check of the ring.
    pub recheck: Option<Time>,
    /// Completions that wait for an interrupt.
    pub delay: CompletionDelay,
    #[serde(skip)]
    fetched: VecDeque<Fetched>,
    /// Number of the first of `fetched`; a packet's number is its cookie.
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
        match self.low & (PIECE_MAX - 1) {
            0 => PIECE_MAX,
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

    /// `ext1`: the request is for the frame in the tunnel.
    fn inner(&self) -> bool {
        self.low & 1 << 17 != 0
    }

    /// MSS, or offset of the checksum field.
    fn mss_or_field(&self) -> u16 {
        (self.low >> 18) as u16
    }

    /// Length of the headers, or start of the checksummed range.
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

/// Result of one fetch step.
enum Step {
    /// No complete packet is available.
    Empty,
    /// A packet was taken, or dropped and counted.
    Taken,
    /// The batch has no room for it.
    Full,
    /// The ring is invalid: the queue stops.
    Broken(u32),
}

fn owned(ring: &Window<'_>, index: u32, generation: bool) -> bool {
    (ring.load_u32(index as usize * 16 + 8) & 1 << 14 != 0) == generation
}

impl TransmitQueue {
    /// State after ACTIVATE_DEV.
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

    /// Reserves the memory that fetching needs.
    pub fn reserve(&mut self) {
        self.fetched.reserve_exact(self.ring.size as usize);
    }

    /// Whether saved state is valid.
    pub fn valid(&self) -> bool {
        self.ring.valid(4096) && self.completions.valid(4096) && self.delay.fits()
    }

    /// Drops all fetched packets: none will be completed.
    pub fn forget(&mut self) {
        self.first += self.fetched.len() as u64;
        self.fetched.clear();
        self.recheck = None;
    }

    /// Whether a descriptor is available.
    pub fn has_work(&self, memory: &Map) -> bool {
        let window = self.ring.window(memory, Rights::READ);
        window.is_ok_and(|window| owned(&window, self.ring.next, self.ring.generation))
    }

    /// Walks the ring. The error is the reason why the queue stopped.
    pub fn fetch(
        &mut self,
        sending: Sending,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Result<Progress, u32> {
        self.recheck = None;
        let memory = cx.memory;
        let ring = self.ring.window(memory, Rights::READ).map_err(|_| stopped::BAD_RING)?;
        let mut taken = 0;
        while budget.allows(batch) && taken < 2 * PACKETS && self.fetched.len() < self.ring.size as usize {
            match self.step(&ring, sending, batch, cx) {
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

    /// The ring is empty: makes sure that the driver rings the doorbell.
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
            // If the write fails, the driver only rings more often than needed.
            let _rings_more = cx.memory.write(self.at + THRESHOLD, &value.to_le_bytes());
        }
    }

    /// Takes one packet.
    fn step(&mut self, window: &Window<'_>, sending: Sending, batch: &mut Batch, cx: &mut Context<'_>) -> Step {
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
                let sent = drafted.and_then(|()| self.finish(draft, &first, sending, cx));
                if let Err(reason) = sent {
                    self.dropped(reason, window, sending.number, descriptors, cx);
                    let kind = if reason == Reason::LinkDown { LOSS_SECOND } else { LOSS_FIRST };
                    self.statistics.lose(kind);
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
                // Its last descriptor is not there yet: all of it will be read again.
                cx.out.charge(u32::from(descriptors));
                return Step::Empty;
            }
            descriptor = Descriptor::read(window, ring.next);
        }
    }

    /// Counts a dropped packet, and notes its driver's mistake: the first of its descriptors whose buffer is in no memory, or its
    /// first.
    #[cold]
    fn dropped(&self, reason: Reason, window: &Window<'_>, number: u16, descriptors: u16, cx: &mut Context<'_>) {
        let mut ring = self.ring;
        let first = Descriptor::read(window, ring.next);
        let mut found = (ring.next, u64::from(first.high) << 32 | u64::from(first.low));
        let searched = if reason == Reason::BadAddress { descriptors.min(BLAMED_MAX) } else { 0 };
        for _ in 0..searched {
            let descriptor = Descriptor::read(window, ring.next);
            if cx.memory.translate(descriptor.address, descriptor.len(), Rights::READ, |_| true).is_err() {
                found = (ring.next, descriptor.address);
                break;
            }
            ring.advance();
        }
        let expected = (reason == Reason::BadOffload).then_some("hlen, om, msscof and ti that fit the frame's headers");
        cx.drop_transmit(reason, ErrorPlace::transmit(number, found.0), found.1, expected);
    }

    /// Adds a complete packet to the batch.
    fn finish(
        &mut self,
        mut draft: Draft<'_>,
        first: &Descriptor,
        sending: Sending,
        cx: &mut Context<'_>,
    ) -> Result<(), Reason> {
        if draft.len() < 14 {
            return Err(Reason::TooShort);
        }
        if !sending.link {
            return Err(Reason::LinkDown);
        }
        let mut offload = offload(&mut draft, first, sending.tunnels)?;
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
        cx.counters.sent(sending.number, u64::from(frames), u64::from(len));
        Ok(())
    }

    /// Completes descriptors up to packet `last`, and dropped packets right after it. Their interrupt is coalesced by the driver's
    /// setting; true if there were any.
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

/// The first descriptor's request as a neutral offload.
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

/// Completes the headers of a packet to be segmented into those of one big packet: Linux `vmxnet3_prepare_tso` omits IPv4's header
/// checksum and the length in TCP's pseudo-header.
fn complete_headers(head: &mut [u8], len: u32, headers: u16) -> Option<Checksum> {
    let layout = Layout::parse(head);
    let l4 = layout.l4?;
    if l4.kind != L4Kind::Tcp || layout.headers_len != headers || len < u32::from(headers) {
        return None;
    }
    let field = checksum::prepare(head, &layout, len)?;
    Some(Checksum::Partial { start: l4.offset, field })
}

/// The same for a frame in a tunnel. The descriptor gives the end of its headers, but the place of its checksum only in version 7.
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
