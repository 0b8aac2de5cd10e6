//! A worker is a thread. One worker owns a port at a time, and the port may move to another between turns.

use std::thread;

/// Runs a function as the worker with this number: the first is the test's own thread, any other is a new thread.
pub fn as_worker<R: Send>(number: usize, act: impl FnOnce() -> R + Send) -> R {
    if number == 0 {
        return act();
    }
    thread::scope(|scope| scope.spawn(act).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
