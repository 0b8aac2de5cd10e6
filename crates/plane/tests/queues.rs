//! The queues of one port: none starves another, and one that cannot ring is looked at.

mod owners;
#[macro_use]
mod workers;

use std::sync::{Arc, Mutex};

use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Delivery, Event, Face, Frames, PortId, Progress, Reset, RingFace, RingPlace, Set,
    Snapshot, Time,
};
use nicety_plane::{End, Plane, Port, Shell, Turn};
use nicety_switch::Limits;
use owners::as_worker;

with_one_worker_and_with_two!(
    a_queue_that_never_runs_dry_leaves_the_others_their_turns,
    queues_that_cannot_ring_are_all_looked_at_at_times_that_are_asked_for,
    a_queue_that_can_ring_is_left_alone,
);

/// An adapter that sends nothing, and notes which queues it was asked for.
struct Queues {
    fetched: Arc<Mutex<Vec<u16>>>,
    progress: Progress,
}

impl Snapshot for Queues {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl RingFace for Queues {
    fn features(&self) -> u128 {
        0
    }

    fn take_features(&mut self, _: u128) -> bool {
        true
    }

    fn rings(&self) -> u16 {
        6
    }

    fn place(&mut self, _: u16, _: RingPlace) -> bool {
        true
    }

    fn start(&mut self, _: u16, _: u16, _: &mut Context<'_>) -> bool {
        true
    }

    fn stop(&mut self, _: u16, _: &mut Context<'_>) -> u16 {
        0
    }

    fn enable(&mut self, _: u16, _: bool, _: &mut Context<'_>) {}

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        cx.out.work.insert(ring);
    }

    fn config(&self, _: u32, _: &mut [u8]) {}
}

impl Adapter for Queues {
    fn face(&mut self) -> Face<'_> {
        Face::Rings(self)
    }

    fn fetch(&mut self, queue: u16, _: Budget, _: &mut Batch, _: &mut Context<'_>) -> Progress {
        self.fetched.lock().unwrap().push(queue);
        self.progress
    }

    fn complete(&mut self, _: &Batch, _: &mut Context<'_>) {}

    fn deliver(&mut self, _: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        Delivery::default()
    }

    fn notice(&mut self, _: Event, _: &mut Context<'_>) {}

    fn tick(&mut self, _: &mut Context<'_>) {}

    fn reset(&mut self, _: Reset, _: &mut Context<'_>) {}

    fn transmit_queues(&self) -> u16 {
        6
    }

    fn features(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

#[derive(Clone, Default)]
struct Alarm(Arc<Mutex<Vec<Time>>>);

impl Shell for Alarm {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, time: Time) {
        self.0.lock().unwrap().push(time);
    }
}

/// A port with such an adapter, queues 1, 3 and 5 of which have been rung.
fn rung(progress: Progress) -> (Plane, Arc<Port>, Alarm, Arc<Mutex<Vec<u16>>>) {
    let (fetched, alarm) = (Arc::default(), Alarm::default());
    let end = End::Adapter(Box::new(Queues { fetched: Arc::clone(&fetched), progress }));
    let port = Arc::new(Port::new(PortId(0), end, Box::new(alarm.clone()), 4096).unwrap());
    let plane = Plane::new(Limits::default());
    plane.join(Arc::clone(&port)).unwrap();
    port.attach();
    for ring in [1, 3, 5] {
        port.with_rings(Time::ZERO, |rings, cx| rings.kick(ring, cx)).unwrap();
    }
    (plane, port, alarm, fetched)
}

fn a_queue_that_never_runs_dry_leaves_the_others_their_turns(workers: usize) {
    let (plane, port, _, fetched) = rung(Progress { more: true, armed: false });
    let mut turn = Turn::new();
    for number in 0..7 {
        // Its owner is now this worker, now that.
        assert!(as_worker(number % workers, || plane.turn(&port, &mut turn, Time::ZERO).more));
    }
    assert_eq!(*fetched.lock().unwrap(), [1, 3, 5, 1, 3, 5, 1]);
}

fn queues_that_cannot_ring_are_all_looked_at_at_times_that_are_asked_for(workers: usize) {
    let (plane, port, alarm, fetched) = rung(Progress { more: false, armed: false });
    let mut turn = Turn::new();
    let mut now = Time::ZERO;
    for round in 1..=50 {
        as_worker(round % workers, || while plane.turn(&port, &mut turn, now).more {});
        assert_eq!(fetched.lock().unwrap().drain(..).collect::<Vec<_>>(), [1, 3, 5], "round {round}");
        let asked = std::mem::take(&mut *alarm.0.lock().unwrap());
        assert_eq!(asked.len(), 1, "round {round}: one wake-up, not a chain for each queue");
        assert!(asked[0] > now);
        assert!(!port.busy(now));
        now = asked[0];
        assert!(port.busy(now));
    }
}

fn a_queue_that_can_ring_is_left_alone(workers: usize) {
    let (plane, port, alarm, fetched) = rung(Progress { more: false, armed: true });
    let mut turn = Turn::new();
    as_worker(workers - 1, || while plane.turn(&port, &mut turn, Time::ZERO).more {});
    assert_eq!(*fetched.lock().unwrap(), [1, 3, 5]);
    assert!(alarm.0.lock().unwrap().is_empty() && !port.busy(Time(u64::MAX)));
}
