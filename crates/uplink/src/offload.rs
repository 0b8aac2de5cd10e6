//! An offload request from outside, held against the frame that it came with: nothing is believed.

use nicety_adapter::{Checksum, HEAD_MOST, Offload, Packet, Segment, SegmentKind};
use nicety_frame::{Fragment, L3Kind, L4Kind, Layout};

/// Bytes that a TCP header has at most (RFC 9293 section 3.1).
const TCP_HEADER_MOST: u16 = 60;

/// What a frame's own header asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// First byte summed, and where the sum goes.
    pub(crate) partial: Option<(u16, u16)>,
    pub(crate) verified: bool,
    pub(crate) segment: Option<Cut>,
}

/// A segmentation request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) kind: SegmentKind,
    /// The IP version, if the request names it.
    pub(crate) version: Option<L3Kind>,
    pub(crate) mss: u16,
}

impl Asked {
    /// Bytes of private head that judging needs.
    pub(crate) fn head_wanted(&self) -> usize {
        match self.partial {
            Some((start, _)) if self.segment.is_some() => usize::from(start) + usize::from(TCP_HEADER_MOST),
            Some((_, field)) => usize::from(field) + 2,
            None => 0,
        }
    }

    /// The request in neutral words; `None` if it makes no sense for this frame.
    pub(crate) fn vet(&self, head: &[u8], len: u32) -> Option<Offload> {
        let checksum = match self.partial {
            Some((start, field)) => {
                let inside = usize::from(field) + 2 <= head.len().min(HEAD_MOST)
                    && start >= 14
                    && field >= start
                    && u32::from(start) < len;
                inside.then_some(Checksum::Partial { start, field })?
            }
            None if self.verified => Checksum::Verified,
            None => Checksum::AsIs,
        };
        let segment = match self.segment {
            Some(cut) => Some(self.vet_cut(cut, head, len)?),
            None => None,
        };
        Some(Offload { checksum, segment })
    }

    /// The headers are ours to find, and the request must agree with them.
    fn vet_cut(&self, cut: Cut, head: &[u8], len: u32) -> Option<Segment> {
        let layout = Layout::parse(head);
        let (l3, l4) = (layout.l3?, layout.l4?);
        let wanted = match cut.kind {
            SegmentKind::Tcp => L4Kind::Tcp,
            SegmentKind::Udp => L4Kind::Udp,
            SegmentKind::Tunnel => return None,
        };
        let fits = cut.version.is_none_or(|version| version == l3.kind)
            && l4.kind == wanted
            && l3.fragment == Fragment::Whole
            && u32::from(layout.headers_len) < len
            && self.partial.is_some_and(|(start, field)| start == l4.offset && usize::from(field) == l4.checksum_at());
        if fits { Segment::of(cut.kind, cut.mss, layout.headers_len, len) } else { None }
    }
}

/// Whether a packet's checksum is in the state that a receiver of uncut packets expects.
pub(crate) fn passes_uncut(packet: &Packet) -> bool {
    packet.offload.segment.is_none() || matches!(packet.offload.checksum, Checksum::Partial { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_outside_the_head_is_refused() {
        let head = [0u8; 64];
        for (start, field) in [(13, 20), (34, 63), (40, 34), (64, 64), (u16::MAX, u16::MAX)] {
            let asked = Asked { partial: Some((start, field)), ..Asked::default() };
            assert_eq!(asked.vet(&head, 64), None, "{start} {field}");
        }
        let asked = Asked { partial: Some((34, 50)), ..Asked::default() };
        assert!(asked.vet(&head, 64).is_some());
    }

    #[test]
    fn a_cut_into_more_frames_than_a_packet_may_have_is_refused() {
        let mut head = [0; 54];
        (head[12], head[14], head[23], head[46]) = (8, 0x45, 6, 0x50);
        let asked = |mss| Asked {
            partial: Some((34, 50)),
            verified: false,
            segment: Some(Cut { kind: SegmentKind::Tcp, version: None, mss }),
        };
        for (mss, len, taken) in
            [(0, 9000, false), (1, 65_535, false), (31, 65_535, false), (48, 65_535, true), (1, 2102, true)]
        {
            assert_eq!(asked(mss).vet(&head, len).is_some(), taken, "{len} bytes by {mss}");
        }
    }

    #[test]
    fn a_cut_of_what_is_not_tcp_is_refused() {
        let cut = Some(Cut { kind: SegmentKind::Tcp, version: None, mss: 1448 });
        let asked = Asked { partial: Some((34, 50)), verified: false, segment: cut };
        assert_eq!(asked.vet(&[0; 128], 9000), None);
    }
}
