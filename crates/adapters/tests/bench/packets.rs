//! Frames and packets from outside. Checksums are made by RFC 1071's rule, written here again, and checked by etherparse.

use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// The adapter's address, and another station's.
pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
pub const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// The sequence number of the TCP packets.
pub const SEQUENCE: u32 = 100;

/// The key of the RSS specification (Microsoft, "Verifying the RSS Hash Calculation"). Its verification suite is in the crate
/// `nicety-frame`.
pub const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// A frame of `len` bytes of a local experimental protocol (IEEE 802: 88b5). The seed determines its content.
pub fn experimental(to: [u8; 6], from: [u8; 6], len: usize, seed: u8) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.extend((frame.len()..len).map(|i| (i * 7 + i / 251) as u8 ^ seed));
    frame
}

/// The same from the peer to any station.
pub fn to(station: [u8; 6], len: usize) -> Vec<u8> {
    experimental(station, PEER, len, 0)
}

/// The same from the peer to this adapter.
pub fn frame(len: usize) -> Vec<u8> {
    to(MAC, len)
}

/// An Ethernet II frame from the peer to this adapter.
pub fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&MAC[..], &PEER, &ethertype.to_be_bytes(), payload].concat()
}

/// The checksum of RFC 1071, section 4.1, not inverted.
pub fn rfc1071(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |b| u32::from(*b))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// An IPv4 header with checksum around a payload.
pub fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let total = (20 + payload.len()) as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = !rfc1071(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// An IPv6 header around a payload.
pub fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 64]);
    for last in [1, 2] {
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    packet.extend(payload);
    packet
}

/// A TCP header without a checksum, with PSH and ACK, around a payload.
pub fn tcp(payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![3, 232, 7, 208, 0, 0, 0, SEQUENCE as u8, 0, 0, 0, 9, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    segment.extend(payload);
    segment
}

/// The pseudo-header's sum, folded.
pub fn pseudo(ip: &[u8], protocol: u8, len: u32) -> u16 {
    let addresses = if ip[0] >> 4 == 4 { &ip[12..20] } else { &ip[8..40] };
    rfc1071(&[addresses, &len.to_be_bytes(), &[0, protocol]].concat())
}

/// Of an untagged frame's transport header: its offset, its checksum field's, and its protocol.
fn transport(frame: &[u8]) -> (usize, usize, u8) {
    let (start, protocol) = if frame[12..14] == [8, 0] { (34, frame[23]) } else { (54, frame[20]) };
    (start, start + if protocol == 6 { 16 } else { 6 }, protocol)
}

/// A frame whose transport checksum's field holds the pseudo-header's sum, for `len` bytes of transport.
pub fn with_pseudo(mut frame: Vec<u8>, len: u32) -> Vec<u8> {
    let (_, field, protocol) = transport(&frame);
    let sum = pseudo(&frame[14..], protocol, len);
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A frame from a stack that leaves the transport checksum to its adapter (Linux: CHECKSUM_PARTIAL).
pub fn partial(frame: Vec<u8>) -> Vec<u8> {
    let len = frame.len() - transport(&frame).0;
    with_pseudo(frame, len as u32)
}

/// A frame with its transport checksum.
pub fn summed(frame: Vec<u8>) -> Vec<u8> {
    let mut frame = partial(frame);
    let (start, field, _) = transport(&frame);
    let sum = !rfc1071(&frame[start..]);
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn addressed(to: [u8; 6], ethertype: u16, packet: &[u8]) -> Vec<u8> {
    summed([&to[..], &PEER, &ethertype.to_be_bytes(), packet].concat())
}

/// TCP over IPv4 from 10.0.0.1 to 10.0.0.2, with its checksums.
pub fn tcp4(to: [u8; 6], payload: &[u8]) -> Vec<u8> {
    addressed(to, 0x0800, &ipv4(6, &tcp(payload)))
}

/// TCP over IPv6 from fd00::1 to fd00::2, with its checksum.
pub fn tcp6(to: [u8; 6], payload: &[u8]) -> Vec<u8> {
    addressed(to, 0x86dd, &ipv6(6, &tcp(payload)))
}

/// UDP to port 2000, over IPv4, with its checksums.
pub fn udp4(to: [u8; 6], source_port: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let header = [source_port, 2000, len, 0].map(u16::to_be_bytes).concat();
    addressed(to, 0x0800, &ipv4(17, &[&header, payload].concat()))
}

/// A TCP or UDP packet's payload. Panics if one of its checksums is wrong.
pub fn verified(frame: &[u8]) -> Vec<u8> {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    match (packet.net.unwrap(), packet.transport.unwrap()) {
        (NetSlice::Ipv4(ip), transport) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum, "the IPv4 header's checksum");
            match transport {
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(tcp.calc_checksum_ipv4(header.source, header.destination).unwrap(), tcp.checksum());
                    tcp.payload().to_vec()
                }
                TransportSlice::Udp(udp) => {
                    let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
                    assert_eq!(sum, udp.checksum());
                    udp.payload().to_vec()
                }
                other => panic!("{other:?}"),
            }
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            let header = ip.header().to_header();
            assert_eq!(tcp.calc_checksum_ipv6(header.source, header.destination).unwrap(), tcp.checksum());
            tcp.payload().to_vec()
        }
        other => panic!("{other:?}"),
    }
}

/// A TCP packet's sequence number (RFC 9293, 3.1).
pub fn sequence(frame: &[u8]) -> u32 {
    let (start, ..) = transport(frame);
    u32::from_be_bytes(frame[start + 4..start + 8].try_into().unwrap())
}
