//! The times at which a worker sleeps, and its reports of waits to its busy polling.

use std::io::Write;
use std::time::Duration;

use nicety_plane::doubles::Silent;
use nicety_plane::{End, Port};

use super::fair_test::Source;
use super::messages_test::{FLOODED, OTHER, Pair, ring, rounds_made, status};
use super::*;
use crate::run::busy_poll::Wait;
use crate::run::port_log::PortLog;

/// An idle worker that polls and sleeps as on a machine with two processors.
fn idle() -> Pair {
    let mut pair = Pair::new("e1000");
    rounds_made(&mut pair.worker, 5);
    pair.worker.busy_poll = BusyPoll::new(2);
    set_timer(&mut pair.worker, LONG);
    pair
}

/// The duration of a sleep without an event.
const LONG: Duration = Duration::from_millis(50);

/// Sets the only timer.
fn set_timer(worker: &mut Worker, wait: Duration) {
    worker.timers.clear();
    worker.timers.push(Reverse((worker.clock.now().after(wait), OTHER)));
}

/// Makes the worker poll before it sleeps.
fn watches(worker: &mut Worker) {
    for _ in 0..100 {
        let now = worker.clock.now();
        worker.busy_poll.begin(now);
        worker.busy_poll.ended(now.after(Duration::from_micros(90)), false, true);
    }
    worker.busy_poll.waits.clear();
}

/// Waits, and returns the reported end of the wait.
fn wait(worker: &mut Worker) -> Option<Wait> {
    worker.wait(&mut Vec::with_capacity(EVENTS));
    worker.busy_poll.waits.pop()
}

#[test]
fn what_ends_a_sleep_is_told() {
    let mut pair = idle();
    let slept = pair.worker.slept;
    assert_eq!(wait(&mut pair.worker), None, "a timer");
    set_timer(&mut pair.worker, 400 * LONG);
    ring(&pair.worker);
    let by_bell = wait(&mut pair.worker).unwrap();
    assert!(by_bell.lasted >= LONG, "{by_bell:?}: with the timer's");
    pair.worker.inbox.rung();
    pair.clients[0].write_all(&status(0)).unwrap();
    let by_message = wait(&mut pair.worker).unwrap();
    assert_eq!([by_bell, by_message].map(|wait| (wait.slept, wait.message)), [(true, false), (true, true)]);
    assert_eq!(pair.worker.slept, slept + 3);
}

/// A poll of a queue in mapped memory has found work.
#[test]
fn a_timer_that_was_good_for_something_ends_the_wait() {
    let mut pair = idle();
    assert_eq!(wait(&mut pair.worker), None);
    pair.worker.busy_poll.carried(FLOODED, 100);
    ring(&pair.worker);
    wait(&mut pair.worker).unwrap();
    let first = pair.worker.busy_poll.waits[0];
    assert!(first.slept && first.lasted >= LONG, "{first:?}");
}

#[test]
fn something_that_comes_while_it_has_work_ends_a_wait_that_a_timer_has_broken() {
    let mut pair = idle();
    assert_eq!(wait(&mut pair.worker), None);
    pair.worker.enqueue(FLOODED);
    assert_eq!(wait(&mut pair.worker), None);
    ring(&pair.worker);
    assert!(wait(&mut pair.worker).unwrap().slept);
}

/// With a processor of its own.
#[test]
fn a_worker_that_polls_all_the_time_never_sleeps_until_it_may_again() {
    let mut pair = idle();
    let slept = pair.worker.slept;
    pair.worker.inbox.set_always_polls(true);
    pair.worker.inbox.rung();
    wait(&mut pair.worker);
    assert_eq!(pair.worker.slept, slept, "the timer has ended its wait");
    let inbox = Arc::clone(&pair.worker.inbox);
    set_timer(&mut pair.worker, 400 * LONG);
    let later = std::thread::spawn(move || inbox.set_always_polls(false));
    wait(&mut pair.worker);
    later.join().unwrap();
    pair.worker.inbox.rung();
    // It may have slept until the bell already, if it began to wait as the order came.
    let slept = pair.worker.slept;
    set_timer(&mut pair.worker, LONG);
    wait(&mut pair.worker);
    assert_eq!(pair.worker.slept, slept + 1);
}

/// Looks are system calls, and a worker that polls its ports all the time makes rounds of less than a microsecond.
#[test]
fn a_worker_that_polls_its_ports_all_the_time_looks_for_events_only_now_and_then() {
    let mut pair = idle();
    pair.worker.inbox.set_always_polls(true);
    pair.worker.inbox.rung();
    pair.worker.enqueue(FLOODED);
    let look = |worker: &mut Worker, round_cost: u64, after: Duration| {
        let before = worker.looks.last();
        worker.read_at = before.after(after);
        worker.round_cost = round_cost;
        wait(worker);
        worker.looks.last() > before
    };
    assert!(!look(&mut pair.worker, 100, Duration::from_micros(19)));
    assert!(look(&mut pair.worker, 100, Duration::from_micros(20)));
    // What comes otherwise than by polls must not wait for nothing.
    assert!(look(&mut pair.worker, 0, Duration::from_micros(2)));
    let inbox = Arc::clone(&pair.worker.inbox);
    let worked = inbox.worked_ns(pair.worker.read_at);
    assert!(!look(&mut pair.worker, 0, Duration::from_nanos(1900)));
    assert!(look(&mut pair.worker, 0, Duration::from_micros(2)));
    assert_eq!(inbox.worked_ns(pair.worker.read_at.after_ns(1)), worked, "rounds without a frame are no work");
}

#[test]
fn for_a_timer_that_comes_soon_it_does_not_sleep() {
    let mut pair = idle();
    // Take the shortest of many sleeps: a busy machine prolongs some.
    let slept = (0..100).map(|_| {
        let before = pair.worker.slept;
        set_timer(&mut pair.worker, Duration::from_micros(20));
        assert_eq!(wait(&mut pair.worker), None);
        pair.worker.slept - before
    });
    assert_eq!(slept.min(), Some(0));
}

#[test]
fn whoever_has_something_to_do_does_not_sleep_and_has_not_waited() {
    type Job = fn(&mut Worker);
    let jobs: [(&str, Job); 4] = [
        ("a port is ready", |worker| worker.enqueue(FLOODED)),
        ("messages are left", |worker| worker.unread_sessions.push_back(FLOODED)),
        ("a note of its own", |worker| worker.inbox.push(Note::Wake(FLOODED, Time(u64::MAX)))),
        ("it is to end", |worker| worker.stop = true),
    ];
    for (what, job) in jobs {
        let mut pair = idle();
        watches(&mut pair.worker);
        let slept = pair.worker.slept;
        job(&mut pair.worker);
        assert_eq!(wait(&mut pair.worker), None, "{what}");
        assert_eq!(pair.worker.slept, slept, "{what}");
    }
}

#[test]
fn a_watch_that_sees_something_is_told_of_and_spares_the_sleep() {
    let mut pair = idle();
    watches(&mut pair.worker);
    let slept = pair.worker.slept;
    ring(&pair.worker);
    assert!(!wait(&mut pair.worker).unwrap().slept);
    assert_eq!(pair.worker.slept, slept);
}

#[test]
fn what_was_carried_before_a_wait_is_told_once() {
    let mut pair = idle();
    let id = PortId(3);
    let port = Port::new(id, End::link(Box::new(Source::new(1514, 1).uplink(3))), Box::new(Silent), 1 << 20);
    let port = Arc::new(port.unwrap());
    port.ready();
    pair.worker.plane.join(Arc::clone(&port)).unwrap();
    let log = Arc::new(PortLog::new(id, "vm", "e1000", pair.worker.clock, Arc::clone(&pair.worker.inbox)));
    pair.worker.serve(Service::new(log, port, Arc::default(), Link::Uplink(None)));
    pair.worker.rounds += 1;
    pair.worker.turns();
    let carried = |worker: &mut Worker| {
        worker.ready.clear();
        ring(worker);
        wait(worker).unwrap().carried
    };
    // Charged for both other ports.
    assert_eq!(carried(&mut pair.worker), 2 * (1514 + 256));
    assert_eq!(carried(&mut pair.worker), 0);
}
