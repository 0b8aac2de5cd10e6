//! Packets from outside, built with etherparse, which also checks outgoing ones.

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

pub fn tcp4(target: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], target)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1000, 2000, 7, 1000)
        .ack(9);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

pub fn tcp6(target: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let (a, b) = ([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], [0xfd; 16]);
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], target).ipv6(a, b, 64).tcp(1000, 2000, 7, 1000).ack(9);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

pub fn udp4(target: [u8; 6], source_port: u16, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], target)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(source_port, 2000);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

/// A TCP packet after `vmxnet3_prepare_tso`: no IP checksum, the pseudo-header's sum without the length.
pub fn prepared_for_tso(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes[12..14] == [8, 0] {
        bytes[24..26].fill(0);
    }
    with_pseudo(bytes, 0)
}

/// A TCP packet from a stack that leaves the checksum to its adapter (CHECKSUM_PARTIAL).
pub fn partial(bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.len() - if bytes[12..14] == [8, 0] { 34 } else { 54 };
    with_pseudo(bytes, len as u32)
}

/// The packet in a tunnel between 10.1.0.1 and 10.1.0.2, as UDP with a checksum over the present bytes.
pub fn tunneled(inner: &[u8], geneve: bool) -> Vec<u8> {
    let header =
        if geneve { [1, 0, 0x65, 0x58, 0, 0, 7, 0, 0, 1, 2, 0].to_vec() } else { vec![8, 0, 0, 0, 0, 0, 7, 0] };
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], crate::guest::MAC.0)
        .ipv4([10, 1, 0, 1], [10, 1, 0, 2], 64)
        .udp(40_000, if geneve { 6081 } else { 4789 });
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &[&header, inner].concat()).unwrap();
    bytes
}

fn with_pseudo(mut bytes: Vec<u8>, len: u32) -> Vec<u8> {
    let v4 = bytes[12..14] == [8, 0];
    let (addresses, tcp) = if v4 { (26..34, 34) } else { (22..54, 54) };
    let words = bytes[addresses].as_chunks::<2>().0.iter();
    let sum = words.fold(6 + len, |sum, &word| sum + u32::from(u16::from_be_bytes(word)));
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    bytes[tcp + 16..tcp + 18].copy_from_slice(&(folded as u16).to_be_bytes());
    bytes
}

/// The payload of a TCP or UDP packet, with all its checksums verified.
pub fn verified(bytes: &[u8]) -> (u32, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(bytes).unwrap();
    let transport = packet.transport.unwrap();
    match (packet.net.unwrap(), transport) {
        (NetSlice::Ipv4(ip), TransportSlice::Tcp(tcp)) => {
            assert_eq!(ip.header().to_header().calc_header_checksum(), ip.header().header_checksum());
            assert_eq!(
                tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()).unwrap(),
                tcp.checksum()
            );
            (tcp.sequence_number(), tcp.payload().to_vec())
        }
        (NetSlice::Ipv6(ip), TransportSlice::Tcp(tcp)) => {
            assert_eq!(
                tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap(),
                tcp.checksum()
            );
            (tcp.sequence_number(), tcp.payload().to_vec())
        }
        (NetSlice::Ipv4(ip), TransportSlice::Udp(udp)) => {
            let header = udp.to_header();
            assert_eq!(header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload()).unwrap(), udp.checksum());
            (0, udp.payload().to_vec())
        }
        other => panic!("{other:?}"),
    }
}
