//! A guest's end of a port: its adapter, its memory, its shapes, and what the adapter asks for.

use std::sync::Arc;

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Event, Frames, Outbox, PortId, Progress, Reason, Set, Shape,
    Time,
};
use nicety_memory::{Map, Refusals, Rights, Window};

use super::caught::caught;
use super::family::Membership;
use super::shaping::{SavedTokens, Shaping};
use super::side::Side;
use super::{Shell, State};
use crate::backlog::{Backlog, Drained};
use crate::gate::Gate;
use crate::order::LaneKey;
use crate::stage::Stage;

/// A guest's end of a port.
pub struct Guest {
    /// `None`: it has panicked.
    adapter: Option<Box<dyn Adapter>>,
    /// The family of an adapter that is a function.
    family: Option<Membership>,
    /// The link of the adapter.
    link: bool,
    memory: Arc<Map>,
    /// The page of doorbells that the guest has mapped.
    page: Option<Arc<Map>>,
    /// Its worker never sleeps, by its last turn, and polls it in each round.
    polls: bool,
    out: Outbox,
    /// The adapter's clock minus the port's, in nanoseconds: after a restore the adapter's clock continues from the time of saving.
    shift_ns: i64,
    /// Number of links that hold this port: above zero it fetches nothing. A release may arrive before its hold.
    holds: i32,
    shaping: Shaping,
    /// The backlog is one queue in order of arrival, for all receive queues: room in any queue opens it.
    is_pooled: bool,
    /// Refusals are logged, from this time on.
    logs: Option<Time>,
    /// Guest errors that were reported.
    errors_reported: u64,
    /// Accesses that its memory map refused, and how many of them were reported.
    refusals: Arc<Refusals>,
    refusals_reported: u64,
    /// Changes of the memory map.
    memory_changes: u64,
    /// The loss of its memory was reported.
    is_damaged: bool,
    /// The gate where its frames wait, if its VM is copied to another host.
    gate: Option<Box<Gate>>,
    /// Replaces the backlog once that is empty.
    next_backlog: Option<Box<Backlog>>,
    /// A backlog that was replaced in a turn. Control threads free it: no worker unmaps memory.
    spent_backlog: Option<Box<Backlog>>,
}

/// The minimum time between two logged refusals.
const LOG_NS: u64 = 1_000_000_000;
/// Most asks that one call can make: after a restore, a reset, a message, an acknowledgement.
const ASKS_MAX: usize = 4;

/// A time, shifted to a clock that is `ns` ahead.
fn shifted(time: Time, ns: i64) -> Time {
    Time(time.0.saturating_add_signed(ns))
}

/// A window onto the mapped page of doorbells.
fn window(page: &Option<Arc<Map>>) -> Option<Window<'_>> {
    let page = page.as_ref()?;
    page.window(0, page.mapped_bytes() as u32, Rights::BOTH).ok()
}

impl Guest {
    pub(super) fn new(adapter: Box<dyn Adapter>) -> Self {
        Self {
            family: adapter.family_of_one().map(Membership::of_one),
            adapter: Some(adapter),
            link: true,
            memory: Map::empty(),
            page: None,
            polls: false,
            out: Outbox::default(),
            shift_ns: 0,
            holds: 0,
            shaping: Shaping::default(),
            is_pooled: false,
            logs: None,
            errors_reported: 0,
            refusals: Arc::default(),
            refusals_reported: 0,
            memory_changes: 0,
            is_damaged: false,
            gate: None,
            next_backlog: None,
            spent_backlog: None,
        }
    }

    /// Calls the adapter, which may panic. `None` if it has panicked before.
    #[inline]
    pub(super) fn call<R>(
        &mut self,
        counters: &mut Counters,
        now: Time,
        act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let Self { adapter, memory, page, polls, out, shift_ns, .. } = self;
        let adapter = adapter.as_mut()?;
        let window = window(page);
        let now = shifted(now, *shift_ns);
        let mut cx = Context { memory, page: window.as_ref(), polls: *polls, out, counters, now };
        Some(act(adapter.as_mut(), &mut cx))
    }

    /// Its gate, if what it sends waits.
    pub(super) fn gate(&mut self) -> &mut Option<Box<Gate>> {
        &mut self.gate
    }

    /// Whether it has one.
    #[inline]
    pub(super) fn is_gated(&self) -> bool {
        self.gate.is_some()
    }

    /// Whether the guest is the twin of one that runs elsewhere.
    pub(super) fn is_twin(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_mute())
    }

    /// Fetches by way of the gate.
    #[cold]
    fn fetch_gated(&mut self, budget: Budget, batch: &mut Batch, counters: &mut Counters, now: Time) -> Progress {
        let Some(mut gate) = self.gate.take() else { return Progress::default() };
        let fetched = self.call(counters, now, |adapter, cx| gate.fetch(adapter, budget, batch, now, cx));
        self.gate = Some(gate);
        fetched.unwrap_or_default()
    }

    /// The adapter's clock is ahead of the port's by this many nanoseconds.
    fn set_shift(&mut self, shift_ns: i64, counters: &mut Counters) {
        self.shift_ns = shift_ns;
        counters.set_shift(shift_ns);
    }

    /// Whether its receive frames are shaped, or wait in a single order.
    #[inline]
    pub(super) fn is_pooled(&self) -> bool {
        self.shaping.receive.is_some() || self.is_pooled
    }

    /// Frames wait in a single order from now on if they are shaped, or if this is so.
    pub(super) fn pool(&mut self, is_behind: bool) {
        self.is_pooled = self.shaping.receive.is_some() || is_behind;
    }

    /// Signals the interrupts that the adapter asked for since the last call. Returns what else it asked for, with times by the port's clock.
    #[inline]
    fn signal(&mut self, shell: &dyn Shell) -> Outbox {
        let mut out = std::mem::take(&mut self.out);
        out.wake = out.wake.map(|at| shifted(at, self.shift_ns.saturating_neg()));
        if !out.messages.is_empty() {
            shell.messages(out.messages);
        }
        if let Some(level) = out.line {
            shell.line(level);
        }
        out
    }

    /// Reports what the set `stalled` stands for. `Err`: a panic.
    #[cold]
    fn report(&mut self, out: &mut Outbox, counters: &mut Counters, shell: &dyn Shell) -> Result<(), String> {
        let mut stalled = std::mem::take(&mut out.stalled);
        if stalled.contains(Outbox::ASK) {
            stalled.remove(Outbox::ASK);
            let answered = caught(|| self.answer_asks(counters));
            self.memory.publish_log();
            answered?;
            let Outbox { work, room, excess, wake, .. } = self.settle(counters, shell)?;
            out.work.extend(work);
            out.room.extend(room);
            out.charge(excess);
            wake.into_iter().for_each(|at| out.wake_by(at));
        }
        if stalled.contains(Outbox::GUEST_ERROR) {
            stalled.remove(Outbox::GUEST_ERROR);
            let errors = counters.errors();
            let reported = std::mem::replace(&mut self.errors_reported, errors.noted());
            errors.since(reported).for_each(|error| shell.guest_error(error));
        }
        if stalled.contains(Outbox::KEEP) {
            stalled.remove(Outbox::KEEP);
            shell.changed();
        }
        while let Some(number) = stalled.pop() {
            let stall = caught(|| self.adapter.as_ref().and_then(|adapter| adapter.stall(number)))?;
            // An adapter that was restarted since has nothing to report.
            if let Some(stall) = stall {
                shell.stalled(number, stall);
            }
        }
        Ok(())
    }

    /// Takes the adapter's asks to its family, and the answers back. May panic.
    fn answer_asks(&mut self, counters: &mut Counters) {
        let Self { adapter: Some(adapter), family: Some(family), memory, page, out, .. } = self else { return };
        let window = window(page);
        for _ in 0..ASKS_MAX {
            let Some(ask) = adapter.ask() else { break };
            let answer = family.answer(&ask);
            // The ask has the time by the adapter's clock.
            let mut cx = Context { memory, page: window.as_ref(), polls: false, out, counters, now: ask.at };
            adapter.notice(Event::Answer(answer), &mut cx);
        }
        // An answer is no reason to ask again.
        out.stalled.remove(Outbox::ASK);
    }

    /// Reports the last access that the guest's memory map refused.
    #[cold]
    fn report_refusal(&mut self, shell: &dyn Shell) {
        self.refusals_reported = self.refusals.count();
        if let Some(last) = self.refusals.refused().last {
            shell.refused_access(&last);
        }
    }

    /// Swaps in the new backlog, if there is one and the old one is empty.
    #[inline]
    fn swap_backlog(&mut self, backlog: &mut Backlog) {
        if backlog.is_empty()
            && let Some(mut new) = self.next_backlog.take()
        {
            std::mem::swap(&mut *new, backlog);
            self.spent_backlog = Some(new);
        }
    }
}

impl Side for Guest {
    fn name(&self) -> &'static str {
        "Guest"
    }

    fn abandon(&mut self) {
        self.out = Outbox::default();
        self.page = None;
        // Dropping half-changed state may panic again.
        let adapter = self.adapter.take();
        let _panic = caught(|| drop(adapter));
    }

    fn family(&mut self) -> Option<&mut Membership> {
        self.family.as_mut()
    }

    fn tick(&mut self, counters: &mut Counters, now: Time) -> bool {
        self.call(counters, now, |adapter, cx| adapter.tick(cx));
        false
    }

    fn replace_memory(&mut self, mut memory: Arc<Map>) -> Arc<Map> {
        Arc::make_mut(&mut memory).report_to(&self.refusals);
        self.memory_changes += 1;
        self.is_damaged = false;
        std::mem::replace(&mut self.memory, memory)
    }

    fn set_page(&mut self, page: Option<Arc<Map>>) {
        self.page = page;
    }

    #[inline]
    fn set_polls(&mut self, polls: bool) -> bool {
        std::mem::replace(&mut self.polls, polls) != polls
    }

    #[inline]
    fn polls(&self) -> bool {
        self.polls
    }

    fn set_link(&mut self, is_up: bool) {
        self.link = is_up;
    }

    fn go_on_after(&mut self, errors: u64) {
        self.errors_reported = errors;
    }

    fn set_logs(&mut self, logs: bool) {
        self.logs = logs.then(|| self.logs.unwrap_or(Time::ZERO));
    }

    fn logs(&mut self, now: Time) -> bool {
        let logs = self.logs.is_some_and(|from| from <= now);
        if logs {
            self.logs = Some(now.after_ns(LOG_NS));
        }
        logs
    }

    fn set_shapes(&mut self, transmit: Option<Shape>, receive: Option<Shape>, waits: bool) -> bool {
        self.shaping.set(transmit, receive);
        self.pool(waits);
        self.is_pooled
    }

    fn change_backlog(&mut self, new: Backlog, backlog: &mut Backlog) -> [Option<Box<Backlog>>; 3] {
        let waiting = self.next_backlog.replace(Box::new(new));
        let spent = self.spent_backlog.take();
        self.swap_backlog(backlog);
        [waiting, spent, self.spent_backlog.take()]
    }

    fn charge_receive(&mut self, bytes: u64, now: Time) {
        self.shaping.charge_receive(bytes, now);
    }

    fn describe(&self, state: &mut State) {
        state.held = self.holds > 0;
        state.shared_bytes = self.memory.mapped_bytes();
        state.absent_bytes = self.memory.absent_bytes();
        state.allocated_bytes = self.memory.allocated_bytes();
        state.damaged = self.memory.damaged();
        state.refused = self.refusals.refused();
        state.memory_changes = self.memory_changes;
        let Some(adapter) = &self.adapter else { return };
        state.driven = adapter.is_driven();
        state.features = adapter.features();
        state.stalls = (0..Set::NUMBERS).filter_map(|number| adapter.stall(number)).collect();
        state.receive_block = adapter.receive_block();
    }

    #[inline]
    fn settle(&mut self, counters: &mut Counters, shell: &dyn Shell) -> Result<Outbox, String> {
        let mut out = self.signal(shell);
        if !out.stalled.is_empty() {
            self.report(&mut out, counters, shell)?;
        }
        if self.refusals.count() != self.refusals_reported {
            self.report_refusal(shell);
        }
        if !self.is_damaged && self.memory.damaged() {
            // The owner notices at its next turn.
            self.is_damaged = true;
            shell.schedule();
        }
        Ok(out)
    }

    fn excess(&self) -> u32 {
        self.out.excess
    }

    fn is_driven(&self) -> bool {
        self.adapter.as_ref().is_none_or(|adapter| adapter.is_driven())
    }

    fn detach(&mut self, counters: &mut Counters) -> Arc<Map> {
        self.is_damaged = false;
        self.out = Outbox::default();
        // Its VM is gone, and its address may be another's soon.
        for _ in 0..self.gate.as_mut().map_or(0, |gate| gate.clear()) {
            counters.transmit_drop(Reason::Removed);
        }
        self.set_shift(0, counters);
        std::mem::replace(&mut self.memory, Map::empty())
    }

    fn go_on_from(&mut self, at: Time, counters: &mut Counters, now: Time) -> Option<bool> {
        self.set_shift(at.0.wrapping_sub(now.0).cast_signed(), counters);
        self.out = Outbox::default();
        Some(self.link)
    }

    #[inline]
    fn source(&self) -> &Arc<Map> {
        self.gate.as_ref().map_or(&self.memory, |gate| gate.source())
    }

    #[inline]
    fn fetch(&mut self, budget: Budget, batch: &mut Batch, counters: &mut Counters, now: Time) -> Progress {
        let budget = Budget { bytes: budget.bytes.min(self.shaping.transmit_tokens(now)), ..budget };
        if self.gate.is_some() {
            return self.fetch_gated(budget, batch, counters, now);
        }
        let queue = batch.queue;
        self.call(counters, now, |adapter, cx| adapter.fetch(queue, budget, batch, cx)).unwrap_or_default()
    }

    #[inline]
    fn fetched(&mut self, batch: &Batch, now: Time) {
        self.shaping.charge_transmit(batch.bytes(), now);
    }

    #[inline]
    fn complete(&mut self, batch: &Batch, counters: &mut Counters, now: Time) {
        if self.gate.is_some() {
            // Its descriptors were completed when they were fetched.
            return;
        }
        self.call(counters, now, |adapter, cx| adapter.complete(batch, cx));
    }

    #[inline]
    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        if self.gate.as_ref().is_some_and(|gate| gate.is_mute()) {
            frames.picks.iter().for_each(|_| counters.receive_drop(Reason::Twin));
            return Delivery::default();
        }
        self.call(counters, now, |adapter, cx| adapter.deliver(frames, cx)).unwrap_or_default()
    }

    fn missed(&mut self, frames: u32, counters: &mut Counters, now: Time) {
        self.call(counters, now, |adapter, cx| adapter.notice(Event::Missed(frames), cx));
    }

    #[inline]
    fn publish(&self) {
        self.memory.publish_log();
    }

    fn hold(&mut self, by: i32) {
        self.holds += by;
    }

    #[inline]
    fn is_held(&self) -> bool {
        self.holds > 0
    }

    #[inline]
    fn may_send(&self, now: Time) -> bool {
        self.shaping.may_send(now)
    }

    fn sends_at(&self, now: Time) -> Option<Time> {
        self.shaping.sends_at(now)
    }

    #[inline]
    fn may_receive(&self, now: Time) -> bool {
        self.shaping.may_receive(now)
    }

    #[inline]
    fn receive_tokens(&self, now: Time) -> u64 {
        self.shaping.receive_tokens(now)
    }

    #[inline]
    fn tokens_at(&mut self, sends: bool, receives: bool, counters: &mut Counters, now: Time) -> Option<Time> {
        self.shaping.asks_at(sends, receives, counters, now)
    }

    fn lane(&self, _sender: PortId, queue: u16) -> LaneKey {
        LaneKey::Queue(queue)
    }

    #[inline]
    fn opens_all(&self) -> bool {
        self.is_pooled
    }

    #[inline]
    fn must_wait(&self, is_behind: bool, now: Time) -> bool {
        self.is_pooled() && (is_behind || !self.may_receive(now))
    }

    #[inline]
    fn may_drain(&self, room: Set, Stage { backlog, .. }: &Stage) -> bool {
        if self.is_pooled { !room.is_empty() && !backlog.is_empty() } else { room.overlaps(backlog.queues()) }
    }

    #[inline]
    fn drained(&mut self, drained: &Drained, backlog: &mut Backlog, now: Time) {
        self.shaping.charge_receive(drained.wire_bytes, now);
        self.swap_backlog(backlog);
    }

    fn cleared(&mut self, backlog: &mut Backlog) {
        self.swap_backlog(backlog);
    }

    #[inline]
    fn pass(&mut self, now: Time) {
        self.shaping.pass(now);
    }

    fn restored(&mut self) {
        self.is_pooled |= self.shaping.receive.is_some();
    }

    fn save_tokens(&self) -> [Option<SavedTokens>; 2] {
        self.shaping.save()
    }

    fn restore_tokens(&mut self, saved: [Option<SavedTokens>; 2]) {
        self.shaping.restore(saved);
    }
}
