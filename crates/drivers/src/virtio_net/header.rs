//! `struct virtio_net_hdr` (virtio 1.2, section 5.1.6): 12 bytes before every packet.

use nicety_adapter::{Checksum, Offload, SegmentKind};
use nicety_frame::{L3Kind, Layout};

use super::features;
use crate::{DriverError, Received};

pub(super) const BYTES: usize = 12;
const NEEDS_CHECKSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;
const ECN: u8 = 0x80;

/// The header of a packet to send: sections 5.1.6.2 and 5.1.6.2.1.
pub(super) fn of(packet: &[u8], offload: &Offload, taken: u64) -> Result<[u8; BYTES], DriverError> {
    let mut header = [0; BYTES];
    let Checksum::Partial { start, field } = offload.checksum else { return Ok(header) };
    let impossible = DriverError::Device("was not asked for that offload, or cannot do it");
    let Some(distance) = field.checked_sub(start).filter(|_| features::has(taken, features::CHECKSUM)) else {
        return Err(impossible);
    };
    header[0] = NEEDS_CHECKSUM;
    header[6..8].copy_from_slice(&start.to_le_bytes());
    header[8..10].copy_from_slice(&distance.to_le_bytes());
    if let Some(segment) = offload.segment {
        let v4 = Layout::parse(packet).l3.map(|l3| l3.kind == L3Kind::V4);
        let (kind, feature) = match (segment.kind, v4) {
            (SegmentKind::Tcp, Some(true)) => (TCP4, features::HOST_TSO4),
            (SegmentKind::Tcp, Some(false)) => (TCP6, features::HOST_TSO6),
            (SegmentKind::Udp, Some(_)) => (UDP, features::HOST_USO),
            (SegmentKind::Tunnel, _) | (_, None) => return Err(impossible),
        };
        if !features::has(taken, feature) {
            return Err(impossible);
        }
        header[1] = kind;
        header[2..4].copy_from_slice(&segment.headers.to_le_bytes());
        header[4..6].copy_from_slice(&segment.mss.to_le_bytes());
    }
    Ok(header)
}

/// Buffers of a received packet (5.1.6.3.1).
pub(super) fn buffers(header: &[u8; BYTES]) -> u16 {
    u16::from_le_bytes([header[10], header[11]])
}

/// The report in a received packet's header.
pub(super) fn received(header: &[u8; BYTES], packet: &[u8]) -> Received {
    let size = usize::from(u16::from_le_bytes([header[4], header[5]]));
    let frames = match header[1] & !ECN {
        0 => 1,
        _ if size == 0 => 1,
        _ => packet.len().saturating_sub(Layout::parse(packet).headers_len.into()).div_ceil(size).max(1),
    };
    Received { checksum_good: header[0] & (NEEDS_CHECKSUM | DATA_VALID) != 0, frames: frames as u32 }
}

#[cfg(test)]
mod tests {
    use nicety_adapter::Segment;

    use super::*;

    #[test]
    fn a_request_to_segment_is_the_bytes_of_the_specification() {
        let mut packet = vec![0; 4000];
        packet[12..14].copy_from_slice(&[0x08, 0x00]);
        packet[14] = 0x45;
        packet[16..18].copy_from_slice(&3986u16.to_be_bytes());
        packet[23] = 6;
        packet[46] = 0x50;
        let segment = Segment { kind: SegmentKind::Tcp, mss: 1460, headers: 54 };
        let offload = Offload { checksum: Checksum::Partial { start: 34, field: 50 }, segment: Some(segment) };
        let header = of(&packet, &offload, u64::MAX).unwrap();
        assert_eq!(header, [1, 1, 54, 0, 0xb4, 0x05, 34, 0, 16, 0, 0, 0]);
        assert!(of(&packet, &offload, 1).is_err(), "TSO was not agreed on");
        let received = received(&header, &packet);
        assert_eq!((received.checksum_good, received.frames), (true, 3));
    }

    #[test]
    fn a_plain_packet_has_a_header_of_zeros_and_nobody_vouches_for_it() {
        assert_eq!(of(&[0; 60], &Offload::default(), 0).unwrap(), [0; 12]);
        assert!(!received(&[0; 12], &[0; 60]).checksum_good);
        assert_eq!(buffers(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1]), 258);
    }
}
