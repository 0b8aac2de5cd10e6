//! A port of a VM that is copied to its twin on another host, again and again (docs/fault-tolerance.md).
//!
//! Its front end says when: it has the port's state saved on the one host for each copy, and loaded on the other one. So a saved state
//! closes an epoch of what the guest sent, and a loaded one, with the rings running again, says that the twin has that copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nicety_plane::{Epochs, Group};
pub use nicety_protect::Pairing;
use serde::{Deserialize, Serialize};

/// The epoch that a saved state has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedEpoch {
    /// Its protection.
    pub pairing: Pairing,
    /// Its number, from 1.
    pub epoch: u64,
    /// Whether the port's rings ran until the VM was stopped for this copy.
    pub ran: bool,
}

/// An event of a protected VM's copies, as a port's front end reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochEvent {
    /// An epoch was closed.
    Closed(ClosedEpoch),
    /// The copy that closed this epoch was loaded.
    Loaded(ClosedEpoch),
    /// A ring runs.
    Runs,
}

/// A port's part of its VM's protection.
pub struct Protected {
    pairing: Pairing,
    epochs: Arc<Epochs>,
    is_twin: AtomicBool,
    tell: Box<dyn Fn(EpochEvent) + Send + Sync>,
}

impl std::fmt::Debug for Protected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pairing, epochs, is_twin, tell: _ } = self;
        f.debug_struct("Protected").field("pairing", pairing).field("epochs", epochs).field("is_twin", is_twin).finish()
    }
}

impl Protected {
    /// Of the VM that runs, or of its twin. `tell` is called in the thread of the port's front end: it must not wait.
    pub fn new(
        pairing: Pairing,
        epochs: Arc<Epochs>,
        is_twin: bool,
        tell: impl Fn(EpochEvent) + Send + Sync + 'static,
    ) -> Self {
        Self { pairing, epochs, is_twin: AtomicBool::new(is_twin), tell: Box::new(tell) }
    }

    /// Its epochs.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// Whether it is the twin's, which does not own the VM's addresses.
    pub fn is_twin(&self) -> bool {
        self.is_twin.load(Ordering::Acquire)
    }

    /// The twin takes over.
    pub(crate) fn own(&self) {
        self.is_twin.store(false, Ordering::Release);
    }

    /// The port's state is saved: the epoch that this closes. A twin's closes none.
    pub(crate) fn close(&self, ran: bool) -> Option<ClosedEpoch> {
        if self.is_twin() {
            return None;
        }
        let closed = ClosedEpoch { pairing: self.pairing, epoch: self.epochs.close(), ran };
        (self.tell)(EpochEvent::Closed(closed));
        Some(closed)
    }

    /// A state was loaded. One of another protection says nothing of this one.
    pub(crate) fn loaded(&self, closed: ClosedEpoch) {
        if closed.pairing == self.pairing && self.is_twin() {
            (self.tell)(EpochEvent::Loaded(closed));
        }
    }

    /// A ring runs.
    pub(crate) fn runs(&self) {
        (self.tell)(EpochEvent::Runs);
    }
}

/// Frames of these parts that may leave now do.
pub(crate) fn release(parts: &Group) {
    parts.ports().for_each(|part| part.release_frames());
}
