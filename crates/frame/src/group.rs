//! Multicast group membership, as hosts and routers tell it: IGMP (RFC 1112, 2236, 3376), MLD (RFC 2710, 3810), PIM's hello.
//!
//! Sources are not told apart: who wants any source of a group wants the group.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array_at, u16_at};
use crate::{Fragment, L3, L3Kind, Layout, checksum, ipv4, ipv6};

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
/// What a record says: RFC 3376, section 4.2.12; RFC 3810, section 5.2.12.
const IS_INCLUDE: u8 = 1;
const IS_EXCLUDE: u8 = 2;
const TO_INCLUDE: u8 = 3;
const TO_EXCLUDE: u8 = 4;
const ALLOW: u8 = 5;

/// What a frame says of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router, or whoever asks in its place, wants to know.
    Query {
        /// Whether it has an address: a switch that asks has none in IPv4 (RFC 4541, section 2.1.1).
        is_router: bool,
        /// The group that it asks for, if it asks for all sources of one, and hosts will believe it: its checksum is right.
        group: Option<IpAddr>,
    },
    /// A router is there: PIM.
    Router,
    /// A host says what it wants, or wants no more: [`records`].
    Report,
}

/// Whether frames for a group go to everybody: RFC 4541, sections 2.1.2 (2) and 3. Of IPv6 all of the link scope does, in which hosts and
/// routers find each other.
pub fn is_local(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => !group.is_multicast() || group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => !group.is_multicast() || group.octets()[1] & 0x0f <= 2,
    }
}

/// Where a frame goes by its IP header.
pub fn destination(layout: &Layout, head: &[u8]) -> Option<IpAddr> {
    let l3 = layout.l3?;
    address(l3.kind, head.get(usize::from(l3.destination_at)..)?)
}

/// What a frame says of groups, if it does.
pub fn message(layout: &Layout, head: &[u8]) -> Option<Message> {
    let l3 = layout.l3?;
    let (at, behind) = (usize::from(l3.offset), usize::from(l3.offset + l3.len));
    let kind = head.get(behind).copied();
    match (l3.kind, l3.protocol, l3.fragment) {
        (L3Kind::V4, PIM, _) => Some(Message::Router),
        (L3Kind::V4, IGMP, Fragment::Whole) => match kind? {
            IGMP_QUERY => {
                let is_router = array_at::<4>(head, at + ipv4::SOURCE_OFFSET)? != &[0; 4];
                Some(Message::Query { is_router, group: asked(l3, head, behind) })
            }
            REPORT_V1 | REPORT_V2 | REPORT_V3 | LEAVE => Some(Message::Report),
            _ => None,
        },
        (L3Kind::V6, ipv4::protocol::ICMPV6, Fragment::Whole) => match kind? {
            MLD_QUERY => {
                let is_router = array_at::<16>(head, at + ipv6::SOURCE_OFFSET)? != &[0; 16];
                Some(Message::Query { is_router, group: asked(l3, head, behind) })
            }
            MLD_REPORT_V1 | MLD_REPORT_V2 | MLD_DONE => Some(Message::Report),
            _ => None,
        },
        _ => None,
    }
}

/// The group that a query asks for, all sources of it.
fn asked(l3: L3, head: &[u8], behind: usize) -> Option<IpAddr> {
    let at = usize::from(l3.offset);
    let (end, pseudo, group_at) = match l3.kind {
        L3Kind::V4 => (at + usize::from(u16_at(head, at + 2)?), checksum::Sum::ZERO, 4),
        L3Kind::V6 => {
            let end = at + ipv6::HEADER_LEN + usize::from(u16_at(head, at + 4)?);
            let [source, target] =
                [ipv6::SOURCE_OFFSET, ipv6::DESTINATION_OFFSET].map(|place| array_at::<16>(head, at + place));
            let len = end.checked_sub(behind)? as u32;
            let pseudo = checksum::pseudo_v6((*source?).into(), (*target?).into(), ipv4::protocol::ICMPV6, len);
            (end, pseudo, 8)
        }
    };
    let query = head.get(behind..end)?;
    let group = address(l3.kind, query.get(group_at..)?).filter(|group| group.is_multicast())?;
    let sources = u16_at(query, group_at + if l3.kind == L3Kind::V4 { 6 } else { 18 }).unwrap_or(0);
    (sources == 0 && pseudo.then(checksum::sum(query), false).verify()).then_some(group)
}

fn address(kind: L3Kind, bytes: &[u8]) -> Option<IpAddr> {
    Some(match kind {
        L3Kind::V4 => IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?)),
        L3Kind::V6 => IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?)),
    })
}

/// What a report says: of each group, whether the host is a member or no more. `frame` are the frame's bytes, as far as they are there.
pub fn records<'a>(layout: &Layout, frame: &'a [u8]) -> Records<'a> {
    let (kind, message) =
        layout.l3.map_or((L3Kind::V4, None), |l3| (l3.kind, frame.get(usize::from(l3.offset + l3.len)..)));
    let message = message.unwrap_or_default();
    let one = |joins| Rest::One(message.get(if kind == L3Kind::V4 { 4 } else { 8 }..).unwrap_or_default(), joins);
    let rest = match (kind, message.first()) {
        (L3Kind::V4, Some(&(REPORT_V1 | REPORT_V2))) | (L3Kind::V6, Some(&MLD_REPORT_V1)) => one(true),
        (L3Kind::V4, Some(&LEAVE)) | (L3Kind::V6, Some(&MLD_DONE)) => one(false),
        (L3Kind::V4, Some(&REPORT_V3)) | (L3Kind::V6, Some(&MLD_REPORT_V2)) => {
            Rest::Several(message.get(8..).unwrap_or_default(), u16_at(message, 6).unwrap_or(0))
        }
        _ => Rest::Several(&[], 0),
    };
    Records { kind, rest }
}

#[derive(Clone, Copy, Debug)]
enum Rest<'a> {
    One(&'a [u8], bool),
    /// Bytes, and how many records are said to be in them.
    Several(&'a [u8], u16),
}

/// See [`records`].
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
                Rest::One(bytes, joins) => {
                    self.rest = Rest::Several(&[], 0);
                    return Some((address(self.kind, bytes)?, joins));
                }
                Rest::Several(bytes, left) => (bytes, left.checked_sub(1)?),
            };
            let [kind, auxiliary, high, low, rest @ ..] = bytes else { return None };
            let sources = usize::from(u16::from_be_bytes([*high, *low]));
            let group = address(self.kind, rest)?;
            let behind = len + sources * len + usize::from(*auxiliary) * 4;
            self.rest = Rest::Several(rest.get(behind..).unwrap_or_default(), left);
            // Whoever wants any source wants the group; it leaves by including none.
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
