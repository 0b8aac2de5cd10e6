//! A port that stands by for another one with its address, as Linux's net_failover has it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use nicety_adapter::{Batch, Budget, Context, PortId, Progress, Time};
use nicety_frame::Mac;
use nicety_memory::Map;
use nicety_plane::doubles::{Ringed, Silent, Traffic, frame, send_all};
use nicety_plane::{End, Group, Plane, Port, Turn};
use nicety_switch::{Limits, Policy, Step};

/// A guest's side of a port: frames to send, and whether its driver is there.
#[derive(Clone, Default)]
struct Side {
    frames: Arc<Mutex<VecDeque<Vec<u8>>>>,
    is_driven: Arc<AtomicBool>,
}

impl Traffic for Side {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        send_all(&mut self.frames.lock().unwrap(), budget, batch, cx)
    }

    fn is_driven(&self) -> bool {
        self.is_driven.load(Ordering::Relaxed)
    }
}

const PRIMARY: PortId = PortId(1);
const STANDBY: PortId = PortId(2);
/// The station with both, and one behind it.
const STATION: u8 = 1;
const BEHIND: u8 = 9;

struct World {
    plane: Plane,
    turn: Turn,
    standby: Arc<Port>,
    sends: Side,
    drives: Arc<AtomicBool>,
}

fn port(id: PortId, side: &Side) -> Port {
    let port = Port::new(id, End::guest(Box::new(Ringed(side.clone()))), Box::new(Silent), 1 << 20).unwrap();
    port.attach();
    port.set_memory(Arc::new(Map::private(1 << 20).unwrap()), Time::ZERO);
    port
}

impl World {
    /// The standby stands by for the port of these parts. The driver of the last one comes and goes.
    fn new(parts: u16) -> (Self, Vec<Arc<Port>>) {
        let (plane, sends, side) = (Plane::new(Limits::default()), Side::default(), Side::default());
        let first = Arc::new(port(PRIMARY, &if parts == 1 { side.clone() } else { Side::default() }));
        let others: Vec<_> = (1..parts).map(|part| Arc::new(port(PortId(10 + part), &side).part_of(PRIMARY))).collect();
        others.iter().for_each(|part| plane.join(Arc::clone(part)).unwrap());
        let group = Arc::new(Group::parts(Arc::clone(&first), others.iter().cloned()));
        match parts {
            1 => plane.join(Arc::clone(&first)).unwrap(),
            _ => plane.join_parts(&group, &Policy::default()).unwrap(),
        }
        let standby = Arc::new(port(STANDBY, &sends));
        plane.join(Arc::clone(&standby)).unwrap();
        let parts: Vec<_> = std::iter::once(first).chain(others).collect();
        standby.stand_by(Mac([2, 0, 0, 0, 0, STATION]), &parts);
        (Self { plane, turn: Turn::new(), standby, sends, drives: side.is_driven }, parts)
    }

    fn drive(&self, is_driven: bool) {
        self.drives.store(is_driven, Ordering::Relaxed);
    }

    /// The standby sends a frame of this station. Returns the port where the switch knows that station then.
    fn send(&mut self, station: u8) -> Option<PortId> {
        self.sends.frames.lock().unwrap().push_back(frame(u8::MAX, station, 60));
        self.standby.with_rings(Time::ZERO, |rings, cx| rings.kick(0, cx)).unwrap();
        while self.plane.turn(&self.standby, &mut self.turn, Time::ZERO).unfinished {}
        assert!(self.sends.frames.lock().unwrap().is_empty(), "it was sent");
        self.plane.switch().addresses().find(Mac([2, 0, 0, 0, 0, station]), 0, Time::ZERO)
    }
}

#[test]
fn a_standby_s_frames_lead_to_its_primary_as_long_as_that_is_driven() {
    for parts in [1, 2] {
        let (mut world, _parts) = World::new(parts);
        assert_eq!(world.send(STATION), Some(STANDBY));
        for _ in 0..2 {
            world.drive(true);
            assert_eq!(
                [STATION, BEHIND, STATION].map(|station| world.send(station)),
                [PRIMARY, STANDBY, PRIMARY].map(Some)
            );
            world.drive(false);
            assert_eq!(world.send(STATION), Some(STANDBY), "at once");
        }
    }
}

#[test]
fn a_standby_s_frames_lead_to_it_when_its_primary_is_unplugged_or_stopped_or_closed_or_no_longer_its_own() {
    type End = fn(&World, &[Arc<Port>]);
    let ends: [End; 4] = [
        |_, parts| parts[0].detach(Time::ZERO),
        |_, parts| drop(parts[0].stop(Time::ZERO)),
        |world, _| drop(world.plane.leave(PRIMARY)),
        |world, _| world.standby.stand_by(Mac([0; 6]), []),
    ];
    for end in ends {
        let (mut world, parts) = World::new(1);
        world.drive(true);
        assert_eq!(world.send(STATION), Some(PRIMARY));
        end(&world, &parts);
        assert_eq!(world.send(STATION), Some(STANDBY));
    }
}

#[test]
fn a_primary_that_is_gone_is_not_asked() {
    let (mut world, parts) = World::new(1);
    world.drive(true);
    world.plane.leave(PRIMARY);
    drop(parts);
    assert_eq!(world.send(STATION), Some(STANDBY));
}

#[test]
fn a_trace_says_where_a_standby_s_address_is_learned() {
    let (world, _parts) = World::new(1);
    for (is_driven, at) in [(true, PRIMARY), (false, STANDBY)] {
        world.drive(is_driven);
        let trace = world.plane.trace(STANDBY, &frame(u8::MAX, STATION, 60), Time::ZERO).unwrap();
        let learns = Step::Learns { address: Mac([2, 0, 0, 0, 0, STATION]), at, before: None };
        assert!(trace.steps.contains(&learns), "{:?}", trace.steps);
    }
}
