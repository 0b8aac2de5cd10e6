//! Packets of an honest sender, and malformed ones.

use nicety_adapter::{Checksum, Offload, Segment, SegmentKind};

use crate::random::Random;
use crate::rig::MAC;

/// Lengths at which the treatment changes: nothing, half a header, Ethernet's minimum and maximum with and without tag, jumbo, and
/// the most bytes of one packet.
const LENGTHS: [usize; 13] = [0, 13, 14, 54, 59, 60, 300, 1514, 1518, 1522, 9018, 16_384, 65_535];
/// A peer of the guest.
const PEER: [u8; 6] = [0x52, 0x54, 0, 0xaa, 0xbb, 0xcc];

/// A random packet to or from the guest, with its offload request.
pub fn any(random: &mut Random, to_guest: bool) -> (Vec<u8>, Offload) {
    let len = random.pick(&LENGTHS);
    let mut packet = vec![0; len];
    random.fill(&mut packet);
    let (mine, other) = if to_guest { (MAC.0, PEER) } else { (PEER, MAC.0) };
    let target = random.pick(&[mine, mine, mine, [0xff; 6], [1, 0, 0x5e, 0, 0, 1], [1, 0x80, 0xc2, 0, 0, 1], other]);
    let addresses = [target, other].concat();
    let some = len.min(12);
    packet[..some].copy_from_slice(&addresses[..some]);
    let tagged = random.one_in(8);
    let udp = random.one_in(3);
    let headers = write_headers(&mut packet, tagged, udp, random.one_in(3));
    let offload = match headers {
        Some((l4, headers)) => offload(random, l4, headers, udp),
        None => Offload::default(),
    };
    (packet, offload)
}

/// Writes IPv4 or IPv6, and TCP or UDP, behind an Ethernet header. Returns the offsets of L4 and of the payload.
fn write_headers(packet: &mut [u8], tagged: bool, udp: bool, v6: bool) -> Option<(u16, u16)> {
    let l3 = if tagged { 18 } else { 14 };
    let l4 = l3 + if v6 { 40 } else { 20 };
    let end = l4 + if udp { 8 } else { 20 };
    let total = packet.len();
    if total < end {
        return None;
    }
    if tagged {
        packet[12..16].copy_from_slice(&[0x81, 0, 0, 7]);
    }
    let kind = if v6 { [0x86, 0xdd] } else { [8, 0] };
    packet[l3 - 2..l3].copy_from_slice(&kind);
    let protocol = if udp { 17 } else { 6 };
    if v6 {
        let [high, low] = ((total - l4) as u16).to_be_bytes();
        packet[l3..l3 + 8].copy_from_slice(&[0x60, 0, 0, 0, high, low, protocol, 64]);
    } else {
        let [high, low] = ((total - l3) as u16).to_be_bytes();
        packet[l3..l3 + 12].copy_from_slice(&[0x45, 0, high, low, 0, 1, 0, 0, 64, protocol, 0, 0]);
    }
    if !udp {
        packet[l4 + 12] = 0x50;
    }
    Some((l4 as u16, end as u16))
}

/// An offload request that is right in three quarters of cases.
fn offload(random: &mut Random, l4: u16, headers: u16, udp: bool) -> Offload {
    let field = l4 + if udp { 6 } else { 16 };
    let kind = if udp { SegmentKind::Udp } else { SegmentKind::Tcp };
    let right = Checksum::Partial { start: l4, field };
    match random.below(8) {
        0 | 1 => Offload::default(),
        2 => Offload { checksum: Checksum::Verified, segment: None },
        3 | 4 => Offload { checksum: right, segment: None },
        5 | 6 => {
            let mss = random.pick(&[1448, 536, 64, 8948]);
            Offload { checksum: right, segment: Some(Segment { kind, mss, headers }) }
        }
        _ => {
            let checksum = Checksum::Partial { start: random.nasty(100) as u16, field: random.nasty(100) as u16 };
            let kind = random.pick(&[SegmentKind::Tcp, SegmentKind::Udp]);
            // An earlier hop refuses segments of a few bytes: each segment is a frame, and costs work.
            let mss = (random.nasty(2000) as u16).max(64);
            let headers = random.pick(&[headers, 54, 200, 0]);
            Offload { checksum, segment: random.one_in(2).then_some(Segment { kind, mss, headers }) }
        }
    }
}
