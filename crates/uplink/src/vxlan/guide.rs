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
    pub(super) fn route(&mut self, piece: &Piece<'_>) -> Result<Route, Reason> {
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
        let socket = (flow(piece.private_head(), piece.layout(), self.seed) % self.sockets.len().max(1) as u64) as u8;
        Ok(Route { vni, socket, hop })
    }
}

/// A hash of a frame's flow: of its addresses and ports, else of its stations.
fn flow(head: &[u8], layout: &Layout, seed: u64) -> u64 {
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
        hash = (hash.rotate_left(29) ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    hash ^ hash >> 32
}
