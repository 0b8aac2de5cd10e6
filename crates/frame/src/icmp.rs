//! Messages that say that a packet is too big for the link ahead: "fragmentation needed" of ICMP (RFC 1191 section 4), "packet too big" of
//! ICMPv6 (RFC 4443 section 3.2).
//!
//! A tunnel that carries Ethernet frames is no router and has no address. Its message comes from the packet's own destination, as
//! that of Linux's `vxlan` device does (`skb_tunnel_check_pmtu()` of net/ipv4/ip_tunnel_core.c). The same packets get none: those
//! that may be cut on their way, fragments, ICMP's own errors, and packets from or for more than one host.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::checksum::{self, sum};
use crate::{Fragment, L3, L3Kind, Layout, Mac, ethernet, ipv4, ipv6};

/// Most bytes of the packet that a message quotes. Both protocols ask for the headers at least.
const QUOTE_MAX: usize = 256;
/// Bytes of the header of a message.
const HEADER_LEN: usize = 8;
/// Longest frame of a message.
pub const MESSAGE_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + HEADER_LEN + QUOTE_MAX;

/// Destination unreachable, fragmentation needed and DF set (RFC 792).
const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
/// Types of ICMP that report errors: unreachable, source quench, redirect, time exceeded, parameter problem (RFC 1122 section 3.2.2).
const ERRORS: [u8; 5] = [UNREACHABLE, 4, 5, 11, 12];
/// Packet too big (RFC 4443).
const TOO_BIG: u8 = 2;
/// The first type of ICMPv6 that reports no error (RFC 4443 section 2.1), and a redirect, which is answered by no error either.
const INFORMATIONAL: u8 = 128;
const REDIRECT: u8 = 137;
/// A smaller MTU is not told: hosts take no smaller one (RFC 791 section 3.1, RFC 8200 section 5).
const IPV4_MTU_MIN: u16 = 576;
const IPV6_MTU_MIN: u16 = 1280;

/// A packet that does not fit.
#[derive(Clone, Copy, Debug)]
pub struct TooBig<'a> {
    /// The start of its frame, with all headers.
    pub head: &'a [u8],
    /// Its headers.
    pub layout: &'a Layout,
    /// Length of the IP packet in bytes: of the first segment, if it was to be cut.
    pub len: u32,
    /// Longest IP packet that fits, in bytes.
    pub mtu: u16,
}

impl TooBig<'_> {
    /// Writes the frame that tells the sender, without tags. Returns its length; `None` if the sender is told nothing.
    pub fn answer(&self, out: &mut [u8; MESSAGE_MAX]) -> Option<usize> {
        let l3 = self.layout.l3?;
        let [destination, source] = self.stations()?;
        let ethernet = ethernet::Header { destination: source, source: destination, ethertype: self.layout.ethertype };
        let start = ethernet.write(out).ok()?;
        let rest = out.get_mut(start..)?;
        let len = match l3.kind {
            L3Kind::V4 => self.over_v4(&l3, rest),
            L3Kind::V6 => self.over_v6(&l3, rest),
        };
        Some(start + len?)
    }

    fn stations(&self) -> Option<[Mac; 2]> {
        let frame = ethernet::View::parse(self.head).ok()?;
        let both = [frame.destination(), frame.source()];
        both.iter().all(|mac| mac.is_unicast()).then_some(both)
    }

    fn over_v4(&self, l3: &L3, out: &mut [u8]) -> Option<usize> {
        let packet = self.head.get(usize::from(l3.offset)..)?;
        let view = ipv4::View::parse(packet).ok()?;
        let (from, to) = (view.source(), view.destination());
        let is_cut = !view.dont_fragment() || l3.fragment != Fragment::Whole;
        let is_for_one = |ip: Ipv4Addr| !ip.is_broadcast() && !ip.is_multicast();
        let is_host = is_for_one(from) && from.octets()[0] != 0 && !from.is_loopback();
        if is_cut || self.mtu < IPV4_MTU_MIN || !is_host || !is_for_one(to) {
            return None;
        }
        if view.protocol() == ipv4::protocol::ICMP && ERRORS.contains(&self.kind(l3)?) {
            return None;
        }
        let [high, low] = self.mtu.to_be_bytes();
        let quote = packet.get(..packet.len().min(QUOTE_MAX))?;
        let len = HEADER_LEN + quote.len();
        let header = ipv4::Header {
            source: to,
            destination: from,
            protocol: ipv4::protocol::ICMP,
            dont_fragment: true,
            payload_len: len,
            ..ipv4::Header::default()
        };
        let start = header.write(out).ok()?;
        let message = out.get_mut(start..start + len)?;
        let (head, quoted) = message.split_at_mut_checked(HEADER_LEN)?;
        head.copy_from_slice(&[UNREACHABLE, FRAGMENTATION_NEEDED, 0, 0, 0, 0, high, low]);
        quoted.copy_from_slice(quote);
        let mut edit = ipv4::Edit::parse(quoted).ok()?;
        edit.set_total_len(u16::try_from(self.len).unwrap_or(u16::MAX));
        edit.fill_checksum();
        put_checksum(message, sum(message).checksum())?;
        Some(start + len)
    }

    fn over_v6(&self, l3: &L3, out: &mut [u8]) -> Option<usize> {
        let packet = self.head.get(usize::from(l3.offset)..)?;
        let view = ipv6::View::parse(packet).ok()?;
        let (from, to) = (view.source(), view.destination());
        let is_host = |ip: Ipv6Addr| !ip.is_unspecified() && !ip.is_multicast() && !ip.is_loopback();
        if l3.fragment == Fragment::Later || self.mtu < IPV6_MTU_MIN || !is_host(from) || !is_host(to) {
            return None;
        }
        let is_told_anyway = match l3.protocol {
            ipv4::protocol::ICMPV6 => {
                let kind = self.kind(l3)?;
                kind >= INFORMATIONAL && kind != REDIRECT
            }
            _ => true,
        };
        if !is_told_anyway {
            return None;
        }
        let [high, low] = self.mtu.to_be_bytes();
        let quote = packet.get(..packet.len().min(QUOTE_MAX))?;
        let len = HEADER_LEN + quote.len();
        let header = ipv6::Header {
            source: to,
            destination: from,
            next_header: ipv4::protocol::ICMPV6,
            payload_len: len,
            ..ipv6::Header::default()
        };
        let start = header.write(out).ok()?;
        let message = out.get_mut(start..start + len)?;
        let (head, quoted) = message.split_at_mut_checked(HEADER_LEN)?;
        head.copy_from_slice(&[TOO_BIG, 0, 0, 0, 0, 0, high, low]);
        quoted.copy_from_slice(quote);
        let payload_len = self.len.saturating_sub(ipv6::HEADER_LEN as u32);
        ipv6::Edit::parse(quoted).ok()?.set_payload_len(u16::try_from(payload_len).unwrap_or(u16::MAX));
        let pseudo = checksum::pseudo_v6(to, from, ipv4::protocol::ICMPV6, len as u32);
        put_checksum(message, pseudo.then(sum(message), false).checksum())?;
        Some(start + len)
    }

    /// The type of the ICMP message in the packet.
    fn kind(&self, l3: &L3) -> Option<u8> {
        self.head.get(usize::from(l3.offset) + usize::from(l3.len)).copied()
    }
}

fn put_checksum(message: &mut [u8], checksum: u16) -> Option<()> {
    message.get_mut(2..4)?.copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

#[cfg(test)]
#[path = "icmp_test.rs"]
mod tests;
