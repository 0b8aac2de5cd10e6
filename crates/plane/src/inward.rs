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

use crate::backlog::{Backlog, SavedFrame};
use crate::order::class_of;
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

/// Frames that have come in, and wait.
#[derive(Debug)]
pub(crate) struct Inward {
    backlog: Backlog,
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
    pub fn replace(&self, new: Option<Box<Inward>>) -> (Option<Box<Inward>>, u64) {
        let mut held = self.inward.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
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
    pub fn new(control: &InwardControl) -> Result<Self, MapError> {
        let InwardControl { rate, buffer_bytes, classes } = control;
        let terms: Vec<_> = classes.iter().map(|class| class.terms.clone()).collect();
        let mut backlog = Backlog::of_receivers(*buffer_bytes)?;
        backlog.change_order(Some(Box::new(Scheduler::new(&terms, nicety_switch::PORTS))), Time::ZERO);
        let burst = u128::from(rate.bits_per_second()) * u128::from(BURST_NS) / 8_000_000_000;
        let state = |class: &Class| ClassState { name: class.name.clone(), ..ClassState::default() };
        Ok(Self {
            backlog,
            classifier: Classifier::new(classes),
            bucket: Bucket::new(*rate, u64::try_from(burst).unwrap_or(u64::MAX).max(BURST_LEAST_BYTES)),
            flows: vec![Codel::default(); FLOWS].into_boxed_slice(),
            states: classes.iter().map(state).collect(),
            limited_until: None,
            asked: None,
            left_at: None,
        })
    }

    /// Copies of the frames that wait.
    pub fn save(&self) -> Vec<SavedFrame> {
        self.backlog.save()
    }

    /// Such frames wait here. Returns how many found room.
    pub fn restore(&mut self, frames: &[SavedFrame], now: Time) -> u64 {
        let kept = frames.iter().filter(|frame| self.backlog.push_saved(frame, now)).count() as u64;
        for (lane, packets) in self.backlog.waiting_by_lane() {
            if let Some(state) = self.states.get_mut(usize::from(class_of(lane))) {
                state.waiting = packets;
            }
        }
        kept
    }

    pub fn states(&self) -> Vec<ClassState> {
        self.states.clone()
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
    pub fn keep(&mut self, receiver: PortId, batch: &Batch, picks: &[Pick], now: Time) -> u64 {
        let port = receiver.0;
        let known = self.classifier.of_port(port);
        let mut dropped = 0;
        for &pick in picks {
            let Some(packet) = batch.packet(pick.packet) else { continue };
            let class = known.unwrap_or_else(|| self.classifier.of(port, batch, packet, pick));
            let lane = Lane { class, port };
            let Some(state) = self.states.get_mut(usize::from(class)) else { continue };
            let waits = now.0.saturating_sub(self.backlog.oldest(lane).unwrap_or(now).0);
            let flow = flow_of(batch, packet);
            let signals = self.flows.get_mut(flow).is_some_and(|flow| flow.signals(waits, now.0));
            let mut marked = [0; HEAD_MOST];
            let mut head = batch.head(packet);
            let mut drops = false;
            if signals {
                let len = head.len();
                let l3 = batch.layout(packet).l3.map(|l3| usize::from(l3.offset));
                let is_marked = match (marked.get_mut(..len), l3) {
                    (Some(copy), Some(l3)) => {
                        copy.copy_from_slice(head);
                        mark_congestion(copy, l3)
                    }
                    _ => false,
                };
                if is_marked {
                    state.marked += 1;
                    head = &marked[..len];
                }
                drops = !is_marked;
            }
            if !drops && self.backlog.push_in_with(lane, batch, packet, head, pick, now) {
                state.waiting += 1;
                self.limited_until = None;
            } else {
                state.dropped += 1;
                dropped += 1;
            }
        }
        dropped
    }

    /// Frames may go past all others: none waits, and there are tokens and no limit.
    pub fn passes(&mut self, receiver: PortId, batch: &Batch, picks: &[Pick], now: Time) -> bool {
        if !self.backlog.is_empty() || !self.bucket.ready(now) {
            return false;
        }
        let Some(class) = self.classifier.of_port(receiver.0) else { return false };
        let lane = Lane { class, port: receiver.0 };
        let Some(scheduler) = self.backlog.control().filter(|scheduler| !scheduler.is_limited(lane)) else {
            return false;
        };
        let bytes = picks.iter().filter_map(|pick| batch.packet(pick.packet)).map(Packet::wire_bytes).sum();
        scheduler.passed(lane, bytes, now);
        self.bucket.charge(bytes, now);
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
            let drained = self.backlog.drain(
                |_| true,
                few,
                now,
                |frames| {
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
                match slots.get(batch.origin).and_then(Slot::port).filter(|receiver| !receiver.has_left()) {
                    Some(receiver) => self.pass_to(receiver, batch, picks, now),
                    None => lost += picks.len() as u64,
                }
            });
            (passed, inward.due_at())
        });
        if lost > 0 {
            port.lose(lost, Reason::Removed);
        }
        let Some(((packets, bytes), due)) = passed else { return 0 };
        if let Some(at) = due {
            port.wake_at(at);
        }
        bytes + packets as u64 * PACKET_COST
    }

    /// Keeps frames that came in by an uplink until their class and receiver may have them, or passes them on at once.
    #[inline(never)]
    pub(crate) fn keep_inward(&self, uplink: &Port, receiver: &Port, batch: &Batch, picks: &[Pick], now: Time) {
        if receiver.is_aside() {
            // A mirror's copies take nothing of what the uplink's receivers may have.
            return self.pass_to(receiver, batch, picks, now);
        }
        let id = receiver.id();
        let kept = uplink.inward().with(|inward| {
            if inward.passes(id, batch, picks, now) {
                return None;
            }
            let was_empty = inward.len() == 0;
            let dropped = inward.keep(id, batch, picks, now);
            Some((dropped, inward.due_at().filter(|_| was_empty)))
        });
        match kept.flatten() {
            None => self.pass_to(receiver, batch, picks, now),
            Some((dropped, due)) => {
                if dropped > 0 {
                    uplink.lose(dropped, Reason::BufferFull);
                }
                if let Some(at) = due {
                    uplink.wake_at(at);
                }
            }
        }
    }

    /// Offers frames to a guest's port, which holds nobody.
    fn pass_to(&self, receiver: &Port, batch: &Batch, picks: &[Pick], now: Time) {
        let _holds = if self.is_watched() {
            self.offer_watched(receiver, batch, picks, now)
        } else {
            receiver.offer(batch, picks, now)
        };
    }
}

/// The number of a flow's state: by its addresses and ports.
fn flow_of(batch: &Batch, packet: &Packet) -> usize {
    let hash = crate::team::Hash::Layer34.of(batch, packet, &Pick::whole(0));
    (hash ^ hash >> 10 ^ hash >> 20) as usize % FLOWS
}
