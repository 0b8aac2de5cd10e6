//! The processor time of users who may only read: each has a quarter of a processor, with a second in advance. A user that has
//! used more waits before the next request. Users that may always make changes have no limit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use nicety_daemon::allowance::used;

/// The divisor of a processor's time: a user gets one quarter.
const SHARE: u32 = 4;
/// Processor time in advance.
const ADVANCE: Duration = Duration::from_secs(1);

/// Processor time of a user that exceeds its share so far.
#[derive(Clone, Copy, Debug)]
struct Debt {
    debt: Duration,
    at: Instant,
}

impl Debt {
    fn at(self, now: Instant) -> Duration {
        self.debt.saturating_sub(now.saturating_duration_since(self.at) / SHARE)
    }
}

/// The debts by user.
#[derive(Debug, Default)]
pub(super) struct Budget(Mutex<BTreeMap<u32, Debt>>);

impl Budget {
    /// Charges the processor time of a request to a user.
    fn charge(&self, user: u32, time: Duration, now: Instant) {
        let mut debts = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        debts.retain(|_, debt| !debt.at(now).is_zero());
        let debt = debts.get(&user).map_or(Duration::ZERO, |debt| debt.at(now));
        debts.insert(user, Debt { debt: debt + time, at: now });
    }

    /// The time that a user must wait before the next request.
    fn wait(&self, user: u32, now: Instant) -> Duration {
        let debts = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        debts.get(&user).map_or(Duration::ZERO, |debt| debt.at(now).saturating_sub(ADVANCE) * SHARE)
    }
}

/// Charges the processor time of one client to its user.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    budget: Arc<Budget>,
    user: u32,
}

thread_local! {
    /// The meter of the client whose task runs.
    static CURRENT: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

impl Meter {
    pub(super) fn new(budget: &Arc<Budget>, user: u32) -> Self {
        Self { budget: Arc::clone(budget), user }
    }

    /// The meter of the client whose task runs, to use on another thread.
    pub(super) fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Waits until the user's debt is low enough.
    pub(super) async fn paid(&self) {
        let wait = self.budget.wait(self.user, Instant::now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Does this work and charges its processor time.
    pub(super) fn charged<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = used();
        let done = work();
        self.budget.charge(self.user, used().saturating_sub(before), Instant::now());
        done
    }
}

/// A client's task. Its processor time is charged to its user, if that user has a budget.
pub(super) struct Metered<F> {
    task: Pin<Box<F>>,
    meter: Option<Meter>,
}

impl<F> Metered<F> {
    pub(super) fn new(task: F, meter: Option<Meter>) -> Self {
        Self { task: Box::pin(task), meter }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { task, meter } = &mut *self;
        let Some(meter) = meter else { return task.as_mut().poll(cx) };
        CURRENT.set(Some(meter.clone()));
        let polled = meter.charged(|| task.as_mut().poll(cx));
        CURRENT.set(None);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_second_in_advance_and_then_a_quarter_of_a_processor() {
        let (budget, begin) = (Budget::default(), Instant::now());
        let (later, second) = (|ms| begin + Duration::from_millis(ms), Duration::from_secs(1));
        budget.charge(7, second, begin);
        assert_eq!(budget.wait(7, begin), Duration::ZERO);
        budget.charge(7, second / 10, begin);
        assert_eq!(
            (budget.wait(7, begin), budget.wait(8, begin)),
            (second * 4 / 10, Duration::ZERO),
            "only user 7 waits"
        );
        assert_eq!(budget.wait(7, later(100)), second * 3 / 10);
        // Ten seconds, a quarter of which is the user's.
        let mut now = begin;
        let (end, mut used) = (later(10_000), second + second / 10);
        while now < end {
            now += budget.wait(7, now).max(Duration::from_micros(1));
            budget.charge(7, Duration::from_millis(20), now);
            used += Duration::from_millis(20);
        }
        assert!(used <= second + second * 10 / 4 + Duration::from_millis(40), "{used:?}");
        budget.charge(8, second, later(100_000));
        assert_eq!(budget.0.lock().unwrap().len(), 1, "who owes nothing is forgotten");
    }

    #[test]
    fn work_of_a_metered_task_is_charged_to_its_user_and_waiting_is_not() {
        let budget = Arc::<Budget>::default();
        let meter = Meter::new(&budget, 7);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(Metered::new(
            async {
                assert!(Meter::current().is_some());
                tokio::time::sleep(Duration::from_millis(50)).await;
                let begin = used();
                while used() < begin + Duration::from_millis(5) {}
            },
            Some(meter),
        ));
        assert!(Meter::current().is_none());
        let debt = budget.0.lock().unwrap()[&7].debt;
        assert!(debt >= Duration::from_millis(5) && debt < Duration::from_millis(50), "{debt:?}");
    }
}
