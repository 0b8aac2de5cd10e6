//! Questions to a port: its state, whether it has work, and how it would handle a frame now, by the same decisions as a turn.

use nicety_adapter::{PortId, Reason, Time};

use super::Port;
use super::caught::caught;
use super::end::{End, either};
use super::state::{State, misplaced};

/// Who uses a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    /// No VMM, or its port has failed.
    Nobody,
    /// A VMM whose guest's driver has not started the adapter, or has stopped it; or the twin of a VM that runs elsewhere.
    Waiting,
    /// A guest: its driver has started the adapter.
    Running,
}

/// A port's handling of a frame from its guest, before the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// The port fetches it.
    Fetches,
    /// No guest is attached that could send.
    Nobody,
    /// The port has failed.
    Failed,
    /// A full uplink holds it: the frame waits in the guest.
    Held,
    /// It waits in the guest for tokens, until this time.
    Tokens(Time),
}

/// A port's handling of a frame from the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// The adapter or uplink gets it at once; its own filters and free buffers decide. `driven`: the guest's driver has started the
    /// adapter.
    Offered {
        /// See above.
        driven: bool,
    },
    /// It waits in the receive buffer behind this many frames, for tokens or room.
    Waits(usize),
    /// It is dropped.
    Dropped(Reason),
}

impl Port {
    /// Handling of a frame from its guest now.
    pub(crate) fn intake(&self, now: Time) -> Intake {
        let inner = self.lock();
        if inner.has_failed() {
            Intake::Failed
        } else if !inner.attached {
            Intake::Nobody
        } else if either!(&inner.end, end => end.is_held()) {
            Intake::Held
        } else {
            either!(&inner.end, end => end.sends_at(now)).map_or(Intake::Fetches, Intake::Tokens)
        }
    }

    /// Handling of a frame of `len` bytes from port `from` now.
    pub(crate) fn prospect(&self, from: PortId, len: u32, now: Time) -> Prospect {
        let inner = self.lock();
        if let Some(reason) = inner.absent() {
            return Prospect::Dropped(reason);
        }
        if !inner.must_wait(now) {
            return Prospect::Offered { driven: inner.is_driven() };
        }
        let lane = either!(&inner.end, end => end.lane(from, 0));
        match inner.stage.backlog.has_room(lane, len) {
            true => Prospect::Waits(inner.stage.backlog.len()),
            false => Prospect::Dropped(inner.stage.backlog.refusal(len)),
        }
    }
}

impl Port {
    /// Who uses it.
    pub fn presence(&self) -> Presence {
        let inner = self.lock();
        let is_twin = matches!(&inner.end, End::Guest(guest) if guest.is_twin());
        if inner.absent().is_some() {
            Presence::Nobody
        } else if inner.is_driven() && !is_twin {
            Presence::Running
        } else {
            Presence::Waiting
        }
    }

    /// Whether it has work now, or a due timer.
    pub fn busy(&self, now: Time) -> bool {
        if self.inward.is_due(now) {
            return true;
        }
        let inner = self.lock();
        if inner.stopped {
            return false;
        }
        (!inner.pending.is_empty() && inner.may_fetch() && inner.may_send(now))
            || (inner.may_drain() && inner.may_receive(now))
            || inner.stage.limited_until.is_some_and(|at| at <= now)
            || either!(&inner.end, end => end.is_due(now))
            || inner.wake.is_some_and(|at| at <= now)
            || inner.poll_at.is_some_and(|at| at <= now)
            || (!inner.polled.is_empty() && either!(&inner.end, end => end.polls()))
    }

    /// Bytes that its guest, or the outside of an uplink, has sent and got. Nothing is copied or allocated for it.
    pub fn carried(&self) -> [u64; 2] {
        let inner = self.lock();
        [inner.counters.transmitted().bytes, inner.counters.taken().bytes]
    }

    /// A snapshot of its state.
    pub fn state(&self) -> State {
        let (inward_classes, inward_frames) =
            self.own_inward().and_then(|slot| slot.with(|inward| (inward.states(), inward.len()))).unwrap_or_default();
        let mut inner = self.lock();
        let mut state = State::default();
        if let Err(cause) = caught(|| either!(&inner.end, end => end.describe(&mut state))) {
            state = State::default();
            inner.fail(cause);
        }
        inner.report_failure(self.shell.as_ref());
        State {
            attached: inner.attached,
            sent: inner.counters.transmitted().packets - inner.sent_before,
            counters: inner.counters.clone(),
            received: inner.counters.taken().packets.saturating_sub(inner.received_before),
            misplaced: misplaced(&inner.counters).saturating_sub(inner.misplaced_before),
            backlog_frames: inner.stage.backlog.len() + inward_frames,
            starved_since: inner.stage.backlog.starved_since(inner.room),
            backlog_bytes: inner.stage.backlog.used(),
            stopped: inner.stopped,
            classes: inner.stage.states(),
            inward_classes,
            failed: inner.failure.clone(),
            ..state
        }
    }
}
