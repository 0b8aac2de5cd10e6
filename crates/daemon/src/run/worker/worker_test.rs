//! A port that its worker does not know yet, and the precision of a worker's wait.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use nicety_plane::doubles::Silent;
use nicety_plane::{End, Port};
use nicety_switch::Limits;
use nicety_uplink::Null;

use super::waiting::sleep;
use super::*;
use crate::run::port_log::PortLog;
use crate::run::shell::Schedule;

#[test]
fn a_turn_that_was_asked_for_before_the_port_was_known_is_not_the_last_one() {
    let inbox = Arc::new(Inbox::new().unwrap());
    let (newcomers, received) = mpsc::channel();
    let plane = Arc::new(Plane::new(Limits::default()));
    let mut worker = Worker::new(plane, Clock::start(), Arc::clone(&inbox), received).unwrap();
    let (id, schedule) = (PortId(0), Arc::new(Schedule::default()));
    let ask = || schedule.queue().then(|| inbox.push(Note::Schedule(id)));
    // A port's shell does this when it receives a frame from another worker's port.
    assert!(ask().is_some());
    worker.read_notes();
    worker.rounds += 1;
    worker.turns();
    let port = Arc::new(Port::new(id, End::link(Box::new(Null)), Box::new(Silent), 1 << 20).unwrap());
    let log = Arc::new(PortLog::new(id, "vm1", "e1000", Clock::start(), Arc::clone(&inbox)));
    let service = Service::new(log, port, Arc::clone(&schedule), Link::Rings { kicks: Vec::new() });
    newcomers.send(service).unwrap();
    inbox.push(Note::Serve);
    worker.read_notes();
    assert_eq!(worker.ready, [id], "what it asked for is done now");
    worker.rounds += 1;
    worker.turns();
    assert!(ask().is_some(), "and it may ask again");
}

#[test]
fn a_wait_of_less_than_a_millisecond_is_not_made_one() {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let waited = || {
        let begin = Instant::now();
        sleep(&epoll, &mut Vec::with_capacity(1), Some(Duration::from_micros(100))).unwrap();
        begin.elapsed()
    };
    // Take the shortest of many waits: a busy machine prolongs some, and rounding prolongs all.
    let shortest = (0..200).map(|_| waited()).min().unwrap();
    assert!(shortest >= Duration::from_micros(100) && shortest < Duration::from_micros(900), "{shortest:?}");
}
