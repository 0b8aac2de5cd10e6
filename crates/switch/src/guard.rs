//! Guards: frames that a guarded port's guest may not send, judged by the private heads.
//!
//! A frame that a guard cannot read to its end must not pass, whatever the cause: unlimited tags or extension headers, a damaged or
//! truncated header, IP in LLC, an unassigned next header, a first fragment without the header that the guard needs. RFC 7113 requires
//! this for router advertisements, RFC 7610 for DHCPv6. A frame that was read to its end passes, unless it says what a guard forbids.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU8;

use nicety_adapter::{Batch, Packet, Reason};
use nicety_frame::arp::operation;
use nicety_frame::ethernet::{self, ethertype};
use nicety_frame::ipv4::protocol;
use nicety_frame::ipv6::extension;
use nicety_frame::{Fragment, L3, L3Kind, arp, group, udp, vlan};

use crate::policy::{Guards, Policy};
use crate::rules::Rules;

/// Ports of DHCP servers and clients: RFC 2131, section 4.1, and RFC 8415, section 7.2. Clients do not check an answer's source
/// port.
const DHCP_SERVERS: [u16; 2] = [67, 547];
const DHCP_CLIENTS: [u16; 2] = [68, 546];
/// ICMP types: RFC 792; RFC 1256, section 3.
const ICMP_REDIRECT: u8 = 5;
const ICMP_ROUTER: u8 = 9;
/// ICMPv6 types: RFC 4861, section 4.
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Types of options: section 4.6.1.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// The IPv6 header's bytes: RFC 8200, section 3.
const IPV6_LEN: usize = 40;

/// The lowest protocol number that IANA has not assigned (July 2025). These, and the two for experiments, may be extension headers for
/// some receiver.
const UNASSIGNED: u8 = 148;

/// Addresses of spanning tree, IEEE 802.1Q-2018, table 8-1: customers' and providers' bridges; and Cisco's for per-VLAN spanning tree.
const BPDU: [[u8; 6]; 3] =
    [[0x01, 0x80, 0xc2, 0, 0, 0], [0x01, 0x80, 0xc2, 0, 0, 8], [0x01, 0, 0x0c, 0xcc, 0xcc, 0xcd]];

/// Types of tags that the parser does not read: service tags before IEEE 802.1ad, service instances (802.1ah), port extenders
/// (802.1BR), redundancy (802.1CB, IEC 62439-3).
const OTHER_TAGS: [u16; 7] = [0x9100, 0x9200, 0x9300, 0x88e7, 0x893f, 0xf1c1, 0x892f];

/// The reason why a frame may not be sent; `None` if it may.
#[inline(always)]
pub(crate) fn inspect(rules: &Rules, batch: &Batch, packet: &Packet, head: &[u8]) -> Option<Reason> {
    // Most frames need no more: to one station, not too long, and of a kind that no guard looks at.
    let is_short = packet.offload.segment.is_none() && packet.len() <= rules.untagged_max;
    let is_for_one = head.first().is_some_and(|first| first & 1 == 0);
    if is_short && is_for_one && is_plain_v4(head) {
        return None;
    }
    inspect_further(&rules.policy, batch, packet)
}

/// The same for other frames.
#[inline(never)]
fn inspect_further(policy: &Policy, batch: &Batch, packet: &Packet) -> Option<Reason> {
    let head = batch.head(packet);
    if policy.mtu.is_some_and(|mtu| is_longer(batch, packet, mtu)) {
        return Some(Reason::Mtu);
    }
    let guards = policy.guards;
    if guards.bpdu && head.first() == Some(&1) && BPDU.iter().any(|address| head.starts_with(address)) {
        return Some(Reason::BpduGuard);
    }
    if is_plain_v4(head) { None } else { read(policy, batch, packet) }
}

/// The same for a frame that must be parsed.
#[inline(never)]
fn read(policy: &Policy, batch: &Batch, packet: &Packet) -> Option<Reason> {
    let guards = policy.guards;
    let unreadable = unreadable(guards)?;
    let (head, layout) = (batch.head(packet), batch.layout(packet));
    let payload = head.get(usize::from(layout.l2_len)..).unwrap_or_default();
    match layout.ethertype {
        ethertype::ARP | ethertype::RARP => {
            return (guards.arp && !is_genuine_arp(policy, head, payload)).then_some(Reason::ArpGuard);
        }
        len if len < ethernet::TYPE_MIN => return hides_ip(payload).then_some(unreadable),
        tag if OTHER_TAGS.contains(&tag) => return Some(unreadable),
        _ if layout.is_cut() => return Some(unreadable),
        _ => {}
    }
    let l3 = layout.l3?;
    if l3.fragment == Fragment::Later {
        // A later fragment cannot replace the judged bytes: in IPv4 they lie in the first 8 bytes, and IPv6's receivers drop overlapping
        // fragments (RFC 5722).
        return None;
    }
    let Some(l3) = to_upper_layer(l3, head) else { return Some(unreadable) };
    let behind = head.get(usize::from(l3.offset + l3.len)..).unwrap_or_default();
    if guards.multicast_router && group::is_routers(&l3, behind) {
        return Some(Reason::MulticastRouterGuard);
    }
    match (l3.kind, l3.protocol) {
        (_, protocol::UDP) => {
            let is_dhcp = udp::View::parse(behind)
                .map_or(true, |header| is_dhcp(header.source_port(), header.destination_port()));
            (guards.dhcp_server && is_dhcp).then_some(Reason::DhcpGuard)
        }
        (L3Kind::V4, protocol::ICMP) => {
            let is_router = matches!(behind.first(), Some(&(ICMP_REDIRECT | ICMP_ROUTER)) | None);
            (guards.router_advertisement && is_router).then_some(Reason::RouterGuard)
        }
        (L3Kind::V4, _) => None,
        (L3Kind::V6, protocol::ICMPV6) => {
            let is_router = matches!(behind.first(), Some(&(ROUTER_ADVERTISEMENT | REDIRECT)) | None);
            if guards.router_advertisement && is_router {
                return Some(Reason::RouterGuard);
            }
            let is_false = guards.arp && is_genuine_neighbour(policy, head, &l3, behind) != Some(true);
            is_false.then_some(Reason::ArpGuard)
        }
        _ => None,
    }
}

/// Walks on from the end of the parser's walk to the upper layer, through the extension headers that a host may walk. `None` if the chain
/// cannot be read to its end. Behind ESP, which ends a chain, only a receiver with the key can read.
///
/// An unassigned number may be an extension header for some receiver: RFC 7610, section 5, and RFC 7113, section 3, drop it by default.
fn to_upper_layer(mut l3: L3, head: &[u8]) -> Option<L3> {
    // The second byte of a header is its length, in units beyond the first 8 bytes. The head's length bounds the walk.
    loop {
        let unit: u16 = match (l3.kind, l3.protocol) {
            (_, extension::AUTHENTICATION) => 4,
            (
                L3Kind::V6,
                extension::HOP_BY_HOP
                | extension::ROUTING
                | extension::DESTINATION
                | extension::MOBILITY
                | extension::HOST_IDENTITY
                | extension::SHIM6,
            ) => 8,
            // The parser leaves only a fragment header that no valid packet has: a second one, or one behind one of those.
            (L3Kind::V6, extension::FRAGMENT | UNASSIGNED..) => return None,
            _ => return Some(l3),
        };
        let header = head.get(usize::from(l3.offset + l3.len)..)?;
        let [next, units, ..] = *header else { return None };
        let len = 8 + u16::from(units) * unit;
        header.get(..usize::from(len))?;
        (l3.len, l3.protocol) = (l3.len + len, next);
    }
}

/// The reason for unreadable frames; `None` if no guard has to read any.
#[inline]
fn unreadable(guards: Guards) -> Option<Reason> {
    let Guards { bpdu: _, dhcp_server, arp, router_advertisement, multicast_router } = guards;
    let reasons = [
        (router_advertisement, Reason::RouterGuard),
        (dhcp_server, Reason::DhcpGuard),
        (arp, Reason::ArpGuard),
        (multicast_router, Reason::MulticastRouterGuard),
    ];
    reasons.into_iter().find_map(|(is_on, reason)| is_on.then_some(reason))
}

/// Whether a frame is IPv4 without a tag or options, of TCP, or of UDP but not between a DHCP server's and client's ports. Most frames
/// are, and need no full parsing.
#[inline(always)]
fn is_plain_v4(head: &[u8]) -> bool {
    let Some(head) = head.first_chunk::<42>() else { return false };
    if head[12..15] != [8, 0, 0x45] {
        return false;
    }
    if head[23] == protocol::TCP {
        return true;
    }
    let is_later = u16::from_be_bytes([head[20], head[21]]) & 0x1fff != 0;
    let (from, to) = (u16::from_be_bytes([head[34], head[35]]), u16::from_be_bytes([head[36], head[37]]));
    head[23] == protocol::UDP && !is_later && !is_dhcp(from, to)
}

/// Whether a UDP packet is from a DHCP server, or for a client.
#[inline]
fn is_dhcp(from: u16, to: u16) -> bool {
    DHCP_SERVERS.contains(&from) || DHCP_CLIENTS.contains(&to)
}

/// Whether LLC (IEEE 802.2) contains IP, ARP or a tag, or ends too early to tell. Hosts should accept IP in SNAP (RFC 1122, section 2.3.3),
/// and access points convert it to plain frames: VU#855201.
fn hides_ip(llc: &[u8]) -> bool {
    /// Destinations of IP, ARP and SNAP: RFC 1042. The lowest bit marks a group.
    const IP: u8 = 0x06;
    const ARP: u8 = 0x98;
    const SNAP: u8 = 0xaa;
    match llc.first().map(|destination| destination & 0xfe) {
        Some(SNAP) => llc.get(6..8).is_none_or(|kind| {
            let kind = u16::from_be_bytes([kind[0], kind[1]]);
            let is_ip = matches!(kind, ethertype::IPV4 | ethertype::IPV6 | ethertype::ARP | ethertype::RARP);
            is_ip || vlan::is_tpid(kind) || OTHER_TAGS.contains(&kind)
        }),
        Some(IP | ARP) | None => true,
        Some(_) => false,
    }
}

/// Whether a packet, or any frame that it will be segmented into, has more than `mtu` bytes behind its Ethernet header.
fn is_longer(batch: &Batch, packet: &Packet, mtu: u16) -> bool {
    let segment = packet.offload.segment;
    let frame = segment.map_or(packet.len(), |cut| (u32::from(cut.headers) + u32::from(cut.mss)).min(packet.len()));
    let mtu = u32::from(mtu);
    // Up to two tags do not count as payload; further ones do.
    frame > mtu + 14 && frame > mtu + 14 + 4 * batch.layout(packet).tag_count() as u32
}

/// Whether an ARP or RARP packet's sender is genuine.
fn is_genuine_arp(policy: &Policy, head: &[u8], packet: &[u8]) -> bool {
    let Ok(message) = arp::Packet::parse(packet) else { return false };
    let is_own = head.get(6..12) == Some(&message.sender_mac.0[..]);
    // A probe has no sender, and claims its target: RFC 5227, section 2.1.1. An announcement by RARP has neither address.
    let claimed = if message.sender.is_unspecified() { message.target } else { message.sender };
    let is_free = claimed.is_unspecified() || !policy.ip.iter().any(IpAddr::is_ipv4);
    is_own && message.operation != operation::REVERSE_REPLY && (is_free || policy.ip.contains(&IpAddr::V4(claimed)))
}

/// Whether an ICMPv6 message (RFC 4861, section 4) states its sender's true addresses; `None` if it cannot be read.
fn is_genuine_neighbour(policy: &Policy, head: &[u8], l3: &L3, message: &[u8]) -> Option<bool> {
    let header = head.get(usize::from(l3.offset)..)?;
    let address = |bytes: &[u8]| Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?));
    let (source, target) = (address(header.get(8..)?)?, message.get(8..).and_then(address));
    // The options' offset, the type of the link-layer option that hosts accept, and the IP address that this option describes.
    let (options, wanted, subject) = match *message.first()? {
        ROUTER_SOLICITATION => (8, SOURCE_LINK, source),
        ROUTER_ADVERTISEMENT => (16, SOURCE_LINK, source),
        // Duplicate address detection claims an address: RFC 4862, section 5.4.3; RFC 6620, section 3.2.3.
        NEIGHBOUR_SOLICITATION => (24, SOURCE_LINK, if source.is_unspecified() { target? } else { source }),
        NEIGHBOUR_ADVERTISEMENT => (24, TARGET_LINK, target?),
        REDIRECT => (40, TARGET_LINK, target?),
        _ => return Some(true),
    };
    let is_free = subject.is_unspecified() || !policy.ip.iter().any(IpAddr::is_ipv6);
    // A fragmented message is invalid (RFC 6980, section 5), and its options may be in other fragments.
    if l3.fragment != Fragment::Whole || !(is_free || policy.ip.contains(&IpAddr::V6(subject))) {
        return Some(false);
    }
    // Padding may follow the packet.
    let payload = usize::from(u16::from_be_bytes(*header.get(4..6)?.first_chunk()?));
    let extensions = usize::from(l3.len) - IPV6_LEN;
    let mut rest = message.get(options..payload.checked_sub(extensions)?)?;
    while let [kind, units, ..] = *rest {
        if kind == wanted && rest.get(2..8)? != head.get(6..12)? {
            return Some(false);
        }
        // An option of length 0 is invalid: section 4.6.
        rest = rest.get(usize::from(NonZeroU8::new(units)?.get()) * 8..)?;
    }
    Some(rest.is_empty())
}
