//! The cost of frames: messages between guest and device, copies, allocations. Tests assert them, because an adapter is fast when
//! it needs few of each (ARCHITECTURE.md), and a cost without a test grows back.

mod linux;
mod messages;
mod moved;

use nicety_adapter::{Checksum, Offload, Segment, SegmentKind};

/// Bytes of Ethernet, IPv4 and TCP headers.
pub(crate) const HEADERS: usize = 54;

/// A TCP packet over IPv4. Its checksums do not matter here.
pub(crate) fn packet(to: [u8; 6], from: [u8; 6], payload: usize) -> Vec<u8> {
    let mut packet = vec![0x5a; HEADERS + payload];
    packet[..6].copy_from_slice(&to);
    packet[6..12].copy_from_slice(&from);
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    packet[20..24].copy_from_slice(&[0, 0, 64, 6]);
    packet[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 80]);
    packet[46..50].copy_from_slice(&[0x50, 0x10, 0x20, 0]);
    packet
}

/// A request to segment it for an MTU of 1500.
pub(crate) fn cut() -> Offload {
    let segment = Segment { kind: SegmentKind::Tcp, mss: 1460, headers: HEADERS as u16 };
    Offload { checksum: Checksum::Partial { start: 34, field: 50 }, segment: Some(segment) }
}
