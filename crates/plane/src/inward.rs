//! I/O control of what comes in by an uplink: the queue is made ours by a rate a little below the link's, and waits here by class and
//! receiving port. Their senders are told early ([`Codel`]).
//!
//! ```text
//! uplink ── fetch ── forward ──► class and receiver: lane ──► at the inward rate: receiver
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::{Batch, Bucket, Budget, Delivery, HEAD_MOST, Packet, Pick, PortId, Rate, Reason, Time};
use nicety_ioc::{Class, Classifier, Codel, Lane, Scheduler, mark_congestion};
use nicety_memory::MapError;

use crate::backlog::{Arrival, Backlog, SavedFrame, in_blocks};
use crate::order::{class_of, lane_of};
use crate::plane::{Plane, Slot};
use crate::port::{ClassState, Port};

/// A bucket holds tokens for this time, and for a largest packet at least.
const BURST_NS: u64 = 2_000_000;
const BURST_LEAST_BYTES: u64 = 64 << 10;
/// States of flows, chosen by a hash: two flows may share one, and are told together.
const FLOWS: usize = 1024;
/// No frame waits.
const NEVER: u64 = u64::MAX;

/// Inward I/O control: frames that come in by an uplink wait by class and receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InwardControl {
    /// The rate at which frames are passed on: a little below the link's.
    pub rate: Rate,
    /// Most bytes that wait for one class and port.
    pub buffer_bytes: u32,
    /// The classes, that of all other frames first. Ports are receivers here.
    pub classes: Vec<Class>,
}

/// What an [`InwardControl`] says of rates and classes: it changes while frames wait.
#[derive(Debug)]
pub(crate) struct Terms {
    rate: Rate,
    bucket: Bucket,
    classifier: Classifier,
    scheduler: Option<Box<Scheduler>>,
    states: Vec<ClassState>,
}

impl Terms {
    pub fn new(control: &InwardControl) -> Self {
        let InwardControl { rate, buffer_bytes: _, classes } = control;
        let terms: Vec<_> = classes.iter().map(|class| class.terms.clone()).collect();
        let burst = u128::from(rate.bits_per_second()) * u128::from(BURST_NS) / 8_000_000_000;
        let state = |class: &Class| ClassState { name: class.name.clone(), ..ClassState::default() };
        Self {
            rate: *rate,
            bucket: Bucket::new(*rate, u64::try_from(burst).unwrap_or(u64::MAX).max(BURST_LEAST_BYTES)),
            classifier: Classifier::new(classes),
            scheduler: Some(Box::new(Scheduler::new(&terms, nicety_switch::PORTS))),
            states: classes.iter().map(state).collect(),
        }
    }
}

/// Packets of a batch that have been charged: a bit each. A packet for several receivers came by the link once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Charged(u64);

impl Charged {
    fn bit(pick: Pick) -> u64 {
        1u64.checked_shl(pick.packet.into()).unwrap_or(0)
    }

    fn has(self, pick: Pick) -> bool {
        self.0 & Self::bit(pick) != 0
    }

    fn insert(&mut self, pick: Pick) {
        self.0 |= Self::bit(pick);
    }
}

/// Frames that were dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lost {
    /// No room was left.
    full: u64,
    /// To tell their sender.
    congestion: u64,
    /// Their receiver has left.
    removed: u64,
}

/// Frames that have come in, and wait.
#[derive(Debug)]
pub(crate) struct Inward {
    backlog: Backlog,
    /// Bytes that wait in lanes with a reservation.
    reserved_bytes: u64,
    rate: Rate,
    classifier: Classifier,
    bucket: Bucket,
    flows: Box<[Codel]>,
    states: Vec<ClassState>,
    /// Limits hold all frames that wait until then.
    limited_until: Option<Time>,
    /// The turn that was asked for, because no tokens were left.
    asked: Option<Time>,
    /// The last turn ended then, with frames and tokens left: the worker had other work, or was interrupted.
    left_at: Option<Time>,
}

/// An uplink's inward control, in its port. Its owner uses it in its turns; another thread changes it as a whole. This lock is taken
/// before a receiver's, and never under a port's.
#[derive(Debug, Default)]
pub(crate) struct InwardSlot {
    inward: Mutex<Option<Box<Inward>>>,
    /// The time at which frames may be passed on that wait, or [`NEVER`]. 0: there is no control.
    due: AtomicU64,
}

impl InwardSlot {
    /// Whether frames that come in are controlled.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.due.load(Ordering::Relaxed) != 0
    }

    /// Whether frames may be passed on now.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        due != 0 && due <= now.0
    }

    /// Replaces the control, and returns the old one, to be freed elsewhere. What waits in it is lost: the number of packets is returned.
    pub fn replace(&self, mut new: Option<Box<Inward>>) -> (Option<Box<Inward>>, u64) {
        let mut held = self.inward.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let (Some(new), Some(old)) = (&mut new, &*held) {
            ClassState::inherit(&mut new.states, &old.states);
        }
        self.due.store(if new.is_some() { NEVER } else { 0 }, Ordering::Relaxed);
        let old = std::mem::replace(&mut *held, new);
        let lost = old.as_ref().map_or(0, |old| old.backlog.len() as u64);
        (old, lost)
    }

    /// Calls the control, if there is one, with nobody else in it. No port's lock may be held that the call takes.
    pub fn with<R>(&self, act: impl FnOnce(&mut Inward) -> R) -> Option<R> {
        let mut held = self.inward.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let inward = held.as_mut()?;
        let result = act(inward);
        self.due.store(inward.due(), Ordering::Relaxed);
        Some(result)
    }
}

impl Inward {
    pub fn new(buffer_bytes: u32, terms: Terms) -> Result<Self, MapError> {
        let Terms { rate, bucket, classifier, scheduler, states } = terms;
        let mut backlog = Backlog::of_receivers(buffer_bytes)?;
        backlog.change_order(scheduler, &[], Time::ZERO);
        Ok(Self {
            backlog,
            reserved_bytes: 0,
            rate,
            classifier,
            bucket,
            flows: vec![Codel::default(); FLOWS].into_boxed_slice(),
            states,
            limited_until: None,
            asked: None,
            left_at: None,
        })
    }

    /// Most bytes that wait for one class and port.
    pub fn buffer_bytes(&self) -> u32 {
        self.backlog.size()
    }

    /// Other rates and classes from now on; the old ones are left in `terms`, to be freed elsewhere. Nothing that waits is lost: the frames
    /// of a class that is not there any more are of the first.
    pub fn change(&mut self, terms: &mut Terms, now: Time) {
        ClassState::inherit(&mut terms.states, &self.states);
        let places = ClassState::places(&terms.states, &self.states);
        std::mem::swap(&mut terms.states, &mut self.states);
        std::mem::swap(&mut terms.classifier, &mut self.classifier);
        if terms.rate != self.rate {
            (self.rate, self.bucket) = (terms.rate, terms.bucket);
            (self.asked, self.left_at) = (None, None);
        }
        self.backlog.change_order(terms.scheduler.take(), &places, now);
        self.limited_until = None;
        self.recount();
    }

    /// These receivers have left: what waits for them is dropped. Returns the number of packets.
    pub fn forget(&mut self, receivers: &[PortId]) -> u64 {
        let packets: u64 = receivers.iter().map(|receiver| self.backlog.clear_receiver(*receiver) as u64).sum();
        if packets > 0 {
            self.limited_until = None;
            self.recount();
        }
        packets
    }

    /// Counts what waits, by class and in lanes with a reservation.
    fn recount(&mut self) {
        self.states.iter_mut().for_each(|state| state.waiting = 0);
        let mut reserved = 0;
        for (number, packets) in self.backlog.waiting_by_lane() {
            let lane = lane_of(number);
            if let Some(state) = self.states.get_mut(usize::from(lane.class)) {
                state.waiting += packets;
            }
            if self.backlog.is_reserved(lane) {
                reserved += u64::from(self.backlog.lane_bytes(lane));
            }
        }
        self.reserved_bytes = reserved;
    }

    /// Copies of the frames that wait.
    pub fn save(&self) -> Vec<SavedFrame> {
        self.backlog.save()
    }

    /// Such frames wait here. Returns how many found room.
    pub fn restore(&mut self, frames: &[SavedFrame], now: Time) -> u64 {
        let kept = frames.iter().filter(|frame| self.backlog.push_saved(frame, now)).count() as u64;
        self.recount();
        kept
    }

    pub fn states(&self) -> Vec<ClassState> {
        self.states.clone()
    }

    pub fn states_mut(&mut self) -> &mut [ClassState] {
        &mut self.states
    }

    fn due(&self) -> u64 {
        match (self.backlog.is_empty(), self.limited_until) {
            (true, _) => NEVER,
            (false, limited) => self.bucket.ready_at().max(limited.unwrap_or_default()).0.max(1),
        }
    }

    /// When frames that wait may be passed on.
    pub fn due_at(&self) -> Option<Time> {
        Some(Time(self.due())).filter(|at| at.0 != NEVER)
    }

    /// Keeps frames for a receiver. Returns how many were dropped.
    pub fn keep(&mut self, receiver: PortId, batch: &Batch, picks: &[Pick], charged: &mut Charged, now: Time) -> Lost {
        let port = receiver.0;
        let known = self.classifier.of_port(port);
        let mut lost = Lost::default();
        for &pick in picks {
            let Some(packet) = batch.packet(pick.packet) else { continue };
            let class = known.unwrap_or_else(|| self.classifier.of(port, batch, packet, pick));
            let lane = Lane { class, port };
            let mut copy = [0; HEAD_MOST];
            let told = self.tell(lane, batch, packet, &mut copy, now);
            let has_room = self.has_room(lane, packet.len());
            let Some(state) = self.states.get_mut(usize::from(class)) else { continue };
            let Some(head) = told else {
                state.dropped += 1;
                lost.congestion += 1;
                continue;
            };
            let arrival = Arrival { head, is_free: charged.has(pick), ..Arrival::new(batch, packet, pick) };
            if has_room && self.backlog.push_in_with(lane, arrival, now) {
                charged.insert(pick);
                state.waiting += 1;
                self.limited_until = None;
                if self.backlog.is_reserved(lane) {
                    self.reserved_bytes += u64::from(in_blocks(packet.len()));
                }
            } else {
                state.dropped += 1;
                lost.full += 1;
            }
        }
        lost
    }

    /// Tells the sender of a frame if it should send less: the frame's head is a copy with a mark then. `None`: the frame is to be dropped,
    /// because its sender knows no marks.
    fn tell<'a>(
        &mut self,
        lane: Lane,
        batch: &'a Batch,
        packet: &Packet,
        copy: &'a mut [u8; HEAD_MOST],
        now: Time,
    ) -> Option<&'a [u8]> {
        let head = batch.head(packet);
        let waits = now.0.saturating_sub(self.backlog.oldest(lane).unwrap_or(now).0);
        if !self.flows.get_mut(flow_of(batch, packet)).is_some_and(|flow| flow.signals(waits, now.0)) {
            return Some(head);
        }
        let copy = copy.get_mut(..head.len())?;
        copy.copy_from_slice(head);
        if !mark_congestion(copy, batch.layout(packet).l3?.offset.into()) {
            return None;
        }
        if let Some(state) = self.states.get_mut(usize::from(lane.class)) {
            state.marked += 1;
        }
        Some(copy)
    }

    /// Whether a lane may have another packet of this length. Each may have as much as is free (Choudhury and Hahne, *Dynamic queue length
    /// thresholds for shared-memory packet switches*, 1998): greedy receivers leave room for others, however many they are. A quarter of
    /// the pool is for lanes with a reservation alone, if they have so much.
    fn has_room(&self, lane: Lane, len: u32) -> bool {
        let (pool, used) = (self.backlog.pool_bytes(), self.backlog.used());
        let aside = if self.backlog.is_reserved(lane) { 0 } else { (pool / 4).saturating_sub(self.reserved_bytes) };
        let free = pool.saturating_sub(used + aside);
        u64::from(self.backlog.lane_bytes(lane)) + u64::from(in_blocks(len)) <= free
    }

    /// Frames may go past all others: none waits, and there are tokens and no limit.
    pub fn passes(
        &mut self,
        receiver: PortId,
        batch: &Batch,
        picks: &[Pick],
        charged: &mut Charged,
        now: Time,
    ) -> bool {
        if !self.backlog.is_empty() {
            return false;
        }
        let Some(class) = self.classifier.of_port(receiver.0) else { return false };
        let uncharged = picks.iter().filter(|pick| !charged.has(**pick));
        let (mut bytes, mut last) = (0, 0);
        for packet in uncharged.filter_map(|pick| batch.packet(pick.packet)) {
            last = packet.wire_bytes();
            bytes += last;
        }
        // Only the last packet may be longer than the tokens: who comes next waits for the rest of one.
        let before = bytes - last;
        if bytes > 0 && !self.bucket.ready(now) || before > 0 && self.bucket.bytes(now) <= before {
            return false;
        }
        let lane = Lane { class, port: receiver.0 };
        let Some(scheduler) = self.backlog.control().filter(|scheduler| !scheduler.is_limited(lane)) else {
            return false;
        };
        if bytes > 0 {
            scheduler.passed(lane, bytes, now);
            self.bucket.charge(bytes, now);
            picks.iter().for_each(|pick| charged.insert(*pick));
        }
        if let Some(state) = self.states.get_mut(usize::from(class)) {
            state.packets += picks.len() as u64;
            state.bytes += bytes;
        }
        true
    }

    /// Passes on what may go now, within the budget. `deliver` gets the frames of one receiver, whose number is the batch's origin.
    /// Returns the packets and bytes.
    pub fn drain(&mut self, mut left: Budget, now: Time, mut deliver: impl FnMut(&Batch, &[Pick])) -> (usize, u64) {
        let (mut packets, mut bytes) = (0, 0);
        if let Some(at) = self.left_at.take() {
            self.bucket.resume(at, now);
        } else if let Some(at) = self.asked.take_if(|at| *at <= now) {
            self.bucket.go_on(at, now);
        }
        let _due = self.limited_until.take_if(|at| *at <= now);
        while left.packets > 0 && left.bytes > 0 && self.bucket.ready(now) {
            let few = Budget { bytes: left.bytes.min(self.bucket.bytes(now).max(1)), ..left };
            let mut freed = 0;
            let drained = self.backlog.drain(
                |_| true,
                few,
                now,
                |frames| {
                    freed = frames.batch.packets().iter().map(|packet| u64::from(in_blocks(packet.len()))).sum();
                    deliver(frames.batch, frames.picks);
                    Delivery::default()
                },
            );
            let drained = match drained {
                Ok(drained) => drained,
                Err(until) => {
                    self.limited_until = until;
                    break;
                }
            };
            if self.backlog.is_reserved(lane_of(drained.lane)) {
                self.reserved_bytes = self.reserved_bytes.saturating_sub(freed);
            }
            self.bucket.charge(drained.wire_bytes, now);
            if let Some(state) = self.states.get_mut(usize::from(class_of(drained.lane))) {
                state.packets += drained.packets as u64;
                state.bytes += drained.wire_bytes;
                state.waiting = state.waiting.saturating_sub(drained.packets as u64);
            }
            packets += drained.packets;
            bytes += drained.bytes;
            left = Budget { packets: left.packets - drained.packets, bytes: left.bytes.saturating_sub(drained.bytes) };
        }
        if self.backlog.is_empty() || self.limited_until.is_some() {
            // Nobody is late for what limits hold.
        } else if self.bucket.ready(now) {
            self.left_at = Some(now);
        } else {
            self.asked = Some(self.bucket.ready_at());
        }
        (packets, bytes)
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.backlog.len()
    }
}

/// The fixed cost of a packet in bytes, as of a turn's other packets.
const PACKET_COST: u64 = 256;

impl Plane {
    /// Passes on frames that came in by an uplink and waited. Returns the cost in bytes.
    #[inline(never)]
    pub(crate) fn pass_on(&self, port: &Port, now: Time) -> u64 {
        let slots = self.switch().slots();
        let mut lost = 0;
        let passed = port.inward().with(|inward| {
            let passed = inward.drain(Budget::TURN, now, |batch, picks| {
                let is_there = |slot: &&Slot| slot.port().is_some_and(|receiver| !receiver.has_left());
                match slots.get(batch.origin).filter(is_there) {
                    Some(receiver) => self.pass_to(receiver, batch, picks, now),
                    None => lost += picks.len() as u64,
                }
            });
            (passed, inward.due_at())
        });
        port.lose(lost, Reason::Removed);
        let Some(((packets, bytes), due)) = passed else { return 0 };
        if let Some(at) = due {
            port.wake_at(at);
        }
        bytes + packets as u64 * PACKET_COST
    }

    /// Keeps frames that came in by an uplink until their class and receiver may have them, or passes them on at once.
    #[inline(never)]
    pub(crate) fn keep_inward(
        &self,
        uplink: &Port,
        slot: &Slot,
        batch: &Batch,
        picks: &[Pick],
        charged: &mut Charged,
        now: Time,
    ) {
        let Some(receiver) = slot.port() else { return };
        let id = receiver.id();
        let kept = uplink.inward().with(|inward| {
            // A port that leaves says so before the uplinks forget it: nothing comes behind that.
            if receiver.has_left() {
                return Some((Lost { removed: picks.len() as u64, ..Lost::default() }, None));
            }
            if inward.passes(id, batch, picks, charged, now) {
                return None;
            }
            let was_empty = inward.len() == 0;
            let lost = inward.keep(id, batch, picks, charged, now);
            Some((lost, inward.due_at().filter(|_| was_empty)))
        });
        match kept.flatten() {
            None => self.pass_to(slot, batch, picks, now),
            Some((Lost { full, congestion, removed }, due)) => {
                uplink.lose(full, Reason::BufferFull);
                uplink.lose(congestion, Reason::Congestion);
                uplink.lose(removed, Reason::Removed);
                if let Some(at) = due {
                    uplink.wake_at(at);
                }
            }
        }
    }

    /// Offers frames to a guest's port, which holds nobody.
    fn pass_to(&self, receiver: &Slot, batch: &Batch, picks: &[Pick], now: Time) {
        match receiver {
            Slot::Port(port) => _ = self.offer_shown(port, batch, picks, now),
            Slot::Group(group) => {
                group.divide(batch, picks, |part, picks| _ = self.offer_shown(part, batch, picks, now));
            }
            Slot::Sink(port) => port.offer_copies(batch, picks, now),
        }
    }
}

/// The number of a flow's state: by its addresses and ports.
fn flow_of(batch: &Batch, packet: &Packet) -> usize {
    let hash = crate::team::Hash::Layer34.of(batch, packet, &Pick::whole(0));
    (hash ^ hash >> 10 ^ hash >> 20) as usize % FLOWS
}
