//! Packets built and checked with smoltcp.

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet,
    Ipv4Repr, Ipv6Address, Ipv6Packet, Ipv6Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

/// Ethernet and IPv4 and TCP headers.
pub const HEADERS4: usize = 14 + 20 + 20;
/// Ethernet and IPv6 and TCP headers.
pub const HEADERS6: usize = 14 + 40 + 20;

fn repr(payload: &[u8]) -> TcpRepr<'_> {
    TcpRepr {
        src_port: 1000,
        dst_port: 2000,
        control: TcpControl::Psh,
        seq_number: TcpSeqNumber(7),
        ack_number: Some(TcpSeqNumber(9)),
        window_len: 100,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload,
    }
}

fn ethernet(bytes: &mut [u8], ethertype: EthernetProtocol) -> EthernetFrame<&mut [u8]> {
    let repr = EthernetRepr {
        src_addr: EthernetAddress([2, 0, 0, 0, 0, 1]),
        dst_addr: EthernetAddress([2, 0, 0, 0, 0, 2]),
        ethertype,
    };
    let mut frame = EthernetFrame::new_unchecked(bytes);
    repr.emit(&mut frame);
    frame
}

/// TCP over IPv4, with complete checksums.
pub fn tcp4(payload: &[u8]) -> Vec<u8> {
    let (source, target) = (Ipv4Address::new(10, 0, 0, 1), Ipv4Address::new(10, 0, 0, 2));
    let tcp = repr(payload);
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: target,
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; HEADERS4 + payload.len()];
    let mut frame = ethernet(&mut bytes, EthernetProtocol::Ipv4);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    let mut segment = TcpPacket::new_unchecked(packet.payload_mut());
    tcp.emit(&mut segment, &IpAddress::Ipv4(source), &IpAddress::Ipv4(target), &ChecksumCapabilities::default());
    bytes
}

/// TCP over IPv6, with a complete checksum.
pub fn tcp6(payload: &[u8]) -> Vec<u8> {
    let source = Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
    let target = Ipv6Address::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
    let tcp = repr(payload);
    let ip = Ipv6Repr {
        src_addr: source,
        dst_addr: target,
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    let mut bytes = vec![0; HEADERS6 + payload.len()];
    let mut frame = ethernet(&mut bytes, EthernetProtocol::Ipv6);
    let mut packet = Ipv6Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet);
    let mut segment = TcpPacket::new_unchecked(packet.payload_mut());
    tcp.emit(&mut segment, &IpAddress::Ipv6(source), &IpAddress::Ipv6(target), &ChecksumCapabilities::default());
    bytes
}

/// Puts the pseudo-header's sum into the checksum field (RFC 9293, 3.1), as a driver does.
pub fn partial(mut bytes: Vec<u8>) -> Vec<u8> {
    let (addresses, start) = if bytes[12] == 0x08 { (26..34, 34) } else { (22..54, 54) };
    let len = bytes.len() as u32 - start as u32;
    let words = bytes[addresses].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let mut sum = words.sum::<u32>() + 6 + len;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    bytes[start + 16..start + 18].copy_from_slice(&(sum as u16).to_be_bytes());
    bytes
}

/// Checks a frame as a receiver's stack would, and returns its TCP payload.
pub fn judged(frame: &[u8]) -> Vec<u8> {
    let frame = EthernetFrame::new_checked(frame).expect("an Ethernet frame");
    if frame.ethertype() == EthernetProtocol::Ipv6 {
        let ip = Ipv6Packet::new_checked(frame.payload()).expect("an IPv6 packet");
        let tcp = TcpPacket::new_checked(ip.payload()).expect("a TCP segment");
        assert!(tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()), "the TCP checksum");
        return tcp.payload().to_vec();
    }
    let ip = Ipv4Packet::new_checked(frame.payload()).expect("an IPv4 packet");
    assert!(ip.verify_checksum(), "the header's checksum");
    let tcp = TcpPacket::new_checked(ip.payload()).expect("a TCP segment");
    assert!(tcp.verify_checksum(&ip.src_addr().into(), &ip.dst_addr().into()), "the TCP checksum");
    tcp.payload().to_vec()
}

pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}
