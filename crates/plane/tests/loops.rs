//! Two uplinks that lead into one network, by a bridge that joins them: frames go round no more than once, and the newer uplink is blocked.
//! Uplinks into different networks relay what they always did. A step is a millisecond.

#[macro_use]
mod workers;

use std::sync::{Arc, Mutex};
use std::thread;

use nicety_adapter::{Edit, News, PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_plane::doubles::{Memo, Wire, link};
use nicety_plane::{End, Group, Hash, Loop, Plane, Port, Standby, Steering, Turn};
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
    a_loop_carries_nothing_100_ms_after_its_first_frame_while_all_go_on_sending,
    an_uplink_that_leaves_and_comes_again_is_blocked_again_within_100_ms,
    of_three_uplinks_into_one_network_one_goes_on,
    an_uplink_that_is_added_beside_a_blocked_one_is_blocked_too,
    when_the_uplink_that_went_on_has_left_for_good_one_of_two_others_goes_on_and_their_loop_is_found,
    uplinks_with_different_vlans_are_parted_for_a_vlan_that_both_have_and_for_no_other,
    a_loop_that_another_process_has_found_is_known_until_it_is_told_otherwise,
    a_loop_through_two_switches_is_cut_once_so_that_neither_is_cut_off,
    of_a_loop_with_a_spared_uplink_the_other_one_is_blocked_also_if_it_is_older,
    of_two_hosts_with_a_tunnel_and_an_uplink_into_one_network_one_loses_its_uplink_and_all_reach_each_other,
);

const MS: u64 = 1_000_000;
const GUEST: usize = 0;
const OLD: usize = 1;
const NEW: usize = 2;
const OTHER_GUEST: usize = 3;
const TEAM: PortId = PortId(9);

/// A guest, two uplinks, and another guest: ports 1 to 4, which are links too. The networks behind the uplinks may be one.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    memo: Memo,
    turns: Vec<Turn>,
    now: Time,
    is_joined: bool,
    /// The other guest is an uplink, too, into that network.
    third: bool,
    /// The other guest is the same machine as the first one, and bridges the two ports.
    bridges: bool,
    /// Frames received behind each uplink, and by each guest.
    got: [Vec<Vec<u8>>; 4],
}

fn make(id: u16, memo: &Memo) -> (Port, Arc<Mutex<Wire>>) {
    let (link, wire) = link();
    (Port::new(PortId(id), End::link(Box::new(link)), Box::new(memo.clone()), 1 << 20).unwrap(), wire)
}

impl World {
    /// `of_team`: the old uplink is a team of one.
    fn with(workers: usize, of_team: bool) -> Self {
        Self::with_seed(workers, of_team, 0)
    }

    fn with_seed(workers: usize, of_team: bool, seed: u64) -> Self {
        let (plane, memo) = (Plane::new(Limits { seed, ..Limits::default() }), Memo::default());
        let (mut ports, mut wires) = (Vec::new(), Vec::new());
        for id in 1..5 {
            let (mut port, wire) = make(id, &memo);
            if of_team && id == 2 {
                let standby = Standby::new(0, std::time::Duration::ZERO);
                let steering = Arc::new(Steering::new(Box::new(standby), Hash::Layer2));
                port = port.in_team(TEAM, &steering, 0);
                let port = Arc::new(port);
                let team = Group::team(TEAM, steering, vec![Some(Arc::clone(&port))]);
                plane.join_team(Arc::new(team), &Policy::default()).unwrap();
                plane.join(Arc::clone(&port)).unwrap();
                plane.guard_uplink(TEAM, "lan");
                ports.push(port);
            } else {
                let port = Arc::new(port);
                plane.join(Arc::clone(&port)).unwrap();
                ports.push(port);
            }
            wires.push(wire);
        }
        if !of_team {
            plane.guard_uplink(PortId(2), "old");
        }
        plane.guard_uplink(PortId(3), "new");
        let turns = (0..workers).map(|_| Turn::new()).collect();
        let (now, got) = (Time(MS), Default::default());
        Self { plane, ports, wires, memo, turns, now, is_joined: false, third: false, bridges: false, got }
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
        let sent: Vec<Vec<Vec<u8>>> = self.wires.iter().map(on_wire).collect();
        for (at, frames) in sent.into_iter().enumerate() {
            for frame in frames {
                let to: &[usize] = match at {
                    OLD if self.is_joined && self.third => &[NEW, OTHER_GUEST],
                    NEW if self.is_joined && self.third => &[OLD, OTHER_GUEST],
                    OTHER_GUEST if self.is_joined && self.third => &[OLD, NEW],
                    OLD if self.is_joined => &[NEW],
                    NEW if self.is_joined => &[OLD],
                    GUEST if self.bridges => &[OTHER_GUEST],
                    OTHER_GUEST if self.bridges => &[GUEST],
                    _ => &[],
                };
                to.iter().for_each(|to| self.wires[*to].lock().unwrap().outgoing.push_back(frame.clone()));
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

/// The frames that left by a wire, with their tags.
fn on_wire(wire: &Arc<Mutex<Wire>>) -> Vec<Vec<u8>> {
    let mut wire = wire.lock().unwrap();
    let (frames, edits) = (std::mem::take(&mut wire.incoming), std::mem::take(&mut wire.edits));
    let edited = |(frame, edit): (Vec<u8>, Edit)| match edit {
        Edit::Keep => frame,
        Edit::Untag => [&frame[..12], &frame[16..]].concat(),
        Edit::Tag(tag) => [&frame[..12], &tag.tpid.to_be_bytes(), &tag.tci.0.to_be_bytes(), &frame[12..]].concat(),
        Edit::Retag(tag) => [&frame[..12], &tag.tpid.to_be_bytes(), &tag.tci.0.to_be_bytes(), &frame[16..]].concat(),
    };
    frames.into_iter().zip(edits).map(edited).collect()
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
    let told = world.memo.asked().news.clone();
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

/// A guest's, a station's and a flooded frame for one station.
fn some_frames() -> [Vec<u8>; 3] {
    let mut unknown = who_has(3);
    unknown[..6].copy_from_slice(&[2, 0, 0, 0, 0, 77]);
    [who_has(1), who_has(50), unknown]
}

/// All go on sending each millisecond; 100 ms after the first frame nothing leaves by the newer uplink, nothing comes into the switch by it,
/// and each frame is where it should be once.
fn is_over_within_100_ms(world: &mut World) {
    let frames = some_frames();
    let [own, station, unknown] = &frames;
    let send = |world: &mut World| {
        world.send(GUEST, own);
        world.send(GUEST, unknown);
        world.arrives(OLD, station);
        world.step();
    };
    (0..100).for_each(|_| send(world));
    let of = |world: &World, at: usize| frames.clone().map(|frame| world.times(at, &frame));
    let before = [OLD, NEW, OTHER_GUEST].map(|at| of(world, at));
    println!("within 100 ms: {before:?} by the old uplink, by the new one, at the other guest");
    // A storm doubles with each millisecond.
    assert!(before.iter().flatten().all(|count| *count <= 150), "{before:?}");
    (0..100).for_each(|_| send(world));
    let after = [OLD, NEW, OTHER_GUEST].map(|at| of(world, at));
    let grown = |at: usize| std::array::from_fn::<_, 3, _>(|which| after[at][which] - before[at][which]);
    assert_eq!([grown(0), grown(1), grown(2)], [[100, 0, 100], [0, 0, 0], [100, 100, 100]]);
}

fn a_loop_carries_nothing_100_ms_after_its_first_frame_while_all_go_on_sending(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    is_over_within_100_ms(&mut world);
    assert_eq!(world.blocked(), ["new"]);
}

fn an_uplink_that_leaves_and_comes_again_is_blocked_again_within_100_ms(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    world.send(GUEST, &who_has(1));
    world.run(50);
    assert_eq!(world.blocked(), ["new"]);
    world.plane.leave(PortId(3));
    assert_eq!(world.blocked(), [""; 0]);
    let (port, wire) = make(3, &world.memo);
    (world.ports[NEW], world.wires[NEW]) = (Arc::new(port), wire);
    world.plane.join_with(Arc::clone(&world.ports[NEW]), &Policy::default()).unwrap();
    world.plane.guard_uplink(PortId(3), "new");
    world.run(10);
    is_over_within_100_ms(&mut world);
    assert_eq!(world.blocked(), ["new"]);
}

/// The loops, each with both names.
fn pairs(world: &World) -> Vec<(String, String)> {
    let mut pairs: Vec<_> = world.plane.loops().into_iter().map(|found| (found.name, found.other)).collect();
    pairs.sort();
    pairs
}

fn of_three_uplinks_into_one_network_one_goes_on(workers: usize) {
    let mut world = World::new(workers);
    world.plane.guard_uplink(PortId(4), "third");
    (world.is_joined, world.third) = (true, true);
    for _ in 0..100 {
        world.send(GUEST, &who_has(1));
        world.step();
    }
    let pairs = pairs(&world);
    assert_eq!(pairs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["new", "third"], "{pairs:?}");
    let before = [OLD, NEW, OTHER_GUEST].map(|at| world.times(at, &who_has(1)));
    assert!(before.iter().all(|count| *count <= 150), "{before:?}");
    world.send(GUEST, &who_has(2));
    world.run(10);
    assert_eq!([OLD, NEW, OTHER_GUEST].map(|at| world.times(at, &who_has(2))), [1, 0, 0]);
}

fn an_uplink_that_is_added_beside_a_blocked_one_is_blocked_too(workers: usize) {
    let mut world = World::new(workers);
    world.is_joined = true;
    world.send(GUEST, &who_has(1));
    world.run(50);
    assert_eq!(world.blocked(), ["new"]);
    world.third = true;
    world.plane.guard_uplink(PortId(4), "third");
    for _ in 0..100 {
        world.send(GUEST, &who_has(2));
        world.step();
    }
    let expected = [("new", "old"), ("third", "old")].map(|(one, other)| (one.to_owned(), other.to_owned()));
    assert_eq!(pairs(&world), expected);
    // The one that goes on leaves: the others stay as they are until somebody says otherwise.
    world.plane.leave(PortId(2));
    world.send(GUEST, &who_has(3));
    world.run(10);
    assert_eq!([NEW, OTHER_GUEST].map(|at| world.times(at, &who_has(3))), [0, 0]);
}

fn when_the_uplink_that_went_on_has_left_for_good_one_of_two_others_goes_on_and_their_loop_is_found(workers: usize) {
    let mut world = World::new(workers);
    world.plane.guard_uplink(PortId(4), "third");
    for (id, name) in [(3, "new"), (4, "third")] {
        world.plane.loop_again(Loop {
            blocked: PortId(id),
            name: name.to_owned(),
            other: "old".to_owned(),
            spared: None,
        });
    }
    (world.is_joined, world.third) = (true, true);
    world.plane.leave(PortId(2));
    for at in [NEW, OTHER_GUEST] {
        world.plane.unloop(world.ports[at].id());
        world.set(at, &Policy::default());
    }
    for _ in 0..100 {
        world.send(GUEST, &who_has(1));
        world.step();
    }
    assert_eq!(pairs(&world), [("third".to_owned(), "new".to_owned())]);
    let before = [NEW, OTHER_GUEST].map(|at| world.times(at, &who_has(1)));
    assert!(before.iter().all(|count| *count <= 150), "{before:?}");
    world.send(GUEST, &who_has(2));
    world.run(10);
    assert_eq!([NEW, OTHER_GUEST].map(|at| world.times(at, &who_has(2))), [1, 0]);
}

fn uplinks_with_different_vlans_are_parted_for_a_vlan_that_both_have_and_for_no_other(workers: usize) {
    let trunk = |vlans: &str| Policy {
        vlan: Vlan::Trunk { allowed: vlans.parse().unwrap(), native: None },
        ..Policy::default()
    };
    for (guests, is_loop) in [(10, false), (30, false), (20, true)] {
        let mut world = World::new(workers);
        world.is_joined = true;
        [(OLD, "10,20"), (NEW, "20,30")].iter().for_each(|(at, vlans)| world.set(*at, &trunk(vlans)));
        [GUEST, OTHER_GUEST].iter().for_each(|at| world.set(*at, &in_vlan(guests)));
        for _ in 0..20 {
            world.send(GUEST, &who_has(1));
            world.run(5);
        }
        assert_eq!(world.times(OTHER_GUEST, &who_has(1)), 20, "VLAN {guests}");
        assert_eq!(world.blocked().len(), usize::from(is_loop), "VLAN {guests}: {:?}", world.memo.asked().news);
    }
}

fn a_loop_that_another_process_has_found_is_known_until_it_is_told_otherwise(workers: usize) {
    let mut world = World::new(workers);
    let known = Loop { blocked: PortId(3), name: "new".to_owned(), other: "old".to_owned(), spared: None };
    world.plane.loop_again(known.clone());
    world.plane.loop_again(Loop { other: "lan".to_owned(), ..known.clone() });
    assert_eq!(world.plane.loops(), [known]);
    world.set(NEW, &Policy { snooping: true, ..Policy::default() });
    world.send(GUEST, &who_has(1));
    world.run(10);
    assert_eq!([OLD, NEW].map(|at| world.times(at, &who_has(1))), [1, 0]);
    world.plane.unloop(PortId(3));
    world.set(NEW, &Policy::default());
    world.send(GUEST, &who_has(2));
    world.run(10);
    assert_eq!((world.times(NEW, &who_has(2)), world.blocked().len()), (1, 0));
}

/// Two switches with two ways between them.
struct Two {
    worlds: [World; 2],
    /// The uplinks of each at the ends of both ways.
    behind: [[usize; 2]; 2],
    /// Frames that have passed each.
    sent: [[usize; 4]; 2],
}

impl Two {
    fn run(&mut self, steps: usize) {
        let Self { worlds, behind, sent } = self;
        for _ in 0..steps {
            worlds.iter_mut().for_each(World::step);
            for (from, to) in [(0, 1), (1, 0)] {
                for (out, into) in behind[from].into_iter().zip(behind[to]) {
                    let frames = worlds[from].got[out][sent[from][out]..].to_vec();
                    sent[from][out] += frames.len();
                    frames.iter().for_each(|frame| worlds[to].send(into, frame));
                }
            }
        }
    }

    /// Guests of both send, one a little later.
    fn loops(&mut self, late_ms: usize) {
        for number in 0..4 {
            self.worlds[0].send(GUEST, &who_has(100 + number));
            self.run(late_ms);
            self.worlds[1].send(GUEST, &who_has(200 + number));
            self.run(10);
        }
    }
}

/// Two switches with a link between them, and both in one bridge. What is the newer uplink of one is the older one of the other.
fn a_loop_through_two_switches_is_cut_once_so_that_neither_is_cut_off(workers: usize) {
    // Whichever name is the lower one.
    for (late_ms, seeds) in [0, 1, 3].into_iter().flat_map(|late_ms| [(late_ms, [1, 2]), (late_ms, [2, 1])]) {
        let worlds = seeds.map(|seed| World::with_seed(workers, false, seed));
        // The bridge is behind the first one's older uplink and the second one's newer one.
        let mut two = Two { worlds, behind: [[OLD, NEW], [NEW, OLD]], sent: [[0; 4]; 2] };
        two.loops(late_ms);
        let worlds = &two.worlds;
        let blocked: usize = worlds.iter().map(|world| world.blocked().len()).sum();
        assert_eq!(blocked, 1, "{late_ms} ms, {seeds:?}: {:?}", worlds.each_ref().map(World::blocked));
        let frame = who_has(1);
        two.worlds[0].send(GUEST, &frame);
        two.run(10);
        assert_eq!([0, 1].map(|which| two.worlds[which].times(OTHER_GUEST, &frame)), [1, 1]);
        assert_eq!(two.worlds[1].times(GUEST, &frame), 1);
    }
}

/// Words for a spared uplink.
const WHAT: &str = "the storage link";

fn of_a_loop_with_a_spared_uplink_the_other_one_is_blocked_also_if_it_is_older(workers: usize) {
    for (spared, expected) in [(2, "new"), (3, "old")] {
        let mut world = World::new(workers);
        world.plane.spare_uplink(PortId(spared), WHAT);
        world.is_joined = true;
        world.send(GUEST, &who_has(1));
        world.run(100);
        assert_eq!(world.blocked(), [expected]);
        let other = if expected == "old" { "new" } else { "old" };
        let words = format!(
            "{expected} and {other} lead into one network, and frames went round: {expected}, for the other one is {WHAT}, is blocked"
        );
        assert_eq!(world.memo.asked().news, [News::Looped(words)]);
        world.send(GUEST, &who_has(2));
        world.run(10);
        let times = [OLD, NEW].map(|at| world.times(at, &who_has(2)));
        assert_eq!(times, if expected == "old" { [0, 1] } else { [1, 0] });
        // Another process hears of it.
        let found = world.plane.loops().remove(0);
        world.plane.unloop(found.blocked);
        world.plane.loop_again(Loop { spared: None, ..found.clone() });
        assert_eq!(world.plane.loops(), [found]);
    }
}

/// Two hosts of a fabric: the network between their tunnels is one way, and a bridge that both have an uplink in is another one.
fn of_two_hosts_with_a_tunnel_and_an_uplink_into_one_network_one_loses_its_uplink_and_all_reach_each_other(
    workers: usize,
) {
    // The tunnel is the older one, or the newer one, or either at one of them.
    let tunnels = [[OLD, OLD], [NEW, NEW], [OLD, NEW]];
    for (late_ms, tunnels) in [0, 1, 3].into_iter().flat_map(|late_ms| tunnels.map(|tunnels| (late_ms, tunnels))) {
        let worlds = [1, 2].map(|seed| World::with_seed(workers, false, seed));
        let other = |tunnel: usize| if tunnel == OLD { NEW } else { OLD };
        for (world, tunnel) in worlds.iter().zip(tunnels) {
            world.plane.spare_uplink(world.ports[tunnel].id(), WHAT);
        }
        let behind = tunnels.map(|tunnel| [tunnel, other(tunnel)]);
        let mut two = Two { worlds, behind, sent: [[0; 4]; 2] };
        two.loops(late_ms);
        let names = |tunnel: usize| if other(tunnel) == OLD { "old" } else { "new" };
        let blocked = two.worlds.each_ref().map(World::blocked);
        let one: [Vec<&str>; 2] = [vec![names(tunnels[0])], vec![]];
        let two_of: [Vec<&str>; 2] = [vec![], vec![names(tunnels[1])]];
        assert!(blocked == one || blocked == two_of, "{late_ms} ms, {tunnels:?}: {blocked:?}");
        // A guest reaches all others, and the bridge once.
        let uplinks = [0, 1].map(|which| other(tunnels[which]));
        for from in [0, 1] {
            let frame = who_has(1 + from as u8);
            two.worlds[from].send(GUEST, &frame);
            two.run(10);
            let heard = [0, 1].map(|which| two.worlds[which].times(OTHER_GUEST, &frame));
            assert_eq!((heard, two.worlds[1 - from].times(GUEST, &frame)), ([1, 1], 1), "{late_ms} ms, {tunnels:?}");
            let on_bridge: usize = [0, 1].map(|which| two.worlds[which].times(uplinks[which], &frame)).iter().sum();
            assert_eq!(on_bridge, 1, "{late_ms} ms, {tunnels:?}");
        }
    }
}
