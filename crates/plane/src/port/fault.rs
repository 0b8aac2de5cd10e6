//! A panic of an adapter, of an uplink, or of our own work for a port ends that port only.

use nicety_adapter::Reason;

use super::caught::caught;
use super::end::either;
use super::{Inner, Port, Shell};

impl Inner {
    /// Whether its adapter or uplink has panicked.
    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Number of frames that were taken or dropped here.
    pub fn settled_frames(&self) -> u64 {
        let taken = self.counters.receive.iter().map(|queue| queue.packets);
        taken.chain(self.counters.receive_drops).fold(0, u64::wrapping_add)
    }

    /// Marks the port as failed: its adapter or uplink is not called again, and its backlog is dropped. A batch in flight stays in
    /// flight until it is finished.
    #[cold]
    pub fn fail(&mut self, cause: String) {
        if self.has_failed() {
            return;
        }
        self.failure = Some(cause);
        either!(&mut self.end, end => end.abandon());
        let _panic = caught(|| self.drop_backlog(Reason::Failed));
        (self.pending, self.polled, self.room) = Default::default();
        (self.poll_at, self.wake) = (None, None);
        self.is_failure_reported = false;
    }

    /// The port failed during an offer of `frames` frames. Drops the frames that were not taken or dropped before the panic.
    #[cold]
    pub fn drop_unsettled(&mut self, frames: usize, settled_before: u64) {
        for _ in self.settled_frames().saturating_sub(settled_before)..frames as u64 {
            self.counters.receive_drop(Reason::Failed);
        }
    }

    /// Reports the failure to the owner, once. The owner's next turn releases the senders that the port holds.
    pub fn report_failure(&mut self, shell: &dyn Shell) {
        let Some(cause) = &self.failure else { return };
        if !std::mem::replace(&mut self.is_failure_reported, true) {
            shell.failed(cause);
            shell.schedule();
        }
    }
}

impl Port {
    /// Fails the port as a panic of its adapter would: the adapter is not called any more, and frames for it are dropped. It is for
    /// faults outside the port that the port caused. A failed port stays failed; a new port replaces it.
    pub fn fail(&self, cause: String) {
        let mut inner = self.lock();
        inner.fail(cause);
        inner.settle(self.shell.as_ref());
    }

    /// The panic message, if it has failed.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }
}
