//! Guards: frames that a guarded port's guest may not send, judged by the private heads.
//!
//! A frame that a guard cannot read must not pass it. A first fragment without the header that the guard needs, or an endless chain
//! of extension headers, is refused as what it might be (RFC 7113, section 2; RFC 8415's ports; RFC 2131's).

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU8;

use nicety_adapter::{Batch, Packet, Reason};
use nicety_frame::ethernet::ethertype;
use nicety_frame::ipv4::protocol;
use nicety_frame::{Fragment, L3Kind, Layout, arp};

use crate::policy::Policy;

/// The ports that a DHCP server sends from: RFC 2131, section 4.1, and RFC 8415, section 7.2.
const DHCP_SERVERS: [u16; 2] = [67, 547];
/// ICMPv6 types: RFC 4861, section 4.
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Its options: section 4.6.1.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// The IPv6 header's bytes: RFC 8200, section 3.
const IPV6_LEN: usize = 40;

/// The spanning tree address, IEEE 802.1Q-2018, table 8-1; and Cisco's for per-VLAN spanning tree.
const BPDU: [[u8; 6]; 2] = [[0x01, 0x80, 0xc2, 0, 0, 0], [0x01, 0, 0x0c, 0xcc, 0xcc, 0xcd]];

/// Why a frame may not be sent; `None` if it may.
pub(crate) fn inspect(policy: &Policy, batch: &Batch, packet: &Packet) -> Option<Reason> {
    let head = batch.head(packet);
    if policy.mtu.is_some_and(|mtu| is_longer(batch, packet, mtu)) {
        return Some(Reason::Mtu);
    }
    let guards = policy.guards;
    if guards.bpdu && BPDU.iter().any(|address| head.starts_with(address)) {
        return Some(Reason::BpduGuard);
    }
    if !(guards.arp || guards.dhcp_server || guards.router_advertisement) || is_plain_v4(head) {
        return None;
    }
    let layout = batch.layout(packet);
    if layout.ethertype == ethertype::ARP {
        return (guards.arp && !is_true(policy, layout, head)).then_some(Reason::ArpGuard);
    }
    let l3 = layout.l3?;
    if l3.fragment == Fragment::Later {
        return None;
    }
    if guards.dhcp_server && l3.protocol == protocol::UDP {
        let from = layout.ports(head).map(|(source, _)| source);
        if from.is_none_or(|port| DHCP_SERVERS.contains(&port)) {
            return Some(Reason::DhcpGuard);
        }
    }
    if l3.kind == L3Kind::V4 {
        return None;
    }
    let behind = head.get(usize::from(l3.offset + l3.len)..).unwrap_or_default();
    match (l3.protocol, behind.first()) {
        (protocol::ICMPV6, Some(&(ROUTER_ADVERTISEMENT | REDIRECT)) | None) if guards.router_advertisement => {
            Some(Reason::RouterGuard)
        }
        (protocol::ICMPV6, _) if guards.arp => {
            let header = head.get(usize::from(l3.offset)..).unwrap_or_default();
            (is_true_neighbour(policy, head, header, behind) != Some(true)).then_some(Reason::ArpGuard)
        }
        // The chain of extension headers did not end within the head.
        (0 | 43 | 44 | 51 | 60 | 135, _) if guards.router_advertisement => Some(Reason::RouterGuard),
        (0 | 43 | 44 | 51 | 60 | 135, _) if guards.dhcp_server => Some(Reason::DhcpGuard),
        (0 | 43 | 44 | 51 | 60 | 135, _) if guards.arp => Some(Reason::ArpGuard),
        _ => None,
    }
}

/// Whether a frame is IPv4 without a tag or options, and not a DHCP server's. Most frames are, and need no full parsing.
#[inline]
fn is_plain_v4(head: &[u8]) -> bool {
    let Some(head) = head.first_chunk::<42>() else { return false };
    let is_plain = head[12..15] == [8, 0, 0x45];
    let is_later = u16::from_be_bytes([head[20], head[21]]) & 0x1fff != 0;
    let from = u16::from_be_bytes([head[34], head[35]]);
    is_plain && (head[23] != protocol::UDP || !is_later && !DHCP_SERVERS.contains(&from))
}

/// Whether a packet, or any frame that it will be segmented into, has more than `mtu` bytes behind its Ethernet header.
fn is_longer(batch: &Batch, packet: &Packet, mtu: u16) -> bool {
    let segment = packet.offload.segment;
    let frame = segment.map_or(packet.len(), |cut| (u32::from(cut.headers) + u32::from(cut.mss)).min(packet.len()));
    let mtu = u32::from(mtu);
    frame > mtu + 14 && frame > mtu + u32::from(batch.layout(packet).l2_len)
}

/// Whether an ARP packet's sender is genuine.
fn is_true(policy: &Policy, layout: &Layout, head: &[u8]) -> bool {
    let Ok(said) = arp::Packet::parse(head.get(usize::from(layout.l2_len)..).unwrap_or_default()) else { return false };
    let mine = head.get(6..12) == Some(&said.sender_mac.0[..]);
    let bound = policy.ip.iter().any(IpAddr::is_ipv4);
    // An address probe has no sender: RFC 5227, section 2.1.1.
    mine && (!bound || said.sender.is_unspecified() || policy.ip.contains(&IpAddr::V4(said.sender)))
}

/// Whether an ICMPv6 message (RFC 4861, section 4) tells the truth about its sender's addresses; `None` if it cannot be read.
/// `header`: from the IPv6 header on.
fn is_true_neighbour(policy: &Policy, head: &[u8], header: &[u8], message: &[u8]) -> Option<bool> {
    // Where options begin, and which one has the link-layer address of whom the message is about.
    let (options, wanted) = match *message.first()? {
        ROUTER_SOLICITATION => (8, SOURCE_LINK),
        NEIGHBOUR_SOLICITATION => (24, SOURCE_LINK),
        NEIGHBOUR_ADVERTISEMENT => (24, TARGET_LINK),
        _ => return Some(true),
    };
    let about = if wanted == TARGET_LINK { message.get(8..24) } else { header.get(8..24) };
    let ip = Ipv6Addr::from(*about?.first_chunk::<16>()?);
    // Who looks for a free address has none yet: RFC 4862, section 5.4.2.
    let is_free = ip.is_unspecified() || !policy.ip.iter().any(IpAddr::is_ipv6);
    if !(is_free || policy.ip.contains(&IpAddr::V6(ip))) {
        return Some(false);
    }
    // What follows the packet is padding.
    let payload = usize::from(u16::from_be_bytes(*header.get(4..6)?.first_chunk()?));
    let extensions = header.len() - message.len() - IPV6_LEN;
    let mut rest = message.get(options..payload.checked_sub(extensions)?)?;
    while let [kind, units, ..] = *rest {
        if kind == wanted && rest.get(2..8)? != head.get(6..12)? {
            return Some(false);
        }
        // An option without length is none: section 4.6.
        rest = rest.get(usize::from(NonZeroU8::new(units)?.get()) * 8..)?;
    }
    Some(rest.is_empty())
}
