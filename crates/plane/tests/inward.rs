//! Inward I/O control by the test's own clock: who shares a link with senders that do not listen loses nothing by them.

mod guests;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use guests::{Guest, Received};
use nicety_adapter::{PortId, Rate, Reason, Time};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_ipfix::Record;
use nicety_plane::doubles::{Silent, Wire, link};
use nicety_plane::{Covered, End, FlowExport, FlowSink, InwardControl, Plane, Port, Turn, drop_reason};
use nicety_switch::Limits;

const MS: u64 = 1_000_000;
const LEN: usize = 1250;
/// Frames in a millisecond of 10 Mbit/s.
const TEN_MBIT: usize = 1;
const ALL: u8 = 0xff;
/// Flows: the last byte of their source address.
const FLOOD: u8 = 1;
const OTHER: u8 = 2;

/// Port 0 is the uplink, guest n is port n.
struct World {
    plane: Plane,
    wire: Arc<Mutex<Wire>>,
    ports: Vec<Arc<Port>>,
    received: Vec<Received>,
    turn: Turn,
    now: Time,
}

impl World {
    fn new(guests: u16, control: &InwardControl) -> Self {
        let plane = Plane::new(Limits::default());
        let (link, wire) = link();
        let uplink = Port::new(PortId(0), End::link(Box::new(link)), Box::new(Silent), 256 << 10).unwrap();
        let ports = vec![Arc::new(uplink)];
        plane.join(Arc::clone(&ports[0])).unwrap();
        let mut world = Self { plane, wire, ports, received: Vec::new(), turn: Turn::new(), now: Time(1) };
        (1..=guests).for_each(|id| world.join(id));
        world.run(1);
        world.ports[0].set_inward(Some(control), world.now).unwrap();
        world
    }

    /// A guest joins as the port with this number, the next one or one that is free again.
    fn join(&mut self, id: u16) {
        let received = Received::default();
        let port = guests::port(id, Guest::new(&received));
        self.plane.join(Arc::clone(&port)).unwrap();
        port.with_rings(self.now, |rings, cx| rings.kick(0, cx)).unwrap();
        let at = usize::from(id);
        self.ports.truncate(at);
        self.ports.push(port);
        self.received.truncate(at - 1);
        self.received.push(received);
    }

    /// Frames of a flow come in for a guest, or for all.
    fn send(&self, target: u8, flow: u8, frames: usize) {
        // IPv4 UDP from 10.0.0.FLOW. The flood's sender knows ECN, and pays no heed to it.
        let mut frame = vec![0; LEN];
        frame[..6].copy_from_slice(&if target == ALL { [ALL; 6] } else { [2, 0, 0, 0, 0, target] });
        frame[6..14].copy_from_slice(&[2, 0, 0, 0, 1, flow, 8, 0]);
        frame[14..24].copy_from_slice(&[0x45, u8::from(flow == FLOOD), 4, 0xd4, 0, 0, 0, 0, 64, 17]);
        frame[26..34].copy_from_slice(&[10, 0, 0, flow, 10, 0, 1, target]);
        self.wire.lock().unwrap().outgoing.extend(std::iter::repeat_n(frame, frames));
    }

    fn run(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now.after_ns(MS);
            self.ports[0].ready();
            let mut is_busy = true;
            while std::mem::take(&mut is_busy) {
                for port in self.ports.iter().filter(|port| port.busy(self.now)) {
                    while self.plane.turn(port, &mut self.turn, self.now).unfinished {}
                    is_busy = true;
                }
            }
        }
    }

    fn received(&self, guest: usize, flow: u8) -> u64 {
        self.received[guest - 1][usize::from(flow)].load(Ordering::Relaxed)
    }

    fn dropped(&self, reason: Reason) -> u64 {
        self.ports[0].state().counters.transmit_drops[reason as usize]
    }

    fn dropped_all(&self) -> u64 {
        self.ports[0].state().counters.transmit_drops.iter().sum()
    }
}

/// One class, and one more for a port with a reservation.
fn control(mbit: u64, buffer_bytes: u32, reserved: Option<(u16, u64)>) -> InwardControl {
    let mut classes = vec![Class { name: "vm".to_owned(), ..Class::default() }];
    classes.extend(reserved.map(|(port, mbit)| {
        let reservation = Rate::new(mbit * 1_000_000);
        let class = Terms { shares: 1, reservation, ..Terms::default() };
        Class {
            name: "storage".to_owned(),
            terms: ClassTerms { class, ..ClassTerms::default() },
            matches: vec![Match { ports: Some(vec![port]), ..Match::default() }],
            ..Class::default()
        }
    }));
    InwardControl { rate: Rate::new(mbit * 1_000_000).unwrap(), buffer_bytes, classes }
}

/// Its sender is not the cause: of a ping, of ARP and of DNS no other frame waits.
#[test]
fn a_frame_a_second_beside_a_standing_queue_for_the_same_guest_is_never_dropped() {
    let mut world = World::new(1, &control(100, 1 << 20, None));
    // 30 ms wait from now on: as much comes in as is passed on.
    world.send(1, FLOOD, 30 * 10 * TEN_MBIT);
    for second in 1..=5 {
        for ten_ms in 0..100 {
            world.send(1, OTHER, usize::from(ten_ms == 50));
            world.send(1, FLOOD, 100 * TEN_MBIT);
            world.run(10);
        }
        assert_eq!(world.received(1, OTHER), second, "{:?}", world.ports[0].state().inward_classes);
    }
    let class = world.ports[0].state().inward_classes.remove(0);
    assert!(class.marked > 50 && class.dropped == 0, "the flood's sender is told: {class:?}");
}

#[test]
fn a_drop_that_tells_a_sender_is_counted_as_congestion_and_one_for_lack_of_room_as_buffer_full() {
    let mut world = World::new(1, &control(100, 1 << 20, None));
    world.send(1, OTHER, 300 * TEN_MBIT);
    for _ in 0..100 {
        world.send(1, OTHER, 100 * TEN_MBIT);
        world.run(10);
    }
    let told = world.ports[0].state().inward_classes[0].dropped;
    assert!((5..100).contains(&told), "{told}");
    assert_eq!((world.dropped(Reason::Congestion), world.dropped_all()), (told, told));
    world.send(1, FLOOD, 2000);
    world.run(1);
    let full = world.dropped(Reason::BufferFull);
    assert!(full > 500, "{full}");
    assert_eq!(world.dropped(Reason::Congestion) + full, world.ports[0].state().inward_classes[0].dropped);
}

/// Packets of reported flows, by the reason of their drop.
#[derive(Debug, Default)]
struct Flows(Mutex<BTreeMap<Option<Reason>, u64>>);

impl FlowSink for Flows {
    fn take(&self, records: &mut Vec<Record>) {
        let mut flows = self.0.lock().unwrap();
        for record in records.drain(..) {
            *flows.entry(drop_reason(&record)).or_default() += record.packets;
        }
    }

    fn displaced(&self) {}
}

#[test]
fn flows_tell_what_finds_no_room_on_its_way_in() {
    let (mut world, flows) = (World::new(1, &control(100, 1 << 20, None)), Arc::new(Flows::default()));
    let covered = |identity| Covered { identity, directions: Covered::BOTH };
    let export = FlowExport {
        id: 1,
        ports: vec![covered(1), covered(2)],
        sampling: 1,
        active_ns: u64::MAX,
        idle_ns: u64::MAX,
        port_bytes: 1 << 16,
        sink: Arc::clone(&flows) as _,
    };
    world.plane.set_flows(1, vec![export]);
    world.send(1, OTHER, 2000);
    world.run(1);
    world.plane.end_flows(&mut world.turn);
    let full = world.dropped(Reason::BufferFull);
    assert!(full > 500 && full == world.dropped_all(), "{full} of {}", world.dropped_all());
    let expected = BTreeMap::from([(None, 2000 - full), (Some(Reason::BufferFull), full)]);
    assert_eq!(*flows.0.lock().unwrap(), expected);
}

#[test]
fn greedy_receivers_leave_room_for_a_reserved_class_and_for_each_other() {
    const GREEDY: u8 = 6;
    const RESERVED: u8 = 7;
    const QUIET: u8 = 8;
    let mut world = World::new(8, &control(200, 512 << 10, Some((RESERVED.into(), 100))));
    for _ in 0..1000 {
        // 100 Mbit/s for each of the greedy ones, 90 for the reserved class, 10 for a receiver that has a share of 18.
        for greedy in 1..=GREEDY {
            world.send(greedy, FLOOD, 10 * TEN_MBIT);
        }
        world.send(RESERVED, OTHER, 9 * TEN_MBIT);
        world.send(QUIET, OTHER, TEN_MBIT);
        world.run(1);
    }
    let state = world.ports[0].state();
    let [vm, storage] = &state.inward_classes[..] else { panic!("{:?}", state.inward_classes) };
    assert_eq!(storage.dropped, 0, "{storage:?}");
    assert!(world.received(RESERVED.into(), OTHER) >= 8_900, "{storage:?}");
    assert!(world.received(QUIET.into(), OTHER) >= 950, "{}", world.received(QUIET.into(), OTHER));
    assert!(vm.dropped > 0);
    let greedy: Vec<u64> = (1..=GREEDY).map(|greedy| world.received(greedy.into(), FLOOD)).collect();
    assert!(greedy.iter().max().unwrap() - greedy.iter().min().unwrap() <= 50, "{greedy:?}");
    // The whole pool is free again once all is passed on.
    world.run(500);
    assert_eq!(world.ports[0].state().backlog_frames, 0);
    for guest in [1, RESERVED] {
        let dropped = world.dropped_all();
        world.send(guest, FLOOD, 380);
        world.run(200);
        assert_eq!(world.dropped_all(), dropped, "guest {guest} has its whole receive buffer");
    }
}

#[test]
fn a_broadcast_takes_the_links_rate_once_however_many_ports_get_it() {
    const GUESTS: u16 = 32;
    let mut world = World::new(GUESTS, &control(100, 1 << 20, None));
    let start = world.ports[0].state().inward_classes[0].bytes;
    // Broadcasts at 20 Mbit/s and frames for one guest at 60. First a burst, so that all wait for a while.
    world.send(1, FLOOD, 200);
    for _ in 0..500 {
        world.send(ALL, OTHER, 2 * TEN_MBIT);
        world.send(1, FLOOD, 6 * TEN_MBIT);
        world.run(1);
    }
    world.run(20);
    assert_eq!(world.dropped_all(), 0, "{:?}", world.ports[0].state().inward_classes);
    assert_eq!(world.received(1, FLOOD), 200 + 3000);
    for guest in 1..=usize::from(GUESTS) {
        assert_eq!(world.received(guest, OTHER), 1000, "guest {guest}");
    }
    let bytes = world.ports[0].state().inward_classes[0].bytes - start;
    assert_eq!(bytes, (200 + 3000 + 1000) * LEN as u64, "each frame came once");
}

#[test]
fn a_change_of_rate_and_classes_loses_nothing_that_waits() {
    let mut world = World::new(2, &control(100, 1 << 20, None));
    world.send(1, FLOOD, 400);
    world.send(2, OTHER, 100);
    world.run(5);
    let before = world.ports[0].state();
    assert!(before.backlog_frames > 300 && before.inward_classes[0].packets > 0);
    // The second guest gets a class of its own, as if it had joined a group that a class names.
    world.ports[0].set_inward(Some(&control(100, 1 << 20, Some((2, 50)))), world.now).unwrap();
    let after = world.ports[0].state();
    assert_eq!(after.inward_classes[0], before.inward_classes[0]);
    world.send(2, OTHER, 100);
    world.run(1);
    assert!(world.ports[0].state().inward_classes[1].waiting > 0);
    // Another rate, and the class goes: what waits of it is of the first.
    world.ports[0].set_inward(Some(&control(200, 1 << 20, None)), world.now).unwrap();
    let state = world.ports[0].state();
    assert_eq!(state.inward_classes[0].waiting, state.backlog_frames as u64);
    world.run(100);
    assert_eq!((world.received(1, FLOOD), world.received(2, OTHER)), (400, 200));
    assert_eq!((world.dropped_all(), world.ports[0].state().inward_classes[0].waiting), (0, 0));
    // A buffer of another size is another one.
    world.send(1, FLOOD, 400);
    world.run(1);
    let state = world.ports[0].state();
    world.ports[0].set_inward(Some(&control(200, 2 << 20, None)), world.now).unwrap();
    assert_eq!(world.dropped(Reason::Removed), state.backlog_frames as u64);
    let counts = world.ports[0].state().inward_classes.remove(0);
    assert_eq!((counts.packets, counts.waiting), (state.inward_classes[0].packets, 0), "its counts stay");
}

#[test]
fn what_waits_stays_in_its_class_when_a_class_before_it_leaves() {
    let of_port = |name: &str, port| Class {
        name: name.to_owned(),
        matches: vec![Match { ports: Some(vec![port]), ..Match::default() }],
        ..Class::default()
    };
    let mut three = control(100, 1 << 20, None);
    three.classes.extend([of_port("nfs", 1), of_port("storage", 2)]);
    let mut world = World::new(2, &three);
    world.send(1, OTHER, 80);
    world.send(2, OTHER, 120);
    world.run(2);
    let before = world.ports[0].state().inward_classes;
    assert!(before[1].waiting > 10 && before[2].waiting > before[1].waiting, "{before:?}");
    three.classes.remove(1);
    world.ports[0].set_inward(Some(&three), world.now).unwrap();
    let after = world.ports[0].state().inward_classes;
    assert_eq!((after[0].waiting, &after[1]), (before[1].waiting, &before[2]));
    world.run(100);
    let after = world.ports[0].state().inward_classes;
    assert_eq!((world.received(1, OTHER), world.received(2, OTHER), after[1].packets), (80, 120, 120));
}

/// It may be another's, in another VLAN.
#[test]
fn the_next_port_with_a_number_gets_nothing_that_waited_for_the_last() {
    let mut world = World::new(2, &control(100, 1 << 20, None));
    world.send(1, OTHER, 100);
    world.send(2, FLOOD, 400);
    world.run(2);
    let waited = world.ports[0].state().backlog_frames as u64;
    world.plane.leave(PortId(2)).unwrap();
    let lost = world.dropped(Reason::Removed);
    assert!(lost > 300, "{lost} of {waited} waited for it");
    world.join(2);
    world.run(1);
    world.send(2, OTHER, 10);
    world.run(100);
    assert_eq!((world.received(2, FLOOD), world.received(2, OTHER)), (0, 10));
    assert_eq!((world.received(1, OTHER), world.dropped_all()), (100, lost));
    assert_eq!(world.ports[0].state().inward_classes[0].waiting, 0);
}
