//! Frames in flight: a private head each, spans of the sender's memory for the rest, and the requested offloads.
//!
//! The head is copied out of guest memory once, and every decision uses that copy. A guest that rewrites its buffer during
//! transmission changes only its own payload. A VLAN tag in the sender's descriptor is inserted into the private head, so a tag is
//! always at its wire position.
//!
//! The heads and their parses are arrays with an element for each packet. So for a short frame without an offload only its bytes and an
//! entry of 32 bytes are written ([`Plain`]).

use std::cell::{Cell, OnceCell};
use std::sync::Arc;

use nicety_frame::Layout;
pub use nicety_frame::SegmentKind;
use nicety_memory::{Map, Span};

mod admit;
mod draft;
mod plain;

pub use draft::{Admitted, Draft, DraftError};
pub use plain::Plain;

/// Most packets in a batch.
pub const PACKETS: usize = 64;
/// Bytes of a packet that are copied into its private head, unless its offload names more headers.
pub const HEAD_BYTES: usize = 128;
/// Most bytes of a private head.
pub const HEAD_MAX: usize = 512;
/// Most spans in a batch.
pub const SPANS: usize = 1024;
/// Most spans in one packet: a 64 KB packet in 256-byte pieces.
pub const SPANS_PER_PACKET: usize = 256;
/// Most bytes of a packet: an IPv6 packet of 64 KB with its headers, and some reserve.
pub const PACKET_BYTES: u32 = 65_535 + 512;
/// Room behind a head for tags inserted later.
const HEAD_SLACK: usize = 8;
/// Bytes from one head to the next: an odd number of cache lines, so that the heads' first lines are of different sets of a cache.
const HEAD_PLACE: usize = 9 * 64;

/// The place of a private head. A frame of 64 bytes is one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Head([u8; HEAD_PLACE]);

/// A port of the switch, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// The state of the transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The frame is complete; its checksum was not verified.
    #[default]
    AsIs,
    /// The frame is complete, and its checksum was verified.
    Verified,
    /// The field holds the folded pseudo-header sum. Before the frame goes on a wire, all bytes from `start` to the end are added,
    /// and the complement is stored. Offsets from the frame's first byte.
    Partial {
        /// First byte that is summed.
        start: u16,
        /// Offset of the 16-bit result.
        field: u16,
    },
}

/// A request to segment a packet into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The kind.
    pub kind: SegmentKind,
    /// Payload bytes of each frame but the last; never 0.
    pub mss: u16,
    /// Bytes of all headers, which each frame repeats.
    pub headers: u16,
}

/// Most frames of one packet. A packet with 65,000 frames of one byte would occupy its receiver's port for milliseconds. Linux
/// sends no segments below 48 bytes (`net.ipv4.tcp_min_snd_mss`): 1366 per packet of 64 KiB.
pub const FRAMES_PER_PACKET: u32 = 2048;

impl Segment {
    /// The request for a packet of `len` bytes; `None` without a maximum segment size, or for more than [`FRAMES_PER_PACKET`].
    pub fn of(kind: SegmentKind, mss: u16, headers: u16, len: u32) -> Option<Self> {
        let this = Self { kind, mss, headers };
        (mss > 0 && this.frames(len) <= FRAMES_PER_PACKET).then_some(this)
    }

    /// Number of frames that a packet of `len` bytes becomes.
    pub fn frames(&self, len: u32) -> u32 {
        len.saturating_sub(u32::from(self.headers)).div_ceil(u32::from(self.mss.max(1))).max(1)
    }
}

/// The offloads that the sender's driver requested, in adapter-independent form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The transport checksum.
    pub checksum: Checksum,
    /// Segmentation; implies that checksums must be computed.
    pub segment: Option<Segment>,
}

impl Offload {
    /// Whether any byte of the packet must still be written.
    #[inline]
    pub fn changes_bytes(&self) -> bool {
        self.segment.is_some() || matches!(self.checksum, Checksum::Partial { .. })
    }

    /// The same request after the packet [got a tag](Draft::tag): its offsets grow by four bytes.
    #[must_use]
    pub fn behind_tag(mut self) -> Self {
        const TAG: u16 = 4;
        if let Checksum::Partial { start, field } = &mut self.checksum {
            (*start, *field) = (start.saturating_add(TAG), field.saturating_add(TAG));
        }
        if let Some(segment) = &mut self.segment {
            segment.headers = segment.headers.saturating_add(TAG);
        }
        self
    }
}

/// One packet of a [`Batch`].
#[derive(Clone, Copy, Debug, Default)]
// In this order, the zeros of a packet without spans are one store.
#[repr(C)]
pub struct Packet {
    /// The sender's own value for [`complete`](crate::Adapter::complete): which descriptors to complete.
    pub cookie: u64,
    payload: u32,
    spans_at: u16,
    spans: u16,
    /// The offloads still to do.
    pub offload: Offload,
    head_len: u16,
    /// Its index in the batch.
    index: u16,
}

const _: () = assert!(size_of::<Packet>() == 32);

impl Packet {
    /// Its length in bytes, without a frame check sequence.
    #[inline]
    pub fn len(&self) -> u32 {
        u32::from(self.head_len).wrapping_add(self.payload)
    }

    /// Always false: an empty packet cannot be drafted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of its private head.
    #[inline]
    pub fn head_len(&self) -> u16 {
        self.head_len
    }

    /// Bytes behind the private head.
    #[inline]
    pub fn payload_len(&self) -> u32 {
        self.payload
    }

    /// Frames on the wire after segmentation.
    #[inline]
    pub fn frames(&self) -> u32 {
        self.offload.segment.map_or(1, |segment| segment.frames(self.len()))
    }

    /// Bytes on the wire after segmentation: each frame has the headers.
    #[inline]
    pub fn wire_bytes(&self) -> u64 {
        let len = self.len();
        let Some(segment) = self.offload.segment else { return len.into() };
        u64::from(len) + u64::from(segment.frames(len) - 1) * u64::from(segment.headers)
    }
}

/// Packets from one queue of one port. Made once and reused: it allocates nothing after `new`.
#[derive(Debug)]
pub struct Batch {
    source: Arc<Map>,
    /// The source of an empty batch: made once, because each new map allocates.
    nothing: Arc<Map>,
    /// The port that the packets come from.
    pub origin: PortId,
    /// The sender under which these packets wait at an uplink: `origin`, or the part of it that one worker serves.
    pub sender: PortId,
    /// Its transmit queue.
    pub queue: u16,
    /// The adapter's generation when the packets were fetched. If the generation has changed since, the completion of the batch is stale.
    pub generation: u32,
    packets: Box<[Packet; PACKETS]>,
    len: usize,
    /// Each packet's parsed head, made on first use. Empty from `len` on, but for a draft's.
    layouts: Box<[OnceCell<Layout>; PACKETS]>,
    /// Whether a head was parsed.
    is_parsed: Cell<bool>,
    heads: Box<[Head; PACKETS]>,
    spans: Vec<Span>,
    bytes: u64,
    summed: u64,
}

/// The head of a packet whose length cannot be. A call, so that the usual case is a branch: a choice between two heads is five instructions more.
#[cold]
#[inline(never)]
fn no_head() -> &'static [u8] {
    &[]
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch, with its whole capacity allocated.
    pub fn new() -> Self {
        let nothing = Map::empty();
        Self {
            source: Arc::clone(&nothing),
            nothing,
            origin: PortId::default(),
            sender: PortId::default(),
            queue: 0,
            generation: 0,
            packets: Box::new([Packet::default(); PACKETS]),
            len: 0,
            layouts: Box::new([const { OnceCell::new() }; PACKETS]),
            is_parsed: Cell::new(false),
            heads: Box::new([Head([0; HEAD_PLACE]); PACKETS]),
            spans: Vec::with_capacity(SPANS),
            bytes: 0,
            summed: 0,
        }
    }

    /// Empties the batch, to be filled from `source`.
    pub fn start(&mut self, source: &Arc<Map>, origin: PortId, queue: u16) {
        if !Arc::ptr_eq(&self.source, source) {
            self.source = Arc::clone(source);
        }
        (self.origin, self.sender, self.queue) = (origin, origin, queue);
        self.clear();
    }

    /// Empties the batch, and releases the sender's memory.
    pub fn release(&mut self) {
        self.source = Arc::clone(&self.nothing);
        self.clear();
    }

    fn clear(&mut self) {
        if self.is_parsed.take() {
            self.layouts.iter_mut().take(self.len).for_each(|layout| *layout = OnceCell::new());
        }
        self.len = 0;
        self.spans.clear();
        self.bytes = 0;
        self.summed = 0;
    }

    /// The memory of its spans.
    #[inline]
    pub fn source(&self) -> &Arc<Map> {
        &self.source
    }

    /// The packets, in order.
    #[inline]
    pub fn packets(&self) -> &[Packet] {
        &self.packets[..self.len.min(PACKETS)]
    }

    /// One packet.
    #[inline]
    pub fn packet(&self, index: u16) -> Option<&Packet> {
        self.packets().get(usize::from(index))
    }

    /// Number of packets.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all its packets.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes behind the heads that were read to make checksums, for packets that joined the batch and for others. The port is charged for
    /// them, because reading takes as long as a copy, and the packets may have no receiver.
    #[inline]
    pub fn summed(&self) -> u64 {
        self.summed
    }

    /// A packet's private head: at least all its headers, and at least [`HEAD_BYTES`] if the packet is that long.
    #[inline]
    pub fn head(&self, packet: &Packet) -> &[u8] {
        let Head(bytes) = &self.heads[usize::from(packet.index) % PACKETS];
        match bytes.get(..packet.head_len.into()) {
            Some(head) => head,
            None => no_head(),
        }
    }

    /// Its parsed private head. It is parsed on first use, which never happens for a plain frame to a receiver that takes it
    /// unchanged.
    #[inline]
    pub fn layout(&self, packet: &Packet) -> &Layout {
        self.layouts[usize::from(packet.index) % PACKETS].get_or_init(|| {
            self.is_parsed.set(true);
            Layout::parse(self.head(packet))
        })
    }

    /// The data behind the head, in the sender's memory.
    #[inline]
    pub fn spans(&self, packet: &Packet) -> &[Span] {
        let at = usize::from(packet.spans_at);
        self.spans.get(at..at + usize::from(packet.spans)).unwrap_or_default()
    }

    /// Copies a packet's first bytes, as far as there is room, and returns their number: the private head, then the sender's memory,
    /// which the sender may change before a later read.
    pub fn copy(&self, packet: &Packet, to: &mut [u8]) -> usize {
        let head = self.head(packet);
        let mut at = head.len().min(to.len());
        to[..at].copy_from_slice(&head[..at]);
        for span in self.spans(packet) {
            let end = to.len().min(at + span.len() as usize);
            self.source.read_span(*span, &mut to[at..end]);
            at = end;
        }
        at
    }

    /// Begins a packet with a private head of `head` bytes (at most [`HEAD_MAX`]). `None` if the batch is full.
    #[inline]
    pub fn draft(&mut self, head: usize) -> Option<Draft<'_>> {
        if self.len >= PACKETS {
            return None;
        }
        Some(Draft::begin(self, head))
    }
}
