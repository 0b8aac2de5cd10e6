//! I/O control of what comes in by an uplink: the queue is made ours by a rate a little below the link's, and waits here by class and
//! receiving port. Their senders are told early ([`Codel`]).
//!
//! ```text
//! uplink ── fetch ── forward ──► class and receiver: lane ──► at the inward rate: receiver
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::{Batch, Budget, Delivery, Frames, HEAD_MAX, Packet, Pick, PortId, Rate, Reason, Time};
use nicety_ioc::{Class, Codel, Lane, mark_congestion};
use nicety_memory::MapError;

use crate::backlog::{Arrival, Backlog, SavedFrame, in_blocks};
use crate::hash::Hash;
use crate::losses::Losses;
use crate::order::LaneKey;
use crate::stage::{ClassState, Stage, Terms, wire_bytes, with_mark};

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
    /// The classes. The first one has all frames that fit no other class. Ports are receivers here.
    pub classes: Vec<Class>,
}

impl InwardControl {
    pub(crate) fn terms(&self) -> Terms {
        Terms::new(&self.classes, Some(self.rate))
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
    pub full: u64,
    /// They were dropped to tell their sender of congestion.
    pub congestion: u64,
    /// Their receiver has left.
    pub removed: u64,
}

/// Frames that have come in, and wait by class and receiver.
#[derive(Debug)]
pub(crate) struct Inward {
    stage: Stage,
    /// Bytes that wait in lanes with a reservation.
    reserved_bytes: u64,
    flows: Box<[Codel]>,
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

    /// Replaces the control. Returns the old one, to be freed elsewhere, and the number of packets that waited in it, which are lost.
    pub fn replace(&self, mut new: Option<Box<Inward>>) -> (Option<Box<Inward>>, u64) {
        let mut held = self.inward.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let (Some(new), Some(old)) = (&mut new, &*held) {
            new.count_on(&old.states());
        }
        self.due.store(if new.is_some() { NEVER } else { 0 }, Ordering::Relaxed);
        let old = std::mem::replace(&mut *held, new);
        let lost = old.as_ref().map_or(0, |old| old.len() as u64);
        (old, lost)
    }

    /// Calls the control, if there is one, with its lock held. The caller must hold no port's lock that the call takes.
    pub fn with<R>(&self, act: impl FnOnce(&mut Inward) -> R) -> Option<R> {
        let mut held = self.inward.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let inward = held.as_mut()?;
        let result = act(inward);
        self.due.store(inward.due_at().map_or(NEVER, |at| at.0.max(1)), Ordering::Relaxed);
        Some(result)
    }
}

impl Inward {
    pub fn new(buffer_bytes: u32, terms: Terms) -> Result<Self, MapError> {
        let mut stage = Stage::new(Backlog::of_receivers(buffer_bytes)?);
        let _nothing = stage.change(terms, Time::ZERO);
        Ok(Self { stage, reserved_bytes: 0, flows: vec![Codel::default(); FLOWS].into_boxed_slice() })
    }

    /// Most bytes that wait for one class and port.
    pub fn buffer_bytes(&self) -> u32 {
        self.stage.backlog.size()
    }

    /// Sets other rates and classes: see [`Stage::change`].
    pub fn change(&mut self, terms: Terms, now: Time) -> Terms {
        let old = self.stage.change(terms, now);
        self.recount();
        old
    }

    /// Drops the packets that wait for these receivers, which have left. Returns the number of packets.
    pub fn forget(&mut self, receivers: &[PortId]) -> u64 {
        let packets: u64 = receivers.iter().map(|receiver| self.stage.clear_receiver(*receiver) as u64).sum();
        if packets > 0 {
            self.recount();
        }
        packets
    }

    /// Counts what waits in lanes with a reservation.
    fn recount(&mut self) {
        let backlog = &self.stage.backlog;
        let reserved = backlog.waiting_by_peer().filter(|(lane, _)| backlog.is_reserved(*lane));
        self.reserved_bytes = reserved.map(|(lane, _)| u64::from(backlog.lane_bytes(lane))).sum();
    }

    /// Copies of the frames that wait.
    pub fn save(&self) -> Vec<SavedFrame> {
        self.stage.backlog.save()
    }

    /// Takes frames that waited in another process. Returns how many found room.
    pub fn restore(&mut self, frames: &[SavedFrame], now: Time) -> u64 {
        let kept = frames.iter().filter(|frame| self.stage.backlog.push_saved(frame, now)).count() as u64;
        self.stage.recount();
        self.recount();
        kept
    }

    /// The classes' counters.
    pub fn states(&self) -> Vec<ClassState> {
        self.stage.states()
    }

    /// Adds the counts of another process, class by class.
    pub fn count_on(&mut self, before: &[ClassState]) {
        self.stage.count_on(before);
    }

    /// When frames that wait may be passed on.
    pub fn due_at(&self) -> Option<Time> {
        self.stage.due_at()
    }

    /// Keeps frames for a receiver. Returns how many were dropped.
    pub fn keep(
        &mut self,
        receiver: PortId,
        batch: &Batch,
        picks: &[Pick],
        (charged, losses): (&mut Charged, &mut Losses),
        now: Time,
    ) -> Lost {
        let port = receiver.0;
        let mut lost = Lost::default();
        for &pick in picks {
            let Some(packet) = batch.packet(pick.packet) else { continue };
            let class = self.stage.classifier().map_or(0, |classifier| {
                classifier.of_port(port).unwrap_or_else(|| classifier.of(port, batch, packet, pick))
            });
            let lane = Lane { class, port };
            let mut copy = [0; HEAD_MAX];
            let Some(head) = self.tell(lane, batch, packet, &mut copy, now) else {
                self.stage.dropped(class);
                lost.congestion += 1;
                losses.note(pick.packet, Reason::Congestion);
                continue;
            };
            let arrival = Arrival { head, is_free: charged.has(pick), ..Arrival::new(batch, packet, pick) };
            if !self.has_room(lane, packet.len()) {
                self.stage.dropped(class);
                lost.full += 1;
                losses.note(pick.packet, Reason::BufferFull);
            } else if self.stage.keep(lane, arrival, now) {
                charged.insert(pick);
                self.stage.limited_until = None;
                if self.stage.backlog.is_reserved(lane) {
                    self.reserved_bytes += u64::from(in_blocks(packet.len()));
                }
            } else {
                lost.full += 1;
                losses.note(pick.packet, Reason::BufferFull);
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
        copy: &'a mut [u8; HEAD_MAX],
        now: Time,
    ) -> Option<&'a [u8]> {
        let waits = now.0.saturating_sub(self.stage.backlog.oldest(lane).unwrap_or(now).0);
        if !self.flows.get_mut(flow_of(batch, packet)).is_some_and(|flow| flow.signals(waits, now.0)) {
            return Some(batch.head(packet));
        }
        let marked = with_mark(batch, packet, copy, mark_congestion)?;
        self.stage.marked(lane.class);
        Some(marked)
    }

    /// Whether a lane may have another packet of this length. Each may have as much as is free (Choudhury and Hahne, *Dynamic queue length
    /// thresholds for shared-memory packet switches*, 1998): greedy receivers leave room for others, however many they are. A quarter of
    /// the pool is for lanes with a reservation alone, if they have so much.
    fn has_room(&self, lane: Lane, len: u32) -> bool {
        let backlog = &self.stage.backlog;
        let (pool, used) = (backlog.pool_bytes(), backlog.used());
        let aside = if backlog.is_reserved(lane) { 0 } else { (pool / 4).saturating_sub(self.reserved_bytes) };
        let free = pool.saturating_sub(used + aside);
        u64::from(backlog.lane_bytes(lane)) + u64::from(in_blocks(len)) <= free
    }

    /// Whether these frames may go at once: no frame waits, there are tokens, and no limit holds them.
    pub fn passes(
        &mut self,
        receiver: PortId,
        batch: &Batch,
        picks: &[Pick],
        charged: &mut Charged,
        now: Time,
    ) -> bool {
        if !self.stage.backlog.is_empty() {
            return false;
        }
        let port = receiver.0;
        let Some(class) = self.stage.classifier().and_then(|classifier| classifier.of_port(port)) else { return false };
        let (bytes, last) = wire_bytes(batch, picks.iter().filter(|pick| !charged.has(**pick)));
        let lane = Lane { class, port };
        let has_tokens = self.stage.pacing.as_ref().is_none_or(|pacing| pacing.admits(bytes, last, now));
        if !has_tokens || self.stage.is_limited(lane) {
            return false;
        }
        if bytes > 0 {
            picks.iter().for_each(|pick| charged.insert(*pick));
        }
        self.stage.passed(lane, picks.len(), bytes, now);
        true
    }

    /// Passes on the frames that may go now, within the budget. Each call of `deliver` gets the frames of one receiver, whose number is the
    /// batch's origin. Returns the packets and bytes.
    pub fn drain(&mut self, mut left: Budget, now: Time, mut deliver: impl FnMut(&Batch, &[Pick])) -> (usize, u64) {
        let Self { stage, reserved_bytes, .. } = self;
        let (mut packets, mut bytes) = (0, 0);
        if let Some(pacing) = &mut stage.pacing {
            pacing.begin(now);
        }
        stage.pass_limit(now);
        while left.packets > 0 && left.bytes > 0 {
            let tokens = stage.pacing.as_ref().map_or(u64::MAX, |pacing| pacing.bytes(now));
            if tokens == 0 {
                break;
            }
            let few = Budget { bytes: left.bytes.min(tokens), ..left };
            let mut freed = 0;
            let deliver = |frames: &Frames<'_>| {
                freed = frames.batch.packets().iter().map(|packet| u64::from(in_blocks(packet.len()))).sum();
                deliver(frames.batch, frames.picks);
                Delivery::default()
            };
            let drained = match stage.backlog.drain(|_| true, few, now, deliver) {
                Ok(drained) => drained,
                Err(until) => {
                    stage.limited_until = until;
                    break;
                }
            };
            if let LaneKey::Peer(lane) = drained.lane
                && stage.backlog.is_reserved(lane)
            {
                *reserved_bytes = reserved_bytes.saturating_sub(freed);
            }
            stage.sent(&drained, now);
            packets += drained.packets;
            bytes += drained.bytes;
            left = Budget { packets: left.packets - drained.packets, bytes: left.bytes.saturating_sub(drained.bytes) };
        }
        // Nobody is late for what limits hold.
        if !stage.backlog.is_empty()
            && stage.limited_until.is_none()
            && let Some(pacing) = &mut stage.pacing
        {
            pacing.end(now);
        }
        (packets, bytes)
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.stage.backlog.len()
    }
}

/// The number of a flow's state: by its addresses and ports.
fn flow_of(batch: &Batch, packet: &Packet) -> usize {
    let hash = Hash::Layer34.of(batch, packet, &Pick::whole(0));
    (hash ^ hash >> 10 ^ hash >> 20) as usize % FLOWS
}
