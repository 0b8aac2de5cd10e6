//! Software segmentation: cuts a big TCP packet (TSO) or UDP datagram (USO) into frames that a receiver can take.
//!
//! Follows the hardware of adapters (Intel 8254x software developer's manual, "TCP Segmentation"; Linux
//! Documentation/networking/segmentation-offloads.rst). Segments are reached by index: a delivery that stopped at segment
//! `i` continues there, and needs only the private head.

use crate::bytes::{array_at, put, u16_at, u32_at};
use crate::checksum::{self, Sum, sum};
use crate::layout::{Fragment, L3, L3Kind, L4, L4Kind, Layout};
use crate::tcp::flag;
use crate::tunnel::Tunnel;
use core::fmt;
use core::ops::Range;

/// Longest payload of one packet to segment: the 20 bits of PAYLEN in the context descriptor of Intel's 8254x and 8257x.
pub const PAYLOAD_LEN_MAX: usize = (1 << 20) - 1;

/// The sender's request, which must fit the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// TCP segmentation offload.
    Tcp,
    /// UDP segmentation offload: every segment is a datagram of its own.
    Udp,
    /// TCP in a [`Tunnel`]: every segment has the outer headers too.
    Tunnel,
}

/// Reasons why a packet cannot be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentError {
    /// The request names segments of 0 bytes.
    ZeroSize,
    /// The head is not TCP or UDP over IP, as the request claims.
    Protocol,
    /// The packet is a fragment already.
    Fragment,
    /// The layout belongs to another head, or the headers are cut off.
    Headers,
    /// The payload is longer than [`PAYLOAD_LEN_MAX`], or a segment is too long for IP's length field.
    TooLong,
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ZeroSize => "segments of 0 bytes were asked for",
            Self::Protocol => "the packet is not of the protocol that the segmentation request names",
            Self::Fragment => "the packet is a fragment already",
            Self::Headers => "the headers are cut off or do not fit their layout",
            Self::TooLong => "the payload or a segment is longer than allowed",
        })
    }
}

impl core::error::Error for SegmentError {}

/// One segment. Its head is in the caller's buffer; its payload is still in the big packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of headers written.
    pub head_len: usize,
    /// The segment's bytes of the big packet's payload; 0 is the first byte behind the big packet's headers.
    pub payload: Range<usize>,
    /// Offset of the first byte that the checksum covers: the L4 header.
    pub checksum_start: usize,
    /// Offset of the checksum field from `checksum_start`. It holds the folded sum of the pseudo-header, which
    /// [`checksum::complete`] finishes.
    pub checksum_offset: usize,
    /// No segment follows.
    pub last: bool,
}

impl Segment {
    /// Length of the frame: head and payload.
    pub const fn len(&self) -> usize {
        self.head_len + (self.payload.end - self.payload.start)
    }

    /// Never true: a segment has headers.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A packet that is being segmented: plain state, cheap to make again.
#[derive(Clone, Copy, Debug)]
pub struct Segmenter<'a> {
    head: &'a [u8],
    l3: L3,
    l4: L4,
    payload_len: usize,
    mss: u16,
    /// IPv4: sum of the header without total length, identification and checksum.
    header: Sum,
    /// Sum of the pseudo-header without the length.
    pseudo: Sum,
    /// IPv4: identification of segment 0.
    id: u16,
    /// TCP: sequence number of segment 0.
    sequence: u32,
    /// The tunnel and its own headers.
    tunnel: Option<(Tunnel, Layout)>,
}

impl<'a> Segmenter<'a> {
    /// Prepares a packet. `head` holds all headers that `layout` describes; payload bytes behind them are not used.
    /// `payload_len` bytes follow the headers. Each segment takes `mss` of them, and the last takes the rest.
    /// The big packet's own length and checksum fields are not read, with one exception: a tunnel's UDP checksum field of 0
    /// means that the tunnel has no UDP checksum.
    pub fn new(
        head: &'a [u8],
        layout: &Layout,
        payload_len: usize,
        mss: u16,
        kind: SegmentKind,
    ) -> Result<Self, SegmentError> {
        if mss == 0 {
            return Err(SegmentError::ZeroSize);
        }
        let tunnel = match kind {
            SegmentKind::Tunnel => Some((Tunnel::parse(head, layout).ok_or(SegmentError::Protocol)?, *layout)),
            SegmentKind::Tcp | SegmentKind::Udp => None,
        };
        let outer = layout.l3.ok_or(SegmentError::Protocol)?;
        let layout = tunnel.as_ref().map_or(layout, |(tunnel, _)| &tunnel.inner);
        let (Some(l3), Some(l4)) = (layout.l3, layout.l4) else { return Err(SegmentError::Protocol) };
        match (kind, l4.kind) {
            (SegmentKind::Tcp | SegmentKind::Tunnel, L4Kind::Tcp) | (SegmentKind::Udp, L4Kind::Udp) => {}
            _ => return Err(SegmentError::Protocol),
        }
        if l3.fragment != Fragment::Whole {
            return Err(SegmentError::Fragment);
        }
        let chained = usize::from(l3.offset) == usize::from(layout.l2_len)
            && usize::from(l4.offset) == usize::from(l3.offset) + usize::from(l3.len)
            && usize::from(layout.headers_len) == usize::from(l4.offset) + usize::from(l4.len);
        let head = head.get(..usize::from(layout.headers_len)).filter(|_| chained).ok_or(SegmentError::Headers)?;
        let longest = payload_len.min(usize::from(mss));
        // IPv4 counts its own header, IPv6 only the bytes behind the fixed one: never more than this.
        if payload_len > PAYLOAD_LEN_MAX || head.len() - usize::from(outer.offset) + longest > 0xffff {
            return Err(SegmentError::TooLong);
        }
        let (header, pseudo) = (Sum::ZERO, Sum::ZERO);
        let this = Self { head, l3, l4, payload_len, mss, header, pseudo, id: 0, sequence: 0, tunnel };
        this.with_sums(layout).ok_or(SegmentError::Headers)
    }

    /// Reads the fields that change with each segment, and sums the rest.
    fn with_sums(mut self, layout: &Layout) -> Option<Self> {
        let start = usize::from(self.l3.offset);
        if self.l3.kind == L3Kind::V4 {
            let header = self.head.get(start..start + usize::from(self.l3.len))?;
            self.id = u16_at(header, 4)?;
            let total_len = u16_at(header, 2)?;
            // Adding the complement subtracts.
            self.header = sum(header).word(!total_len).word(!self.id).word(!u16_at(header, 10)?);
        }
        if self.l4.kind == L4Kind::Tcp {
            array_at::<{ crate::tcp::HEADER_LEN }>(self.head, usize::from(self.l4.offset))?;
            self.sequence = u32_at(self.head, usize::from(self.l4.offset) + 4)?;
        }
        self.pseudo = checksum::pseudo(self.head, layout, 0)?;
        Some(self)
    }

    /// Number of segments: at least one, even without payload.
    pub fn count(&self) -> usize {
        self.payload_len.div_ceil(usize::from(self.mss)).max(1)
    }

    /// Length of every segment's head.
    pub fn head_len(&self) -> usize {
        self.head.len()
    }

    /// Bytes of the payload that segment `index` takes; `None` if there is no such segment.
    pub fn payload(&self, index: usize) -> Option<Range<usize>> {
        if index >= self.count() {
            return None;
        }
        let start = index.checked_mul(usize::from(self.mss))?;
        Some(start..self.payload_len.min(start.checked_add(usize::from(self.mss))?))
    }

    /// Writes the head of segment `index` at the start of `out`. `None` if there is no such segment or `out` is shorter
    /// than the headers.
    pub fn segment(&self, index: usize, out: &mut [u8]) -> Option<Segment> {
        let payload = self.payload(index)?;
        let last = index + 1 == self.count();
        let out = out.get_mut(..self.head.len())?;
        out.copy_from_slice(self.head);
        // `new` has shown that all lengths fit 16 bits, and `payload` that offsets are below `PAYLOAD_LEN_MAX`.
        let l4_len = usize::from(self.l4.len) + payload.len();
        self.write_ip(out, index, l4_len)?;
        let at = usize::from(self.l4.offset);
        match self.l4.kind {
            L4Kind::Tcp => {
                let sequence = self.sequence.wrapping_add(payload.start as u32);
                put(out, at + 4, sequence.to_be_bytes())?;
                let flags = out.get_mut(at + 13)?;
                if !last {
                    *flags &= !(flag::FIN | flag::PSH);
                }
                if index != 0 {
                    *flags &= !flag::CWR;
                }
            }
            L4Kind::Udp => put(out, at + 4, (l4_len as u16).to_be_bytes())?,
        }
        let partial = self.pseudo.word(l4_len as u16).fold();
        put(out, self.l4.checksum_at(), partial.to_be_bytes())?;
        if let Some((tunnel, outer)) = &self.tunnel {
            let sums = u16_at(self.head, outer.l4?.checksum_at())? != 0;
            Tunnel::count(out, outer, index as u16)?;
            tunnel.seal(out, outer, (out.len() + payload.len()) as u32, sums)?;
        }
        Some(Segment {
            head_len: out.len(),
            payload,
            checksum_start: at,
            checksum_offset: usize::from(self.l4.kind.checksum_offset()),
            last,
        })
    }

    fn write_ip(&self, out: &mut [u8], index: usize, l4_len: usize) -> Option<()> {
        let at = usize::from(self.l3.offset);
        let total_len = (usize::from(self.l3.len) + l4_len) as u16;
        match self.l3.kind {
            L3Kind::V4 => {
                // The identification wraps, as it does in any sender.
                let id = self.id.wrapping_add(index as u16);
                put(out, at + 2, total_len.to_be_bytes())?;
                put(out, at + 4, id.to_be_bytes())?;
                put(out, at + 10, self.header.word(total_len).word(id).checksum().to_be_bytes())
            }
            L3Kind::V6 => {
                let payload_len = total_len.checked_sub(crate::ipv6::HEADER_LEN as u16)?;
                put(out, at + 4, payload_len.to_be_bytes())
            }
        }
    }
}
