//! Packets that smoltcp builds, and a sender that offers them to an uplink.

use std::sync::Arc;

use nicety_adapter::{
    Batch, Checksum, Counters, Delivery, Frames, Offload, Pick, PortId, Segment, SegmentKind, Time, Uplink,
};
use nicety_memory::Map;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, Ipv4Address, Ipv4Packet,
    Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

pub const PARTIAL: Checksum = Checksum::Partial { start: 34, field: 50 };

pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// An IPv4 packet in a frame, with complete checksums.
pub fn ethernet(ip: Ipv4Repr, target: [u8; 6], emit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let ethernet = EthernetRepr {
        src_addr: EthernetAddress([2, 0, 0, 0, 0, 1]),
        dst_addr: EthernetAddress(target),
        ethertype: EthernetProtocol::Ipv4,
    };
    let mut bytes = vec![0; 14 + 20 + ip.payload_len];
    let mut frame = EthernetFrame::new_unchecked(&mut bytes[..]);
    ethernet.emit(&mut frame);
    let mut packet = Ipv4Packet::new_unchecked(frame.payload_mut());
    ip.emit(&mut packet, &ChecksumCapabilities::default());
    emit(packet.payload_mut());
    bytes
}

/// A TCP packet with complete checksums.
pub fn tcp(payload: &[u8]) -> Vec<u8> {
    let (source, target) = (Ipv4Address::new(10, 9, 8, 2), Ipv4Address::new(10, 9, 8, 1));
    let tcp = TcpRepr {
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
    };
    let ip = Ipv4Repr {
        src_addr: source,
        dst_addr: target,
        next_header: IpProtocol::Tcp,
        payload_len: tcp.buffer_len(),
        hop_limit: 64,
    };
    ethernet(ip, [2, 0, 0, 0, 0, 2], |out| {
        let mut segment = TcpPacket::new_unchecked(out);
        tcp.emit(&mut segment, &IpAddress::Ipv4(source), &IpAddress::Ipv4(target), &ChecksumCapabilities::default());
    })
}

/// A TCP packet with the pseudo-header's sum in its checksum field, as a driver leaves it for its adapter.
pub fn partial(payload: &[u8]) -> Vec<u8> {
    let mut bytes = tcp(payload);
    let sum: u32 = 0x0a09 + 0x0802 + 0x0a09 + 0x0801 + 6 + (bytes.len() as u32 - 34);
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[50..52].copy_from_slice(&(sum as u16).to_be_bytes());
    bytes
}

/// The request to cut such a packet.
pub fn tso() -> Offload {
    Offload { checksum: PARTIAL, segment: Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers: 54 }) }
}

/// Frames in memory of their own, ready for delivery.
pub struct Sender {
    pub batch: Batch,
    picks: Vec<Pick>,
}

impl Sender {
    pub fn new(packets: &[(Vec<u8>, Offload)]) -> Self {
        let bytes: usize = packets.iter().map(|(frame, _)| frame.len()).sum();
        let map = Arc::new(Map::private(bytes.max(1)).unwrap());
        let mut batch = Batch::new();
        batch.start(&map, PortId(0), 0);
        let mut at = 0;
        for (frame, offload) in packets {
            map.write(at, frame).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(at, frame.len() as u32).unwrap();
            draft.finish(*offload, 0).unwrap();
            at += frame.len() as u64;
        }
        let picks = (0..packets.len() as u16).map(Pick::whole).collect();
        Self { batch, picks }
    }

    pub fn deliver(&self, uplink: &mut impl Uplink, counters: &mut Counters, now: Time) -> Delivery {
        uplink.deliver(&Frames::new(&self.batch, &self.picks), counters, now)
    }
}
