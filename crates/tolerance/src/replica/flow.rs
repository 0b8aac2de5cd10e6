//! The connections of a guest as its network sees them: sequence numbers and options, which smoltcp keeps to itself. An image of the guest
//! needs them (`image.rs`).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress,
    IpProtocol, Ipv4Address, Ipv4Packet, Ipv4Repr, TcpControl, TcpPacket, TcpRepr, TcpSeqNumber,
};

/// Connections and hosts that are remembered. The guest has 8 connections, and smoltcp remembers 8 neighbours.
const FLOWS: usize = 32;
const NEIGHBORS: usize = 8;

/// A TCP connection of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// The other end's address and port, and the guest's port.
    pub remote: ([u8; 4], u16),
    pub port: u16,
    /// The MAC address from which its frames come: its own, or a router's.
    pub mac: [u8; 6],
    /// Initial sequence numbers: of the other end, of the guest.
    pub theirs: u32,
    pub ours: u32,
    /// Options of the other end's SYN: the largest segment, the window's scale, selective acknowledgement.
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub selective: bool,
    /// The window field of the other end's last segment.
    pub window: u16,
    /// The sequence number behind all that the guest has sent.
    pub sent: u32,
}

/// A TCP segment between the guest and another host.
pub struct Segment<'a> {
    /// The MAC address that has sent it.
    pub from: [u8; 6],
    pub source: Ipv4Address,
    pub destination: Ipv4Address,
    pub tcp: TcpRepr<'a>,
}

impl<'a> Segment<'a> {
    /// The segment in a frame, if there is one. Its checksums are others' affair.
    pub fn parse(frame: &'a [u8]) -> Option<Self> {
        let ethernet = EthernetFrame::new_checked(frame).ok()?;
        if ethernet.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
        if ip.next_header() != IpProtocol::Tcp || ip.more_frags() || ip.frag_offset() != 0 {
            return None;
        }
        let (source, destination) = (ip.src_addr(), ip.dst_addr());
        let packet = TcpPacket::new_checked(ip.payload()).ok()?;
        let ends = (IpAddress::Ipv4(source), IpAddress::Ipv4(destination));
        let tcp = TcpRepr::parse(&packet, &ends.0, &ends.1, &ChecksumCapabilities::ignored()).ok()?;
        Some(Self { from: ethernet.src_addr().0, source, destination, tcp })
    }

    /// The sequence number behind it, if it has any bytes or a FIN.
    pub fn end(&self) -> Option<u32> {
        let len = self.tcp.payload.len() as u32 + u32::from(self.tcp.control == TcpControl::Fin);
        (len > 0).then(|| number(self.tcp.seq_number).wrapping_add(len))
    }

    /// Its frame.
    pub fn frame(&self, to: [u8; 6]) -> Vec<u8> {
        let ip = Ipv4Repr {
            src_addr: self.source,
            dst_addr: self.destination,
            next_header: IpProtocol::Tcp,
            payload_len: self.tcp.buffer_len(),
            hop_limit: 64,
        };
        let mut frame = header(self.from, to, EthernetProtocol::Ipv4, ip.buffer_len() + self.tcp.buffer_len());
        let all = ChecksumCapabilities::default();
        let mut packet = Ipv4Packet::new_unchecked(frame.get_mut(14..).unwrap_or_default());
        ip.emit(&mut packet, &all);
        let ends = (self.source.into(), self.destination.into());
        self.tcp.emit(&mut TcpPacket::new_unchecked(packet.payload_mut()), &ends.0, &ends.1, &all);
        frame
    }
}

fn header(from: [u8; 6], to: [u8; 6], ethertype: EthernetProtocol, len: usize) -> Vec<u8> {
    let ethernet = EthernetRepr { src_addr: EthernetAddress(from), dst_addr: EthernetAddress(to), ethertype };
    let mut frame = vec![0; ethernet.buffer_len() + len];
    ethernet.emit(&mut EthernetFrame::new_unchecked(&mut frame));
    frame
}

/// An ARP request of another host for the guest's address.
pub fn arp_request((address, mac): Neighbor, guest: [u8; 4]) -> Vec<u8> {
    let arp = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: EthernetAddress(mac),
        source_protocol_addr: Ipv4Address::from(address),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: Ipv4Address::from(guest),
    };
    let mut frame = header(mac, [0xff; 6], EthernetProtocol::Arp, arp.buffer_len());
    arp.emit(&mut ArpPacket::new_unchecked(frame.get_mut(14..).unwrap_or_default()));
    frame
}

/// A sequence number as it is on the wire.
pub fn number(number: TcpSeqNumber) -> u32 {
    number.0.cast_unsigned()
}

/// A sequence number for smoltcp.
pub fn sequence(number: u32) -> TcpSeqNumber {
    TcpSeqNumber(number.cast_signed())
}

/// Whether a sequence number is behind another one (RFC 9293, section 3.4).
pub fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

/// An IPv4 address and its MAC address.
pub type Neighbor = ([u8; 4], [u8; 6]);

/// Learns from the frames that pass between the guest's TCP and its driver.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The guest's address.
    address: [u8; 4],
    /// SYNs that the guest has not answered.
    asked: VecDeque<Flow>,
    flows: VecDeque<Flow>,
    neighbors: VecDeque<Neighbor>,
}

fn keep<T>(queue: &mut VecDeque<T>, most: usize, item: T) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

impl Watch {
    /// The flows of a guest with these connections and neighbours.
    pub fn new(address: [u8; 4], flows: impl IntoIterator<Item = Flow>, neighbors: &[Neighbor]) -> Self {
        let (flows, neighbors) = (flows.into_iter().collect(), neighbors.iter().copied().collect());
        Self { address, asked: VecDeque::new(), flows, neighbors }
    }

    /// Hosts that have asked for the guest's address, or answered.
    pub fn neighbors(&self) -> impl Iterator<Item = Neighbor> {
        self.neighbors.iter().copied()
    }

    /// The connection with this end.
    pub fn flow(&self, remote: ([u8; 4], u16)) -> Option<&Flow> {
        self.flows.iter().find(|flow| flow.remote == remote)
    }

    /// Forgets connections whose other end is none of these, once there are many.
    pub fn forget(&mut self, lives: impl Fn(([u8; 4], u16)) -> bool) {
        if self.flows.len() >= FLOWS / 2 {
            self.flows.retain(|flow| lives(flow.remote));
        }
    }

    /// A frame to the guest.
    pub fn received(&mut self, frame: &[u8]) {
        if let Some(neighbor) = neighbor(frame, self.address) {
            self.neighbors.retain(|(address, _)| *address != neighbor.0);
            keep(&mut self.neighbors, NEIGHBORS, neighbor);
        }
        let Some(Segment { from: mac, source, tcp, .. }) = Segment::parse(frame) else { return };
        let remote = (source.octets(), tcp.src_port);
        if tcp.control == TcpControl::Syn && tcp.ack_number.is_none() {
            let theirs = number(tcp.seq_number);
            let flow = Flow {
                remote,
                port: tcp.dst_port,
                mac,
                theirs,
                ours: 0,
                mss: tcp.max_seg_size,
                scale: tcp.window_scale,
                selective: tcp.sack_permitted,
                window: tcp.window_len,
                sent: 0,
            };
            keep(&mut self.asked, FLOWS, flow);
        } else if let Some(flow) = self.flows.iter_mut().find(|flow| flow.remote == remote)
            && tcp.ack_number.is_some()
        {
            (flow.window, flow.mac) = (tcp.window_len, mac);
        }
    }

    /// A frame of the guest.
    pub fn sent(&mut self, frame: &[u8]) {
        let Some(segment) = Segment::parse(frame) else { return };
        let remote = (segment.destination.octets(), segment.tcp.dst_port);
        let ours = number(segment.tcp.seq_number);
        if segment.tcp.control == TcpControl::Syn {
            let answers = |flow: &Flow| {
                let next = Some(sequence(flow.theirs.wrapping_add(1)));
                flow.remote == remote && segment.tcp.ack_number == next
            };
            let Some(at) = self.asked.iter().rposition(answers) else { return };
            let Some(flow) = self.asked.remove(at) else { return };
            self.flows.retain(|flow| flow.remote != remote);
            keep(&mut self.flows, FLOWS, Flow { ours, sent: ours.wrapping_add(1), ..flow });
        } else if let Some(end) = segment.end()
            && let Some(flow) = self.flows.iter_mut().find(|flow| flow.remote == remote)
            && is_after(end, flow.sent)
        {
            flow.sent = end;
        }
    }
}

/// The host that has sent an ARP packet for the guest: smoltcp learns of no others.
fn neighbor(frame: &[u8], guest: [u8; 4]) -> Option<Neighbor> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    if ethernet.ethertype() != EthernetProtocol::Arp {
        return None;
    }
    let packet = ArpPacket::new_checked(ethernet.payload()).ok()?;
    let ArpRepr::EthernetIpv4 { source_hardware_addr: mac, source_protocol_addr: source, target_protocol_addr, .. } =
        ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    (target_protocol_addr.octets() == guest).then(|| (source.octets(), mac.0))
}
