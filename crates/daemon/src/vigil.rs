//! How long a worker waits actively before it sleeps.
//!
//! Whoever wakes a sleeping thread pays for it, mostly a virtual processor that has just rung, and the thread itself comes
//! late. While accesses follow each other closely, as the registers of one interrupt do, looking for the next one a little longer
//! costs less than both. The span grows while watch and sleep together turn out shorter than [`MOST`], so that a longer watch
//! would have spared the sleep, and shrinks to nothing with long ones, so that an idle or slowly beating worker just sleeps. If a
//! VMM's message ends the sleep, a processor of its guest may have to wait for the answer: then the sleep alone counts. The rule is KVM's halt polling (Linux,
//! Documentation/virt/kvm/halt-polling.rst), whose longest span is 200 µs; with 50 a request and its answer between two idle
//! guests fell on either side of it, and their rate with it.

use std::time::Duration;

/// The longest active wait.
pub const MOST: Duration = Duration::from_micros(100);
/// What it begins with.
const FIRST: Duration = Duration::from_micros(5);

/// See the module's page.
#[derive(Debug, Default)]
pub struct Vigil {
    span: Duration,
    never: bool,
}

impl Vigil {
    /// For a machine with so many processors: with one, whoever is awaited could not run meanwhile.
    pub fn new(processors: usize) -> Self {
        Self { span: Duration::ZERO, never: processors < 2 }
    }

    /// How long to look before sleeping.
    pub fn span(&self) -> Duration {
        self.span
    }

    /// In spite of it the worker has slept, until somebody woke it (a timer is nobody): so long after it began to watch, or
    /// if it was a message, to sleep.
    pub fn slept(&mut self, waited: Duration) {
        self.span = match waited <= MOST {
            _ if self.never => Duration::ZERO,
            true => (self.span * 2).clamp(FIRST, MOST),
            false if self.span <= FIRST => Duration::ZERO,
            false => self.span / 2,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_make_it_watch_and_long_ones_let_it_sleep() {
        let mut vigil = Vigil::new(2);
        assert_eq!(vigil.span(), Duration::ZERO);
        for _ in 0..10 {
            vigil.slept(Duration::from_micros(15));
        }
        assert_eq!(vigil.span(), MOST);
        for _ in 0..10 {
            vigil.slept(Duration::from_micros(200));
        }
        assert_eq!(vigil.span(), Duration::ZERO);
    }

    #[test]
    fn one_processor_is_left_to_others() {
        let mut vigil = Vigil::new(1);
        vigil.slept(Duration::from_micros(1));
        assert_eq!(vigil.span(), Duration::ZERO);
    }
}
