//! Multicast group membership reported by hosts and routers: IGMP (RFC 1112, 2236, 3376), MLD (RFC 2710, 3810), PIM's hello.
//!
//! Sources are not distinguished: a host that wants any source of a group joins the group. A message is accepted only if every intended
//! receiver would accept it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::u16_at;
use crate::ipv6::extension;
use crate::{Fragment, L3, L3Kind, Layout, checksum, ipv4, ipv6};

/// Bytes of a frame that are read for a message: the usual MTU, and two tags.
pub const MESSAGE_MAX: usize = 1522;

/// Protocols of IPv4: RFC 3376, section 4; RFC 7761, section 4.9.
pub const IGMP: u8 = 2;
const PIM: u8 = 103;
/// Types of IGMP: RFC 3376, section 4.
pub const IGMP_QUERY: u8 = 0x11;
const REPORT_V1: u8 = 0x12;
const REPORT_V2: u8 = 0x16;
const LEAVE: u8 = 0x17;
const REPORT_V3: u8 = 0x22;
/// Types of MLD: RFC 3810, section 5.
pub const MLD_QUERY: u8 = 130;
const MLD_REPORT_V1: u8 = 131;
const MLD_DONE: u8 = 132;
const MLD_REPORT_V2: u8 = 143;
/// Multicast router discovery, advertisement and termination: RFC 4286, section 5.
const MLD_ROUTER: [u8; 2] = [151, 153];
/// PIM's version 2 and its hello: RFC 7761, section 4.9.
const PIM_HELLO: u8 = 0x20;
/// Queries that a querier sends for a group at least: the default Robustness Variable of RFC 3376, section 8.1, and RFC 3810, section 9.1.
const ROBUSTNESS: u32 = 2;
/// Record types: RFC 3376, section 4.2.12; RFC 3810, section 5.2.12.
const IS_INCLUDE: u8 = 1;
const IS_EXCLUDE: u8 = 2;
const TO_INCLUDE: u8 = 3;
const TO_EXCLUDE: u8 = 4;
const ALLOW: u8 = 5;
/// Destinations: RFC 3376, sections 4.1.12 and 4.2.14; RFC 2236, section 9; RFC 7761, section 4.9.
const HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
const IGMP_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
const PIM_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 13);
/// The same for IPv6: RFC 3810, sections 5.1.15 and 5.2.14; RFC 2710, section 5.
const HOSTS6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ROUTERS6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
const PIM_ROUTERS6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xd);

/// The kind of a message by its type, accepted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A query.
    Query,
    /// A report, or a leave.
    Report,
    /// PIM.
    Router,
}

/// An accepted message.
#[derive(Clone, Debug)]
pub enum Message<'a> {
    /// A query by a router, or by a querier in its place.
    Query {
        /// Whether the querier has an address: a switch that queries has none in IPv4 (RFC 4541, section 2.1.1).
        is_router: bool,
        /// The queried group and its Last Member Query Time in milliseconds (RFC 3376, section 8.8), if the query is for all sources of
        /// one group, and routers are to act on it.
        group: Option<(IpAddr, u32)>,
    },
    /// A router announces itself: PIM.
    Router,
    /// A host joins or leaves groups.
    Report(Records<'a>),
}

/// Whether frames for a group go to every port: RFC 4541, sections 2.1.2 (2) and 3. For IPv6 this is the whole link scope, which hosts and
/// routers use to find each other.
pub fn is_local(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => !group.is_multicast() || group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => !group.is_multicast() || group.octets()[1] & 0x0f <= 2,
    }
}

/// The destination address in a frame's IP header.
pub fn destination(layout: &Layout, head: &[u8]) -> Option<IpAddr> {
    let l3 = layout.l3?;
    address(l3.kind, head.get(usize::from(l3.destination_at)..)?)
}

/// The kind of message of a frame, by its type; the rest of the message may be cut off.
pub fn kind(layout: &Layout, head: &[u8]) -> Option<Kind> {
    let l3 = layout.l3.filter(|l3| l3.fragment != Fragment::Later)?;
    let kind = *head.get(usize::from(l3.offset) + usize::from(l3.len))?;
    match (l3.kind, l3.protocol, kind) {
        (_, PIM, _) => Some(Kind::Router),
        (L3Kind::V4, IGMP, IGMP_QUERY) | (L3Kind::V6, ipv4::protocol::ICMPV6, MLD_QUERY) => Some(Kind::Query),
        (L3Kind::V4, IGMP, REPORT_V1 | REPORT_V2 | REPORT_V3 | LEAVE)
        | (L3Kind::V6, ipv4::protocol::ICMPV6, MLD_REPORT_V1 | MLD_REPORT_V2 | MLD_DONE) => Some(Kind::Report),
        _ => None,
    }
}

/// Whether a packet may come from a multicast router: a query, PIM, DVMRP, multicast router discovery. The packet is not a later
/// fragment. `message` follows its IP header.
pub fn is_routers(l3: &L3, message: &[u8]) -> bool {
    let kind = message.first();
    match (l3.kind, l3.protocol) {
        (_, PIM) => true,
        // Hosts send no other types.
        (L3Kind::V4, IGMP) => !matches!(kind, Some(&(REPORT_V1 | REPORT_V2 | REPORT_V3 | LEAVE))),
        (L3Kind::V6, ipv4::protocol::ICMPV6) => kind.is_none_or(|kind| *kind == MLD_QUERY || MLD_ROUTER.contains(kind)),
        _ => false,
    }
}

/// The message of a frame. `frame` is the whole frame. `None` if the frame has none, or if one of these is wrong: checksums, the TTL or hop
/// limit of 1, the router alert, source and destination, the destination's Ethernet address.
///
/// RFC 3376, sections 4 and 9. RFC 2236, sections 2 and 10. RFC 3810, sections 5 and 6.2.
pub fn message<'a>(layout: &Layout, frame: &'a [u8]) -> Option<Message<'a>> {
    match (kind(layout, frame)?, Heard::of(layout, frame)?) {
        (Kind::Router, heard) => heard.is_hello().then_some(Message::Router),
        (Kind::Query, heard) => heard.query(),
        (Kind::Report, heard) => heard.report(),
    }
}

/// A packet to a group whose headers and checksums are right.
struct Heard<'a> {
    kind: L3Kind,
    source: IpAddr,
    target: IpAddr,
    has_alert: bool,
    message: &'a [u8],
}

impl<'a> Heard<'a> {
    fn of(layout: &Layout, frame: &'a [u8]) -> Option<Self> {
        let l3 = layout.l3.filter(|l3| l3.fragment == Fragment::Whole)?;
        let packet = frame.get(usize::from(l3.offset)..)?;
        let heard = match l3.kind {
            L3Kind::V4 => Self::v4(packet)?,
            L3Kind::V6 => Self::v6(&l3, packet)?,
        };
        (frame.first_chunk() == Some(&mac(heard.target))).then_some(heard)
    }

    fn v4(packet: &'a [u8]) -> Option<Self> {
        let view = ipv4::View::parse(packet).ok().filter(|view| view.ttl() == 1 && view.checksum_ok())?;
        let message = packet.get(view.header_len()..usize::from(view.total_len()))?;
        let (source, target) = (view.source(), view.destination());
        // Linux's net/ipv4/route.c, ip_mc_validate_source. A host without an address yet: RFC 3376, section 4.2.13.
        let is_host = !(source.is_multicast() || source.is_broadcast() || source.is_loopback());
        let has_alert = is_alert4(view.options());
        let heard = Self { kind: L3Kind::V4, source: source.into(), target: target.into(), has_alert, message };
        (is_host && checksum::sum(message).verify()).then_some(heard)
    }

    fn v6(l3: &L3, packet: &'a [u8]) -> Option<Self> {
        let view = ipv6::View::parse(packet).ok().filter(|view| view.hop_limit() == 1)?;
        let message = packet.get(usize::from(l3.len)..ipv6::HEADER_LEN + usize::from(view.payload_len()))?;
        let (source, target) = (view.source(), view.destination());
        // A host without an address yet: RFC 3810, section 5.2.13.
        let is_host = source.is_unicast_link_local() || source.is_unspecified();
        let pseudo = checksum::pseudo_v6(source, target, l3.protocol, u32::try_from(message.len()).ok()?);
        // The length field of this header counts units of 8 bytes behind the first 8.
        let has_alert = view.next_header() == extension::HOP_BY_HOP
            && matches!(packet.get(ipv6::HEADER_LEN..ipv6::HEADER_LEN + 8), Some([_, 0, options @ ..]) if is_alert6(options));
        let heard = Self { kind: L3Kind::V6, source: source.into(), target: target.into(), has_alert, message };
        (is_host && pseudo.then(checksum::sum(message), false).verify()).then_some(heard)
    }

    /// The group in a query, or in a report or leave of one group.
    fn named(&self) -> Option<IpAddr> {
        address(self.kind, self.message.get(if self.kind == L3Kind::V4 { 4 } else { 8 }..)?)
    }

    /// Whether the sender has an address, which IPv6's routers need.
    fn has_address(&self) -> bool {
        !self.source.is_unspecified()
    }

    fn is_hello(&self) -> bool {
        let is_for_routers = match self.target {
            IpAddr::V4(target) => target == PIM_ROUTERS,
            IpAddr::V6(target) => target == PIM_ROUTERS6 && self.has_address(),
        };
        is_for_routers && self.message.first() == Some(&PIM_HELLO)
    }

    /// Versions differ in length: RFC 3376, section 7.1; RFC 3810, section 8.1.
    fn query(self) -> Option<Message<'a>> {
        let message = self.message;
        let (all, is_first_version, sources) = match (self.kind, message.len()) {
            (L3Kind::V4, 8) => (IpAddr::V4(HOSTS), message[1] == 0, 0),
            (L3Kind::V4, 12..) => (IpAddr::V4(HOSTS), false, u16_at(message, 10)?),
            (L3Kind::V6, 24) if self.has_address() => (IpAddr::V6(HOSTS6), false, 0),
            (L3Kind::V6, 28..) if self.has_address() => (IpAddr::V6(HOSTS6), false, u16_at(message, 26)?),
            _ => return None,
        };
        // IGMP's version 1 has neither a router alert nor a group: RFC 1112, appendix I.
        let group = self.named().filter(|named| !named.is_unspecified() && !is_first_version);
        let fits = self.target == group.unwrap_or(all) && (self.has_alert || is_first_version);
        let group = group.filter(|_| sources == 0).zip(self.last_member_ms());
        fits.then_some(Message::Query { is_router: self.has_address(), group })
    }

    /// The time in milliseconds after which members that have not answered this query are gone: its Maximum Response Time, as often as its
    /// querier repeats it (RFC 2236, section 3; RFC 3376, section 8.8). `None` if routers must not act on it (the flag S: RFC 3376,
    /// section 4.1.5; RFC 3810, section 5.1.7).
    fn last_member_ms(&self) -> Option<u32> {
        let message = self.message;
        let (time_ms, flags) = match (self.kind, message.len()) {
            // RFC 2236, section 2.2: tenths of a second. RFC 2710, section 3.4: milliseconds.
            (L3Kind::V4, 8) => (u32::from(message[1]) * 100, 0),
            (L3Kind::V6, 24) => (u16_at(message, 4)?.into(), 0),
            (L3Kind::V4, _) => (code(message[1].into(), 4, 3) * 100, *message.get(8)?),
            (L3Kind::V6, _) => (code(u16_at(message, 4)?.into(), 12, 3), *message.get(24)?),
        };
        let (suppresses, robustness) = (flags & 0x08 != 0, u32::from(flags & 0x07));
        (!suppresses).then_some(time_ms * robustness.max(ROBUSTNESS))
    }

    fn report(self) -> Option<Message<'a>> {
        let Self { kind, target, message, .. } = self;
        let named = self.named();
        let one = |joins| Some(Rest::One(named?, joins));
        let several = || Some(Rest::Several(message.get(8..)?, u16_at(message, 6)?));
        let (fits, rest) = match (kind, *message.first()?) {
            (L3Kind::V4, REPORT_V1 | REPORT_V2) | (L3Kind::V6, MLD_REPORT_V1) => (named == Some(target), one(true)?),
            (L3Kind::V4, LEAVE) => (target == IpAddr::V4(ROUTERS) || named == Some(target), one(false)?),
            (L3Kind::V4, _) => (target == IpAddr::V4(IGMP_ROUTERS), several()?),
            (L3Kind::V6, MLD_DONE) => (target == IpAddr::V6(ROUTERS6), one(false)?),
            (L3Kind::V6, _) => (target == IpAddr::V6(MLD_ROUTERS), several()?),
        };
        let is_first_version = kind == L3Kind::V4 && message[0] == REPORT_V1;
        (fits && (self.has_alert || is_first_version)).then_some(Message::Report(Records { kind, rest }))
    }
}

/// A Maximum Response Code: RFC 3376, section 4.1.1; RFC 3810, section 5.1.3. The highest of its bits marks a floating-point number: an
/// exponent of `exponent` bits, and a mantissa of `mantissa` bits.
fn code(value: u32, mantissa: u32, exponent: u32) -> u32 {
    if value >> (mantissa + exponent) == 0 {
        return value;
    }
    let shift = value >> mantissa & ((1 << exponent) - 1);
    (value & ((1 << mantissa) - 1) | 1 << mantissa) << (shift + 3)
}

/// Whether options are IPv4's router alert (RFC 2113) and fillers. A receiver may refuse other options.
fn is_alert4(options: &[u8]) -> bool {
    const ALERT: [u8; 4] = [0x94, 4, 0, 0];
    let words = options.as_chunks::<4>().0;
    words.contains(&ALERT) && words.iter().all(|word| matches!(*word, ALERT | [1, 1, 1, 1]))
}

/// Whether hop-by-hop options are the router alert for MLD (RFC 2711, section 2.1) and two bytes of padding.
fn is_alert6(options: &[u8]) -> bool {
    matches!(options, [5, 2, 0, 0, 1, 0] | [5, 2, 0, 0, 0, 0] | [1, 0, 5, 2, 0, 0] | [0, 0, 5, 2, 0, 0])
}

/// The Ethernet address of a group: RFC 1112, section 6.4; RFC 2464, section 7.
fn mac(group: IpAddr) -> [u8; 6] {
    match group {
        IpAddr::V4(group) => {
            let [_, b, c, d] = group.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn address(kind: L3Kind, bytes: &[u8]) -> Option<IpAddr> {
    Some(match kind {
        L3Kind::V4 => IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
        L3Kind::V6 => IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?)),
    })
}

#[derive(Clone, Copy, Debug)]
enum Rest<'a> {
    One(IpAddr, bool),
    /// The bytes of the records, and their number by the message.
    Several(&'a [u8], u16),
}

/// The records of a report: for each group, whether the host is a member or leaves.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    kind: L3Kind,
    rest: Rest<'a>,
}

impl Iterator for Records<'_> {
    type Item = (IpAddr, bool);

    fn next(&mut self) -> Option<(IpAddr, bool)> {
        let len = if self.kind == L3Kind::V4 { 4 } else { 16 };
        loop {
            let (bytes, left) = match self.rest {
                Rest::One(group, joins) => {
                    self.rest = Rest::Several(&[], 0);
                    return Some((group, joins));
                }
                Rest::Several(bytes, left) => (bytes, left.checked_sub(1)?),
            };
            let [kind, auxiliary, high, low, rest @ ..] = bytes else { return None };
            let sources = usize::from(u16::from_be_bytes([*high, *low]));
            let group = address(self.kind, rest)?;
            let behind = len + sources * len + usize::from(*auxiliary) * 4;
            self.rest = Rest::Several(rest.get(behind..).unwrap_or_default(), left);
            // A host that wants any source joins the group. It leaves when it includes no source.
            let joins = match *kind {
                IS_EXCLUDE | TO_EXCLUDE => true,
                IS_INCLUDE | TO_INCLUDE => sources > 0,
                ALLOW if sources > 0 => true,
                _ => continue,
            };
            return Some((group, joins));
        }
    }
}
