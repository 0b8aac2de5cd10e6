//! An offload request from outside. It is not trusted: the batch checks it against its frame.

use nicety_adapter::{Checksum, Offload, Packet, Segment, SegmentKind};
use nicety_frame::{L3Kind, Layout};

/// Longest TCP header in bytes (RFC 9293 section 3.1).
const TCP_HEADER_MAX: u16 = 60;

/// Offload request in a frame's own header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Offset of the first byte summed, and of the checksum field.
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
    /// Bytes of the private head that [`Asked::vet`] needs.
    pub(crate) fn head_wanted(&self) -> usize {
        match self.partial {
            Some((start, _)) if self.segment.is_some() => usize::from(start) + usize::from(TCP_HEADER_MAX),
            Some((_, field)) => usize::from(field) + 2,
            None => 0,
        }
    }

    /// The request in neutral terms; `None` if it makes no sense for this frame.
    pub(crate) fn vet(&self, head: &[u8], len: u32) -> Option<Offload> {
        let checksum = match self.partial {
            Some((start, field)) => Checksum::Partial { start, field },
            None if self.verified => Checksum::Verified,
            None => Checksum::AsIs,
        };
        let segment = match self.segment {
            Some(cut) => Some(cut.vet(head, len)?),
            None => None,
        };
        Some(Offload { checksum, segment })
    }
}

impl Cut {
    /// Validates the cut. The request's header lengths are not used: we parse the headers.
    fn vet(self, head: &[u8], len: u32) -> Option<Segment> {
        let layout = Layout::parse(head);
        let version = layout.l3?.kind;
        let fits = self.version.is_none_or(|wanted| wanted == version) && u32::from(layout.headers_len) < len;
        if fits { Segment::of(self.kind, self.mss, layout.headers_len, len) } else { None }
    }
}

/// Whether a packet's checksum is in the state that receivers of uncut packets expect.
pub(crate) fn passes_uncut(packet: &Packet) -> bool {
    packet.offload.segment.is_none() || matches!(packet.offload.checksum, Checksum::Partial { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

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
