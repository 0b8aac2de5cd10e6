//! A port of a VM that is copied to its twin on another host, again and again (docs/fault-tolerance.md).
//!
//! Its front end says when: it has the port's state saved on the one host for each copy, and loaded on the other one. So a saved state
//! closes an epoch of what the guest sent, and a loaded one, with the rings running again, says that the twin has that copy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nicety_plane::{Epochs, GatePosition, Group, Waiting};
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
    /// How far the port's gates were when it was closed. `None`: by a daemon of version 0.1.0, which does not say.
    pub gate: Option<GatePosition>,
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
    /// At a twin: the copy that was loaded last.
    last: Mutex<Option<ClosedEpoch>>,
    tell: OnceLock<Box<dyn Fn(EpochEvent) + Send + Sync>>,
}

impl std::fmt::Debug for Protected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pairing, epochs, is_twin, last, tell: _ } = self;
        let mut out = f.debug_struct("Protected");
        out.field("pairing", pairing).field("epochs", epochs).field("is_twin", is_twin).field("last", last).finish()
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
        let protected = Self::again(pairing, epochs, is_twin);
        protected.tell_to(tell);
        protected
    }

    /// Of a VM that another process has protected. Nobody is told of its events before [`Protected::tell_to`].
    pub fn again(pairing: Pairing, epochs: Arc<Epochs>, is_twin: bool) -> Self {
        Self { pairing, epochs, is_twin: AtomicBool::new(is_twin), last: Mutex::default(), tell: OnceLock::new() }
    }

    /// Who is told of its events, as in [`Protected::new`]. The first call counts.
    pub fn tell_to(&self, tell: impl Fn(EpochEvent) + Send + Sync + 'static) {
        let _first = self.tell.set(Box::new(tell));
    }

    fn tell(&self, event: EpochEvent) {
        self.tell.get().into_iter().for_each(|tell| tell(event));
    }

    /// The protection.
    pub fn pairing(&self) -> Pairing {
        self.pairing
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
        let gate = Some(self.epochs.position());
        let closed = ClosedEpoch { pairing: self.pairing, epoch: self.epochs.close(), ran, gate };
        self.tell(EpochEvent::Closed(closed));
        Some(closed)
    }

    /// Whether a state can be the next one that is loaded. One of another protection says nothing of this one. The error is the end of a
    /// sentence: nothing of that state may be used.
    pub(crate) fn check(&self, closed: ClosedEpoch) -> Result<(), String> {
        let ClosedEpoch { pairing, epoch, ran: _, gate } = closed;
        if pairing != self.pairing || !self.is_twin() {
            return Ok(());
        }
        if let Some(GatePosition { taken, left }) = gate.filter(|gate| gate.waiting().is_none()) {
            return Err(format!(
                "by its gate's position {} packets of {} bytes have left, and the guest has sent {} of {}: it is no state of a VM's owner",
                left.packets, left.bytes, taken.packets, taken.bytes
            ));
        }
        let last = *self.last();
        let Some(before) = last.filter(|before| epoch < before.epoch) else {
            let goes_back = match (last.and_then(|last| last.gate), gate) {
                (Some(before), Some(gate)) => !gate.follows(&before),
                (before, gate) => before.is_some() && gate.is_none(),
            };
            let why = "its gate's position goes back: the last copy was further. It is a state of an earlier copy";
            return if goes_back { Err(why.to_owned()) } else { Ok(()) };
        };
        Err(format!("it closes epoch {epoch}, and epoch {} was loaded: it is a state of an earlier copy", before.epoch))
    }

    /// A state was loaded that [`Protected::check`] has found right.
    pub(crate) fn loaded(&self, closed: ClosedEpoch) {
        if closed.pairing == self.pairing && self.is_twin() {
            *self.last() = Some(closed);
            self.tell(EpochEvent::Loaded(closed));
        }
    }

    /// A ring runs.
    pub(crate) fn runs(&self) {
        self.tell(EpochEvent::Runs);
    }

    fn last(&self) -> MutexGuard<'_, Option<ClosedEpoch>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At a twin: what waited in the owner's gate when the copy was made that was loaded last. `None`: no copy has said so.
    pub fn unseen(&self) -> Option<Waiting> {
        self.last().and_then(|last| last.gate?.waiting())
    }
}

/// Frames of these parts that may leave now do.
pub(crate) fn release(parts: &Group) {
    parts.ports().for_each(|part| part.release_frames());
}

#[cfg(test)]
mod tests {
    use nicety_plane::GateMode;

    use super::*;

    fn closed(epoch: u64, taken: (u64, u64), left: (u64, u64)) -> ClosedEpoch {
        let count = |(packets, bytes)| Waiting { packets, bytes };
        let gate = Some(GatePosition { taken: count(taken), left: count(left) });
        ClosedEpoch { pairing: Pairing(1), epoch, ran: true, gate }
    }

    #[test]
    fn a_copy_whose_gate_goes_back_or_gives_more_than_it_took_is_refused_with_the_reason() {
        let twin = Protected::again(Pairing(1), Arc::new(Epochs::new(GateMode::Mute, || {})), true);
        let first = closed(2, (10, 1000), (4, 400));
        assert_eq!((twin.unseen(), twin.check(first)), (None, Ok(())));
        twin.loaded(first);
        assert_eq!(twin.unseen(), Some(Waiting { packets: 6, bytes: 600 }));
        let why = |closed: ClosedEpoch| twin.check(closed).unwrap_err();
        assert!(why(closed(1, (10, 1000), (4, 400))).contains("it closes epoch 1, and epoch 2 was loaded"));
        for back in [closed(3, (9, 1000), (4, 400)), closed(3, (10, 1000), (4, 399))] {
            assert!(why(back).contains("its gate's position goes back"), "{back:?}");
        }
        assert!(why(ClosedEpoch { gate: None, ..closed(3, (0, 0), (0, 0)) }).contains("goes back"));
        let impossible = why(closed(3, (10, 1000), (11, 1100)));
        assert!(
            impossible.contains("11 packets of 1100 bytes have left, and the guest has sent 10 of 1000"),
            "{impossible}"
        );
        // Another protection's says nothing of this one; nor is an owner anybody's copy.
        assert_eq!(twin.check(ClosedEpoch { pairing: Pairing(2), ..closed(1, (0, 0), (0, 0)) }), Ok(()));
        twin.own();
        assert_eq!(twin.check(closed(1, (0, 0), (0, 0))), Ok(()));
        assert_eq!(twin.unseen(), Some(Waiting { packets: 6, bytes: 600 }));
    }
}
