//! A port that goes on in another process: what it has beside its adapter.

use nicety_adapter::{Counters, HandOver, Reason, SavedCounters, Time};
use serde::{Deserialize, Serialize};

use super::Port;
use super::end::either;
use super::shaping::SavedTokens;
use crate::backlog::SavedFrame;

/// A port's numbers, for the process that goes on with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedNumbers {
    /// Its counters. Frames that wait are not in them.
    pub counters: SavedCounters,
    /// Packets that earlier VMs have sent.
    pub sent_before: u64,
    /// The tokens for what its guest sends, and for what it receives, if they are limited.
    pub tokens: [Option<SavedTokens>; 2],
}

/// Frames that wait at a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFrames {
    /// Frames that wait for its guest or its link.
    pub outward: Vec<SavedFrame>,
    /// Frames that came in by an uplink with inward I/O control.
    pub inward: Vec<SavedFrame>,
}

impl Port {
    /// Its numbers. Changes nothing. Call it while nothing is delivered to the port.
    pub fn numbers(&self) -> SavedNumbers {
        let inner = self.lock();
        let counters = &inner.counters;
        let tokens = either!(&inner.end, end => end.save_tokens());
        SavedNumbers { counters: counters.save(), sent_before: inner.sent_before, tokens }
    }

    /// Copies of the frames that wait. Call it while nothing is delivered to the port.
    pub fn waiting_frames(&self) -> SavedFrames {
        let inward = self.own_inward().and_then(|slot| slot.with(|inward| inward.save())).unwrap_or_default();
        SavedFrames { outward: self.lock().stage.backlog.save(), inward }
    }

    /// Takes frames that waited in another process, into empty queues. Call it when the port has its adapter's state or its I/O control,
    /// and before it is served. Frames for which this port has no room count as removed.
    pub fn wait_on(&self, SavedFrames { outward, inward }: &SavedFrames, now: Time) {
        if !inward.is_empty() {
            let kept = self.inward().with(|control| control.restore(inward, now)).unwrap_or_default();
            self.lose(inward.len() as u64 - kept, Reason::Removed);
            self.shell.schedule();
        }
        if outward.is_empty() {
            return;
        }
        let mut inner = self.lock();
        let inner = &mut *inner;
        for frame in outward {
            if !inner.stage.backlog.push_saved(frame, now) {
                inner.counters.receive_drop(Reason::Removed);
            }
        }
        inner.stage.recount();
        either!(&mut inner.end, end => end.restored());
        // All are offered once more: a queue without room refuses them.
        let queues = inner.stage.backlog.queues();
        inner.room.extend(queues);
        if either!(&inner.end, end => end.opens_all()) {
            inner.room.insert(0);
        }
        self.shell.schedule();
    }

    /// Goes on with saved tokens. Call it when the port has its shapes, which are those of the saved port.
    pub fn shape_on(&self, saved: &SavedNumbers) {
        let mut inner = self.lock();
        either!(&mut inner.end, end => end.restore_tokens(saved.tokens));
    }

    /// Calls `act` with the means by which another process goes on with this uplink. `None` if this is no uplink, or has failed.
    pub fn hand_over<R>(&self, act: impl FnOnce(HandOver<'_>) -> R) -> Option<R> {
        either!(&mut self.lock().end, end => end.uplink()).map(|uplink| act(uplink.hand_over()))
    }

    /// Counts on from the numbers of another process. Call it on a new port, before its adapter is restored.
    pub fn count_on(&self, saved: &SavedNumbers) {
        let mut inner = self.lock();
        inner.counters = Counters::restored(&saved.counters);
        let noted = inner.counters.errors().noted();
        either!(&mut inner.end, end => end.go_on_after(noted));
    }

    /// Attaches a VM that another process has served. This is like [`Port::attach`], but the VM's packets so far count as its own.
    pub fn attach_again(&self, saved: &SavedNumbers) {
        self.attach();
        let mut inner = self.lock();
        (inner.sent_before, inner.received_before) = (saved.sent_before, 0);
    }
}
