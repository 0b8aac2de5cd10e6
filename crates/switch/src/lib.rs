//! The virtual switch. From private heads and its own tables it decides which ports get a frame, and gives the reason for each drop.
//!
//! It has no port, socket or clock. [`Switch::forward`] turns a batch into a [`Plan`]: for each receiver an ordered list of its
//! packets. So a receiver's lock is taken once per batch, not once per frame (the idea of VALE, Rizzo and Lettieri 2012). Learning,
//! ageing and moving follow IEEE 802.1Q-2018, 8.7 and 8.8.
//!
//! A port's [`Policy`] sets its VLANs and what its guest may send and receive; [`Switch::set_policy`] replaces it while the switch
//! runs. A switch without policies is flat, and does not pay for them.
//!
//! Several workers forward in parallel. The address table is a set-associative array of atomics. Each worker keeps in its [`Plan`] what it
//! found there (`pairs.rs`). The member table is read without a lock and replaced as a whole.
#![forbid(unsafe_code)]

mod addresses;
mod explain;
mod guard;
mod outward;
mod pairs;
mod plan;
mod policed;
mod policy;
mod rules;
mod snoop;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Edit, PACKETS, PortId, Reason, Time};
use nicety_frame::Mac;

pub use addresses::{Addresses, Learned};
use addresses::{Hashed, Held, Keys, Stamp};
use explain::{Except, Follower, Nobody};
pub use explain::{Primary, Skipped, Step};
use outward::Outward;
use pairs::{Pair, Place};
pub use plan::Plan;
pub use policy::{ADDRESS_LIMIT_MAX, Guards, Policy, Private, Storm, Vlan, VlanError, VlanId, VlanSet};
use rules::Rules;
use snoop::Snoop;
pub use snoop::{Interest, Wanted};

/// Most ports of one switch.
pub const PORTS: usize = 1024;

/// The limits of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the address table, rounded up to a power of two; some sets fill earlier. 16 bytes per address.
    pub addresses: usize,
    /// An address that sends nothing is kept for this long: 300 s by IEEE 802.1Q-2018, table 8-6.
    pub ageing: Duration,
    /// Most addresses of one guest's port at once. If the guest has more, each set keeps the newest ones, and the others stay unknown.
    pub port_addresses: u32,
    /// The seed of the address table's hash: random where guests do not trust each other, constant in a simulation. With a
    /// known seed a guest can compute which addresses compete with its neighbour's.
    pub seed: u64,
    /// The switch is a wire with two ends (a two-port MAC relay, IEEE 802.1Q-2018, 5.15). It also forwards frames that are reserved for the
    /// next bridge.
    pub relays: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { addresses: 32_768, ageing: Duration::from_secs(300), port_addresses: 1024, seed: 0, relays: false }
    }
}

/// Reasons why a port cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a switch has at most {PORTS} ports")
    }
}

impl std::error::Error for Full {}

/// The ports that have joined, in order, and their policies.
#[derive(Clone, Debug, Default)]
struct Members {
    present: Vec<bool>,
    list: Vec<PortId>,
    /// The rules of each port; `None` for the default policy.
    rules: Vec<Option<Arc<Rules>>>,
    /// Whether any port has rules.
    policed: bool,
    /// Ports that get every frame of their VLANs.
    promiscuous: Vec<PortId>,
    /// Whether any port gets only groups that it has joined.
    snooping: bool,
    /// Whether each port leads to other networks.
    uplinks: Vec<bool>,
    /// Whether any port reaches uplinks alone.
    vepa: bool,
    /// VLANs that uplinks of the flat network carry.
    outward: Option<Outward>,
}

impl Members {
    /// Whether it gets frames that come in at this port and are for an address that is known there.
    #[inline(always)]
    fn takes(&self, port: PortId, origin: PortId) -> bool {
        port != origin && self.present.get(usize::from(port.0)) == Some(&true)
    }

    fn set_rules(&mut self, port: PortId, rules: Option<Arc<Rules>>) {
        let index = usize::from(port.0);
        if self.rules.len() <= index {
            self.rules.resize(index + 1, None);
        }
        self.rules[index] = rules;
        self.sum_up();
    }

    /// Consequences of all ports' rules together.
    fn sum_up(&mut self) {
        self.policed = self.rules.iter().any(Option::is_some);
        self.snooping = self.rules.iter().flatten().any(|rules| rules.policy.snooping);
        self.vepa = self.rules.iter().flatten().any(|rules| rules.policy.private == Private::Vepa);
        let promiscuous = |&index: &usize| self.rules[index].as_ref().is_some_and(|rules| rules.policy.promiscuous);
        self.promiscuous = (0..self.rules.len()).filter(promiscuous).map(|index| PortId(index as u16)).collect();
        self.outward = if self.policed { Outward::of(self) } else { None };
    }
}

/// The ports that have joined, and the caller's value for each. Replaced as a whole, so that a decision and its receivers belong to the
/// same moment.
#[derive(Clone, Debug)]
struct Joined<P> {
    members: Members,
    slots: Vec<Option<P>>,
}

impl<P> Joined<P> {
    fn put(&mut self, port: PortId, slot: Option<P>, is_uplink: bool) {
        self.place(port, slot);
        if let Some(uplink) = self.members.uplinks.get_mut(usize::from(port.0)) {
            *uplink = is_uplink;
        }
        self.list();
    }

    /// Puts the value in its place. [`list`](Self::list) must follow.
    fn place(&mut self, port: PortId, slot: Option<P>) {
        let (index, present) = (usize::from(port.0), &mut self.members.present);
        if present.len() <= index {
            present.resize(index + 1, false);
            self.members.uplinks.resize(index + 1, false);
            self.slots.resize_with(index + 1, || None);
        }
        self.members.present[index] = slot.is_some();
        self.slots[index] = slot;
    }

    fn list(&mut self) {
        let Members { present, list, .. } = &mut self.members;
        *list = (0..present.len()).filter(|&i| present[i]).map(|i| PortId(i as u16)).collect();
        self.members.sum_up();
    }
}

/// The caller's values of the ports at one moment. Look the receivers of a plan up here. Another port may have taken a number since, but
/// here the number still means the port for which the plan was made.
#[derive(Debug)]
pub struct Slots<P>(Guard<Arc<Joined<P>>>);

impl<P> Slots<P> {
    /// The value of this port number, if the port had joined, or was [kept](Switch::keep).
    #[inline]
    pub fn get(&self, port: PortId) -> Option<&P> {
        self.0.slots.get(usize::from(port.0))?.as_ref()
    }

    /// All values, in the order of port numbers.
    pub fn iter(&self) -> impl Iterator<Item = &P> {
        self.0.slots.iter().flatten()
    }

    /// A copy that may be kept for longer than a call, or in great number. Short-lived guards use slots, of which a thread has few.
    #[must_use]
    pub fn kept(self) -> Self {
        Self(Guard::from_inner(Guard::into_inner(self.0)))
    }
}

/// One switch. It decides on port numbers, and keeps the caller's value `P` for each port.
#[derive(Debug)]
pub struct Switch<P = ()> {
    addresses: Addresses,
    joined: ArcSwap<Joined<P>>,
    /// Most addresses of a guest's port.
    port_addresses: u32,
    /// An address that sends nothing counts for this long towards its port's limit.
    ageing_ns: u64,
    snoop: Snoop,
    /// See [`Limits::relays`].
    relays: bool,
}

impl<P: Clone> Switch<P> {
    /// A guest's port joins.
    pub fn join(&self, port: PortId, slot: P) -> Result<(), Full> {
        self.join_limited(port, slot, false)
    }

    /// A port that leads to other networks joins. Any number of addresses may be behind it.
    pub fn join_uplink(&self, port: PortId, slot: P) -> Result<(), Full> {
        self.join_limited(port, slot, true)
    }

    /// Keeps the value of a port that the switch does not see, such as a member of a team: the switch decides on the team's number. It
    /// [leaves](Self::leave) like a port.
    pub fn keep(&self, port: PortId, slot: P) -> Result<(), Full> {
        if usize::from(port.0) >= PORTS {
            return Err(Full);
        }
        self.change(|joined| {
            joined.place(port, Some(slot.clone()));
            joined.members.present[usize::from(port.0)] = false;
            joined.list();
        });
        Ok(())
    }

    fn join_limited(&self, port: PortId, slot: P, is_uplink: bool) -> Result<(), Full> {
        if usize::from(port.0) >= PORTS {
            return Err(Full);
        }
        // A worker that was late may have learned addresses of a port that had this number before.
        self.addresses.forget(port);
        self.addresses.limit(port, if is_uplink { u32::MAX } else { self.port_addresses });
        self.change(|joined| joined.put(port, Some(slot.clone()), is_uplink));
        Ok(())
    }

    /// A port leaves; its learned addresses and its policy are forgotten. Returns the caller's value for it.
    pub fn leave(&self, port: PortId) -> Option<P> {
        self.leave_all(&[port]).pop()
    }

    /// Removes ports as [`leave`](Self::leave) does. It replaces and searches the tables once, whatever the number of ports. Returns the
    /// caller's values of the ports that had joined.
    pub fn leave_all(&self, ports: &[PortId]) -> Vec<P> {
        let before = self.change(|joined| {
            for &port in ports {
                if let Some(rules) = joined.members.rules.get_mut(usize::from(port.0)) {
                    *rules = None;
                }
                joined.place(port, None);
            }
            joined.list();
        });
        let mut leave = [false; PORTS];
        for &PortId(port) in ports {
            if let Some(leaves) = leave.get_mut(usize::from(port)) {
                *leaves = true;
            }
        }
        self.addresses.forget_all(|PortId(port)| leave.get(usize::from(port)) == Some(&true));
        ports.iter().for_each(|&port| self.snoop.forget(port));
        ports.iter().filter_map(|port| before.slots.get(usize::from(port.0))?.clone()).collect()
    }

    /// Sets a port's policy, whether it has joined or not. It applies from the next batch on. If the VLANs change, everything learned of the
    /// port is forgotten. If a port that has joined begins to be snooped, it gets all groups for 260 s, or until it leaves. Setting the same
    /// policy again changes nothing, and its meters keep their counts.
    pub fn set_policy(&self, port: PortId, policy: &Policy) {
        if usize::from(port.0) >= PORTS {
            return;
        }
        let before = self.joined.load_full();
        let old = before.members.rules(port).map(|rules| &rules.policy);
        let usual = Policy::default();
        if old == Some(policy) || (old.is_none() && policy.is_plain()) {
            return;
        }
        let old_or_usual = old.unwrap_or(&usual);
        let moved = (&old_or_usual.vlan, old_or_usual.blocked) != (&policy.vlan, policy.blocked);
        let rules = (!policy.is_plain()).then(|| Arc::new(Rules::new(policy.clone())));
        self.change(|joined| joined.members.set_rules(port, rules.clone()));
        if moved {
            self.forget(port);
        }
        let was_snooped = old.is_some_and(|old| old.snooping) && !moved;
        if policy.snooping && !was_snooped && before.members.present.get(usize::from(port.0)) == Some(&true) {
            self.snoop.renew(port);
        }
    }

    /// A port carries nothing until it gets a policy by [`set_policy`](Self::set_policy) that is not [blocked](Policy::blocked).
    pub fn block(&self, port: PortId) {
        let old = self.joined.load().members.rules(port).map(|rules| rules.policy.clone());
        self.set_policy(port, &Policy { blocked: true, ..old.unwrap_or_default() });
    }

    /// Whether a port is [blocked](Policy::blocked).
    pub fn is_blocked(&self, port: PortId) -> bool {
        self.joined.load().members.rules(port).is_some_and(|rules| rules.policy.blocked)
    }

    /// Replaces the tables; returns the old ones.
    fn change(&self, change: impl Fn(&mut Joined<P>)) -> Arc<Joined<P>> {
        self.joined.rcu(|old| {
            let mut new = Joined::clone(old);
            change(&mut new);
            new
        })
    }
}

impl<P> Switch<P> {
    /// A switch without ports.
    pub fn new(limits: Limits) -> Self {
        Self {
            addresses: Addresses::new(limits),
            joined: ArcSwap::from_pointee(Joined { members: Members::default(), slots: Vec::new() }),
            port_addresses: limits.port_addresses,
            ageing_ns: u64::try_from(limits.ageing.as_nanos()).unwrap_or(u64::MAX),
            snoop: Snoop::default(),
            relays: limits.relays,
        }
    }

    /// The ports that have joined now.
    pub fn slots(&self) -> Slots<P> {
        Slots(self.joined.load())
    }

    /// Forgets everything learned of a port.
    pub fn forget(&self, port: PortId) {
        self.addresses.forget(port);
        self.snoop.forget(port);
    }

    /// The address table, for reading.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// A port's guest has moved here, and nobody has seen its reports: it gets all groups for 260 s.
    pub fn arrived(&self, port: PortId) {
        if self.joined.load().members.rules(port).is_some_and(|rules| rules.policy.snooping) {
            self.snoop.renew(port);
        }
    }

    /// Learns an address at a port, as if its guest had sent from it. False if the port's policy forbids that.
    pub fn teach(&self, port: PortId, address: Mac, fid: u16, now: Time) -> bool {
        let joined = self.joined.load();
        let may = !address.is_multicast()
            && policed::may_send(joined.members.rules(port), (address, fid), now, self.ageing_ns);
        if may {
            self.addresses.learn(address, fid, port, now);
        }
        may
    }

    /// Current interests of ports in multicast groups. Nothing is learned unless a port has [`Policy::snooping`].
    pub fn wanted(&self, now: Time) -> Vec<Wanted> {
        self.snoop.list(now)
    }

    /// Replaces all interests by those of another process, whose ports have joined here.
    pub fn want_again(&self, wanted: &[Wanted], now: Time) {
        self.snoop.restore(wanted, now);
    }

    /// Decides for a whole batch, and learns its senders. Returns the ports that the plan refers to.
    // Out of line, and what it calls in line: left to itself the compiler chooses by what else its caller's crate holds, and a frame costs
    // up to 120 instructions more.
    #[inline(never)]
    pub fn forward(&self, batch: &Batch, now: Time, plan: &mut Plan) -> Slots<P> {
        self.forward_followed(batch, now, plan, &mut Nobody)
    }

    /// Like [`forward`](Switch::forward), but drops the `skipped` packets, and learns nothing from them.
    #[inline(never)]
    pub fn forward_except(&self, batch: &Batch, skipped: Skipped, now: Time, plan: &mut Plan) -> Slots<P> {
        self.forward_followed(batch, now, plan, &mut Except(skipped))
    }

    /// Like [`forward`](Switch::forward), for a batch of a port that stands by for another one: the address of both is learned at that one.
    #[inline(never)]
    pub fn forward_standby(&self, batch: &Batch, primary: Primary, now: Time, plan: &mut Plan) -> Slots<P> {
        self.forward_followed(batch, now, plan, &mut { primary })
    }

    /// The networks in which a frame's addresses are looked up, if it comes in at this port. None: the port is not in the frame's VLAN.
    /// Two: a VLAN's network and the flat one, see [`Vlan::Flat`].
    pub fn networks(&self, port: PortId, head: &[u8]) -> impl Iterator<Item = u16> + use<P> {
        let joined = self.joined.load();
        policed::networks(&joined.members, port, head).into_iter().flatten()
    }

    /// Whether a neighbour may return frames to the uplink by which they left, because some port reaches only uplinks (VEPA).
    pub fn reflects(&self) -> bool {
        self.joined.load().members.vepa
    }

    /// Whether the private VLAN lets frames of a port reach another one.
    pub fn reaches(&self, from: PortId, to: PortId) -> bool {
        let joined = self.joined.load();
        joined.members.reaches(from, joined.members.rules(from), to)
    }

    /// The edit with which a frame that comes in at a port leaves by another one. `None`: it does not.
    pub fn edit_for(&self, from: PortId, head: &[u8], by: PortId) -> Option<Edit> {
        policed::edit_for(&self.joined.load().members, from, head, by)
    }

    #[inline]
    fn forward_followed<F: Follower>(&self, batch: &Batch, now: Time, plan: &mut Plan, follower: &mut F) -> Slots<P> {
        let slots = self.slots();
        let members = &slots.0.members;
        plan.begin(members.present.len());
        if members.policed {
            match members.vepa {
                true => self.forward_vepa(members, batch, now, plan, follower),
                false => self.forward_policed::<F, false>(members, batch, now, plan, follower),
            }
        } else {
            self.forward_flat(members, batch, now, plan, follower);
        }
        slots
    }

    #[inline(always)]
    fn forward_flat<F: Follower>(
        &self,
        members: &Members,
        batch: &Batch,
        now: Time,
        plan: &mut Plan,
        follower: &mut F,
    ) {
        plan.pairs.begin(&self.addresses);
        let at = At { origin: batch.origin, now };
        let mut done = 0;
        while usize::from(done) < batch.len() {
            if F::KEEPS {
                done = self.forward_kept(members, batch, (done, at), plan, follower);
            }
            if usize::from(done) < batch.len() {
                done = self.forward_trains(members, batch, (done, at), plan, follower);
            }
        }
    }

    /// Forwards a batch's next packets, up to one for which the table must be asked: that one may change what the next ones find. Returns
    /// the number of packets that are done then.
    #[inline(always)]
    fn forward_kept<F: Follower>(
        &self,
        members: &Members,
        batch: &Batch,
        (done, At { origin, now }): (u16, At),
        plan: &mut Plan,
        follower: &mut F,
    ) -> u16 {
        let second = addresses::second(now);
        let (mut last, mut run, mut end) = (Keys::NONE, Run::default(), done);
        for packet in batch.packets().get(done.into()..).unwrap_or_default() {
            let Some(keys) = Keys::in_head(batch.head(packet)) else { break };
            if follower.skips(end).is_some() {
                break;
            }
            if keys != last {
                let pair = Pair::new(keys, origin, &self.addresses);
                let Some(port) = plan.pairs.find(pair, &self.addresses, second) else { break };
                if run.port != Some(port) {
                    if !members.takes(port, origin) {
                        break;
                    }
                    run.end(end, plan);
                    run = Run { port: Some(port), first: end };
                }
                last = keys;
            }
            end += 1;
        }
        run.end(end, plan);
        end
    }

    /// Forwards a batch's next packets, up to one whose pair is kept. Returns the number of packets that are done then.
    #[inline(never)]
    fn forward_trains<F: Follower>(
        &self,
        members: &Members,
        batch: &Batch,
        (done, at): (u16, At),
        plan: &mut Plan,
        follower: &mut F,
    ) -> u16 {
        // Frames come in trains: the first frame's decision is valid for the next ones. A packet that no table decides on is one without keys.
        let mut trains = ArrayVec::<Train, PACKETS>::new();
        let (mut last, second, mut end) = (Keys::NONE, addresses::second(at.now), batch.len() as u16);
        let rest = batch.packets().get(done.into()..).unwrap_or_default();
        for (packet, first) in rest.iter().zip(done..) {
            let keys = match Keys::in_head(batch.head(packet)) {
                Some(keys) if follower.skips(first).is_none() => keys,
                _ => {
                    last = Keys::NONE;
                    let _pushed = trains.try_push(Train { keys: last, line: 0, first, place: Place::None });
                    continue;
                }
            };
            if keys == last {
                continue;
            }
            last = keys;
            let pair = Pair::new(keys, at.origin, &self.addresses);
            let place = if F::KEEPS { plan.pairs.place(pair, second) } else { Place::None };
            // The first train's pair is kept, and no longer valid, or its receiver takes nothing.
            if place == Place::Kept && first != done {
                end = first;
                break;
            }
            // A first pass prefetches the table's lines, so that the next pass finds them in the cache.
            self.addresses.prefetch(keys.target);
            self.addresses.prefetch(keys.source);
            // Never full: it has room for a batch.
            let _pushed = trains.try_push(Train { keys, line: pair.line(), first, place });
        }
        for (train, next) in trains.iter().zip(1..) {
            let end = trains.get(next).map_or(end, |next| next.first);
            let verdict = match train.keys {
                Keys::NONE => Verdict::Drop(follower.skips(train.first).unwrap_or(Reason::TooShort)),
                _ => self.decide(members, at, train, plan, follower),
            };
            verdict.apply(members, at.origin, train.first..end, plan, follower);
        }
        end
    }

    #[inline(always)]
    fn decide<F: Follower>(
        &self,
        members: &Members,
        at: At,
        train: &Train,
        plan: &mut Plan,
        follower: &mut F,
    ) -> Verdict {
        let keys = train.keys;
        let sought = self.learn(keys, at, train.place, follower);
        if keys.target.is_multicast() {
            return match group(keys.target.address(), self.relays, follower) {
                Ok(kind) => Verdict::Flood(kind),
                Err(reason) => Verdict::Drop(reason),
            };
        }
        match self.find(sought, train.line, at, plan, follower) {
            Some(port) if port == at.origin => Verdict::Drop(Reason::SamePort),
            Some(port) if members.takes(port, at.origin) => Verdict::To(port),
            _ => Verdict::Flood(Reason::UnknownStorm),
        }
    }

    /// The port at which a frame's destination is known, if the table need not be asked. Its source is learned already.
    #[inline(always)]
    fn kept(&self, pair: Pair, at: At, plan: &Plan) -> Option<PortId> {
        plan.pairs.find(pair, &self.addresses, addresses::second(at.now))
    }

    /// Learns a frame's source.
    #[inline(always)]
    fn learn<F: Follower>(&self, keys: Keys, At { origin, now }: At, place: Place, follower: &mut F) -> Sought<'_> {
        let mut sought = self.seek(keys);
        if keys.source.is_multicast() {
            follower.step(|| Step::LearnsNothing(keys.source.address()));
            return sought;
        }
        let origin = follower.place(keys.source, origin);
        follower.step(|| {
            let before = self.addresses.find_key(keys.source, now);
            Step::Learns { address: keys.source.address(), at: origin, before }
        });
        if !F::DRY {
            let source = self.addresses.hashed(keys.source);
            if place == Place::None {
                self.addresses.learn_key(source, origin, now);
            } else {
                let stamp = self.addresses.stamp(sought.target, source);
                sought.learned = self.addresses.learn_key(source, origin, now).map(|held| (stamp, held));
            }
        }
        sought
    }

    /// A frame whose source is not learned.
    #[inline(always)]
    fn seek(&self, keys: Keys) -> Sought<'_> {
        Sought { keys, target: self.addresses.hashed(keys.target), learned: None }
    }

    /// The port at which a frame's destination is known. It is kept if the table held the frame's source already.
    #[inline(always)]
    fn find<F: Follower>(
        &self,
        Sought { keys, target, learned }: Sought<'_>,
        line: u16,
        At { origin, now }: At,
        plan: &mut Plan,
        follower: &mut F,
    ) -> Option<PortId> {
        // In a dry run the source was not learned by the previous step.
        if F::DRY && keys.target == keys.source {
            let port = follower.place(keys.source, origin);
            follower.step(|| Step::Found(port));
            return Some(port);
        }
        let target = self.addresses.find_held(target, now)?;
        let port = target.port();
        follower.step(|| Step::Found(port));
        let (pair, second) = (Pair::on_line(keys, origin, line), addresses::second(now));
        if let Some((stamp, source)) = learned
            && source.keep()
            && target.keep()
        {
            plan.pairs.keep(pair, stamp, second, port);
        }
        Some(port)
    }
}

/// The storm-control reason of a flooded group frame; or the reason why it is dropped.
#[inline(always)]
fn group(target: Mac, relays: bool, follower: &mut impl Follower) -> Result<Reason, Reason> {
    if is_reserved(target) && !relays {
        follower.step(|| Step::Reserved(target));
        return Err(Reason::Policy);
    }
    Ok(if target == Mac::BROADCAST { Reason::BroadcastStorm } else { Reason::MulticastStorm })
}

/// 01:80:c2:00:00:00 to 0f are reserved for the next bridge and are not forwarded: IEEE 802.1Q-2018, table 8-1.
fn is_reserved(Mac(bytes): Mac) -> bool {
    bytes[..5] == [0x01, 0x80, 0xc2, 0, 0] && bytes[5] < 0x10
}

#[derive(Clone, Copy)]
enum Verdict {
    To(PortId),
    /// The reason that storm control would give for a refusal.
    Flood(Reason),
    Drop(Reason),
}

impl Verdict {
    #[inline(always)]
    fn apply<F: Follower>(
        self,
        members: &Members,
        origin: PortId,
        packets: Range<u16>,
        plan: &mut Plan,
        follower: &mut F,
    ) {
        match self {
            Self::To(port) => {
                follower.step(|| Step::Receiver(port, Ok(Edit::Keep)));
                plan.add(port, packets);
            }
            Self::Flood(kind) => {
                follower.step(|| Step::Floods { kind, goes: true });
                let mut reached = false;
                for &port in members.list.iter().filter(|&&port| port != origin) {
                    follower.step(|| Step::Receiver(port, Ok(Edit::Keep)));
                    plan.add(port, packets.clone());
                    reached = true;
                }
                if !reached {
                    packets.for_each(|packet| plan.drop(packet, Reason::NoReceiver));
                }
            }
            Self::Drop(reason) => packets.for_each(|packet| plan.drop(packet, reason)),
        }
    }
}

/// A frame whose source is learned, or need not be.
struct Sought<'a> {
    keys: Keys,
    target: Hashed,
    /// The table's entry for its source, with its earlier stamp. `None`: something changed.
    learned: Option<(Stamp, Held<'a>)>,
}

/// The port and the time at which frames come in.
#[derive(Clone, Copy)]
struct At {
    origin: PortId,
    now: Time,
}

/// Consecutive packets for one port, which are added to its plan together.
#[derive(Default)]
struct Run {
    port: Option<PortId>,
    first: u16,
}

impl Run {
    #[inline(always)]
    fn end(&mut self, end: u16, plan: &mut Plan) {
        if let Some(port) = self.port.take() {
            plan.add(port, self.first..end);
        }
    }
}

/// Consecutive packets with the same addresses, up to the next train.
struct Train {
    keys: Keys,
    /// The line of the cache where the pair may be.
    line: u16,
    first: u16,
    /// Its place there.
    place: Place,
}
