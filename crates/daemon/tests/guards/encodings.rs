//! Encodings of one packet that some host decodes.

use nicety_frame::checksum;

/// The attacker, which is also the station that a false answer names.
pub const ATTACKER: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
pub const NAMED: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
/// The host that the attacker tries to deceive.
pub const HOST: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Everything after the addresses of a frame with this type and packet.
pub type Link = fn(u16, &[u8]) -> Vec<u8>;
/// Packets with this next header and payload. Each has the number of its first header, and everything after IPv6's own header.
pub type Chain = fn(u8, &[u8], u8) -> Vec<(u8, Vec<u8>)>;

fn tagged(tag: u16, count: usize, kind: u16, packet: &[u8]) -> Vec<u8> {
    let [high, low] = tag.to_be_bytes();
    [&[high, low, 0, 0].repeat(count)[..], &kind.to_be_bytes(), packet].concat()
}

fn snap(organisation: u8, kind: u16, packet: &[u8]) -> Vec<u8> {
    let len = (8 + packet.len()) as u16;
    [&len.to_be_bytes()[..], &[0xaa, 0xaa, 3, 0, 0, organisation], &kind.to_be_bytes(), packet].concat()
}

/// Encodings in Ethernet, the usual one first. Tags are of VLAN 0.
pub const LINKS: [(&str, Link); 15] = [
    ("plain", |kind, packet| tagged(0, 0, kind, packet)),
    ("1 tag", |kind, packet| tagged(0x8100, 1, kind, packet)),
    ("2 tags", |kind, packet| tagged(0x8100, 2, kind, packet)),
    ("3 tags", |kind, packet| tagged(0x8100, 3, kind, packet)),
    ("9 tags", |kind, packet| tagged(0x8100, 9, kind, packet)),
    ("24 tags", |kind, packet| tagged(0x8100, 24, kind, packet)),
    ("28 tags", |kind, packet| tagged(0x8100, 28, kind, packet)),
    ("40 tags", |kind, packet| tagged(0x8100, 40, kind, packet)),
    ("200 tags", |kind, packet| tagged(0x8100, 200, kind, packet)),
    ("3 service tags", |kind, packet| tagged(0x88a8, 3, kind, packet)),
    ("3 tags of before 802.1ad", |kind, packet| tagged(0x9100, 3, kind, packet)),
    ("SNAP", |kind, packet| snap(0, kind, packet)),
    ("SNAP of 802.1H", |kind, packet| snap(0xf8, kind, packet)),
    ("a tag in SNAP", |kind, packet| snap(0, 0x8100, &tagged(0, 0, kind, packet)[..])),
    ("SNAP behind a tag", |kind, packet| [&[0x81, 0, 0, 0][..], &snap(0, kind, packet)].concat()),
];

/// A header of options. The last of them belongs to the next header.
fn options(number: u8, count: usize, next: u8, payload: &[u8]) -> (u8, Vec<u8>) {
    let mut bytes = [number, 0, 1, 4, 0, 0, 0, 0].repeat(count);
    let at = bytes.len() - 8;
    bytes[at] = next;
    bytes.extend(payload);
    (number, bytes)
}

/// Fragments of these lengths, all multiples of 8 except the last.
fn fragments(next: u8, payload: &[u8], identity: u8, first: usize) -> Vec<(u8, Vec<u8>)> {
    let (one, two) = payload.split_at(first.min(payload.len()));
    let [high, low] = (one.len() as u16).to_be_bytes();
    let part =
        |field: [u8; 2], rest: &[u8]| (44, [&[next, 0, field[0], field[1], 0, 0, 1, identity][..], rest].concat());
    vec![part([0, 1], one), part([high, low], two)]
}

/// Encodings in IPv6, the usual one first.
pub const CHAINS: [(&str, Chain); 16] = [
    ("plain", |next, payload, _| vec![(next, payload.to_vec())]),
    ("options", |next, payload, _| vec![options(60, 1, next, payload)]),
    ("3 options", |next, payload, _| vec![options(60, 3, next, payload)]),
    ("9 options", |next, payload, _| vec![options(60, 9, next, payload)]),
    ("20 options", |next, payload, _| vec![options(60, 20, next, payload)]),
    ("hop-by-hop options", |next, payload, _| vec![options(0, 1, next, payload)]),
    ("long options", |next, payload, _| {
        // An experimental option. Hosts that do not know it must skip it: RFC 4727, section 3.
        let padding = [&[next, 31, 0x1e, 248][..], &[0; 248], &[1, 2, 0, 0]].concat();
        vec![(60, [&padding[..], payload].concat())]
    }),
    ("a routing header", |next, payload, _| vec![(43, [&[next, 0, 4, 0, 0, 0, 0, 0][..], payload].concat())]),
    ("an atomic fragment", |next, payload, id| vec![(44, [&[next, 0, 0, 0, 0, 0, 2, id][..], payload].concat())]),
    ("options and an atomic fragment", |next, payload, id| {
        let inner = [&[next, 0, 0, 0, 0, 0, 3, id][..], payload].concat();
        vec![options(60, 1, 44, &inner)]
    }),
    ("two fragments", |next, payload, id| fragments(next, payload, id, 8)),
    ("the second fragment first", |next, payload, id| fragments(next, payload, id, 8).into_iter().rev().collect()),
    ("fragments of options", |next, payload, id| {
        let (first, whole) = options(60, 2, next, payload);
        fragments(first, &whole, id, 8)
    }),
    ("a fragment of nothing", |next, payload, id| {
        let (first, whole) = options(60, 1, next, payload);
        fragments(first, &whole, id, 0)
    }),
    ("a fragment in an atomic one", |next, payload, id| {
        let parts = fragments(next, payload, id, 8);
        parts.into_iter().map(|(_, part)| (44, [&[44, 0, 0, 0, 0, 0, 4, id][..], &part].concat())).collect()
    }),
    ("an authentication header", |next, payload, _| {
        vec![(51, [&[next, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &[0; 12], payload].concat())]
    }),
];

/// An IPv6 packet.
pub fn v6(source: [u8; 16], target: [u8; 16], (next, payload): &(u8, Vec<u8>)) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, high, low, *next, 255][..], &source, &target, payload].concat()
}

/// An ICMPv6 message, or UDP over IPv6, with its checksum at `at`.
pub fn summed6(source: [u8; 16], target: [u8; 16], next: u8, mut message: Vec<u8>, at: usize) -> Vec<u8> {
    let pseudo = checksum::pseudo_v6(source.into(), target.into(), next, message.len() as u32);
    let sum = pseudo.then(checksum::sum(&message), false).transmit();
    message[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    message
}

/// An IPv4 packet with these options. `fragment`: its flags and offset.
fn v4(source: [u8; 4], target: [u8; 4], protocol: u8, identity: u8, fragment: u16, rest: (&[u8], &[u8])) -> Vec<u8> {
    let (options, payload) = rest;
    let header = 20 + options.len();
    let [high, low] = ((header + payload.len()) as u16).to_be_bytes();
    let [flags, offset] = fragment.to_be_bytes();
    let fixed = [0x40 + header as u8 / 4, 0, high, low, 1, identity, flags, offset, 64, protocol, 0, 0];
    let mut header = [&fixed[..], &source, &target, options].concat();
    let sum = checksum::sum(&header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header[..], payload].concat()
}

/// Encodings of a payload in IPv4, the usual one first.
pub fn packets4(
    source: [u8; 4],
    target: [u8; 4],
    protocol: u8,
    identity: u8,
    payload: &[u8],
) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let whole = |options: &[u8]| vec![v4(source, target, protocol, identity, 0, (options, payload))];
    let part = |fragment, payload: &[u8]| v4(source, target, protocol, identity, fragment, (&[], payload));
    let parts = || vec![part(0x2000, &payload[..8]), part(1, &payload[8..])];
    vec![
        ("plain", whole(&[])),
        ("options", whole(&[1; 4])),
        ("40 bytes of options", whole(&[1; 40])),
        ("two fragments", parts()),
        ("the second fragment first", parts().into_iter().rev().collect()),
    ]
}
