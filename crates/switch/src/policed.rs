//! Forwarding on a switch of which at least one port has a policy.

use std::ops::Range;

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Edit, PACKETS, PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_frame::vlan::{Tag, Tci};

use crate::guard;
use crate::plan::Plan;
use crate::policy::Private;
use crate::rules::{FLAT, Lane, Meter, Rules, reach};
use crate::{Members, Switch, Way, is_reserved};

/// What makes frames one train: addresses, and the tag or the type.
type Label = [u8; 18];

/// Packets one behind the other that go the same way.
struct Train {
    way: Way,
    lane: Lane,
    first: u16,
    end: u16,
}

/// What is decided for a train.
enum Verdict {
    To(PortId, Edit),
    Flood(Flood),
    Drop(Reason),
}

/// What kind of frame goes to many.
#[derive(Clone, Copy)]
enum Flood {
    Broadcast,
    Multicast,
    Unknown,
}

impl Switch {
    /// As [`Switch::forward`], by the ports' policies.
    pub(crate) fn forward_policed(&self, members: &Members, batch: &Batch, now: Time, plan: &mut Plan) {
        let rules = members.rules(batch.origin);
        let mut trains = ArrayVec::<Train, PACKETS>::new();
        let mut last = None;
        for (packet, index) in batch.packets().iter().zip(0..) {
            let head = batch.head(packet);
            if let Some(reason) =
                rules.filter(|rules| rules.inspects).and_then(|r| guard::inspect(&r.policy, batch, packet))
            {
                plan.drop(index, reason);
                last = None;
                continue;
            }
            let Some(label) = label(head) else {
                plan.drop(index, Reason::TooShort);
                last = None;
                continue;
            };
            if let (Some(train), true) = (trains.last_mut(), last == Some(label)) {
                train.end = index + 1;
                continue;
            }
            match classify(rules, &label) {
                Ok(lane) => {
                    let way = Way::of(addresses(&label), lane.fid);
                    self.addresses.prefetch(way.target);
                    self.addresses.prefetch(way.source);
                    last = Some(label);
                    let train = Train { way, lane, first: index, end: index + 1 };
                    let _full_only_if_a_batch_were_longer_than_itself = trains.try_push(train);
                }
                Err(reason) => {
                    plan.drop(index, reason);
                    last = None;
                }
            }
        }
        for train in trains {
            let Train { way, lane, first, end } = train;
            match self.decide_policed(members, rules, batch.origin, way, &lane, now) {
                Verdict::To(port, edit) => {
                    plan.add_edited(port, first..end, edit);
                    copy_to_promiscuous(members, rules, batch.origin, Some(port), &lane, first..end, plan);
                }
                Verdict::Drop(reason) => {
                    let reached = matches!(reason, Reason::MacChanged | Reason::PrivateVlan)
                        && copy_to_promiscuous(members, rules, batch.origin, None, &lane, first..end, plan);
                    if !reached {
                        (first..end).for_each(|packet| plan.drop(packet, reason));
                    }
                }
                Verdict::Flood(kind) => flood(members, rules, batch, way, &lane, first..end, (kind, now), plan),
            }
        }
    }

    fn decide_policed(
        &self,
        members: &Members,
        rules: Option<&Rules>,
        origin: PortId,
        way: Way,
        lane: &Lane,
        now: Time,
    ) -> Verdict {
        let Way { target, source } = way;
        if let Some(Err(reason)) = rules.map(|rules| rules.sends(source.address(), now, self.ageing_ns)) {
            return Verdict::Drop(reason);
        }
        if !source.is_multicast() {
            self.addresses.learn_key(source, origin, now);
        }
        if target.is_multicast() {
            return match target.address() {
                address if is_reserved(address) => Verdict::Drop(Reason::Policy),
                Mac::BROADCAST => Verdict::Flood(Flood::Broadcast),
                _ => Verdict::Flood(Flood::Multicast),
            };
        }
        let Some(port) = self.addresses.find_key(target, now) else { return Verdict::Flood(Flood::Unknown) };
        if port == origin {
            return Verdict::Drop(Reason::SamePort);
        }
        let Some(edit) = members.leaves(port, lane) else { return Verdict::Flood(Flood::Unknown) };
        let receiver = members.rules(port);
        if !reach(private(rules), private(receiver)) {
            return Verdict::Drop(Reason::PrivateVlan);
        }
        if receiver.is_some_and(|receiver| !receiver.receives(target.address())) {
            return Verdict::Drop(Reason::MacChanged);
        }
        Verdict::To(port, edit)
    }
}

/// A frame's first bytes that decide: `None` if it is shorter than an Ethernet header.
#[inline(always)]
fn label(head: &[u8]) -> Option<Label> {
    let mut label = [0; 18];
    if let Some(first) = head.first_chunk::<18>() {
        label = *first;
        // Behind an untagged header the payload begins, which may differ.
        if !matches!(label[12..14], [0x81, 0] | [0x88, 0xa8]) {
            label[14..].fill(0);
        }
    } else {
        label[..14].copy_from_slice(head.first_chunk::<14>()?);
    }
    Some(label)
}

fn addresses(label: &Label) -> ([u8; 6], [u8; 6]) {
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *label;
    ([a, b, c, d, e, f], [g, h, i, j, k, l])
}

#[inline(always)]
fn classify(rules: Option<&Rules>, label: &Label) -> Result<Lane, Reason> {
    let Some(rules) = rules else { return Ok(FLAT) };
    let outer = Tag::from_bytes([label[12], label[13], label[14], label[15]]);
    rules.classify(outer, || outer.map_or(Tci(0), |tag| tag.tci))
}

fn private(rules: Option<&Rules>) -> Private {
    rules.map_or(Private::Promiscuous, |rules| rules.policy.private)
}

/// To every port of the VLAN that may have it, so far as the sender's storm control lets it through.
#[expect(clippy::too_many_arguments, reason = "one step of forward_policed, apart for its length")]
fn flood(
    members: &Members,
    rules: Option<&Rules>,
    batch: &Batch,
    way: Way,
    lane: &Lane,
    packets: Range<u16>,
    (kind, now): (Flood, Time),
    plan: &mut Plan,
) {
    let (meter, reason) = match kind {
        Flood::Broadcast => (rules.and_then(|rules| rules.broadcast.as_ref()), Reason::BroadcastStorm),
        Flood::Multicast => (rules.and_then(|rules| rules.multicast.as_ref()), Reason::MulticastStorm),
        Flood::Unknown => (rules.and_then(|rules| rules.unknown.as_ref()), Reason::UnknownStorm),
    };
    let packets = calm(meter, reason, batch, packets, now, plan);
    if packets.is_empty() {
        return;
    }
    let target = way.target.address();
    let mut reached = false;
    for &port in members.list.iter().filter(|port| **port != batch.origin) {
        let Some(edit) = members.leaves(port, lane) else { continue };
        let receiver = members.rules(port);
        let wanted = receiver.is_none_or(|rules| rules.policy.promiscuous || rules.receives(target));
        if wanted && reach(private(rules), private(receiver)) {
            plan.add_edited(port, packets.clone(), edit);
            reached = true;
        }
    }
    if !reached {
        packets.for_each(|packet| plan.drop(packet, Reason::NoReceiver));
    }
}

/// Those of a train that storm control lets through: the first so many, as all come at the same time.
fn calm(
    meter: Option<&Meter>,
    reason: Reason,
    batch: &Batch,
    packets: Range<u16>,
    now: Time,
    plan: &mut Plan,
) -> Range<u16> {
    let Some(meter) = meter else { return packets };
    let frames = |packet: u16| batch.packet(packet).map_or(1, nicety_adapter::Packet::frames);
    let refused = packets.clone().find(|packet| !meter.take(frames(*packet), now)).unwrap_or(packets.end);
    (refused..packets.end).for_each(|packet| plan.drop(packet, reason));
    packets.start..refused
}

/// To the promiscuous ports of its VLAN that do not get it anyway. True if there is one.
#[inline]
fn copy_to_promiscuous(
    members: &Members,
    rules: Option<&Rules>,
    origin: PortId,
    besides: Option<PortId>,
    lane: &Lane,
    packets: Range<u16>,
    plan: &mut Plan,
) -> bool {
    let mut reached = false;
    for &port in members.promiscuous.iter().filter(|port| **port != origin && Some(**port) != besides) {
        if let Some(edit) = members.leaves(port, lane)
            && reach(private(rules), private(members.rules(port)))
        {
            plan.add_edited(port, packets.clone(), edit);
            reached = true;
        }
    }
    reached
}

impl Members {
    pub(crate) fn rules(&self, port: PortId) -> Option<&Rules> {
        self.rules.get(usize::from(port.0))?.as_deref()
    }

    /// How a frame leaves by a port; `None` if it does not.
    #[inline]
    fn leaves(&self, port: PortId, lane: &Lane) -> Option<Edit> {
        if self.present.get(usize::from(port.0)) != Some(&true) {
            return None;
        }
        match self.rules(port) {
            Some(rules) => rules.leaves(lane),
            None => (lane.fid == 0).then_some(Edit::Keep),
        }
    }
}
