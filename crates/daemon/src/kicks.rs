//! New kick descriptors in flight from a port's thread to its worker. A front end may send many while the worker is busy, so their
//! number is bounded: the port's thread waits before it sends more (backpressure). It waits here for its [`Allowance`] too.
//!
//! [`Allowance`]: crate::allowance::Allowance

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Most kicks of one port in flight.
pub const KICKS_MOST: usize = 64;

/// See the module's page.
#[derive(Debug, Default)]
pub struct Kicks {
    state: Mutex<State>,
    fewer: Condvar,
}

#[derive(Debug, Default)]
struct State {
    on_the_way: usize,
    over: bool,
}

/// Accompanies a kick in flight; dropped when the worker has it.
#[derive(Debug)]
pub struct OnTheWay(Arc<Kicks>);

impl Kicks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until one more may be sent. `None` once the port is released.
    pub fn set_out(self: &Arc<Self>) -> Option<OnTheWay> {
        let waits = |state: &mut State| state.on_the_way >= KICKS_MOST && !state.over;
        let mut state = self.fewer.wait_while(self.state(), waits).unwrap_or_else(|poisoned| poisoned.into_inner());
        if state.over {
            return None;
        }
        state.on_the_way += 1;
        Some(OnTheWay(Arc::clone(self)))
    }

    /// Waits for so long, or until the port is released.
    pub fn rest(&self, time: Duration) {
        let waits = |state: &mut State| !state.over;
        drop(self.fewer.wait_timeout_while(self.state(), time, waits));
    }

    /// The port is released: no thread waits here any more, whatever the worker does.
    pub fn end(&self) {
        self.state().over = true;
        self.fewer.notify_all();
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.0.state().on_the_way -= 1;
        self.0.fewer.notify_one();
    }
}
