//! Busy polling: the time that a worker polls before it sleeps (docs/feedback-loops.md explains the constants and their
//! measurement).
//!
//! Waking a sleeping worker costs the waker a system call, and the worker its latency. The waker is usually a virtual CPU that
//! has just rung a doorbell. Busy polling costs CPU time. So a worker polls for the time that would have cost least lately. Each
//! wait adds a cost to every [span](SPANS): the wait itself, if it ended within the span; else the span plus the price of one
//! sleep. [`LATELY`] sets how fast old waits are forgotten. An idle worker just sleeps. A worker with some early and some late
//! events polls only for the early ones. This is the spin-or-block problem, with the adaptive method of Karlin, Li, Manasse,
//! Owicki: Empirical studies of competitive spinning for a shared-memory multiprocessor, SOSP 1991.
//!
//! A worker's own timer, for example to poll mapped doorbells, ends no wait if it finds no work. But each timer that wakes a
//! sleeper costs CPU time, which longer polling would have saved. So a worker does not sleep if a timer is due
//! [very soon](BusyPoll::is_short).
//!
//! The price of a sleep depends on the event that ends it. If a VMM's message ends it, a virtual CPU is stopped until the answer.
//! Little traffic from alternating ports is request and response, which is bound by latency. In a bulk transfer, which has more
//! in flight, or for a port that sends alone, only CPU time counts. Interrupt moderation of network cards distinguishes the same
//! cases (Linux, drivers/net/ethernet/intel/e1000/e1000_main.c, `e1000_update_itr`).

use std::time::Duration;

use nicety_adapter::{PortId, Time};

/// The times that a worker may poll, in nanoseconds.
const SPANS: [u64; 13] =
    [0, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000, 150_000, LONGEST, 300_000, 400_000, 600_000];
/// The longest polling: KVM's limit for a halted guest (Linux, Documentation/virt/kvm/halt-polling.rst, `halt_poll_ns`). It is
/// longer only if waking for timers would cost more.
const LONGEST: u64 = 200_000;

/// The price of a sleep that a VMM's message ends, in nanoseconds of polling. A guest without KVM computes for some hundred
/// microseconds between two messages.
const PRICE_OF_AN_ANSWER: u64 = 400_000;
/// The price in request and response: little data per wait, and not always from the same port.
const PRICE_OF_AN_EXCHANGE: u64 = 100_000;
/// The price otherwise: only the CPU time of a sleep, 30 to 45 µs on a virtual machine.
const PRICE_IN_BULK: u64 = 30_000;
/// The limit of little data, in bytes as turns are charged. One full frame each way fits.
const LITTLE: u64 = 4 << 10;

/// The cost of waking for a timer, in bulk and in request and response. In the latter the timer also fires some fifty
/// microseconds late.
const TIMER: u64 = PRICE_IN_BULK;
const TIMER_OF_AN_EXCHANGE: u64 = 75_000;

/// The time by which sleeping prolongs a wait, in nanoseconds. The worker wakes late, and its peer may have gone to sleep.
const LATE: u64 = 25_000;
/// The approximate number of waits that count, as a power of two.
const LATELY: u32 = 5;
/// Longer waits count as this, in nanoseconds. All prices are much lower.
const LONG: u64 = 1_000_000;

/// One wait of a worker, for tests.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Time from the first poll until there was work.
    pub lasted: Duration,
    /// Whether the worker slept.
    pub slept: bool,
    /// Whether a VMM's message ended it. Else it was an eventfd, a frame, a note or a timer.
    pub message: bool,
    /// Bytes carried before it.
    pub carried: u64,
}

/// A wait that has not ended.
#[derive(Debug)]
struct Open {
    began: Time,
    /// Bytes carried before it.
    carried: u64,
    slept: bool,
    /// The time at which the last timer fired. Later work shows whether the timer found any.
    timer: Option<Time>,
    /// For each span, the number of timers without work that would have woken the worker.
    vain: [u64; SPANS.len()],
}

/// The costs of each span, and the wait in progress.
#[derive(Debug)]
pub struct BusyPoll {
    /// The average cost of each span per wait, in nanoseconds.
    costs: [u64; SPANS.len()],
    best: usize,
    /// Average bytes per wait. A message counts as 0: a guest that waits for an answer makes no bulk transfer.
    bytes: u64,
    /// Bytes since the last wait began.
    carried: u64,
    /// The port that carried data last.
    port: PortId,
    /// Whether another port carried data since the last wait ended.
    changed: bool,
    open: Option<Open>,
    never: bool,
    /// All waits so far.
    #[cfg(test)]
    pub waits: Vec<Wait>,
}

impl BusyPoll {
    /// Busy polling on this many processors. With only one processor the awaited peer could not run during polling, so there is
    /// none.
    pub fn new(processors: usize) -> Self {
        Self {
            costs: [0; SPANS.len()],
            best: 0,
            bytes: 0,
            carried: 0,
            port: PortId(0),
            changed: false,
            open: None,
            never: processors < 2,
            #[cfg(test)]
            waits: Vec::new(),
        }
    }

    /// Notes that a turn of a port carried this many bytes, as turns are charged.
    pub fn carried(&mut self, port: PortId, bytes: u64) {
        if bytes > 0 {
            self.carried += bytes;
            self.changed |= std::mem::replace(&mut self.port, port) != port;
        }
    }

    /// Begins a wait, or continues it after a timer that found no work. Returns the time until which to poll before sleeping.
    pub fn begin(&mut self, now: Time) -> Time {
        self.judge_timer();
        let carried = &mut self.carried;
        let open = self.open.get_or_insert_with(|| Open {
            began: now,
            carried: std::mem::take(carried),
            slept: false,
            timer: None,
            vain: [0; SPANS.len()],
        });
        open.began.after_ns(SPANS[self.best])
    }

    /// Whether to poll for a timer that is due in `wait`, instead of sleeping.
    pub fn is_short(&self, wait: Duration) -> bool {
        !self.never && wait <= Duration::from_nanos(TIMER)
    }

    /// Notes that a timer fired.
    pub fn timer(&mut self, now: Time, slept: bool) {
        self.judge_timer();
        let Some(open) = &mut self.open else { return };
        (open.timer, open.slept) = (Some(now), open.slept | slept);
    }

    /// Notes that an event other than a timer ended the wait, if there was one.
    pub fn ended(&mut self, now: Time, slept: bool, message: bool) {
        self.judge_timer();
        let Some(open) = &mut self.open else { return };
        open.slept |= slept;
        self.close(now, message);
    }

    /// Decides whether the last timer found work: it did if data was carried after it, and then it ended the wait. Otherwise it
    /// would have woken the worker in vain after each shorter span.
    fn judge_timer(&mut self) {
        let Some(open) = &mut self.open else { return };
        let Some(at) = open.timer.take() else { return };
        if self.carried > 0 {
            return self.close(at, false);
        }
        for (vain, span) in open.vain.iter_mut().zip(SPANS) {
            *vain += u64::from(open.began.after_ns(span) < at);
        }
    }

    fn close(&mut self, end: Time, message: bool) {
        let Some(Open { began, carried, slept, vain, .. }) = self.open.take() else { return };
        let lasted = end.since(began);
        #[cfg(test)]
        self.waits.push(Wait { lasted, slept, message, carried });
        if self.never {
            return;
        }
        let lasted = u64::try_from(lasted.as_nanos()).map_or(LONG, |lasted| lasted.min(LONG));
        self.bytes = blend(self.bytes, if message { 0 } else { carried });
        let exchange = std::mem::take(&mut self.changed) && self.bytes < LITTLE;
        let (price, timer) = match message {
            true => (PRICE_OF_AN_ANSWER, TIMER_OF_AN_EXCHANGE),
            false if exchange => (PRICE_OF_AN_EXCHANGE, TIMER_OF_AN_EXCHANGE),
            false => (PRICE_IN_BULK, TIMER),
        };
        let lasted = match slept {
            true => lasted.saturating_sub(LATE).max(SPANS[self.best] + 1),
            false => lasted,
        };
        for ((cost, span), vain) in self.costs.iter_mut().zip(SPANS).zip(vain) {
            let seen = lasted <= span;
            let sleep = if seen && lasted <= LONGEST { 0 } else { price + vain * timer };
            *cost = blend(*cost, if seen { lasted } else { span } + sleep);
        }
        // Among equal costs the shortest span wins.
        self.best = (0..SPANS.len()).min_by_key(|&span| self.costs[span]).unwrap_or(0);
    }
}

/// A moving average.
fn blend(mean: u64, new: u64) -> u64 {
    mean - (mean >> LATELY) + (new >> LATELY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kind of wait, the bytes carried before it, and the time from which sleeping is cheaper (or above the longest polling).
    const KINDS: [(bool, u64, u64); 3] =
        [(true, 64 << 10, 200_000), (false, 2 * (1514 + 256), PRICE_OF_AN_EXCHANGE), (false, 64 << 10, PRICE_IN_BULK)];

    /// A worker's busy polling and its clock.
    struct Watch {
        busy_poll: BusyPoll,
        now: Time,
        /// Ports that carry data: two that alternate, or one alone.
        ports: [u16; 2],
    }

    impl Watch {
        fn new(processors: usize) -> Self {
            Self { busy_poll: BusyPoll::new(processors), now: Time(1_000_000), ports: [1, 2] }
        }

        fn span(&self) -> Duration {
            Duration::from_nanos(SPANS[self.busy_poll.best])
        }

        /// Timers without work, then the event after so many nanoseconds, as the worker reports them.
        fn comes_after_timers(&mut self, timers: &[u64], after: u64, message: bool, carried: u64) {
            self.ports.swap(0, 1);
            self.busy_poll.carried(PortId(self.ports[0]), carried);
            // A port with an empty turn answers no other port.
            self.busy_poll.carried(PortId(9), 0);
            let begun = self.now;
            let until = self.busy_poll.begin(begun);
            let mut came = |after: u64| {
                let slept = until < begun.after_ns(after);
                self.now = begun.after_ns(if slept { after + LATE } else { after });
                (self.now, slept)
            };
            for timer in timers {
                let (now, slept) = came(*timer);
                self.busy_poll.timer(now, slept);
                assert_eq!(self.busy_poll.begin(now), until, "the wait goes on");
            }
            let (now, slept) = came(after);
            self.busy_poll.ended(now, slept, message);
        }

        fn comes(&mut self, after: u64, message: bool, carried: u64) {
            self.comes_after_timers(&[], after, message, carried);
        }
    }

    #[test]
    fn it_watches_for_what_comes_sooner_than_a_sleep_costs_and_sleeps_for_what_comes_later() {
        for (message, carried, least) in KINDS {
            let mut watch = Watch::new(2);
            assert_eq!(watch.span(), Duration::ZERO);
            for (after, watches) in [(least * 9 / 10, true), (least * 11 / 10, false), (least / 2, true), (LONG, false)]
            {
                (0..200).for_each(|_| watch.comes(after, message, carried));
                assert_eq!(watch.span() >= Duration::from_nanos(after), watches, "{after} of {least}");
                assert!(watches || watch.span().is_zero(), "{after} of {least}: {:?}", watch.span());
            }
        }
    }

    #[test]
    fn an_idle_worker_watches_a_few_times_more_at_most() {
        for message in [true, false] {
            let mut watch = Watch::new(2);
            (0..1000).for_each(|_| watch.comes(150_000, true, 0));
            let watched = (0..100).filter(|_| {
                watch.comes(5 * LONG, message, 0);
                !watch.span().is_zero()
            });
            assert!(watched.count() < 1 << LATELY, "{message}");
        }
    }

    #[test]
    fn of_soon_and_late_it_watches_for_the_soon_ones_alone() {
        let mut watch = Watch::new(2);
        for after in [3_000, 4_000, 3_000, LONG].repeat(100) {
            watch.comes(after, false, 600);
        }
        assert_eq!(watch.span(), Duration::from_micros(5));
    }

    #[test]
    fn what_comes_just_after_its_watch_makes_it_watch_longer() {
        let mut watch = Watch::new(2);
        (0..100).for_each(|_| watch.comes(90_000, true, 0));
        let span = watch.span();
        // By the clock the event could have come late within the polling, but it was not seen there.
        for _ in 0..10 {
            let until = watch.busy_poll.begin(watch.now);
            watch.now = until.after_ns(1_000);
            watch.busy_poll.ended(watch.now, true, true);
        }
        assert!(watch.span() > span, "{:?}", watch.span());
    }

    /// Half of the events are messages. So the average data is little, and the other waits count as request and response.
    #[test]
    fn where_messages_come_nothing_is_bulk() {
        let mut watch = Watch::new(2);
        for _ in 0..100 {
            watch.comes(3_000, true, 6 << 10);
            watch.comes(50_000, false, 6 << 10);
        }
        assert!(watch.span() >= Duration::from_micros(50), "{:?}", watch.span());
        (0..200).for_each(|_| watch.comes(50_000, false, 6 << 10));
        assert_eq!(watch.span(), Duration::ZERO);
    }

    #[test]
    fn it_watches_longer_where_it_would_get_up_for_timers_in_vain() {
        let (timers, after) = ([50_000, 100_000, 150_000], 190_000);
        let mut watch = Watch::new(2);
        (0..200).for_each(|_| watch.comes(after, false, 600));
        assert_eq!(watch.span(), Duration::ZERO);
        (0..200).for_each(|_| watch.comes_after_timers(&timers, after, false, 600));
        assert!(watch.span() >= Duration::from_nanos(after), "{:?}", watch.span());
        // It polls for late events only as long as the timers would cost.
        (0..200).for_each(|_| watch.comes_after_timers(&timers, LONG, false, 600));
        assert_eq!(watch.span(), Duration::from_micros(150));
        // One port alone: no other port answers it.
        watch.ports = [1, 1];
        (0..200).for_each(|_| watch.comes_after_timers(&timers, after, false, 600));
        assert_eq!(watch.span(), Duration::ZERO);
    }

    #[test]
    fn it_watches_long_only_to_spare_timers() {
        let looks: Vec<u64> = (1..8).map(|n| n * 50_000).collect();
        for message in [true, false] {
            let mut watch = Watch::new(2);
            (0..200).for_each(|_| watch.comes(350_000, message, 600));
            assert_eq!(watch.span(), Duration::ZERO);
            (0..200).for_each(|_| watch.comes_after_timers(&looks, 360_000, message, 600));
            assert_eq!(watch.span(), Duration::from_micros(400), "{message}");
        }
    }

    #[test]
    fn whoever_speaks_alone_waits_for_no_answer() {
        let mut watch = Watch::new(2);
        (0..200).for_each(|_| watch.comes(50_000, false, 600));
        assert!(watch.span() >= Duration::from_micros(50), "{:?}", watch.span());
        watch.ports = [1, 1];
        (0..200).for_each(|_| watch.comes(50_000, false, 600));
        assert_eq!(watch.span(), Duration::ZERO);
    }

    #[test]
    fn a_timer_ends_a_wait_if_something_was_carried_after_it() {
        let mut watch = Watch::new(2);
        watch.busy_poll.carried(PortId(1), 300);
        for (timer, carried) in [(2_000, 0), (7_000, 500), (9_000, 0)] {
            watch.busy_poll.begin(watch.now);
            watch.busy_poll.timer(Time(1_000_000 + timer), true);
            watch.now = Time(1_000_500 + timer);
            watch.busy_poll.carried(PortId(1), carried);
        }
        watch.busy_poll.begin(watch.now);
        watch.busy_poll.ended(Time(1_020_000), false, true);
        let waits =
            watch.busy_poll.waits.iter().map(|wait| (wait.lasted.as_nanos(), wait.slept, wait.message, wait.carried));
        // From the turn of the timer that found work: 7.5 to 20 µs.
        assert_eq!(waits.collect::<Vec<_>>(), [(7_000, true, false, 300), (12_500, true, true, 500)]);
    }

    #[test]
    fn a_timer_ends_a_wait_though_something_else_comes_while_there_is_work_from_it() {
        let mut watch = Watch::new(2);
        watch.busy_poll.begin(watch.now);
        watch.busy_poll.timer(Time(1_050_000), true);
        watch.busy_poll.carried(PortId(1), 3_000);
        watch.busy_poll.ended(Time(1_450_000), false, false);
        assert_eq!(watch.busy_poll.waits.len(), 1);
        assert_eq!(watch.busy_poll.waits[0].lasted, Duration::from_micros(50));
    }

    #[test]
    fn whoever_slept_before_a_timer_in_vain_has_slept() {
        let mut watch = Watch::new(2);
        for slept in [true, false] {
            watch.busy_poll.begin(watch.now);
            watch.busy_poll.timer(watch.now.after_ns(1_000), slept);
        }
        watch.busy_poll.begin(watch.now);
        watch.busy_poll.ended(watch.now.after_ns(3_000), false, false);
        assert!(watch.busy_poll.waits[0].slept && watch.busy_poll.waits.len() == 1);
    }

    #[test]
    fn one_processor_is_left_to_others() {
        for (processors, watches) in [(2, true), (1, false)] {
            let mut watch = Watch::new(processors);
            (0..100).for_each(|_| watch.comes(1_000, true, 0));
            assert_eq!(!watch.span().is_zero(), watches);
            assert_eq!(watch.busy_poll.is_short(Duration::from_micros(20)), watches);
            assert!(!watch.busy_poll.is_short(Duration::from_micros(40)));
        }
    }
}
