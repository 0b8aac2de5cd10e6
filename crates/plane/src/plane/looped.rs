//! Two uplinks that lead into one network: what leaves by one comes in by the other, and a single broadcast goes round without end.
//!
//! The guard works while two or more [guarded](Plane::guard_uplink) uplinks or teams are there; otherwise a frame pays nothing for it. It
//! remembers group frames, and others that were flooded, for [`WINDOW_NS`]: by which uplinks each came in, and by which it left. A frame
//! that had left by another uplink is one of these:
//!
//! - It never came in: a guest sent it, and it comes back. It is dropped as `looped`.
//! - It came in by an uplink before: it went round, or a station repeats it (ARP, VRRP), or stations on both sides send the same. It is
//!   forwarded; but of frames that came in by both uplinks only [`DOUBTS_MAX`] until the suspicion is settled.
//!
//! Each raises a suspicion, and that alone blocks nobody. The guard sends a *probe* by the other uplink, as often as the suspicion grows: a
//! broadcast with a number that only this process knows. If the probe comes in here, the two lead into one network, and the newer one is
//! blocked, unless it is [spared](Plane::spare_uplink). If none comes, they lead into different networks, and frames are forwarded as before.
//! A probe has the form of a reply of the Configuration Testing Protocol (Ethernet 2.0, 1982, section 8), which stations ignore that have
//! not asked.
//!
//! A loop may lead through another such switch, which probes, too. If both blocked an uplink, one of them would be cut off. So a guard that
//! hears another one's probe waits for [`HOLD_NS`], unless it had sent one before and its own name is the lower one.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock};

use arc_swap::ArcSwap;
use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Edit, News, Packet, PortId, Reason, Time};
use nicety_frame::vlan::{self, Tag};
use nicety_switch::{Plan, Policy};

use super::{Plane, Slot};
use crate::port::Port;
use crate::team::numbers;

/// A frame is remembered for this long after it was last seen.
const WINDOW_NS: u64 = 250_000_000;
/// Frames that are remembered. Another frame may take a place earlier: then less is known, and less is dropped.
const FRAMES: usize = 1024;
/// Uplinks that are told apart. Others are not guarded.
const UPLINKS_MAX: usize = u64::BITS as usize;
/// Bytes of a frame that tell it from others, without its tags.
const COMPARED: usize = 256;
/// The least length of a frame without tags: adapters pad to it (IEEE 802.3, 4.2.3.3).
const MIN: usize = 60;

/// Pairs of uplinks that are suspected at once.
const SUSPECTS_MAX: usize = 16;
/// A suspicion without a sign for this long is over.
const CALM_NS: u64 = 1_000_000_000;
/// The least time between two probes.
const PROBE_NS: u64 = 10_000_000;
/// Each probe without an answer needs twice as many signs as the one before, at most so many.
const SIGNS_MAX: u32 = 64;
/// Frames that came in by both uplinks, and that are forwarded before the suspicion is settled.
const DOUBTS_MAX: u32 = 16;
/// After so many probes, and this time, without an answer the two lead into different networks.
const PROBES: u32 = 4;
const ANSWER_NS: u64 = 100_000_000;

/// A guard waits so long for another one's result, and so long in a row at most: whoever sends forged probes without end delays it no longer.
const HOLD_NS: u64 = 25_000_000;
const HOLDS_NS: u64 = 75_000_000;

/// Type of the Configuration Testing Protocol, and its function "reply", which the message's second field has (little-endian).
const TEST_PROTOCOL: u16 = 0x9000;
const REPLY: u16 = 1;
/// Bytes before a probe's number, behind its type: skip count, function, receipt number.
const BEFORE_NUMBER: usize = 6;

/// An uplink or a team that was blocked because it leads into the network of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The uplink or team that is blocked. It is the newer one, unless that is spared.
    pub blocked: PortId,
    /// The name of the blocked uplink or team.
    pub name: String,
    /// The name of the one that goes on.
    pub other: String,
    /// Words for the uplink that goes on, if it is [spared](Plane::spare_uplink).
    pub spared: Option<&'static str>,
}

/// An uplink or a team that leads into a network. In the order in which they came.
#[derive(Clone, Debug)]
struct Guarded {
    id: PortId,
    name: String,
    /// Its place in masks.
    place: usize,
    /// What it is, if it is spared.
    spared: Option<&'static str>,
}

/// Whether `earlier` is less than this long ago.
fn is_within(earlier: Time, ns: u64, now: Time) -> bool {
    now < earlier.after_ns(ns)
}

/// A frame that was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    key: u64,
    at: Time,
    /// The uplinks by which it came in, and by which it left: a bit each.
    came: u64,
    left: u64,
    /// The tag with which it last left.
    tag: Option<Tag>,
    /// It left before it came in: a guest sent it first.
    is_own: bool,
}

/// A suspected loop: frames that leave by `from` may come in by `to`.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    from: PortId,
    to: PortId,
    /// The number of the probes.
    number: u64,
    /// Signs since the last probe, and those that the next one needs.
    signs: u32,
    needed: u32,
    probes: u32,
    /// Frames that came in by both uplinks.
    doubts: u32,
    since: Time,
    sent: Time,
    last: Time,
}

#[derive(Debug, Default)]
struct Memory {
    /// Empty while there is nothing to guard.
    frames: Vec<Seen>,
    suspicions: ArrayVec<Suspicion, SUSPECTS_MAX>,
    loops: Vec<Loop>,
    numbers: u64,
    /// Until then a frame for one station may be one that was flooded.
    unicast_until: Time,
    /// The first and the last probe of another guard that counts.
    heard: Option<(Time, Time)>,
}

/// A suspicion after a sign.
#[derive(Default)]
struct Signs {
    /// The number of a probe that is due.
    probe: Option<u64>,
    /// Frames so far that came in by both uplinks, if this is one.
    doubts: u32,
    /// No probe came back: the two lead into different networks.
    is_refuted: bool,
}

/// The state of the guard.
#[derive(Debug)]
pub(crate) struct LoopGuard {
    uplinks: ArcSwap<Vec<Guarded>>,
    seed: u64,
    memory: Mutex<Memory>,
    caller: Caller,
}

/// Told when an uplink was blocked.
#[derive(Default)]
struct Caller(OnceLock<Box<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("is_set", &self.0.get().is_some()).finish()
    }
}

/// A probe to send.
struct Probe {
    by: PortId,
    number: u64,
    tag: Option<Tag>,
}

/// Signs of loops in a batch that came in.
#[derive(Default)]
struct Found {
    looped: u64,
    /// Probes that came in here.
    taken: u64,
    probes: ArrayVec<Probe, SUSPECTS_MAX>,
    /// The uplinks by which probes had left that came in here.
    proven: ArrayVec<PortId, SUSPECTS_MAX>,
}

impl Found {
    /// A probe came in by `to` that had left by `from`, if it proves something.
    fn probe(&mut self, index: u32, from: Option<PortId>, to: PortId) {
        self.taken |= 1u64.wrapping_shl(index);
        if let Some(from) = from.filter(|from| *from != to && !self.proven.contains(from)) {
            // There is room: each is of another suspicion.
            let _pushed = self.proven.try_push(from);
        }
    }
}

fn mix(word: u64) -> u64 {
    // The finalizer of splitmix64.
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// The start of a frame without its tags, padded to the least length, and its length. Transport checksums are left out: one uplink's
/// frames may have them still to be filled in.
fn compared(batch: &Batch, packet: &Packet) -> ([u8; COMPARED], usize) {
    let mut frame = [0; COMPARED];
    let mut len = batch.copy(packet, &mut frame);
    let mut whole = packet.len() as usize;
    while let Some((rest, _)) = vlan::strip(&mut frame, len) {
        frame[rest..len].fill(0);
        whole -= len - rest;
        len = rest;
    }
    let checksum = match (frame[12], frame[13]) {
        (8, 0) => Some((14 + usize::from(frame[14] & 0xf) * 4, frame[23])),
        (0x86, 0xdd) => Some((54, frame[20])),
        _ => None,
    };
    let offset = checksum.and_then(|(at, protocol)| match protocol {
        nicety_frame::ipv4::protocol::TCP => Some(at + 16),
        nicety_frame::ipv4::protocol::UDP => Some(at + 6),
        _ => None,
    });
    if let Some(field) = offset.and_then(|at| frame.get_mut(at..at + 2)) {
        field.fill(0);
    }
    (frame, whole.max(MIN))
}

/// A probe's number, and the name of the guard that has sent it, if a frame has the form of one.
fn number_in(head: &[u8]) -> Option<[u64; 2]> {
    let at = if vlan::outer(head).is_some() { 16 } else { 12 };
    let is_probe = head.starts_with(&[0xff; 6]) && head.get(at..at + 2)? == TEST_PROTOCOL.to_be_bytes();
    let fields: &[u8; 16] = head.get(at + 2 + BEFORE_NUMBER..)?.first_chunk()?;
    let [number, name] = [0, 8].map(|at| fields[at..].first_chunk().map_or(0, |field| u64::from_be_bytes(*field)));
    is_probe.then_some([number, name])
}

/// The name of the guard with this seed, in its probes.
fn name(seed: u64) -> u64 {
    mix(seed ^ 0x6e61_6d65)
}

fn probe(probe: &Probe, seed: u64) -> Vec<u8> {
    let [a, b, c, d, ..] = mix(seed ^ u64::from(probe.by.0)).to_be_bytes();
    let mut frame = [&[0xff; 6][..], &[2, 0x4e, a, b, c, d]].concat();
    if let Some(Tag { tpid, tci }) = probe.tag {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.0.to_be_bytes());
    }
    frame.extend(TEST_PROTOCOL.to_be_bytes());
    let fields = [0, REPLY, 0];
    fields.iter().for_each(|field| frame.extend(field.to_le_bytes()));
    frame.extend(probe.number.to_be_bytes());
    frame.extend(name(seed).to_be_bytes());
    frame.resize(frame.len().max(MIN), 0);
    frame
}

impl Memory {
    /// The entry of a frame: when and by which uplinks it was seen lately.
    fn of(&self, key: u64, now: Time) -> Seen {
        let place = key as usize % FRAMES;
        let known = self.frames.get(place).filter(|seen| seen.key == key && is_within(seen.at, WINDOW_NS, now));
        known.copied().unwrap_or(Seen { key, ..Seen::default() })
    }

    fn note(&mut self, key: u64, came: u64, left: u64, tag: Option<Tag>, now: Time) {
        let before = self.of(key, now);
        let tag = if left == 0 { before.tag } else { tag };
        if let Some(seen) = self.frames.get_mut(key as usize % FRAMES) {
            *seen = Seen { at: now, came: before.came | came, left: before.left | left, tag, ..before };
        }
    }

    /// Notes whether a guest sent a frame first.
    fn own(&mut self, key: u64, is_own: bool) {
        if let Some(seen) = self.frames.get_mut(key as usize % FRAMES) {
            seen.is_own = is_own;
        }
    }

    /// Another guard's probe came in.
    fn hear(&mut self, name: u64, own: u64, now: Time) {
        let has_sent = self.suspicions.iter().any(|known| known.probes > 0 && is_within(known.sent, HOLD_NS, now));
        if name == own || (name > own && has_sent) {
            return;
        }
        let first = self.heard.filter(|(_, last)| is_within(*last, CALM_NS, now)).map_or(now, |(first, _)| first);
        self.heard = Some((first, now));
    }

    /// Whether it is another guard's turn to block.
    fn is_held(&self, now: Time) -> bool {
        self.heard.is_some_and(|(first, last)| is_within(first, HOLDS_NS, now) && is_within(last, HOLD_NS, now))
    }

    /// A probe with this number has come in. The uplink by which it left; `None`: another guard blocks, and what is suspected is asked anew.
    fn proven(&mut self, number: u64, now: Time) -> Option<Option<PortId>> {
        let is_held = self.is_held(now);
        let known = self.suspicions.iter_mut().find(|known| known.number == number)?;
        if is_held {
            (known.signs, known.needed, known.probes, known.doubts, known.since) = (0, 1, 0, 0, now);
        }
        Some((!is_held).then_some(known.from))
    }

    /// A sign that what leaves by one uplink comes in by another. `by_both`: the frame has come in by both.
    fn suspect(&mut self, (from, to): (PortId, PortId), by_both: bool, seed: u64, now: Time) -> Signs {
        let is_it = |known: &Suspicion| (known.from, known.to) == (from, to);
        let known = self.suspicions.iter().position(is_it);
        if known.is_none() && self.suspicions.is_full() {
            let oldest = self.suspicions.iter().enumerate().min_by_key(|(_, known)| known.last);
            let oldest = oldest.map_or(0, |(index, _)| index);
            self.suspicions.swap_remove(oldest);
        }
        let is_held = self.is_held(now);
        self.numbers = self.numbers.wrapping_add(1);
        let number = mix(seed ^ mix(self.numbers));
        let new =
            Suspicion { from, to, number, signs: 0, needed: 1, probes: 0, doubts: 0, since: now, sent: now, last: now };
        let index = known.unwrap_or_else(|| {
            // There is room for it.
            let _pushed = self.suspicions.try_push(new);
            self.suspicions.len() - 1
        });
        let Some(known) = self.suspicions.get_mut(index) else { return Signs::default() };
        if !is_within(known.last, CALM_NS, now) {
            *known = new;
        }
        known.last = now;
        known.signs += 1;
        known.doubts = known.doubts.saturating_add(by_both.into());
        let is_due = known.probes == 0 || !is_within(known.sent, PROBE_NS, now);
        let goes = known.signs >= known.needed && is_due && !is_held;
        if goes {
            (known.signs, known.needed, known.sent) = (0, (known.needed * 2).min(SIGNS_MAX), now);
            known.probes = known.probes.saturating_add(1);
        }
        Signs {
            probe: goes.then_some(known.number),
            doubts: if by_both { known.doubts } else { 0 },
            is_refuted: known.probes >= PROBES && !is_within(known.since, ANSWER_NS, now),
        }
    }
}

impl LoopGuard {
    pub fn new(seed: u64) -> Self {
        Self {
            uplinks: ArcSwap::default(),
            seed: mix(seed ^ 0x6c6f_6f70),
            memory: Mutex::default(),
            caller: Caller::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn key(&self, batch: &Batch, packet: &Packet) -> u64 {
        let (frame, len) = compared(batch, packet);
        let (words, _) = frame.as_chunks::<8>();
        words.iter().fold(mix(self.seed ^ len as u64), |all, word| mix(all ^ u64::from_le_bytes(*word)))
    }

    /// The key of a frame in one network.
    fn in_network(key: u64, network: u16) -> u64 {
        mix(key ^ u64::from(network) << 1 ^ 1)
    }

    /// Changes the list. True if there are uplinks to guard from now on.
    fn change(&self, change: impl Fn(&mut Vec<Guarded>)) -> bool {
        self.uplinks.rcu(|old| {
            let mut new = Vec::clone(old);
            change(&mut new);
            new
        });
        let guards = self.guards();
        let mut memory = self.memory();
        // Another uplink may have the place of one that has left.
        memory.frames = if guards { vec![Seen::default(); FRAMES] } else { Vec::new() };
        memory.suspicions.clear();
        guards
    }

    fn guards(&self) -> bool {
        self.uplinks.load().len() > 1
    }

    fn bit(uplinks: &[Guarded], id: PortId) -> u64 {
        uplinks.iter().find(|uplink| uplink.id == id).map_or(0, |uplink| 1u64.wrapping_shl(uplink.place as u32))
    }
}

impl Plane {
    /// Guards an uplink or a team: from now on the plane finds out if another one leads into the same network. Call this after it has
    /// joined. An uplink that is guarded already keeps its place in the order.
    pub fn guard_uplink(&self, id: PortId, name: &str) {
        self.guard_changes(|uplinks| {
            let is_known = uplinks.iter().any(|known| known.id == id);
            let free = (0..UPLINKS_MAX).find(|place| uplinks.iter().all(|known| known.place != *place));
            if let (Some(place), false) = (free, is_known) {
                uplinks.push(Guarded { id, name: name.to_owned(), place, spared: None });
            }
        });
    }

    /// Of a loop with this guarded uplink the other one is blocked, whichever is newer: so much depends on this one that it is to go on. Of two
    /// such uplinks the newer one is blocked. `what`: what it is, for the sentence about the loop, such as "the storage link".
    pub fn spare_uplink(&self, id: PortId, what: &'static str) {
        if self.guard.uplinks.load().iter().any(|known| known.id == id && known.spared.is_none()) {
            let is_it = |known: &&mut Guarded| known.id == id;
            self.guard_changes(|uplinks| uplinks.iter_mut().filter(is_it).for_each(|known| known.spared = Some(what)));
        }
    }

    /// These have left.
    pub(crate) fn unguard(&self, ids: &[PortId]) {
        if self.guard.uplinks.load().iter().any(|known| ids.contains(&known.id)) {
            self.guard.memory().loops.retain(|found| !ids.contains(&found.blocked));
            self.guard_changes(|uplinks| uplinks.retain(|known| !ids.contains(&known.id)));
        }
    }

    fn guard_changes(&self, change: impl Fn(&mut Vec<Guarded>)) {
        let guards = self.guard.change(change);
        self.note_guarded(guards);
        self.mark_guarded();
    }

    /// Ports by which guarded frames come in are looked at.
    pub(crate) fn mark_guarded(&self) {
        let (uplinks, guards) = (self.guard.uplinks.load(), self.guard.guards());
        if uplinks.is_empty() {
            return;
        }
        for port in self.switch().slots().iter().filter_map(Slot::port).filter(|port| port.is_link()) {
            port.set_guarded(guards && uplinks.iter().any(|known| known.id == port.place().origin));
        }
    }

    /// The uplinks and teams that are blocked because they lead into another one's network.
    pub fn loops(&self) -> Vec<Loop> {
        self.guard.memory().loops.clone()
    }

    /// Blocks an uplink or a team again that was blocked for this loop before. It stays blocked until [`unloop`](Self::unloop).
    pub fn loop_again(&self, mut found: Loop) {
        found.spared =
            self.guard.uplinks.load().iter().find(|known| known.name == found.other).and_then(|known| known.spared);
        let mut memory = self.guard.memory();
        if !memory.loops.iter().any(|known| known.blocked == found.blocked) {
            self.switch().block(found.blocked);
            memory.loops.push(found);
        }
    }

    /// An uplink, or a team, that was blocked for a loop carries frames again. If the loop is still there, it is found again.
    pub fn unloop(&self, id: PortId) {
        let mut memory = self.guard.memory();
        memory.loops.retain(|found| found.blocked != id);
        // The next sign is the first one.
        memory.suspicions.clear();
    }

    /// The packets of a batch that came in by a guarded uplink which have gone round, and those that are probes: a bit each.
    #[cold]
    #[inline(never)]
    pub(crate) fn looped(&self, port: &Port, batch: &Batch, now: Time) -> (u64, u64) {
        if self.switch().is_blocked(port.place().origin) {
            return (0, 0);
        }
        let Found { looped, taken, probes, proven } = self.find_looped(port.place().origin, batch, now);
        probes.iter().for_each(|probe| self.send_probe(probe));
        proven.iter().for_each(|from| self.block_one(port, *from, now));
        (looped, taken)
    }

    fn find_looped(&self, to: PortId, batch: &Batch, now: Time) -> Found {
        let uplinks = self.guard.uplinks.load();
        let here = LoopGuard::bit(&uplinks, to);
        let mut found = Found::default();
        let mut memory = self.guard.memory();
        let all = now < memory.unicast_until;
        for (packet, index) in batch.packets().iter().zip(0u32..) {
            let head = batch.head(packet);
            if !all && head.first().is_none_or(|first| first & 1 == 0) {
                continue;
            }
            if let Some([number, from]) = number_in(head) {
                if let Some(from) = memory.proven(number, now) {
                    found.probe(index, from, to);
                    continue;
                }
                memory.hear(from, name(self.guard.seed), now);
            }
            let key = self.guard.key(batch, packet);
            // A frame with a VLAN's tag may belong to two networks: it counts in the one by which it left.
            let networks = self.switch().networks(to, head);
            let seen = networks.map(|network| memory.of(LoopGuard::in_network(key, network), now));
            let Some(seen) = seen.max_by_key(|seen| seen.left & !here != 0) else { continue };
            let passed = memory.of(key, now);
            let (others, is_same) = match seen.left & !here {
                0 => (passed.left & !here & if passed.came & here == 0 { 0 } else { u64::MAX }, false),
                others => (others, true),
            };
            let is_guests = seen.came == 0 && !self.switch().reflects();
            let by_both = seen.came & here != 0 && seen.came & others != 0;
            for other in uplinks.iter().filter(|other| others >> other.place & 1 != 0) {
                if is_same && !self.switch().reaches(to, other.id) {
                    continue;
                }
                // Nothing goes round by it. What a guest sent before may still come back.
                if self.switch().is_blocked(other.id) {
                    found.looped |= if is_same && is_guests { 1u64.wrapping_shl(index) } else { 0 };
                    continue;
                }
                let Signs { probe, doubts, is_refuted } = memory.suspect((other.id, to), by_both, self.guard.seed, now);
                if is_same && !is_refuted && (is_guests || doubts > DOUBTS_MAX) {
                    found.looped |= 1u64.wrapping_shl(index);
                }
                let edit = self.switch().edit_for(to, head, other.id).unwrap_or(Edit::Keep);
                let tag = if is_same { tag_of(head, edit) } else { passed.tag };
                if let Some(number) = probe {
                    // Another batch sends the next one if there is no room.
                    let _pushed = found.probes.try_push(Probe { by: other.id, number, tag });
                }
            }
        }
        found
    }

    /// Remembers the frames of a batch that are flooded, and by which uplinks they came in and leave.
    #[cold]
    pub(crate) fn note_flooded(&self, port: &Port, batch: &Batch, plan: &Plan, now: Time) {
        let uplinks = self.guard.uplinks.load();
        let came = LoopGuard::bit(&uplinks, port.place().origin);
        let (mut once, mut several) = (0, 0);
        for receiver in plan.receivers() {
            let packets = plan.packets(*receiver);
            several |= once & packets;
            once |= packets;
        }
        let group = batch
            .packets()
            .iter()
            .zip(0u32..)
            .filter(|(packet, _)| batch.head(packet).first().is_some_and(|b| b & 1 != 0));
        let groups = group.fold(0u64, |all, (_, index)| all | 1u64.wrapping_shl(index));
        let dropped = plan.drops().iter().fold(0u64, |all, (packet, _)| all | 1u64.wrapping_shl((*packet).into()));
        let noted = (groups | several) & !dropped;
        if noted == 0 {
            return;
        }
        let mut memory = self.guard.memory();
        if several & !groups != 0 {
            memory.unicast_until = now.after_ns(WINDOW_NS);
        }
        for index in numbers(noted) {
            let Some(packet) = batch.packet(index as u16) else { continue };
            let (mut left, mut tag) = (0, None);
            for other in uplinks.iter().filter(|other| plan.has(other.id, index as u16)) {
                left |= 1u64.wrapping_shl(other.place as u32);
                tag = tag_of(batch.head(packet), plan.edit_of(other.id, index as u16));
            }
            let key = self.guard.key(batch, packet);
            let mut is_member = false;
            for network in self.switch().networks(port.place().origin, batch.head(packet)) {
                memory.note(LoopGuard::in_network(key, network), came, left, tag, now);
                is_member = true;
            }
            if !is_member {
                continue;
            }
            // Whatever networks it passes on its way: it had come in by an uplink first, and leaves by another one.
            let known = memory.of(key, now);
            let is_own = known.is_own || (known.came | came == 0 && left != 0);
            let passed = if known.came & !left != 0 && !is_own { left } else { 0 };
            if came | passed != 0 || is_own {
                memory.note(key, came, passed, tag, now);
                memory.own(key, is_own);
            }
        }
    }

    /// Sends a probe by an uplink, or by a member of a team.
    fn send_probe(&self, found: &Probe) {
        let slots = self.switch().slots();
        let mut ports = slots.get(found.by).into_iter().flat_map(Slot::ports);
        if let Some(port) = ports.find(|port| port.distributes()) {
            port.probe(VecDeque::from([probe(found, self.guard.seed)]));
        }
    }

    /// Blocks one of two uplinks, the newer if it is not spared: frames that leave by `from` come in by this port.
    fn block_one(&self, port: &Port, from: PortId, now: Time) {
        let uplinks = self.guard.uplinks.load();
        let pair: Vec<&Guarded> =
            uplinks.iter().filter(|known| [from, port.place().origin].contains(&known.id)).collect();
        let [older, newer] = pair[..] else { return };
        let is_older_blocked = newer.spared.is_some() && older.spared.is_none();
        let (stays, blocked) = if is_older_blocked { (newer, older) } else { (older, newer) };
        let (name, other) = (blocked.name.clone(), stays.name.clone());
        let found = Loop { blocked: blocked.id, name, other, spared: stays.spared };
        if !self.block(&found, stays.id, now) {
            return;
        }
        port.tell(News::Looped(found.to_string()));
        self.drop_waiting(blocked.id);
        self.carrier_changed(blocked.id, now);
        if let Some(call) = self.guard.caller.0.get() {
            call();
        }
    }

    /// False if one of the two is blocked already. Each one's probe may come in at the other, in turns of two workers: one of them blocks.
    /// Or another guard's probe has come in since, which blocks where it is.
    fn block(&self, found: &Loop, other: PortId, now: Time) -> bool {
        let mut memory = self.guard.memory();
        let is_new = !memory.is_held(now) && ![other, found.blocked].iter().any(|id| self.switch().is_blocked(*id));
        if is_new {
            memory.loops.push(found.clone());
            self.switch().block(found.blocked);
        }
        is_new
    }

    /// Sets a policy of an uplink or a team. It stays blocked while it would lead into another one's network. A loop that is found meanwhile
    /// waits, so that neither takes the other's word away.
    pub(crate) fn set_guarded_policy(&self, id: PortId, policy: &Policy) {
        let memory = self.guard.memory();
        let is_looped = memory.loops.iter().any(|found| found.blocked == id);
        self.switch().set_policy(id, &Policy { blocked: policy.blocked || is_looped, ..policy.clone() });
    }

    /// Sets the function that is called after an uplink or a team was blocked for a loop. It is called in a turn, so it must not wait. Only
    /// the first call of `on_loop` counts.
    pub fn on_loop(&self, call: Box<dyn Fn() + Send + Sync>) {
        let _already_set = self.guard.caller.0.set(call);
    }

    /// Drops the frames that wait for a blocked uplink or team.
    pub(crate) fn drop_waiting(&self, id: PortId) {
        let slots = self.switch().slots();
        slots
            .get(id)
            .into_iter()
            .flat_map(Slot::ports)
            .for_each(|port| self.let_go(&port.drop_waiting(Reason::Blocked)));
    }
}

/// A sentence for a person.
impl std::fmt::Display for Loop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { blocked: _, name, other, spared } = self;
        let which = spared.map_or_else(|| "the newer one".to_owned(), |what| format!("for the other one is {what}"));
        write!(f, "{name} and {other} lead into one network, and frames went round: {name}, {which}, is blocked")
    }
}

/// The outer tag with which a frame leaves.
fn tag_of(head: &[u8], edit: Edit) -> Option<Tag> {
    match edit {
        Edit::Keep => vlan::outer(head),
        Edit::Untag => vlan::second(head),
        Edit::Tag(tag) | Edit::Retag(tag) => Some(tag),
    }
}
