//! Frames for a guest whose front end has stopped its rings for a moment, as QEMU does at each checkpoint of a VM and for the last step of
//! a migration: they wait. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod nic;
mod rings_guest;
mod stage;

use std::time::{Duration, Instant};

use nic::Nic;
use nicety_adapter::Reason;
use rings_guest::Guest;
use stage::Stage;

/// Frames that the other guest sends at a time.
const FRAMES: usize = 64;

fn waiting(stage: &Stage) -> usize {
    stage.view(1).state.backlog_frames
}

fn dropped(stage: &Stage) -> u64 {
    stage.view(1).state.counters.receive_drops.iter().sum()
}

fn frames_wait_while_a_front_end_has_stopped_its_rings_and_come_in_order_when_it_starts_them(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net", "e1000"]);
    let (mut guest, mut sender) = (Guest::new(stage.socket(1)), Nic::new(&stage, 2));
    sender.send().unwrap();
    stage.until("the first frames", || guest.received() == FRAMES);
    let bases = guest.stop();
    assert_eq!(bases[0] as usize, FRAMES);
    // As QEMU does behind each stop.
    guest.front.set_status(0).unwrap();
    sender.send().unwrap();
    stage.until("frames that wait", || waiting(&stage) == FRAMES);
    guest.start(bases);
    stage.until("frames that have waited", || guest.received() == 2 * FRAMES);
    stage.until("all of them counted", || stage.taken(1) as usize == 2 * FRAMES);
    assert_eq!((waiting(&stage), dropped(&stage)), (0, 0));
    for index in 0..2 * FRAMES {
        assert_eq!(usize::from(guest.first_byte(index)), index, "in order");
    }
}

fn frames_for_rings_that_are_not_started_again_are_dropped_after_a_second_or_at_a_reset(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net", "e1000"]);
    let (mut guest, mut sender) = (Guest::new(stage.socket(1)), Nic::new(&stage, 2));
    let off = |stage: &Stage| stage.view(1).state.counters.receive_drops[Reason::ReceiverOff as usize] as usize;
    sender.send().unwrap();
    stage.until("the first frames", || guest.received() == FRAMES);
    let (bases, begin) = (guest.stop(), Instant::now());
    sender.send().unwrap();
    stage.until("frames that wait", || waiting(&stage) == FRAMES);
    stage.until("their end", || off(&stage) == FRAMES);
    assert!(begin.elapsed() >= Duration::from_secs(1) && waiting(&stage) == 0, "{:?}", begin.elapsed());
    // Now they are dropped at once.
    sender.send().unwrap();
    stage.until("a drop", || off(&stage) == 2 * FRAMES);
    guest.start(bases);
    guest.stop();
    sender.send().unwrap();
    stage.until("frames that wait", || waiting(&stage) == FRAMES);
    guest.front.reset().unwrap();
    stage.until("their end", || off(&stage) == 3 * FRAMES);
    assert!(waiting(&stage) == 0);
}

with_one_worker_and_with_two!(
    frames_wait_while_a_front_end_has_stopped_its_rings_and_come_in_order_when_it_starts_them,
    frames_for_rings_that_are_not_started_again_are_dropped_after_a_second_or_at_a_reset,
);
