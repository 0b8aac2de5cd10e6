//! Makes and checks packets with a checksum implementation of its own (RFC 1071, RFC 791, RFC 9293).

use std::sync::OnceLock;

use nicety_adapter::{Checksum, Offload, Segment, SegmentKind};

pub(crate) const HEADERS: usize = 54;
pub(crate) const PARTIAL: Checksum = Checksum::Partial { start: 34, field: 50 };

/// The folded sum.
fn sum(bytes: &[u8], mut seed: u32) -> u16 {
    let mut pairs = bytes.chunks_exact(2);
    for pair in &mut pairs {
        seed += u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    }
    seed += pairs.remainder().first().map_or(0, |last| u32::from(*last) << 8);
    while seed > 0xffff {
        seed = (seed & 0xffff) + (seed >> 16);
    }
    seed as u16
}

fn pseudo(packet: &[u8]) -> u32 {
    u32::from(sum(&packet[26..34], 6 + (packet.len() - 34) as u32))
}

/// The payload for a seed, of this length. A longer one continues the same bytes. Generated once, since a test makes and compares
/// many.
pub(crate) fn bytes(len: usize, seed: u8) -> &'static [u8] {
    static ALL: [OnceLock<Vec<u8>>; 256] = [const { OnceLock::new() }; 256];
    let byte = |index: usize| (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8).wrapping_add(seed);
    &ALL[usize::from(seed)].get_or_init(|| (0..1 << 16).map(byte).collect())[..len]
}

/// A TCP packet over IPv4 as a stack gives it to its adapter: the checksum field holds the pseudo-header's sum.
pub(crate) fn partial(to: [u8; 6], from: [u8; 6], payload: usize, seed: u8) -> Vec<u8> {
    let mut packet = vec![0; HEADERS + payload];
    packet[..6].copy_from_slice(&to);
    packet[6..12].copy_from_slice(&from);
    packet[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    packet[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    packet[22..24].copy_from_slice(&[64, 6]);
    packet[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 80]);
    packet[46..50].copy_from_slice(&[0x50, 0x10, 0x20, 0]);
    packet[HEADERS..].copy_from_slice(bytes(payload, seed));
    let ip = !sum(&packet[14..34], 0);
    packet[24..26].copy_from_slice(&ip.to_be_bytes());
    let field = sum(&[], pseudo(&packet));
    packet[50..52].copy_from_slice(&field.to_be_bytes());
    packet
}

/// The same packet as it is on a wire.
pub(crate) fn whole(to: [u8; 6], from: [u8; 6], payload: usize, seed: u8) -> Vec<u8> {
    let mut packet = partial(to, from, payload, seed);
    packet[50..52].fill(0);
    let field = !sum(&packet[34..], pseudo(&packet));
    packet[50..52].copy_from_slice(&field.to_be_bytes());
    packet
}

/// Whether length, IP checksum and TCP checksum are right for a frame on a wire.
pub(crate) fn is_right(packet: &[u8]) -> bool {
    let len = usize::from(u16::from_be_bytes([packet[16], packet[17]])) + 14;
    len <= packet.len()
        && packet[len..].iter().all(|byte| *byte == 0)
        && sum(&packet[14..34], 0) == 0xffff
        && sum(&packet[34..len], pseudo(&packet[..len])) == 0xffff
}

/// A request to segment it.
pub(crate) fn cut(mss: u16) -> Offload {
    let segment = Segment { kind: SegmentKind::Tcp, mss, headers: HEADERS as u16 };
    Offload { checksum: PARTIAL, segment: Some(segment) }
}
