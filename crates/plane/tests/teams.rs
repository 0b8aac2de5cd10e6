//! Teams: frames leave by one member and come in by one, whatever happens to the links. A link is a pair of queues with a switch for its
//! carrier.

#[macro_use]
mod workers;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nicety_adapter::{News, PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_lacp::{Info, Pdu, Settings, State};
use nicety_plane::doubles::{Memo, Wire, link};
use nicety_plane::{Capacity, End, Group, Hash, Lacp, Mode, Plane, Port, Rule, Spread, Standby, Steering, Turn};
use nicety_switch::{Guards, Limits, Policy};

with_one_worker_and_with_two!(
    frames_leave_by_the_active_member_and_come_in_by_it_alone,
    the_next_member_takes_over_at_once_and_the_primary_only_after_the_delay,
    the_primary_takes_over_again_without_losing_or_reordering_what_waits,
    frames_that_wait_at_a_dead_link_never_leave_by_it_and_are_counted,
    a_team_without_a_link_counts_what_it_cannot_send,
    a_member_that_leaves_is_used_no_more_and_nothing_is_lost,
    a_member_that_takes_over_announces_the_stations_on_this_side_and_no_others,
    a_link_that_fails_before_it_has_announced_all_announces_nothing_when_it_is_back,
    stations_that_were_not_announced_yet_are_announced_by_the_process_that_goes_on,
    another_hash_or_primary_is_used_once_nothing_waits_that_frames_could_overtake,
    by_originating_port_each_station_has_its_link_and_of_all_copies_one_is_taken,
    by_source_address_each_address_has_its_link_wherever_it_is,
    a_guests_lacpdus_and_those_that_are_cut_short_change_nothing_and_are_counted,
    a_full_link_gives_a_port_to_another_after_half_a_minute_and_says_so,
);

const SECOND: u64 = 1_000_000_000;
const TEAM: PortId = PortId(10);
/// The type of RARP.
const RARP: [u8; 2] = [0x80, 0x35];

/// Two stations (ports 1 and 2, links too: any frames may come from there), and a team of two or more links (ports 11 …).
struct World {
    plane: Plane,
    team: Arc<Group>,
    ports: Vec<Arc<Port>>,
    wires: Vec<Arc<Mutex<Wire>>>,
    memo: Memo,
    turns: Vec<Turn>,
    now: Time,
}

impl World {
    fn new(workers: usize, rule: Standby, links: usize) -> Self {
        Self::with(workers, Box::new(rule), Hash::Layer2, links)
    }

    fn with(workers: usize, rule: Box<dyn Rule>, hash: Hash, links: usize) -> Self {
        let plane = Plane::new(Limits::default());
        let memo = Memo::default();
        let (mut ports, mut wires) = (Vec::new(), Vec::new());
        let mut port = |id: u16| {
            let (link, wire) = link();
            wires.push(wire);
            Port::new(PortId(id), End::link(Box::new(link)), Box::new(memo.clone()), 1 << 20).unwrap()
        };
        for id in [1, 2] {
            let port = Arc::new(port(id));
            plane.join(Arc::clone(&port)).unwrap();
            ports.push(port);
        }
        let steering = Arc::new(Steering::new(rule, hash));
        let member = |index: usize| Arc::new(port(11 + index as u16).in_team(TEAM, &steering, index));
        let members: Vec<Arc<Port>> = (0..links).map(member).collect();
        let team = Arc::new(Group::team(TEAM, steering, members.iter().cloned().map(Some)));
        plane.join_team(Arc::clone(&team), &Policy::default()).unwrap();
        for member in members {
            plane.join(Arc::clone(&member)).unwrap();
            ports.push(member);
        }
        let turns = (0..workers).map(|_| Turn::new()).collect();
        let mut world = Self { plane, team, ports, wires, memo, turns, now: Time::ZERO };
        world.run();
        // The active member takes frames once no other's are on their way.
        world.now = Time(SECOND / 100);
        world.run();
        world
    }

    /// Another station, at the last wire.
    fn add_station(&mut self, id: u16) -> usize {
        let (link, wire) = link();
        let shell = self.memo.clone();
        let port = Port::new(PortId(id), End::link(Box::new(link)), Box::new(shell), 1 << 20).unwrap();
        self.ports.push(Arc::new(port));
        self.plane.join(Arc::clone(self.ports.last().unwrap())).unwrap();
        self.wires.push(wire);
        self.wires.len() - 1
    }

    /// Turns for all ports by all workers at once, until nobody has work.
    fn run(&mut self) {
        self.ports.iter().for_each(|port| port.ready());
        for round in 0.. {
            assert!(round < 10_000, "it ends");
            let Self { plane, ports, turns, now, .. } = self;
            let workers = turns.len();
            let serve = |number: usize, turn: &mut Turn| {
                for (_, port) in ports.iter().enumerate().filter(|(index, _)| (index + round) % workers == number) {
                    while plane.turn(port, turn, *now).unfinished {}
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
            let now = self.now;
            if self.ports.iter().all(|port| !port.busy(now)) {
                return;
            }
        }
    }

    fn run_at(&mut self, seconds: u64) {
        self.now = Time(seconds * SECOND);
        self.memo.asked().wake = None;
        self.run();
    }

    fn wire(&self, at: usize) -> std::sync::MutexGuard<'_, Wire> {
        self.wires[at].lock().unwrap()
    }

    fn send(&mut self, from: usize, frames: impl IntoIterator<Item = Vec<u8>>) {
        self.wire(from).outgoing.extend(frames);
        self.run();
    }

    /// Takes the sequence numbers of the frames that left by a wire.
    fn seen(&self, at: usize) -> Vec<u16> {
        let mut wire = self.wire(at);
        let (announced, frames) = wire.incoming.drain(..).partition(|frame| frame[12..14] == RARP);
        wire.incoming = announced;
        Vec::into_iter(frames).map(|frame: Vec<u8>| u16::from_be_bytes([frame[14], frame[15]])).collect()
    }

    /// Takes the stations that were announced by a wire.
    fn announced(&self, at: usize) -> Vec<u8> {
        let frames = std::mem::take(&mut self.wire(at).incoming);
        let mut stations: Vec<u8> = frames.iter().filter(|f| f[12..14] == RARP).map(|f| f[11]).collect();
        stations.sort_unstable();
        stations
    }

    fn set_carrier(&mut self, link: usize, carrier: bool) {
        self.wire(link).carrier = carrier;
        self.run();
    }

    fn words(&self) -> Vec<String> {
        self.team.states(self.now).into_iter().map(|state| state.words).collect()
    }
}

/// Wires: the first station, the second, and the team's members.
const ONE: usize = 0;
const TWO: usize = 1;
const PRIMARY: usize = 2;
const OTHER: usize = 3;

fn frame(to: u8, from: u8, number: u16) -> Vec<u8> {
    let station = |number: u8| if number == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, number] };
    let mut frame = [&station(to)[..], &station(from), &[0x88, 0xb5]].concat();
    frame.extend(number.to_be_bytes());
    frame.resize(60, 0);
    frame
}

fn frames_leave_by_the_active_member_and_come_in_by_it_alone(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::ZERO), 2);
    assert_eq!(world.words(), ["active", "stands by"]);
    world.send(ONE, (0..100).map(|number| frame(0xff, 1, number)));
    assert_eq!(world.seen(PRIMARY), (0..100).collect::<Vec<_>>());
    assert!(world.seen(OTHER).is_empty());
    assert_eq!(world.seen(TWO).len(), 100);
    // The neighbouring switch floods our broadcast back by the standby link, and a stranger's by both.
    world.send(OTHER, [frame(0xff, 1, 0), frame(0xff, 9, 1)]);
    world.send(PRIMARY, [frame(0xff, 9, 1)]);
    assert_eq!((world.seen(ONE), world.seen(TWO)), (vec![1], vec![1]), "each once");
    let drops = world.ports[OTHER].state().counters.transmit_drops;
    assert_eq!(drops[Reason::UnusedLink as usize], 2);
    // Nothing was learned from the standby link: a frame for station 1 goes there, and nowhere else.
    world.send(TWO, [frame(1, 2, 7), frame(9, 2, 8)]);
    assert_eq!((world.seen(ONE), world.seen(PRIMARY)), (vec![7], vec![8]));
    assert!(world.seen(OTHER).is_empty());
}

fn the_next_member_takes_over_at_once_and_the_primary_only_after_the_delay(workers: usize) {
    let mut world = World::new(workers, Standby::new(1, Duration::from_secs(30)), 3);
    let last = OTHER + 1;
    assert_eq!(world.words(), ["stands by", "active", "stands by"]);
    world.set_carrier(OTHER, false);
    assert_eq!(world.words(), ["active", "no carrier", "stands by"]);
    world.send(ONE, [frame(9, 1, 1)]);
    world.set_carrier(PRIMARY, false);
    world.send(ONE, [frame(9, 1, 2)]);
    assert_eq!((world.seen(PRIMARY), world.seen(last)), (vec![1], vec![2]));
    world.run_at(100);
    world.set_carrier(PRIMARY, true);
    world.set_carrier(OTHER, true);
    assert_eq!(world.words(), ["stands by", "takes over again in 30 s", "active"]);
    assert_eq!(world.memo.asked().wake, Some(Time(130 * SECOND)), "a turn is due then");
    world.run_at(120);
    world.set_carrier(OTHER, false);
    world.set_carrier(OTHER, true);
    world.run_at(149);
    assert_eq!(world.words()[2], "active", "the delay has begun again");
    world.run_at(150);
    assert_eq!(world.words(), ["stands by", "active", "stands by"]);
    world.send(ONE, [frame(9, 1, 3)]);
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER), world.seen(last)), (vec![], vec![3], vec![]));
}

fn the_primary_takes_over_again_without_losing_or_reordering_what_waits(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::ZERO), 2);
    world.set_carrier(PRIMARY, false);
    world.wire(OTHER).room = 10;
    world.send(ONE, (0..40).map(|number| frame(9, 1, number)));
    world.set_carrier(PRIMARY, true);
    world.send(ONE, (40..80).map(|number| frame(9, 1, number)));
    assert_eq!(world.seen(OTHER), (0..10).collect::<Vec<_>>());
    assert!(world.seen(PRIMARY).is_empty(), "older frames still wait at the other link");
    world.wire(OTHER).room = 1000;
    world.run();
    world.send(ONE, (80..90).map(|number| frame(9, 1, number)));
    assert_eq!(world.seen(OTHER), (10..80).collect::<Vec<_>>());
    assert_eq!(world.seen(PRIMARY), (80..90).collect::<Vec<_>>());
    // The other link is stuck: after a tenth of a second it is left all the same, and what waits there is counted.
    world.set_carrier(PRIMARY, false);
    world.wire(OTHER).room = 0;
    world.send(ONE, (0..5).map(|number| frame(9, 1, number)));
    world.set_carrier(PRIMARY, true);
    world.run_at(1);
    world.wire(OTHER).room = 1000;
    world.send(ONE, (5..10).map(|number| frame(9, 1, number)));
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), ((5..10).collect(), vec![]));
    assert_eq!(world.ports[OTHER].state().counters.receive_drops[Reason::LinkDown as usize], 5);
}

fn frames_that_wait_at_a_dead_link_never_leave_by_it_and_are_counted(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::from_secs(5)), 2);
    world.wire(PRIMARY).room = 3;
    world.send(ONE, (0..10).map(|number| frame(9, 1, number)));
    world.set_carrier(PRIMARY, false);
    world.send(ONE, (10..20).map(|number| frame(9, 1, number)));
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), ((0..3).collect(), (10..20).collect()));
    world.wire(PRIMARY).room = 1000;
    world.set_carrier(PRIMARY, true);
    world.run_at(10);
    world.run();
    world.send(ONE, [frame(9, 1, 20)]);
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), (vec![20], vec![]));
    let state = world.ports[PRIMARY].state();
    assert_eq!((state.counters.receive_drops[Reason::LinkDown as usize], state.backlog_frames), (7, 0));
}

fn a_team_without_a_link_counts_what_it_cannot_send(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::ZERO), 2);
    world.set_carrier(PRIMARY, false);
    world.set_carrier(OTHER, false);
    world.send(ONE, (0..10).map(|number| frame(9, 1, number)));
    assert_eq!(world.team.steering().unwrap().lost_frames(), 10);
    world.set_carrier(OTHER, true);
    world.send(ONE, [frame(9, 1, 10)]);
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), (vec![], vec![10]));
}

fn a_member_that_takes_over_announces_the_stations_on_this_side_and_no_others(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::from_secs(1)), 2);
    world.send(ONE, [frame(9, 1, 1)]);
    world.send(TWO, [frame(9, 2, 1), frame(9, 3, 1)]);
    world.send(PRIMARY, [frame(1, 9, 1)]);
    assert!(world.announced(PRIMARY).is_empty() && world.announced(OTHER).is_empty());
    // Of station 1 the host knows the IP addresses, too.
    let ip = ["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()].to_vec();
    let guards = Guards { arp: true, ..Guards::default() };
    let bound = Policy { addresses: vec![Mac([2, 0, 0, 0, 0, 1])], ip, guards, ..Policy::default() };
    world.plane.set_policy(&world.ports[ONE], &bound);
    // The full link takes two of them now, and the others as soon as it has room.
    world.wire(OTHER).room = 2;
    world.set_carrier(PRIMARY, false);
    assert_eq!(world.wire(OTHER).incoming.len(), 2);
    world.wire(OTHER).room = 100;
    world.run_at(1);
    let types = world.wire(OTHER).incoming.iter().filter(|f| f[11] == 1).map(|f| [f[12], f[13]]).collect::<Vec<_>>();
    assert_eq!(types, [RARP, [8, 6], [0x86, 0xdd]]);
    assert_eq!(world.announced(OTHER), [1, 2, 3]);
    world.set_carrier(PRIMARY, true);
    world.run_at(3);
    let frames = world.wire(PRIMARY).incoming.iter().filter(|f| f[12..14] == RARP).cloned().collect::<Vec<_>>();
    assert_eq!(world.announced(PRIMARY), [1, 2, 3]);
    // RFC 903: hardware 1, protocol IPv4, lengths 6 and 4, operation 3 (reverse request).
    assert!(frames.iter().all(|frame| frame.len() == 60 && frame[..6] == [0xff; 6]));
    assert!(frames.iter().all(|frame| frame[14..22] == [0, 1, 8, 0, 6, 4, 0, 3] && frame[22..28] == frame[6..12]));
}

fn a_link_that_fails_before_it_has_announced_all_announces_nothing_when_it_is_back(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::ZERO), 2);
    world.send(ONE, [frame(9, 1, 1)]);
    world.send(TWO, [frame(9, 2, 1)]);
    world.wire(OTHER).room = 1;
    world.set_carrier(PRIMARY, false);
    assert_eq!(world.announced(OTHER).len(), 1);
    world.set_carrier(OTHER, false);
    world.set_carrier(PRIMARY, true);
    assert_eq!(world.announced(PRIMARY), [1, 2]);
    world.wire(OTHER).room = 100;
    world.set_carrier(OTHER, true);
    world.run_at(1);
    assert_eq!((world.words()[1].as_str(), world.announced(OTHER)), ("stands by", vec![]));
}

fn stations_that_were_not_announced_yet_are_announced_by_the_process_that_goes_on(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::from_secs(1)), 2);
    world.send(ONE, [frame(9, 1, 1)]);
    world.send(TWO, [frame(9, 2, 1), frame(9, 3, 1)]);
    world.wire(OTHER).room = 1;
    world.set_carrier(PRIMARY, false);
    let mut announced = world.announced(OTHER);
    assert_eq!(announced.len(), 1);
    let saved = world.ports[OTHER].agents();
    let mut next = World::new(workers, Standby::new(0, Duration::from_secs(1)), 2);
    next.ports[OTHER].go_on_with_agents(&saved);
    next.run();
    announced.extend(next.announced(OTHER));
    announced.sort_unstable();
    assert_eq!(announced, [1, 2, 3], "each once");
    assert_eq!(next.ports[OTHER].agents(), [], "whoever has announced them has nothing left to do");
}

fn a_member_that_leaves_is_used_no_more_and_nothing_is_lost(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::ZERO), 2);
    world.send(ONE, [frame(9, 1, 1)]);
    world.plane.leave(PortId(11)).unwrap();
    world.plane.leave_team(TEAM, 0, world.now);
    world.send(ONE, [frame(9, 1, 2)]);
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), (vec![1], vec![2]));
    assert_eq!((world.announced(OTHER), world.team.steering().unwrap().lost_frames()), (vec![1], 0));
}

fn another_hash_or_primary_is_used_once_nothing_waits_that_frames_could_overtake(workers: usize) {
    let mut world = World::new(workers, Standby::new(0, Duration::from_secs(30)), 2);
    let standby = |order: &[usize]| Mode::Standby { order: order.to_vec(), fail_back: Duration::from_secs(30) };
    world.wire(PRIMARY).room = 0;
    world.send(ONE, (0..5).map(|number| frame(9, 1, number)));
    world.plane.change_team(TEAM, &standby(&[1, 0]), Hash::Layer2, world.now);
    world.send(ONE, (5..10).map(|number| frame(9, 1, number)));
    assert!(world.seen(OTHER).is_empty(), "older frames still wait at the old primary");
    world.wire(PRIMARY).room = 1000;
    world.run();
    world.send(ONE, (10..15).map(|number| frame(9, 1, number)));
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), ((0..10).collect(), (10..15).collect()));
    assert_eq!(world.words(), ["stands by", "active"], "without the delay of a primary that failed");
    world.plane.change_team(TEAM, &standby(&[0, 1]), Hash::Layer34, world.now);
    world.run();
    world.send(ONE, (15..20).map(|number| frame(9, 1, number)));
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), ((15..20).collect(), vec![]));
    let drops = [PRIMARY, OTHER].map(|at| world.ports[at].state().counters.receive_drops.iter().sum::<u64>());
    assert_eq!(drops, [0, 0]);
}

fn by_originating_port_each_station_has_its_link_and_of_all_copies_one_is_taken(workers: usize) {
    let mut world = World::with(workers, Box::new(Spread::new()), Hash::Port, 2);
    // The first link takes what is flooded from now on, whichever came up first.
    world.set_carrier(OTHER, false);
    world.now = world.now.after_ns(SECOND / 100);
    world.run();
    world.set_carrier(OTHER, true);
    assert_eq!(world.words(), ["active", "active"]);
    // Port 1 by the second link, port 2 by the first.
    world.send(ONE, (0..10).map(|number| frame(9, 1, number)));
    world.send(TWO, (10..20).map(|number| frame(9, 2, number)));
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), ((10..20).collect(), (0..10).collect()));
    let _floods = (world.seen(ONE), world.seen(TWO));
    // The neighbour floods a stranger's frames to both links: one to all, one to station 1, which it does not know.
    for link in [OTHER, PRIMARY] {
        world.send(link, [frame(0xff, 9, 1), frame(1, 9, 2), frame(1, 9, 3), frame(2, 9, 4)]);
    }
    assert_eq!((world.seen(ONE), world.seen(TWO)), (vec![2, 3, 1], vec![1, 4]), "each once");
    // What station 1 has sent to all comes back by the other link, and is not learned there.
    world.send(ONE, [frame(0xff, 1, 5)]);
    world.send(PRIMARY, [frame(0xff, 1, 5), frame(0xff, 9, 6)]);
    assert_eq!((world.seen(ONE), world.seen(TWO)), (vec![6], vec![5, 6]));
    let drops = [PRIMARY, OTHER].map(|at| world.ports[at].state().counters.transmit_drops[Reason::UnusedLink as usize]);
    assert_eq!(drops, [3, 2]);
    world.send(TWO, [frame(1, 2, 7)]);
    assert_eq!(world.seen(ONE), [7]);
    let _sent = (world.seen(PRIMARY), world.seen(OTHER));
    // A link fails: its port goes on by the other, where it is announced, and is reached there.
    world.set_carrier(OTHER, false);
    assert_eq!(world.announced(PRIMARY), [1, 2]);
    world.send(ONE, [frame(9, 1, 8)]);
    assert_eq!(world.seen(PRIMARY), [8]);
    world.send(PRIMARY, [frame(1, 9, 9)]);
    assert_eq!(world.seen(ONE), [9]);
    // It is whole again: station 1 is announced there, and copies by the first link are refused again.
    world.set_carrier(OTHER, true);
    assert_eq!((world.announced(PRIMARY), world.announced(OTHER)), (vec![2], vec![1]));
    world.send(OTHER, [frame(1, 9, 10)]);
    world.send(PRIMARY, [frame(1, 9, 11)]);
    assert_eq!(world.seen(ONE), [10]);
}

fn by_source_address_each_address_has_its_link_wherever_it_is(workers: usize) {
    let mut world = World::with(workers, Box::new(Spread::new()), Hash::Source, 2);
    // Addresses 02:00:00:00:00:01 to 04 of one port: sums of 3 to 6.
    world.send(ONE, (1..=4).map(|station| frame(9, station, station.into())));
    assert_eq!((world.seen(PRIMARY), world.seen(OTHER)), (vec![2, 4], vec![1, 3]));
    for link in [PRIMARY, OTHER] {
        world.send(link, (1..=4).map(|station| frame(station, 9, station.into())));
    }
    assert_eq!(world.seen(ONE), [2, 4, 1, 3]);
}

fn a_full_link_gives_a_port_to_another_after_half_a_minute_and_says_so(workers: usize) {
    // A frame of 60 bytes is one percent of a second of each link.
    let capacity = |(place, name): (usize, &str)| Capacity { place, name: name.to_owned(), bits_per_second: 48_000 };
    let rule = Spread::by_load(&[(0, "a"), (1, "b")].map(capacity));
    let mut world = World::with(workers, Box::new(rule), Hash::Moved, 2);
    let three = world.add_station(3);
    let mut by_b = 0;
    for second in 1..40 {
        // Ports 1 and 3 send by the second link: 90 percent of it.
        world.send(ONE, (0..50).map(|number| frame(9, 1, number)));
        world.send(three, (0..40).map(|number| frame(9, 3, number)));
        world.run_at(second);
        let sent = [PRIMARY, OTHER].map(|link| world.seen(link).len());
        assert!([[0, 90], [50, 40]].contains(&sent), "{sent:?}");
        by_b += usize::from(sent[0] == 0);
    }
    assert_eq!(world.words(), ["active, 50 % used", "active, 40 % used"]);
    assert!((31..=33).contains(&by_b), "it moved after {by_b} s");
    let told: Vec<News> = std::mem::take(&mut world.memo.asked().news);
    let words = "moves from uplink b to a: b was above 75 % for 30 s, now 90 %; a 0 %";
    assert_eq!(told, [News::Moved(words.to_owned())]);
    assert_eq!(world.announced(PRIMARY), [1]);
}

fn a_guests_lacpdus_and_those_that_are_cut_short_change_nothing_and_are_counted(workers: usize) {
    let settings = Settings {
        is_active: true,
        is_fast: true,
        min_links: 1,
        system_priority: 32768,
        system: Mac([2, 0x4e, 0, 0, 1, 0]),
        key: 1,
        port_priority: 128,
    };
    let mut world = World::with(workers, Box::new(Lacp::new(&settings, 2)), Hash::Layer34, 2);
    let system = Mac([2, 9, 9, 9, 9, 9]);
    let info = |system, port| Info { system_priority: 1, system, key: 5, port_priority: 1, port, state: State(0x3f) };
    let pdu = Pdu { actor: info(system, 1), partner: Info { key: 1, ..info(settings.system, 1) } };
    let whole = pdu.frame(system).to_vec();
    let before = world.words();
    assert_eq!(before, ["waits for LACPDUs, no partner"; 2]);
    world.send(ONE, [whole.clone()]);
    assert_eq!(world.words(), before, "a guest is no partner");
    let count = |world: &World, at: usize, reason| world.ports[at].state().counters.transmit_drops[reason as usize];
    assert_eq!((count(&world, ONE, Reason::Policy), world.wire(TWO).incoming.len()), (1, 0));
    assert!(world.wire(PRIMARY).incoming.iter().all(|sent| *sent != whole), "no neighbour gets it");
    // 110 bytes behind the type are the least (IEEE 802.1AX-2014, figure 6-7).
    world.send(PRIMARY, (1..=110).map(|cut| whole[..124 - cut].to_vec()));
    assert_eq!(world.words(), before);
    world.send(PRIMARY, [whole]);
    assert!(world.words()[0].contains("partner 02:09:09:09:09:09 port 1 key 5"), "{:?}", world.words());
    // The protocol's own frames are no drops. The others came in on a link without a partner.
    let counts = [Reason::Taken, Reason::Policy, Reason::UnusedLink].map(|reason| count(&world, PRIMARY, reason));
    assert_eq!(counts, [1, 0, 110]);
}
