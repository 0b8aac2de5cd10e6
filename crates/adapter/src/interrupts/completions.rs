//! Completion coalescing: the delay of transmit completions that wait to share another interrupt (docs/feedback-loops.md).
//!
//! An interrupt costs a VM more than the frame that it announces: with trapped registers several round trips. Most transmit
//! completions are soon followed by a received frame, whose interrupt can signal both. Then a request and its response cost one
//! interrupt, not two. So a completion waits until something else is signalled, enough completions wait, or the delay is over.
//!
//! The delay adapts to the guest. It doubles when a frame arrives just after a completion was signalled alone, and halves when none
//! arrives. With virtio an interrupt for received frames does not signal completions, but the driver may check for them then: there
//! it doubles when a frame arrives in time. It never exceeds [`COMPLETION_DELAY_MAX_NS`]: far below the second after which Linux
//! considers a transmitter hung, and about what its TCP keeps in flight (a millisecond at the flow's rate).

use serde::{Deserialize, Serialize};

use crate::time::Time;

/// The shortest delay, which is also the first, in nanoseconds.
const MIN_NS: u64 = 100_000;
/// The longest delay, in nanoseconds.
pub const COMPLETION_DELAY_MAX_NS: u64 = 2_000_000;

/// The waiting completions, and their delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionDelay {
    /// The latest time for signalling the waiting completions; `None` if none wait.
    due: Option<Time>,
    /// Number of waiting completions.
    waiting: u32,
    span_ns: u64,
    /// Time at which a completion was last signalled alone.
    alone: Option<Time>,
}

impl Default for CompletionDelay {
    fn default() -> Self {
        Self { due: None, waiting: 0, span_ns: MIN_NS, alone: None }
    }
}

impl CompletionDelay {
    /// Completions wait from now on, for at least `least_ns`; more than `enough` are signalled at once.
    pub fn wait(&mut self, completions: u32, enough: u32, least_ns: u64, now: Time) {
        self.waiting = self.waiting.saturating_add(completions);
        if self.waiting > enough {
            self.due = Some(now);
        } else if self.due.is_none() {
            if self.alone.is_some_and(|at| now.since(at).as_nanos() > u128::from(COMPLETION_DELAY_MAX_NS)) {
                self.span_ns = (self.span_ns / 2).max(MIN_NS);
                self.alone = None;
            }
            self.due = Some(now.after_ns(self.span_ns.max(least_ns)));
        }
    }

    /// Makes the waiting completions urgent, and those that join them.
    pub fn hurry(&mut self, now: Time) {
        self.due = Some(now);
    }

    /// A frame was received. With a little more delay, its interrupt would have signalled the last completions too.
    pub fn answered(&mut self, now: Time) {
        if let Some(at) = self.alone.take()
            && now.since(at).as_nanos() <= u128::from(COMPLETION_DELAY_MAX_NS)
        {
            self.span_ns = (self.span_ns * 2).min(COMPLETION_DELAY_MAX_NS);
        }
    }

    /// An interrupt for received frames was sent. The driver may check for completions in it, so they can wait longer. They still count as
    /// not signalled.
    pub fn accompanied(&mut self) {
        if self.due.is_some() {
            self.span_ns = (self.span_ns * 2).min(COMPLETION_DELAY_MAX_NS);
        }
    }

    /// An interrupt is sent now, and signals the waiting completions. True if there were any.
    pub fn join(&mut self) -> bool {
        self.waiting = 0;
        self.due.take().is_some()
    }

    /// Whether the delay is over. Then the waiting completions must be signalled alone.
    pub fn over(&mut self, now: Time) -> bool {
        let over = self.due.is_some_and(|at| at <= now);
        if over {
            self.join();
            self.alone = Some(now);
        }
        over
    }

    /// Whether this saved state is valid.
    pub fn fits(&self) -> bool {
        (MIN_NS..=COMPLETION_DELAY_MAX_NS).contains(&self.span_ns)
    }

    /// End of the delay, if completions wait.
    pub fn due(&self) -> Option<Time> {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    #[test]
    fn the_delay_grows_while_answers_come_just_late_and_shrinks_when_none_come() {
        let mut delay = CompletionDelay::default();
        for round in 0..8 {
            let sent = ms(10 * round);
            delay.wait(1, 64, 0, sent);
            if let Some(at) = delay.due().filter(|at| *at < sent.after_ns(800_000)) {
                assert!(delay.over(at));
            }
            delay.answered(sent.after_ns(800_000));
            delay.join();
        }
        delay.wait(1, 64, 0, ms(100));
        assert!(delay.due() >= Some(ms(100).after_ns(800_000)), "it has learned the rhythm");
        for round in 0..8 {
            let sent = ms(200 + 10 * round);
            delay.join();
            delay.wait(1, 64, 0, sent);
            let at = delay.due().expect("a time");
            assert!(at <= sent.after_ns(COMPLETION_DELAY_MAX_NS));
            assert!(delay.over(at));
        }
        delay.wait(1, 64, 0, ms(400));
        assert!(delay.due() < Some(ms(400).after_ns(200_000)), "and forgotten it");
    }

    #[test]
    fn the_delay_grows_when_frames_arrive_in_time() {
        let mut delay = CompletionDelay::default();
        delay.accompanied();
        for round in 0..8 {
            delay.wait(1, 64, 0, ms(10 * round));
            delay.accompanied();
            assert!(delay.due().is_some(), "it is not told");
            delay.join();
        }
        delay.wait(1, 64, 0, ms(100));
        assert_eq!(delay.due(), Some(ms(100).after_ns(COMPLETION_DELAY_MAX_NS)));
    }

    #[test]
    fn enough_of_them_or_an_urgent_one_wait_no_longer() {
        let mut delay = CompletionDelay::default();
        delay.wait(64, 64, 0, ms(1));
        assert!(!delay.over(ms(1)));
        delay.wait(1, 64, 0, ms(1));
        assert!(delay.over(ms(1)));
        delay.wait(1, 64, 0, ms(2));
        delay.hurry(ms(2));
        assert!(delay.over(ms(2)) && !delay.over(ms(9)) && !delay.join());
    }
}
