//! How long a worker waits actively before it sleeps.
//!
//! Whoever wakes a sleeping thread pays for it, mostly a virtual processor that has just rung, and the thread itself comes
//! late. While accesses follow each other closely, as the registers of one interrupt do, looking for the next one a little longer
//! costs less than both. The span grows while watch and sleep together turn out shorter than [`MOST`], so that a longer watch
//! would have spared the sleep, and shrinks to nothing with long ones, so that an idle or slowly beating worker just sleeps. The rule is
//! KVM's halt polling (Linux, Documentation/virt/kvm/halt-polling.rst).
//!
//! If a VMM's message ends the sleep, a processor of its guest may have to wait for the answer, and a guest without KVM computes
//! for some hundred microseconds between two of them: then the sleep alone counts, and the span grows to [`MOST_MESSAGE`], which is
//! KVM's own.

use std::time::Duration;

/// The longest active wait for a bell, a frame or a timer. With 50 µs a request and its answer between two idle guests fell on either side
/// of it, and their rate with it.
pub const MOST: Duration = Duration::from_micros(100);
/// The longest where messages come.
pub const MOST_MESSAGE: Duration = Duration::from_micros(200);
/// What it begins with.
const FIRST: Duration = Duration::from_micros(5);

/// What ended a sleep, and how long the worker had waited for it. A timer is nobody's doing, and does not count.
#[derive(Clone, Copy, Debug)]
pub enum Waited {
    /// A message of a VMM's, since the worker went to sleep.
    Message(Duration),
    /// Anything else, since the worker began to watch.
    Other(Duration),
}

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

    /// In spite of it the worker has slept.
    pub fn slept(&mut self, waited: Waited) {
        let (waited, most) = match waited {
            Waited::Message(waited) => (waited, MOST_MESSAGE),
            Waited::Other(waited) => (waited, MOST),
        };
        self.span = match waited <= most {
            _ if self.never => Duration::ZERO,
            true => (self.span * 2).clamp(FIRST, most.max(self.span)),
            false if self.span <= FIRST => Duration::ZERO,
            false => self.span / 2,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Kind = fn(Duration) -> Waited;

    const KINDS: [(Kind, Duration); 2] = [(Waited::Message, MOST_MESSAGE), (Waited::Other, MOST)];

    #[test]
    fn short_sleeps_make_it_watch_and_long_ones_let_it_sleep() {
        for (kind, most) in KINDS {
            let mut vigil = Vigil::new(2);
            assert_eq!(vigil.span(), Duration::ZERO);
            for _ in 0..10 {
                vigil.slept(kind(most));
            }
            assert_eq!(vigil.span(), most);
            for _ in 0..10 {
                vigil.slept(kind(most + Duration::from_nanos(1)));
            }
            assert_eq!(vigil.span(), Duration::ZERO);
        }
    }

    #[test]
    fn what_is_no_message_lengthens_no_watch_beyond_its_own_and_shortens_none_by_being_short() {
        let mut vigil = Vigil::new(2);
        (0..10).for_each(|_| vigil.slept(Waited::Message(MOST_MESSAGE)));
        vigil.slept(Waited::Other(MOST));
        assert_eq!(vigil.span(), MOST_MESSAGE);
        vigil.slept(Waited::Other(MOST_MESSAGE));
        assert_eq!(vigil.span(), MOST_MESSAGE / 2);
        (0..10).for_each(|_| vigil.slept(Waited::Other(MOST)));
        assert_eq!(vigil.span(), MOST);
    }

    #[test]
    fn one_processor_is_left_to_others() {
        let mut vigil = Vigil::new(1);
        vigil.slept(Waited::Other(Duration::from_micros(1)));
        assert_eq!(vigil.span(), Duration::ZERO);
    }
}
