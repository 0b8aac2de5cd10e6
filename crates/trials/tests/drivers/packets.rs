//! Packets made and checked with a checksum of their own (RFC 1071, RFC 791, RFC 9293).

use nicety_adapter::{Checksum, Offload, Segment, SegmentKind};

pub(crate) const HEADERS: usize = 54;
pub(crate) const PARTIAL: Checksum = Checksum::Partial { start: 34, field: 50 };

/// The folded sum.
fn sum(bytes: &[u8], mut seed: u32) -> u16 {
    for pair in bytes.chunks(2) {
        seed += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while seed > 0xffff {
        seed = (seed & 0xffff) + (seed >> 16);
    }
    seed as u16
}

fn pseudo(packet: &[u8]) -> u32 {
    u32::from(sum(&packet[26..34], 6 + (packet.len() - 34) as u32))
}

/// A TCP packet over IPv4 as a stack leaves it to its adapter: the checksum field has the pseudo-header's sum.
pub(crate) fn partial(to: [u8; 6], from: [u8; 6], payload: usize, seed: u8) -> Vec<u8> {
    let mut packet = vec![0; HEADERS + payload];
    packet[..6].copy_from_slice(&to);
    packet[6..12].copy_from_slice(&from);
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    packet[22..24].copy_from_slice(&[64, 6]);
    packet[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 80]);
    packet[46..50].copy_from_slice(&[0x50, 0x10, 0x20, 0]);
    for (index, byte) in packet[HEADERS..].iter_mut().enumerate() {
        *byte = (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8).wrapping_add(seed);
    }
    let ip = !sum(&packet[14..34], 0);
    packet[24..26].copy_from_slice(&ip.to_be_bytes());
    let field = sum(&[], pseudo(&packet));
    packet[50..52].copy_from_slice(&field.to_be_bytes());
    packet
}

/// The same as it is on a wire.
pub(crate) fn whole(to: [u8; 6], from: [u8; 6], payload: usize, seed: u8) -> Vec<u8> {
    let mut packet = partial(to, from, payload, seed);
    packet[50..52].fill(0);
    let field = !sum(&packet[34..], pseudo(&packet));
    packet[50..52].copy_from_slice(&field.to_be_bytes());
    packet
}

/// Whether length, IP checksum and TCP checksum are those of a frame on a wire.
pub(crate) fn is_right(packet: &[u8]) -> bool {
    let len = usize::from(u16::from_be_bytes([packet[16], packet[17]])) + 14;
    len <= packet.len()
        && packet[len..].iter().all(|byte| *byte == 0)
        && sum(&packet[14..34], 0) == 0xffff
        && sum(&packet[34..len], pseudo(&packet[..len])) == 0xffff
}

/// The request to cut it.
pub(crate) fn cut(mss: u16) -> Offload {
    let segment = Segment { kind: SegmentKind::Tcp, mss, headers: HEADERS as u16 };
    Offload { checksum: PARTIAL, segment: Some(segment) }
}
