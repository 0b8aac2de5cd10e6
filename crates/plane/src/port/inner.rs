//! What a port's lock guards: what is behind it, what it wants, what waits for it. Everything here happens under the lock.

use std::sync::Arc;

use nicety_adapter::{
    Adapter, Budget, Context, Counters, Delivery, Event, Frames, Outbox, PortId, Progress, Reason, Set, Time,
};
use nicety_memory::{Map, Rights, Window};

use super::{End, Shell};
use crate::backlog::Backlog;
use crate::pace::Pace;
use crate::poll::Habit;

/// What the lock guards.
pub(super) struct Inner {
    pub end: End,
    pub memory: Arc<Map>,
    pub page: Option<Arc<Map>>,
    pub out: Outbox,
    pub counters: Counters,
    pub pending: Set,
    /// The queue whose turn is next, of those with work.
    pub next_queue: u16,
    /// Queues whose doorbell makes no sound, and when to look at them next.
    pub polled: Set,
    pub poll_at: Option<Time>,
    pub habit: Habit,
    /// When frames last went through, either way.
    pub active: Time,
    pub room: bool,
    /// What its adapter did beside its frames, in bytes: the next turn is charged with it.
    pub owed: u64,
    pub wake: Option<Time>,
    pub backlog: Backlog,
    pub attached: bool,
    /// Packets that were sent before whoever is attached came.
    pub sent_before: u64,
    /// A batch of this port is on its way: fetched, and not completed.
    pub in_flight: bool,
    /// Control threads that wait for that to end; while there are any, nothing is fetched.
    pub waiting: u32,
    /// How many frames go in one hold.
    pub pace: Pace,
    /// How often somebody's memory had gone away when it was last asked.
    pub damages: usize,
}

/// What a descriptor that was read beyond the usual costs, in bytes: some nanoseconds, as copying so much takes.
const DESCRIPTOR_COST: u64 = 32;
/// What a port owes at most for what it made others do while it had no turn.
const OWED_MOST: u64 = 128 << 10;

/// The cost of so many descriptors.
fn bytes_of(descriptors: u32) -> u64 {
    u64::from(descriptors) * DESCRIPTOR_COST
}

/// The mapped page of doorbells, to look into.
fn window(page: &Option<Arc<Map>>) -> Option<Window<'_>> {
    let page = page.as_ref()?;
    page.window(0, page.mapped_bytes() as u32, Rights::BOTH).ok()
}

impl Inner {
    pub fn call<R>(&mut self, now: Time, act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> R) -> Option<R> {
        let Self { end, memory, page, out, counters, .. } = self;
        let End::Adapter(adapter) = end else { return None };
        let window = window(page);
        let mut cx = Context { memory, page: window.as_ref(), out, counters, now };
        Some(act(adapter.as_mut(), &mut cx))
    }

    /// Looks at the queues that do not ring, at this time.
    pub fn poll_by(&mut self, at: Time, shell: &dyn Shell) {
        self.poll_at = Some(at);
        shell.wake_at(at);
    }

    pub fn deliver(&mut self, frames: &Frames<'_>, now: Time) -> Delivery {
        if let End::Uplink(uplink) = &mut self.end {
            return uplink.deliver(frames, &mut self.counters, now);
        }
        self.call(now, |adapter, cx| adapter.deliver(frames, cx)).unwrap_or_default()
    }

    pub fn fetch(
        &mut self,
        id: PortId,
        queue: u16,
        budget: Budget,
        batch: &mut nicety_adapter::Batch,
        now: Time,
    ) -> Progress {
        if let End::Uplink(uplink) = &mut self.end {
            return uplink.fetch(id, budget, batch, &mut self.counters, now);
        }
        batch.start(&self.memory, id, queue);
        self.call(now, |adapter, cx| adapter.fetch(queue, budget, batch, cx)).unwrap_or_default()
    }

    /// Offers what waits, as many frames as go in one hold and the budget allows. Returns how many were taken, and their
    /// bytes.
    pub fn drain(&mut self, budget: Budget, now: Time) -> (usize, u64) {
        self.room = false;
        if self.backlog.is_empty() {
            return (0, 0);
        }
        let Self { end, memory, page, out, counters, backlog, pace, .. } = self;
        let window = window(page);
        let mut deliver = |frames: &Frames<'_>| match end {
            End::Uplink(uplink) => uplink.deliver(frames, counters, now),
            End::Adapter(adapter) => {
                let mut cx = Context { memory, page: window.as_ref(), out, counters, now };
                adapter.deliver(frames, &mut cx)
            }
        };
        let few = Budget { packets: budget.packets.min(pace.frames()), ..budget };
        let mut gone = backlog.drain(few, &mut deliver);
        if gone.0 == 0 && few.packets < budget.packets {
            // They may all be for a queue that is full, and others behind them for one that is not.
            gone = backlog.drain(budget, &mut deliver);
        }
        self.room = gone.0 > 0 && !self.backlog.is_empty();
        gone
    }

    /// What the calls since the last [`settle`](Inner::settle) cost beside their frames.
    pub fn excess(&self) -> u64 {
        bytes_of(self.out.excess)
    }

    /// Packets of its guest that went nowhere so far.
    pub fn transmit_drops(&self) -> u64 {
        self.counters.transmit_drops.iter().sum()
    }

    pub fn drop_backlog(&mut self) {
        let waiting = self.backlog.clear();
        for _ in 0..waiting {
            self.counters.receive_drop(Reason::Removed);
        }
        self.room = false;
        if waiting > 0 {
            self.call(Time::ZERO, |adapter, cx| adapter.notice(Event::BacklogDropped, cx));
        }
    }

    #[cold]
    fn tell_stalls(&self, mut stalled: Set, shell: &dyn Shell) {
        let End::Adapter(adapter) = &self.end else { return };
        while let Some(number) = stalled.pop() {
            // One that has been started again meanwhile has nothing to say.
            if let Some(stall) = adapter.stall(number) {
                shell.stalled(number, stall);
            }
        }
    }

    /// Acts on what the adapter wants: once, however often it was asked for.
    pub fn settle(&mut self, shell: &dyn Shell) {
        let mut out = std::mem::take(&mut self.out);
        if let End::Uplink(uplink) = &mut self.end {
            out.wake = uplink.wake();
            if let Some(news) = uplink.news() {
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
            self.tell_stalls(out.stalled, shell);
        }
        // Whoever was told of an earlier time comes then, and hears of this one if it is still wanted.
        if let Some(at) = out.wake
            && self.wake.is_none_or(|earlier| at < earlier)
        {
            self.wake = Some(at);
            shell.wake_at(at);
        }
        self.owed = (self.owed + bytes_of(out.excess)).min(OWED_MOST);
        self.pending.extend(out.work);
        self.room |= !out.room.is_empty();
        let damages = std::mem::replace(&mut self.damages, nicety_memory::damages());
        // If memory that went away is this port's, its owner finds out with its next turn.
        let damaged = self.damages != damages;
        if damaged || !out.work.is_empty() || (!out.room.is_empty() && !self.backlog.is_empty()) {
            shell.schedule();
        }
    }
}
