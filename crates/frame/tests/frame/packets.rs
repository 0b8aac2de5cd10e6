//! Random valid packets, built by etherparse, with the offsets from the construction.

use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv4Options, Ipv6FlowLabel, Ipv6Header, Ipv6RawExtHeader,
    SingleVlanHeader, TcpHeader, UdpHeader, VlanId, VlanPcp,
};
use nicety_frame::{L3Kind, L4Kind};
use proptest::collection::vec;
use proptest::prelude::*;

/// Parts of a packet.
#[derive(Clone, Debug)]
pub struct Plan {
    pub macs: [u8; 12],
    /// Whether a tag is a service tag, and its TCI.
    pub tags: Vec<(bool, u16)>,
    pub l3: L3Kind,
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub id: u16,
    /// Words of IPv4 options, filled with "no operation".
    pub ip_option_words: usize,
    /// Extension headers: the number of each, and its length in units of 8 bytes less one.
    pub extensions: Vec<(u8, usize)>,
    pub l4: L4Kind,
    pub ports: (u16, u16),
    pub sequence: u32,
    pub flags: u8,
    pub tcp_option_words: usize,
    pub payload: Vec<u8>,
}

/// A packet and the offsets of its parts.
#[derive(Clone, Debug)]
pub struct Packet {
    pub plan: Plan,
    pub bytes: Vec<u8>,
    pub l3_at: usize,
    pub l4_at: usize,
    pub payload_at: usize,
}

pub fn plan(payload_max: usize) -> impl Strategy<Value = Plan> {
    let extensions = (any::<bool>(), vec((prop_oneof![Just(43_u8), Just(60)], 0_usize..4), 0..5)).prop_map(
        |(hop_by_hop, mut others)| {
            if hop_by_hop {
                others.insert(0, (0, 1));
            }
            others
        },
    );
    let link = (any::<[u8; 12]>(), vec(any::<(bool, u16)>(), 0..=2));
    let l3 = prop_oneof![Just(L3Kind::V4), Just(L3Kind::V6)];
    let net = (l3, any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u16>(), 0_usize..=10, extensions);
    let l4 = prop_oneof![Just(L4Kind::Tcp), Just(L4Kind::Udp)];
    let transport = (l4, any::<(u16, u16)>(), any::<u32>(), any::<u8>(), 0_usize..=10);
    (link, net, transport, vec(any::<u8>(), 0..=payload_max)).prop_map(
        |(
            (macs, tags),
            (l3, source, destination, id, ip_option_words, extensions),
            (l4, ports, sequence, flags, tcp_option_words),
            payload,
        )| Plan {
            macs,
            tags,
            l3,
            source,
            destination,
            id,
            ip_option_words,
            extensions,
            l4,
            ports,
            sequence,
            flags,
            tcp_option_words,
            payload,
        },
    )
}

pub fn packet(payload_max: usize) -> impl Strategy<Value = Packet> {
    plan(payload_max).prop_map(build)
}

fn v4(address: &[u8; 16]) -> [u8; 4] {
    address[..4].try_into().unwrap()
}

/// The transport header with the checksum that etherparse computes over the whole payload.
fn transport(plan: &Plan) -> Vec<u8> {
    match plan.l4 {
        L4Kind::Tcp => {
            let mut header = TcpHeader::new(plan.ports.0, plan.ports.1, plan.sequence, 0x1234);
            header.set_options_raw(&vec![1; plan.tcp_option_words * 4]).unwrap();
            let [fin, syn, rst, psh, ack, urg, ece, cwr] = std::array::from_fn(|bit| plan.flags & (1 << bit) != 0);
            (header.fin, header.syn, header.rst, header.psh) = (fin, syn, rst, psh);
            (header.ack, header.urg, header.ece, header.cwr) = (ack, urg, ece, cwr);
            header.checksum = match plan.l3 {
                L3Kind::V4 if plan.payload.len() > 0xff00 => 0,
                L3Kind::V4 => {
                    header.calc_checksum_ipv4_raw(v4(&plan.source), v4(&plan.destination), &plan.payload).unwrap()
                }
                L3Kind::V6 => header.calc_checksum_ipv6_raw(plan.source, plan.destination, &plan.payload).unwrap(),
            };
            header.to_bytes().to_vec()
        }
        L4Kind::Udp => {
            let length = (plan.payload.len() + 8).min(0xffff) as u16;
            let mut header =
                UdpHeader { source_port: plan.ports.0, destination_port: plan.ports.1, length, checksum: 0 };
            header.checksum = match plan.l3 {
                L3Kind::V4 if plan.payload.len() > 0xff00 => 0,
                L3Kind::V4 => {
                    header.calc_checksum_ipv4_raw(v4(&plan.source), v4(&plan.destination), &plan.payload).unwrap()
                }
                L3Kind::V6 => header.calc_checksum_ipv6_raw(plan.source, plan.destination, &plan.payload).unwrap(),
            };
            header.to_bytes().to_vec()
        }
    }
}

pub fn build(plan: Plan) -> Packet {
    let mut bytes = Vec::new();
    let last_type = match plan.l3 {
        L3Kind::V4 => EtherType::IPV4,
        L3Kind::V6 => EtherType::IPV6,
    };
    let tpid = |service: bool| if service { EtherType::PROVIDER_BRIDGING } else { EtherType::VLAN_TAGGED_FRAME };
    let mut types = plan.tags.iter().map(|(service, _)| tpid(*service)).chain([last_type]);
    let ethernet = Ethernet2Header {
        destination: plan.macs[..6].try_into().unwrap(),
        source: plan.macs[6..].try_into().unwrap(),
        ether_type: types.next().unwrap(),
    };
    bytes.extend(ethernet.to_bytes());
    for (_, tci) in &plan.tags {
        let tag = SingleVlanHeader {
            pcp: VlanPcp::try_new((tci >> 13) as u8).unwrap(),
            drop_eligible_indicator: tci & 0x1000 != 0,
            vlan_id: VlanId::try_new(tci & 0xfff).unwrap(),
            ether_type: types.next().unwrap(),
        };
        bytes.extend(tag.to_bytes());
    }
    let l3_at = bytes.len();
    let transport = transport(&plan);
    let protocol = IpNumber(plan.l4.protocol());
    let l4_len = transport.len() + plan.payload.len();
    match plan.l3 {
        L3Kind::V4 => {
            let mut header = Ipv4Header::new(0, 64, protocol, v4(&plan.source), v4(&plan.destination)).unwrap();
            header.options = Ipv4Options::try_from(&vec![1; plan.ip_option_words * 4][..]).unwrap();
            header.identification = plan.id;
            header.total_len = u16::try_from(header.header_len() + l4_len).unwrap_or(0);
            header.header_checksum = header.calc_header_checksum();
            bytes.extend(header.to_bytes());
        }
        L3Kind::V6 => {
            let mut numbers = plan.extensions.iter().map(|(number, _)| IpNumber(*number)).chain([protocol]);
            let first = numbers.next().unwrap();
            let mut chain = Vec::new();
            for (_, units) in &plan.extensions {
                // Routing type 0 with no segments left, and options in PadN's form, are both all zeros here.
                let raw = Ipv6RawExtHeader::new_raw(numbers.next().unwrap(), &vec![0; 6 + 8 * units]).unwrap();
                chain.extend(raw.to_bytes());
            }
            let header = Ipv6Header {
                traffic_class: 0,
                flow_label: Ipv6FlowLabel::try_new(u32::from(plan.id)).unwrap(),
                payload_length: u16::try_from(chain.len() + l4_len).unwrap_or(0),
                next_header: first,
                hop_limit: 64,
                source: plan.source,
                destination: plan.destination,
            };
            bytes.extend(header.to_bytes());
            bytes.extend(chain);
        }
    }
    let l4_at = bytes.len();
    bytes.extend(transport);
    let payload_at = bytes.len();
    bytes.extend(&plan.payload);
    Packet { plan, bytes, l3_at, l4_at, payload_at }
}
