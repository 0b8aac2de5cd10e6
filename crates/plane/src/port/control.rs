//! I/O control of an uplink: frames are divided into classes, and each class keeps what it was promised.

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Delivery, Frames, HEAD_MAX, PACKETS, Pick, PortId, Reason, Time};
use nicety_ioc::{Class, Classifier, Lane, mark_dscp};
use nicety_memory::MapError;

use super::caught::caught;
use super::end::End;
use super::link::Used;
use super::{Inner, Port, Shell};
use crate::backlog::Arrival;
use crate::inward::{Inward, InwardControl};
use crate::losses::Losses;
use crate::stage::{ClassState, Terms, wire_bytes, with_mark};

/// The fate of a class's frames of one batch.
#[derive(Debug, Default)]
struct Passed {
    taken: usize,
    waits: bool,
    /// Frames wait although the uplink has refused none of them.
    is_due: bool,
}

impl Port {
    /// Divides this uplink among classes. Without classes its senders have equal parts. The first class has all frames that fit no other
    /// class. No frame that waits is lost.
    pub fn set_io_control(&self, classes: &[Class], now: Time) {
        let terms = Terms::new(classes, None);
        let mut used = if classes.is_empty() { Vec::new() } else { vec![Used::default(); nicety_switch::PORTS] };
        let mut inner = self.lock();
        let Inner { end: End::Link(link), stage, room, pending, .. } = &mut *inner else { return };
        std::mem::swap(&mut link.used, &mut used);
        let old = stage.change(terms, now);
        room.insert(0);
        pending.insert(0);
        drop(inner);
        drop((old, used));
        self.shell.schedule();
    }

    /// Turns control of the frames that come in by this uplink on, or off with `None`. If only rate and classes change, no waiting frame is
    /// lost. If the buffer's size changes or control ends, the waiting frames are lost, and counted.
    pub fn set_inward(&self, control: Option<&InwardControl>, now: Time) -> Result<(), MapError> {
        let Some(slot) = self.own_inward() else { return Ok(()) };
        let mut new = None;
        if let Some(control) = control {
            let mut terms = Some(control.terms());
            let change = |inward: &mut Inward| {
                let fits = inward.buffer_bytes() == control.buffer_bytes;
                terms.take_if(|_| fits).map(|terms| inward.change(terms, now))
            };
            let old = slot.with(change);
            let Some(terms) = terms else {
                drop(old);
                self.shell.schedule();
                return Ok(());
            };
            new = Some(Box::new(Inward::new(control.buffer_bytes, terms)?));
        }
        let (old, lost) = slot.replace(new);
        self.lose(lost, Reason::Removed);
        drop(old);
        Ok(())
    }

    /// Adds another process's counts of this uplink's classes, outward and inward. Call it when the uplink has its I/O control, and before
    /// it is served.
    pub fn count_classes_on(&self, outward: &[ClassState], inward: &[ClassState]) {
        self.lock().stage.count_on(outward);
        self.inward().with(|control| control.count_on(inward));
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
        (holds, losses): (&mut bool, &mut Losses),
        now: Time,
        shell: &dyn Shell,
    ) -> usize {
        let Some(classifier) = self.stage.classifier() else { return 0 };
        // A class has ports, and the lane of one has the parts of a port side by side.
        let port = batch.sender.0;
        let mut all = Passed::default();
        let only = classifier.of_port(batch.origin.0);
        if let Some(class) = only.filter(|class| !classifier.marks(*class)) {
            self.pass(Lane { class, port }, batch, picks, (&mut all, losses), now);
        } else {
            let (classes, marked) = divide(classifier, batch, picks);
            let mut run = 0;
            for classes in classes.chunk_by(|one, next| one == next) {
                let (Some(&class), Some(picks)) = (classes.first(), marked.get(run..run + classes.len())) else {
                    break;
                };
                run += classes.len();
                if let End::Link(link) = &mut self.end
                    && let Some(used) = link.used.get_mut(usize::from(port))
                {
                    used.insert(class, now);
                }
                self.pass(Lane { class, port }, batch, picks, (&mut all, losses), now);
            }
        }
        let may_hold = all.waits && self.much_waits(only, port);
        if all.is_due {
            // Some may go now, and no event of the uplink says so.
            self.stage.limited_until = None;
            self.room.insert(0);
            shell.schedule();
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
    fn much_waits(&mut self, only: Option<u16>, port: u16) -> bool {
        let Self { end: End::Link(link), stage, .. } = self else { return false };
        let few = stage.backlog.few();
        if let Some(class) = only {
            return stage.backlog.lane_bytes(Lane { class, port }) > few;
        }
        let used = link.used.get(usize::from(port)).copied().unwrap_or_default();
        let classes = (0..stage.class_count()).map(|class| (used.has(class), Lane { class, port }));
        let waiting = classes.map(|(is_used, lane)| (is_used, stage.backlog.lane_bytes(lane)));
        let mut lanes = waiting.filter(|(is_used, bytes)| *is_used || *bytes > 0);
        let by_lane = lanes.clone().count() > 1;
        let waits = lanes.all(|(_, bytes)| bytes > few);
        stage.backlog.release_by_lane(PortId(port), by_lane);
        waits
    }

    /// Frames of one class and sender.
    fn pass(
        &mut self,
        lane: Lane,
        batch: &Batch,
        picks: &[Pick],
        (all, losses): (&mut Passed, &mut Losses),
        now: Time,
    ) {
        // A frame that gets a code point needs a head of its own, and waits for its turn there.
        let dscp = self.stage.classifier().and_then(|classifier| classifier.dscp(lane.class));
        let frames = Frames::new(batch, picks);
        // Frames that limits hold are in nobody's way.
        let limited_until = self.stage.limited_until;
        let is_free = self.stage.backlog.is_empty() || limited_until.is_some_and(|at| at > now);
        let passes = is_free && dscp.is_none() && self.stage.admits(lane, now);
        let delivery = if passes { self.deliver(&frames, now) } else { Delivery::all_refused(&frames) };
        if self.has_failed() {
            return;
        }
        let refused = delivery.refused();
        let taken = picks.len() - refused.count_ones() as usize;
        if taken > 0 {
            let went = (0..).zip(picks).filter(|(index, _)| refused & 1 << index == 0).map(|(_, pick)| pick);
            self.stage.passed(lane, taken, wire_bytes(batch, went).0, now);
            all.taken += taken;
        }
        if refused == 0 {
            return;
        }
        all.waits = true;
        all.is_due |= !passes && (is_free || limited_until.is_some());
        let Self { stage, counters, .. } = self;
        let kept = caught(|| {
            for refusal in delivery.refusals() {
                let Some(pick) = picks.get(usize::from(refusal.pick)) else { continue };
                let Some(packet) = batch.packet(pick.packet) else { continue };
                let pick = Pick { from: refusal.from, ..*pick };
                let mut copy = [0; HEAD_MAX];
                let marked =
                    dscp.and_then(|dscp| with_mark(batch, packet, &mut copy, |head, l3| mark_dscp(head, l3, dscp)));
                let plain = Arrival::new(batch, packet, pick);
                if !stage.keep(lane, Arrival { head: marked.unwrap_or(plain.head), ..plain }, now) {
                    let reason = stage.backlog.refusal(packet.len());
                    counters.receive_drop(reason);
                    losses.note(pick.packet, reason);
                }
            }
        });
        if let Err(cause) = kept {
            self.fail(cause);
        }
    }
}

/// The class of each frame, and its pick with the mark of its class.
fn divide(classifier: &Classifier, batch: &Batch, picks: &[Pick]) -> (ArrayVec<u16, PACKETS>, ArrayVec<Pick, PACKETS>) {
    let known = picks.iter().take(PACKETS).filter_map(|pick| Some((*pick, batch.packet(pick.packet)?)));
    let class_of = |(pick, packet)| {
        let class = classifier.of(batch.origin.0, batch, packet, pick);
        (class, classifier.marked(class, batch, packet, pick))
    };
    known.map(class_of).unzip()
}
