//! Publishes which members of a team are used, and changes that without reordering a flow.
//!
//! The members that distribute are an ordered set, the *spread*: a frame with hash `h` leaves by member `h mod n` of it. If that member
//! is not usable any more, the frame takes one of those that are; flows of the others stay where they are. The spread itself changes
//! only when no frame waits at a member that a flow could leave: at once if nobody else sends, else when all have reported an empty backlog,
//! or after [`SETTLE_NS`]. Frames that wait even then are dropped, and counted, as they would otherwise follow their successors.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nicety_adapter::{PortId, Time};
use nicety_switch::PORTS;

use super::MEMBERS_MAX;
use super::lacp::Lacp;
use super::mode::Mode;
use super::queues::Queues;
use super::rule::{Links, Loads, Moved, Rule};
use super::saved::SavedSteering;
use super::spread::Spread;
use super::standby::Standby;
use crate::agent::{Agent, LinkState};
use crate::hash::Hash;
use crate::inward::InwardSlot;

/// Longest time for which a change waits for empty backlogs.
const SETTLE_NS: u64 = 100_000_000;
/// Our own announcements may come back for this time.
const ANNOUNCED_NS: u64 = 2_000_000_000;
/// No member's place.
const NO_MEMBER: usize = usize::MAX;

/// The state of a member, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// Frames that come in are taken.
    pub collects: bool,
    /// Frames leave by it.
    pub distributes: bool,
    /// A few words: `active`, `stands by`, `no carrier`.
    pub words: String,
}

/// A choice among the members at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    spread: u32,
    usable: u32,
    hash: Hash,
}

/// A set of members takes this many bits of the word.
const SET_BITS: u32 = MEMBERS_MAX as u32;
const SET: u64 = (1 << SET_BITS) - 1;

impl Choice {
    fn of(word: u64) -> Self {
        let set = |word: u64| (word & SET) as u32;
        Self { spread: set(word >> SET_BITS), usable: set(word), hash: Hash::numbered((word >> (2 * SET_BITS)) as u8) }
    }

    fn word(self) -> u64 {
        let Self { spread, usable, hash } = self;
        u64::from(hash as u8) << (2 * SET_BITS) | u64::from(spread) << SET_BITS | u64::from(usable)
    }

    /// The value that chooses the member.
    #[inline]
    pub fn hash(self) -> Hash {
        self.hash
    }

    /// The member for a hash; `None` if none is usable.
    #[inline]
    pub fn member(self, hash: u32) -> Option<usize> {
        let kept = nth(self.spread, hash).filter(|member| self.usable >> member & 1 != 0);
        kept.or_else(|| nth(self.usable, hash)).map(|member| member as usize)
    }
}

/// The number of the set bit `hash` modulo their count.
#[inline]
fn nth(mut set: u32, hash: u32) -> Option<u32> {
    let skip = hash.checked_rem(set.count_ones())?;
    for _ in 0..skip {
        set &= set.wrapping_sub(1);
    }
    Some(set.trailing_zeros())
}

#[derive(Debug)]
struct State {
    rule: Box<dyn Rule>,
    /// The rule's last decision.
    links: Links,
    spread: u32,
    /// The hash in use, and the one that is wanted.
    hash: Hash,
    wanted_hash: Hash,
    /// Members whose link is up, and the bytes that they have sent and taken.
    up: u32,
    bytes: [[u64; 2]; MEMBERS_MAX],
    /// Members that have told their bytes since the last measurement.
    told_bytes: u32,
    /// A port that moves with the next change, and one that has moved, to be told.
    moves: Option<Moved>,
    told: Option<Moved>,
    /// A change of the spread or the hash is due: its latest time, and the members that have not reported an empty backlog.
    settling: Option<(Time, u32)>,
    /// Frames that found no usable member.
    lost: u64,
    /// The turns that members need, as they know them.
    wakes: [Option<Time>; MEMBERS_MAX],
}

impl State {
    /// The time of the next turn that a member needs, for the rule or to tell what it has carried.
    fn wake(&self, member: usize) -> Option<Time> {
        let has_to_tell = (self.up & !self.told_bytes).checked_shr(member as u32).unwrap_or_default() & 1 != 0;
        let measures = self.rule.measured_at().filter(|_| has_to_tell);
        self.rule.wake(member).into_iter().chain(measures).min()
    }
}

/// See the module's page.
#[derive(Debug)]
pub struct Steering {
    /// A [`Choice`].
    choice: AtomicU64,
    collecting: AtomicU32,
    /// Of these, members that drop what waited before they began to collect; and, in the upper half, to take flooded frames.
    draining: AtomicU32,
    /// Number of changes of the spread.
    epoch: AtomicU32,
    /// The place of the member that has taken over and is to announce that, plus 1.
    moved: AtomicU32,
    /// Members by which flooded frames are taken; all bits: no duplicates are refused.
    floods: AtomicU32,
    /// The time of the last change.
    changed_at: AtomicU64,
    /// By port: the place of the member to which it has moved, plus 1; and the bytes that it has sent.
    moved_to: Box<[AtomicU8]>,
    sent: Box<[AtomicU64]>,
    /// Whether somebody is to be told of a port that has moved.
    tells: AtomicBool,
    /// The control of what comes in by any member, if they are parts of one link.
    inward: Arc<InwardSlot>,
    /// Members that need a turn, and those whose next turn must report to the rule.
    stirred: AtomicU64,
    due: AtomicU64,
    state: Mutex<State>,
}

/// A rule for a mode, whose members are all down.
fn rule_of(mode: &Mode) -> Box<dyn Rule> {
    match mode {
        Mode::Standby { order, fail_back } => Box::new(Standby::ordered(order, *fail_back)),
        Mode::Lacp(settings) => Box::new(Lacp::new(settings, MEMBERS_MAX)),
        Mode::Port | Mode::Source => Box::new(Spread::new()),
        Mode::Load(capacities) => Box::new(Spread::by_load(capacities)),
        Mode::Queues { one_sends } => Box::new(Queues::new(*one_sends)),
    }
}

impl Steering {
    /// The steering of a team in this mode, whose members are all down. `hash` counts in modes that [leave it open](Mode::hash).
    pub fn in_mode(mode: &Mode, hash: Hash) -> Self {
        Self::new(rule_of(mode), mode.hash().unwrap_or(hash))
    }

    /// The steering of a team. No member is used until its link is reported to be up.
    pub fn new(rule: Box<dyn Rule>, hash: Hash) -> Self {
        let state = State {
            rule,
            links: Links::default(),
            spread: 0,
            hash,
            wanted_hash: hash,
            up: 0,
            bytes: [[0; 2]; MEMBERS_MAX],
            told_bytes: 0,
            moves: None,
            told: None,
            settling: None,
            lost: 0,
            wakes: [None; MEMBERS_MAX],
        };
        Self {
            choice: AtomicU64::new(0),
            collecting: AtomicU32::new(0),
            draining: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            moved: AtomicU32::new(0),
            floods: AtomicU32::new(u32::MAX),
            changed_at: AtomicU64::new(0),
            moved_to: (0..PORTS).map(|_| AtomicU8::new(0)).collect(),
            sent: (0..PORTS).map(|_| AtomicU64::new(0)).collect(),
            tells: AtomicBool::new(false),
            inward: Arc::default(),
            stirred: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn choice(&self) -> Choice {
        Choice::of(self.choice.load(Ordering::Acquire))
    }

    /// Whether flows of one port leave by several members now.
    pub(crate) fn spreads_a_port(&self) -> bool {
        self.only().is_none() && self.choice().hash().spreads_a_port()
    }

    /// The member for a hash of a frame from a port.
    #[inline]
    pub(crate) fn member(&self, choice: Choice, hash: u32, port: PortId) -> Option<usize> {
        self.moved(choice, port).or_else(|| choice.member(hash))
    }

    /// The member to which a port has moved.
    fn moved(&self, choice: Choice, port: PortId) -> Option<usize> {
        if choice.hash != Hash::Moved {
            return None;
        }
        let to = self.moved_to.get(usize::from(port.0))?.load(Ordering::Acquire).checked_sub(1)?;
        (choice.usable >> to & 1 != 0).then_some(to.into())
    }

    /// A port has sent so many bytes through the team.
    pub(crate) fn note_sent(&self, port: PortId, bytes: u64) {
        if let Some(sent) = self.sent.get(usize::from(port.0)) {
            sent.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The members by which flooded frames are taken, if each comes in by all.
    #[inline]
    pub(crate) fn floods(&self) -> Option<u32> {
        let floods = self.floods.load(Ordering::Acquire);
        (floods != u32::MAX).then(|| floods & !(self.draining.load(Ordering::Acquire) >> MEMBERS_MAX))
    }

    /// Whether frames that wait at a member may be duplicates of what another one has taken or sent: it has just taken over.
    #[inline]
    pub(crate) fn drains(&self, member: usize) -> bool {
        self.draining.load(Ordering::Acquire) & Self::drained(member) != 0
    }

    /// Notes that the frames that waited at a member are gone.
    pub(crate) fn note_drained(&self, member: usize) {
        self.draining.fetch_and(!Self::drained(member), Ordering::AcqRel);
    }

    fn drained(member: usize) -> u32 {
        1 << member | 1 << (member + MEMBERS_MAX)
    }

    /// Publishes the members that collect, and those that take flooded frames. Those that begin to drop first what waits.
    fn collect(&self, collecting: u32, floods: Option<u32>) {
        let began = collecting & !self.collecting.load(Ordering::Acquire);
        let floods_before = self.floods.load(Ordering::Acquire);
        let hears = if floods_before == u32::MAX { 0 } else { floods.unwrap_or(0) & !floods_before };
        if began | hears != 0 {
            self.draining.fetch_or(began | hears << MEMBERS_MAX, Ordering::AcqRel);
            self.due.fetch_or(u64::from(began | hears), Ordering::AcqRel);
            self.stirred.fetch_or(u64::from(began | hears), Ordering::AcqRel);
        }
        self.floods.store(floods.unwrap_or(u32::MAX), Ordering::Release);
        self.collecting.store(collecting, Ordering::Release);
    }

    /// Whether this side's stations were announced a moment ago: then it is no sign of life if they are heard beyond the team.
    pub(crate) fn has_announced(&self, now: Time) -> bool {
        now.0.saturating_sub(self.changed_at.load(Ordering::Acquire)) < ANNOUNCED_NS
    }

    /// A port that has moved, once.
    pub(crate) fn take_told(&self) -> Option<Moved> {
        if !self.tells.load(Ordering::Relaxed) {
            return None;
        }
        self.tells.store(false, Ordering::Relaxed);
        self.state().told.take()
    }

    /// The member for every frame, if there is no need for a hash; a number that no member has if there is no usable member.
    #[inline]
    pub(crate) fn only(&self) -> Option<usize> {
        let choice = self.choice();
        match choice.usable.count_ones() {
            0 => Some(usize::MAX),
            1 => Some(choice.usable.trailing_zeros() as usize),
            _ if choice.spread.count_ones() == 1 => choice.member(0),
            _ => None,
        }
    }

    /// Whether a member may send.
    pub(crate) fn is_usable(&self, member: usize) -> bool {
        self.choice().usable >> member & 1 != 0
    }

    /// Whether frames that come in on a member are taken.
    pub(crate) fn collects(&self, member: usize) -> bool {
        let is_refused = !self.collecting.load(Ordering::Acquire) | self.draining.load(Ordering::Acquire);
        is_refused >> member & 1 == 0
    }

    /// Changes when frames that wait at a member may have become older than others of their flow.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Frames found no usable member.
    #[cold]
    pub(crate) fn lost(&self, frames: usize) {
        self.state().lost += frames as u64;
    }

    /// Frames that found no usable member so far.
    pub fn lost_frames(&self) -> u64 {
        self.state().lost
    }

    /// The member that is to announce that it has taken over.
    pub(crate) fn take_moved(&self) -> Option<usize> {
        if self.moved.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.moved.swap(0, Ordering::AcqRel).checked_sub(1).map(|place| place as usize)
    }

    pub(crate) fn take_stirred(&self) -> u64 {
        if self.stirred.load(Ordering::Relaxed) == 0 { 0 } else { self.stirred.swap(0, Ordering::AcqRel) }
    }

    /// The states of its first members.
    pub fn states(&self, members: usize, now: Time) -> Vec<MemberState> {
        let state = self.state();
        let (collecting, choice) = (self.collecting.load(Ordering::Acquire), self.choice());
        let of = |member: usize| MemberState {
            collects: collecting >> member & 1 != 0,
            distributes: (choice.usable & choice.spread) >> member & 1 != 0,
            words: state.rule.words(member, now),
        };
        (0..members).map(of).collect()
    }

    /// A member reports its link.
    fn report(&self, member: usize, link: LinkState, now: Time) {
        let mut state = self.state();
        let bit = 1 << member;
        state.up = if link.is_up { state.up | bit } else { state.up & !bit };
        if let Some(bytes) = state.bytes.get_mut(member) {
            *bytes = link.bytes;
        }
        if state.rule.measured_at().is_some_and(|at| at <= now) {
            state.told_bytes |= bit;
        }
        state.rule.link(member, link.is_up, now);
        state.rule.tick(now);
        self.measure(&mut state, now);
        if !link.has_backlog
            && let Some((_, busy)) = &mut state.settling
        {
            *busy &= !(1 << member);
        }
        self.publish(&mut state, member, now);
    }

    /// Tells the rule what was carried, if it wants to know.
    fn measure(&self, state: &mut State, now: Time) {
        if state.rule.measured_at().is_none_or(|at| at > now) || state.up & !state.told_bytes != 0 {
            return;
        }
        state.told_bytes = 0;
        let choice = self.choice();
        let place = |port: usize| self.member(choice, port as u32, PortId(port as u16));
        state.rule.loads(&Loads { links: &state.bytes, ports: &self.sent, place: &place }, now);
        if state.moves.is_none() {
            state.moves = state.rule.take_moved();
        }
    }

    /// The control of what comes in by any member, if they are parts of one link.
    pub(crate) fn inward(&self) -> Option<Arc<InwardSlot>> {
        self.state().rule.is_one_link().then(|| Arc::clone(&self.inward))
    }

    /// A member has left: its link is down.
    pub(crate) fn leave(&self, member: usize, now: Time) {
        self.report(member, LinkState { is_up: false, has_backlog: false, bytes: [0; 2] }, now);
        if self.inward.is_there() {
            // It may have been the one with a turn for what has come in.
            self.stir();
        }
    }

    /// Uses members in another way from now on: settings of the same rule are changed, another rule takes the place of the present one.
    /// A flow that moves moves as it does when links change. The members must [get turns](crate::Group::stir).
    pub(crate) fn change(&self, mode: &Mode, hash: Hash, now: Time) {
        let mut state = self.state();
        if !state.rule.set(mode, now) {
            let mut rule = rule_of(mode);
            (0..MEMBERS_MAX).for_each(|member| rule.link(member, state.up >> member & 1 != 0, now));
            state.rule = rule;
        }
        state.rule.tick(now);
        state.wanted_hash = hash;
        self.publish(&mut state, NO_MEMBER, now);
        self.stir();
    }

    /// Its state, for another process. Call it while no member has a turn.
    pub fn save(&self) -> SavedSteering {
        let state = self.state();
        let moved = |(port, to): (u16, &AtomicU8)| Some((port, to.load(Ordering::Acquire).checked_sub(1)?));
        SavedSteering {
            rule: state.rule.save(),
            spread: state.spread,
            hash: state.hash as u8,
            up: state.up | (self.draining.load(Ordering::Acquire) & SET as u32) << MEMBERS_MAX,
            lost: state.lost,
            settling: state.settling,
            changed_at: self.changed_at.load(Ordering::Acquire),
            moved_to: (0..).zip(&self.moved_to[..]).filter_map(moved).collect(),
        }
    }

    /// Restores the state of a steering with the same mode and members, before the members have a turn here. Without a saved rule the rule
    /// begins anew.
    pub fn restore(&self, saved: &SavedSteering, now: Time) {
        let SavedSteering { rule, spread, hash, up, lost, settling, changed_at, moved_to } = saved;
        let mut state = self.state();
        state.lost = *lost;
        if !rule.as_ref().is_some_and(|rule| state.rule.restore(rule)) {
            return;
        }
        (state.spread, state.hash, state.settling) = (*spread, Hash::numbered(*hash), *settling);
        state.up = *up & SET as u32;
        state.links = state.rule.links();
        for (port, member) in moved_to {
            if let Some(to) = self.moved_to.get(usize::from(*port))
                && usize::from(*member) < MEMBERS_MAX
            {
                to.store(member + 1, Ordering::Release);
            }
        }
        self.changed_at.store(*changed_at, Ordering::Release);
        self.publish(&mut state, NO_MEMBER, now);
        // Members that took frames go on with what waits.
        self.draining.store(*up >> MEMBERS_MAX, Ordering::Release);
    }

    /// Publishes the rule's decision, in the turn of a member. Others that need an earlier turn than they know get one.
    fn publish(&self, state: &mut State, member: usize, now: Time) {
        let links = state.rule.links();
        let sending = |links: &Links| (links.distributing, links.lingering);
        let is_due = state.spread != links.distributing || state.hash != state.wanted_hash || state.moves.is_some();
        if sending(&links) != sending(&state.links) || (is_due && state.settling.is_none()) {
            let busy = state.spread & (links.distributing | links.lingering);
            // A change while another one settles does not put it off.
            let latest = state.settling.map_or(now.after_ns(SETTLE_NS), |(latest, _)| latest);
            state.settling = is_due.then_some((latest, busy));
            self.stir();
        }
        state.links = links;
        if let Some((latest, busy)) = state.settling
            && (busy == 0 || latest <= now)
        {
            state.settling = None;
            self.changed_at.store(now.0, Ordering::Release);
            if let Some(moved) = state.moves.take() {
                if let Some(to) = self.moved_to.get(usize::from(moved.port.0)) {
                    to.store(moved.to as u8 + 1, Ordering::Release);
                }
                state.told = Some(moved);
                self.tells.store(true, Ordering::Relaxed);
            }
            (state.spread, state.hash) = (state.links.distributing, state.wanted_hash);
            if state.rule.announces() && state.spread != 0 {
                self.moved.store(state.spread.trailing_zeros() + 1, Ordering::Release);
            }
            state.rule.settled(now);
            state.links = state.rule.links();
            if !state.rule.is_one_link() {
                self.epoch.fetch_add(1, Ordering::AcqRel);
            }
            self.stir();
        }
        let Links { collecting, distributing, lingering } = state.links;
        let choice = Choice { spread: state.spread, usable: distributing | lingering, hash: state.hash };
        if state.rule.is_one_link() {
            // No copies come in by several.
            self.collecting.store(collecting, Ordering::Release);
        } else {
            self.collect(collecting, state.rule.floods());
        }
        self.choice.store(choice.word(), Ordering::Release);
        let wakes: [Option<Time>; MEMBERS_MAX] = std::array::from_fn(|other| state.wake(other));
        for (other, known) in state.wakes.iter_mut().enumerate() {
            let wake = wakes[other];
            let is_earlier = wake.is_some_and(|wake| known.is_none_or(|known| wake < known));
            if is_earlier && other != member {
                self.due.fetch_or(1 << other, Ordering::AcqRel);
                self.stirred.fetch_or(1 << other, Ordering::AcqRel);
            }
            *known = wake;
        }
    }

    /// All members get a turn, and report in it.
    fn stir(&self) {
        self.due.store(u64::MAX, Ordering::Release);
        self.stirred.store(u64::MAX, Ordering::Release);
    }
}

/// A member's agent: tells the rule of its link, and lends it its voice.
pub(crate) struct MemberAgent {
    steering: Arc<Steering>,
    member: usize,
    link: Option<LinkState>,
    /// Time of the next report, as the rule wanted it at the last one.
    wake: Option<Time>,
}

impl MemberAgent {
    pub fn new(steering: Arc<Steering>, member: usize) -> Self {
        Self { steering, member, link: None, wake: Some(Time::ZERO) }
    }

    fn note_wake(&mut self, state: &State) {
        let settling = state.settling.map(|(latest, _)| latest);
        self.wake = state.wake(self.member).into_iter().chain(settling).min();
    }
}

impl Agent for MemberAgent {
    fn link(&mut self, link: LinkState, now: Time) {
        let bit = 1 << self.member;
        let is_due = self.steering.due.load(Ordering::Acquire) & bit != 0;
        let is_same = |before: &LinkState| (before.is_up, before.has_backlog) == (link.is_up, link.has_backlog);
        if self.link.as_ref().is_some_and(is_same) && !is_due && self.wake.is_none_or(|at| at > now) {
            return;
        }
        self.steering.due.fetch_and(!bit, Ordering::AcqRel);
        self.link = Some(link);
        self.steering.report(self.member, link, now);
        self.note_wake(&self.steering.clone().state());
    }

    fn hear(&mut self, frame: &[u8], now: Time) -> bool {
        let steering = self.steering.clone();
        let mut state = steering.state();
        let is_ours = state.rule.hear(self.member, frame, now);
        state.rule.tick(now);
        steering.publish(&mut state, self.member, now);
        self.note_wake(&state);
        is_ours
    }

    fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        if self.wake.is_none_or(|at| at > now) {
            return;
        }
        let steering = self.steering.clone();
        let mut state = steering.state();
        state.rule.speak(self.member, now, send);
        self.note_wake(&state);
    }

    fn wake(&self) -> Option<Time> {
        self.wake
    }
}
