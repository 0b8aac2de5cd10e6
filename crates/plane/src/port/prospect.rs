//! A port's handling of a frame now, for `crate::trace`. It uses the same decisions as a turn.

use nicety_adapter::{PortId, Time};

use super::Port;
use crate::trace::{Intake, Prospect};

impl Port {
    /// Handling of a frame from its guest now.
    pub(crate) fn intake(&self, now: Time) -> Intake {
        let inner = self.lock();
        if inner.has_failed() {
            Intake::Failed
        } else if !inner.attached {
            Intake::Nobody
        } else if inner.holds > 0 {
            Intake::Held
        } else {
            let unready = inner.transmit.as_ref().filter(|shaper| !shaper.ready(now));
            unready.map_or(Intake::Fetches, |shaper| Intake::Tokens(shaper.ready_at(now)))
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
        let lane = if inner.is_uplink() { from.0 } else { 0 };
        match inner.backlog.has_room(lane, len) {
            true => Prospect::Waits(inner.backlog.len()),
            false => Prospect::Dropped(inner.backlog.refusal(len)),
        }
    }
}
