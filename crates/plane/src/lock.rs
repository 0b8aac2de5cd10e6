//! A port's lock. Threads that wait for a batch to complete wait here too.
//!
//! With the feature `measure` each hold is timed into [`crate::measure`]; without it there is nothing but the mutex.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard};

/// See the module's page.
pub struct Lock<T> {
    mutex: Mutex<T>,
    landed: Condvar,
}

/// A hold of it.
pub struct Held<'a, T> {
    guard: MutexGuard<'a, T>,
    /// Behind the guard, so that reading the clock is not part of the hold.
    #[cfg(feature = "measure")]
    _hold: crate::measure::Hold,
}

impl<T> Lock<T> {
    pub fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), landed: Condvar::new() }
    }

    /// A poisoned lock means that an invariant of ours broke in another thread; the port goes on with what it has.
    pub fn hold(&self) -> Held<'_, T> {
        Held::of(self.mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Lets go until [`Lock::landed`] is called; may come back earlier.
    pub fn wait<'a>(&self, held: Held<'a, T>) -> Held<'a, T> {
        let Held { guard, .. } = held;
        Held::of(self.landed.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Wakes all that wait.
    pub fn landed(&self) {
        self.landed.notify_all();
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
