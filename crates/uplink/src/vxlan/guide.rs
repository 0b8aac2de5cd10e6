//! The way of a frame through a tunnel: its network, its host, and the socket that keeps its flow in order.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use nicety_adapter::{Piece, Reason, Time};
use nicety_frame::vlan::{TAG_OFFSET, is_tpid};
use nicety_frame::{Layout, Mac, Vni};

use super::hops::Table;
use super::networks::Networks;

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub vni: Vni,
    pub socket: u8,
    /// One hop; `None`: all that have the network.
    pub hop: Option<u16>,
}

/// The facts by which frames are sent.
pub(super) struct Guide<'a> {
    /// This host's address on the network between hosts.
    pub own: IpAddr,
    pub table: &'a mut Table,
    pub networks: &'a Networks,
    /// The port at which hops listen.
    pub port: u16,
    /// The longest frame, without a tag.
    pub frame_max: u32,
    pub sockets: &'a [OwnedFd],
    pub seed: u64,
    pub now: Time,
}

impl Guide<'_> {
    /// The number of the socket that sends a flow.
    pub(super) fn socket(&self, flow: u64) -> u8 {
        (flow % self.sockets.len().max(1) as u64) as u8
    }

    pub(super) fn route(&mut self, piece: &Piece<'_>, flow: u64) -> Result<Route, Reason> {
        let vlan = piece.tag.map_or(0, |tag| tag.id());
        let vni = self.networks.vni(vlan).ok_or(Reason::Filtered)?;
        let (head, kind) = piece.head().split_first_chunk::<TAG_OFFSET>().ok_or(Reason::TooShort)?;
        // RFC 7348 section 6.1: no tag within.
        if kind.first_chunk().is_some_and(|kind| is_tpid(u16::from_be_bytes(*kind))) {
            return Err(Reason::Filtered);
        }
        let [a, b, c, d, e, f, ..] = *head;
        let target = Mac([a, b, c, d, e, f]);
        let hop = if target.is_multicast() { None } else { self.table.place_of(vni, target, self.now) };
        if hop.is_none() && self.table.all_of(vni).next().is_none() {
            return Err(Reason::NoReceiver);
        }
        Ok(Route { vni, socket: self.socket(flow), hop })
    }
}

/// A hash of a frame's flow: of its addresses and ports, else of its stations.
pub(super) fn flow(head: &[u8], layout: &Layout, seed: u64) -> u64 {
    let stations = head.get(..TAG_OFFSET).unwrap_or_default();
    let addresses = layout.l3.and_then(|l3| {
        let (from, len) = if l3.kind == nicety_frame::L3Kind::V4 { (12, 8) } else { (8, 32) };
        let start = usize::from(l3.offset) + from;
        head.get(start..start + len)
    });
    let whole = layout.l3.is_none_or(|l3| l3.fragment == nicety_frame::Fragment::Whole);
    let (one, other) = layout.ports(head).filter(|_| whole).unwrap_or_default();
    let mut hash = seed ^ u64::from(one) << 16 ^ u64::from(other);
    for word in addresses.unwrap_or(stations).chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        hash = mixed(hash.rotate_left(29) ^ u64::from_le_bytes(bytes));
    }
    mixed(hash ^ seed)
}

/// A number each bit of which depends on all bits of another. The low bits of a product would not: it carries bits only upwards. So both
/// halves of the whole product are in it.
fn mixed(bits: u64) -> u64 {
    let product = u128::from(bits) * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sockets::SOURCES;
    use super::*;

    /// The headers of a TCP segment between these ports, and of these addresses' last bytes, over IPv4 or IPv6.
    fn headers(is_v4: bool, [source, target]: [u16; 2], last: u8) -> Vec<u8> {
        let mut head = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if is_v4 {
            head.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 9, 8, 2, 10, 9, 8, last]);
        } else {
            head.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
            [[0; 15], [1; 15]].iter().for_each(|address| head.extend(address.iter().chain(&[last])));
        }
        head.extend([source.to_be_bytes(), target.to_be_bytes()].as_flattened());
        head.extend([0; 8]);
        head.extend([0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        head
    }

    #[test]
    fn flows_that_differ_in_one_port_or_address_are_spread_over_the_sockets() {
        for seed in [0, 1, 0x5eed, u64::MAX, 1 << 40] {
            for is_v4 in [true, false] {
                let spread = |what: &str, of: &dyn Fn(u16) -> Vec<u8>| {
                    let mut frames = [0; SOURCES];
                    for number in 0..256 {
                        let head = of(number);
                        let layout = Layout::parse(&head);
                        assert!(layout.ports(&head).is_some());
                        frames[(flow(&head, &layout, seed) % SOURCES as u64) as usize] += 1;
                    }
                    // 16 are the mean.
                    assert!(frames.iter().all(|count| (2..=40).contains(count)), "{what}, seed {seed}: {frames:?}");
                };
                spread("source port", &|number| headers(is_v4, [40_000 + number, 80], 1));
                spread("high bits of the source port", &|number| headers(is_v4, [number << 8, 80], 1));
                spread("target port", &|number| headers(is_v4, [40_000, number], 1));
                spread("last byte of the address", &|number| headers(is_v4, [40_000, 80], number as u8));
                spread("first byte of the address", &|number| {
                    let mut head = headers(is_v4, [40_000, 80], 1);
                    head[if is_v4 { 26 } else { 22 }] = number as u8;
                    head
                });
            }
        }
    }

    #[test]
    fn a_flow_of_another_tunnel_has_another_socket_as_the_seed_says() {
        let head = headers(true, [40_000, 80], 1);
        let of = |seed| flow(&head, &Layout::parse(&head), seed) % SOURCES as u64;
        assert!((0..64).map(of).collect::<BTreeSet<_>>().len() > SOURCES / 2);
    }
}
