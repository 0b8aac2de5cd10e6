//! Frames that reach nobody because of the state of a port: each is counted at the right port.

mod owners;
#[macro_use]
mod workers;
mod silent;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, PACKETS, PortId, Progress, Reason, Time, Uplink};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use owners::as_worker;
use silent::Silent;

with_one_worker_and_with_two!(
    frames_for_a_port_without_a_vm_are_counted_there,
    what_was_on_its_way_to_a_port_that_left_is_counted_at_its_sender_unless_others_got_it,
    who_has_moved_to_a_port_is_announced_there_and_gets_its_frames,
);

const BROADCAST: u8 = 0xff;
/// Long enough that one turn serves exactly three receivers of a batch.
const LEN: u32 = 700;

fn address(of: u8) -> [u8; 6] {
    if of == BROADCAST { [of; 6] } else { [2, 0, 0, 0, 0, of] }
}

/// Frames to send: sender and target.
type Waiting = Arc<Mutex<Vec<(u8, u8)>>>;

/// Sends the given frames, and counts the received ones.
struct Wire {
    map: Arc<Map>,
    frames: Waiting,
    got: Arc<AtomicU64>,
}

impl Uplink for Wire {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, counters: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        let mut frames = self.frames.lock().unwrap();
        while budget.allows(batch) && !frames.is_empty() {
            let (from, to) = frames.remove(0);
            let at = u64::from(LEN) * batch.len() as u64;
            let head = [&address(to)[..], &address(from), &[0x88, 0xb5]].concat();
            self.map.write(at, &head).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(at, LEN).unwrap();
            draft.finish_plain(0);
            counters.sent(0, 1, u64::from(LEN));
        }
        Progress { more: !frames.is_empty(), armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        for _ in frames.picks {
            counters.received(0, 1, u64::from(LEN));
        }
        self.got.fetch_add(frames.picks.len() as u64, Ordering::Relaxed);
        Delivery::default()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Ports whose addresses the switch has learned.
struct World {
    plane: Plane,
    ports: Vec<(Arc<Port>, Waiting, Arc<AtomicU64>)>,
    worker: usize,
}

impl World {
    fn new(ports: u8, workers: usize) -> World {
        let mut world = World { plane: Plane::new(Limits::default()), ports: Vec::new(), worker: workers - 1 };
        for number in 0..ports {
            let (frames, got) = (Arc::default(), Arc::default());
            let map = Arc::new(Map::private(1 << 20).unwrap());
            let end = Wire { map, frames: Arc::clone(&frames), got: Arc::clone(&got) };
            let port = world.join(number, End::link(Box::new(end)));
            world.ports.push((port, frames, got));
        }
        // The switch learns the addresses.
        for number in 0..ports {
            world.send(number, &[(number, BROADCAST)]);
            world.turn(number, &mut Turn::new());
        }
        world
    }

    fn join(&self, number: u8, end: End) -> Arc<Port> {
        let port = Arc::new(Port::new(PortId(number.into()), end, Box::new(Silent), 1 << 16).unwrap());
        self.plane.join(Arc::clone(&port)).unwrap();
        port
    }

    fn send(&self, from: u8, frames: &[(u8, u8)]) {
        let (port, queue, _) = &self.ports[usize::from(from)];
        queue.lock().unwrap().extend(frames);
        port.ready();
    }

    /// One turn of a port, possibly unfinished. True if it is finished.
    fn turn(&self, number: u8, turn: &mut Turn) -> bool {
        let port = &self.ports[usize::from(number)].0;
        as_worker(self.worker, || !self.plane.turn(port, turn, Time::ZERO).unfinished)
    }

    fn got(&self, number: u8) -> u64 {
        self.ports[usize::from(number)].2.swap(0, Ordering::Relaxed)
    }
}

fn frames_for_a_port_without_a_vm_are_counted_there(workers: usize) {
    let world = World::new(1, workers);
    let adapter = (find("e1000").unwrap().create)(&Settings::new(Mac(address(1)))).unwrap();
    let port = world.join(1, End::guest(adapter));
    let drops = |reason: Reason| port.state().counters.receive_drops[reason as usize];
    let send = |frames| {
        world.send(0, &vec![(0, BROADCAST); frames]);
        while !world.turn(0, &mut Turn::new()) {}
    };
    send(5);
    assert_eq!((drops(Reason::NoVm), port.state().backlog_frames), (5, 0));
    // With a VM the frames have another fate; after it detached, the first fate again.
    port.attach();
    send(3);
    assert_eq!((drops(Reason::NoVm), drops(Reason::ReceiverOff)), (5, 3));
    port.detach(Time::ZERO);
    send(PACKETS);
    let counters = port.state().counters;
    assert_eq!(drops(Reason::NoVm), 5 + PACKETS as u64);
    assert_eq!(counters.receive_drops.iter().sum::<u64>(), 5 + 3 + PACKETS as u64);
    let sender = world.ports[0].0.state().counters;
    assert_eq!(sender.transmitted().packets, 1 + 5 + 3 + PACKETS as u64);
    // The first frame, by which the switch learned its sender, had no receiver at all.
    assert_eq!(sender.transmit_drops.iter().sum::<u64>(), 1);
}

fn who_has_moved_to_a_port_is_announced_there_and_gets_its_frames(workers: usize) {
    let world = World::new(2, workers);
    let adapter = (find("e1000").unwrap().create)(&Settings::new(Mac(address(9)))).unwrap();
    let port = world.join(2, End::guest(adapter));
    port.attach();
    (0..2).for_each(|number| _ = world.got(number));
    let turns = || {
        let mut turn = Turn::new();
        while as_worker(world.worker, || world.plane.turn(&port, &mut turn, Time::ZERO).unfinished) {}
    };
    port.announce(Mac(address(1)));
    (0..3).for_each(|_| turns());
    assert_eq!([world.got(0), world.got(1)], [1, 1], "to all others, once");
    let counters = port.state().counters;
    assert_eq!((counters.transmitted().packets, counters.transmitted().bytes), (1, 60));
    world.send(0, &[(0, 1)]);
    while !world.turn(0, &mut Turn::new()) {}
    assert_eq!(world.got(1), 0, "it is not there any more");
    assert_eq!(port.state().counters.receive_drops[Reason::ReceiverOff as usize], 1, "its driver sleeps");
    // The process that takes the port over announces it if this one has not.
    port.announce(Mac(address(1)));
    let saved = port.agents();
    port.detach(Time::ZERO);
    port.attach();
    port.go_on_with_agents(&saved);
    (0..3).for_each(|_| turns());
    assert_eq!([world.got(0), world.got(1)], [1, 1], "to all others, once");
    assert_eq!(port.agents(), []);
    // A detached guest is not announced, nor is an uplink's.
    port.announce(Mac(address(1)));
    port.detach(Time::ZERO);
    port.attach();
    turns();
    world.ports[1].0.announce(Mac(address(0)));
    while !world.turn(1, &mut Turn::new()) {}
    assert_eq!([world.got(0), world.got(1)], [0, 0]);
}

fn what_was_on_its_way_to_a_port_that_left_is_counted_at_its_sender_unless_others_got_it(workers: usize) {
    let world = World::new(6, workers);
    (0..6).for_each(|number| _ = world.got(number));
    let before = world.ports[0].0.state().counters;
    let mut frames = vec![(0, BROADCAST); PACKETS - 3];
    frames.extend([(0, 5), (0, 4), (0, 5)]);
    world.send(0, &frames);
    let mut turn = Turn::new();
    assert!(!world.turn(0, &mut turn), "the batch is not delivered to all yet");
    assert_eq!([1, 2, 3, 4, 5].map(|number| world.got(number)), [61, 61, 61, 0, 0]);
    world.plane.leave(PortId(5)).unwrap();
    while !world.turn(0, &mut turn) {}
    assert_eq!([1, 2, 3, 4, 5].map(|number| world.got(number)), [0, 0, 0, 62, 0]);
    let counters = world.ports[0].0.state().counters;
    let drops = |reason: Reason| counters.transmit_drops[reason as usize] - before.transmit_drops[reason as usize];
    assert_eq!(drops(Reason::Removed), 2, "a flood reached others");
    assert_eq!(counters.transmit_drops.iter().sum::<u64>() - before.transmit_drops.iter().sum::<u64>(), 2);
    // The next batch is independent of this one.
    world.send(0, &[(0, 4)]);
    while !world.turn(0, &mut turn) {}
    assert_eq!(world.got(4), 1);
    assert_eq!(world.ports[0].0.state().counters.transmit_drops, counters.transmit_drops);

    // Several ports leave.
    let mut frames = vec![(0, BROADCAST); PACKETS - 2];
    frames.extend([(0, 4), (0, 6)]);
    let world = World::new(7, workers);
    world.send(0, &frames);
    assert!(!world.turn(0, &mut turn));
    for port in [4, 6] {
        world.plane.leave(PortId(port)).unwrap();
    }
    while !world.turn(0, &mut turn) {}
    assert_eq!(world.ports[0].0.state().counters.transmit_drops[Reason::Removed as usize], 2);
}
