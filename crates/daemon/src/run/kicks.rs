//! Kick descriptors in flight from a port's thread to its worker. A front end may send many while the worker is busy, so their
//! number is limited: the port's thread waits before it sends more (backpressure). It also waits here for its allowance of
//! processor time (`allowance.rs`).

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Most kicks of one port in flight.
pub const KICKS_MAX: usize = 64;

/// The number of kicks in flight, and their limit.
#[derive(Debug, Default)]
pub struct Kicks {
    state: Mutex<State>,
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct State {
    in_flight: usize,
    over: bool,
}

/// Accompanies a kick in flight. The worker drops it when it has the kick.
#[derive(Debug)]
pub struct KickInFlight(Arc<Kicks>);

impl Kicks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until one more may be sent. Returns `None` once the port is released.
    pub fn send_one(self: &Arc<Self>) -> Option<KickInFlight> {
        let waits = |state: &mut State| state.in_flight >= KICKS_MAX && !state.over;
        let mut state = self.fewer.wait_while(self.state(), waits).unwrap_or_else(|poisoned| poisoned.into_inner());
        if state.over {
            return None;
        }
        state.in_flight += 1;
        Some(KickInFlight(Arc::clone(self)))
    }

    /// Waits for this time, or until the port is released.
    pub fn rest(&self, time: Duration) {
        let waits = |state: &mut State| !state.over;
        drop(self.fewer.wait_timeout_while(self.state(), time, waits));
    }

    /// Releases the port: from now on no thread waits here, whatever the worker does.
    pub fn end(&self) {
        self.state().over = true;
        self.fewer.notify_all();
    }
}

impl Drop for KickInFlight {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
        self.0.fewer.notify_one();
    }
}
