//! IGMP and MLD querier, for networks without a multicast router: an agent that sends general queries of IGMP (RFC 3376, section 4.1)
//! and MLD (RFC 3810, section 5.1) to the switch's ports, in each of its port's VLANs. When a host leaves a group, it asks for other
//! members (RFC 3376, section 6.4.2).
//!
//! It has no IPv4 address, so no switch takes it for a router (RFC 4541, section 2.1.1). It is silent in a VLAN in which a querier
//! with an address asks.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use nicety_adapter::{Frames, Time};
use nicety_frame::group::{self, IGMP, IGMP_QUERY, MLD_QUERY, Message};
use nicety_frame::ipv4::protocol::ICMPV6;
use nicety_frame::vlan::{Tag, Tci};
use nicety_frame::{L3Kind, Layout, Mac, checksum, ethernet};

use crate::agent::{Agent, INWARD_MAX, LeftGroup, SavedAgent, SavedQuerier};

/// Query Interval, Startup Query Interval, Startup Query Count, and Other Querier Present Interval: RFC 3376, sections 8.2, 8.6,
/// 8.7 and 8.5.
const INTERVAL_NS: u64 = 125_000_000_000;
const STARTUP_NS: u64 = INTERVAL_NS / 4;
const STARTUP_COUNT: u32 = 2;
const OTHER_NS: u64 = 255_000_000_000;
/// Maximum response time of a general query, and of a query for a group. The latter is also the interval between queries for a
/// group; the count follows: RFC 3376, sections 8.3, 8.8, 8.9.
const ANSWER_MS: u16 = 10_000;
const LAST_MS: u16 = 1_000;
const LAST_COUNT: u8 = 2;
/// Most groups that are queried at the same time. Hosts' memberships of other groups time out.
const LEFT_MAX: usize = 64;

/// A VLAN and protocol to query, and the time until which another querier is present.
#[derive(Clone, Debug)]
struct Network {
    vlan: Option<u16>,
    kind: L3Kind,
    silent_until: Time,
}

/// The protocols of each VLAN.
const KINDS: [L3Kind; 2] = [L3Kind::V4, L3Kind::V6];

/// See the module's documentation.
#[derive(Debug)]
pub struct Querier {
    mac: Mac,
    networks: Vec<Network>,
    /// Next network of this round, and its time.
    next: usize,
    at: Time,
    rounds: u32,
    left: ArrayVec<LeftGroup, LEFT_MAX>,
}

impl Querier {
    /// Queries these VLANs from this address, each with its tag; `None` is untagged.
    pub fn new(mac: Mac, vlans: &[Option<u16>]) -> Self {
        let networks = vlans
            .iter()
            .flat_map(|&vlan| KINDS.map(|kind| Network { vlan, kind, silent_until: Time::ZERO }))
            .collect::<Vec<_>>();
        Self { mac, networks, next: 0, at: Time::ZERO, rounds: 0, left: ArrayVec::new() }
    }

    /// Handles a query of another querier with an address, and a host's leave message.
    fn heard(&mut self, vlan: Option<u16>, layout: &Layout, frame: &[u8], now: Time) {
        let Some(kind) = layout.l3.map(|l3| l3.kind) else { return };
        let here = |network: &&mut Network| network.kind == kind && network.vlan == vlan;
        let Some((index, network)) = (0..).zip(&mut self.networks).find(|(_, network)| here(network)) else { return };
        match group::message(layout, frame) {
            Some(Message::Query { is_router: true, .. }) => network.silent_until = now.after_ns(OTHER_NS),
            Some(Message::Report(records)) if network.silent_until <= now => {
                let left = records.filter(|(group, joins)| !joins && !group::is_local(*group));
                for (group, _) in left.take(LEFT_MAX) {
                    if !self.left.iter().any(|left| left.network == index && left.group == group) {
                        let _full = self.left.try_push(LeftGroup { network: index, group, count: LAST_COUNT, at: now });
                    }
                }
            }
            _ => {}
        }
    }

    /// Sends a query. False if there is no room.
    fn ask(&self, network: &Network, group: Option<IpAddr>, send: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        send(&frame(self.mac, network.vlan, network.kind, group))
    }

    fn saved(&self) -> SavedQuerier {
        let network = |of_vlan: &[Network; KINDS.len()]| {
            (of_vlan[0].vlan, of_vlan.each_ref().map(|network| network.silent_until))
        };
        let (networks, _) = self.networks.as_chunks::<{ KINDS.len() }>();
        SavedQuerier {
            mac: self.mac.0,
            networks: networks.iter().map(network).collect(),
            next: self.next as u32,
            at: self.at,
            rounds: self.rounds,
            left: self.left.to_vec(),
        }
    }

    /// Goes on from the state of a querier of the same VLANs.
    fn go_on(&mut self, saved: &SavedQuerier) {
        let is_same =
            self.saved().networks.iter().map(|(vlan, _)| vlan).eq(saved.networks.iter().map(|(vlan, _)| vlan));
        if !is_same {
            return;
        }
        let silent_until = saved.networks.iter().flat_map(|(_, until)| until);
        self.networks.iter_mut().zip(silent_until).for_each(|(network, until)| network.silent_until = *until);
        let is_possible = |left: &&LeftGroup| (left.network as usize) < self.networks.len();
        self.left = saved.left.iter().filter(is_possible).take(LEFT_MAX).copied().collect();
        (self.mac, self.next, self.at, self.rounds) = (Mac(saved.mac), saved.next as usize, saved.at, saved.rounds);
    }
}

impl Agent for Querier {
    fn receive(&mut self, frames: &Frames<'_>, now: Time) {
        for (_, pick, packet) in frames.iter() {
            let layout = frames.batch.layout(packet);
            if group::kind(layout, frames.batch.head(packet)).is_some() {
                let vlan = frames.outer_tag(pick).map(|tag| tag.tci.id()).filter(|id| *id != 0);
                let mut frame = [0; group::MESSAGE_MAX];
                let len = frames.batch.copy(packet, &mut frame);
                self.heard(vlan, layout, &frame[..len], now);
            }
        }
    }

    fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        for index in (0..self.left.len()).rev() {
            let LeftGroup { network, group, count, at } = self.left[index];
            if at > now {
                continue;
            }
            if !self.ask(&self.networks[network as usize], Some(group), send) {
                return;
            }
            if count > 1 {
                let at = now.after_ns(u64::from(LAST_MS) * 1_000_000);
                self.left[index] = LeftGroup { network, group, count: count - 1, at };
            } else {
                self.left.swap_remove(index);
            }
        }
        if now < self.at {
            return;
        }
        while let Some(network) = self.networks.get(self.next) {
            if network.silent_until <= now && !self.ask(network, None, send) {
                return;
            }
            self.next += 1;
        }
        self.rounds = self.rounds.saturating_add(1);
        let interval = if self.rounds < STARTUP_COUNT { STARTUP_NS } else { INTERVAL_NS };
        (self.next, self.at) = (0, now.after_ns(interval));
    }

    fn wake(&self) -> Option<Time> {
        self.left.iter().map(|left| left.at).chain([self.at]).min()
    }

    fn save(&self) -> Option<SavedAgent> {
        Some(SavedAgent::Querier(self.saved()))
    }

    fn restore(&mut self, saved: &SavedAgent) {
        if let SavedAgent::Querier(saved) = saved {
            self.go_on(saved);
        }
    }
}

/// A general query, or one for a group, with the fields that receivers check: a hop limit of 1, a router alert, checksums.
fn frame(mac: Mac, vlan: Option<u16>, kind: L3Kind, group: Option<IpAddr>) -> ArrayVec<u8, INWARD_MAX> {
    let answer_ms = if group.is_some() { LAST_MS } else { ANSWER_MS };
    let mut frame = ArrayVec::new();
    let mut ethernet = |target: [u8; 6], ethertype: [u8; 2]| {
        frame.extend(target.into_iter().chain(mac.0));
        frame.extend(vlan.map(|id| Tag::customer(Tci::new(0, false, id)).to_bytes()).into_iter().flatten());
        frame.extend(ethertype);
    };
    match kind {
        L3Kind::V4 => {
            let group = group.and_then(|group| if let IpAddr::V4(group) = group { Some(group.octets()) } else { None });
            let [a, b, c, d] = group.unwrap_or([224, 0, 0, 1]);
            // RFC 1112, section 6.4.
            ethernet([1, 0, 0x5e, b & 0x7f, c, d], [8, 0]);
            let mut header = [0x46, 0xc0, 0, 36, 0, 0, 0, 0, 1, IGMP, 0, 0, 0, 0, 0, 0, a, b, c, d, 0x94, 4, 0, 0];
            let sum = checksum::sum(&header).checksum();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            // Response time in tenths of a second; robustness 2, interval 125 s.
            let mut query = [IGMP_QUERY, (answer_ms / 100) as u8, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0];
            query[4..8].copy_from_slice(&group.unwrap_or_default());
            let sum = checksum::sum(&query).checksum();
            query[2..4].copy_from_slice(&sum.to_be_bytes());
            frame.extend(header);
            frame.extend(query);
        }
        L3Kind::V6 => {
            let group = group.and_then(|group| if let IpAddr::V6(group) = group { Some(group.octets()) } else { None });
            let target = group.unwrap_or([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            // RFC 2464, section 7.
            ethernet([0x33, 0x33, target[12], target[13], target[14], target[15]], [0x86, 0xdd]);
            // The link-local address of `mac`: RFC 4291, appendix A.
            let [a, b, c, d, e, f] = mac.0;
            let source = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
            let mut query = [0; 28];
            (query[0], query[24], query[25]) = (MLD_QUERY, 2, 125);
            query[4..6].copy_from_slice(&answer_ms.to_be_bytes());
            query[8..24].copy_from_slice(&group.unwrap_or_default());
            let sum = checksum::pseudo_v6(source.into(), target.into(), ICMPV6, query.len() as u32);
            let sum = sum.then(checksum::sum(&query), false).checksum();
            query[2..4].copy_from_slice(&sum.to_be_bytes());
            frame.extend([0x60, 0, 0, 0, 0, 36, 0, 1]);
            frame.extend(source);
            frame.extend(target);
            // Hop-by-hop options: the router alert for MLD (RFC 2711).
            frame.extend([ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
            frame.extend(query);
        }
    }
    let padding = ethernet::FRAME_LEN_MIN.saturating_sub(frame.len());
    frame.extend(std::iter::repeat_n(0, padding));
    frame
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nicety_adapter::{Batch, Edit, Pick, PortId};
    use nicety_frame::vlan;
    use nicety_memory::Map;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MAC: Mac = Mac([2, 0x4e, 1, 2, 3, 4]);

    /// The queries that it sends in one turn.
    fn asks(querier: &mut Querier, now: Time) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        querier.speak(now, &mut |frame| {
            sent.push(frame.to_vec());
            true
        });
        sent
    }

    fn hears(querier: &mut Querier, frame: &[u8], edit: Edit, now: Time) {
        let map = Arc::new(Map::private(4096).unwrap());
        map.write(0, frame).unwrap();
        let mut batch = Batch::new();
        batch.start(&map, PortId(1), 0);
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        draft.finish_plain(0);
        querier.receive(&Frames::new(&batch, &[Pick { edit, ..Pick::whole(0) }]), now);
    }

    #[test]
    fn queries_are_whole_with_all_that_their_receivers_check() {
        let mut querier = Querier::new(MAC, &[None, Some(20)]);
        let frames = asks(&mut querier, Time(5));
        assert_eq!(frames.len(), 4);
        for (frame, at) in frames.iter().zip([0, 0, 4, 4]) {
            assert_eq!(vlan::outer(frame).map(|tag| tag.tci.id()), (at > 0).then_some(20));
            let l3 = Layout::parse(frame).l3.unwrap();
            assert_eq!(usize::from(l3.offset), 14 + at);
            let ip = &frame[14 + at..];
            match l3.kind {
                L3Kind::V4 => {
                    assert_eq!((l3.protocol, l3.len, ip[8]), (2, 24, 1));
                    assert!(checksum::sum(&ip[..24]).verify() && checksum::sum(&ip[24..36]).verify());
                    assert_eq!(ip[24..26], [0x11, 100]);
                }
                L3Kind::V6 => {
                    assert_eq!((l3.protocol, l3.len, ip[7]), (58, 48, 1));
                    let [source, target] = [8, 24].map(|at| *ip[at..].first_chunk::<16>().unwrap());
                    assert_eq!(source[..2], [0xfe, 0x80]);
                    let pseudo = checksum::pseudo_v6(source.into(), target.into(), 58, 28);
                    assert!(pseudo.then(checksum::sum(&ip[48..76]), false).verify());
                }
            }
        }
    }

    #[test]
    fn it_asks_at_once_again_soon_and_then_every_125_seconds() {
        let mut querier = Querier::new(MAC, &[None]);
        // One tick is a quarter of a second.
        let asked = (0..2000).filter(|tick| !asks(&mut querier, Time(tick * SECOND / 4)).is_empty());
        let times: Vec<u64> = asked.collect();
        assert_eq!(times, [0, 125, 625, 1125, 1625]);
    }

    #[test]
    fn it_is_silent_in_a_vlan_in_which_one_with_an_address_asks() {
        let mut querier = Querier::new(MAC, &[None, Some(20)]);
        let frames = asks(&mut querier, Time::ZERO);
        // A query of another querier without an address does not silence it.
        hears(&mut querier, &frames[2], Edit::Keep, Time(SECOND));
        assert_eq!(asks(&mut querier, Time(40 * SECOND)).len(), 4);
        let mut router = frames[2].clone();
        router[18 + 12..18 + 16].copy_from_slice(&[10, 0, 0, 1]);
        // The header's checksum is wrong, so no host takes it.
        hears(&mut querier, &router, Edit::Keep, Time(100 * SECOND));
        assert_eq!(asks(&mut querier, Time(180 * SECOND)).len(), 4);
        sum(&mut router[18..42], 10);
        hears(&mut querier, &router, Edit::Keep, Time(200 * SECOND));
        let left = asks(&mut querier, Time(320 * SECOND));
        assert_eq!(left, [&frames[0][..], &frames[1], &frames[3]], "not for IPv4 in VLAN 20");
        assert_eq!(asks(&mut querier, Time(500 * SECOND)).len(), 4, "it is gone");
    }

    /// Fills in the checksum of these bytes.
    fn sum(bytes: &mut [u8], at: usize) {
        bytes[at..at + 2].fill(0);
        let sum = checksum::sum(bytes).checksum();
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// An IGMPv3 report that leaves these groups. It has so many sources that the groups lie beyond a private head.
    fn leave(group: u8) -> Vec<u8> {
        let mut ip = [0x46, 0, 0, 180, 0, 0, 0, 0, 1, 2, 0, 0, 10, 0, 0, 9, 224, 0, 0, 22, 0x94, 4, 0, 0];
        let block = [&[6, 0, 0, 33, 239, 1, 1, 255][..], &[10; 4 * 33]].concat();
        let mut report = [&[0x22, 0, 0, 0, 0, 0, 0, 2][..], &block, &[3, 0, 0, 0, 239, 1, 1, group]].concat();
        sum(&mut ip, 10);
        sum(&mut report, 2);
        [&[1, 0, 0x5e, 0, 0, 22, 2, 0, 0, 0, 0, 9, 8, 0][..], &ip, &report].concat()
    }

    #[test]
    fn who_leaves_has_the_others_asked_twice_in_its_vlan_and_at_once() {
        let mut querier = Querier::new(MAC, &[None, Some(20)]);
        asks(&mut querier, Time::ZERO);
        let tag = Edit::Tag(Tag::customer(Tci::new(0, false, 20)));
        let now = Time(3 * SECOND);
        hears(&mut querier, &leave(7), tag, now);
        hears(&mut querier, &leave(7), tag, now);
        assert_eq!(querier.wake(), Some(now));
        for second in [3, 4] {
            let [asked] = &asks(&mut querier, Time(second * SECOND))[..] else { panic!("one query") };
            assert_eq!(asked[..6], [1, 0, 0x5e, 1, 1, 7]);
            assert_eq!(vlan::outer(asked).map(|tag| tag.tci.id()), Some(20));
            let group = IpAddr::from([239, 1, 1, 7]);
            let message = group::message(&Layout::parse(asked), asked);
            let Some(Message::Query { is_router: false, group: asked }) = message else { panic!("{message:?}") };
            assert_eq!(asked, Some((group, 2000)), "RFC 3376, section 8.8: 1 s, twice");
        }
        assert_eq!(asks(&mut querier, Time(5 * SECOND)).len(), 0);
    }

    #[test]
    fn in_another_process_it_goes_on_with_its_rounds_its_silence_and_the_groups_that_it_asks_for() {
        let vlans = [None, Some(20)];
        let mut querier = Querier::new(MAC, &vlans);
        let frames = asks(&mut querier, Time::ZERO);
        let mut router = frames[1].clone();
        hears(&mut querier, &router, Edit::Keep, Time(SECOND));
        assert_eq!(asks(&mut querier, Time(3 * SECOND)).len(), 0);
        hears(&mut querier, &leave(7), Edit::Keep, Time(3 * SECOND));
        asks(&mut querier, Time(3 * SECOND));
        let saved = querier.save().unwrap();
        let other = Mac([2, 0x4e, 9, 9, 9, 9]);
        let mut next = Querier::new(other, &vlans);
        next.restore(&saved);
        assert_eq!(next.save(), Some(saved.clone()));
        for second in [4, 32, 40] {
            let [now, frames] = [&mut querier, &mut next].map(|querier| asks(querier, Time(second * SECOND)));
            assert_eq!(now, frames, "{second}");
        }
        // One of other VLANs begins anew.
        router.clear();
        let mut another = Querier::new(other, &[Some(20)]);
        another.restore(&saved);
        assert_eq!(asks(&mut another, Time(4 * SECOND)).len(), 2);
    }

    #[test]
    fn who_leaves_without_end_has_64_groups_asked_for_at_once_at_most() {
        let mut querier = Querier::new(MAC, &[None]);
        asks(&mut querier, Time::ZERO);
        (0..=255).for_each(|group| hears(&mut querier, &leave(group), Edit::Keep, Time(SECOND)));
        let asked: usize = (1..5).map(|second| asks(&mut querier, Time(second * SECOND)).len()).sum();
        assert_eq!(asked, 2 * LEFT_MAX);
    }
}
