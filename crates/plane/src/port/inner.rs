//! The state that a port's lock guards: its adapter or uplink, requests and backlog. All code here runs with the lock held.

use std::sync::Arc;

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Event, Frames, Outbox, Packet, Pick, PortId, Progress, Reason,
    Set, Shape, Shaper, Time, Uplink,
};
use nicety_memory::{Map, Refusals, Rights, Window};

use super::caught::caught;
use super::control::Control;
use super::copies::Copies;
use super::family::Membership;
use super::voice::{Agents, Voice};
use super::{End, Saved, Shell};
use crate::backlog::{Backlog, Drained};
use crate::pace::Pace;
use crate::poll::UsualIdle;

pub(super) struct Inner {
    pub end: End,
    /// The family of an adapter that is a function.
    pub family: Option<Membership>,
    /// The link of the adapter, if its host decides it.
    pub link: Option<bool>,
    pub memory: Arc<Map>,
    pub page: Option<Arc<Map>>,
    pub out: Outbox,
    pub counters: Counters,
    pub pending: Set,
    /// The queue to fetch from next, among those with work.
    pub next_queue: u16,
    /// Queues with mapped doorbells, and the time of their next poll.
    pub polled: Set,
    pub poll_at: Option<Time>,
    pub usual_idle: UsualIdle,
    /// Time of the last frames in either direction.
    pub active: Time,
    /// Receive queues with room for waiting frames; an uplink sets any number.
    pub room: Set,
    /// Number of uplinks that hold this port: above zero it fetches nothing. A release may arrive before its hold.
    pub holds: i32,
    /// The time of the next check whether an uplink that holds senders takes frames, and since when it has taken none.
    pub watch_at: Option<Time>,
    pub stuck_since: Time,
    /// The uplink is stuck: it holds no sender until it takes frames again.
    pub stuck: bool,
    /// A member of a team that spreads each sender's flows: it holds nobody, because a sender that waits for one full link leaves the
    /// others empty. Frames for a full link are dropped, as Linux's bonding and its links' queues do.
    pub is_spread: bool,
    /// The adapter's work beside its frames, in bytes: charged to the next turn.
    pub owed: u64,
    pub wake: Option<Time>,
    /// The adapter's clock minus the port's, in nanoseconds: after a restore the adapter's clock continues from the time of saving.
    pub shift_ns: i64,
    pub backlog: Backlog,
    /// I/O control, if this uplink has it.
    pub control: Option<Box<Control>>,
    /// What it may still get of a mirror's copies, if it is a mirror's port.
    pub copies: Option<Copies>,
    /// Limits hold all frames that wait until then.
    pub limited_until: Option<Time>,
    /// Token buckets for what its guest sends and receives; uplinks have none.
    pub transmit: Option<Shaper>,
    pub receive: Option<Shaper>,
    /// Time of the next tokens for the waiting frames. `None` while nothing waits.
    pub shaped_at: Option<Time>,
    /// Frames from its guest, and frames for it, wait for tokens; this wait is counted up to here.
    pub throttled_since: [Option<Time>; 2],
    /// The backlog is one queue in order of arrival, for all receive queues: room in any queue opens it.
    pub pooled: bool,
    /// Refusals are logged, from this time on.
    pub logs: Option<Time>,
    /// Replaces the backlog once that is empty.
    pub next_backlog: Option<Box<Backlog>>,
    /// A backlog that was replaced in a turn. Control threads free it: no worker unmaps memory.
    pub spent_backlog: Option<Box<Backlog>>,
    pub attached: bool,
    /// Its state was saved: it is stopped until it is restored, or its VM detaches.
    pub stopped: bool,
    /// Packets sent before the current VM attached.
    pub sent_before: u64,
    /// Packets received before the current VM attached; 0 if another process has served that VM.
    pub received_before: u64,
    /// Frames dropped because of receive buffers before the current VM attached.
    pub misplaced_before: u64,
    /// A batch of this port is in flight: fetched, not completed.
    pub in_flight: bool,
    /// Some of its agents face the switch.
    pub speaks_inward: bool,
    /// The batch in flight is theirs, and not the adapter's or the uplink's.
    pub is_agents_batch: bool,
    /// Control threads that wait until no batch is in flight; while there are any, nothing is fetched.
    pub waiting: u32,
    /// Limits the frames per hold.
    pub pace: Pace,
    /// The loss of its memory was reported.
    pub damaged: bool,
    /// The failure was reported.
    pub is_failure_reported: bool,
    /// Guest errors that were reported.
    pub errors_reported: u64,
    /// Accesses that the guest's memory map refused, and how many of them were reported.
    pub refusals: Arc<Refusals>,
    pub refusals_reported: u64,
    /// Changes of the memory map.
    pub memory_changes: u64,
    /// Its agents, each in its role, and memory for what they say.
    pub agents: Agents,
    pub voice: Option<Box<Voice>>,
    /// The uplink had no room for an agent's frame: the agents' next turn is not before this time.
    pub hushed_until: Time,
    /// The team's epoch in which the waiting frames came, if this port is in a team.
    pub epoch: u32,
    /// Frames that were fetched since the member took over in its team, as long as those that waited then are dropped.
    pub drained: u32,
}

/// A port that an uplink held: its number, and which of the ports that have had it.
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
const OWED_MOST: u64 = 128 << 10;

/// Most asks that one call can make: after a restore, a reset, a message, an acknowledgement.
const ASKS_MOST: usize = 4;

/// Watchdog: an uplink that holds senders and has taken nothing for this long releases them until it takes frames again. Its peer
/// has stopped reading, and VMs must still reach each other. (Switches have such watchdogs against pause storms.)
const STUCK_NS: u64 = 1_000_000_000;

/// The cost of this many descriptors.
fn bytes_of(descriptors: u32) -> u64 {
    u64::from(descriptors) * DESCRIPTOR_COST
}

/// A time, shifted to a clock that is `ns` ahead.
fn shifted(time: Time, ns: i64) -> Time {
    Time(time.0.saturating_add_signed(ns))
}

/// A window onto the mapped page of doorbells.
fn window(page: &Option<Arc<Map>>) -> Option<Window<'_>> {
    let page = page.as_ref()?;
    page.window(0, page.mapped_bytes() as u32, Rights::BOTH).ok()
}

impl Inner {
    pub fn call<R>(&mut self, now: Time, act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> R) -> Option<R> {
        let Self { end, memory, page, out, counters, shift_ns, .. } = self;
        let End::Adapter(adapter) = end else { return None };
        let window = window(page);
        let now = shifted(now, *shift_ns);
        let mut cx = Context { memory, page: window.as_ref(), out, counters, now };
        let called = caught(|| act(adapter.as_mut(), &mut cx));
        memory.publish_log();
        match called {
            Ok(result) => Some(result),
            Err(cause) => {
                self.fail(cause);
                None
            }
        }
    }

    /// Replaces the guest's memory; returns the old map. Stopped queues are checked again: their missing memory may be
    /// mapped now.
    pub fn replace_memory(&mut self, mut memory: Arc<Map>, now: Time) -> Arc<Map> {
        Arc::make_mut(&mut memory).report_to(&self.refusals);
        self.memory_changes += 1;
        let old = std::mem::replace(&mut self.memory, memory);
        self.damaged = false;
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

    /// Calls the uplink.
    pub fn call_uplink<R: Default>(&mut self, act: impl FnOnce(&mut dyn Uplink, &mut Counters) -> R) -> R {
        let Self { end: End::Uplink(uplink), counters, .. } = self else { return R::default() };
        caught(|| act(uplink.as_mut(), counters)).unwrap_or_else(|cause| {
            self.fail(cause);
            R::default()
        })
    }

    /// Whether frames may be fetched from its guest now.
    pub fn may_fetch(&self) -> bool {
        self.attached && !self.stopped && self.waiting == 0 && self.holds <= 0 && !self.has_failed()
    }

    /// Whether there are tokens for its guest's transmit frames.
    pub fn may_send(&self, now: Time) -> bool {
        self.transmit.as_ref().is_none_or(|shaper| shaper.ready(now))
    }

    /// Whether there are tokens for its guest's receive frames.
    pub fn may_receive(&self, now: Time) -> bool {
        self.receive.as_ref().is_none_or(|shaper| shaper.ready(now))
    }

    /// The reason why frames for it are dropped, if it cannot take any.
    #[inline]
    pub fn absent(&self) -> Option<Reason> {
        match self.has_failed() {
            true => Some(Reason::Failed),
            false => (!self.attached || self.stopped).then_some(Reason::NoVm),
        }
    }

    pub fn is_uplink(&self) -> bool {
        matches!(self.end, End::Uplink(_))
    }

    /// Whether its guest's driver has started its adapter; an uplink is always ready.
    pub fn is_driven(&self) -> bool {
        match &self.end {
            // If it panics here, its next turn reports that.
            End::Adapter(adapter) => caught(|| adapter.is_driven()).unwrap_or(false),
            End::Uplink(_) | End::Failed(_) => true,
        }
    }

    /// Whether its receive frames are shaped, or wait in a single order.
    pub fn is_pooled(&self) -> bool {
        self.receive.is_some() || self.pooled
    }

    /// Whether frames must wait in the receive buffer before the adapter or uplink is asked: behind others, or for tokens.
    pub fn must_wait(&self, now: Time) -> bool {
        let is_behind = !self.backlog.is_empty();
        if self.is_pooled() { is_behind || !self.may_receive(now) } else { self.is_uplink() && is_behind }
    }

    /// Asks for a turn at the time of the next tokens, if frames wait for them.
    pub fn wait_for_tokens(&mut self, now: Time, shell: &dyn Shell) {
        let unready = |shaper: &Option<Shaper>| shaper.as_ref().filter(|s| !s.ready(now)).map(|s| s.ready_at(now));
        let sends = if !self.pending.is_empty() && self.may_fetch() { unready(&self.transmit) } else { None };
        let receives = if self.may_drain() { unready(&self.receive) } else { None };
        self.count_throttled(now, [sends.is_some(), receives.is_some()]);
        if let Some(at) = sends.into_iter().chain(receives).min()
            && self.shaped_at.is_none_or(|asked| at < asked || asked <= now)
        {
            self.shaped_at = Some(at);
            shell.wake_at(at);
        }
    }

    /// Counts the wait for tokens up to now. `waits`: frames from its guest, and frames for it, wait from now on.
    fn count_throttled(&mut self, now: Time, waits: [bool; 2]) {
        let Counters { transmit_throttled_ns, receive_throttled_ns, .. } = &mut self.counters;
        let sums = [transmit_throttled_ns, receive_throttled_ns];
        for ((since, sum), waits) in self.throttled_since.iter_mut().zip(sums).zip(waits) {
            if let Some(at) = since.take() {
                *sum += now.0.saturating_sub(at.0);
            }
            *since = waits.then_some(now);
        }
    }

    /// Sets the shapes. An unchanged token bucket keeps its tokens; a new one is full.
    pub fn set_shapes(&mut self, transmit: Option<Shape>, receive: Option<Shape>) {
        if matches!(self.end, End::Uplink(_)) {
            return;
        }
        for (shaper, shape) in [(&mut self.transmit, transmit), (&mut self.receive, receive)] {
            if shaper.as_ref().map(Shaper::shape) != shape {
                *shaper = shape.map(Shaper::new);
            }
        }
        if self.receive.is_some() || !self.backlog.is_empty() {
            // Offer the backlog once more; a queue without room refuses it.
            self.pooled = true;
            self.room.insert(0);
        }
    }

    /// Delivers as many frames as there are tokens for, if the backlog is empty; the others wait. Returns how many were taken.
    pub fn deliver_shaped(&mut self, batch: &Batch, picks: &[Pick], now: Time) -> usize {
        self.pooled = self.receive.is_some() || !self.backlog.is_empty();
        let bytes = |pick: &Pick| batch.packet(pick.packet).map_or(0, Packet::wire_bytes);
        let mut count = 0;
        if !self.must_wait(now) {
            let mut left = self.receive.as_ref().map_or(u64::MAX, |shaper| shaper.bytes(now).max(1));
            for pick in picks {
                if left == 0 {
                    break;
                }
                left = left.saturating_sub(bytes(pick));
                count += 1;
            }
        }
        let (go, wait) = picks.split_at(count);
        let (mut refused, mut missed) = (0, 0);
        if !go.is_empty() {
            let delivery = self.deliver(&Frames::new(batch, go), now);
            let taken = go.iter().enumerate().filter(|(index, _)| !delivery.is_refused(*index));
            let sum = taken.map(|(_, pick)| bytes(pick)).sum();
            if let Some(shaper) = &mut self.receive {
                shaper.charge(sum, now);
            }
            refused = delivery.refused().count_ones() as usize;
            delivery.again(go).for_each(|pick| missed += u32::from(!self.keep_in_order(batch, pick, now)));
        }
        if !wait.is_empty() && !self.has_failed() {
            self.room.insert(0);
        }
        wait.iter().for_each(|pick| missed += u32::from(!self.keep_in_order(batch, *pick, now)));
        if missed > 0 {
            self.report_missed(missed, now);
        }
        count.saturating_sub(refused)
    }

    /// Puts one frame behind all others in the backlog. False if there was no room.
    fn keep_in_order(&mut self, batch: &Batch, pick: Pick, now: Time) -> bool {
        let Some(packet) = batch.packet(pick.packet) else { return true };
        if self.has_failed() {
            self.counters.receive_drop(Reason::Failed);
        } else if !self.backlog.push(0, batch, packet, pick, now) {
            self.counters.receive_drop(self.backlog.refusal(packet.len()));
            return false;
        }
        true
    }

    /// Tells the adapter of frames that found no room.
    #[cold]
    fn report_missed(&mut self, frames: u32, now: Time) {
        self.call(now, |adapter, cx| adapter.notice(Event::Missed(frames), cx));
    }

    /// Polls queues with mapped doorbells at this time.
    pub fn poll_by(&mut self, at: Time, shell: &dyn Shell) {
        self.poll_at = Some(at);
        shell.wake_at(at);
    }

    pub fn deliver(&mut self, frames: &Frames<'_>, now: Time) -> Delivery {
        let settled = self.settled_frames();
        let delivery = if let End::Uplink(_) = &self.end {
            self.call_uplink(|uplink, counters| uplink.deliver(frames, counters, now))
        } else {
            self.call(now, |adapter, cx| adapter.deliver(frames, cx)).unwrap_or_default()
        };
        if self.has_failed() {
            self.drop_unsettled(frames.picks.len(), settled);
        }
        delivery
    }

    pub fn fetch(&mut self, id: PortId, queue: u16, budget: Budget, batch: &mut Batch, now: Time) -> Progress {
        batch.start(&self.memory, id, queue);
        let tokens = self.transmit.as_ref().map_or(u64::MAX, |shaper| shaper.bytes(now).max(1));
        let budget = Budget { bytes: budget.bytes.min(tokens), ..budget };
        let progress = if self.speaks_inward && self.speak_inward(queue, budget, batch, now) {
            self.is_agents_batch = true;
            Progress { more: true, armed: false }
        } else if let End::Uplink(_) = &self.end {
            self.call_uplink(|uplink, counters| uplink.fetch(id, budget, batch, counters, now))
        } else {
            self.call(now, |adapter, cx| adapter.fetch(queue, budget, batch, cx)).unwrap_or_default()
        };
        if self.has_failed() {
            self.drop_fetched(batch);
            // Nothing to check again.
            return Progress { more: false, armed: true };
        }
        if let Some(shaper) = &mut self.transmit {
            shaper.charge(batch.packets().iter().map(Packet::wire_bytes).sum(), now);
        }
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
        if std::mem::take(&mut self.is_agents_batch) {
            return;
        }
        if let End::Uplink(_) = &self.end {
            self.call_uplink(|uplink, _| uplink.complete(batch));
        } else {
            self.call(now, |adapter, cx| adapter.complete(batch, cx));
        }
    }

    /// Puts refused frames into the backlog, or drops them with a reason.
    pub fn keep(&mut self, batch: &Batch, picks: &[Pick], delivery: &Delivery, now: Time) {
        let is_uplink = matches!(self.end, End::Uplink(_));
        let mut missed = 0;
        for refusal in delivery.refusals() {
            let Some(pick) = picks.get(usize::from(refusal.pick)) else { continue };
            let Some(packet) = batch.packet(pick.packet) else { continue };
            let lane = if is_uplink { batch.sender.0 } else { refusal.queue.into() };
            if !self.backlog.push(lane, batch, packet, Pick { from: refusal.from, ..*pick }, now) {
                self.counters.receive_drop(self.backlog.refusal(packet.len()));
                missed += 1;
            }
        }
        if missed > 0 && !is_uplink {
            self.report_missed(missed, now);
        }
    }

    /// Whether the backlog has frames for which there is room.
    pub fn may_drain(&self) -> bool {
        match self.end {
            End::Uplink(_) => !self.room.is_empty() && !self.backlog.is_empty() && self.limited_until.is_none(),
            End::Adapter(_) if self.pooled => !self.room.is_empty() && !self.backlog.is_empty(),
            End::Adapter(_) => self.room.overlaps(self.backlog.queues()),
            End::Failed(_) => false,
        }
    }

    /// Offers frames of one lane of the backlog, as many as one hold and the budget allow.
    pub fn drain(&mut self, budget: Budget, now: Time) -> Drained {
        let tokens = self.receive.as_ref().map_or(u64::MAX, |shaper| shaper.bytes(now).max(1));
        let few = Budget { packets: budget.packets.min(self.pace.frames()), bytes: budget.bytes.min(tokens) };
        // Room in any queue opens every lane.
        let any_room = matches!(self.end, End::Uplink(_)) || self.pooled;
        let settled = self.settled_frames();
        let Self { end, memory, page, out, counters, backlog, room, shift_ns, .. } = self;
        let window = window(page);
        let deliver = |frames: &Frames<'_>| match end {
            End::Uplink(uplink) => uplink.deliver(frames, counters, now),
            End::Adapter(adapter) => {
                let now = shifted(now, *shift_ns);
                let mut cx = Context { memory, page: window.as_ref(), out, counters, now };
                adapter.deliver(frames, &mut cx)
            }
            End::Failed(_) => Delivery::default(),
        };
        let open = |lane| any_room || room.contains(lane);
        let drained = caught(|| backlog.drain(open, few, now, deliver));
        self.memory.publish_log();
        let drained = match drained {
            Ok(Ok(drained)) => drained,
            Ok(Err(Some(until))) => {
                self.limited_until = Some(until);
                return Drained::default();
            }
            Ok(Err(None)) => Drained::default(),
            Err(cause) => return self.fail_drained(cause, settled),
        };
        if let Some(control) = &mut self.control {
            control.sent(&drained);
        }
        if let Some(shaper) = &mut self.receive {
            shaper.charge(drained.wire_bytes, now);
        }
        let room = &mut self.room;
        if any_room && (drained.refused || drained.packets == 0) {
            *room = Set::default();
        } else if drained.refused || drained.packets == 0 {
            // The adapter reports when there is room again, or has just done so.
            room.remove(drained.lane);
        }
        self.swap_backlog();
        if drained.packets > 0 {
            (self.stuck, self.stuck_since) = (false, now);
        }
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

    /// Holds a sender, unless this uplink is stuck. True if it was not held before.
    pub fn hold(&mut self, sender: PortId, now: Time, shell: &dyn Shell) -> bool {
        // Nobody waits for a mirror.
        let holds =
            !self.stuck && !self.is_spread && self.copies.is_none() && !self.has_failed() && self.backlog.hold(sender);
        if holds && self.watch_at.is_none() {
            self.stuck_since = now;
            self.watch_by(now.after_ns(STUCK_NS), shell);
        }
        holds
    }

    fn watch_by(&mut self, at: Time, shell: &dyn Shell) {
        self.watch_at = Some(at);
        shell.wake_at(at);
    }

    /// The watchdog: releases the senders of an uplink that has taken nothing for too long, and returns them.
    pub fn watch(&mut self, now: Time, shell: &dyn Shell) -> Vec<HeldSender> {
        if self.watch_at.take_if(|at| *at <= now).is_none() || !self.backlog.holds() {
            return Vec::new();
        }
        let end = self.stuck_since.after_ns(STUCK_NS);
        if now < end {
            self.watch_by(end, shell);
            return Vec::new();
        }
        self.stuck = true;
        self.let_all_go()
    }

    /// Releases all held senders, and returns them.
    pub fn let_all_go(&mut self) -> Vec<HeldSender> {
        let all = self.backlog.let_all_go();
        all.into_iter().filter_map(|sender| self.held(sender)).collect()
    }

    /// A sender that was released. `None` if it was not named yet: whoever names it finds it released, and lets it go.
    pub fn held(&mut self, sender: PortId) -> Option<HeldSender> {
        Some(HeldSender { sender, tenure: self.backlog.take_holder(sender)? })
    }

    /// The cost of the calls since the last [`settle`](Inner::settle), beside their frames.
    pub fn excess(&self) -> u64 {
        bytes_of(self.out.excess)
    }

    /// Charges the next turn.
    pub fn owe(&mut self, bytes: u64) {
        self.owed = (self.owed + bytes).min(OWED_MOST);
    }

    /// Number of transmit packets dropped so far.
    pub fn transmit_drops(&self) -> u64 {
        self.counters.transmit_drops.iter().sum()
    }

    /// Frames that the adapter refused to send because they would pass for another's.
    pub fn forged(&self) -> u64 {
        self.counters.transmit_drops.get(Reason::Forged as usize).copied().unwrap_or(0)
    }

    /// Sets a new backlog, used once the old one is empty. Returns the backlogs that are no longer needed.
    pub fn change_backlog(&mut self, new: Backlog) -> [Option<Box<Backlog>>; 3] {
        let waiting = self.next_backlog.replace(Box::new(new));
        let spent = self.spent_backlog.take();
        self.swap_backlog();
        [waiting, spent, self.spent_backlog.take()]
    }

    /// Swaps in the new backlog, if there is one and the old one is empty.
    fn swap_backlog(&mut self) {
        if self.backlog.is_empty()
            && let Some(mut new) = self.next_backlog.take()
        {
            std::mem::swap(&mut *new, &mut self.backlog);
            self.spent_backlog = Some(new);
        }
    }

    pub fn drop_backlog(&mut self, reason: Reason) {
        let waiting = self.backlog.clear();
        self.limited_until = None;
        if let Some(control) = &mut self.control {
            control.cleared();
        }
        for _ in 0..waiting {
            self.counters.receive_drop(reason);
        }
        self.room = Set::default();
        self.swap_backlog();
    }

    /// Sets the adapter's clock: it is ahead of the port's by this many nanoseconds.
    pub fn set_shift(&mut self, shift_ns: i64) {
        self.shift_ns = shift_ns;
        self.counters.set_shift(shift_ns);
    }

    /// Reports the new entries of the list of guest errors.
    fn report_guest_errors(&mut self, shell: &dyn Shell) {
        let errors = self.counters.errors();
        let reported = std::mem::replace(&mut self.errors_reported, errors.noted());
        errors.since(reported).for_each(|error| shell.guest_error(error));
    }

    /// Reports the last access that the guest's memory map refused.
    #[cold]
    fn report_refusals(&mut self, shell: &dyn Shell) {
        self.refusals_reported = self.refusals.count();
        if let Some(last) = self.refusals.refused().last {
            shell.refused_access(&last);
        }
    }

    /// Takes the adapter's asks to its family, and the answers back.
    fn answer_asks(&mut self, shell: &dyn Shell) {
        let Self { end: End::Adapter(adapter), family: Some(family), memory, page, out, counters, .. } = self else {
            return;
        };
        let window = window(page);
        let answered = caught(|| {
            for _ in 0..ASKS_MOST {
                let Some(ask) = adapter.ask() else { break };
                let answer = family.answer(&ask);
                // The ask has the time by the adapter's clock.
                let mut cx = Context { memory, page: window.as_ref(), out, counters, now: ask.at };
                adapter.notice(Event::Answer(answer), &mut cx);
            }
        });
        memory.publish_log();
        if let Err(cause) = answered {
            self.fail(cause);
        }
        // An answer is no reason to ask again.
        self.out.stalled.remove(Outbox::ASK);
        self.settle(shell);
    }

    #[cold]
    fn report_stalls(&mut self, mut stalled: Set, shell: &dyn Shell) {
        if stalled.contains(Outbox::ASK) {
            stalled.remove(Outbox::ASK);
            self.answer_asks(shell);
        }
        if stalled.contains(Outbox::GUEST_ERROR) {
            stalled.remove(Outbox::GUEST_ERROR);
            self.report_guest_errors(shell);
        }
        if stalled.contains(Outbox::KEEP) {
            stalled.remove(Outbox::KEEP);
            shell.changed();
        }
        while let Some(number) = stalled.pop() {
            let End::Adapter(adapter) = &self.end else { return };
            match caught(|| adapter.stall(number)) {
                Ok(Some(stall)) => shell.stalled(number, stall),
                // The adapter was restarted since, and has nothing to report.
                Ok(None) => {}
                Err(cause) => self.fail(cause),
            }
        }
    }

    /// Carries out the adapter's requests, each once, however often it was made.
    pub fn settle(&mut self, shell: &dyn Shell) {
        let mut out = std::mem::take(&mut self.out);
        out.wake = out.wake.map(|at| shifted(at, self.shift_ns.saturating_neg()));
        if let End::Uplink(_) = &self.end {
            let (wake, news) = self.call_uplink(|uplink, _| (uplink.wake(), uplink.news()));
            // A port that has left gets no turns.
            let agents = self.agents.iter().filter_map(|(_, agent)| agent.wake()).map(|at| at.max(self.hushed_until));
            out.wake = wake.into_iter().chain(agents).min().filter(|_| self.attached);
            if let Some(news) = news {
                shell.news(news);
            }
        }
        if !out.messages.is_empty() {
            shell.messages(out.messages);
        }
        if let Some(level) = out.line {
            shell.line(level);
        }
        if !out.stalled.is_empty() {
            self.report_stalls(out.stalled, shell);
        }
        if self.refusals.count() != self.refusals_reported {
            self.report_refusals(shell);
        }
        if self.has_failed() {
            self.report_failure(shell);
            return;
        }
        // An earlier wake-up is set already; that turn asks again if this time is still needed.
        if let Some(at) = out.wake
            && self.wake.is_none_or(|earlier| at < earlier)
        {
            self.wake = Some(at);
            shell.wake_at(at);
        }
        self.owe(bytes_of(out.excess));
        self.pending.extend(out.work);
        self.room.extend(out.room);
        // The owner notices at its next turn.
        let damaged = !self.damaged && self.memory.damaged();
        self.damaged |= damaged;
        if damaged || !out.work.is_empty() || (!out.room.is_empty() && self.may_drain()) {
            shell.schedule();
        }
    }
}
