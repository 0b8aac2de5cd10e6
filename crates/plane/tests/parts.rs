//! A port with two parts: each flow has one of them, and stays in order; both have the port's number; a full uplink holds the part that
//! filled it.

#[allow(dead_code, reason = "this link keeps its carrier")]
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nicety_adapter::{Batch, Budget, Context, Delivery, Frames, PortId, Progress, Reset, Time};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_plane::doubles::{Ringed, Silent, Traffic, Wire, link, send};
use nicety_plane::{End, Group, Plane, Port, Turn};
use nicety_switch::{Limits, Policy};

const BUFFER: u32 = 256 << 10;
const UPLINK: PortId = PortId(0);
const FIRST: PortId = PortId(1);
const OTHER: PortId = PortId(6);
/// The guest, and a station beyond the uplink.
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const STATION: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A UDP datagram from the station to the guest, from this port, with a number.
fn datagram(from: u16, number: u32) -> Vec<u8> {
    let mut frame = [&GUEST[..], &STATION, &[8, 0]].concat();
    frame.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1]);
    frame.extend([from.to_be_bytes(), 7u16.to_be_bytes(), 12u16.to_be_bytes(), [0, 0]].concat());
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}

/// The datagrams that came to a part: ports and numbers.
type Came = Arc<Mutex<Vec<(u16, u32)>>>;

/// A part's guest: sends the frame at the start of its memory, and notes what comes.
struct Part {
    left: Arc<AtomicU64>,
    came: Came,
}

impl Traffic for Part {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while self.left.load(Ordering::Relaxed) > 0 && budget.allows(batch) {
            send(batch, 0, 60);
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
        Progress { more: self.left.load(Ordering::Relaxed) > 0, armed: true }
    }

    fn deliver(&mut self, frames: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        let mut came = self.came.lock().unwrap();
        for (_, _, packet) in frames.iter() {
            let mut frame = [0; 60];
            frames.batch.copy(packet, &mut frame);
            came.push((
                u16::from_be_bytes([frame[34], frame[35]]),
                u32::from_be_bytes(*frame[42..].first_chunk().unwrap()),
            ));
        }
        Delivery::default()
    }
}

struct World {
    plane: Plane,
    uplink: Arc<Port>,
    wire: Arc<Mutex<Wire>>,
    split: Arc<Group>,
    left: [Arc<AtomicU64>; 2],
    came: [Came; 2],
    now: Time,
}

impl World {
    fn new() -> Self {
        let plane = Plane::new(Limits::default());
        let (end, wire) = link();
        let uplink = Port::new(UPLINK, End::link(Box::new(end)), Box::new(Silent), BUFFER).unwrap();
        let uplink = Arc::new(uplink);
        plane.join(Arc::clone(&uplink)).unwrap();
        let (left, came): ([Arc<AtomicU64>; 2], [Came; 2]) = Default::default();
        let part = |id: PortId, place: usize| {
            let part = Part { left: Arc::clone(&left[place]), came: Arc::clone(&came[place]) };
            let port = Port::new(id, End::guest(Box::new(Ringed(part))), Box::new(Silent), BUFFER).unwrap();
            let port = if place == 0 { port } else { port.part_of(FIRST) };
            port.attach();
            let memory = Map::private(4096).unwrap();
            memory.write(0, &[&STATION[..], &GUEST, &[0x88, 0xb5]].concat()).unwrap();
            port.set_memory(Arc::new(memory), Time(1));
            Arc::new(port)
        };
        let (first, other) = (part(FIRST, 0), part(OTHER, 1));
        plane.join(Arc::clone(&other)).unwrap();
        let split = Arc::new(Group::parts(first, [other]));
        plane.join_parts(&split, &Policy::default()).unwrap();
        split.look(Time(1));
        Self { plane, uplink, wire, split, left, came, now: Time(1) }
    }

    fn part(&self, place: usize) -> Arc<Port> {
        Arc::clone(self.split.ports().nth(place).unwrap())
    }

    fn turns(&mut self, port: &Port, count: usize) {
        let mut turn = Turn::new();
        for _ in 0..count {
            self.now = self.now.after_ns(1000);
            while self.plane.turn(port, &mut turn, self.now).unfinished {}
        }
    }

    /// A part sends frames to the station.
    fn send(&mut self, place: usize, frames: u64) {
        self.left[place].fetch_add(frames, Ordering::Relaxed);
        let part = self.part(place);
        part.with_rings(self.now, |rings, cx| rings.kick(0, cx));
        self.turns(&part, 4 + frames as usize / 32);
    }

    fn receive(&mut self, frames: impl Iterator<Item = Vec<u8>>) {
        self.wire.lock().unwrap().outgoing.extend(frames);
        let uplink = Arc::clone(&self.uplink);
        while !self.wire.lock().unwrap().outgoing.is_empty() {
            uplink.ready();
            self.turns(&uplink, 1);
        }
    }
}

#[test]
fn a_flow_has_one_part_and_stays_in_order_and_many_flows_have_both() {
    let mut world = World::new();
    // The guest speaks by its other part, and is known at the port.
    world.send(1, 1);
    let learned: Vec<_> = world.plane.switch().addresses().iter(world.now).collect();
    assert_eq!(learned.iter().map(|it| (it.address, it.port)).collect::<Vec<_>>(), [(Mac(GUEST), FIRST)]);
    world.receive((0..1000).map(|number| datagram(1000 + (number % 16) as u16, number)));
    let mut flows: BTreeMap<u16, Vec<(usize, u32)>> = BTreeMap::new();
    for (place, came) in world.came.iter().enumerate() {
        for (from, number) in came.lock().unwrap().iter() {
            flows.entry(*from).or_default().push((place, *number));
        }
    }
    for (from, came) in &flows {
        assert!(came.iter().all(|(place, _)| *place == came[0].0), "{from}: {came:?}");
        assert!(came.is_sorted_by_key(|(_, number)| *number), "{from}: {came:?}");
    }
    assert_eq!(flows.values().map(Vec::len).sum::<usize>(), 1000);
    let shares = world.came.each_ref().map(|came| came.lock().unwrap().len());
    assert!(shares.iter().all(|share| *share > 300), "{shares:?}");
}

#[test]
fn a_full_uplink_holds_the_part_that_filled_it_and_lets_it_go() {
    let mut world = World::new();
    world.wire.lock().unwrap().room = 0;
    world.send(0, 20_000);
    let waits = world.left[0].load(Ordering::Relaxed);
    assert!(world.part(0).state().held && waits > 0, "{waits} wait in the guest");
    assert!(!world.part(1).state().held);
    // The other part has a lane of its own, is held in its turn, and loses nothing either.
    world.send(1, 20_000);
    assert!(world.part(1).state().held);
    world.wire.lock().unwrap().room = 1 << 20;
    for _ in 0..4000 {
        world.uplink.ready();
        let [uplink, first, other] = [Arc::clone(&world.uplink), world.part(0), world.part(1)];
        [uplink, first, other].iter().for_each(|port| world.turns(port, 1));
    }
    assert_eq!(world.wire.lock().unwrap().incoming.len(), 40_000, "no frame is lost");
    assert!((0..2).all(|place| !world.part(place).state().held));
}

#[test]
fn a_port_that_leaves_takes_its_parts_along() {
    let mut world = World::new();
    world.send(1, 1);
    // The other one's worker may be the first.
    for ids in [[OTHER], [FIRST]] {
        world.plane.leave_all(&ids);
        world.receive((0..64).map(|number| datagram(number as u16, number)));
    }
    let frames = world.came.iter().map(|came| came.lock().unwrap().len()).sum::<usize>();
    assert!(frames > 0 && frames < 64, "between the two, flows of the other part are dropped: {frames}");
    let part = world.part(1);
    part.reset(Reset::Bus, world.now);
    assert!(world.plane.port(FIRST).is_none() && world.plane.port(OTHER).is_none());
}
