//! When a worker sleeps, and what its vigil is told of its waits.

use std::io::Write;
use std::time::Duration;

use nicety_plane::{End, Port};

use super::fair_test::{Silent, Source};
use super::messages_test::{FLOODED, OTHER, Pair, rounds_made, status};
use super::*;
use crate::port_log::PortLog;
use crate::vigil::Wait;

/// A worker with nothing to do, who watches and sleeps as on a machine with two processors.
fn idle() -> Pair {
    let mut pair = Pair::new("e1000");
    rounds_made(&mut pair.worker, 5);
    pair.worker.vigil = Vigil::new(2);
    // Whoever sleeps without being rung does so for this long.
    pair.worker.timers.push(Reverse((pair.worker.clock.now().after(Duration::from_millis(50)), OTHER)));
    pair
}

fn ring(worker: &Worker) {
    rustix::io::write(worker.inbox.bell(), &1u64.to_ne_bytes()).unwrap();
}

/// It watches before it sleeps from now on.
fn watches(worker: &mut Worker) {
    let seen = Wait { lasted: Duration::from_micros(90), slept: false, message: true };
    (0..100).for_each(|_| worker.vigil.ended(seen));
    worker.vigil.told.clear();
}

/// Waits, and says how the vigil was told that the wait ended.
fn wait(worker: &mut Worker) -> Option<(Wait, u64)> {
    worker.wait(&mut Vec::with_capacity(EVENTS));
    worker.vigil.told.pop()
}

#[test]
fn what_ends_a_sleep_is_told() {
    let mut pair = idle();
    let slept = pair.worker.slept;
    let by_timer = wait(&mut pair.worker).unwrap().0;
    ring(&pair.worker);
    let by_bell = wait(&mut pair.worker).unwrap().0;
    pair.worker.inbox.rung();
    // That one was short, and now it would watch.
    pair.worker.vigil = Vigil::new(2);
    pair.clients[0].write_all(&status(0)).unwrap();
    let by_message = wait(&mut pair.worker).unwrap().0;
    assert_eq!([by_timer, by_bell, by_message].map(|wait| wait.message), [false, false, true]);
    assert!(by_timer.slept && by_bell.slept && by_message.slept);
    assert_eq!(pair.worker.slept, slept + 3);
}

#[test]
fn whoever_has_something_to_do_does_not_sleep_and_has_not_waited() {
    type Job = fn(&mut Worker);
    let jobs: [(&str, Job); 4] = [
        ("a port is ready", |worker| worker.enqueue(FLOODED)),
        ("messages are left", |worker| worker.behind.push_back(FLOODED)),
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
    assert!(!wait(&mut pair.worker).unwrap().0.slept);
    assert_eq!(pair.worker.slept, slept);
}

#[test]
fn what_was_carried_before_a_wait_is_told_once() {
    let mut pair = idle();
    let id = PortId(3);
    let port = Port::new(id, End::Uplink(Box::new(Source::new(0xff, 3, 1514, 1))), Box::new(Silent), 1 << 20);
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
        wait(worker).unwrap().1
    };
    // To both other ports.
    assert_eq!(carried(&mut pair.worker), 2 * (1514 + 256));
    assert_eq!(carried(&mut pair.worker), 0);
}
