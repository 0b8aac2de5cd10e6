//! How long a worker waits actively before it sleeps.
//!
//! Whoever wakes a sleeping thread pays for it, mostly a virtual processor that has just rung, and the thread itself comes
//! late. Looking costs as much as it lasts. So a worker looks for as long as would have cost least lately: each wait adds to the cost of every
//! [span](SPANS) that the worker may watch for, either the wait itself, where so long a watch would have seen its end, or that watch in vain and the
//! price of a sleep. Costs are forgotten at the pace of [`LATELY`]. An idle or slowly beating worker just sleeps; one
//! that is rung now soon, now late, watches for the soon ones alone. A timer of its own is waited for like anything else: who sleeps
//! looks late at a queue whose doorbells are mapped. It is the old question of spinning or blocking (Karlin, Li, Manasse,
//! Owicki: Empirical studies of competitive spinning for a shared-memory multiprocessor, SOSP 1991), whose answer is learned there in
//! the same way.
//!
//! What a sleep costs depends on who waits meanwhile. If a VMM's message ends it, a processor of its guest stands still until the
//! answer; little traffic is an exchange of requests and answers, as fast as each of them is; and a bulk transfer has more on its way,
//! so that only processor time counts. Network cards that delay their interrupts make the same difference
//! (Linux, drivers/net/ethernet/intel/e1000/e1000_main.c, `e1000_update_itr`).

use std::time::Duration;

/// What a worker may watch for, in nanoseconds: at most as long as KVM looks for a guest that halts (Linux,
/// Documentation/virt/kvm/halt-polling.rst, `halt_poll_ns`).
const SPANS: [u64; 10] = [0, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 150_000, 200_000];

/// The price of a sleep that a message ends, in nanoseconds of watching: a guest without KVM computes for some hundred
/// microseconds between two of them.
const PRICE_OF_AN_ANSWER: u64 = 400_000;
/// Where little is carried from one wait to the next.
const PRICE_OF_AN_EXCHANGE: u64 = 100_000;
/// Elsewhere: the processor time alone, 30 to 45 µs on a virtual machine.
const PRICE_IN_BULK: u64 = 30_000;
/// What is little, in bytes, and by the way that turns are charged: a full frame each way is.
const LITTLE: u64 = 4 << 10;

/// How much later a sleeper's waits end, in nanoseconds: it comes late itself, and whom it then rings may have gone to sleep for it.
const LATE: u64 = 25_000;
/// About how many waits count, as a power of two.
const LATELY: u32 = 5;
/// No price is nearly as high; in nanoseconds.
const LONG: u64 = 1_000_000;

/// How a worker has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// From its first look on.
    pub lasted: Duration,
    /// In spite of watching.
    pub slept: bool,
    /// A message of a VMM's ended it, and not a bell, a frame, a note or a timer.
    pub message: bool,
}

/// See the module's page.
#[derive(Debug)]
pub struct Vigil {
    /// What each span costs for a wait, in nanoseconds.
    costs: [u64; SPANS.len()],
    best: usize,
    /// Bytes for a wait. A message's is none: whom a guest stops for is in no bulk transfer.
    bytes: u64,
    /// Since the last wait.
    carried: u64,
    never: bool,
    /// What it was told.
    #[cfg(test)]
    pub told: Vec<(Wait, u64)>,
}

impl Vigil {
    /// For a machine with so many processors: with one, whoever is awaited could not run meanwhile.
    pub fn new(processors: usize) -> Self {
        Self {
            costs: [0; SPANS.len()],
            best: 0,
            bytes: 0,
            carried: 0,
            never: processors < 2,
            #[cfg(test)]
            told: Vec::new(),
        }
    }

    /// How long to look before sleeping.
    pub fn span(&self) -> Duration {
        Duration::from_nanos(SPANS[self.best])
    }

    /// So many bytes were carried, by the way that turns are charged.
    pub fn carried(&mut self, bytes: u64) {
        self.carried += bytes;
    }

    /// A wait is over.
    pub fn ended(&mut self, wait: Wait) {
        let lasted = u64::try_from(wait.lasted.as_nanos()).map_or(LONG, |lasted| lasted.min(LONG));
        if self.never {
            return;
        }
        let carried = std::mem::take(&mut self.carried);
        #[cfg(test)]
        self.told.push((wait, carried));
        self.bytes = blend(self.bytes, if wait.message { 0 } else { carried });
        let price = match wait.message {
            true => PRICE_OF_AN_ANSWER,
            false if self.bytes < LITTLE => PRICE_OF_AN_EXCHANGE,
            false => PRICE_IN_BULK,
        };
        let lasted = match wait.slept {
            true => lasted.saturating_sub(LATE).max(SPANS[self.best] + 1),
            false => lasted,
        };
        for (cost, span) in self.costs.iter_mut().zip(SPANS) {
            *cost = blend(*cost, if lasted <= span { lasted } else { span + price });
        }
        // Of equals the shortest.
        self.best = (0..SPANS.len()).min_by_key(|&span| self.costs[span]).unwrap_or(0);
    }
}

/// A mean in which the newest weighs most.
fn blend(mean: u64, new: u64) -> u64 {
    mean - (mean >> LATELY) + (new >> LATELY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind of wait, what is carried before it, and from when on sleeping is better, or the longest watch too short.
    const KINDS: [(bool, u64, u64); 3] =
        [(true, 64 << 10, 200_000), (false, 2 * (1514 + 256), PRICE_OF_AN_EXCHANGE), (false, 64 << 10, PRICE_IN_BULK)];

    /// What the worker would see, if what it waits for came after so many nanoseconds.
    fn comes(vigil: &mut Vigil, after: u64, message: bool, carried: u64) {
        let slept = vigil.span() < Duration::from_nanos(after);
        let lasted = Duration::from_nanos(if slept { after + LATE } else { after });
        vigil.carried(carried);
        vigil.ended(Wait { lasted, slept, message });
    }

    #[test]
    fn it_watches_for_what_comes_sooner_than_a_sleep_costs_and_sleeps_for_what_comes_later() {
        for (message, carried, least) in KINDS {
            let mut vigil = Vigil::new(2);
            assert_eq!(vigil.span(), Duration::ZERO);
            for (after, watches) in [(least * 9 / 10, true), (least * 11 / 10, false), (least / 2, true), (LONG, false)]
            {
                (0..200).for_each(|_| comes(&mut vigil, after, message, carried));
                assert_eq!(vigil.span() >= Duration::from_nanos(after), watches, "{after} of {least}");
                assert!(watches || vigil.span().is_zero(), "{after} of {least}: {:?}", vigil.span());
            }
        }
    }

    #[test]
    fn an_idle_worker_watches_a_few_times_more_at_most() {
        for message in [true, false] {
            let mut vigil = Vigil::new(2);
            (0..1000).for_each(|_| comes(&mut vigil, 150_000, true, 0));
            let watched = (0..100).filter(|_| {
                comes(&mut vigil, 5 * LONG, message, 0);
                !vigil.span().is_zero()
            });
            assert!(watched.count() < 1 << LATELY, "{message}");
        }
    }

    #[test]
    fn of_soon_and_late_it_watches_for_the_soon_ones_alone() {
        let mut vigil = Vigil::new(2);
        for after in [3_000, 4_000, 3_000, LONG].repeat(100) {
            comes(&mut vigil, after, false, 600);
        }
        assert_eq!(vigil.span(), Duration::from_micros(5));
    }

    #[test]
    fn what_comes_just_after_its_watch_makes_it_watch_longer() {
        let mut vigil = Vigil::new(2);
        (0..100).for_each(|_| comes(&mut vigil, 90_000, true, 0));
        let span = vigil.span();
        // By the clock it could have been late within the watch; but it was not seen there.
        for _ in 0..10 {
            vigil.ended(Wait { lasted: span + Duration::from_micros(1), slept: true, message: true });
        }
        assert!(vigil.span() > span, "{:?}", vigil.span());
    }

    /// Half of what is waited for are messages: what is carried is little then, and other waits are an exchange's.
    #[test]
    fn where_messages_come_nothing_is_bulk() {
        let mut vigil = Vigil::new(2);
        for _ in 0..100 {
            comes(&mut vigil, 3_000, true, 6 << 10);
            comes(&mut vigil, 50_000, false, 6 << 10);
        }
        assert!(vigil.span() >= Duration::from_micros(50), "{:?}", vigil.span());
        (0..200).for_each(|_| comes(&mut vigil, 50_000, false, 6 << 10));
        assert_eq!(vigil.span(), Duration::ZERO);
    }

    #[test]
    fn one_processor_is_left_to_others() {
        let mut vigil = Vigil::new(1);
        (0..100).for_each(|_| comes(&mut vigil, 1_000, true, 0));
        assert_eq!(vigil.span(), Duration::ZERO);
    }
}
