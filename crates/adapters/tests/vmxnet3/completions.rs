//! A completion's report on a received frame: protocols and checksums.

use nicety_adapter::{Checksum, Offload as Asked, Segment, SegmentKind};

use crate::data::{OK4, TCP, TUC, foreign, plain};
use crate::guest::{F_LRO, F_RXCSUM, Guest, MAC, Open, payload};
use crate::packets::{tcp4, udp4, verified};

// Bits of the fourth word (vmxnet3_defs.h, `struct Vmxnet3_RxCompDesc`).
const UDP: u32 = 1 << 17;
const IP_OK: u32 = 1 << 19;
const V6: u32 = 1 << 20;
const V4: u32 = 1 << 21;
const FRAGMENT: u32 = 1 << 22;
/// In the first word, `cnc`: the checksum was not verified.
const UNCHECKED: u32 = 1 << 30;

#[test]
fn a_checksum_is_verified_made_or_called_wrong() {
    let mut guest = Guest::opened(Open::default());
    let frame = udp4(MAC, 1, &payload(300));
    let mut wrong = frame.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let mut bad_ip = frame.clone();
    bad_ip[24] ^= 1;
    for (bytes, expected) in [(&frame, OK4), (&wrong, OK4 & !TUC), (&bad_ip, OK4 & !(1 << 19))] {
        guest.deliver(&plain(bytes));
        let words = guest.receive(0, true)[0].last();
        assert_eq!(words[0] >> 30 & 1, 0);
        assert_eq!(words[3] & OK4, expected);
    }
    let mut partial = frame.clone();
    let sum = [0x0a00u32, 1, 0x0a00, 2, 17, 308].iter().sum::<u32>() as u16;
    partial[40..42].copy_from_slice(&sum.to_be_bytes());
    let asked = Asked { checksum: Checksum::Partial { start: 34, field: 40 }, segment: None };
    guest.deliver(&foreign(&partial, asked));
    assert_eq!(guest.receive(0, true)[0].bytes, frame);
    // Not requested: not calculated.
    let mut plainly = Guest::opened(Open { features: 0, ..Open::default() });
    plainly.deliver(&plain(&frame));
    assert_eq!(plainly.receive(0, true)[0].last()[0] >> 30 & 1, 1);
}

#[test]
fn a_fragment_is_called_one_and_its_checksum_is_left_to_the_guest() {
    let mut guest = Guest::opened(Open::default());
    let v4 = |fragment: u16| {
        let mut frame = udp4(MAC, 1, &payload(304));
        frame[20..22].copy_from_slice(&fragment.to_be_bytes());
        let mut ip = etherparse::Ipv4HeaderSlice::from_slice(&frame[14..34]).unwrap().to_header();
        ip.header_checksum = ip.calc_header_checksum();
        frame[14..34].copy_from_slice(&ip.to_bytes());
        frame
    };
    // A fragment header, RFC 8200, 4.5: UDP, the offset in units of eight bytes, M, an identification.
    let v6 = |fragment: u16| {
        let udp = &udp4(MAC, 1, &payload(304))[34..];
        let [high, low] = fragment.to_be_bytes();
        let mut frame = [&MAC[..], &[2, 0, 0, 0, 0, 9, 0x86, 0xdd, 0x60, 0, 0, 0, 1, 0x40, 44, 64]].concat();
        frame.extend([[0xfd; 16], [0xfe; 16]].concat());
        frame.extend([17, 0, high, low, 0, 0, 0, 7]);
        frame.extend(udp);
        frame
    };
    const FLAGS: u32 = FRAGMENT | V4 | V6 | TCP | UDP | TUC;
    // "Don't fragment" makes no fragment. The other cases: a first, a last, and a middle fragment.
    for (frame, flags) in [
        (v4(0x4000), V4 | UDP | TUC),
        (v4(0x2000), V4 | FRAGMENT),
        (v4(40), V4 | FRAGMENT),
        (v4(0x2000 | 40), V4 | FRAGMENT),
        (v6(1), V6 | FRAGMENT),
        (v6(40 << 3), V6 | FRAGMENT),
        (v6(40 << 3 | 1), V6 | FRAGMENT),
    ] {
        guest.deliver(&plain(&frame));
        let packets = guest.receive(0, true);
        assert_eq!(packets[0].bytes, frame);
        let [low, _, _, high] = packets[0].last();
        assert_eq!(high & FLAGS, flags, "{:x?}", &frame[14..24]);
        assert_eq!(low & UNCHECKED != 0, flags & FRAGMENT != 0, "{:x?}", &frame[14..24]);
    }
}

#[test]
fn a_packet_that_is_cut_comes_with_headers_that_are_right_whatever_its_own_said() {
    let payload = payload(3000);
    let mut whole = tcp4(MAC, &payload);
    whole[24] ^= 1;
    let asked = |mss| {
        let segment = Some(Segment { kind: SegmentKind::Tcp, mss, headers: 54 });
        Asked { checksum: Checksum::Partial { start: 34, field: 50 }, segment }
    };
    // The last case makes one frame, which gets new headers too.
    for (mss, count) in [(1000, 3), (1448, 3), (3000, 1)] {
        let mut guest = Guest::opened(Open { mtu: 9000, head: 4096, ..Open::default() });
        guest.deliver(&foreign(&whole, asked(mss)));
        let packets = guest.receive(0, true);
        assert_eq!(packets.len(), count);
        for packet in &packets {
            assert_eq!((packet.last()[0] & UNCHECKED, packet.last()[3] & (OK4 | TCP)), (0, OK4 | TCP), "{mss}");
        }
        let joined: Vec<u8> = packets.iter().flat_map(|packet| verified(&packet.bytes)).collect();
        assert_eq!(joined, payload);
    }
    // A packet that stays whole keeps its own headers.
    let mut guest = Guest::opened(Open { features: F_LRO | F_RXCSUM, ..Open::default() });
    guest.deliver(&foreign(&whole, asked(1000)));
    let packets = guest.receive(0, true);
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].last()[3] & (OK4 | TCP), (OK4 | TCP) & !IP_OK);
}
