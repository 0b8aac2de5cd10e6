//! What a turn does with a port, step by step (`crate::turn`): each takes the port's lock, and lets it go.

use nicety_adapter::{Batch, Budget, Delivery, Event, Frames, Pick, Progress, Reason, Time};

use super::{End, Port};
use crate::poll;

/// What the first steps of a turn did.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// What the fetch said, if there was one.
    pub progress: Option<Progress>,
    /// Frames that had waited and went in, and their bytes.
    pub drained: usize,
    pub drained_bytes: u64,
    /// Packets that the fetch dropped.
    pub dropped: u64,
    /// What the adapter did beside its frames, in bytes.
    pub owed: u64,
}

impl Port {
    /// Frames from the switch. Whatever is refused waits in the backlog, or is dropped with a reason. The lock is let go
    /// after as many frames as the port's [`Pace`] says.
    pub(crate) fn offer(&self, frames: &Frames<'_>, now: Time) {
        let mut rest = frames.picks;
        while !rest.is_empty() {
            rest = self.offer_some(frames.batch, rest, now);
        }
    }

    /// As [`Port::offer`], in one hold; returns what is left. What the adapter wants is done after the last.
    fn offer_some<'a>(&self, batch: &Batch, picks: &'a [Pick], now: Time) -> &'a [Pick] {
        let mut inner = self.lock();
        if !inner.attached {
            for _ in picks {
                inner.counters.receive_drop(Reason::NoVm);
            }
            return &[];
        }
        let begin = self.shell.now(now);
        let (picks, rest) = picks.split_at(picks.len().min(inner.pace.frames()));
        let frames = Frames { batch, picks };
        let behind = !inner.backlog.is_empty();
        let delivery = if behind { Delivery::all_refused() } else { inner.deliver(&frames, now) };
        if delivery.refused != 0 {
            for (i, pick, packet) in frames.iter().filter(|(i, ..)| delivery.is_refused(*i)) {
                if inner.backlog.push(batch, packet, pick.edit) {
                    continue;
                }
                let alone = packet.len() > inner.backlog.size();
                inner.counters.receive_drop(if alone { Reason::NoBuffer } else { Reason::BufferFull });
                if let Some(queue) = delivery.begun(i) {
                    inner.call(now, |adapter, cx| adapter.notice(Event::RestDropped(queue), cx));
                }
            }
        }
        if rest.is_empty() {
            inner.active = now;
            inner.habit.heard();
            // Who receives may answer, and does not ring.
            if inner.poll_at.is_some_and(|at| at > now.after_ns(2 * poll::LEAST_NS)) {
                inner.poll_by(now.after_ns(poll::LEAST_NS), self.shell.as_ref());
            }
            inner.settle(self.shell.as_ref());
        }
        // What waits counts as refused, and has proved nothing of the receiver's memory.
        let taken = picks.len().saturating_sub(delivery.refused.count_ones() as usize);
        inner.pace.took(taken, begin, self.shell.now(now));
        rest
    }

    /// The uplink's descriptor is ready: frames have come, or may go again. The caller, its owner, gives it a turn.
    pub fn ready(&self) {
        let mut inner = self.lock();
        inner.room = true;
        inner.pending.insert(0);
    }

    /// The first steps of a turn, under the lock: tick, drain, fetch. Drains and fetches a batch each at most, and lets go of the
    /// lock in between.
    pub(crate) fn gather(&self, batch: &mut Batch, budget: Budget, now: Time) -> Gathered {
        let mut gathered = Gathered::default();
        let mut inner = self.lock();
        if inner.wake.is_some_and(|at| at <= now) {
            inner.wake = None;
            if matches!(inner.end, End::Uplink(_)) {
                // What it wants next it says after the fetch.
                inner.room = true;
                inner.pending.insert(0);
            } else {
                inner.call(now, |adapter, cx| adapter.tick(cx));
                inner.settle(self.shell.as_ref());
            }
        }
        let mut left = budget;
        while inner.room && left.packets > 0 && left.bytes > 0 {
            if gathered.drained > 0 {
                inner.settle(self.shell.as_ref());
                drop(inner);
                inner = self.lock();
            }
            let begin = self.shell.now(now);
            let (frames, bytes) = inner.drain(left, now);
            inner.pace.took(frames, begin, self.shell.now(now));
            gathered.drained += frames;
            gathered.drained_bytes += bytes;
            left = Budget { packets: left.packets - frames, bytes: left.bytes.saturating_sub(bytes + inner.excess()) };
        }
        if inner.poll_at.is_some_and(|at| at <= now) {
            inner.poll_at = None;
            let polled = std::mem::take(&mut inner.polled);
            inner.pending.extend(polled);
        }
        let may = inner.attached && inner.waiting == 0;
        let from = inner.next_queue;
        let queue = if may { inner.pending.pop_from(from) } else { None };
        let dropped = inner.transmit_drops();
        gathered.progress = queue.map(|queue| {
            let progress = inner.fetch(self.id, queue, budget, batch, now);
            inner.next_queue = queue + 1;
            inner.in_flight = !batch.is_empty();
            if inner.in_flight {
                let active = std::mem::replace(&mut inner.active, now);
                inner.habit.broken(active, now);
            }
            if progress.more {
                inner.pending.insert(queue);
            } else if !progress.armed {
                inner.polled.insert(queue);
            }
            progress
        });
        gathered.dropped = inner.transmit_drops() - dropped;
        if inner.poll_at.is_none() && !inner.polled.is_empty() {
            let at = inner.habit.next(inner.active, now);
            inner.poll_by(at, self.shell.as_ref());
        }
        inner.settle(self.shell.as_ref());
        gathered.owed = std::mem::take(&mut inner.owed);
        gathered
    }

    /// The last step of a turn: the batch's descriptors go back, and what went nowhere is counted.
    pub(crate) fn finish(&self, batch: &Batch, drops: &[(u16, Reason)], now: Time) {
        let mut inner = self.lock();
        for (_, reason) in drops {
            inner.counters.transmit_drop(*reason);
        }
        match &mut inner.end {
            End::Adapter(_) => {
                inner.call(now, |adapter, cx| adapter.complete(batch, cx));
            }
            End::Uplink(uplink) => uplink.complete(batch),
        }
        inner.in_flight = false;
        if inner.waiting > 0 {
            self.inner.landed();
        }
        inner.settle(self.shell.as_ref());
    }
}
