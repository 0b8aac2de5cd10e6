//! Completions of transmitted frames that wait for company.
//!
//! An interrupt costs a virtual machine more than the frame that it tells of: with registers that are trapped, several
//! round trips. Most transmit completions are followed by a received frame soon, and can be told with it: a guest that
//! sends a request and gets the answer then takes one interrupt and not two. So a completion waits, until something
//! else is told, or enough of them wait, or its patience is over.
//!
//! How long the patience is follows the guest: it doubles when company came just after it was over, and goes back when
//! none comes. Where company does not tell of what waits, but the driver may look at it then (virtio's), it doubles when company
//! comes in time. It never exceeds [`MOST_NS`]: far below what Linux takes for a hanging transmitter (one second), and
//! about what its TCP keeps in flight (a millisecond at the pace of the flow).

use nicety_adapter::Time;

/// How long a completion waits at least, before its guest's rhythm is known.
const LEAST_NS: u64 = 100_000;
/// How long it waits at most.
pub const MOST_NS: u64 = 2_000_000;

/// What waits, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// When what waits is told at the latest; `None` if nothing waits.
    due: Option<Time>,
    /// How much waits.
    waiting: u32,
    span_ns: u64,
    /// When something last was told for want of company.
    alone: Option<Time>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { due: None, waiting: 0, span_ns: LEAST_NS, alone: None }
    }
}

impl Patience {
    /// So many completions wait from now on, for `least_ns` at least; at most `enough` wait together.
    pub fn wait(&mut self, completions: u32, enough: u32, least_ns: u64, now: Time) {
        self.waiting = self.waiting.saturating_add(completions);
        if self.waiting > enough {
            self.due = Some(now);
        } else if self.due.is_none() {
            if self.alone.is_some_and(|at| now.since(at).as_nanos() > u128::from(MOST_NS)) {
                self.span_ns = (self.span_ns / 2).max(LEAST_NS);
                self.alone = None;
            }
            self.due = Some(now.after_ns(self.span_ns.max(least_ns)));
        }
    }

    /// What waits, and what comes with it, is urgent.
    pub fn hurry(&mut self, now: Time) {
        self.due = Some(now);
    }

    /// A frame has been received: had completions waited a little longer, it would have been their company.
    pub fn answered(&mut self, now: Time) {
        if let Some(at) = self.alone.take()
            && now.since(at).as_nanos() <= u128::from(MOST_NS)
        {
            self.span_ns = (self.span_ns * 2).min(MOST_NS);
        }
    }

    /// Something was told to a driver that looks at what waits when it is told anything, and may not: what waits is not told yet, but
    /// has time.
    pub fn accompanied(&mut self) {
        if self.due.is_some() {
            self.span_ns = (self.span_ns * 2).min(MOST_NS);
        }
    }

    /// Something is told now, and what waits is told with it. True if something did.
    pub fn join(&mut self) -> bool {
        self.waiting = 0;
        self.due.take().is_some()
    }

    /// The patience may be over: then what waits is to be told alone. True if so.
    pub fn over(&mut self, now: Time) -> bool {
        let over = self.due.is_some_and(|at| at <= now);
        if over {
            self.join();
            self.alone = Some(now);
        }
        over
    }

    /// When it is over, if anything waits.
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
    fn patience_grows_while_answers_come_just_late_and_shrinks_when_none_come() {
        let mut patience = Patience::default();
        for round in 0..8 {
            let sent = ms(10 * round);
            patience.wait(1, 64, 0, sent);
            if let Some(at) = patience.due().filter(|at| *at < sent.after_ns(800_000)) {
                assert!(patience.over(at));
            }
            patience.answered(sent.after_ns(800_000));
            patience.join();
        }
        patience.wait(1, 64, 0, ms(100));
        assert!(patience.due() >= Some(ms(100).after_ns(800_000)), "it has learned the rhythm");
        for round in 0..8 {
            let sent = ms(200 + 10 * round);
            patience.join();
            patience.wait(1, 64, 0, sent);
            let at = patience.due().expect("a time");
            assert!(at <= sent.after_ns(MOST_NS));
            assert!(patience.over(at));
        }
        patience.wait(1, 64, 0, ms(400));
        assert!(patience.due() < Some(ms(400).after_ns(200_000)), "and forgotten it");
    }

    #[test]
    fn patience_grows_with_company_that_comes_in_time() {
        let mut patience = Patience::default();
        patience.accompanied();
        for round in 0..8 {
            patience.wait(1, 64, 0, ms(10 * round));
            patience.accompanied();
            assert!(patience.due().is_some(), "it is not told");
            patience.join();
        }
        patience.wait(1, 64, 0, ms(100));
        assert_eq!(patience.due(), Some(ms(100).after_ns(MOST_NS)));
    }

    #[test]
    fn enough_of_them_or_an_urgent_one_wait_no_longer() {
        let mut patience = Patience::default();
        patience.wait(64, 64, 0, ms(1));
        assert!(!patience.over(ms(1)));
        patience.wait(1, 64, 0, ms(1));
        assert!(patience.over(ms(1)));
        patience.wait(1, 64, 0, ms(2));
        patience.hurry(ms(2));
        assert!(patience.over(ms(2)) && !patience.over(ms(9)) && !patience.join());
    }
}
