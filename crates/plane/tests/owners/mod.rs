//! A worker is a thread; a port belongs to one at a time, and may be given to another between turns.

use std::thread;

/// Does something as the worker of this number would: the first is the test's own thread, any other is one more.
pub fn as_worker<R: Send>(number: usize, act: impl FnOnce() -> R + Send) -> R {
    if number == 0 {
        return act();
    }
    thread::scope(|scope| scope.spawn(act).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}
