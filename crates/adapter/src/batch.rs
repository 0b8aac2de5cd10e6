//! Frames on their way: a private head each, spans of the sender's memory for the rest, the offloads asked for.
//!
//! The head is copied out of guest memory once, and every decision reads that copy: a guest that rewrites its buffer
//! while it is sent changes only its own payload. A VLAN tag that the sender's descriptor carries is put into the
//! private head, so that a tag is always where the wire would have it.

use std::cell::OnceCell;
use std::sync::Arc;

use arrayvec::ArrayVec;
use nicety_frame::Layout;
pub use nicety_frame::SegmentKind;
use nicety_memory::{Fault, Map, Rights, Span};

/// Packets in a batch at most.
pub const PACKETS: usize = 64;
/// Bytes of a packet that are copied into its private head, unless its offload names more headers.
pub const HEAD_BYTES: usize = 128;
/// Bytes of a private head at most.
pub const HEAD_MOST: usize = 512;
/// Spans in a batch at most.
pub const SPANS: usize = 1024;
/// Spans in one packet at most: a 64 KB packet in 256-byte pieces.
pub const SPANS_PER_PACKET: usize = 256;
/// Bytes of a packet at most: an IPv6 packet of 64 KB with its headers, and a little.
pub const PACKET_BYTES: u32 = 65_535 + 512;
/// Room behind a head for tags that are inserted on the way.
const HEAD_SLACK: usize = 8;

/// A port of the switch, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

/// What is left to do about the transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The frame is as it is. Nobody vouches for it.
    #[default]
    AsIs,
    /// The frame is whole, and whoever brought it has verified its transport checksum.
    Verified,
    /// The field holds the folded pseudo-header sum; whoever puts the frame on a wire adds all from `start` to the
    /// end and stores the complement. Offsets from the frame's first byte.
    Partial {
        /// First byte that is summed.
        start: u16,
        /// Where the 16-bit result goes.
        field: u16,
    },
}

/// A request to cut a packet into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub kind: SegmentKind,
    /// Payload bytes of each frame but the last; never 0.
    pub mss: u16,
    /// Bytes of all headers, which each frame repeats.
    pub headers: u16,
}

/// What the sender's driver left to its adapter, in neutral words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The transport checksum.
    pub checksum: Checksum,
    /// Segmentation; implies that checksums are to be made.
    pub segment: Option<Segment>,
}

/// One packet of a [`Batch`].
#[derive(Clone, Debug)]
pub struct Packet {
    head_at: u32,
    head_len: u16,
    spans_at: u16,
    spans: u16,
    payload: u32,
    /// What is left to do on the way.
    pub offload: Offload,
    /// What the private head was understood as, once somebody asked.
    layout: OnceCell<Layout>,
    /// The sender's own note, for [`complete`](crate::Adapter::complete): which descriptors to give back.
    pub cookie: u64,
}

impl Packet {
    /// Bytes in all, without a frame check sequence.
    pub fn len(&self) -> u32 {
        u32::from(self.head_len) + self.payload
    }

    /// A packet of no bytes cannot be drafted; so never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes behind the private head.
    pub fn payload_len(&self) -> u32 {
        self.payload
    }

    /// Frames on the wire after segmentation.
    pub fn frames(&self) -> u32 {
        match self.offload.segment {
            Some(Segment { mss, headers, .. }) if mss > 0 => {
                self.len().saturating_sub(u32::from(headers)).div_ceil(u32::from(mss)).max(1)
            }
            _ => 1,
        }
    }
}

/// Why a packet could not be drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftError {
    /// Its memory is not there.
    Fault(Fault),
    /// More pieces than [`SPANS_PER_PACKET`].
    TooManyPieces,
    /// Longer than [`PACKET_BYTES`].
    TooLong,
    /// The batch's span table is full; the packet may go in the next one.
    BatchFull,
}

/// Packets out of one queue of one port. Made once, reused for ever: it allocates nothing after `new`.
#[derive(Debug)]
pub struct Batch {
    source: Arc<Map>,
    /// What it holds when it holds nobody's memory: made once, because making it allocates.
    nothing: Arc<Map>,
    /// The port that they come from.
    pub origin: PortId,
    /// Its transmit queue.
    pub queue: u16,
    /// The adapter's generation when they were fetched: a reset since makes their completion stale.
    pub generation: u32,
    packets: ArrayVec<Packet, PACKETS>,
    heads: Box<[u8]>,
    heads_used: usize,
    spans: Vec<Span>,
    bytes: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch, with all the room it will ever have.
    pub fn new() -> Self {
        let nothing = Map::empty();
        Self {
            source: Arc::clone(&nothing),
            nothing,
            origin: PortId::default(),
            queue: 0,
            generation: 0,
            packets: ArrayVec::new(),
            heads: vec![0; PACKETS * (HEAD_MOST + HEAD_SLACK)].into_boxed_slice(),
            heads_used: 0,
            spans: Vec::with_capacity(SPANS),
            bytes: 0,
        }
    }

    /// Empties it, to be filled from `source`.
    pub fn start(&mut self, source: &Arc<Map>, origin: PortId, queue: u16) {
        if !Arc::ptr_eq(&self.source, source) {
            self.source = Arc::clone(source);
        }
        (self.origin, self.queue) = (origin, queue);
        self.clear();
    }

    /// Empties it, and lets go of the sender's memory.
    pub fn release(&mut self) {
        self.source = Arc::clone(&self.nothing);
        self.clear();
    }

    fn clear(&mut self) {
        self.packets.clear();
        self.spans.clear();
        self.heads_used = 0;
        self.bytes = 0;
    }

    /// The memory that its spans lie in.
    pub fn source(&self) -> &Arc<Map> {
        &self.source
    }

    /// The packets, in order.
    pub fn packets(&self) -> &[Packet] {
        &self.packets
    }

    /// One packet.
    pub fn packet(&self, index: u16) -> Option<&Packet> {
        self.packets.get(usize::from(index))
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether it holds no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Bytes of all its packets.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A packet's private head: at least all its headers, at least [`HEAD_BYTES`] if it is that long.
    pub fn head(&self, packet: &Packet) -> &[u8] {
        let at = packet.head_at as usize;
        self.heads.get(at..at + usize::from(packet.head_len)).unwrap_or_default()
    }

    /// What its private head is understood as: parsed when it is first asked for, which is never on the way of a plain
    /// frame to a receiver that takes it as it is.
    #[inline]
    pub fn layout<'a>(&self, packet: &'a Packet) -> &'a Layout {
        packet.layout.get_or_init(|| Layout::parse(self.head(packet)))
    }

    /// What follows the head, in the sender's memory.
    pub fn spans(&self, packet: &Packet) -> &[Span] {
        let at = usize::from(packet.spans_at);
        self.spans.get(at..at + usize::from(packet.spans)).unwrap_or_default()
    }

    /// Begins a packet whose private head shall hold `head` bytes (more than [`HEAD_MOST`] is cut to it).
    /// `None` if the batch is full.
    pub fn draft(&mut self, head: usize) -> Option<Draft<'_>> {
        if self.packets.is_full() {
            return None;
        }
        let (head_at, spans_at) = (self.heads_used, self.spans.len());
        Some(Draft {
            head_want: head.clamp(HEAD_BYTES, HEAD_MOST),
            head_at,
            head_len: 0,
            spans_at,
            payload: 0,
            batch: self,
        })
    }
}

/// A packet in the making. Dropped without [`Draft::finish`] it leaves the batch as it was.
#[derive(Debug)]
pub struct Draft<'b> {
    batch: &'b mut Batch,
    head_want: usize,
    head_at: usize,
    head_len: usize,
    spans_at: usize,
    payload: u32,
}

impl Draft<'_> {
    /// Bytes so far.
    pub fn len(&self) -> u32 {
        self.head_len as u32 + self.payload
    }

    /// Whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `len` bytes of the sender's memory: the first go into the private head, the rest is translated.
    pub fn push(&mut self, address: u64, len: u32) -> Result<(), DraftError> {
        if self.len().checked_add(len).is_none_or(|total| total > PACKET_BYTES) {
            return Err(DraftError::TooLong);
        }
        let for_head =
            if self.payload > 0 { 0 } else { (self.head_want - self.head_len.min(self.head_want)).min(len as usize) };
        if for_head > 0 {
            let at = self.head_at + self.head_len;
            self.batch.source.read(address, &mut self.batch.heads[at..at + for_head]).map_err(DraftError::Fault)?;
            self.head_len += for_head;
        }
        let rest = len - for_head as u32;
        if rest > 0 {
            let address = address.checked_add(for_head as u64);
            let address = address.ok_or(DraftError::Fault(Fault::Refused { address: u64::MAX, len: rest }))?;
            self.push_spans(address, rest)?;
        }
        Ok(())
    }

    fn push_spans(&mut self, address: u64, len: u32) -> Result<(), DraftError> {
        let Batch { source, spans, .. } = &mut *self.batch;
        let first = self.spans_at;
        let mut full = None;
        let translated = source.translate(address, len, Rights::READ, |span| {
            if spans.len() > first && spans.last_mut().is_some_and(|last| last.joins(span)) {
                return true;
            }
            if spans.len() - first >= SPANS_PER_PACKET {
                full = Some(DraftError::TooManyPieces);
            } else if spans.len() >= SPANS {
                full = Some(DraftError::BatchFull);
            } else {
                spans.push(span);
            }
            full.is_none()
        });
        match (full, translated) {
            (Some(error), _) => return Err(error),
            (None, Err(fault)) => return Err(DraftError::Fault(fault)),
            (None, Ok(())) => self.payload += len,
        }
        Ok(())
    }

    /// Appends a span of the batch's source map, already translated: what an uplink's own buffers are.
    pub fn push_span(&mut self, span: Span) -> Result<(), DraftError> {
        if self.len().checked_add(span.len()).is_none_or(|total| total > PACKET_BYTES) {
            return Err(DraftError::TooLong);
        }
        let mut span = span;
        if self.payload == 0 && self.head_len < self.head_want {
            let for_head = (self.head_want - self.head_len).min(span.len() as usize);
            let at = self.head_at + self.head_len;
            self.batch.source.read_span(span.piece(0, for_head as u32), &mut self.batch.heads[at..at + for_head]);
            self.head_len += for_head;
            span = span.piece(for_head as u32, span.len());
        }
        if !span.is_empty() {
            if self.batch.spans.len() - self.spans_at >= SPANS_PER_PACKET {
                return Err(DraftError::TooManyPieces);
            }
            if self.batch.spans.len() >= SPANS {
                return Err(DraftError::BatchFull);
            }
            self.batch.spans.push(span);
            self.payload += span.len();
        }
        Ok(())
    }

    /// The private head, to read and to edit in place (a header checksum that the sender left to its adapter).
    pub fn head_mut(&mut self) -> &mut [u8] {
        &mut self.batch.heads[self.head_at..self.head_at + self.head_len]
    }

    /// Pads with zeros to `len` bytes (60: the shortest frame without its check sequence), if all is in the head.
    pub fn pad_to(&mut self, len: usize) {
        let len = len.min(HEAD_BYTES);
        if self.payload == 0 && self.head_len < len {
            self.batch.heads[self.head_at + self.head_len..self.head_at + len].fill(0);
            self.head_len = len;
        }
    }

    /// Puts an 802.1Q tag with this control information behind the addresses. Offsets that an [`Offload`] names must
    /// count it. False if the frame has no addresses, or tags enough.
    pub fn tag(&mut self, control: u16) -> bool {
        if self.head_len < 14 || self.head_len + 4 > HEAD_MOST + HEAD_SLACK {
            return false;
        }
        let head = &mut self.batch.heads[self.head_at..self.head_at + self.head_len + 4];
        head.copy_within(12..self.head_len, 16);
        head[12..14].copy_from_slice(&0x8100u16.to_be_bytes());
        head[14..16].copy_from_slice(&control.to_be_bytes());
        self.head_len += 4;
        true
    }

    /// The packet is whole: it joins the batch.
    pub fn finish(mut self, offload: Offload, cookie: u64) {
        let packet = Packet {
            head_at: self.head_at as u32,
            head_len: self.head_len as u16,
            spans_at: self.spans_at as u16,
            spans: (self.batch.spans.len() - self.spans_at) as u16,
            payload: self.payload,
            offload,
            layout: OnceCell::new(),
            cookie,
        };
        self.batch.bytes += u64::from(packet.len());
        self.batch.heads_used = self.head_at + self.head_len;
        self.batch.packets.push(packet);
        self.spans_at = self.batch.spans.len();
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.batch.spans.truncate(self.spans_at);
    }
}
