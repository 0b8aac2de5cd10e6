//! Flows: each frame is in one record of each side at which it is counted, whoever serves its port; a port has its own room, and a drop its
//! reason.

#[macro_use]
mod workers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use nicety_adapter::{PortId, Reason, Time};
use nicety_ipfix::{EndReason, NOT_ONE, Record};
use nicety_plane::doubles::{Ringed, Silent, Wire, link};
use nicety_plane::{Covered, End, FlowExport, FlowSink, Plane, Port, Turn, drop_reason};
use nicety_switch::Limits;

with_one_worker_and_with_two!(
    a_frame_is_counted_where_it_comes_in_and_where_it_leaves,
    a_frame_for_several_ports_is_counted_once_where_it_comes_in_and_once_at_each_port,
    a_dropped_frame_is_counted_with_its_reason,
    a_frame_that_its_receiver_drops_is_counted_with_the_reason_at_both_sides_and_no_more_as_forwarded,
    a_frame_for_several_ports_that_one_of_them_drops_is_dropped_there_alone,
    of_the_frames_that_are_not_sampled_drops_are_not_counted_either,
    a_port_without_a_vm_drops_flows_as_such,
    one_frame_in_so_many_is_counted,
    a_port_with_many_flows_displaces_its_own_and_no_others,
    flows_that_are_silent_or_last_long_are_reported_without_another_frame,
    two_exports_count_for_themselves,
    a_port_s_flows_are_reported_before_another_one_has_its_number,
    flows_from_a_port_or_of_an_export_that_is_gone_are_reported_some_at_a_time,
    without_an_export_nothing_is_counted_and_what_was_is_reported,
);

const SECOND: u64 = 1_000_000_000;

/// Keeps all records.
#[derive(Debug, Default)]
struct Sink {
    records: Mutex<Vec<Record>>,
    displaced: AtomicU64,
}

impl FlowSink for Sink {
    fn take(&self, records: &mut Vec<Record>) {
        self.records.lock().unwrap().append(records);
    }

    fn displaced(&self) {
        self.displaced.fetch_add(1, Ordering::Relaxed);
    }
}

/// What of a record tests look at: where it came from, where it goes (or the reason of the drop), in which directions; and its packets.
type Flow = (u16, Result<u16, Reason>, u8);

impl Sink {
    fn take_records(&self) -> Vec<Record> {
        std::mem::take(&mut self.records.lock().unwrap())
    }

    fn flows(&self) -> BTreeMap<Flow, u64> {
        let mut flows = BTreeMap::new();
        for record in self.take_records() {
            let outcome = record.key.outcome();
            let to = drop_reason(&record).map_or(Ok(outcome.egress), Err);
            *flows.entry((record.ingress, to, outcome.directions)).or_default() += record.packets;
        }
        flows
    }
}

const INGRESS: u8 = 1;
const EGRESS: u8 = 2;

/// Ports 1 to 4.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    turns: Vec<Turn>,
    now: Time,
    version: u32,
}

/// An export that counts these ports.
fn export(id: u64, covered: &[u16], sink: &Arc<Sink>) -> FlowExport {
    let of = |number: u16| Covered {
        identity: u64::from(number) + 1,
        directions: if covered.contains(&number) { Covered::BOTH } else { 0 },
    };
    FlowExport {
        id,
        ports: (0..5).map(of).collect(),
        sampling: 1,
        active_ns: 60 * SECOND,
        idle_ns: 15 * SECOND,
        port_bytes: 1 << 16,
        sink: Arc::clone(sink) as Arc<dyn FlowSink>,
    }
}

impl World {
    fn new(workers: usize) -> Self {
        let turns = (0..workers).map(|_| Turn::new()).collect();
        let plane = Plane::new(Limits::default());
        let mut world = Self { plane, ports: Vec::new(), wires: Vec::new(), turns, now: Time::ZERO, version: 0 };
        (1..5).for_each(|id| world.join(id));
        // The switch knows them all.
        for at in 0..4 {
            world.send(at, [frame(0xff, at as u8 + 1, 0)]);
        }
        world
    }

    fn join(&mut self, id: u16) {
        let (link, wire) = link();
        let port = Port::new(PortId(id), End::link(Box::new(link)), Box::new(Silent), 1 << 20).unwrap();
        let port = Arc::new(port);
        self.plane.join(Arc::clone(&port)).unwrap();
        self.ports.push(port);
        self.wires.push(wire);
    }

    fn count(&mut self, exports: Vec<FlowExport>) {
        self.version += 1;
        self.plane.set_flows(self.version, exports);
    }

    /// Turns for all ports by all workers at once, until nobody has work.
    fn run(&mut self) {
        self.ports.iter().for_each(|port| port.ready());
        for round in 0.. {
            assert!(round < 10_000, "it ends");
            let Self { plane, ports, turns, now, .. } = self;
            let (workers, now) = (turns.len(), *now);
            let serve = |number: usize, turn: &mut Turn| {
                for (_, port) in ports.iter().enumerate().filter(|(index, _)| (index + round) % workers == number) {
                    while plane.turn(port, turn, now).unfinished {}
                }
            };
            thread::scope(|scope| {
                for (index, turn) in turns.iter_mut().enumerate() {
                    scope.spawn(move || serve(index, turn));
                }
            });
            if self.ports.iter().all(|port| !port.busy(now)) {
                return;
            }
        }
    }

    fn send(&mut self, from: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.wires[from].lock().unwrap().outgoing.extend(frames);
        self.run();
    }

    /// Frames for a port that it dropped.
    fn dropped(&self, port: usize, reason: Reason) -> u64 {
        self.ports[port - 1].state().counters.receive_drops[reason as usize]
    }

    fn sweep(&mut self) {
        let Self { plane, turns, now, .. } = self;
        turns.iter_mut().for_each(|turn| plane.sweep_flows(turn, *now));
    }

    fn end(&mut self) {
        let Self { plane, turns, .. } = self;
        turns.iter_mut().for_each(|turn| plane.end_flows(turn));
    }
}

/// A UDP datagram between stations, from this port; 0xff: to all.
fn frame(to: u8, from: u8, port: u16) -> Vec<u8> {
    let station = |number: u8| if number == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, number] };
    let mut frame = [&station(to)[..], &station(from), &[8, 0]].concat();
    frame.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    frame.extend([port.to_be_bytes(), [0, 9], [0, 12], [0, 0]].concat());
    frame.resize(60, 0);
    frame
}

fn a_frame_is_counted_where_it_comes_in_and_where_it_leaves(workers: usize) {
    for (covered, directions) in [(&[1, 2][..], INGRESS | EGRESS), (&[1], INGRESS), (&[2], EGRESS)] {
        let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
        world.count(vec![export(1, covered, &sink)]);
        world.send(0, (0..100).map(|number| frame(2, 1, number % 10)));
        world.send(2, [frame(4, 3, 0)]);
        assert!(sink.take_records().is_empty(), "the flows go on");
        world.end();
        // Each worker that has served the port tells its part of a flow.
        let mut packets = BTreeMap::new();
        for record in sink.take_records() {
            *packets.entry(record.key.ports()[0]).or_insert(0) += record.packets;
            assert_eq!((record.octets, record.end), (32 * record.packets, EndReason::Forced));
            assert_eq!((record.key.ipv4(), record.key.ports()[1]), ([[10, 0, 0, 1], [10, 0, 0, 2]], 9));
            assert_eq!((record.ingress, record.key.outcome().egress), (1, 2));
            assert_eq!(record.key.outcome().directions, directions);
        }
        assert_eq!(packets, (0..10).map(|port| (port, 10)).collect(), "a flow for each port");
    }
}

fn a_frame_for_several_ports_is_counted_once_where_it_comes_in_and_once_at_each_port(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![export(1, &[1, 2, 3], &sink)]);
    world.send(0, [frame(0xff, 1, 0), frame(2, 1, 0), frame(0xff, 1, 0)]);
    world.end();
    let expected = [
        ((1, Ok(2), EGRESS), 2),
        ((1, Ok(2), INGRESS | EGRESS), 1),
        ((1, Ok(3), EGRESS), 2),
        ((1, Ok(NOT_ONE), INGRESS), 2),
    ];
    assert_eq!(sink.flows(), BTreeMap::from(expected), "port 4 is not counted");
}

fn a_dropped_frame_is_counted_with_its_reason(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![export(1, &[1], &sink)]);
    world.send(0, [frame(1, 1, 0), frame(2, 1, 0), vec![0; 9]]);
    world.send(1, [frame(2, 2, 0)]);
    world.end();
    let expected =
        [((1, Ok(2), INGRESS), 1), ((1, Err(Reason::TooShort), INGRESS), 1), ((1, Err(Reason::SamePort), INGRESS), 1)];
    assert_eq!(sink.flows(), BTreeMap::from(expected));
}

/// More frames than wait for a link that takes none.
const TOO_MANY: usize = 600;

fn a_frame_that_its_receiver_drops_is_counted_with_the_reason_at_both_sides_and_no_more_as_forwarded(workers: usize) {
    for (covered, directions) in [(&[1, 2][..], INGRESS | EGRESS), (&[1], INGRESS), (&[2], EGRESS)] {
        let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
        world.count(vec![export(1, covered, &sink)]);
        world.wires[1].lock().unwrap().room = 0;
        world.send(0, (0..TOO_MANY).map(|_| frame(2, 1, 7)));
        world.end();
        let dropped = world.dropped(2, Reason::BufferFull);
        assert!(dropped > 0);
        let records = sink.take_records();
        assert!(records.iter().all(|one| one.key.outcome().egress == 2), "also of drops: {records:?}");
        records.into_iter().for_each(|one| sink.take(&mut vec![one]));
        let expected =
            [((1, Ok(2), directions), TOO_MANY as u64 - dropped), ((1, Err(Reason::BufferFull), directions), dropped)];
        assert_eq!(sink.flows(), BTreeMap::from(expected));
    }
}

fn a_frame_for_several_ports_that_one_of_them_drops_is_dropped_there_alone(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![export(1, &[1, 2, 3], &sink)]);
    world.wires[1].lock().unwrap().room = 0;
    world.send(0, (0..TOO_MANY).map(|_| frame(0xff, 1, 7)));
    world.end();
    let (all, dropped) = (TOO_MANY as u64, world.dropped(2, Reason::BufferFull));
    let expected = [
        ((1, Ok(2), EGRESS), all - dropped),
        ((1, Ok(3), EGRESS), all),
        ((1, Ok(NOT_ONE), INGRESS), all),
        ((1, Err(Reason::BufferFull), EGRESS), dropped),
    ];
    assert_eq!(sink.flows(), BTreeMap::from(expected));
}

fn of_the_frames_that_are_not_sampled_drops_are_not_counted_either(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![FlowExport { sampling: 10, ..export(1, &[1], &sink) }]);
    world.wires[1].lock().unwrap().room = 0;
    world.send(0, (0..10 * TOO_MANY).map(|_| frame(2, 1, 7)));
    world.end();
    let flows = sink.flows();
    let dropped = flows[&(1, Err(Reason::BufferFull), INGRESS)];
    let expected = world.dropped(2, Reason::BufferFull) / 10;
    assert!(dropped.abs_diff(expected) <= 2 * workers as u64, "{dropped} of {expected}: {flows:?}");
    assert!(flows.values().sum::<u64>().abs_diff(TOO_MANY as u64) <= workers as u64, "{flows:?}");
}

fn a_port_without_a_vm_drops_flows_as_such(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    let (_, wire) = link();
    let end = End::guest(Box::new(Ringed(wire)));
    let port = Port::new(PortId(5), end, Box::new(Silent), 1 << 20).unwrap();
    world.plane.join(Arc::new(port)).unwrap();
    world.count(vec![export(1, &[1], &sink)]);
    world.send(0, [frame(0xff, 1, 7)]);
    let mut five = export(2, &[5], &sink);
    five.ports.push(Covered { identity: 6, directions: Covered::BOTH });
    world.count(vec![five]);
    world.send(0, [frame(0xff, 1, 7)]);
    world.end();
    let expected = [((1, Ok(NOT_ONE), INGRESS), 1), ((1, Err(Reason::NoVm), EGRESS), 1)];
    assert_eq!(sink.flows(), BTreeMap::from(expected));
}

fn one_frame_in_so_many_is_counted(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![FlowExport { sampling: 10, ..export(1, &[1], &sink) }]);
    (0..40).for_each(|_| world.send(0, (0..25).map(|number| frame(2, 1, number))));
    world.end();
    let counted: u64 = sink.flows().values().sum();
    // Each worker counts for itself.
    assert!((100 - workers as u64..=100 + workers as u64).contains(&counted), "{counted} of 1000");
}

fn a_port_with_many_flows_displaces_its_own_and_no_others(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![export(1, &[1, 3], &sink)]);
    world.send(2, (0..50).map(|number| frame(4, 3, number)));
    for many in 0..100 {
        world.send(0, (0..100).map(|number| frame(2, 1, many * 100 + number)));
    }
    let displaced = sink.displaced.load(Ordering::Relaxed);
    assert!(displaced > 8000, "{displaced} of 10,000 flows in the room of 512 for each worker");
    let early = sink.take_records();
    assert!(early.iter().all(|one| one.ingress == 1 && one.end == EndReason::NoRoom), "its own");
    world.end();
    let rest = sink.flows();
    let flows: u64 = early.iter().map(|one| one.packets).sum::<u64>() + rest[&(1, Ok(2), INGRESS)];
    assert_eq!((flows, rest[&(3, Ok(4), INGRESS)]), (10_000, 50), "each frame is in a record");
}

fn flows_that_are_silent_or_last_long_are_reported_without_another_frame(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![export(1, &[1], &sink)]);
    world.send(0, [frame(2, 1, 1)]);
    for second in 0..=70 {
        world.now = Time(second * SECOND);
        world.send(0, [frame(2, 1, 2)]);
        world.sweep();
    }
    let mut ended: Vec<_> = sink.take_records().iter().map(|one| (one.key.ports()[0], one.end, one.packets)).collect();
    // A flow is in the tables of all workers that have served its port.
    ended.sort_by_key(|(port, ..)| *port);
    assert_eq!(ended[0], (1, EndReason::Idle, 1));
    assert!(ended[1..].iter().all(|(port, end, _)| (*port, *end) == (2, EndReason::Active)), "{ended:?}");
    assert!((1..=workers).contains(&(ended.len() - 1)), "{ended:?}");
}

fn two_exports_count_for_themselves(workers: usize) {
    let (mut world, sinks) = (World::new(workers), [Arc::new(Sink::default()), Arc::default()]);
    world.count(vec![export(1, &[1], &sinks[0]), export(2, &[2], &sinks[1])]);
    world.send(0, [frame(2, 1, 1)]);
    world.end();
    assert_eq!(sinks[0].flows(), BTreeMap::from([((1, Ok(2), INGRESS), 1)]));
    assert_eq!(sinks[1].flows(), BTreeMap::from([((1, Ok(2), EGRESS), 1)]));
}

fn a_port_s_flows_are_reported_before_another_one_has_its_number(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.count(vec![export(1, &[1, 2], &sink)]);
    world.send(0, [frame(2, 1, 1)]);
    world.send(0, [frame(3, 1, 1)]);
    world.send(2, [frame(4, 3, 1)]);
    let next = Arc::new(Sink::default());
    let mut other = export(1, &[1, 2], &next);
    other.ports[2].identity = 99;
    world.count(vec![other]);
    world.sweep();
    let gone = sink.take_records();
    let [record] = &gone[..] else { panic!("{gone:?}") };
    assert_eq!((record.ingress, record.key.outcome().egress, record.end), (1, 2, EndReason::Forced));
    world.send(0, [frame(2, 1, 1)]);
    world.end();
    assert!(sink.take_records().is_empty(), "its names are those of the ports before");
    let rest = next.take_records();
    let to = |port| rest.iter().filter(|one| one.key.outcome().egress == port).collect::<Vec<_>>();
    assert_eq!((to(2).len(), to(3).len(), rest.len()), (1, 1, 2), "those of port 3 went on");
}

fn flows_from_a_port_or_of_an_export_that_is_gone_are_reported_some_at_a_time(workers: usize) {
    const FLOWS: u16 = 5000;
    for is_port in [true, false] {
        let (mut world, sink, next) = (World::new(workers), Arc::new(Sink::default()), Arc::new(Sink::default()));
        world.count(vec![FlowExport { port_bytes: 4 << 20, ..export(1, &[1], &sink) }]);
        for first in (0..FLOWS).step_by(100) {
            world.send(0, (first..first + 100).map(|number| frame(2, 1, number)));
        }
        let mut other = FlowExport { port_bytes: 4 << 20, ..export(1, &[1], &next) };
        other.ports[1].identity = 99;
        world.count(if is_port { vec![other] } else { Vec::new() });
        world.sweep();
        let mut gone = sink.take_records();
        // A sweep of a worker costs 1024: each flow is one.
        assert!((1..=1024 * workers).contains(&gone.len()), "{}", gone.len());
        for _ in 0..20 {
            world.sweep();
            gone.extend(sink.take_records());
        }
        assert!(gone.iter().all(|one| (one.ingress, one.end) == (1, EndReason::Forced)));
        assert_eq!(gone.iter().map(|one| one.packets).sum::<u64>(), u64::from(FLOWS), "each frame is in a record");
        assert!(next.take_records().is_empty(), "they are not the new port's");
    }
}

fn without_an_export_nothing_is_counted_and_what_was_is_reported(workers: usize) {
    let (mut world, sink) = (World::new(workers), Arc::new(Sink::default()));
    world.send(0, [frame(2, 1, 1)]);
    world.end();
    world.count(vec![export(1, &[1], &sink)]);
    world.send(0, [frame(2, 1, 1)]);
    world.count(Vec::new());
    world.send(0, [frame(2, 1, 1)]);
    world.sweep();
    assert_eq!(sink.flows(), BTreeMap::from([((1, Ok(2), INGRESS), 1)]));
    world.send(0, [frame(2, 1, 1)]);
    world.end();
    assert!(sink.take_records().is_empty());
}

#[test]
fn a_flood_that_takes_several_turns_is_counted_whole_in_the_worker_s_flows() {
    let (mut world, sink) = (World::new(1), Arc::new(Sink::default()));
    world.count(vec![export(1, &[1, 2, 3, 4], &sink)]);
    let long = |number| {
        let mut frame = frame(0xff, 1, number);
        frame.resize(1500, 0);
        frame
    };
    world.wires[0].lock().unwrap().outgoing.extend((0..40).map(long));
    world.ports[0].ready();
    let mut turn = world.turns.remove(0);
    assert!(world.plane.turn(&world.ports[0], &mut turn, world.now).unfinished, "two of three receivers have it");
    // As a worker does: the flood stays behind, and other ports have turns in between.
    let mut fresh = Turn::new();
    fresh.succeed(&mut turn);
    let mut flood = std::mem::replace(&mut turn, fresh);
    world.wires[1].lock().unwrap().outgoing.push_back(frame(3, 2, 1));
    world.ports[1].ready();
    assert!(!world.plane.turn(&world.ports[1], &mut turn, world.now).unfinished);
    flood.take_flows(&mut turn);
    assert!(!world.plane.turn(&world.ports[0], &mut flood, world.now).unfinished);
    turn.take_flows(&mut flood);
    world.plane.end_flows(&mut turn);
    let expected = [
        ((1, Ok(2), EGRESS), 40),
        ((1, Ok(3), EGRESS), 40),
        ((1, Ok(4), EGRESS), 40),
        ((1, Ok(NOT_ONE), INGRESS), 40),
        ((2, Ok(3), INGRESS | EGRESS), 1),
    ];
    assert_eq!(sink.flows(), BTreeMap::from(expected));
}
