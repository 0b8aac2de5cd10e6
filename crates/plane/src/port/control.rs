//! I/O control of an uplink: frames are divided into classes, and each class keeps what it was promised.

use nicety_adapter::{Batch, Frames, HEAD_MOST, Packet, Pick, PortId, Reason, Time};
use nicety_ioc::{CLASSES_MOST, Class, Classifier, Lane, Scheduler, mark_dscp};
use nicety_memory::MapError;

use super::caught::caught;
use super::end::{End, Side, either};
use super::link::Link;
use super::{Inner, Port, Shell};
use crate::backlog::{Arrival, Backlog, Drained};
use crate::inward::{Inward, InwardControl, Terms};
use crate::order::class_of;

/// The part of I/O control that knows frames.
#[derive(Debug)]
pub(super) struct Control {
    classifier: Classifier,
    states: Vec<ClassState>,
    /// By port: the classes of its frames, unless all are of one.
    used: Vec<Used>,
}

/// A port uses a class for this long after its last frame of it, and for twice as long at most.
const USED_NS: u64 = 1_000_000_000;

/// The classes of which a port has lately sent frames, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Since `since`, and in the [`USED_NS`] before that.
    now: u16,
    before: u16,
    since: Time,
}

impl Used {
    #[inline]
    fn insert(&mut self, class: u16, now: Time) {
        let age_ns = now.0.saturating_sub(self.since.0);
        if age_ns >= USED_NS {
            self.before = if age_ns < 2 * USED_NS { self.now } else { 0 };
            (self.now, self.since) = (0, now);
        }
        self.now |= 1 << (class % CLASSES_MOST as u16);
    }

    fn has(self, class: u16) -> bool {
        (self.now | self.before) & 1 << (class % CLASSES_MOST as u16) != 0
    }
}

/// An uplink's counters of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassState {
    /// Its name.
    pub name: String,
    /// Packets that were sent; a segmented one counts once.
    pub packets: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Packets that were dropped because no room was left, or, of what comes in, to tell their sender.
    pub dropped: u64,
    /// Packets that wait now.
    pub waiting: u64,
    /// Packets whose sender was told of congestion by a mark (ECN). Only of what comes in.
    pub marked: u64,
}

impl ClassState {
    /// Counts of classes that stay go on; what waits is counted again.
    pub(crate) fn inherit(new: &mut [Self], old: &[Self]) {
        for state in new {
            if let Some(old) = old.iter().find(|old| old.name == state.name) {
                *state = old.clone();
            }
            state.waiting = 0;
        }
    }

    /// Counts on from the counts of classes of the same names. What waits here stays counted.
    fn count_on(states: &mut [Self], before: &[Self]) {
        for state in states {
            if let Some(before) = before.iter().find(|before| before.name == state.name) {
                *state = Self { waiting: state.waiting, ..before.clone() };
            }
        }
    }

    /// For each old class the place of the class of the same name; 0, that of all other frames, for one that has left.
    pub(crate) fn places(new: &[Self], old: &[Self]) -> Vec<u16> {
        let place = |old: &Self| (0..).zip(new).find(|(_, new)| new.name == old.name).map_or(0, |(place, _)| place);
        old.iter().map(place).collect()
    }

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

impl Control {
    fn new(classes: &[Class]) -> Self {
        let states = classes.iter().map(|class| ClassState { name: class.name.clone(), ..ClassState::default() });
        let used = vec![Used::default(); nicety_switch::PORTS];
        Self { classifier: Classifier::new(classes), states: states.collect(), used }
    }

    pub fn states(&self) -> Vec<ClassState> {
        self.states.clone()
    }

    /// Packets left the backlog.
    pub fn sent(&mut self, drained: &Drained) {
        if let Some(state) = self.states.get_mut(usize::from(class_of(drained.lane))) {
            state.packets += drained.packets as u64;
            state.bytes += drained.wire_bytes;
            state.waiting = state.waiting.saturating_sub(drained.packets as u64);
        }
    }

    /// Counts on from another process's counts.
    pub fn count_on(&mut self, before: &[ClassState]) {
        ClassState::count_on(&mut self.states, before);
    }

    /// Counts the packets that wait.
    pub fn count_waiting(&mut self, backlog: &Backlog) {
        for (lane, packets) in backlog.waiting_by_lane() {
            if let Some(state) = self.states.get_mut(usize::from(class_of(lane))) {
                state.waiting += packets;
            }
        }
    }

    /// The backlog was dropped.
    pub fn cleared(&mut self) {
        self.states.iter_mut().for_each(|state| state.waiting = 0);
    }
}

/// The fate of a class's frames of one batch.
#[derive(Debug, Default)]
struct Passed {
    taken: usize,
    waits: bool,
    /// Frames wait although the uplink has refused none of them.
    is_due: bool,
}

impl Port {
    /// Divides this uplink among classes from now on; none: its senders have equal parts. The first class is that of all frames that fit
    /// no other. Nothing that waits is lost.
    pub fn set_io_control(&self, classes: &[Class], now: Time) {
        let terms: Vec<_> = classes.iter().map(|class| class.terms.clone()).collect();
        let scheduler = (!classes.is_empty()).then(|| Box::new(Scheduler::new(&terms, nicety_switch::PORTS)));
        let mut control = (!classes.is_empty()).then(|| Box::new(Control::new(classes)));
        let mut inner = self.lock();
        let Inner { end: End::Link(link), backlog, .. } = &mut *inner else { return };
        let mut places = Vec::new();
        if let (Some(new), Some(old)) = (&mut control, &link.control) {
            ClassState::inherit(&mut new.states, &old.states);
            places = ClassState::places(&new.states, &old.states);
        }
        let old = std::mem::replace(&mut link.control, control);
        backlog.change_order(scheduler, &places, now);
        link.restored(backlog);
        link.limited_until = None;
        inner.room.insert(0);
        inner.pending.insert(0);
        drop(inner);
        drop(old);
        self.shell.schedule();
    }
}

impl Port {
    /// Controls what comes in by this uplink from now on, or nothing. Another rate and other classes find what waits, and nothing is lost.
    /// Frames that waited in a buffer of another size, or are to be controlled no more, are lost, and counted.
    pub fn set_inward(&self, control: Option<&InwardControl>, now: Time) -> Result<(), MapError> {
        let Some(slot) = self.own_inward() else { return Ok(()) };
        let mut new = None;
        if let Some(control) = control {
            let mut terms = Terms::new(control);
            let change = |inward: &mut Inward| {
                let stays = inward.buffer_bytes() == control.buffer_bytes;
                if stays {
                    inward.change(&mut terms, now);
                }
                stays
            };
            if slot.with(change).unwrap_or_default() {
                self.shell.schedule();
                return Ok(());
            }
            new = Some(Box::new(Inward::new(control.buffer_bytes, terms)?));
        }
        let (old, lost) = slot.replace(new);
        self.lose(lost, Reason::Removed);
        drop(old);
        Ok(())
    }

    /// Counts on from another process's counts of this uplink's classes, outward and inward. Call it when the uplink has its I/O control,
    /// and before it is served.
    pub fn count_classes_on(&self, outward: &[ClassState], inward: &[ClassState]) {
        either!(&mut self.lock().end, end => end.count_classes_on(outward));
        self.inward().with(|control| ClassState::count_on(control.states_mut(), inward));
    }

    /// Counts frames that came in by this uplink and were dropped.
    pub(crate) fn lose(&self, frames: u64, reason: Reason) {
        if frames > 0 {
            let mut inner = self.lock();
            (0..frames).for_each(|_| inner.counters.transmit_drop(reason));
        }
    }

    /// Other ports have left: what came in by this uplink and waits for them is dropped, and counted.
    pub(super) fn forget_inward(&self, receivers: &[PortId]) {
        if self.inward().is_there() {
            let lost = self.inward().with(|inward| inward.forget(receivers));
            self.lose(lost.unwrap_or_default(), Reason::Removed);
        }
    }

    /// Asks for a turn at this time.
    pub(crate) fn wake_at(&self, at: Time) {
        self.shell.wake_at(at);
    }
}

impl Inner {
    /// Offers frames of one sender to an uplink with I/O control, and returns how many it took. The others wait, or are dropped.
    #[inline(never)]
    pub fn deliver_by_class(
        &mut self,
        batch: &Batch,
        picks: &[Pick],
        holds: &mut bool,
        now: Time,
        shell: &dyn Shell,
    ) -> usize {
        let End::Link(Link { control, .. }) = &mut self.end else { return 0 };
        let Some(mut control) = control.take() else { return 0 };
        // A class has ports, and the lane of one has the parts of a port side by side.
        let port = batch.sender.0;
        let mut all = Passed::default();
        let only = control.classifier.of_port(batch.origin.0);
        if let Some(class) = only.filter(|class| !control.classifier.marks(*class)) {
            self.pass(&mut control, Lane { class, port }, batch, picks, &mut all, now);
        } else {
            self.pass_each(&mut control, batch, picks, &mut all, now);
        }
        let may_hold = all.waits && self.much_waits(&control, only, port);
        if let End::Link(link) = &mut self.end {
            link.control = Some(control);
            if all.is_due {
                // Some may go now, and no event of the uplink says so.
                link.limited_until = None;
                self.room.insert(0);
                shell.schedule();
            }
        }
        if may_hold {
            *holds |= self.hold(PortId(port), now, shell);
        }
        all.taken
    }

    /// Whether so much waits of each class that a port uses that it may be held until little is left of one. A port that waited for one of
    /// its classes would take from the others what they are promised: frames of a class that waits longer than the others are dropped
    /// when its room is used up.
    ///
    /// While little waits the port goes on. If it were held for its first frame, its next one would come when the first had left, and wait
    /// for another packet of somebody else.
    fn much_waits(&mut self, control: &Control, only: Option<u16>, port: u16) -> bool {
        let few = self.backlog.few();
        if let Some(class) = only {
            return self.backlog.lane_bytes(Lane { class, port }) > few;
        }
        let used = control.used.get(usize::from(port)).copied().unwrap_or_default();
        let classes = (0..control.states.len() as u16).map(|class| (used.has(class), Lane { class, port }));
        let waiting = classes.map(|(is_used, lane)| (is_used, self.backlog.lane_bytes(lane)));
        let mut lanes = waiting.filter(|(is_used, bytes)| *is_used || *bytes > 0);
        let by_lane = lanes.clone().count() > 1;
        let waits = lanes.all(|(_, bytes)| bytes > few);
        self.backlog.release_by_lane(PortId(port), by_lane);
        waits
    }

    /// Frames of several classes: those that follow one another and are of one class go together.
    fn pass_each(&mut self, control: &mut Control, batch: &Batch, picks: &[Pick], all: &mut Passed, now: Time) {
        let port = batch.sender.0;
        let mut marked = arrayvec::ArrayVec::<Pick, { nicety_adapter::PACKETS }>::new();
        let mut of = None;
        for &pick in picks.iter().take(nicety_adapter::PACKETS) {
            let Some(packet) = batch.packet(pick.packet) else { continue };
            let class = control.classifier.of(batch.origin.0, batch, packet, pick);
            if of != Some(class)
                && let Some(used) = control.used.get_mut(usize::from(port))
            {
                used.insert(class, now);
            }
            if let Some(of) = of.replace(class)
                && of != class
            {
                self.pass(control, Lane { class: of, port }, batch, &marked, all, now);
                marked.clear();
            }
            marked.push(control.classifier.marked(class, batch, packet, pick));
        }
        if let Some(class) = of {
            self.pass(control, Lane { class, port }, batch, &marked, all, now);
        }
    }

    /// Frames of one class and sender.
    fn pass(&mut self, control: &mut Control, lane: Lane, batch: &Batch, picks: &[Pick], all: &mut Passed, now: Time) {
        // A frame that gets a code point needs a head of its own, and waits for its turn there.
        let dscp = control.classifier.dscp(lane.class);
        let Some(state) = control.states.get_mut(usize::from(lane.class)) else { return };
        let frames = Frames::new(batch, picks);
        // Frames that limits hold are in nobody's way.
        let limited_until = either!(&self.end, end => end.limited_until());
        let is_free = self.backlog.is_empty() || limited_until.is_some_and(|at| at > now);
        let passes = is_free
            && dscp.is_none()
            && self
                .backlog
                .control()
                .is_some_and(|scheduler| !scheduler.is_limited(lane) && scheduler.admits(lane, now));
        let delivery = if passes { self.deliver(&frames, now) } else { nicety_adapter::Delivery::all_refused(&frames) };
        if self.has_failed() {
            return;
        }
        let refused = delivery.refused();
        if passes {
            let mut bytes = 0;
            for (index, _, packet) in frames.iter() {
                if refused & 1 << index == 0 {
                    bytes += packet.wire_bytes();
                }
            }
            let taken = picks.len() - refused.count_ones() as usize;
            if taken > 0 {
                state.packets += taken as u64;
                state.bytes += bytes;
                all.taken += taken;
                if let Some(scheduler) = self.backlog.control() {
                    scheduler.passed(lane, bytes, now);
                }
            }
        }
        if refused == 0 {
            return;
        }
        all.waits = true;
        all.is_due |= !passes && (is_free || limited_until.is_some());
        let kept = caught(|| {
            for refusal in delivery.refusals() {
                let Some(pick) = picks.get(usize::from(refusal.pick)) else { continue };
                let Some(packet) = batch.packet(pick.packet) else { continue };
                let pick = Pick { from: refusal.from, ..*pick };
                let is_kept = match dscp {
                    None => self.backlog.push_in(lane, batch, packet, pick, now),
                    Some(dscp) => self.push_marked(lane, dscp, batch, packet, pick, now),
                };
                if is_kept {
                    state.waiting += 1;
                } else {
                    state.dropped += 1;
                    self.counters.receive_drop(self.backlog.refusal(packet.len()));
                }
            }
        });
        if let Err(cause) = kept {
            self.fail(cause);
        }
    }

    /// Keeps a frame with a code point. False if there is no room.
    fn push_marked(&mut self, lane: Lane, dscp: u8, batch: &Batch, packet: &Packet, pick: Pick, now: Time) -> bool {
        let (head, mut copy) = (batch.head(packet), [0; HEAD_MOST]);
        let (Some(marked), Some(l3)) = (copy.get_mut(..head.len()), batch.layout(packet).l3) else {
            return self.backlog.push_in(lane, batch, packet, pick, now);
        };
        marked.copy_from_slice(head);
        mark_dscp(marked, l3.offset.into(), dscp);
        self.backlog.push_in_with(lane, Arrival { head: marked, ..Arrival::new(batch, packet, pick) }, now)
    }
}
