//! Frames that wait at a link, in either direction, and the order in which I/O control lets them go.
//!
//! ```text
//! frame ──► class ──► lane of its class and peer ──► by the scheduler, at the stage's rate if it has one ──►
//! ```
//!
//! The peer of a lane is the port that the stage does not belong to: outward it sent the frames, inward it gets them.

use nicety_adapter::{Batch, Bucket, HEAD_MAX, Packet, Pick, PortId, Rate, Time};
use nicety_ioc::{Class, Classifier, Lane, Scheduler};

use crate::backlog::{Arrival, Backlog, Drained};
use crate::order::LaneKey;

/// A bucket holds tokens for this time, and for a largest packet at least.
const BURST_NS: u64 = 2_000_000;
const BURST_MIN_BYTES: u64 = 64 << 10;

/// A link's counters of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassState {
    /// Its name.
    pub name: String,
    /// Packets that were sent; a segmented one counts once.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets that were dropped because no room was left. Inward also packets that were dropped to tell their sender of congestion.
    pub dropped: u64,
    /// Packets that wait now.
    pub waiting: u64,
    /// Packets that come in and got a mark (ECN), which tells their sender of congestion.
    pub marked: u64,
}

impl ClassState {
    /// Adds a class's counts to those of the class of the same name.
    pub fn add_to(self, sums: &mut Vec<Self>) {
        let Some(sum) = sums.iter_mut().find(|sum| sum.name == self.name) else {
            sums.push(self);
            return;
        };
        let Self { name: _, packets, bytes, dropped, waiting, marked } = self;
        sum.packets += packets;
        sum.bytes += bytes;
        sum.dropped += dropped;
        sum.waiting += waiting;
        sum.marked += marked;
    }
}

/// The terms of I/O control for a stage: they change while frames wait.
#[derive(Debug)]
pub(crate) struct Terms {
    classes: Option<Box<Classes>>,
    scheduler: Option<Box<Scheduler>>,
    pacing: Option<Pacing>,
}

impl Terms {
    /// Terms of these classes. The first class has all frames that fit no other. Without classes peers have equal parts.
    pub fn new(classes: &[Class], rate: Option<Rate>) -> Self {
        let terms: Vec<_> = classes.iter().map(|class| class.terms.clone()).collect();
        let is_controlled = !classes.is_empty();
        Self {
            classes: is_controlled.then(|| Box::new(Classes::new(classes))),
            scheduler: is_controlled.then(|| Box::new(Scheduler::new(&terms, nicety_switch::PORTS))),
            pacing: rate.map(Pacing::new),
        }
    }
}

#[derive(Debug)]
struct Classes {
    classifier: Classifier,
    states: Vec<ClassState>,
}

impl Classes {
    fn new(classes: &[Class]) -> Self {
        let state = |class: &Class| ClassState { name: class.name.clone(), ..ClassState::default() };
        Self { classifier: Classifier::new(classes), states: classes.iter().map(state).collect() }
    }

    fn count_on(&mut self, before: &[ClassState]) {
        for state in &mut self.states {
            if let Some(before) = before.iter().find(|before| before.name == state.name) {
                *state = ClassState { waiting: state.waiting, ..before.clone() };
            }
        }
    }

    /// For each class of `old` the place of the class of the same name here; 0, that of all other frames, for one that has left.
    fn places(&self, old: &Self) -> Vec<u16> {
        let place = |old: &ClassState| {
            (0..).zip(&self.states).find(|(_, new)| new.name == old.name).map_or(0, |(place, _)| place)
        };
        old.states.iter().map(place).collect()
    }
}

/// The rate at which frames may leave a stage.
#[derive(Debug)]
pub(crate) struct Pacing {
    rate: Rate,
    bucket: Bucket,
    /// The turn that was asked for, because no tokens were left.
    asked: Option<Time>,
    /// The last turn ended then, with frames and tokens left: the worker had other work, or was interrupted.
    left_at: Option<Time>,
}

impl Pacing {
    fn new(rate: Rate) -> Self {
        let burst = u128::from(rate.bits_per_second()) * u128::from(BURST_NS) / 8_000_000_000;
        let burst = u64::try_from(burst).unwrap_or(u64::MAX).max(BURST_MIN_BYTES);
        Self { rate, bucket: Bucket::new(rate, burst), asked: None, left_at: None }
    }

    /// A turn begins. No tokens are lost for the time in which frames waited for the worker, and not for tokens.
    pub fn begin(&mut self, now: Time) {
        if let Some(at) = self.left_at.take() {
            self.bucket.resume(at, now);
        } else if let Some(at) = self.asked.take_if(|at| *at <= now) {
            self.bucket.go_on(at, now);
        }
    }

    /// A turn ends while frames wait that no limit holds.
    pub fn end(&mut self, now: Time) {
        if self.bucket.ready(now) {
            self.left_at = Some(now);
        } else {
            self.asked = Some(self.bucket.ready_at());
        }
    }

    /// Bytes that may go now; 0: none.
    pub fn bytes(&self, now: Time) -> u64 {
        if self.bucket.ready(now) { self.bucket.bytes(now).max(1) } else { 0 }
    }

    /// Whether packets of `bytes` in all may go now, the last of them with `last` bytes. The tokens must exceed the bytes before the last
    /// packet.
    pub fn admits(&self, bytes: u64, last: u64, now: Time) -> bool {
        let before = bytes - last;
        bytes == 0 || self.bucket.ready(now) && (before == 0 || self.bucket.bytes(now) > before)
    }
}

/// See the module's page. A guest's port has one without classes, whose lanes are its adapter's receive queues.
#[derive(Debug)]
pub(crate) struct Stage {
    pub backlog: Backlog,
    classes: Option<Box<Classes>>,
    pub pacing: Option<Pacing>,
    /// Limits hold all frames that wait until then.
    pub limited_until: Option<Time>,
}

impl Stage {
    pub fn new(backlog: Backlog) -> Self {
        Self { backlog, classes: None, pacing: None, limited_until: None }
    }

    /// Whether it divides frames into classes.
    #[inline]
    pub fn is_controlled(&self) -> bool {
        self.classes.is_some()
    }

    /// Sets other terms. Returns the old ones, to be freed elsewhere. No frame that waits is lost: frames of a class that is no longer
    /// there go into the first class.
    pub fn change(&mut self, mut terms: Terms, now: Time) -> Terms {
        let mut places = Vec::new();
        if let (Some(new), Some(old)) = (&mut terms.classes, &self.classes) {
            new.count_on(&old.states);
            places = new.places(old);
        }
        std::mem::swap(&mut self.classes, &mut terms.classes);
        let rate = |pacing: &Option<Pacing>| pacing.as_ref().map(|pacing| pacing.rate);
        if rate(&self.pacing) != rate(&terms.pacing) {
            std::mem::swap(&mut self.pacing, &mut terms.pacing);
        }
        self.backlog.change_order(terms.scheduler.take(), &places, now);
        self.limited_until = None;
        self.recount();
        terms
    }

    /// Counts what waits, by class.
    pub fn recount(&mut self) {
        let Some(classes) = &mut self.classes else { return };
        classes.states.iter_mut().for_each(|state| state.waiting = 0);
        for (lane, packets) in self.backlog.waiting_by_peer() {
            if let Some(state) = classes.states.get_mut(usize::from(lane.class)) {
                state.waiting += packets;
            }
        }
    }

    pub fn states(&self) -> Vec<ClassState> {
        self.classes.as_ref().map_or_else(Vec::new, |classes| classes.states.clone())
    }

    /// Adds saved counts, class by class, by their names. Packets that wait here stay counted.
    pub fn count_on(&mut self, before: &[ClassState]) {
        if let Some(classes) = &mut self.classes {
            classes.count_on(before);
        }
    }

    fn state(&mut self, class: u16) -> Option<&mut ClassState> {
        self.classes.as_mut()?.states.get_mut(usize::from(class))
    }

    /// Divides frames into classes; `None` without I/O control.
    pub fn classifier(&self) -> Option<&Classifier> {
        self.classes.as_ref().map(|classes| &classes.classifier)
    }

    /// The number of its classes; 0 without I/O control.
    pub fn class_count(&self) -> u16 {
        self.classes.as_ref().map_or(0, |classes| classes.states.len() as u16)
    }

    /// Keeps a frame in its lane. False: there is no room, and it is dropped.
    #[inline]
    pub fn keep(&mut self, lane: Lane, arrival: Arrival<'_>, now: Time) -> bool {
        let is_kept = self.backlog.push_arrival(LaneKey::Peer(lane), arrival, now);
        if let Some(state) = self.state(lane.class) {
            *if is_kept { &mut state.waiting } else { &mut state.dropped } += 1;
        }
        is_kept
    }

    /// Counts a frame of this class that was dropped before it came in.
    pub fn dropped(&mut self, class: u16) {
        if let Some(state) = self.state(class) {
            state.dropped += 1;
        }
    }

    /// A frame of this class was marked.
    pub fn marked(&mut self, class: u16) {
        if let Some(state) = self.state(class) {
            state.marked += 1;
        }
    }

    /// Whether frames of this lane may go before the frames that wait. Neither the lane nor its class may be at a limit, and no reservation
    /// may be served late.
    #[inline]
    pub fn admits(&mut self, lane: Lane, now: Time) -> bool {
        self.backlog.scheduler().is_some_and(|scheduler| !scheduler.is_limited(lane) && scheduler.admits(lane, now))
    }

    /// Whether a lane has reached a limit, its class's or its own.
    pub fn is_limited(&mut self, lane: Lane) -> bool {
        self.backlog.scheduler().is_none_or(|scheduler| scheduler.is_limited(lane))
    }

    /// Charges frames of a lane that went before the frames that wait.
    #[inline]
    pub fn passed(&mut self, lane: Lane, packets: usize, bytes: u64, now: Time) {
        if bytes > 0 {
            if let Some(scheduler) = self.backlog.scheduler() {
                scheduler.passed(lane, bytes, now);
            }
            if let Some(pacing) = &mut self.pacing {
                pacing.bucket.charge(bytes, now);
            }
        }
        if let Some(state) = self.state(lane.class) {
            state.packets += packets as u64;
            state.bytes += bytes;
        }
    }

    /// Frames left the backlog.
    #[inline]
    pub fn sent(&mut self, drained: &Drained, now: Time) {
        if let Some(pacing) = &mut self.pacing {
            pacing.bucket.charge(drained.wire_bytes, now);
        }
        if let LaneKey::Peer(lane) = drained.lane
            && let Some(state) = self.state(lane.class)
        {
            state.packets += drained.packets as u64;
            state.bytes += drained.wire_bytes;
            state.waiting = state.waiting.saturating_sub(drained.packets as u64);
        }
    }

    /// Drops what waits; returns the number of packets.
    pub fn clear(&mut self) -> usize {
        self.limited_until = None;
        let packets = self.backlog.clear();
        self.recount();
        packets
    }

    /// Drops what waits for a receiver, in each class; returns the number of packets.
    pub fn clear_receiver(&mut self, receiver: PortId) -> usize {
        let packets = self.backlog.clear_receiver(receiver);
        if packets > 0 {
            self.limited_until = None;
            self.recount();
        }
        packets
    }

    /// The time at which waiting frames may go; `None` if no frame waits.
    pub fn due_at(&self) -> Option<Time> {
        let paced = self.pacing.as_ref().map(|pacing| pacing.bucket.ready_at());
        (!self.backlog.is_empty()).then(|| paced.max(self.limited_until).unwrap_or_default())
    }

    /// Forgets a limit whose time has come.
    #[inline]
    pub fn pass_limit(&mut self, now: Time) {
        let _due = self.limited_until.take_if(|at| *at <= now);
    }
}

/// A copy of a packet's head, with a mark that `mark` writes into its network header. `None`: it wrote none.
pub(crate) fn with_mark<'a>(
    batch: &Batch,
    packet: &Packet,
    copy: &'a mut [u8; HEAD_MAX],
    mark: impl FnOnce(&mut [u8], usize) -> bool,
) -> Option<&'a [u8]> {
    let head = batch.head(packet);
    let copy = copy.get_mut(..head.len())?;
    copy.copy_from_slice(head);
    mark(copy, batch.layout(packet).l3?.offset.into()).then_some(copy)
}

/// The bytes on the wire of the packets of these picks, and those of the last.
pub(crate) fn wire_bytes<'a>(batch: &Batch, picks: impl Iterator<Item = &'a Pick>) -> (u64, u64) {
    picks.filter_map(|pick| batch.packet(pick.packet)).fold((0, 0), |(sum, _), packet| {
        let last = packet.wire_bytes();
        (sum + last, last)
    })
}
