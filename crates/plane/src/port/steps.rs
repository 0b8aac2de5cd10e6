//! The steps of a turn (`crate::turn`). Each takes the port's lock and releases it.

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Budget, Delivery, Frames, Pick, Progress, Reason, Time};

use super::caught::caught;
use super::end::{End, either};
use super::inner::HeldSender;
use super::{AGENTS, Inner, Port, Shell};
use crate::backlog::Drained;
use crate::lock::Held;
use crate::losses::Losses;
use crate::poll;
use crate::watch::Fate;

/// Results of the first steps of a turn.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// The result of the fetch, if there was one.
    pub progress: Option<Progress>,
    /// Frames that left the backlog, and their bytes.
    pub drained: usize,
    pub drained_bytes: u64,
    /// Packets that the fetch dropped.
    pub dropped: u64,
    /// The adapter's work beside its frames, in bytes.
    pub owed: u64,
    /// Held senders to release: those whose lanes were drained, and those of a stuck uplink.
    pub released: ArrayVec<HeldSender, RELEASED_MAX>,
    pub let_go: Vec<HeldSender>,
    /// All frames that waited when the member took over in its team were fetched.
    pub is_drained: bool,
}

/// The most that a turn of a guest's port drains. It is more than a turn fetches: a backlog that a burst has filled must shrink while a sender
/// goes on at full speed. Else every further frame would wait behind it, and be copied twice, for as long as the sender does not pause. An
/// uplink holds its senders instead.
const DRAINED: Budget = Budget { packets: 2 * Budget::TURN.packets, bytes: 2 * Budget::TURN.bytes };
/// Most senders that are released in a turn by the lanes that it drains; the other lanes are drained in the next one.
const RELEASED_MAX: usize = 8;
/// An owner that polls all the time does so for this long after a port's last frame. Then its guest is asked to notify: else each port that
/// ever sent would cost every round.
const POLLED_NS: u64 = 100_000_000;
/// Most frames that wait in a tap (its `txqueuelen`, 1000 as Linux makes it) before the first that came after them.
const WAITING_MAX: u32 = 1024;

impl Inner {
    /// A member that has just taken over has fetched so many frames. True if these were the last that waited before.
    #[cold]
    fn note_drained(&mut self, frames: usize, progress: Progress) -> bool {
        self.in_team.drained += frames as u32;
        let is_empty = !progress.more && !self.ask(|end, _| either!(end, end => end.withholds()));
        let is_drained = is_empty || self.in_team.drained >= WAITING_MAX;
        if is_drained {
            self.in_team.drained = 0;
        } else {
            self.pending.insert(0);
        }
        is_drained
    }

    /// The time that the adapter or uplink has asked for has come.
    fn tick(&mut self, now: Time, shell: &dyn Shell) {
        if self.ask(|end, counters| either!(end, end => end.tick(counters, now))) {
            self.room.insert(0);
            self.pending.insert(0);
        } else {
            self.settle(shell);
        }
    }
}

impl Port {
    /// Offers frames from the switch. Refused frames wait in the backlog, or are dropped with a reason. The port's [`Pace`] limits
    /// the frames per hold. True if the sender must be [held](Port::hold).
    pub(crate) fn offer(&self, batch: &Batch, picks: &[Pick], losses: &mut Losses, now: Time) -> bool {
        let (mut rest, mut holds) = (picks, false);
        while !rest.is_empty() {
            rest = self.offer_some(batch, rest, &mut holds, losses, now);
        }
        holds
    }

    /// Like [`Port::offer`], for one hold; returns the remaining frames. The adapter's requests are carried out after the last hold.
    #[inline]
    fn offer_some<'a>(
        &self,
        batch: &Batch,
        picks: &'a [Pick],
        holds: &mut bool,
        losses: &mut Losses,
        now: Time,
    ) -> &'a [Pick] {
        let mut inner = self.lock();
        let (picks, rest) = picks.split_at(picks.len().min(inner.pace.frames()));
        *holds |= self.offer_held(&mut inner, (batch, picks), rest.is_empty(), losses, now);
        rest
    }

    /// Like [`Port::offer`], each frame in a hold of its own; reports the fate of each.
    pub(crate) fn offer_each(
        &self,
        batch: &Batch,
        picks: &[Pick],
        losses: &mut Losses,
        now: Time,
        mut report: impl FnMut(Pick, Fate),
    ) -> bool {
        let (mut rest, mut holds) = (picks, false);
        while let Some((&pick, others)) = rest.split_first() {
            let mut inner = self.lock();
            let (drops, waiting) = (inner.counters.receive_drops, inner.stage.backlog.len());
            holds |= self.offer_held(&mut inner, (batch, &[pick]), others.is_empty(), losses, now);
            rest = others;
            let grown = drops.iter().zip(&inner.counters.receive_drops).position(|(before, after)| before != after);
            let fate = match grown.and_then(|reason| Reason::ALL.get(reason)) {
                Some(&reason) => Fate::Dropped(reason),
                None if inner.stage.backlog.len() > waiting => Fate::Waits,
                None => Fate::Taken,
            };
            drop(inner);
            report(pick, fate);
        }
        holds
    }

    /// Offers these frames to a locked port: the last ones, or others follow. True if the sender must be held.
    #[inline]
    fn offer_held(
        &self,
        inner: &mut Inner,
        (batch, picks): (&Batch, &[Pick]),
        is_last: bool,
        losses: &mut Losses,
        now: Time,
    ) -> bool {
        if let Some(reason) = inner.absent() {
            inner.drop_picks(picks, reason, losses);
            return false;
        }
        if self.is_looked_at_first() && self.look_first(inner, batch, picks, losses, now) {
            return false;
        }
        let (begin, mut holds) = (self.shell.now(now), false);
        let is_pooled = matches!(&inner.end, End::Guest(guest) if guest.is_pooled());
        let taken = match &inner.end {
            End::Guest(_) if is_pooled => inner.deliver_shaped(batch, picks, losses, now),
            End::Link(_) if inner.stage.is_controlled() => {
                inner.deliver_by_class(batch, picks, (&mut holds, losses), now, self.shell.as_ref())
            }
            End::Guest(_) | End::Link(_) => {
                let frames = Frames { batch, picks, held: inner.stage.backlog.queues() };
                let delivery =
                    if inner.must_wait(now) { Delivery::all_refused(&frames) } else { inner.deliver(&frames, now) };
                if delivery.refused() != 0 {
                    if let Err(cause) = caught(|| inner.keep(batch, picks, &delivery, losses, now)) {
                        inner.fail(cause);
                    }
                    holds = inner.hold(batch.sender, now, self.shell.as_ref());
                }
                // Refused frames touched none of the receiver's memory, so they do not count for its speed.
                picks.len().saturating_sub(delivery.refused().count_ones() as usize)
            }
        };
        if is_last {
            self.offered(inner, now);
        }
        if is_pooled {
            inner.wait_for_tokens(now, self.shell.as_ref());
        }
        inner.pace.took(taken, begin, self.shell.now(now));
        holds
    }

    /// A member of a team: drops the frames that wait if others of their flows may have overtaken them by now, or if the link is not used
    /// any more. Returns the senders that it held.
    #[cold]
    fn drop_overtaken(&self, inner: &mut Inner) -> Vec<HeldSender> {
        let Some(member) = &self.member else { return Vec::new() };
        let epoch = member.steering.epoch();
        let is_old = std::mem::replace(&mut inner.in_team.epoch, epoch) != epoch;
        if inner.stage.backlog.is_empty() || (!is_old && member.steering.is_usable(member.index)) {
            return Vec::new();
        }
        inner.drop_backlog(Reason::LinkDown);
        inner.let_all_go()
    }

    /// Looks at frames before they are offered. True if they are dropped: this is a member of a team, and its link is not used any more.
    /// The steering changes first, so none comes behind [`drop_overtaken`](Self::drop_overtaken).
    fn look_first(&self, inner: &mut Inner, batch: &Batch, picks: &[Pick], losses: &mut Losses, now: Time) -> bool {
        let Some(member) = &self.member else {
            inner.show(batch, picks, now);
            return false;
        };
        inner.in_team.is_spread = member.steering.spreads_a_port();
        let is_refused = !member.steering.is_usable(member.index);
        if is_refused {
            inner.drop_picks(picks, Reason::LinkDown, losses);
        }
        is_refused
    }

    /// After the last frames of an offer: carries out the adapter's requests.
    fn offered(&self, inner: &mut Inner, now: Time) {
        inner.active = now;
        inner.usual_idle.received();
        // The guest may answer, and a write to a mapped doorbell causes no event.
        if inner.poll_at.is_some_and(|at| at > now.after_ns(2 * poll::MIN_NS)) {
            inner.poll_by(now.after_ns(poll::MIN_NS), self.shell.as_ref());
        }
        inner.settle(self.shell.as_ref());
    }

    /// The current time, if the owner can read it in some nanoseconds.
    pub(crate) fn clock(&self, given: Time) -> Time {
        self.shell.now(given)
    }

    /// The uplink's descriptor is ready: the uplink can receive or send. The port's owner calls this, and then gives the port a turn.
    pub fn ready(&self) {
        let mut inner = self.lock();
        inner.room.insert(0);
        inner.pending.insert(0);
    }

    /// Packets of this transmit queue may be fetched again: asks for a turn. Any thread may call this.
    pub fn may_go(&self, queue: u16) {
        self.lock().pending.insert(queue);
        self.shell.schedule();
    }

    /// The first steps of a turn, with the lock held: tick, drain, fetch. Fetches at most one batch, and drains at most two, or one to an
    /// uplink. Releases the lock between two batches that it drains.
    pub(crate) fn gather(&self, batch: &mut Batch, budget: Budget, now: Time) -> Gathered {
        let mut gathered = Gathered::default();
        let mut inner = self.lock();
        if inner.has_failed() {
            if self.has_agents() {
                inner.attend(now);
            }
            gathered.let_go = inner.let_all_go();
            return gathered;
        }
        if inner.stopped {
            return gathered;
        }
        if inner.wake.is_some_and(|at| at <= now) {
            inner.wake = None;
            inner.tick(now, self.shell.as_ref());
        }
        inner.stage.pass_limit(now);
        either!(&mut inner.end, end => end.pass(now));
        gathered.let_go = inner.watch(now, self.shell.as_ref());
        if self.has_agents() {
            inner.speak_first(now);
        }
        if self.member.is_some() {
            gathered.let_go.extend(self.drop_overtaken(&mut inner));
        }
        let most = if matches!(inner.end, End::Guest(_)) { DRAINED } else { budget };
        inner = self.drain(inner, most, &mut gathered, now);
        if gathered.drained > 0 && inner.may_drain() {
            inner.ask(|end, _| either!(end, end => end.pause(now)));
        }
        if let Some(at) = inner.stage.limited_until {
            self.shell.wake_at(at);
        }
        let always = self.shell.always_polls() && now < inner.active.after_ns(POLLED_NS);
        let changed = either!(&mut inner.end, end => end.set_polls(always));
        if always || changed || inner.poll_at.is_some_and(|at| at <= now) {
            inner.poll_at = None;
            let polled = std::mem::take(&mut inner.polled);
            inner.pending.extend(polled);
        }
        let dropped = inner.transmit_drops();
        let forged = inner.forged();
        let drains = self.drains();
        gathered.progress = self.fetch(&mut inner, batch, budget, now);
        gathered.dropped = inner.transmit_drops().wrapping_sub(dropped);
        if drains && let Some(progress) = gathered.progress {
            gathered.is_drained = inner.note_drained(batch.len(), progress);
        }
        if inner.forged() != forged {
            self.log_refusal(&mut inner, Reason::Forged, now);
        }
        if !always && inner.poll_at.is_none() && !inner.polled.is_empty() {
            let at = inner.usual_idle.next(inner.active, now);
            inner.poll_by(at, self.shell.as_ref());
        }
        if self.has_agents() {
            inner.attend(now);
            if inner.agents.is_empty() {
                self.mark(AGENTS, false);
            }
            gathered.let_go.extend(self.drop_overtaken(&mut inner));
        }
        inner.settle(self.shell.as_ref());
        inner.wait_for_tokens(now, self.shell.as_ref());
        gathered.owed = std::mem::take(&mut inner.owed);
        gathered
    }

    /// Offers what waits, within the budget. Lets go of the lock between two lanes.
    #[inline]
    fn drain<'a>(
        &'a self,
        mut inner: Held<'a, Inner>,
        budget: Budget,
        gathered: &mut Gathered,
        now: Time,
    ) -> Held<'a, Inner> {
        let mut left = budget;
        let has_room = |left: &Budget| left.packets > 0 && left.bytes > 0;
        while inner.may_drain() && inner.may_receive(now) && has_room(&left) && !gathered.released.is_full() {
            if gathered.drained > 0 {
                inner.settle(self.shell.as_ref());
                drop(inner);
                inner = self.lock();
            }
            let begin = self.shell.now(now);
            let Drained { lane, packets, bytes, released, .. } = inner.drain(left, now);
            inner.pace.took(packets, begin, self.shell.now(now));
            gathered.drained += packets;
            gathered.drained_bytes += bytes;
            if released {
                // Never full: the walk ends before.
                let _pushed = inner.held(lane.port()).map(|held| gathered.released.try_push(held));
            }
            left = Budget { packets: left.packets - packets, bytes: left.bytes.saturating_sub(bytes + inner.excess()) };
        }
        inner
    }

    /// Fetches from the next queue that has work, if any may send. Returns the result.
    #[inline]
    fn fetch(&self, inner: &mut Inner, batch: &mut Batch, budget: Budget, now: Time) -> Option<Progress> {
        if !inner.may_fetch() || !inner.may_send(now) {
            return None;
        }
        let from = inner.next_queue;
        let queue = inner.pending.pop_from(from)?;
        // What a gate gives must leave within the lease, and the process may have stood still since this turn began.
        let now = if inner.is_gated() { self.shell.now(now) } else { now };
        let progress = inner.fetch(self.place.origin, queue, budget, batch, now);
        batch.sender = self.place.sender;
        inner.next_queue = queue + 1;
        inner.in_flight = !batch.is_empty();
        if inner.in_flight {
            let active = std::mem::replace(&mut inner.active, now);
            inner.usual_idle.ended(active, now);
        }
        if progress.more {
            inner.pending.insert(queue);
        } else if !progress.armed {
            inner.polled.insert(queue);
        }
        Some(progress)
    }

    /// The switch dropped frames of its guest.
    #[cold]
    #[inline(never)]
    fn count_drops(&self, inner: &mut Inner, drops: &[(u16, Reason)], now: Time) {
        for (_, reason) in drops {
            inner.counters.transmit_drop(*reason);
        }
        if let Some((_, reason)) = drops.iter().find(|(_, reason)| reason.is_refusal()) {
            self.log_refusal(inner, *reason, now);
        }
    }

    /// The port's policy refused a frame of its guest.
    #[cold]
    fn log_refusal(&self, inner: &mut Inner, reason: Reason, now: Time) {
        if either!(&mut inner.end, end => end.logs(now)) {
            self.shell.refused(reason);
        }
    }

    /// The last step of a turn: returns the batch's descriptors, and counts drops.
    pub(crate) fn finish(&self, batch: &Batch, drops: &[(u16, Reason)], now: Time) {
        let mut inner = self.lock();
        if !drops.is_empty() {
            self.count_drops(&mut inner, drops, now);
        }
        inner.complete(batch, now);
        inner.in_flight = false;
        if inner.waiting > 0 {
            self.inner.completed();
        }
        inner.settle(self.shell.as_ref());
    }
}
