//! Two uplinks that lead into one network, by a bridge that joins them: frames go round no more than once, and the newer uplink is blocked.
//! Uplinks into different networks relay what they always did. A step is a millisecond.

mod linked;
#[macro_use]
mod workers;

use std::sync::{Arc, Mutex};
use std::thread;

use linked::{Wire, link};
use nicety_adapter::{News, PortId, Reason, Set, Time};
use nicety_frame::Mac;
use nicety_plane::{End, Hash, Plane, Port, Shell, Standby, Steering, Team, Turn};
use nicety_switch::{Limits, Policy, Private, Vlan, VlanId};

with_one_worker_and_with_two!(
    a_guests_broadcast_comes_back_to_nobody_and_the_newer_uplink_is_blocked,
    a_stations_broadcast_comes_to_each_guest_and_does_not_go_round,
    a_flooded_frame_for_one_station_does_not_go_round,
    frames_that_a_station_repeats_are_relayed_between_two_networks_each_time,
    a_guest_that_bridges_two_networks_relays_each_frame_and_a_loop_by_it_ends,
    a_team_and_a_member_that_has_left_it_are_parted,
    uplinks_that_do_not_reach_each_other_are_left_alone,
    a_blocked_uplink_carries_again_when_it_is_told_to,
);

const MS: u64 = 1_000_000;
const GUEST: usize = 0;
const OLD: usize = 1;
const NEW: usize = 2;
const OTHER_GUEST: usize = 3;
const TEAM: PortId = PortId(9);

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<News>>>);

impl Shell for Log {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
    fn news(&self, news: News) {
        self.0.lock().unwrap().push(news);
    }
}

/// A guest, two uplinks, and another guest: ports 1 to 4, which are links too. The networks behind the uplinks may be one.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    log: Log,
    turns: Vec<Turn>,
    now: Time,
    is_joined: bool,
    /// The other guest is the same machine as the first one, and bridges the two ports.
    bridges: bool,
    /// Frames received behind each uplink, and by each guest.
    got: [Vec<Vec<u8>>; 4],
}

fn make(id: u16, log: &Log) -> (Port, Arc<Mutex<Wire>>) {
    let (link, wire) = link();
    (Port::new(PortId(id), End::Uplink(Box::new(link)), Box::new(log.clone()), 1 << 20).unwrap(), wire)
}

impl World {
    /// `of_team`: the old uplink is a team of one.
    fn with(workers: usize, of_team: bool) -> Self {
        let (plane, log) = (Plane::new(Limits::default()), Log::default());
        let (mut ports, mut wires) = (Vec::new(), Vec::new());
        for id in 1..5 {
            let (mut port, wire) = make(id, &log);
            if of_team && id == 2 {
                let standby = Standby::new(0, std::time::Duration::ZERO);
                let steering = Arc::new(Steering::new(Box::new(standby), Hash::Layer2));
                port = port.in_team(TEAM, &steering, 0).unwrap();
                let port = Arc::new(port);
                let team = Team::new(TEAM, steering, vec![Some(Arc::clone(&port))]);
                plane.join_team(Arc::new(team), &Policy::default()).unwrap();
                plane.join(Arc::clone(&port)).unwrap();
                plane.guard_uplink(TEAM, "lan").unwrap();
                ports.push(port);
            } else {
                let port = Arc::new(port);
                plane.join(Arc::clone(&port)).unwrap();
                ports.push(port);
            }
            wires.push(wire);
        }
        if !of_team {
            plane.guard_uplink(PortId(2), "old").unwrap();
        }
        plane.guard_uplink(PortId(3), "new").unwrap();
        let turns = (0..workers).map(|_| Turn::new()).collect();
        let (now, got) = (Time(MS), Default::default());
        Self { plane, ports, wires, log, turns, now, is_joined: false, bridges: false, got }
    }

    fn new(workers: usize) -> Self {
        Self::with(workers, false)
    }

    fn set(&self, at: usize, policy: &Policy) {
        self.plane.set_policy(&self.ports[at], policy);
    }

    /// One millisecond: turns for all ports by all workers, then the frames on the wires.
    fn step(&mut self) {
        let Self { plane, ports, turns, now, .. } = self;
        ports.iter().for_each(|port| port.ready());
        for round in 0..3 {
            let workers = turns.len();
            let (plane, ports, now) = (&*plane, &*ports, *now);
            let serve = |number: usize, turn: &mut Turn| {
                for (_, port) in ports.iter().enumerate().filter(|(index, _)| (index + round) % workers == number) {
                    while plane.turn(port, turn, now).unfinished {}
                }
            };
            thread::scope(|scope| {
                turns.iter_mut().enumerate().for_each(|(index, turn)| _ = scope.spawn(move || serve(index, turn)));
            });
        }
        let sent: Vec<Vec<Vec<u8>>> =
            self.wires.iter().map(|wire| std::mem::take(&mut wire.lock().unwrap().incoming)).collect();
        for (at, frames) in sent.into_iter().enumerate() {
            for frame in frames {
                let to = match at {
                    OLD if self.is_joined => Some(NEW),
                    NEW if self.is_joined => Some(OLD),
                    GUEST if self.bridges => Some(OTHER_GUEST),
                    OTHER_GUEST if self.bridges => Some(GUEST),
                    _ => None,
                };
                to.into_iter().for_each(|to| self.wires[to].lock().unwrap().outgoing.push_back(frame.clone()));
                self.got[at].push(frame);
            }
        }
        self.now = self.now.after_ns(MS);
    }

    fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }

    fn send(&mut self, from: usize, frame: &[u8]) {
        self.wires[from].lock().unwrap().outgoing.push_back(frame.to_vec());
    }

    /// A station's frame comes to each uplink that leads into its network.
    fn arrives(&mut self, by: usize, frame: &[u8]) {
        let both = if self.is_joined { vec![OLD, NEW] } else { vec![by] };
        both.into_iter().for_each(|by| self.send(by, frame));
    }

    /// How often a frame came there.
    fn times(&self, at: usize, frame: &[u8]) -> usize {
        self.got[at].iter().filter(|got| *got == frame).count()
    }

    fn looped(&self) -> u64 {
        self.ports.iter().map(|port| port.state().counters.transmit_drops[Reason::Looped as usize]).sum()
    }

    fn blocked(&self) -> Vec<String> {
        self.plane.loops().into_iter().map(|found| found.name).collect()
    }
}

/// Asks for an address by ARP (RFC 826): a station's repeats are equal to the last byte.
fn who_has(from: u8) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, from];
    let arp = [0, 1, 8, 0, 6, 4, 0, 1];
    [&[0xff; 6][..], &mac, &[8, 6], &arp, &mac, &[10, 0, 0, from], &[0; 6], &[10, 0, 0, 99]].concat()
}

fn in_vlan(id: u16) -> Policy {
    Policy { vlan: Vlan::Access(VlanId::new(id).unwrap()), ..Policy::default() }
}

fn a_guests_broadcast_comes_back_to_nobody_and_the_newer_uplink_is_blocked(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    let frame = who_has(1);
    world.send(GUEST, &frame);
    world.run(100);
    assert_eq!([GUEST, OTHER_GUEST].map(|at| world.times(at, &frame)), [0, 1]);
    assert_eq!([OLD, NEW].map(|at| world.times(at, &frame)), [1, 1], "it left once by each");
    assert!(world.looped() >= 2, "{}", world.looped());
    assert_eq!(world.blocked(), ["new"]);
    let told = world.log.0.lock().unwrap().clone();
    let words = "new and old lead into one network, and frames went round: new, the newer one, is blocked";
    assert_eq!(told, [News::Looped(words.to_owned())]);
    let again = who_has(2);
    world.send(OTHER_GUEST, &again);
    world.run(10);
    assert_eq!([GUEST, OLD, NEW].map(|at| world.times(at, &again)), [1, 1, 0], "it carries nothing");
    let dropped = world.ports[NEW].state().counters.transmit_drops[Reason::Blocked as usize];
    assert!(dropped >= 1, "what the old one sent came in by it");
}

fn a_stations_broadcast_comes_to_each_guest_and_does_not_go_round(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    let frame = who_has(50);
    world.arrives(OLD, &frame);
    world.run(100);
    assert_eq!(world.blocked(), ["new"]);
    let counts = [OLD, NEW].map(|at| world.times(at, &frame));
    assert!(counts.iter().all(|count| *count <= 8), "{counts:?}");
    assert!((1..=16).contains(&world.times(GUEST, &frame)), "{}", world.times(GUEST, &frame));
    let again = who_has(51);
    world.arrives(OLD, &again);
    world.run(10);
    assert_eq!([GUEST, OLD, NEW].map(|at| world.times(at, &again)), [1, 0, 0]);
}

fn a_flooded_frame_for_one_station_does_not_go_round(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    let mut frame = who_has(1);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 77]);
    world.send(GUEST, &frame);
    world.run(100);
    assert_eq!([GUEST, OLD, NEW].map(|at| world.times(at, &frame)), [0, 1, 1]);
    assert_eq!(world.blocked(), ["new"]);
}

fn frames_that_a_station_repeats_are_relayed_between_two_networks_each_time(workers: usize) {
    let mut world = World::new(workers);
    // Equal frames each 10 ms, as VRRP's may come (RFC 5798, 5.2.7), in both directions; one station has an address in both networks.
    let (there, back, both) = (who_has(50), who_has(60), who_has(70));
    for _ in 0..100 {
        world.arrives(OLD, &there);
        world.arrives(NEW, &back);
        world.run(10);
    }
    assert_eq!([NEW, GUEST].map(|at| world.times(at, &there)), [100, 100]);
    assert_eq!([OLD, GUEST].map(|at| world.times(at, &back)), [100, 100]);
    for _ in 0..3 {
        world.arrives(OLD, &both);
        world.arrives(NEW, &both);
        world.run(1000);
    }
    assert_eq!([OLD, NEW, GUEST].map(|at| world.times(at, &both)), [3, 3, 6]);
    // Stations in both networks send the same, at the same time.
    let same = who_has(80);
    for _ in 0..10 {
        world.arrives(OLD, &same);
        world.arrives(NEW, &same);
        world.run(10);
    }
    assert_eq!([OLD, NEW, GUEST].map(|at| world.times(at, &same)), [10, 10, 20]);
    assert_eq!((world.looped(), world.blocked().len()), (0, 0));
    let probes = world.got[NEW].iter().filter(|frame| frame[12..14] == [0x90, 0]).count();
    assert!((1..20).contains(&probes), "a suspicion that finds nothing asks seldom: {probes} probes");
}

fn a_guest_that_bridges_two_networks_relays_each_frame_and_a_loop_by_it_ends(workers: usize) {
    let mut world = World::new(workers);
    world.bridges = true;
    [(GUEST, 10), (OLD, 10), (NEW, 20), (OTHER_GUEST, 20)].iter().for_each(|(at, id)| world.set(*at, &in_vlan(*id)));
    let frame = who_has(50);
    for _ in 0..20 {
        world.arrives(OLD, &frame);
        world.run(20);
    }
    assert_eq!((world.times(NEW, &frame), world.looped(), world.blocked().len()), (20, 0, 0));
    // One more repeat, and the two networks are one.
    world.is_joined = true;
    world.send(OLD, &frame);
    world.run(300);
    assert_eq!(world.blocked(), ["new"]);
}

fn a_team_and_a_member_that_has_left_it_are_parted(workers: usize) {
    let mut world = World::with(workers, true);
    world.run(20);
    world.is_joined = true;
    let frame = who_has(1);
    world.send(GUEST, &frame);
    world.run(100);
    assert_eq!([GUEST, OLD, NEW].map(|at| world.times(at, &frame)), [0, 1, 1]);
    assert_eq!(world.plane.loops().iter().map(|found| (&*found.name, &*found.other)).next(), Some(("new", "lan")));
}

fn uplinks_that_do_not_reach_each_other_are_left_alone(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    let isolated = Policy { private: Private::Isolated, ..Policy::default() };
    [OLD, NEW].iter().for_each(|at| world.set(*at, &isolated));
    let frame = who_has(50);
    world.arrives(OLD, &frame);
    world.run(20);
    assert_eq!([GUEST, OLD, NEW].map(|at| world.times(at, &frame)), [2, 0, 0]);
    // In two networks of the switch, they are one outside it: what goes out of one comes into the other.
    [(GUEST, 10), (OLD, 10), (NEW, 20), (OTHER_GUEST, 20)].iter().for_each(|(at, id)| world.set(*at, &in_vlan(*id)));
    let frame = who_has(1);
    for _ in 0..10 {
        world.send(GUEST, &frame);
        world.run(20);
    }
    assert_eq!(world.times(OTHER_GUEST, &frame), 10);
    assert_eq!((world.looped(), world.blocked().len()), (0, 0));
}

fn a_blocked_uplink_carries_again_when_it_is_told_to(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    world.send(GUEST, &who_has(1));
    world.run(50);
    assert_eq!(world.blocked(), ["new"]);
    // A change of other values is no word about that.
    world.set(NEW, &Policy { snooping: true, ..Policy::default() });
    assert!(world.plane.switch().is_blocked(PortId(3)));
    world.is_joined = false;
    world.plane.unloop(PortId(3));
    world.set(NEW, &Policy::default());
    let frame = who_has(2);
    world.send(GUEST, &frame);
    world.run(10);
    assert_eq!([OLD, NEW].map(|at| world.times(at, &frame)), [1, 1]);
    // The learned addresses are those of this side again.
    world.is_joined = true;
    world.send(GUEST, &who_has(3));
    world.run(50);
    assert_eq!(world.blocked(), ["new"], "the loop is found again");
    let known = world.plane.switch().addresses().find(Mac([2, 0, 0, 0, 0, 1]), 0, world.now);
    assert_eq!(known, Some(PortId(1)), "what came back taught nothing");
}
