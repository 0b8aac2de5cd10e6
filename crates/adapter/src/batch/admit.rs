//! The rule for offloads. The switch judges a frame before its checksum is computed and before it is segmented. Neither may change
//! anything that was judged, for any sender, adapter or uplink.
//!
//! - The checksum field of the transport header that the parse found, in the frame or in the frame in its [`Tunnel`]: computed
//!   during the copy to the receiver.
//! - Any other field in the headers that the parse found: refused. Checksum insertion would write an address, a type or a port.
//! - A field behind those headers: computed at once, and judged in that form. Linux asks devices with `NETIF_F_HW_CSUM` for checksums
//!   of headers that the parse does not read: of GRE (`gre_build_header`), and of TCP in IP in IP or in MPLS (igb's `hw_enc_features`).
//! - Segmentation: only of the transport header whose checksum is requested, with as many header bytes as the parse found.

use nicety_frame::{Fragment, L4, L4Kind, Layout, SegmentKind, Tunnel, checksum};
use nicety_memory::{Map, Span};

use super::{Checksum, HEAD_MAX, Offload, Segment};

/// Bytes of the sender's memory that are summed at a time.
const PIECE: u32 = 512;

/// A packet whose sender requests an offload.
pub(super) struct Applicant<'a> {
    pub source: &'a Map,
    pub head: &'a mut [u8],
    pub spans: &'a [Span],
    /// See [`Batch::summed`](super::Batch::summed).
    pub summed: &'a mut u64,
}

impl Applicant<'_> {
    /// Checks a request against the packet. Returns the remaining work, and the layout of the head; `None` if the request would
    /// change something that the switch judges.
    pub fn admit(mut self, offload: Offload) -> Option<(Offload, Layout)> {
        let Checksum::Partial { start, field } = offload.checksum else { return None };
        // A copy of the packet has a head of `HEAD_MAX` bytes at most.
        if field < start || usize::from(field) + 2 > self.head.len().min(HEAD_MAX) {
            return None;
        }
        let layout = Layout::parse(self.head);
        let named = |l4: L4| l4.offset == start && l4.checksum_at() == usize::from(field);
        let inner = || Tunnel::parse(self.head, &layout).map(|tunnel| tunnel.inner);
        let found = if layout.l4.is_some_and(named) {
            Some((layout, false))
        } else {
            inner().filter(|inner| inner.l4.is_some_and(named)).map(|inner| (inner, true))
        };
        match (found, offload.segment) {
            (Some(_), None) => Some((offload, layout)),
            (Some((headers, tunneled)), Some(segment)) => {
                fits(&segment, &headers, tunneled).then_some((offload, layout))
            }
            (None, None) if start >= layout.headers_len => {
                self.make(start, field)?;
                // The checksum may lie in a header that the parse did not read before.
                Some((Offload::default(), Layout::parse(self.head)))
            }
            (None, _) => None,
        }
    }

    /// Computes a checksum at once.
    fn make(&mut self, start: u16, field: u16) -> Option<u16> {
        let (mut rest, mut bytes) = (checksum::Running::default(), [0; PIECE as usize]);
        for span in self.spans {
            *self.summed += u64::from(span.len());
            for at in (0..span.len()).step_by(PIECE as usize) {
                let read = self.source.read_span(span.piece(at, PIECE), &mut bytes);
                rest.push(bytes.get(..read)?);
            }
        }
        checksum::complete(self.head, start.into(), usize::from(field - start), rest.total())
    }
}

/// Whether a packet with these headers, its own or in its tunnel, can be segmented as its sender requests.
fn fits(segment: &Segment, headers: &Layout, tunneled: bool) -> bool {
    let wanted = match segment.kind {
        SegmentKind::Tcp => (L4Kind::Tcp, false),
        SegmentKind::Udp => (L4Kind::Udp, false),
        SegmentKind::Tunnel => (L4Kind::Tcp, true),
    };
    headers.l4.is_some_and(|l4| (l4.kind, tunneled) == wanted)
        && headers.l3.is_some_and(|l3| l3.fragment == Fragment::Whole)
        && segment.headers == headers.headers_len
        && usize::from(segment.headers) <= HEAD_MAX
}
