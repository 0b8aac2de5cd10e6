//! Receive coalescing: consecutive TCP segments become one packet on arrival, as the sender had it before it was cut.
//!
//! A receiver that takes packets whole (vmxnet3 with LRO, virtio-net, a tap) then handles one packet instead of 45 frames. For any
//! other receiver the packet is cut again, into the frames that arrived. Linux does the same for its own stack (GRO,
//! `tcp_gro_receive()` of net/ipv4/tcp_offload.c), with the same rules: only segments in sequence, which carry nothing but data and
//! an acknowledgement, with equal headers except the counting fields, and all of one length except the last. Cut again, they are
//! the same bytes. No segment waits for one that has not arrived.
//!
//! Checksums are verified here, since the packet has only one for all: a damaged segment stays as it arrived.

use nicety_adapter::{Batch, Checksum, Counters, Offload, Reason, Segment, SegmentKind};
use nicety_frame::checksum::{self, Verdict};
use nicety_frame::tcp::flag;
use nicety_frame::{Fragment, L3Kind, L4Kind, Layout};
use nicety_memory::{Map, Span};

/// The longest frame that is examined: jumbo frames and their tags.
const FRAME_MAX: usize = 9_216;
/// Most bytes of all headers: two tags, IPv6 or IPv4 with options, TCP with options.
const HEADERS_MAX: usize = 22 + 60 + 60;
/// Longest IP packet in bytes, its header included: IPv4's total length holds no more (RFC 791 section 3.1). IPv6's payload length
/// excludes the first forty bytes (RFC 8200 section 3), but by default Linux does not join more of it either (`skb_gro_receive()`
/// of net/core/gro.c).
const IP_MAX: u32 = 65_535;
/// Most frames in one packet.
const FRAMES_MAX: usize = 64;

/// Headers without the fields that differ between segments of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Common {
    bytes: [u8; HEADERS_MAX],
    len: usize,
}

/// A frame that may be part of a packet.
#[derive(Clone, Copy, Debug)]
struct Part {
    common: Common,
    layout: Layout,
    sequence: u32,
    /// IPv4's identification, which increases by one per segment; 0 for IPv6.
    identification: u16,
    payload: u16,
    push: bool,
}

/// The packet that is being joined.
#[derive(Debug)]
struct Open {
    first: Part,
    frames: usize,
    /// Payload bytes of all its frames.
    payload: u32,
    push: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Joining {
    open: Option<Open>,
    /// The open packet's frames, at most `frames` of them. Not a part of [`Open`]: it would be cleared and moved for each packet.
    spans: Box<[Span; FRAMES_MAX]>,
    scratch: Box<[u8; FRAME_MAX]>,
}

impl Joining {
    pub(crate) fn new() -> Self {
        Self { open: None, spans: Box::new([Span::default(); FRAMES_MAX]), scratch: Box::new([0; FRAME_MAX]) }
    }

    /// Whether a packet is being joined.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Payload bytes of the packet that is being joined.
    pub(crate) fn bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| u64::from(open.payload))
    }

    /// Takes a frame of `map`: into the open packet, or into the batch behind it. The batch must have room for two packets.
    pub(crate) fn take(&mut self, map: &Map, span: Span, batch: &mut Batch, counters: &mut Counters) {
        let Some(part) = self.part(map, span) else {
            self.close(batch, counters);
            put(&[span], None, batch, counters);
            return;
        };
        if self.open.as_ref().is_some_and(|open| !open.continues_with(&part)) {
            self.close(batch, counters);
        }
        let open = self.open.get_or_insert_with(|| Open::new(part));
        if let Some(slot) = self.spans.get_mut(open.frames) {
            *slot = open.add(&part, span);
        }
        if part.push || part.payload < open.first.payload || open.frames == FRAMES_MAX {
            self.close(batch, counters);
        }
    }

    /// Closes the open packet, and puts it into the batch.
    pub(crate) fn close(&mut self, batch: &mut Batch, counters: &mut Counters) {
        if let Some(open) = self.open.take() {
            let spans = self.spans.get(..open.frames).unwrap_or(&[]);
            put(spans, Some(&open), batch, counters);
        }
    }

    /// The facts that joining needs about a frame; `None` if it must stay alone.
    fn part(&mut self, map: &Map, span: Span) -> Option<Part> {
        let frame = self.scratch.get_mut(..span.len() as usize)?;
        map.read_span(span, frame);
        Part::of(frame)
    }
}

impl Part {
    fn of(frame: &[u8]) -> Option<Self> {
        let layout = Layout::parse(frame);
        let (l3, l4) = (layout.l3?, layout.l4?);
        if l4.kind != L4Kind::Tcp || l3.fragment != Fragment::Whole {
            return None;
        }
        let headers = usize::from(layout.headers_len);
        let (ip, tcp) = (usize::from(l3.offset), usize::from(l4.offset));
        // The frame has no padding, and some payload.
        let payload = frame.len().checked_sub(headers).filter(|payload| *payload > 0)?;
        if layout.l4_total_len(frame)? != frame.len() - tcp {
            return None;
        }
        let flags = *frame.get(tcp + 13)?;
        if flags & !flag::PSH != flag::ACK {
            return None;
        }
        let mut bytes = [0; HEADERS_MAX];
        let head = bytes.get_mut(..headers)?;
        head.copy_from_slice(frame.get(..headers)?);
        let mut identification = 0;
        match l3.kind {
            L3Kind::V4 => {
                let header = frame.get(ip..ip + usize::from(l3.len))?;
                if header.get(10..12) == Some(&[0xff; 2]) || !checksum::sum(header).verify() {
                    return None;
                }
                identification = u16::from_be_bytes(frame.get(ip + 4..ip + 6)?.try_into().ok()?);
                head.get_mut(ip + 2..ip + 6)?.fill(0);
                head.get_mut(ip + 10..ip + 12)?.fill(0);
            }
            L3Kind::V6 if l3.len == 40 => head.get_mut(ip + 4..ip + 6)?.fill(0),
            L3Kind::V6 => return None,
        }
        // Zero has two valid forms, and our checksum code writes only one of them: 0 in IPv4's header, 0xffff in TCP's. A segment
        // with the other form stays alone.
        if frame.get(l4.checksum_at()..l4.checksum_at() + 2)? == [0; 2] {
            return None;
        }
        let sequence = u32::from_be_bytes(frame.get(tcp + 4..tcp + 8)?.try_into().ok()?);
        head.get_mut(tcp + 4..tcp + 8)?.fill(0);
        *head.get_mut(tcp + 13)? = flag::ACK;
        head.get_mut(tcp + 16..tcp + 18)?.fill(0);
        if checksum::check(frame, &layout) != Verdict::Good {
            return None;
        }
        let common = Common { bytes, len: headers };
        let (payload, push) = (u16::try_from(payload).ok()?, flags & flag::PSH != 0);
        Some(Self { common, layout, sequence, identification, payload, push })
    }
}

impl Open {
    fn new(first: Part) -> Self {
        Self { first, frames: 0, payload: 0, push: false }
    }

    fn continues_with(&self, next: &Part) -> bool {
        let l2 = u32::from(self.first.layout.l2_len);
        next.sequence == self.first.sequence.wrapping_add(self.payload)
            && next.identification == self.next_identification()
            && next.payload <= self.first.payload
            && next.common == self.first.common
            && self.first.common.len as u32 - l2 + self.payload + u32::from(next.payload) <= IP_MAX
    }

    fn next_identification(&self) -> u16 {
        let counts = self.first.layout.l3.is_some_and(|l3| l3.kind == L3Kind::V4);
        self.first.identification.wrapping_add(if counts { self.frames as u16 } else { 0 })
    }

    /// Adds a frame. Returns its bytes in the packet: of all frames but the first only the payload.
    fn add(&mut self, part: &Part, span: Span) -> Span {
        let headers = if self.frames == 0 { 0 } else { u32::from(part.layout.headers_len) };
        self.frames += 1;
        self.payload += u32::from(part.payload);
        self.push = part.push;
        span.piece(headers, span.len())
    }

    /// Turns a first segment's headers into those of the whole packet, and returns how the packet may be cut.
    fn complete(&self, head: &mut [u8]) -> Option<Offload> {
        let layout = &self.first.layout;
        let (l4, len) = (layout.l4?, u32::from(layout.headers_len) + self.payload);
        *head.get_mut(usize::from(l4.offset) + 13)? |= if self.push { flag::PSH } else { 0 };
        let field = checksum::prepare(head, layout, len)?;
        let segment = Segment::of(SegmentKind::Tcp, self.first.payload, layout.headers_len, len)?;
        Some(Offload { checksum: Checksum::Partial { start: l4.offset, field }, segment: Some(segment) })
    }
}

/// Puts a packet into the batch: joined frames, or one frame as it arrived.
fn put(spans: &[Span], open: Option<&Open>, batch: &mut Batch, counters: &mut Counters) {
    let bytes = spans.iter().map(|span| u64::from(span.len())).sum::<u64>();
    let frames = spans.len() as u64;
    let headers = open.map_or(0, |open| u64::from(open.first.layout.headers_len));
    match draft(spans, open, batch) {
        Ok(()) => counters.sent(0, frames, bytes + frames.saturating_sub(1) * headers),
        Err(reason) => spans.iter().for_each(|_| counters.transmit_drop(reason)),
    }
}

fn draft(spans: &[Span], open: Option<&Open>, batch: &mut Batch) -> Result<(), Reason> {
    let headers = open.map_or(0, |open| usize::from(open.first.layout.headers_len));
    let mut draft = batch.draft(headers).ok_or(Reason::BufferFull)?;
    for span in spans {
        draft.push_span(*span).map_err(|_| Reason::TooLong)?;
    }
    let offload = match open {
        Some(open) if spans.len() > 1 => open.complete(draft.head_mut()).ok_or(Reason::BadOffload)?,
        Some(_) => Offload { checksum: Checksum::Verified, segment: None },
        None => Offload::default(),
    };
    draft.finish(offload, 0)
}
