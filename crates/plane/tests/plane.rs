//! Turns, backlogs and floods. Each end is a pair of queues: every frame that goes in comes out, or is counted.

mod owners;
#[macro_use]
mod workers;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, Pick, PortId, Progress, Reason, Scratch, Set, Time, Unfolded, Uplink,
    Wants,
};
use nicety_memory::{Map, Rights, Span};
use nicety_plane::{End, Fate, Plane, Port, Shell, Turn, Watcher};
use nicety_switch::{Limits, Plan, Policy, Vlan, VlanId};
use owners::as_worker;

with_one_worker_and_with_two!(
    frames_arrive_in_order_and_whole,
    what_a_receiver_refuses_waits_and_comes_in_order_when_it_has_room,
    a_receive_buffer_holds_its_bytes_and_no_more_and_the_rest_is_counted,
    the_ring_of_waiting_bytes_wraps_at_every_offset_and_keeps_frames_whole,
    an_empty_receive_buffer_takes_whatever_fits_wherever_the_last_frame_ended,
    ports_that_all_send_to_each_other_lose_nothing_and_keep_their_order,
    a_flood_to_255_ports_goes_on_in_later_turns_and_reaches_everybody,
    between_two_turns_of_a_port_a_flood_to_255_others_is_served_a_bounded_number_of_bytes,
    frames_for_a_port_that_leaves_are_not_delivered_and_nothing_breaks,
    a_frame_planned_for_one_port_never_reaches_another_that_has_its_number_next,
    who_looks_on_sees_each_frame_and_its_fate_and_changes_nothing,
);

/// The test's view of an end: frames to send, received frames, and the number of frames that it still takes.
#[derive(Default)]
struct Wire {
    outgoing: VecDeque<Vec<u8>>,
    incoming: Vec<Vec<u8>>,
    room: usize,
    completed: usize,
}

struct Queue {
    wire: Arc<Mutex<Wire>>,
    map: Arc<Map>,
    scratch: Scratch,
}

impl Uplink for Queue {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, counters: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        let mut wire = self.wire.lock().unwrap();
        let mut at = 0;
        while budget.allows(batch) {
            let Some(frame) = wire.outgoing.pop_front() else { return Progress { more: false, armed: true } };
            self.map.write(at, &frame).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(at, frame.len() as u32).unwrap();
            draft.finish_plain(0);
            counters.sent(0, 1, frame.len() as u64);
            at += 2048;
        }
        Progress { more: !wire.outgoing.is_empty(), armed: true }
    }

    fn complete(&mut self, batch: &Batch) {
        self.wire.lock().unwrap().completed += batch.len();
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        let mut delivery = Delivery::default();
        let mut wire = self.wire.lock().unwrap();
        for (i, pick, _) in frames.iter() {
            if wire.room == 0 {
                delivery.refuse(i, 0, 0);
                continue;
            }
            let wants = Wants { frame_max: 1514, ..Wants::default() };
            let unfolded = match Unfolded::new(frames, pick, wants) {
                Ok(unfolded) => unfolded,
                Err(reason) => {
                    counters.receive_drop(reason);
                    continue;
                }
            };
            let mut piece = unfolded.piece(0, &mut self.scratch).unwrap();
            let mut spans: Vec<Span> = Vec::new();
            self.map
                .translate(0x8_0000, piece.len(), Rights::WRITE, |span| {
                    spans.push(span);
                    true
                })
                .unwrap();
            piece.write(&self.map, &spans);
            let mut bytes = vec![0; piece.len() as usize];
            self.map.read(0x8_0000, &mut bytes).unwrap();
            counters.received(0, 1, bytes.len() as u64);
            wire.incoming.push(bytes);
            wire.room -= 1;
        }
        delivery
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

#[derive(Clone, Default)]
struct Bell(Arc<AtomicU32>);

impl Shell for Bell {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn wake_at(&self, _: Time) {}
}

struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    /// A turn per worker.
    turns: Vec<Turn>,
    runs: usize,
}

impl World {
    fn new(workers: usize, ports: u16, room: usize, buffer: u32) -> Self {
        let plane = Plane::new(Limits::default());
        let turns = (0..workers).map(|_| Turn::new()).collect();
        let mut world = Self { plane, ports: Vec::new(), wires: Vec::new(), turns, runs: 0 };
        for id in 0..ports {
            let (port, wire) = world.port(PortId(id), room, buffer);
            world.plane.join(Arc::clone(&port)).unwrap();
            world.ports.push(port);
            world.wires.push(wire);
        }
        world
    }

    /// A port that has not joined yet.
    fn port(&self, id: PortId, room: usize, buffer: u32) -> (Arc<Port>, Arc<Mutex<Wire>>) {
        let wire = Arc::new(Mutex::new(Wire { room, ..Wire::default() }));
        let map = Arc::new(Map::private(1 << 20).unwrap());
        let end = Queue { wire: Arc::clone(&wire), map, scratch: Scratch::new() };
        let port = Port::new(id, End::link(Box::new(end)), Box::new(Bell::default()), buffer).unwrap();
        (Arc::new(port), wire)
    }

    fn send(&self, from: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.wires[from].lock().unwrap().outgoing.extend(frames);
        self.ports[from].ready();
    }

    /// Gives turns until no port has work, by all workers at once; each port has another owner than in the last round. Every loop
    /// of the plane is bounded, so this ends.
    fn run(&mut self) {
        let Self { plane, ports, turns, runs, .. } = self;
        let workers = turns.len();
        *runs += 1;
        let serve = |number: usize, turn: &mut Turn| {
            for (_, port) in ports.iter().enumerate().filter(|(index, _)| (index + *runs) % workers == number) {
                while plane.turn(port, turn, Time::ZERO).more {}
            }
        };
        thread::scope(|scope| {
            let (first, others) = turns.split_first_mut().unwrap();
            let serve = &serve;
            for (index, turn) in others.iter_mut().enumerate() {
                scope.spawn(move || serve(index + 1, turn));
            }
            serve(0, first);
        });
    }

    fn received(&self, port: usize) -> usize {
        self.wires[port].lock().unwrap().incoming.len()
    }

    /// Frames in, times the receivers of each, equals frames out plus drops plus waiting frames.
    fn balances(&self, replicas: u64) {
        let states: Vec<_> = self.ports.iter().map(|port| port.state()).collect();
        let sent: u64 = states.iter().map(|s| s.counters.transmitted().packets).sum();
        let nowhere: u64 = states.iter().flat_map(|s| s.counters.transmit_drops).sum();
        let taken: u64 = states.iter().map(|s| s.counters.taken().packets).sum();
        let dropped: u64 = states.iter().flat_map(|s| s.counters.receive_drops).sum();
        let waiting: u64 = states.iter().map(|s| s.backlog_frames as u64).sum();
        assert_eq!((sent - nowhere) * replicas, taken + dropped + waiting);
        let completed: usize = self.wires.iter().map(|wire| wire.lock().unwrap().completed).sum();
        assert_eq!(sent, completed as u64, "every descriptor goes back");
    }
}

fn frame(target: u8, source: u8, len: usize, mark: u8) -> Vec<u8> {
    let mut bytes = vec![mark; len];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, source, 0x88, 0xb5]);
    if target == 0xff {
        bytes[..6].fill(0xff);
    }
    bytes
}

fn frames_arrive_in_order_and_whole(workers: usize) {
    let mut world = World::new(workers, 2, usize::MAX, 1 << 20);
    let frames: Vec<_> = (0..200).map(|i| frame(1, 0, 60 + i * 7, i as u8)).collect();
    world.send(0, frames.clone());
    world.run();
    assert_eq!(world.wires[1].lock().unwrap().incoming, frames);
    world.balances(1);
}

fn what_a_receiver_refuses_waits_and_comes_in_order_when_it_has_room(workers: usize) {
    let mut world = World::new(workers, 2, 3, 1 << 20);
    let frames: Vec<_> = (0..150).map(|i| frame(1, 0, 1000, i as u8)).collect();
    world.send(0, frames.clone());
    world.run();
    assert_eq!(world.received(1), 3);
    assert_eq!(world.ports[1].state().backlog_frames, 147);
    world.balances(1);
    for _ in 0..60 {
        world.wires[1].lock().unwrap().room = 4;
        world.ports[1].ready();
        world.run();
    }
    assert_eq!(world.wires[1].lock().unwrap().incoming, frames);
    world.balances(1);
}

fn a_receive_buffer_holds_its_bytes_and_no_more_and_the_rest_is_counted(workers: usize) {
    let mut world = World::new(workers, 2, 0, 10 << 10);
    world.send(0, (0..50).map(|i| frame(1, 0, 1000, i)));
    world.run();
    let state = world.ports[1].state();
    assert_eq!((state.backlog_frames, state.backlog_bytes), (10, 10 << 10), "each takes two blocks of 512 bytes");
    assert_eq!(state.counters.receive_drops[Reason::BufferFull as usize], 40);
    world.balances(1);
}

fn the_ring_of_waiting_bytes_wraps_at_every_offset_and_keeps_frames_whole(workers: usize) {
    for len in [61, 333, 1024, 1500] {
        let mut world = World::new(workers, 2, 0, 5000);
        let frames: Vec<_> = (0..60).map(|i| frame(1, 0, len, i)).collect();
        let mut sent = 0;
        while sent < frames.len() {
            world.send(0, frames[sent..(sent + 3).min(frames.len())].iter().cloned());
            sent += 3;
            world.run();
            world.wires[1].lock().unwrap().room = 2;
            world.ports[1].ready();
            world.run();
        }
        let wire = world.wires[1].lock().unwrap();
        assert!(wire.incoming.iter().all(|frame| frames.contains(frame)), "frames of {len} bytes stay whole");
        let marks: Vec<u8> = wire.incoming.iter().map(|frame| frame[20]).collect();
        assert!(marks.is_sorted(), "and in order");
        drop(wire);
        world.balances(1);
        world.wires[1].lock().unwrap().room = usize::MAX;
        world.ports[1].ready();
        world.run();
        let left = world.ports[1].state();
        assert_eq!((left.backlog_frames, left.backlog_bytes), (0, 0), "no byte of it is lost for good");
    }
}

fn an_empty_receive_buffer_takes_whatever_fits_wherever_the_last_frame_ended(workers: usize) {
    let mut world = World::new(workers, 2, 0, 1514);
    for (mark, len) in [600, 1000, 1514, 61, 1514].into_iter().enumerate() {
        world.send(0, [frame(1, 0, len, mark as u8)]);
        world.run();
        assert_eq!(world.ports[1].state().backlog_frames, 1, "{len} bytes");
        world.wires[1].lock().unwrap().room = 1;
        world.ports[1].ready();
        world.run();
        assert_eq!(world.received(1), mark + 1);
    }
    world.balances(1);
}

fn ports_that_all_send_to_each_other_lose_nothing_and_keep_their_order(workers: usize) {
    const PORTS: u8 = 5;
    let mut world = World::new(workers, u16::from(PORTS), usize::MAX, 1 << 20);
    let each = || (0..PORTS).flat_map(|from| (0..PORTS).filter(move |to| *to != from).map(move |to| (from, to)));
    // All addresses are known from here on.
    (0..PORTS).for_each(|from| world.send(usize::from(from), [frame(0xff, from, 60, 0)]));
    world.run();
    for wire in &world.wires {
        wire.lock().unwrap().incoming.clear();
    }
    for round in 0..20u8 {
        for (from, to) in each() {
            world.send(
                usize::from(from),
                (0..30).map(|i| frame(to, from, 60 + 40 * usize::from(i), round * 12 + i % 12)),
            );
        }
        world.run();
    }
    for (from, to) in each() {
        let wire = world.wires[usize::from(to)].lock().unwrap();
        let marks: Vec<u8> = wire.incoming.iter().filter(|frame| frame[11] == from).map(|frame| frame[20]).collect();
        let sent: Vec<u8> = (0..20).flat_map(|round| (0..30).map(move |i| round * 12 + i % 12)).collect();
        assert_eq!(marks, sent, "from {from} to {to}");
    }
}

fn a_flood_to_255_ports_goes_on_in_later_turns_and_reaches_everybody(workers: usize) {
    let world = World::new(workers, 256, usize::MAX, 1 << 16);
    world.send(0, (0..64).map(|i| frame(0xff, 0, 1000, i)));
    let mut turn = Turn::new();
    let first = world.plane.turn(&world.ports[0], &mut turn, Time::ZERO);
    assert!(first.unfinished && first.more, "one turn does not copy it 255 times");
    assert!(first.cost < 256 << 10, "a turn's cost is bounded: {}", first.cost);
    let mut other = Turn::new();
    world.send(1, [frame(0, 1, 100, 0)]);
    as_worker(workers - 1, || world.plane.turn(&world.ports[1], &mut other, Time::ZERO));
    assert_eq!(world.received(0), 1, "others have their turns meanwhile");
    // The flood continues on any worker that gets its turn.
    as_worker(workers - 1, || while world.plane.turn(&world.ports[0], &mut turn, Time::ZERO).more {});
    assert!((1..256).all(|port| world.received(port) == 64));
}

/// Counted at the receivers, not by the turn's own cost. Frames that go to a driver, and frames that must wait.
fn between_two_turns_of_a_port_a_flood_to_255_others_is_served_a_bounded_number_of_bytes(workers: usize) {
    // Bytes that a turn gives to receivers; and the fixed cost of a frame in bytes.
    const TURN: usize = 128 << 10;
    const FRAME: usize = 256;
    for (len, room) in [(60, usize::MAX), (1514, usize::MAX), (60, 0), (1514, 0)] {
        let world = World::new(workers, 256, room, 1 << 16);
        let offered = || {
            let states = world.ports[1..].iter().map(|port| port.state());
            let frames = |of: nicety_plane::State| {
                let dropped: u64 = of.counters.receive_drops.iter().sum();
                of.counters.taken().packets + dropped + of.backlog_frames as u64
            };
            states.map(frames).sum::<u64>() as usize
        };
        world.wires[0].lock().unwrap().room = usize::MAX;
        world.send(0, (0..128).map(|_| frame(0xff, 0, len, 0)));
        let (mut flood, mut victim) = (Turn::new(), Turn::new());
        // The last receiver gets its share in one piece: a whole batch.
        let batch = Budget::TURN.packets.min(Budget::TURN.bytes as usize / len + 1);
        let most = TURN / (len + FRAME) + 1 + batch;
        let (mut before, mut rounds, mut more) = (0, 0, true);
        while more {
            more = world.plane.turn(&world.ports[0], &mut flood, Time::ZERO).more;
            let now = offered();
            assert!(now - before <= most, "round {rounds}: {} frames of {len} bytes, not {most}", now - before);
            rounds += 1;
            world.send(1, [frame(0, 1, 60, 0)]);
            as_worker(workers - 1, || world.plane.turn(&world.ports[1], &mut victim, Time::ZERO));
            assert_eq!(world.received(0), rounds, "the other port has its frame through in each of its turns");
            before = now;
        }
        assert_eq!(before, 128 * 255, "all of the flood is served");
    }
}

fn frames_for_a_port_that_leaves_are_not_delivered_and_nothing_breaks(workers: usize) {
    let mut world = World::new(workers, 3, usize::MAX, 1 << 16);
    world.send(1, [frame(0xff, 1, 60, 0)]);
    world.run();
    world.plane.leave(PortId(1)).unwrap();
    world.send(0, [frame(1, 0, 60, 7)]);
    world.run();
    assert_eq!(world.received(1), 0);
    assert_eq!(world.received(2), 2, "an address that is not known any more is flooded");
    assert!(world.plane.leave(PortId(1)).is_none());
}

/// The last port leaves in the middle of a flood in VLAN 10; another port joins with its number, in VLAN 20 or also in VLAN 10.
fn a_frame_planned_for_one_port_never_reaches_another_that_has_its_number_next(workers: usize) {
    const PORTS: u16 = 128;
    let access = |id| Policy { vlan: Vlan::Access(VlanId::new(id).unwrap()), ..Policy::default() };
    for next in [20, 10] {
        let mut world = World::new(workers, PORTS, usize::MAX, 1 << 16);
        world.ports.iter().for_each(|port| world.plane.set_policy(port, &access(10)));
        world.send(0, (0..64).map(|i| frame(0xff, 0, 1000, i)));
        let mut turn = Turn::new();
        assert!(world.plane.turn(&world.ports[0], &mut turn, Time::ZERO).unfinished);
        let last = PortId(PORTS - 1);
        let (port, wire) = world.port(last, usize::MAX, 1 << 16);
        as_worker(workers - 1, || {
            world.plane.leave(last).unwrap();
            world.plane.set_policy(&port, &access(next));
            world.plane.join(Arc::clone(&port)).unwrap();
        });
        while world.plane.turn(&world.ports[0], &mut turn, Time::ZERO).more {}
        assert_eq!(wire.lock().unwrap().incoming.len(), 0, "the one in VLAN {next}");
        assert!((1..usize::from(PORTS) - 1).all(|port| world.received(port) == 64));
        // From the next batch on it is a port of the switch.
        world.send(0, [frame(0xff, 0, 60, 1)]);
        world.run();
        assert_eq!(wire.lock().unwrap().incoming.len(), usize::from(next == 10));
    }
}

/// A port's number is reused: a late policy change for the old port must not apply to the new one.
#[test]
fn a_policy_for_a_port_that_has_left_is_not_that_of_the_next_with_its_number() {
    let world = World::new(1, 3, usize::MAX, 1 << 16);
    let old = world.plane.leave(PortId(1)).unwrap();
    let (new, _) = world.port(PortId(1), usize::MAX, 1 << 16);
    world.plane.join(new).unwrap();
    let access = Policy { vlan: Vlan::Access(VlanId::new(10).unwrap()), ..Policy::default() };
    world.plane.set_policy(&old, &access);
    assert_eq!(world.plane.switch().policy(PortId(1)), Policy::default());
}

#[test]
fn a_number_is_taken_once() {
    let world = World::new(1, 1, 0, 1 << 16);
    let again = Arc::clone(&world.ports[0]);
    assert!(world.plane.join(again).is_err());
}

/// Frames that a watcher saw: incoming frames, incoming frames without a receiver, and the fates of frames for port 1.
#[derive(Debug, Default)]
struct Onlooker {
    came: AtomicU32,
    nowhere: AtomicU32,
    fates: Mutex<Vec<(PortId, Fate)>>,
}

impl Watcher for Onlooker {
    fn watches_egress(&self, port: PortId) -> bool {
        port == PortId(1)
    }

    fn ingress(&self, batch: &Batch, plan: &Plan, _: Time) {
        self.came.fetch_add(batch.len() as u32, Ordering::Relaxed);
        self.nowhere.fetch_add(plan.drops().len() as u32, Ordering::Relaxed);
    }

    fn egress(&self, port: PortId, _: &Batch, offered: &[(Pick, Fate)], _: Time) {
        self.fates.lock().unwrap().extend(offered.iter().map(|(_, fate)| (port, *fate)));
    }
}

fn who_looks_on_sees_each_frame_and_its_fate_and_changes_nothing(workers: usize) {
    let mut world = World::new(workers, 3, 3, 10 << 10);
    let onlooker = Arc::new(Onlooker::default());
    let watcher: Arc<dyn Watcher> = onlooker.clone();
    world.plane.watch(&watcher);
    // Frames too long for the receiver; some that find room; as many as can wait; and some that are dropped.
    let mut frames = vec![frame(0xff, 0, 1600, 0)];
    frames.extend((1..50).map(|i| frame(0xff, 0, 1000, i)));
    world.send(0, frames);
    world.send(2, [vec![2; 10]]);
    world.run();
    let came = [&onlooker.came, &onlooker.nowhere].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(came, [51, 1]);
    let fates = std::mem::take(&mut *onlooker.fates.lock().unwrap());
    let count = |wanted: Fate| fates.iter().filter(|fate| **fate == (PortId(1), wanted)).count() as u64;
    let (one, other) = (world.ports[1].state(), world.ports[2].state());
    assert_eq!(count(Fate::Taken), 3);
    assert_eq!(count(Fate::Waits), one.backlog_frames as u64);
    for reason in [Reason::TooLong, Reason::BufferFull] {
        assert_eq!(count(Fate::Dropped(reason)), one.counters.receive_drops[reason as usize], "{reason:?}");
    }
    assert_eq!(fates.len(), 50);
    // Port 2 was not watched, and had the same fates.
    assert_eq!(one.counters.receive_drops, other.counters.receive_drops);
    world.plane.unwatch(&watcher);
    world.send(2, [frame(1, 2, 60, 0)]);
    world.run();
    assert_eq!(onlooker.came.load(Ordering::Relaxed), 51);
}
