//! A port's handling of a frame now, for `crate::trace`. It uses the same decisions as a turn.

use nicety_adapter::{PortId, Time};

use super::Port;
use super::end::{Side, either};
use crate::trace::{Intake, Prospect};

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
