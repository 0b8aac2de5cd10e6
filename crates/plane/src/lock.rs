//! A port's lock. It also has the queue for threads that wait for a batch to complete.
//!
//! The feature `measure` times each hold into [`crate::measure`]; without it this is only a mutex.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard};

/// See the module's page.
pub struct Lock<T> {
    mutex: Mutex<T>,
    completed: Condvar,
}

/// A hold of the lock.
pub struct Held<'a, T> {
    guard: MutexGuard<'a, T>,
    /// Dropped after the guard, so that reading the clock is not part of the hold.
    #[cfg(feature = "measure")]
    _hold: crate::measure::Hold,
}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), completed: Condvar::new() }
    }

    /// A poisoned lock means that another thread broke one of our invariants; the port continues with its present state.
    pub fn hold(&self) -> Held<'_, T> {
        Held::of(self.mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Releases the lock until [`Lock::completed`] is called; may return earlier.
    pub fn wait<'a>(&self, held: Held<'a, T>) -> Held<'a, T> {
        let Held { guard, .. } = held;
        Held::of(self.completed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Wakes all waiting threads.
    pub fn completed(&self) {
        self.completed.notify_all();
    }
}

impl<'a, T> Held<'a, T> {
    fn of(guard: MutexGuard<'a, T>) -> Self {
        Self {
            guard,
            #[cfg(feature = "measure")]
            _hold: crate::measure::Hold::begin(),
        }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
