//! Forwarding on a switch with at least one policy.

use std::ops::Range;

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Edit, PACKETS, PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_frame::vlan::{self, Tag, Tci};

use crate::addresses::{self, Key, Keys};
use crate::explain::{Follower, Step};
use crate::guard;
use crate::pairs::{Pair, Place};
use crate::plan::Plan;
use crate::policy::Private;
use crate::rules::{FLAT, FrameVlan, Meter, Rules, Tags, reach};
use crate::snoop::{Audience, Snoop};
use crate::{At, Members, Switch, group};

/// The part that all frames of a train share: addresses, and the tag or the type. In words, which are compared and taken apart in
/// registers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Label {
    /// The destination.
    target: u64,
    /// The source, and in the low 16 bits the type or the tag's protocol identifier.
    source: u64,
    /// The tag: its protocol identifier, its control information, and the type behind it. 0 without a tag: what follows the type may
    /// differ within a train.
    tag: u64,
}

impl Label {
    /// The label of no frame: a destination has 48 bits.
    const NONE: Self = Self { target: u64::MAX, source: 0, tag: 0 };

    /// `None` if the frame is shorter than its Ethernet header, with its first tag if it has one.
    #[inline(always)]
    fn of(head: &[u8]) -> Option<Self> {
        let header = head.first_chunk::<14>()?;
        let word = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let this = Self { target: word(0) >> 16, source: word(6), tag: 0 };
        if vlan::is_tpid(this.source as u16) { this.with_tag(head) } else { Some(this) }
    }

    #[inline(always)]
    fn with_tag(self, head: &[u8]) -> Option<Self> {
        let behind = u32::from_be_bytes(*head.get(14..)?.first_chunk()?);
        Some(Self { tag: (self.source & 0xffff) << 32 | u64::from(behind), ..self })
    }

    #[inline(always)]
    fn has_tag(&self) -> bool {
        self.tag != 0
    }

    #[inline(always)]
    fn keys(&self, fid: u16) -> Keys {
        Keys { target: Key::new(self.target, fid), source: Key::new(self.source >> 16, fid) }
    }

    #[inline(always)]
    fn tags(&self) -> Tags {
        let ([a, b], [c, d, ..]) = ((self.source as u16).to_be_bytes(), (self.tag as u32).to_be_bytes());
        Tags { outer: Tag::from_bytes([a, b, c, d]), behind: self.tag as u16 }
    }
}

/// Consecutive packets with the same label.
struct Train {
    keys: Keys,
    /// The line of the cache where the pair may be.
    line: u16,
    /// Its place there. If it is kept, the table was not prefetched.
    place: Place,
    lane: FrameVlan,
    first: u16,
    end: u16,
}

/// A batch on its way: the members of the switch, the sender's rules, the time.
struct Way<'a> {
    members: &'a Members,
    rules: Option<&'a Rules>,
    batch: &'a Batch,
    now: Time,
}

impl Way<'_> {
    /// The VLAN of a frame that comes in.
    #[inline(always)]
    fn classify(&self, label: &Label) -> Result<FrameVlan, Reason> {
        match self.members.outward(self.batch.origin) {
            Some(outward) if label.has_tag() => {
                outward.classify(label.tags()).map_or_else(|| classify(self.rules, label), Ok)
            }
            _ => classify(self.rules, label),
        }
    }
}

/// Consecutive packets for one port that came with the same tag, or without one.
struct Run {
    /// Their tag: see [`Label::tag`].
    tag: u64,
    lane: FrameVlan,
    port: PortId,
    edit: Edit,
    /// The port does not get frames for every address.
    filters: bool,
    first: u16,
}

impl Run {
    /// A tag that no frame has.
    const NO_TAG: u64 = u64::MAX;
    /// A number that no port has.
    const NO_PORT: PortId = PortId(u16::MAX);

    /// No packets, before this one.
    #[inline(always)]
    fn at(first: u16) -> Self {
        Self { tag: Self::NO_TAG, lane: FLAT, port: Self::NO_PORT, edit: Edit::Keep, filters: false, first }
    }

    /// Begins a run for the port that is known to have the destination. False if the rules send no packets there.
    #[inline(always)]
    fn begin(&mut self, port: PortId, way: &Way<'_>) -> bool {
        let Way { members, rules, batch, .. } = *way;
        let receiver = members.rules(port);
        if port == batch.origin || !reach(private(rules), private(receiver)) {
            return false;
        }
        // A frame that came in by an uplink of the flat network with a VLAN's tag does not leave by another one: see `forward_tagged`.
        let Some(edit) = members.leaves(port, &self.lane) else { return false };
        (self.port, self.edit) = (port, edit);
        self.filters = receiver.is_some_and(|rules| !rules.policy.mac_changes);
        true
    }

    /// Ends the run before this packet, and adds its packets to their port's plan.
    #[inline(always)]
    fn end<F: Follower>(&mut self, end: u16, way: &Way<'_>, plan: &mut Plan, follower: &mut F) {
        let packets = self.first..end;
        let port = std::mem::replace(&mut self.port, Self::NO_PORT);
        self.first = end;
        if !packets.is_empty() {
            plan.add_edited(port, packets.clone(), self.edit);
            if !way.members.promiscuous.is_empty() {
                copy_to_promiscuous(way, &self.lane, packets, Some(port), plan, follower);
            }
        }
    }
}

/// Kept pairs are tried for a batch until they have not decided on the next packet so many times. Else a guest whose frames rules refuse, each
/// with other addresses, would make its worker try them for each frame.
const VAIN_MAX: u8 = 4;

/// The decision for a train.
enum Verdict {
    To(PortId, Edit),
    /// The frame goes to the uplinks alone, whatever the table says.
    Out,
    /// The reason that storm control would give for a refusal.
    Flood(Reason),
    Drop(Reason),
}

impl<P> Switch<P> {
    /// Like [`Switch::forward`], with the ports' policies.
    ///
    /// `VEPA`: some port reaches uplinks alone. The checks for that are compiled apart: without such a port they cost nothing.
    // The compiler's own choice, here and of `decide_policed`, depends on what else its caller's crate holds: out of line, a frame costs
    // 30 instructions more.
    #[inline(always)]
    pub(crate) fn forward_policed<F: Follower, const VEPA: bool>(
        &self,
        members: &Members,
        batch: &Batch,
        now: Time,
        plan: &mut Plan,
        follower: &mut F,
    ) {
        plan.pairs.begin(&self.addresses);
        let way = Way { members, rules: members.rules(batch.origin), batch, now };
        let (mut done, mut vain) = (0, 0);
        while usize::from(done) < batch.len() {
            let tries = F::KEEPS && !VEPA && vain < VAIN_MAX;
            if tries {
                let before = done;
                done = self.forward_policed_kept(&way, done, plan, follower);
                vain += u8::from(done == before);
            }
            if usize::from(done) < batch.len() {
                done = self.forward_policed_trains::<F, VEPA>(&way, (done, tries), plan, follower);
            }
        }
    }

    /// Forwards a batch's next packets, up to one that a kept pair and the rules do not send to one port. Returns the number of packets
    /// that are done then. Packets for the same port, with the same tag, are added to the plan together.
    #[inline(always)]
    fn forward_policed_kept<F: Follower>(&self, way: &Way<'_>, done: u16, plan: &mut Plan, follower: &mut F) -> u16 {
        let Way { rules, batch, now, .. } = *way;
        let inspecting = rules.filter(|rules| rules.inspects);
        let sending = rules.filter(|rules| rules.limits_senders());
        let (mut last, mut run, mut end) = (Label::NONE, Run::at(done), done);
        for packet in batch.packets().get(done.into()..).unwrap_or_default() {
            let head = batch.head(packet);
            let is_refused = || inspecting.is_some_and(|rules| guard::inspect(rules, batch, packet, head).is_some());
            if follower.skips(end).is_some() || is_refused() {
                break;
            }
            let Some(label) = Label::of(head) else { break };
            if label != last {
                if label.tag != run.tag {
                    run.end(end, way, plan, follower);
                    let Ok(lane) = way.classify(&label) else { break };
                    (run.tag, run.lane) = (label.tag, lane);
                }
                let keys = label.keys(run.lane.fid);
                let pair = Pair::new(keys, batch.origin, &self.addresses);
                let Some(port) = plan.pairs.find(pair, &self.addresses, addresses::second(now)) else { break };
                if run.port != port {
                    run.end(end, way, plan, follower);
                    if !run.begin(port, way) {
                        break;
                    }
                }
                if run.filters && !way.members.receives(port, keys.target.address()) {
                    break;
                }
                // Last, because it counts the sender.
                let sends = |rules: &Rules| rules.sends(keys.source.address(), now, self.ageing_ns, F::DRY);
                if sending.is_some_and(|rules| sends(rules).is_err()) {
                    break;
                }
                last = label;
            }
            end = end.wrapping_add(1);
        }
        run.end(end, way, plan, follower);
        end
    }

    /// Forwards a batch's next packets: all, or those before the next one whose pair is kept. Returns the number of packets that are done
    /// then.
    // Out of line: most packets are done before.
    #[inline(never)]
    fn forward_policed_trains<F: Follower, const VEPA: bool>(
        &self,
        way: &Way<'_>,
        (done, ends_at_kept): (u16, bool),
        plan: &mut Plan,
        follower: &mut F,
    ) -> u16 {
        let Way { members, rules, batch, now } = *way;
        let inspecting = rules.filter(|rules| rules.inspects);
        let mut trains = ArrayVec::<Train, PACKETS>::new();
        // The label of the last train, as long as frames join it.
        let mut last = Label::NONE;
        let (second, mut end) = (addresses::second(now), batch.len() as u16);
        for (packet, index) in batch.packets().get(done.into()..).unwrap_or_default().iter().zip(done..) {
            if let Some(reason) = follower.skips(index) {
                plan.drop(index, reason);
                end_train(&mut trains, &mut last, index);
                continue;
            }
            let head = batch.head(packet);
            let refused = inspecting.and_then(|rules| guard::inspect(rules, batch, packet, head));
            follower.step(|| Step::Guards(refused));
            if let Some(reason) = refused {
                plan.drop(index, reason);
                end_train(&mut trains, &mut last, index);
                continue;
            }
            let Some(label) = Label::of(head) else {
                plan.drop(index, Reason::TooShort);
                end_train(&mut trains, &mut last, index);
                continue;
            };
            if label == last {
                continue;
            }
            end_train(&mut trains, &mut last, index);
            let lane = way.classify(&label);
            if !lane.is_ok_and(|lane| lane.comes_in) {
                follower.step(|| Step::Vlan(lane.map(|lane| lane.fid)));
            }
            match lane {
                Ok(lane) => {
                    let keys = label.keys(lane.fid);
                    let pair = Pair::new(keys, batch.origin, &self.addresses);
                    let place = if !F::KEEPS || VEPA { Place::None } else { plan.pairs.place(pair, second) };
                    if place != Place::Kept {
                        self.addresses.prefetch(keys.target);
                        self.addresses.prefetch(keys.source);
                    } else if ends_at_kept && index != done {
                        // The first one did not decide: it is no longer valid, or rules refuse its frames.
                        end = index;
                        break;
                    }
                    // Frames for one group's MAC address may be for several groups, or reports.
                    if !(members.snooping && keys.target.is_multicast()) {
                        last = label;
                    }
                    let train = Train { keys, line: pair.line(), place, lane, first: index, end: index + 1 };
                    // Never full: it has room for a batch.
                    let _pushed = trains.try_push(train);
                }
                Err(reason) => plan.drop(index, reason),
            }
        }
        end_train(&mut trains, &mut last, end);
        for train in &trains {
            if train.lane.comes_in {
                self.forward_tagged::<F, VEPA>(way, train, plan, follower);
                continue;
            }
            self.forward_train::<F, VEPA>(way, train, plan, follower);
        }
        end
    }

    #[inline(always)]
    fn forward_train<F: Follower, const VEPA: bool>(
        &self,
        way: &Way<'_>,
        train: &Train,
        plan: &mut Plan,
        follower: &mut F,
    ) {
        let (origin, members) = (way.batch.origin, way.members);
        // A frame of one of these ports that its neighbour returned.
        let is_from_uplink = VEPA && members.is_uplink(origin);
        let sender = if VEPA && is_from_uplink { self.returned(members, train.keys, way.now) } else { None };
        let packets = train.first..train.end;
        match self.decide_policed::<F, VEPA>(way, train, sender, plan, follower) {
            Verdict::Out => out(members, origin, &train.lane, packets, plan, follower),
            Verdict::To(port, edit) => {
                plan.add_edited(port, packets.clone(), edit);
                if !members.promiscuous.is_empty() {
                    copy_to_promiscuous(way, &train.lane, packets, Some(port), plan, follower);
                }
            }
            Verdict::Drop(reason) => {
                let reached = matches!(reason, Reason::MacChanged | Reason::PrivateVlan)
                    && copy_to_promiscuous(way, &train.lane, packets.clone(), None, plan, follower);
                if !reached {
                    packets.for_each(|packet| plan.drop(packet, reason));
                }
            }
            Verdict::Flood(kind) => {
                let snoop = members.snooping.then_some(&self.snoop);
                flood(way, train, (kind, snoop, sender), plan, follower);
            }
        }
    }

    /// Frames that came in by an uplink of the flat network with a VLAN's tag. They are for the VLAN's ports, and for the flat network unless
    /// their destination is one of these ports.
    #[cold]
    #[inline(never)]
    fn forward_tagged<F: Follower, const VEPA: bool>(
        &self,
        way: &Way<'_>,
        train: &Train,
        plan: &mut Plan,
        follower: &mut F,
    ) {
        let Way { members, batch, now, .. } = *way;
        let &Train { keys, ref lane, first, end, .. } = train;
        let drops = plan.drops().len();
        let known = if keys.target.is_multicast() { None } else { self.addresses.find_key(keys.target, now) };
        let is_outside = known.is_some_and(|port| port == batch.origin || members.outward(port).is_some());
        if is_outside {
            self.learn(keys, At { origin: batch.origin, now }, Place::None, follower);
        } else {
            follower.step(|| Step::Vlan(Ok(lane.fid)));
            self.forward_train::<F, VEPA>(way, train, plan, follower);
        }
        if is_outside || known.is_none() {
            follower.step(|| Step::Vlan(Ok(FLAT.fid)));
            let in_flat = |key: Key| Key::new(key.address().to_u64(), FLAT.fid);
            let keys = Keys { target: in_flat(keys.target), source: in_flat(keys.source) };
            let flat = Train { keys, line: 0, place: Place::None, lane: FLAT, first, end };
            self.forward_train::<F, VEPA>(way, &flat, plan, follower);
        }
        plan.settle(drops, first..end);
    }

    #[inline(always)]
    fn decide_policed<F: Follower, const VEPA: bool>(
        &self,
        way: &Way<'_>,
        train: &Train,
        sender: Option<PortId>,
        plan: &mut Plan,
        follower: &mut F,
    ) -> Verdict {
        let Way { members, rules, batch, now } = *way;
        let (origin, lane, keys) = (batch.origin, &train.lane, train.keys);
        let (Keys { target, source }, at) = (keys, At { origin, now });
        let sends = rules.map_or(Ok(()), |rules| rules.sends(source.address(), now, self.ageing_ns, F::DRY));
        follower.step(|| Step::Source(sends));
        if let Err(reason) = sends {
            return Verdict::Drop(reason);
        }
        let kept = if train.place == Place::Kept {
            self.kept(Pair::on_line(keys, origin, train.line), at, plan)
        } else {
            None
        };
        let found = if kept.is_some() {
            kept
        } else {
            let sought = match sender.filter(|_| VEPA) {
                Some(_) => self.seek(keys),
                None => self.learn(keys, at, train.place, follower),
            };
            if target.is_multicast() {
                return match group(target.address(), self.relays, follower) {
                    Ok(kind) => Verdict::Flood(kind),
                    Err(reason) => Verdict::Drop(reason),
                };
            }
            if VEPA && private(rules) == Private::Vepa {
                return Verdict::Out;
            }
            self.find(sought, train.line, at, plan, follower)
        };
        let Some(port) = found else { return Verdict::Flood(Reason::UnknownStorm) };
        if port == origin {
            return Verdict::Drop(Reason::SamePort);
        }
        let Some(edit) = members.leaves(port, lane) else {
            follower.step(|| Step::Receiver(port, Err(Reason::Vlan)));
            return Verdict::Flood(Reason::UnknownStorm);
        };
        let receiver = members.rules(port);
        let reached = match VEPA {
            true => members.reaches(origin, rules, port),
            false => reach(private(rules), private(receiver)),
        };
        let offered = if !reached {
            Err(Reason::PrivateVlan)
        } else if receiver.is_some_and(|receiver| !receiver.receives(target.address())) {
            Err(Reason::MacChanged)
        } else {
            Ok(edit)
        };
        follower.step(|| Step::Receiver(port, offered));
        offered.map_or_else(Verdict::Drop, |edit| Verdict::To(port, edit))
    }
}

impl<P> Switch<P> {
    /// [`Switch::forward_policed`] where some port reaches uplinks alone.
    #[cold]
    #[inline(never)]
    pub(crate) fn forward_vepa<F: Follower>(
        &self,
        members: &Members,
        batch: &Batch,
        now: Time,
        plan: &mut Plan,
        follower: &mut F,
    ) {
        self.forward_policed::<F, true>(members, batch, now, plan, follower);
    }

    /// The port that reaches uplinks alone and has sent this frame, which its neighbour returned.
    #[cold]
    #[inline(never)]
    fn returned(&self, members: &Members, keys: Keys, now: Time) -> Option<PortId> {
        self.addresses.find_key(keys.source, now).filter(|port| private(members.rules(*port)) == Private::Vepa)
    }
}

/// Whether a guest whose port has these rules may send from an address into the network of this identifier. It then counts as a sender.
pub(crate) fn may_send(rules: Option<&Rules>, (address, fid): (Mac, u16), now: Time, ageing_ns: u64) -> bool {
    let Some(rules) = rules else { return fid == 0 };
    let id = Tci::new(0, false, fid);
    let outer = [None, Some(Tag::customer(id)), Some(Tag::service(id))];
    let reaches = |outer| rules.classify(Tags { outer, behind: 0 }).is_ok_and(|lane| lane.fid == fid);
    outer.into_iter().any(reaches) && rules.sends(address, now, ageing_ns, false).is_ok()
}

/// The networks by which a frame's addresses are known.
pub(crate) fn networks(members: &Members, port: PortId, head: &[u8]) -> [Option<u16>; 2] {
    let Some(label) = Label::of(head) else { return [None; 2] };
    let vlan = members.outward(port).and_then(|outward| outward.classify(label.tags()));
    [vlan, classify(members.rules(port), &label).ok()].map(|lane| lane.map(|lane| lane.fid))
}

/// The edit with which a frame that comes in at a port leaves by another one. `None`: it does not.
pub(crate) fn edit_for(members: &Members, from: PortId, head: &[u8], by: PortId) -> Option<Edit> {
    members.leaves(by, &classify(members.rules(from), &Label::of(head)?).ok()?)
}

/// The last train ends before this packet, if frames still join it.
#[inline(always)]
fn end_train(trains: &mut ArrayVec<Train, PACKETS>, last: &mut Label, end: u16) {
    if *last != Label::NONE
        && let Some(train) = trains.last_mut()
    {
        train.end = end;
        *last = Label::NONE;
    }
}

#[inline(always)]
fn classify(rules: Option<&Rules>, label: &Label) -> Result<FrameVlan, Reason> {
    let Some(rules) = rules else { return Ok(FLAT) };
    rules.classify(label.tags())
}

fn private(rules: Option<&Rules>) -> Private {
    rules.map_or(Private::Promiscuous, |rules| rules.policy.private)
}

/// Sends frames to the uplinks that carry the VLAN.
#[cold]
#[inline(never)]
fn out<F: Follower>(
    members: &Members,
    origin: PortId,
    lane: &FrameVlan,
    packets: Range<u16>,
    plan: &mut Plan,
    follower: &mut F,
) {
    let mut reached = false;
    for &port in members.list.iter().filter(|port| **port != origin && members.is_uplink(**port)) {
        let offered = members.leaves(port, lane).ok_or(Reason::Vlan);
        follower.step(|| Step::Receiver(port, offered));
        if let Ok(edit) = offered {
            plan.add_edited(port, packets.clone(), edit);
            reached = true;
        }
    }
    if !reached {
        packets.for_each(|packet| plan.drop(packet, Reason::NoReceiver));
    }
}

/// Floods to every allowed port of the VLAN, as far as the sender's storm control permits.
fn flood<F: Follower>(
    way: &Way<'_>,
    train: &Train,
    (kind, snoop, sender): (Reason, Option<&Snoop>, Option<PortId>),
    plan: &mut Plan,
    follower: &mut F,
) {
    let Way { members, rules, batch, now } = *way;
    let &Train { keys, ref lane, first, end, .. } = train;
    let meter = rules.and_then(|rules| match kind {
        Reason::BroadcastStorm => rules.broadcast.as_ref(),
        Reason::MulticastStorm => rules.multicast.as_ref(),
        _ => rules.unknown.as_ref(),
    });
    let packets = permitted::<F>(meter, kind, batch, first..end, now, plan);
    follower.step(|| Step::Floods { kind, goes: !packets.is_empty() });
    if packets.is_empty() {
        return;
    }
    let target = keys.target.address();
    let audience = match (snoop, batch.packet(packets.start), kind) {
        (Some(snoop), Some(packet), Reason::MulticastStorm) => snoop.audience(batch, packet, lane.fid, now, F::DRY),
        _ => Audience::All,
    };
    if !matches!(audience, Audience::All | Audience::Asked(_)) {
        follower.step(|| Step::Snooped { report: matches!(audience, Audience::Routers(_)) });
    }
    let mut reached = false;
    for &port in members.list.iter().filter(|port| **port != batch.origin && Some(**port) != sender) {
        let Some(edit) = members.leaves(port, lane) else {
            follower.step(|| Step::Receiver(port, Err(Reason::Vlan)));
            continue;
        };
        let receiver = members.rules(port);
        let joined =
            audience.has(port) || receiver.is_none_or(|rules| !rules.policy.snooping || rules.policy.promiscuous);
        let offered = if !joined {
            Err(Reason::NoReceiver)
        } else if !receiver.is_none_or(|rules| rules.policy.promiscuous || rules.receives(target)) {
            Err(Reason::MacChanged)
        } else if !members.reaches(batch.origin, rules, port) {
            Err(Reason::PrivateVlan)
        } else {
            Ok(edit)
        };
        follower.step(|| Step::Receiver(port, offered));
        if let Ok(edit) = offered {
            plan.add_edited(port, packets.clone(), edit);
            reached = true;
            if let (Audience::Asked(asked), Some(snoop)) = (&audience, snoop) {
                snoop.asks(asked, port);
            }
        }
    }
    if !reached {
        packets.for_each(|packet| plan.drop(packet, Reason::NoReceiver));
    }
}

/// The packets of a train that storm control permits: the first ones, because all arrive at the same time.
fn permitted<F: Follower>(
    meter: Option<&Meter>,
    reason: Reason,
    batch: &Batch,
    packets: Range<u16>,
    now: Time,
    plan: &mut Plan,
) -> Range<u16> {
    let Some(meter) = meter else { return packets };
    let frames = |packet: u16| batch.packet(packet).map_or(1, nicety_adapter::Packet::frames);
    let refused = packets.clone().find(|packet| !meter.take(frames(*packet), now, F::DRY)).unwrap_or(packets.end);
    (refused..packets.end).for_each(|packet| plan.drop(packet, reason));
    packets.start..refused
}

/// Copies to the VLAN's promiscuous ports that do not get the frame anyway. True if there is one.
#[inline]
fn copy_to_promiscuous<F: Follower>(
    way: &Way<'_>,
    lane: &FrameVlan,
    packets: Range<u16>,
    besides: Option<PortId>,
    plan: &mut Plan,
    follower: &mut F,
) -> bool {
    let (members, origin) = (way.members, way.batch.origin);
    let mut reached = false;
    for &port in members.promiscuous.iter().filter(|port| **port != origin && Some(**port) != besides) {
        if let Some(edit) = members.leaves(port, lane)
            && members.reaches(origin, way.rules, port)
        {
            follower.step(|| Step::Receiver(port, Ok(edit)));
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

    pub(crate) fn is_uplink(&self, port: PortId) -> bool {
        self.uplinks.get(usize::from(port.0)) == Some(&true)
    }

    /// Whether a port's guest gets frames for this address.
    #[inline(never)]
    fn receives(&self, port: PortId, target: Mac) -> bool {
        self.rules(port).is_none_or(|rules| rules.receives(target))
    }

    /// Whether frames of a port, which has these rules, reach another one.
    #[inline]
    pub(crate) fn reaches(&self, from: PortId, rules: Option<&Rules>, to: PortId) -> bool {
        match (private(rules), private(self.rules(to))) {
            (Private::Vepa, _) => self.is_uplink(to),
            (_, Private::Vepa) => self.is_uplink(from),
            (one, other) => reach(one, other),
        }
    }

    /// The edit of a frame that leaves by a port; `None` if it may not.
    #[inline]
    fn leaves(&self, port: PortId, lane: &FrameVlan) -> Option<Edit> {
        if self.present.get(usize::from(port.0)) != Some(&true) {
            return None;
        }
        match self.rules(port) {
            Some(rules) if !rules.is_flat() => rules.leaves(lane),
            _ if lane.fid == 0 => Some(Edit::Keep),
            _ => self.leaves_outward(port, lane),
        }
    }

    /// The edit of a VLAN's frame that leaves by a port of the flat network: an uplink carries it with its tag.
    #[inline(never)]
    fn leaves_outward(&self, port: PortId, lane: &FrameVlan) -> Option<Edit> {
        let carries = !lane.comes_in
            && self.is_uplink(port)
            && self.outward.as_ref().is_some_and(|outward| outward.carries(lane.fid));
        carries.then_some(lane.tagged())
    }
}
