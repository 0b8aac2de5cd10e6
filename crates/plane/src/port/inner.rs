//! The work of a port with its lock held, the same for both ends.

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Event, Frames, Outbox, Packet, Pick, PortId, Progress, Reason,
    Set, Time,
};
use std::sync::Arc;

use nicety_memory::Map;

use super::caught::caught;
use super::end::{End, either};
use super::side::Side;
use super::{Inner, Saved, Shell};
use crate::backlog::Drained;
use crate::losses::Losses;
use crate::order::LaneKey;

/// A port that a link held: its number, and which of the ports that have had it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldSender {
    pub sender: PortId,
    pub tenure: u64,
}

/// The charge, in bytes, for a descriptor read beyond the usual: a copy of this many bytes takes as long.
const DESCRIPTOR_COST: u64 = 32;
/// The charge, in bytes, for a VMM's message that a control thread handles, and for a change of memory. It equals the charge for
/// messages that a worker handles.
pub(super) const MESSAGE_COST: u64 = 1 << 10;
pub(super) const CHANGE_COST: u64 = 16 * MESSAGE_COST;
/// The largest charge for work between a port's turns.
const OWED_MAX: u64 = 128 << 10;

/// The cost of this many descriptors.
fn bytes_of(descriptors: u32) -> u64 {
    u64::from(descriptors) * DESCRIPTOR_COST
}

impl Inner {
    /// Calls the end, which may panic: then the port fails.
    #[inline]
    pub fn ask<R: Default>(&mut self, act: impl FnOnce(&mut End, &mut Counters) -> R) -> R {
        let Self { end, counters, .. } = self;
        let called = caught(|| act(end, counters));
        either!(end, end => end.publish());
        called.unwrap_or_else(|cause| {
            self.fail(cause);
            R::default()
        })
    }

    /// Calls the adapter. `None` if there is none, or it has panicked.
    pub fn call<R>(&mut self, now: Time, act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> R) -> Option<R> {
        self.ask(|end, counters| match end {
            End::Guest(guest) => guest.call(counters, now, act),
            End::Link(_) => None,
        })
    }

    /// Replaces the guest's memory; returns the old map. Stopped queues are checked again: their missing memory may be
    /// mapped now.
    pub fn replace_memory(&mut self, memory: Arc<Map>, now: Time) -> Arc<Map> {
        let old = either!(&mut self.end, end => end.replace_memory(memory));
        self.call(now, |adapter, cx| {
            let numbers = 0..2 * adapter.transmit_queues();
            let stalled = numbers.filter(|number| adapter.stall(*number).is_some());
            let (mut work, mut room) = (Set::default(), Set::default());
            stalled.for_each(|number| if number % 2 == 0 { &mut room } else { &mut work }.insert(number / 2));
            adapter.notice(Event::Memory, cx);
            cx.out.work.extend(work);
            cx.out.room.extend(room);
        });
        old
    }

    /// The adapter's state, and the time by its clock.
    pub fn save(&mut self, now: Time) -> Option<Saved> {
        self.call(now, |adapter, cx| {
            let state = match cx.page {
                Some(page) => adapter.save_mapped(page),
                None => adapter.save(),
            };
            Saved { at: cx.now, state }
        })
    }

    /// Whether frames may be fetched now.
    #[inline]
    pub fn may_fetch(&self) -> bool {
        self.attached
            && !self.stopped
            && self.waiting == 0
            && !self.has_failed()
            && !either!(&self.end, end => end.is_held())
    }

    /// Whether there are tokens for frames from its guest.
    #[inline]
    pub fn may_send(&self, now: Time) -> bool {
        either!(&self.end, end => end.may_send(now))
    }

    /// Whether there are tokens for frames for its guest.
    #[inline]
    pub fn may_receive(&self, now: Time) -> bool {
        either!(&self.end, end => end.may_receive(now))
    }

    /// Whether the backlog has frames for which there is room.
    #[inline]
    pub fn may_drain(&self) -> bool {
        either!(&self.end, end => end.may_drain(self.room, &self.stage))
    }

    /// Whether frames must wait in the receive buffer before the adapter or uplink is asked: behind others, or for tokens.
    #[inline]
    pub fn must_wait(&self, now: Time) -> bool {
        either!(&self.end, end => end.must_wait(!self.stage.backlog.is_empty(), now))
    }

    /// The reason why frames for it are dropped, if it cannot take any.
    #[inline]
    pub fn absent(&self) -> Option<Reason> {
        match self.has_failed() {
            true => Some(Reason::Failed),
            false => (!self.attached || self.stopped).then_some(Reason::NoVm),
        }
    }

    /// Whether its guest's driver has started its adapter; a link is always ready.
    pub fn is_driven(&self) -> bool {
        // If it panics here, its next turn reports that.
        caught(|| either!(&self.end, end => end.is_driven())).unwrap_or(false)
    }

    /// Asks for a turn at the time of the next tokens, if frames wait for them.
    #[inline]
    pub fn wait_for_tokens(&mut self, now: Time, shell: &dyn Shell) {
        let (sends, receives) = (!self.pending.is_empty() && self.may_fetch(), self.may_drain());
        let at = either!(&mut self.end, end => end.tokens_at(sends, receives, &mut self.counters, now));
        if let Some(at) = at {
            shell.wake_at(at);
        }
    }

    /// Drops frames that were offered.
    #[cold]
    pub fn drop_picks(&mut self, picks: &[Pick], reason: Reason, losses: &mut Losses) {
        for pick in picks {
            self.counters.receive_drop(reason);
            losses.note(pick.packet, reason);
        }
    }

    /// Delivers as many frames as there are tokens for, if the backlog is empty; the others wait. Returns how many were taken.
    pub fn deliver_shaped(&mut self, batch: &Batch, picks: &[Pick], losses: &mut Losses, now: Time) -> usize {
        let is_behind = !self.stage.backlog.is_empty();
        let End::Guest(guest) = &mut self.end else { return 0 };
        guest.pool(is_behind);
        let bytes = |pick: &Pick| batch.packet(pick.packet).map_or(0, Packet::wire_bytes);
        let tokens = if guest.must_wait(is_behind, now) { 0 } else { guest.receive_tokens(now) };
        // A receiver usually gets the whole batch, and has tokens for it. Then no frame is looked at.
        let is_whole = picks.len() == batch.len() && batch.bytes() <= tokens;
        let mut left = tokens;
        let fits = |pick: &&Pick| {
            let has_tokens = left > 0;
            left = left.saturating_sub(bytes(pick));
            has_tokens
        };
        let count = if is_whole { picks.len() } else { picks.iter().take_while(fits).count() };
        let (go, wait) = picks.split_at(count);
        let (mut refused, mut missed) = (0, 0);
        if !go.is_empty() {
            let delivery = self.deliver(&Frames::new(batch, go), now);
            let taken = go.iter().enumerate().filter(|(index, _)| !delivery.is_refused(*index));
            let is_taken = is_whole && delivery.refused() == 0;
            let sum = if is_taken { batch.bytes() } else { taken.map(|(_, pick)| bytes(pick)).sum() };
            either!(&mut self.end, end => end.charge_receive(sum, now));
            refused = delivery.refused().count_ones() as usize;
            delivery.again(go).for_each(|pick| missed += u32::from(!self.keep_in_order(batch, pick, losses, now)));
        }
        if !wait.is_empty() && !self.has_failed() {
            self.room.insert(0);
        }
        wait.iter().for_each(|pick| missed += u32::from(!self.keep_in_order(batch, *pick, losses, now)));
        if missed > 0 {
            self.report_missed(missed, now);
        }
        count.saturating_sub(refused)
    }

    /// Puts one frame behind all others in the backlog. False if there was no room.
    fn keep_in_order(&mut self, batch: &Batch, pick: Pick, losses: &mut Losses, now: Time) -> bool {
        let Some(packet) = batch.packet(pick.packet) else { return true };
        if self.has_failed() {
            self.drop_picks(&[pick], Reason::Failed, losses);
        } else if !self.stage.backlog.push(LaneKey::Queue(0), batch, packet, pick, now) {
            self.drop_picks(&[pick], self.stage.backlog.refusal(packet.len()), losses);
            return false;
        }
        true
    }

    /// Tells the adapter of frames that found no room.
    #[cold]
    pub fn report_missed(&mut self, frames: u32, now: Time) {
        self.ask(|end, counters| either!(end, end => end.missed(frames, counters, now)));
    }

    /// Polls queues with mapped doorbells at this time.
    pub fn poll_by(&mut self, at: Time, shell: &dyn Shell) {
        self.poll_at = Some(at);
        shell.wake_at(at);
    }

    /// Offers frames. A panic drops those that were not taken or dropped before it.
    pub fn deliver(&mut self, frames: &Frames<'_>, now: Time) -> Delivery {
        let settled = self.settled_frames();
        let delivery = self.ask(|end, counters| either!(end, end => end.deliver(frames, counters, now)));
        if self.has_failed() {
            self.drop_unsettled(frames.picks.len(), settled);
        }
        delivery
    }

    /// Whether what its guest sends waits in a gate.
    #[inline]
    pub fn is_gated(&self) -> bool {
        matches!(&self.end, End::Guest(guest) if guest.is_gated())
    }

    /// Fetches packets of a queue into a batch, or what an agent says to the switch.
    pub fn fetch(&mut self, id: PortId, queue: u16, budget: Budget, batch: &mut Batch, now: Time) -> Progress {
        batch.start(either!(&self.end, end => end.source()), id, queue);
        let progress = if self.speaks_inward && self.speak_inward(queue, budget, batch, now) {
            self.is_agents_batch = true;
            Progress { more: true, armed: false }
        } else {
            self.ask(|end, counters| either!(end, end => end.fetch(budget, batch, counters, now)))
        };
        if self.has_failed() {
            self.drop_fetched(batch);
            // Nothing to check again.
            return Progress { more: false, armed: true };
        }
        either!(&mut self.end, end => end.fetched(batch, now));
        progress
    }

    /// The adapter panicked in the fetch and cannot complete the batch: drop its packets.
    #[cold]
    fn drop_fetched(&mut self, batch: &mut Batch) {
        for _ in batch.packets() {
            self.counters.transmit_drop(Reason::Failed);
        }
        batch.release();
    }

    /// The packets of a batch are done: complete them.
    pub fn complete(&mut self, batch: &Batch, now: Time) {
        if !std::mem::take(&mut self.is_agents_batch) {
            self.ask(|end, counters| either!(end, end => end.complete(batch, counters, now)));
        }
    }

    /// Puts refused frames into the backlog, or drops them with a reason.
    pub fn keep(&mut self, batch: &Batch, picks: &[Pick], delivery: &Delivery, losses: &mut Losses, now: Time) {
        let mut missed = 0;
        for refusal in delivery.refusals() {
            let Some(pick) = picks.get(usize::from(refusal.pick)) else { continue };
            let Some(packet) = batch.packet(pick.packet) else { continue };
            let lane = either!(&self.end, end => end.lane(batch.sender, refusal.queue.into()));
            if !self.stage.backlog.push(lane, batch, packet, Pick { from: refusal.from, ..*pick }, now) {
                self.drop_picks(&[*pick], self.stage.backlog.refusal(packet.len()), losses);
                missed += 1;
            }
        }
        if missed > 0 {
            self.report_missed(missed, now);
        }
    }

    /// Offers frames of one lane of the backlog, as many as one hold and the budget allow.
    pub fn drain(&mut self, budget: Budget, now: Time) -> Drained {
        let settled = self.settled_frames();
        let Self { end, counters, stage, room, pace, .. } = self;
        let (tokens, opens_all) = either!(end, end => (end.receive_tokens(now), end.opens_all()));
        let bytes = budget.bytes.min(tokens).min(Budget::TURN.bytes);
        let few = Budget { packets: budget.packets.min(pace.frames()), bytes };
        let open = |lane| opens_all || matches!(lane, LaneKey::Queue(queue) if room.contains(queue));
        let drained = caught(|| {
            let deliver = |frames: &Frames<'_>| either!(end, end => end.deliver(frames, counters, now));
            stage.backlog.drain(open, few, now, deliver)
        });
        either!(end, end => end.publish());
        let drained = match drained {
            Ok(Ok(drained)) => drained,
            Ok(Err(Some(until))) => {
                stage.limited_until = Some(until);
                return Drained::default();
            }
            Ok(Err(None)) => Drained::default(),
            Err(cause) => return self.fail_drained(cause, settled),
        };
        if opens_all && (drained.refused || drained.packets == 0) {
            *room = Set::default();
        } else if drained.refused || drained.packets == 0 {
            // The adapter reports when there is room again, or has just done so.
            room.remove(drained.lane.number());
        }
        stage.sent(&drained, now);
        either!(end, end => end.drained(&drained, &mut stage.backlog, now));
        drained
    }

    /// The adapter or uplink panicked while it was offered the backlog: no frame has left the backlog, and all of them count as
    /// dropped.
    #[cold]
    fn fail_drained(&mut self, cause: String, settled_before: u64) -> Drained {
        let taken = self.settled_frames().saturating_sub(settled_before);
        self.fail(cause);
        let drops = &mut self.counters.receive_drops[Reason::Failed as usize];
        *drops = drops.saturating_sub(taken);
        Drained::default()
    }

    /// Holds a sender, if this is a link that takes frames. True if it was not held before.
    pub fn hold(&mut self, sender: PortId, now: Time, shell: &dyn Shell) -> bool {
        // Nobody waits for a mirror.
        !self.in_team.is_spread
            && self.mirror.is_none()
            && !self.has_failed()
            && either!(&mut self.end, end => end.hold_sender(sender, &mut self.stage.backlog, now, shell))
    }

    /// The watchdog: releases the senders of a link that has taken nothing for too long, and returns them.
    pub fn watch(&mut self, now: Time, shell: &dyn Shell) -> Vec<HeldSender> {
        match either!(&mut self.end, end => end.watch(&self.stage.backlog, now, shell)) {
            true => self.let_all_go(),
            false => Vec::new(),
        }
    }

    /// Releases all held senders, and returns them.
    pub fn let_all_go(&mut self) -> Vec<HeldSender> {
        let all = self.stage.backlog.let_all_go();
        all.into_iter().filter_map(|sender| self.held(sender)).collect()
    }

    /// A sender that was released. `None` if it was not named yet: whoever names it finds it released, and lets it go.
    pub fn held(&mut self, sender: PortId) -> Option<HeldSender> {
        Some(HeldSender { sender, tenure: self.stage.backlog.take_holder(sender)? })
    }

    /// The cost of the calls since the last [`settle`](Self::settle), beside their frames.
    pub fn excess(&self) -> u64 {
        bytes_of(either!(&self.end, end => end.excess()))
    }

    /// Charges the next turn.
    pub fn owe(&mut self, bytes: u64) {
        self.owed = (self.owed + bytes).min(OWED_MAX);
    }

    /// Number of transmit packets dropped so far.
    pub fn transmit_drops(&self) -> u64 {
        // Wraps, so that the compiler adds several at once.
        self.counters.transmit_drops.iter().fold(0, |sum, drops| sum.wrapping_add(*drops))
    }

    /// Frames that the adapter refused to send because they would pass for another's.
    pub fn forged(&self) -> u64 {
        self.counters.transmit_drops.get(Reason::Forged as usize).copied().unwrap_or(0)
    }

    /// Drops what waits.
    pub fn drop_backlog(&mut self, reason: Reason) {
        let waiting = self.stage.clear();
        either!(&mut self.end, end => end.cleared(&mut self.stage.backlog));
        for _ in 0..waiting {
            self.counters.receive_drop(reason);
        }
        self.room = Set::default();
    }

    /// Carries out what the adapter or uplink asks for, each once, however often it was asked.
    pub fn settle(&mut self, shell: &dyn Shell) {
        let asked = either!(&mut self.end, end => end.settle(&mut self.counters, shell));
        let Outbox { mut wake, work, room, excess, .. } = asked.unwrap_or_else(|cause| {
            self.fail(cause);
            Outbox::default()
        });
        if self.has_failed() {
            self.report_failure(shell);
            return;
        }
        if either!(&self.end, end => end.wakes_for_agents()) {
            let agents =
                self.agents.iter().filter_map(|placed| placed.agent.wake()).map(|at| at.max(self.hushed_until));
            // A port that has left gets no turns.
            wake = wake.into_iter().chain(agents).min().filter(|_| self.attached);
        }
        // An earlier wake-up is set already; that turn asks again if this time is still needed.
        if let Some(at) = wake
            && self.wake.is_none_or(|earlier| at < earlier)
        {
            self.wake = Some(at);
            shell.wake_at(at);
        }
        self.owe(bytes_of(excess));
        self.pending.extend(work);
        self.room.extend(room);
        if !work.is_empty() || (!room.is_empty() && self.may_drain()) {
            shell.schedule();
        }
    }
}
