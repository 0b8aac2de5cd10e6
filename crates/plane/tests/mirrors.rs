//! Mirrors: copies of some ports' frames reach the mirror's port, and change nothing for anybody else. A port is a pair of queues.

mod linked;
#[macro_use]
mod workers;
mod silent;

use std::sync::{Arc, Mutex};
use std::thread;

use linked::{Wire, link};
use nicety_adapter::{Counters, Edit, PortId, Rate, Reason, Time};
use nicety_plane::{End, Mirror, Mirrored, Plane, Port, Turn};
use nicety_switch::{Limits, Policy, Vlan, VlanId, VlanSet};
use silent::Silent;

with_one_worker_and_with_two!(
    what_a_port_sends_and_gets_is_copied_and_its_receivers_get_it_as_before,
    the_port_of_a_mirror_gets_copies_alone_and_what_it_sends_goes_nowhere,
    beyond_its_rate_a_mirror_drops_copies_and_nobody_else_loses_a_frame,
    a_mirror_whose_port_takes_nothing_holds_nobody,
    a_copy_has_the_tags_that_the_mirrored_port_sends_or_gets,
    frames_that_the_switch_drops_are_copied_too_and_counted_once,
    without_the_mirror_its_port_belongs_to_the_networks_again,
    another_port_with_the_number_of_a_mirrored_one_is_not_mirrored,
    two_mirrors_may_copy_one_port,
);

/// Ports 1 to 4.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    turns: Vec<Turn>,
}

/// Their places in the world.
const ONE: usize = 0;
const TWO: usize = 1;
const THREE: usize = 2;
const WATCH: usize = 3;

fn port(id: u16) -> (Arc<Port>, Arc<Mutex<Wire>>) {
    let (link, wire) = link();
    let port = Port::new(PortId(id), End::link(Box::new(link)), Box::new(Silent), 1 << 20).unwrap();
    (Arc::new(port), wire)
}

impl World {
    fn new(workers: usize) -> Self {
        let turns = (0..workers).map(|_| Turn::new()).collect();
        let mut world = Self { plane: Plane::new(Limits::default()), ports: Vec::new(), wires: Vec::new(), turns };
        (1..5).for_each(|id| world.join(id));
        world
    }

    fn join(&mut self, id: u16) {
        let (port, wire) = port(id);
        self.plane.join(Arc::clone(&port)).unwrap();
        self.ports.push(port);
        self.wires.push(wire);
    }

    fn mirror(&self, at: usize, ingress: bool, egress: bool) -> Mirror {
        let port = Arc::clone(&self.ports[at]);
        let sources = vec![Mirrored { port, ingress, egress }];
        Mirror { sources, to: Arc::clone(&self.ports[WATCH]), rate: "10Gbit/s".parse().unwrap() }
    }

    /// Turns for all ports by all workers at once, until nobody has work.
    fn run(&mut self) {
        self.ports.iter().for_each(|port| port.ready());
        for round in 0.. {
            assert!(round < 10_000, "it ends");
            let Self { plane, ports, turns, .. } = self;
            let workers = turns.len();
            let serve = |number: usize, turn: &mut Turn| {
                for (_, port) in ports.iter().enumerate().filter(|(index, _)| (index + round) % workers == number) {
                    while plane.turn(port, turn, Time::ZERO).unfinished {}
                }
            };
            thread::scope(|scope| {
                for (index, turn) in turns.iter_mut().enumerate() {
                    scope.spawn(move || serve(index, turn));
                }
            });
            if self.ports.iter().all(|port| !port.busy(Time::ZERO)) {
                return;
            }
        }
    }

    fn send(&mut self, from: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.wires[from].lock().unwrap().outgoing.extend(frames);
        self.run();
    }

    /// Takes the numbers of the frames that a port got, and the edits of their tags.
    fn edited(&self, at: usize) -> Vec<(u16, Edit)> {
        let mut wire = self.wires[at].lock().unwrap();
        let (frames, edits) = (std::mem::take(&mut wire.incoming), std::mem::take(&mut wire.edits));
        frames.into_iter().zip(edits).map(|(frame, edit)| (u16::from_be_bytes([frame[14], frame[15]]), edit)).collect()
    }

    fn seen(&self, at: usize) -> Vec<u16> {
        self.edited(at).into_iter().map(|(number, _)| number).collect()
    }

    fn counters(&self, at: usize) -> Counters {
        self.ports[at].state().counters
    }
}

/// A frame between stations; 0xff: to all.
fn frame(to: u8, from: u8, number: u16) -> Vec<u8> {
    let station = |number: u8| if number == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, number] };
    let mut frame = [&station(to)[..], &station(from), &[0x88, 0xb5]].concat();
    frame.extend(number.to_be_bytes());
    frame.resize(1000, 0);
    frame
}

fn what_a_port_sends_and_gets_is_copied_and_its_receivers_get_it_as_before(workers: usize) {
    for (ingress, egress, copies) in
        [(true, false, vec![1, 4]), (false, true, vec![2, 3]), (true, true, vec![1, 2, 3, 4])]
    {
        let mut world = World::new(workers);
        world.plane.set_mirrors(vec![world.mirror(ONE, ingress, egress)]);
        world.send(ONE, [frame(0xff, 1, 1)]);
        world.send(TWO, [frame(1, 2, 2)]);
        world.send(THREE, [frame(0xff, 3, 3), frame(2, 3, 30)]);
        world.send(ONE, [frame(2, 1, 4)]);
        assert_eq!(world.seen(WATCH), copies, "ingress {ingress}, egress {egress}");
        assert_eq!((world.seen(ONE), world.seen(TWO)), (vec![2, 3], vec![1, 3, 30, 4]));
        assert_eq!(world.seen(THREE), [1]);
        assert_eq!(world.counters(WATCH).taken().packets, copies.len() as u64);
    }
}

fn the_port_of_a_mirror_gets_copies_alone_and_what_it_sends_goes_nowhere(workers: usize) {
    let mut world = World::new(workers);
    // Its station was heard before.
    world.send(WATCH, [frame(0xff, 9, 0)]);
    world.plane.set_mirrors(vec![world.mirror(ONE, true, true)]);
    (ONE..=THREE).for_each(|at| drop(world.seen(at)));
    // To all, to an unknown station, and to the one that was heard there.
    world.send(TWO, [frame(0xff, 2, 1), frame(7, 2, 2), frame(9, 2, 3)]);
    assert_eq!(world.seen(THREE), [1, 2, 3]);
    assert_eq!(world.seen(WATCH), [1, 2, 3], "as copies of what the first port gets");
    world.send(TWO, [frame(3, 3, 0)]);
    drop((world.seen(WATCH), world.seen(ONE), world.seen(THREE)));
    // A copy that comes back, and a frame from a station of another port.
    world.send(WATCH, [frame(0xff, 9, 4), frame(1, 2, 5), frame(0xff, 2, 6)]);
    assert!((ONE..=WATCH).all(|at| world.seen(at).is_empty()));
    assert_eq!(world.counters(WATCH).transmit_drops[Reason::MirrorPort as usize], 3);
    // Nothing was learned from it.
    world.send(THREE, [frame(2, 5, 7)]);
    assert_eq!((world.seen(TWO), world.seen(WATCH)), (vec![7], vec![]));
}

fn beyond_its_rate_a_mirror_drops_copies_and_nobody_else_loses_a_frame(workers: usize) {
    let mut world = World::new(workers);
    let rate: Rate = "1Mbit/s".parse().unwrap();
    world.plane.set_mirrors(vec![Mirror { rate, ..world.mirror(ONE, true, false) }]);
    world.send(ONE, (0..500).map(|number| frame(0xff, 1, number)));
    assert_eq!(world.seen(TWO), (0..500).collect::<Vec<_>>());
    // 64 KiB may come at once, and the frame that uses up the last of them.
    let copied = world.seen(WATCH);
    assert_eq!(copied, (0..66).collect::<Vec<_>>());
    let counters = world.counters(WATCH);
    assert_eq!(counters.receive_drops[Reason::MirrorLimit as usize], 500 - 66);
    assert_eq!(world.counters(ONE).transmit_drops.iter().sum::<u64>(), 0);
}

fn a_mirror_whose_port_takes_nothing_holds_nobody(workers: usize) {
    let mut world = World::new(workers);
    world.wires[WATCH].lock().unwrap().room = 0;
    world.plane.set_mirrors(vec![world.mirror(ONE, true, true)]);
    world.send(ONE, (0..5000).map(|number| frame(0xff, 1, number)));
    world.send(TWO, (0..5000).map(|number| frame(1, 2, number)));
    assert_eq!(world.seen(TWO), (0..5000).collect::<Vec<_>>());
    assert_eq!(world.seen(ONE), (0..5000).collect::<Vec<_>>());
    assert!(world.ports.iter().all(|port| !port.state().held));
    assert!(world.counters(WATCH).receive_drops[Reason::BufferFull as usize] > 0, "its buffer has an end");
    // What fitted in comes when there is room.
    world.wires[WATCH].lock().unwrap().room = 1 << 20;
    world.run();
    let waited = world.seen(WATCH);
    assert!(waited.len() > 100 && waited.starts_with(&[0]), "{}", waited.len());
}

fn a_copy_has_the_tags_that_the_mirrored_port_sends_or_gets(workers: usize) {
    let mut world = World::new(workers);
    let id = VlanId::new(10).unwrap();
    let access = Policy { vlan: Vlan::Access(id), ..Policy::default() };
    let trunk = Policy { vlan: Vlan::Trunk { allowed: VlanSet::all(), native: None }, ..Policy::default() };
    for (at, policy) in [(ONE, &access), (TWO, &trunk), (THREE, &access)] {
        world.plane.set_policy(&world.ports[at], policy);
    }
    world.plane.set_mirrors(vec![world.mirror(TWO, false, true)]);
    world.send(ONE, [frame(0xff, 1, 1)]);
    let [(1, to_trunk)] = world.edited(TWO)[..] else { panic!("one frame") };
    assert_eq!(world.edited(THREE), [(1, Edit::Keep)]);
    assert!(to_trunk != Edit::Keep, "it gets a tag");
    assert_eq!(world.edited(WATCH), [(1, to_trunk)], "the copy too");
    world.plane.set_mirrors(vec![world.mirror(ONE, true, false)]);
    world.send(ONE, [frame(0xff, 1, 2)]);
    assert_eq!(world.edited(WATCH), [(2, Edit::Keep)], "as it was sent");
}

fn frames_that_the_switch_drops_are_copied_too_and_counted_once(workers: usize) {
    let mut world = World::new(workers);
    world.plane.set_mirrors(vec![world.mirror(ONE, true, false)]);
    // From a station to itself, to the neighbour, and what is no frame.
    world.send(ONE, [frame(9, 9, 1), frame(0xff, 9, 2)]);
    let mut bpdu = frame(0, 1, 3);
    bpdu[..6].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 0]);
    world.send(ONE, [bpdu, vec![0; 10]]);
    let drops = world.counters(ONE).transmit_drops;
    let of = |reason: Reason| drops[reason as usize];
    assert_eq!((of(Reason::SamePort), of(Reason::Policy), of(Reason::TooShort)), (1, 1, 1));
    assert_eq!(drops.iter().sum::<u64>(), 3);
    assert_eq!(world.seen(WATCH), [1, 2, 3], "but for what is no frame");
    assert_eq!(world.seen(TWO), [2]);
}

fn without_the_mirror_its_port_belongs_to_the_networks_again(workers: usize) {
    let mut world = World::new(workers);
    for _ in 0..3 {
        world.plane.set_mirrors(vec![world.mirror(ONE, true, true)]);
        world.plane.set_mirrors(Vec::new());
    }
    world.send(WATCH, [frame(0xff, 9, 1)]);
    world.send(ONE, [frame(9, 1, 2)]);
    world.send(TWO, [frame(0xff, 2, 3), frame(1, 2, 4)]);
    assert_eq!((world.seen(WATCH), world.seen(ONE)), (vec![2, 3], vec![1, 3, 4]));
    assert_eq!(world.counters(WATCH).transmit_drops.iter().sum::<u64>(), 0);
}

fn another_port_with_the_number_of_a_mirrored_one_is_not_mirrored(workers: usize) {
    let mut world = World::new(workers);
    world.plane.set_mirrors(vec![world.mirror(ONE, true, true)]);
    world.plane.leave(PortId(1)).unwrap();
    world.join(1);
    let new = world.ports.len() - 1;
    world.send(new, [frame(0xff, 8, 1)]);
    world.send(TWO, [frame(8, 2, 2)]);
    assert_eq!((world.seen(new), world.seen(WATCH)), (vec![2], vec![]));
    // And the number of the mirror's port: the other one gets no copies.
    world.plane.set_mirrors(vec![world.mirror(TWO, true, true)]);
    world.plane.leave(PortId(4)).unwrap();
    world.join(4);
    let new = world.ports.len() - 1;
    world.send(TWO, [frame(8, 2, 3)]);
    assert!(world.seen(new).is_empty());
}

fn two_mirrors_may_copy_one_port(workers: usize) {
    let mut world = World::new(workers);
    world.join(5);
    let other = Mirror { to: Arc::clone(world.ports.last().unwrap()), ..world.mirror(ONE, true, true) };
    world.plane.set_mirrors(vec![world.mirror(ONE, true, false), other]);
    world.send(ONE, [frame(0xff, 1, 1)]);
    world.send(TWO, [frame(1, 2, 2)]);
    assert_eq!((world.seen(WATCH), world.seen(4)), (vec![1], vec![1, 2]));
    assert_eq!(world.seen(THREE), [1]);
}
