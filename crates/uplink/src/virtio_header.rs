//! The header before each frame of a tap: `struct virtio_net_hdr` with 12 bytes, little endian. Follows virtio 1.3 section 5.1.6,
//! as Linux's tap driver uses it.

use nicety_adapter::{Checked, Checksum, Piece, SegmentKind};
use nicety_frame::L3Kind;

use crate::offload::{Asked, Cut};

pub(crate) const HEADER_BYTES: u32 = 12;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// TCP flag that ends a congestion signal (RFC 3168 section 6.1.2).
const CWR: u8 = 0x80;

/// Offload request of a frame's header; `None` for a kind of segmentation that was never offered.
pub(crate) fn decode(header: [u8; HEADER_BYTES as usize]) -> Option<Asked> {
    let [flags, gso, _, _, size_low, size_high, start_low, start_high, offset_low, offset_high, ..] = header;
    let start = u16::from_le_bytes([start_low, start_high]);
    let offset = u16::from_le_bytes([offset_low, offset_high]);
    let partial = if flags & NEEDS_CSUM != 0 { Some((start, start.checked_add(offset)?)) } else { None };
    let (kind, version) = match gso & !GSO_ECN {
        GSO_NONE => return Some(Asked { partial, verified: flags & DATA_VALID != 0, segment: None }),
        GSO_TCPV4 => (SegmentKind::Tcp, Some(L3Kind::V4)),
        GSO_TCPV6 => (SegmentKind::Tcp, Some(L3Kind::V6)),
        GSO_UDP_L4 => (SegmentKind::Udp, None),
        _ => return None,
    };
    let cut = Cut { kind, version, mss: u16::from_le_bytes([size_low, size_high]) };
    Some(Asked { partial, verified: false, segment: Some(cut) })
}

/// Header of a piece that was written.
pub(crate) fn encode(piece: &Piece<'_>, checked: Checked) -> [u8; HEADER_BYTES as usize] {
    let mut out = [0; HEADER_BYTES as usize];
    match piece.offload.checksum {
        Checksum::Partial { start, field } => {
            out[0] = NEEDS_CSUM;
            out[6..8].copy_from_slice(&start.to_le_bytes());
            out[8..10].copy_from_slice(&field.saturating_sub(start).to_le_bytes());
        }
        _ if checked == Checked::Good => out[0] = DATA_VALID,
        _ => {}
    }
    if let Some(segment) = piece.offload.segment {
        let v4 = piece.layout().l3.is_some_and(|l3| l3.kind == L3Kind::V4);
        // The transport header begins at the checksum's start, even if a tag was added or removed.
        let flags = match piece.offload.checksum {
            Checksum::Partial { start, .. } => piece.head().get(usize::from(start) + 13),
            _ => None,
        };
        out[1] = match segment.kind {
            SegmentKind::Udp => GSO_UDP_L4,
            // Packets in a tunnel arrive cut: `Wants` has no flag for them.
            SegmentKind::Tcp | SegmentKind::Tunnel => {
                let ecn = if flags.is_some_and(|flags| flags & CWR != 0) { GSO_ECN } else { 0 };
                ecn | if v4 { GSO_TCPV4 } else { GSO_TCPV6 }
            }
        };
        out[2..4].copy_from_slice(&segment.headers.to_le_bytes());
        out[4..6].copy_from_slice(&segment.mss.to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_asks_for_what_virtio_1_3_section_5_1_6_says() {
        let tso = [1, 0x81, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
        let cut = Cut { kind: SegmentKind::Tcp, version: Some(L3Kind::V4), mss: 1448 };
        assert_eq!(decode(tso), Some(Asked { partial: Some((34, 50)), verified: false, segment: Some(cut) }));
        assert_eq!(decode([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(Asked { verified: true, ..Asked::default() }));
    }

    #[test]
    fn a_header_of_an_unknown_kind_or_with_offsets_that_overflow_is_refused() {
        assert_eq!(decode([1, 3, 0, 0, 1, 0, 34, 0, 6, 0, 0, 0]), None);
        assert_eq!(decode([1, 0, 0, 0, 0, 0, 255, 255, 1, 0, 0, 0]), None);
    }
}
