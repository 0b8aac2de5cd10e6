//! The value by which a team with several active members chooses one for each frame: as Linux's bonding driver computes it
//! (drivers/net/bonding/bond_main.c, `bond_xmit_hash`), so that an operator finds the same link there and here. Its values are those of a
//! little-endian machine, which loads fields as they lie in memory.

mod dissect;

use nicety_adapter::{Batch, Edit, Packet, Pick, PortId};
use nicety_frame::vlan;
use nicety_frame::{Fragment, L3Kind, Mac};

/// The parts of a frame that choose its member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Hash {
    /// Ethernet addresses and type: `layer2`.
    #[default]
    Layer2,
    /// MAC and IP addresses: `layer2+3`.
    Layer23,
    /// IP addresses, ports of TCP and UDP, and the identifier of an ICMP echo; of an ICMP error, addresses and ports of the packet that it
    /// reports: `layer3+4`. All fragments of a packet have the same value. It differs from the value of the flow's whole packets.
    Layer34,
    /// As [`Layer23`](Hash::Layer23), with the innermost IP addresses of a packet in tunnels that the kernel's flow dissector knows (IP in
    /// IP, GRE, PPPoE; not those over UDP): `encap2+3`.
    Encap23,
    /// As [`Layer34`](Hash::Layer34), of the innermost packet: `encap3+4`. This is the value that the kernel gives to packets that it
    /// forwards. For packets that it sends itself it uses the socket's own hash.
    Encap34,
    /// The VLAN and the source address: `vlan+srcmac`.
    VlanSource,
    /// The port from which it comes.
    Port,
    /// Its source address.
    Source,
    /// The port from which it comes, unless the team has moved that port to another member.
    Moved,
    /// The port from which it comes, or the part of that port.
    Sender,
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// TCP, UDP, DCCP, ESP, SCTP, UDP-Lite: the first four bytes tell flows apart (`proto_ports_offset`).
const PORTS_FIRST: [u8; 6] = [6, 17, 33, 50, 132, 136];
/// The authentication header: its index lies behind four other bytes.
const AUTHENTICATION: u8 = 51;

impl Hash {
    const ALL: [Self; 10] = [
        Self::Layer2,
        Self::Layer23,
        Self::Layer34,
        Self::Encap23,
        Self::Encap34,
        Self::VlanSource,
        Self::Port,
        Self::Source,
        Self::Moved,
        Self::Sender,
    ];

    /// The hash with this number, as `as u8` gives it.
    #[inline]
    pub(super) fn numbered(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Whether it is the same for all frames from one port.
    #[inline]
    pub(crate) fn is_of_port(self) -> bool {
        matches!(self, Self::Port | Self::Moved | Self::Sender)
    }

    /// Whether flows of one port leave by several members.
    pub(super) fn spreads_a_port(self) -> bool {
        !matches!(self, Self::Port | Self::Moved | Self::Sender | Self::VlanSource)
    }

    /// The value of a frame.
    #[inline]
    pub fn of(self, batch: &Batch, packet: &Packet, pick: &Pick) -> u32 {
        let head = batch.head(packet);
        let layout = batch.layout(packet);
        let ports = matches!(self, Self::Layer34 | Self::Encap34);
        let flow = match self {
            Self::VlanSource => return vlan_source(head, pick.edit),
            Self::Port | Self::Moved => return batch.origin.0.into(),
            Self::Sender => return batch.sender.0.into(),
            Self::Source => return head.get(6..).and_then(<[u8]>::first_chunk).map_or(0, of_source),
            Self::Layer2 => None,
            Self::Layer23 | Self::Layer34 => layout.l3.and_then(|l3| {
                let is_fragment = l3.fragment != Fragment::Whole;
                Flow::find(head, l3.offset.into(), l3.kind, ports, is_fragment, 1)
            }),
            Self::Encap23 | Self::Encap34 => dissect::innermost(head),
        };
        let Some(Flow { addresses, ports: of_ports }) = flow else { return layer2(head, layout.ethertype) };
        let mut hash = addresses ^ if ports { of_ports } else { layer2(head, layout.ethertype) };
        hash ^= hash >> 16;
        hash ^= hash >> 8;
        // Even ports are common.
        if ports { hash >> 1 } else { hash }
    }
}

fn layer2(head: &[u8], ethertype: u16) -> u32 {
    let byte = |at: usize| u32::from(head.get(at).copied().unwrap_or_default());
    byte(5) ^ byte(11) ^ u32::from(ethertype)
}

fn vlan_source(head: &[u8], edit: Edit) -> u32 {
    let tag = match edit {
        Edit::Keep => vlan::outer(head),
        Edit::Untag => vlan::outer(head).and(vlan::second(head)),
        Edit::Tag(tag) | Edit::Retag(tag) => Some(tag),
    };
    let Some([a, b, c, d, e, f]) = head.get(6..12).and_then(|source| source.first_chunk().copied()) else { return 0 };
    let tci = tag.map_or(0, |tag| {
        let [_, _, high, low] = tag.to_bytes();
        u16::from_be_bytes([high, low])
    });
    u32::from(tci) ^ u32::from_be_bytes([0, a, b, c]) ^ u32::from_be_bytes([0, d, e, f])
}

/// The words of a flow.
struct Flow {
    addresses: u32,
    ports: u32,
}

impl Flow {
    /// `errors`: how many ICMP errors it looks into. `None`: an IP header is missing, that of the packet that an error reports among them;
    /// then the kernel takes `layer2`'s value.
    fn find(head: &[u8], at: usize, kind: L3Kind, ports: bool, is_fragment: bool, errors: u32) -> Option<Self> {
        let word = |at: usize| word(head, at);
        let byte = |at: usize| head.get(at).copied();
        let (addresses, protocol, next) = match kind {
            L3Kind::V4 => (word(at + 12)? ^ word(at + 16)?, byte(at + 9)?, at + usize::from(byte(at)? & 0xf) * 4),
            L3Kind::V6 => {
                let all = (at + 8..at + 40).step_by(4).map(word);
                // Of extension headers the kernel knows nothing here.
                (all.sum_by_xor()?, byte(at + 6)?, at + 40)
            }
        };
        let mut flow = Self { addresses, ports: 0 };
        if is_fragment {
            return Some(flow);
        }
        if let (ICMP | ICMPV6, Some([kind_of_message, ..])) = (protocol, head.get(next..next + 8)) {
            let errors_here: &[u8] = if protocol == ICMP { &[3, 4, 5, 11, 12] } else { &[1, 2, 3, 4] };
            if errors_here.contains(kind_of_message) && errors > 0 {
                let inner = next + 8;
                let is_fragment = kind == L3Kind::V4 && head.get(inner + 6..inner + 8).is_some_and(is_fragment_field);
                return Self::find(head, inner, kind, ports, is_fragment, errors - 1);
            }
        }
        if ports {
            // Of an echo that an error reports, the kernel does not look at the identifier.
            let identifier = || if errors > 0 { echo(head, next, protocol) } else { None };
            flow.ports = ports_of(head, next, protocol).or_else(identifier).unwrap_or_default();
        }
        Some(flow)
    }
}

fn word(head: &[u8], at: usize) -> Option<u32> {
    head.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The four bytes at a transport header that tell flows apart.
fn ports_of(head: &[u8], at: usize, protocol: u8) -> Option<u32> {
    match protocol {
        AUTHENTICATION => word(head, at + 4),
        protocol if PORTS_FIRST.contains(&protocol) => word(head, at),
        _ => None,
    }
}

/// Type, code and identifier of an ICMP echo. An identifier of 0 counts as 1. The kernel keeps the identifier in host order.
fn echo(head: &[u8], at: usize, protocol: u8) -> Option<u32> {
    let [kind, code, _, _, a, b, _, _] = *head.get(at..)?.first_chunk()?;
    let echoes: &[u8] = match protocol {
        ICMP => &[0, 8, 13, 14],
        ICMPV6 => &[128, 129],
        _ => return None,
    };
    let identifier = u16::from_be_bytes([a, b]).max(1);
    echoes.contains(&kind).then(|| u32::from(identifier) << 16 | u32::from(code) << 8 | u32::from(kind))
}

/// Whether an IPv4 header's field says that more fragments follow, or that this is not the first.
fn is_fragment_field(field: &[u8]) -> bool {
    matches!(field, [high, low] if (high & 0x3f, *low) != (0, 0))
}

/// XOR of all, if all are there.
trait SumByXor {
    fn sum_by_xor(self) -> Option<u32>;
}

impl<I: Iterator<Item = Option<u32>>> SumByXor for I {
    fn sum_by_xor(mut self) -> Option<u32> {
        self.try_fold(0, |all, word| Some(all ^ word?))
    }
}

impl Hash {
    /// The value of frames from a station, in the modes in which it depends on that alone.
    pub(crate) fn of_station(self, port: PortId, station: Mac) -> u32 {
        match self {
            Self::Source => of_source(&station.0),
            _ => port.0.into(),
        }
    }
}

/// The value of a source address: all its bytes count, as addresses of one host often differ in the last or in the fourth.
fn of_source(address: &[u8; 6]) -> u32 {
    address.iter().fold(0, |sum, byte| sum + u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nicety_memory::Map;

    use super::*;

    fn hash(hash: Hash, frame: &[u8]) -> u32 {
        let map = Arc::new(Map::private(4096).unwrap());
        map.write(0, frame).unwrap();
        let mut batch = Batch::new();
        batch.start(&map, nicety_adapter::PortId(1), 0);
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        draft.finish_plain(0);
        hash.of(&batch, &batch.packets()[0], &Pick::whole(0))
    }

    /// From 02:00:00:00:00:01 to …:02; 10.0.0.1, port 5001, to 10.0.0.2, port 80.
    fn tcp(protocol: u8, fragment: [u8; 2]) -> Vec<u8> {
        let ip = [0x45, 0, 0, 40, 0, 1, fragment[0], fragment[1], 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let tcp = [0x13, 0x89, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0];
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &ip, &tcp, &[0; 6]].concat()
    }

    /// Frames, and what `bond_xmit_hash` of Linux 7.3.4 says of each, built for x86-64: name, frame, `layer2`, `layer2+3`, `layer3+4`,
    /// `encap2+3`, `encap3+4`.
    const OF_THE_KERNEL: &str = include_str!("hash/bond_hashes.txt");

    #[test]
    fn values_are_those_that_the_kernels_own_code_computes() {
        let hashes = [Hash::Layer2, Hash::Layer23, Hash::Layer34, Hash::Encap23, Hash::Encap34];
        let mut wrong = Vec::new();
        for line in OF_THE_KERNEL.lines() {
            let mut words = line.split(' ');
            let (name, hex) = (words.next().unwrap(), words.next().unwrap());
            let frame: Vec<u8> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            let wanted: Vec<u32> = words.map(|word| u32::from_str_radix(word, 16).unwrap()).collect();
            let found = hashes.map(|one| hash(one, &frame));
            if wanted != found {
                wrong.push(format!("{name}: {wanted:08x?}, and {found:08x?} here"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn values_are_those_of_the_bonding_driver() {
        let frame = tcp(6, [0, 0]);
        // 2 ^ 1 ^ 0x0800.
        assert_eq!(hash(Hash::Layer2, &frame), 0x803);
        // Addresses: 0x0100000a ^ 0x0200000a = 0x03000000; with 0x803, folded by 16 and by 8.
        let folded = |mut word: u32| {
            word ^= word >> 16;
            word ^ word >> 8
        };
        assert_eq!(hash(Hash::Layer23, &frame), folded(0x0300_0803));
        // Ports as they lie in memory: 13 89 00 50.
        assert_eq!(hash(Hash::Layer34, &frame), folded(0x5000_8913 ^ 0x0300_0000) >> 1);
        for fragment in [[0x20, 0], [0, 5]] {
            assert_eq!(hash(Hash::Layer34, &tcp(17, fragment)), folded(0x0300_0000) >> 1, "no ports");
        }
        // Source 02:00:00 00:00:01, and VLAN 5 with priority 3.
        assert_eq!(hash(Hash::VlanSource, &frame), 0x2_0000 ^ 1);
        let tagged = [&frame[..12], &[0x81, 0, 0x60, 5], &frame[12..]].concat();
        assert_eq!(hash(Hash::VlanSource, &tagged), 0x6005 ^ 0x2_0000 ^ 1);
        assert_eq!(hash(Hash::Layer34, &tagged), hash(Hash::Layer34, &frame));
        let arp = [&frame[..12], &[8, 6], &[0; 46]].concat();
        assert_eq!(hash(Hash::Layer34, &arp), 2 ^ 1 ^ 0x806);
    }

    #[test]
    fn both_ways_of_a_flow_have_one_value_and_an_error_about_it_too() {
        let frame = tcp(6, [0, 0]);
        let mut back = frame.clone();
        back[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!(hash(Hash::Layer23, &back), hash(Hash::Layer23, &frame));
        let error = [3, 1, 0, 0, 0, 0, 0, 0];
        let outer = [0x45, 0, 0, 56, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1];
        let about = [&frame[..14], &outer, &error, &frame[14..42]].concat();
        assert_eq!(hash(Hash::Layer34, &about), hash(Hash::Layer34, &frame));
        let echo = |id: [u8; 2]| [&tcp(1, [0, 0])[..34], &[8, 0, 0, 0, id[0], id[1], 0, 1], &[0; 20]].concat();
        assert_ne!(hash(Hash::Layer34, &echo([0, 1])), hash(Hash::Layer34, &echo([0, 2])));
        // `skb_flow_get_icmp_tci`: "avoid confusion with packets without such field".
        assert_eq!(hash(Hash::Layer34, &echo([0, 0])), hash(Hash::Layer34, &echo([0, 1])));
    }

    #[test]
    fn no_frame_is_too_short() {
        let frame = tcp(6, [0, 0]);
        let icmp = [&tcp(1, [0, 0])[..34], &[3, 0, 0, 0, 0, 0, 0, 0], &frame[14..]].concat();
        for frame in [&frame, &icmp] {
            for len in 14..frame.len() {
                for kind in [Hash::Layer2, Hash::Layer23, Hash::Layer34, Hash::VlanSource] {
                    hash(kind, &frame[..len]);
                }
            }
        }
    }
}
