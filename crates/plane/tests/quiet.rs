//! A control thread makes its change between two batches, and never waits for a second batch.

mod owners;
#[macro_use]
mod workers;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use nicety_adapter::{Batch, Budget, Context, Delivery, Frames, PortId, Progress, Set, Time, Uplink};
use nicety_memory::Map;
use nicety_plane::doubles::{Linked, Traffic, frame, memory, send};
use nicety_plane::{End, Plane, Port, Shell, Turn};
use nicety_switch::Limits;
use owners::as_worker;

with_one_worker_and_with_two!(nothing_is_fetched_between_the_batch_that_a_control_thread_waits_for_and_its_change);

/// Enough rounds that an owner that does not wait would win once.
const ROUNDS: usize = 50;
/// Generous: a thread that waits longer is blocked for ever.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Events at the sender's port, in order: all but `Waits` with its lock held.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Fetched,
    Waits,
    Completed,
    Changed,
}

#[derive(Default)]
struct Happened {
    log: Vec<Event>,
    /// The port to change at the next delivery.
    port: Weak<Port>,
    control: Option<JoinHandle<()>>,
    thread: Option<ThreadId>,
}

#[derive(Clone, Default)]
struct Story(Arc<Mutex<Happened>>);

impl Story {
    fn now(&self) -> MutexGuard<'_, Happened> {
        self.0.lock().unwrap()
    }

    fn tell(&self, event: Event) {
        self.now().log.push(event);
    }
}

impl Shell for Story {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    /// A control thread asks for a turn after its change.
    fn schedule(&self) {
        let mut now = self.now();
        if now.thread == Some(thread::current().id()) {
            now.log.push(Event::Changed);
        }
    }
    fn wake_at(&self, _: Time) {}
}

/// Always has another broadcast frame.
struct Sender(Story);

impl Traffic for Sender {
    fn fetch(&mut self, _: u16, _: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        self.0.tell(Event::Fetched);
        send(batch, 0, 60);
        Progress { more: true, armed: true }
    }

    fn complete(&mut self, _: &Batch) {
        self.0.tell(Event::Completed);
    }
}

/// Gets frames while the sender's batch is in flight: at that moment a control thread arrives.
struct Receiver(Story);

impl Traffic for Receiver {
    fn deliver(&mut self, _: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        let port = std::mem::take(&mut self.0.now().port);
        let Some(port) = port.upgrade() else { return Delivery::default() };
        let (story, its) = (self.0.clone(), Arc::clone(&port));
        let control = thread::spawn(move || {
            story.now().thread = Some(thread::current().id());
            its.set_quiet_memory(Map::empty(), Time::ZERO);
        });
        self.0.now().control = Some(control);
        // It has more to send, and stays busy until a thread waits.
        let begin = Instant::now();
        while port.busy(Time::ZERO) {
            assert!(begin.elapsed() < TIMEOUT, "nobody waits");
            thread::yield_now();
        }
        self.0.tell(Event::Waits);
        Delivery::default()
    }
}

fn nothing_is_fetched_between_the_batch_that_a_control_thread_waits_for_and_its_change(workers: usize) {
    let (plane, story) = (Plane::new(Limits::default()), Story::default());
    let sender = Linked::sending_from(Sender(story.clone()), memory(&frame(0xff, 1, 60)));
    let ends: [Box<dyn Uplink>; 2] = [Box::new(sender), Box::new(Linked::new(Receiver(story.clone())))];
    let ports = (0..).zip(ends).map(|(id, end)| {
        let port = Arc::new(Port::new(PortId(id), End::link(end), Box::new(story.clone()), 4096).unwrap());
        plane.join(Arc::clone(&port)).unwrap();
        port
    });
    let ports: Vec<Arc<Port>> = ports.collect();
    let sender = &ports[0];
    sender.ready();
    for round in 0..ROUNDS {
        *story.now() = Happened { port: Arc::downgrade(sender), ..Happened::default() };
        as_worker(workers - 1, || {
            let (mut turn, begin) = (Turn::new(), Instant::now());
            while !story.now().log.contains(&Event::Changed) {
                plane.turn(sender, &mut turn, Time::ZERO);
                assert!(begin.elapsed() < TIMEOUT, "nothing is changed");
            }
        });
        let control = story.now().control.take().unwrap();
        control.join().unwrap();
        let order = [Event::Fetched, Event::Waits, Event::Completed, Event::Changed];
        assert_eq!(story.now().log[..4], order, "round {round}");
    }
}

/// The charge equals that of a change over vfio-user, which the worker handles itself: 16 messages of 1 KiB
/// (crates/vfio-user/src/session/work.rs, crates/daemon/src/run/worker.rs). A port that changes its memory endlessly has fewer turns for its frames.
#[test]
fn a_change_of_memory_by_a_control_thread_is_charged_to_its_port() {
    let (plane, story) = (Plane::new(Limits::default()), Story::default());
    let end = End::link(Box::new(Linked::new(Receiver(story.clone()))));
    let port = Arc::new(Port::new(PortId(0), end, Box::new(story), 4096).unwrap());
    plane.join(Arc::clone(&port)).unwrap();
    let mut turn = Turn::new();
    assert_eq!(plane.turn(&port, &mut turn, Time::ZERO).cost, 0);
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|_| port.set_quiet_memory(Map::empty(), Time::ZERO)));
    });
    assert_eq!(plane.turn(&port, &mut turn, Time::ZERO).cost, 3 * (16 << 10));
    assert_eq!(plane.turn(&port, &mut turn, Time::ZERO).cost, 0, "charged once");
}
