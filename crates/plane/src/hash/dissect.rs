//! The innermost flow of a packet in tunnels, as the kernel's flow dissector finds it for the bonding driver (net/core/flow_dissector.c,
//! `__skb_flow_dissect`, with the keys of `flow_keys_bonding`). It knows no tunnel over UDP.
//!
//! Not implemented: TIPC, B.A.T.M.A.N., HSR and PRP, FCoE, CFM. Frames of these have the value of `layer2`.

use super::{Flow, SumByXor, echo, is_fragment_field, ports_of, word};
use nicety_frame::ethernet::ethertype;

/// Most headers that it walks (`MAX_FLOW_DISSECT_HDRS`).
const HEADERS_MAX: usize = 15;

const PPPOE_SESSION: u16 = 0x8864;
const MPLS: [u16; 2] = [0x8847, 0x8848];
const PTP: u16 = 0x88f7;
const PTP_BYTES: usize = 34;
/// Ethernet in GRE, and PPP in GRE (PPTP).
const BRIDGED: u16 = 0x6558;
const PPP: u16 = 0x880b;

const HOP_BY_HOP: u8 = 0;
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const GRE: u8 = 47;
const DESTINATION: u8 = 60;
const MPLS_IN_IP: u8 = 137;

/// Flags of a GRE header (RFC 2784, 2890; RFC 2637).
const CHECKSUM: u16 = 0x8000;
const SOURCE_ROUTE: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
const ACKNOWLEDGMENT: u16 = 0x0080;
const VERSION: u16 = 0x0007;

/// The way on from a header.
enum Next {
    /// Another header, of this EtherType.
    Frame(u16, usize),
    /// An IP protocol.
    Protocol(u8, usize),
    /// The end.
    End,
}

fn half(head: &[u8], at: usize) -> Option<u16> {
    head.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// `None`: the dissector gives up, and the driver takes `layer2`'s value.
pub(super) fn innermost(head: &[u8]) -> Option<Flow> {
    let mut flow = Flow { addresses: 0, ports: 0 };
    // An echo's identifier is found once and not cleared by what follows it: nothing does.
    let mut next = Next::Frame(half(head, 12)?, 14);
    let mut is_v6 = false;
    for _ in 0..HEADERS_MAX {
        next = match next {
            Next::End => break,
            Next::Frame(kind, at) => {
                is_v6 = kind == ethertype::IPV6;
                frame(head, kind, at, &mut flow)?
            }
            Next::Protocol(protocol, at) => {
                flow.ports = echo(head, at, protocol).or_else(|| ports_of(head, at, protocol)).unwrap_or_default();
                behind_ip(head, protocol, at, is_v6)?
            }
        };
    }
    Some(flow)
}

fn frame(head: &[u8], kind: u16, at: usize, flow: &mut Flow) -> Option<Next> {
    Some(match kind {
        ethertype::IPV4 => {
            let len = usize::from(head.get(at..at + 20)?[0] & 0xf) * 4;
            if len < 20 {
                return None;
            }
            *flow = Flow { addresses: word(head, at + 12)? ^ word(head, at + 16)?, ..*flow };
            if is_fragment_field(&head[at + 6..at + 8]) { Next::End } else { Next::Protocol(head[at + 9], at + len) }
        }
        ethertype::IPV6 => {
            *flow = Flow { addresses: (at + 8..at + 40).step_by(4).map(|at| word(head, at)).sum_by_xor()?, ..*flow };
            Next::Protocol(head[at + 6], at + 40)
        }
        ethertype::VLAN | ethertype::SERVICE_VLAN => Next::Frame(half(head, at + 2)?, at + 4),
        PPPOE_SESSION => {
            let (version, protocol) = (half(head, at)?, half(head, at + 6)?);
            match protocol {
                _ if version != 0x1100 => return None,
                0x21 => Next::Frame(ethertype::IPV4, at + 8),
                0x57 => Next::Frame(ethertype::IPV6, at + 8),
                // A whole protocol number (RFC 1661, section 2).
                _ if protocol & 0x101 == 1 => Next::End,
                _ => return None,
            }
        }
        ethertype::ARP | ethertype::RARP => Next::End,
        PTP => head.get(at..at + PTP_BYTES).map(|_| Next::End)?,
        kind if MPLS.contains(&kind) => Next::End,
        _ => return None,
    })
}

fn behind_ip(head: &[u8], protocol: u8, at: usize, is_v6: bool) -> Option<Next> {
    Some(match protocol {
        GRE => gre(head, at)?,
        IPIP => Next::Frame(ethertype::IPV4, at),
        IPV6 => Next::Frame(ethertype::IPV6, at),
        MPLS_IN_IP => Next::End,
        HOP_BY_HOP | ROUTING | DESTINATION if is_v6 => {
            let [next, len] = *head.get(at..)?.first_chunk()?;
            Next::Protocol(next, at + (usize::from(len) + 1) * 8)
        }
        FRAGMENT if is_v6 => head.get(at..at + 8).map(|_| Next::End)?,
        _ => Next::End,
    })
}

fn gre(head: &[u8], at: usize) -> Option<Next> {
    let (flags, mut kind) = (half(head, at)?, half(head, at + 2)?);
    let is_pptp = flags & VERSION == 1;
    if flags & SOURCE_ROUTE != 0 || flags & VERSION > 1 || (is_pptp && (kind != PPP || flags & KEY == 0)) {
        return Some(Next::End);
    }
    let four = |flag: u16| if flags & flag == 0 { 0 } else { 4 };
    if flags & KEY != 0 {
        word(head, at + 4 + four(CHECKSUM))?;
    }
    let mut behind = at + 4 + four(CHECKSUM) + four(KEY) + four(SEQUENCE);
    if is_pptp {
        behind += four(ACKNOWLEDGMENT);
        kind = match half(head, behind + 2)? {
            0x21 => ethertype::IPV4,
            0x57 => ethertype::IPV6,
            _ => kind,
        };
        behind += 4;
    } else if kind == BRIDGED {
        kind = half(head, behind + 12)?;
        behind += 14;
    }
    Some(Next::Frame(kind, behind))
}
