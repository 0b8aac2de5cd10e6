//! A port that goes on in another process: what it has beside its adapter.

use nicety_adapter::{Counters, HandOver, Reason, SavedBucket, SavedCounters, Shaper};
use serde::{Deserialize, Serialize};

use super::{End, Port};

/// A port's numbers, for the process that goes on with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedNumbers {
    /// Its counters. Frames that wait in its receive buffer are not moved: they count as removed.
    pub counters: SavedCounters,
    /// Packets that earlier VMs have sent.
    pub sent_before: u64,
    /// The tokens for what its guest sends, and for what it receives, if they are limited.
    pub tokens: [Option<SavedTokens>; 2],
}

/// The tokens of an average's bucket and of a peak's.
pub type SavedTokens = (SavedBucket, Option<SavedBucket>);

impl Port {
    /// Its numbers. Changes nothing. Call it while nothing is delivered to the port.
    pub fn numbers(&self) -> SavedNumbers {
        let inner = self.lock();
        let mut counters = inner.counters.clone();
        (0..inner.backlog.len()).for_each(|_| counters.receive_drop(Reason::Removed));
        let tokens = [&inner.transmit, &inner.receive].map(|shaper| shaper.as_ref().map(Shaper::save));
        SavedNumbers { counters: counters.save(), sent_before: inner.sent_before, tokens }
    }

    /// Goes on with saved tokens. Call it when the port has its shapes, which are those of the saved port.
    pub fn shape_on(&self, saved: &SavedNumbers) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        for (shaper, saved) in [&mut inner.transmit, &mut inner.receive].into_iter().zip(saved.tokens) {
            if let (Some(shaper), Some(saved)) = (shaper, saved) {
                shaper.restore(saved);
            }
        }
    }

    /// Passes `act` how another process goes on with this uplink. `None` if it is none, or has failed.
    pub fn hand_over<R>(&self, act: impl FnOnce(HandOver<'_>) -> R) -> Option<R> {
        match &self.lock().end {
            End::Uplink(uplink) => Some(act(uplink.hand_over())),
            End::Adapter(_) | End::Failed(_) => None,
        }
    }

    /// Counts on from the numbers of another process. Call it on a new port, before its adapter is restored.
    pub fn count_on(&self, saved: &SavedNumbers) {
        let mut inner = self.lock();
        inner.counters = Counters::restored(&saved.counters);
        inner.errors_reported = inner.counters.errors().noted();
    }

    /// A VM is attached that another process has served: like [`Port::attach`], and its packets so far are counted as its own.
    pub fn attach_again(&self, saved: &SavedNumbers) {
        self.attach();
        self.lock().sent_before = saved.sent_before;
    }
}
