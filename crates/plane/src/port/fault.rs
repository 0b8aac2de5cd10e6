//! Where a fault ends: a panic of what is behind a port, or of our own work for it, ends that port alone.

use nicety_adapter::{Outbox, Reason};

use super::caught::caught;
use super::inner::Inner;
use super::{End, Port, Shell};

impl Inner {
    /// Whether its end has failed.
    pub fn has_failed(&self) -> bool {
        matches!(self.end, End::Failed(_))
    }

    /// Frames that have come to an end here, taken or dropped.
    pub fn settled_frames(&self) -> u64 {
        let taken = self.counters.receive.iter().map(|queue| queue.packets);
        taken.chain(self.counters.receive_drops).fold(0, u64::wrapping_add)
    }

    /// Its end is of no use any more: nothing of it is called again. What waits for it is dropped. A batch that is on its way stays so
    /// until it is finished.
    #[cold]
    pub fn fail(&mut self, cause: String) {
        if self.has_failed() {
            return;
        }
        let end = std::mem::replace(&mut self.end, End::Failed(cause));
        // What is half changed may panic again when it goes.
        let _it_has_failed_already = caught(|| drop(end));
        let _it_may_have_failed_here = caught(|| self.drop_backlog(Reason::Failed));
        self.out = Outbox::default();
        (self.pending, self.polled, self.room) = Default::default();
        (self.poll_at, self.wake, self.watch_at) = (None, None, None);
        self.page = None;
        self.is_failure_told = false;
    }

    /// Its end failed while it was given so many frames, of which some may have been dealt with before: the others are dropped.
    #[cold]
    pub fn drop_unsettled(&mut self, frames: usize, settled_before: u64) {
        for _ in self.settled_frames().saturating_sub(settled_before)..frames as u64 {
            self.counters.receive_drop(Reason::Failed);
        }
    }

    /// Tells its owner that it has failed, once. The owner's next turn lets go of whom it holds.
    pub fn tell_failure(&mut self, shell: &dyn Shell) {
        let End::Failed(cause) = &self.end else { return };
        if !std::mem::replace(&mut self.is_failure_told, true) {
            shell.failed(cause);
            shell.schedule();
        }
    }
}

impl Port {
    /// Ends the port as a panic of its adapter would: its end is not called any more, and frames for it are dropped. For faults
    /// outside the port that it caused. A failed port stays so; a new one takes its place.
    pub fn fail(&self, cause: String) {
        let mut inner = self.lock();
        inner.fail(cause);
        inner.settle(self.shell.as_ref());
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> Option<String> {
        match &self.lock().end {
            End::Failed(cause) => Some(cause.clone()),
            End::Adapter(_) | End::Uplink(_) => None,
        }
    }
}
