//! Selection of a frame's receive queue, and the related fields of its descriptor (82576 datasheet, 7.1.1): filters of EtherTypes,
//! of flows, of SYN and of VLAN priorities first, then the hash (RSS), then MRQC's default.

use nicety_adapter::{Frames, Packet, Pick};
use nicety_frame::{L3Kind, L4Kind, Layout, ethernet::ethertype, ipv4, ipv6};

use super::Igb;
use super::registers::{self as r, rxcsum};
use crate::intel::mac::receive::Route;
use crate::intel::rss::Rss;

/// MRQC 2:0: the hash selects the queue.
const RSS: u32 = 2;
/// Packet types in a descriptor (7.1.5.2).
mod kind {
    pub const IPV4: u32 = 1 << 4;
    pub const IPV4_OPTIONS: u32 = 1 << 5;
    pub const IPV6: u32 = 1 << 6;
    pub const IPV6_EXTENSIONS: u32 = 1 << 7;
    pub const TCP: u32 = 1 << 8;
    pub const UDP: u32 = 1 << 9;
    pub const SCTP: u32 = 1 << 10;
    /// The type field has a filter's number.
    pub const ETHERTYPE: u32 = 1 << 15;
}

/// SCTP's number in an IP header.
const SCTP: u8 = 132;

/// Bits 11:4 of a descriptor's information.
pub fn packet_type(layout: &Layout) -> u32 {
    let Some(l3) = layout.l3 else { return 0 };
    let (plain, more, fixed) = match l3.kind {
        L3Kind::V4 => (kind::IPV4, kind::IPV4_OPTIONS, ipv4::HEADER_LEN),
        L3Kind::V6 => (kind::IPV6, kind::IPV6_EXTENSIONS, ipv6::HEADER_LEN),
    };
    let transport = match layout.l4.map(|l4| l4.kind) {
        Some(L4Kind::Tcp) => kind::TCP,
        Some(L4Kind::Udp) => kind::UDP,
        None if l3.protocol == SCTP => kind::SCTP,
        None => 0,
    };
    transport | plain | if usize::from(l3.len) > fixed { more } else { 0 }
}

impl Igb {
    /// Selects the queue of a packet.
    pub(super) fn route_of(&mut self, frames: &Frames<'_>, pick: Pick, packet: &Packet) -> Route {
        let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
        let control = self.registers[r::MRQC];
        let mut route = Route::default();
        route.verdict.information = packet_type(layout);
        // Frames without a hash go to the first queue (7.1.1.7).
        route.queue = if control & 7 == RSS { 0 } else { (control >> 3 & 7) as usize };
        if control & 7 == RSS && self.registers[r::RXCSUM] & rxcsum::PCSD != 0 {
            let hash = self.rss.hash(&self.registers, head, layout);
            if hash.kind != 0 {
                route.verdict.hash = hash.value;
                route.verdict.information |= hash.kind;
                route.queue = usize::from(Rss::entry(&self.registers, hash.value) & 0xf);
            }
        }
        self.priority_filter(&mut route, frames, pick);
        // SYNQF's highest bit gives it priority over flow filters.
        let syn_first = self.registers[r::SYNQF] >> 31 != 0;
        if !syn_first {
            self.syn_filter(&mut route, head, layout);
        }
        self.flow_filter(&mut route, head, layout);
        if syn_first {
            self.syn_filter(&mut route, head, layout);
        }
        self.type_filter(&mut route, layout);
        route
    }

    /// SYNQF (8.11.13): frames that open a TCP connection.
    fn syn_filter(&self, route: &mut Route, head: &[u8], layout: &Layout) {
        const ENABLED: u32 = 1;
        const SYN: u8 = 1 << 1;
        let filter = self.registers[r::SYNQF];
        let Some(tcp) = layout.l4.filter(|l4| filter & ENABLED != 0 && l4.kind == L4Kind::Tcp) else { return };
        if head.get(usize::from(tcp.offset) + 13).is_some_and(|flags| flags & SYN != 0) {
            route.queue = (filter >> 1 & 7) as usize;
        }
    }

    /// VLAPQF (8.11.14): by the priority in the tag, which has a queue and a valid bit.
    fn priority_filter(&self, route: &mut Route, frames: &Frames<'_>, pick: Pick) {
        const VALID: u32 = 1 << 3;
        let filters = self.registers[r::VLAPQF];
        if filters == 0 {
            return;
        }
        let tag = frames.outer_tag(pick).filter(|tag| tag.tpid == self.registers[r::VET] as u16);
        let filter = tag.map_or(0, |tag| filters >> (4 * u32::from(tag.tci.priority())));
        if filter & VALID != 0 {
            route.queue = (filter & 7) as usize;
        }
    }

    /// ETQF (8.11.15): by EtherType, for frames that are not IP.
    fn type_filter(&self, route: &mut Route, layout: &Layout) {
        const ENABLED: u32 = 1 << 26;
        const QUEUE: u32 = 1 << 31;
        const TIMED: u32 = 1 << 30;
        let kind = u32::from(layout.ethertype);
        if layout.ethertype == ethertype::IPV4 || layout.ethertype == ethertype::IPV6 {
            return;
        }
        let filters = self.registers.of(r::ETQF).iter().enumerate();
        let Some((number, filter)) = { filters }.find(|(_, filter)| *filter & ENABLED != 0 && *filter & 0xffff == kind)
        else {
            return;
        };
        route.timed |= filter & TIMED != 0;
        route.verdict.information = route.verdict.information & 0xf | kind::ETHERTYPE | (number as u32) << 4;
        if filter & QUEUE != 0 {
            route.queue = (filter >> 16 & 7) as usize;
        }
    }

    /// FTQF, SAQF, DAQF, SPQF and IMIR (8.11.6 to 8.11.12): by addresses, ports and protocol of IPv4.
    fn flow_filter(&self, route: &mut Route, head: &[u8], layout: &Layout) {
        const QUEUE: u32 = 1 << 8;
        const TIMED: u32 = 1 << 27;
        const ANY_PORT: u32 = 1 << 17;
        // Bits 31:28: fields that are ignored.
        const ANY: [u32; 4] = [1 << 28, 1 << 29, 1 << 30, 1 << 31];
        let Some(l3) = layout.l3.filter(|l3| l3.kind == L3Kind::V4) else { return };
        let at = usize::from(l3.offset);
        let address = |from: usize| {
            let bytes = head.get(at + from..at + from + 4).and_then(|bytes| bytes.try_into().ok());
            // In memory order: Linux and DPDK write them in network order.
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        let (source, destination) = (address(12), address(16));
        let (from, to) = layout.ports(head).unwrap_or_default();
        let of = |name, n: usize| self.registers.of(name).get(n).copied().unwrap_or(0);
        for (n, &filter) in self.registers.of(r::FTQF).iter().enumerate() {
            let acts = filter & (QUEUE | TIMED) != 0;
            let any = |which: usize| filter & ANY[which] != 0;
            let port = of(r::IMIR, n);
            let matches = acts
                && (any(0) || filter & 0xff == u32::from(l3.protocol))
                && (any(1) || of(r::SAQF, n) == source)
                && (any(2) || of(r::DAQF, n) == destination)
                && (any(3) || of(r::SPQF, n) & 0xffff == u32::from(from.swap_bytes()))
                && (port & ANY_PORT != 0 || port & 0xffff == u32::from(to.swap_bytes()));
            if !matches {
                continue;
            }
            route.timed |= filter & TIMED != 0;
            if filter & QUEUE != 0 {
                route.queue = (filter >> 16 & 0xf) as usize;
            }
            return;
        }
    }
}
