//! Two switches joined by several links that fail and heal by a seed. Stations on both sides send numbered frames in flows, and to
//! everybody. No frame comes twice, none comes back, and none overtakes another of its flow. A step is a millisecond; a link carries a few
//! frames each way in it, and without delay: frames on a wire are nobody's to order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nicety_adapter::{Batch, Budget, Context, Delivery, Frames, PortId, Progress, Reason, Time};
use nicety_frame::Mac;
use nicety_lacp::Settings;
use nicety_plane::doubles::{Linked, Silent, Traffic, bytes, send};
use nicety_plane::{Capacity, End, Group, Hash, Lacp, Plane, Port, Rule, Spread, Standby, Steering, Turn};
use nicety_switch::{Limits, Policy};

const MS: u64 = 1_000_000;
const STATIONS: u8 = 2;
/// Flows from each station to each of the other side.
const FLOWS: u16 = 8;

/// One link's frames to each side.
#[derive(Default)]
struct Cable {
    whole: bool,
    /// Frames vanish on it, and nobody sees that.
    is_mute: bool,
    to: [VecDeque<Vec<u8>>; 2],
    room: [usize; 2],
}

/// What a station has to send, and what it has received.
#[derive(Default)]
struct Station {
    to_send: VecDeque<Vec<u8>>,
    received: Vec<Vec<u8>>,
}

enum Wire {
    Cable(Arc<Mutex<Cable>>, usize),
    Station(Arc<Mutex<Station>>),
}

struct Link {
    wire: Wire,
    /// It has refused frames, and wants a turn in the next step.
    again: Option<Time>,
}

impl Traffic for Link {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let _offered_again = self.again.take_if(|at| *at <= cx.now);
        let mut at = 0;
        while budget.allows(batch) {
            let next = match &self.wire {
                Wire::Cable(cable, side) => cable.lock().unwrap().to[*side].pop_front(),
                Wire::Station(station) => station.lock().unwrap().to_send.pop_front(),
            };
            let Some(frame) = next else { return Progress { more: false, armed: true } };
            cx.memory.write(at, &frame).unwrap();
            send(batch, at, frame.len() as u32);
            cx.counters.sent(0, 1, frame.len() as u64);
            at += 2048;
        }
        Progress { more: true, armed: true }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        for (index, _, packet) in frames.iter() {
            let frame = bytes(frames, packet);
            match &self.wire {
                Wire::Station(station) => station.lock().unwrap().received.push(frame),
                Wire::Cable(cable, side) => {
                    let mut cable = cable.lock().unwrap();
                    let other = 1 - *side;
                    if !cable.whole {
                        cx.counters.receive_drop(Reason::LinkDown);
                        continue;
                    }
                    if cable.room[other] == 0 {
                        delivery.refuse(index, 0, 0);
                        self.again = Some(cx.now.after_ns(MS));
                        continue;
                    }
                    cable.room[other] -= 1;
                    if !cable.is_mute {
                        cable.to[other].push_back(frame);
                    }
                }
            }
            cx.counters.received(0, 1, packet.len().into());
        }
        delivery
    }

    fn wake(&self) -> Option<Time> {
        self.again
    }

    fn carrier(&self) -> bool {
        match &self.wire {
            Wire::Cable(cable, _) => cable.lock().unwrap().whole,
            Wire::Station(_) => true,
        }
    }
}

/// One switch, its stations and its ends of the links.
struct Side {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    team: Option<Arc<Group>>,
    /// Members' workers that have other work until then, by their ports' numbers.
    away: BTreeMap<u16, Time>,
    stations: Vec<Arc<Mutex<Station>>>,
}

const TEAM: PortId = PortId(20);

impl Side {
    /// Without a rule the links are ports of their own.
    fn new(side: usize, cables: &[Arc<Mutex<Cable>>], rule: Option<(Box<dyn Rule>, Hash)>) -> Self {
        let mut this = Self {
            plane: Plane::new(Limits::default()),
            ports: Vec::new(),
            team: None,
            away: BTreeMap::new(),
            stations: Vec::new(),
        };
        let port = |id: u16, wire| {
            Port::new(
                PortId(id),
                End::link(Box::new(Linked::new(Link { wire, again: None }))),
                Box::new(Silent),
                1 << 20,
            )
            .unwrap()
        };
        for id in 1..=u16::from(STATIONS) {
            let station = Arc::default();
            this.stations.push(Arc::clone(&station));
            this.ports.push(Arc::new(port(id, Wire::Station(station))));
        }
        let ends = (21..).zip(cables).map(|(id, cable)| port(id, Wire::Cable(Arc::clone(cable), side)));
        match rule {
            None => this.ports.extend(ends.map(Arc::new)),
            Some((rule, hash)) => {
                let steering = Arc::new(Steering::new(rule, hash));
                let ends = ends.enumerate().map(|(at, port)| Arc::new(port.in_team(TEAM, &steering, at)));
                let members: Vec<Arc<Port>> = ends.collect();
                let team = Arc::new(Group::team(TEAM, steering, members.iter().cloned().map(Some)));
                this.plane.join_team(Arc::clone(&team), &Policy::default()).unwrap();
                this.ports.extend(members);
                this.team = Some(team);
            }
        }
        this.ports.iter().for_each(|port| this.plane.join(Arc::clone(port)).unwrap());
        this
    }

    fn is_served(&self, port: PortId, now: Time) -> bool {
        self.away.get(&port.0).is_none_or(|until| *until <= now)
    }

    /// Turns until nobody has work.
    fn run(&self, turn: &mut Turn, now: Time) {
        for round in 0.. {
            let busy: Vec<&Arc<Port>> =
                self.ports.iter().filter(|port| self.is_served(port.id(), now) && port.busy(now)).collect();
            let numbers = || busy.iter().map(|port| port.id().0).collect::<Vec<_>>();
            assert!(round < 1000, "{:?} never rest at {now:?}", numbers());
            if busy.is_empty() {
                return;
            }
            for port in busy {
                while self.plane.turn(port, turn, now).unfinished {}
            }
        }
    }
}

struct World {
    sides: [Side; 2],
    cables: Vec<Arc<Mutex<Cable>>>,
    turn: Turn,
    now: Time,
    /// The last number sent and received, by flow: sender, receiver (or 0xff), flow, and by receiving station.
    sent: BTreeMap<(u8, u8, u16), u32>,
    received: BTreeMap<(u8, u8, u16, u8), u32>,
    /// The longest time without a frame of a flow that sends each millisecond, and the time of each flow's last one.
    gap_ms: u64,
    last_at: BTreeMap<(u8, u8, u16, u8), Time>,
    count_sent: u64,
    count_received: u64,
    seed: u64,
    /// Frames that a link carries each way in a step.
    room: usize,
    step_ns: u64,
    /// The workers of the first side's members come late now and then.
    comes_late: bool,
}

fn mac(station: u8) -> [u8; 6] {
    if station == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, station] }
}

/// A UDP packet with its number behind the header.
fn frame(from: u8, to: u8, flow: u16, number: u32) -> Vec<u8> {
    let ip = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to];
    let udp = [&(1000 + flow).to_be_bytes()[..], &[0, 9, 0, 20, 0, 0]].concat();
    [&mac(to)[..], &mac(from), &[8, 0], &ip, &udp, &number.to_be_bytes(), &[0; 14]].concat()
}

impl World {
    fn new(links: usize, rules: [Option<(Box<dyn Rule>, Hash)>; 2], seed: u64) -> Self {
        let cables: Vec<Arc<Mutex<Cable>>> = (0..links).map(|_| Arc::default()).collect();
        let [one, other] = rules;
        let sides = [Side::new(0, &cables, one), Side::new(1, &cables, other)];
        Self {
            sides,
            cables,
            turn: Turn::new(),
            now: Time(1),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
            gap_ms: 0,
            last_at: BTreeMap::new(),
            count_sent: 0,
            count_received: 0,
            seed,
            room: 12,
            step_ns: MS,
            comes_late: false,
        }
    }

    /// xorshift64*.
    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % below
    }

    fn cable(&self, link: usize) -> MutexGuard<'_, Cable> {
        self.cables[link].lock().unwrap()
    }

    fn set(&mut self, link: usize, whole: bool) {
        let mut cable = self.cable(link);
        cable.whole = whole;
        cable.to.iter_mut().for_each(VecDeque::clear);
    }

    /// The stations of a side are numbered from 1 and from 101.
    fn station(side: usize, index: u8) -> u8 {
        side as u8 * 100 + 1 + index
    }

    fn send(&mut self, side: usize, index: u8, to: u8, flow: u16) {
        let from = Self::station(side, index);
        let number = self.sent.entry((from, to, flow)).or_default();
        *number += 1;
        let frame = frame(from, to, flow, *number);
        self.sides[side].stations[usize::from(index)].lock().unwrap().to_send.push_back(frame);
        self.count_sent += 1;
    }

    /// A step: at most one frame of each flow.
    fn step(&mut self, load: u64) {
        self.now = self.now.after_ns(self.step_ns);
        for link in 0..self.cables.len() {
            self.cable(link).room = [self.room; 2];
        }
        for (side, index) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for other in 0..STATIONS {
                for flow in 0..FLOWS {
                    if self.random(100) < load {
                        self.send(side, index, Self::station(1 - side, other), flow);
                    }
                }
            }
            if self.random(100) < load.min(5) {
                self.send(side, index, 0xff, 0);
            }
        }
        for link in 0..if self.comes_late { self.cables.len() } else { 0 } {
            let port = PortId(TEAM.0 + 1 + link as u16);
            if self.sides[0].is_served(port, self.now) && self.random(100) < 4 {
                let until = self.now.after_ns((1 + self.random(30)) * MS);
                self.sides[0].away.insert(port.0, until);
            }
        }
        self.sides.iter().flat_map(|side| &side.ports).for_each(|port| port.ready());
        for round in 0.. {
            assert!(round < 1000, "frames go round");
            for side in &self.sides {
                side.run(&mut self.turn, self.now);
            }
            let waiting = (0..self.cables.len()).any(|link| {
                let port = PortId(TEAM.0 + 1 + link as u16);
                let is_waiting = |side: usize| !self.cable(link).to[side].is_empty();
                (0..2).any(|side| is_waiting(side) && self.sides[side].is_served(port, self.now))
            });
            if !waiting {
                break;
            }
            self.sides
                .iter()
                .flat_map(|side| &side.ports)
                .filter(|port| port.id().0 > TEAM.0)
                .for_each(|port| port.ready());
        }
        self.check();
    }

    fn check(&mut self) {
        for (side, index) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let at = Self::station(side, index);
            let frames = std::mem::take(&mut self.sides[side].stations[usize::from(index)].lock().unwrap().received);
            for frame in frames {
                let (to, from) = (frame[5], frame[11]);
                if frame[12..14] == [0x80, 0x35] {
                    // An announcement of a station that is reached by another link.
                    assert_ne!(from, at, "an announcement came back");
                    continue;
                }
                if to != at && to != 0xff {
                    // A flood.
                    continue;
                }
                assert_ne!(from, at, "its own frame came back");
                let flow = u16::from_be_bytes([frame[34], frame[35]]) - 1000;
                let number = u32::from_be_bytes([frame[42], frame[43], frame[44], frame[45]]);
                let last = self.received.entry((from, to, flow, at)).or_default();
                assert!(number > *last, "{from} to {to}, flow {flow}: {number} after {last}, at {:?}", self.now);
                *last = number;
                if to != 0xff {
                    let before = self.last_at.insert((from, to, flow, at), self.now).unwrap_or(self.now);
                    self.gap_ms = self.gap_ms.max((self.now.0 - before.0) / MS);
                }
                // Of those to everybody, the one that the other side's first station gets.
                self.count_received += u64::from(to != 0xff || (at % 100 == 1 && (at > 100) != (from > 100)));
            }
        }
    }

    fn steps(&mut self, ms: u64, load: u64) {
        (0..ms).for_each(|_| self.step(load));
    }

    /// Fails and heals links, then heals all; returns the frames that were lost while links failed, and after that.
    fn torment(&mut self, load: u64) -> [u64; 2] {
        let links = self.cables.len() as u64;
        (0..links).for_each(|link| self.set(link as usize, true));
        self.steps(6000, load);
        for _ in 0..12 {
            let (link, ms) = (self.random(links) as usize, self.random(1000));
            let whole = self.cable(link).whole;
            self.set(link, !whole);
            self.steps(ms, load);
        }
        self.steps(200, 0);
        let while_failing = self.missing();
        (0..links).for_each(|link| self.set(link as usize, true));
        self.steps(6000, load);
        self.steps(500, 0);
        [while_failing, self.missing() - while_failing]
    }

    /// Frames that were sent while a link was in use, and never came.
    fn missing(&self) -> u64 {
        let teams = self.sides.iter().filter_map(|side| side.team.as_ref());
        let unsent: u64 = teams.map(|team| team.steering().unwrap().lost_frames()).sum();
        self.count_sent - self.count_received - unsent
    }

    /// Has all flows send each millisecond, lets something happen, and returns the milliseconds until the last flow went on, and the frames
    /// that their receivers missed by then, by their numbers.
    fn outage(&mut self, links: usize, happens: impl FnOnce(&mut Self), ms: u64) -> (u64, u64) {
        (0..links).for_each(|link| self.set(link, true));
        self.steps(5000, 2);
        self.steps(100, 0);
        let before = self.count_sent - self.count_received;
        self.steps(20, 100);
        (self.gap_ms, self.last_at) = (0, BTreeMap::new());
        self.steps(20, 100);
        happens(self);
        self.steps(ms, 100);
        let gap_ms = self.gap_ms;
        self.steps(100, 0);
        let lost = self.count_sent - self.count_received - before;
        (gap_ms, lost)
    }

    fn active(&self) -> [usize; 2] {
        self.sides.each_ref().map(|side| {
            let team = side.team.as_ref().unwrap();
            team.states(self.now).iter().filter(|state| state.collects && state.distributes).count()
        })
    }
}

fn lacp(side: u8, members: usize) -> Box<dyn Rule> {
    let settings = Settings {
        is_active: true,
        is_fast: true,
        min_links: 1,
        system_priority: 32768,
        system: Mac([2, 0x4e, 0, side, 0, 0]),
        key: 1,
        port_priority: 128,
    };
    Box::new(Lacp::new(&settings, members))
}

#[test]
fn with_lacp_at_both_ends_no_frame_is_doubled_or_overtaken_and_a_link_that_heals_costs_none() {
    for (seed, hash) in [(1, Hash::Layer34), (2, Hash::Layer2), (3, Hash::Layer23)] {
        for (links, load) in [(2, 10), (4, 20)] {
            let rules = [0, 1].map(|side| Some((lacp(side, links), hash)));
            let mut world = World::new(links, rules, seed);
            let [failing, after] = world.torment(load);
            println!(
                "seed {seed}, {links} links: {} sent, {failing} lost by failures, {after} after",
                world.count_sent
            );
            assert_eq!(world.active(), [links; 2]);
            assert_eq!(after, 0, "links only healed");
            assert!(failing < world.count_sent / 100, "{failing} of {}", world.count_sent);
        }
    }
}

#[test]
fn with_active_standby_at_a_switch_that_knows_nothing_of_it_no_frame_is_doubled_or_overtaken() {
    for seed in 1..=2 {
        for fail_back in [0, 300] {
            let rule = Standby::new(0, Duration::from_millis(fail_back));
            let rules = [Some((Box::new(rule) as Box<dyn Rule>, Hash::default())), None];
            let mut world = World::new(3, rules, seed);
            let [failing, after] = world.torment(8);
            println!("seed {seed}: {} sent, {failing} lost by failures, {after} after", world.count_sent);
            assert!(failing + after < world.count_sent / 20, "{failing} and {after}");
        }
    }
}

/// What a former member has taken waits as a copy in front of the next one, whose worker comes late.
#[test]
fn with_workers_that_come_late_no_frame_is_doubled_when_another_link_takes_over() {
    type Made = (&'static str, fn() -> Option<(Box<dyn Rule>, Hash)>);
    let made: [Made; 4] = [
        ("active-standby", || Some((Box::new(Standby::new(0, Duration::from_millis(100))), Hash::default()))),
        ("802.3ad without a partner", || Some((lacp(0, 3), Hash::Layer34))),
        ("originating-port", || Some((Box::new(Spread::new()), Hash::Port))),
        ("source-address", || Some((Box::new(Spread::new()), Hash::Source))),
    ];
    for (mode, rule) in made {
        for seed in [1, 3] {
            let mut world = World::new(3, [rule(), None], seed);
            world.comes_late = true;
            (0..3).for_each(|link| world.set(link, true));
            // Without a partner a link is used after 3 seconds.
            world.steps(if mode.starts_with("802") { 3500 } else { 100 }, 8);
            for _ in 0..12 {
                let (link, ms) = (world.random(3) as usize, world.random(200));
                let whole = world.cable(link).whole;
                world.set(link, !whole);
                world.steps(ms, 8);
            }
            println!("{mode}, seed {seed}: {} sent, {} lost", world.count_sent, world.missing());
        }
    }
}

#[test]
fn by_port_or_address_at_a_switch_that_knows_nothing_of_it_no_frame_is_doubled_or_overtaken() {
    for (seed, hash) in [(1, Hash::Port), (2, Hash::Source)] {
        let rules = [Some((Box::new(Spread::new()) as Box<dyn Rule>, hash)), None];
        let mut world = World::new(3, rules, seed);
        let [failing, after] = world.torment(8);
        println!("seed {seed}: {} sent, {failing} lost by failures, {after} after", world.count_sent);
        assert!(failing + after < world.count_sent / 20, "{failing} and {after}");
    }
}

#[test]
fn by_load_at_a_switch_that_knows_nothing_of_it_no_frame_is_doubled_or_overtaken_while_ports_move() {
    // A station sends 16 flows × 60 bytes × `load` % in 20 ms: 77 kbit/s with a load of 20, 100 kbit/s with one of 26. That is too much for
    // the second link, and then its port moves to the first. The third link fails, and both ports share the first: one of them moves.
    let capacity = |(place, bits_per_second)| Capacity { place, name: format!("link{place}"), bits_per_second };
    for seed in 1..=2 {
        let rule = Spread::by_load(&[(0, 170_000), (1, 120_000), (2, 170_000)].map(capacity));
        let mut world = World::new(3, [Some((Box::new(rule) as Box<dyn Rule>, Hash::Moved)), None], seed);
        (world.step_ns, world.room) = (20 * MS, 20);
        (0..3).for_each(|link| world.set(link, true));
        let (mut moves, mut places) = (0, Vec::new());
        let mut half_a_minute = |world: &mut World, load| {
            for _ in 0..12 {
                world.steps(150, load);
                let now = world.sides[0].team.as_ref().unwrap().steering().unwrap().save().moved_to;
                moves += usize::from(now != places);
                places = now;
            }
        };
        for _ in 0..3 {
            half_a_minute(&mut world, 26);
            world.set(2, false);
            half_a_minute(&mut world, 20);
            world.set(2, true);
            let steps = world.random(300);
            world.steps(steps, 20);
        }
        world.steps(100, 0);
        let missing = world.missing();
        println!("seed {seed}: {} sent, {missing} lost, {moves} moves", world.count_sent);
        assert!(moves >= 3, "{moves} moves");
        assert!(missing < world.count_sent / 20, "{missing} of {}", world.count_sent);
    }
}

#[test]
fn after_a_lost_carrier_all_flows_go_on_within_50_ms_and_after_a_silent_partner_within_its_3_seconds() {
    type Made = (&'static str, fn() -> [Option<(Box<dyn Rule>, Hash)>; 2]);
    let made: [Made; 4] = [
        ("802.3ad", || [0, 1].map(|side| Some((lacp(side, 4), Hash::Layer34)))),
        ("active-standby", || [Some((Box::new(Standby::new(0, Duration::ZERO)), Hash::default())), None]),
        ("originating-port", || [Some((Box::new(Spread::new()), Hash::Port)), None]),
        ("source-address", || [Some((Box::new(Spread::new()), Hash::Source)), None]),
    ];
    for (mode, rules) in made {
        // 32 flows each way: a link has room for them all.
        let mut world = World::new(4, rules(), 5);
        world.room = 100;
        let (gap_ms, lost) = world.outage(4, |world| world.set(0, false), 300);
        println!("{mode}, a carrier lost: all flows go on after {gap_ms} ms, {lost} frames lost");
        assert!(gap_ms < 50, "{mode}: {gap_ms} ms");
    }
    let mut world = World::new(4, [0, 1].map(|side| Some((lacp(side, 4), Hash::Layer34))), 5);
    world.room = 100;
    let (gap_ms, lost) = world.outage(4, |world| world.cable(0).is_mute = true, 3500);
    println!("802.3ad, a silent partner: all flows go on after {gap_ms} ms, {lost} frames lost");
    assert!((1000..=3100).contains(&gap_ms), "fast: {gap_ms} ms");
}

#[test]
fn a_partner_without_lacp_gets_one_link_and_no_loop() {
    let mut world = World::new(3, [Some((lacp(0, 3), Hash::Layer34)), None], 9);
    (0..3).for_each(|link| world.set(link, true));
    world.steps(8000, 5);
    let words: Vec<String> =
        world.sides[0].team.as_ref().unwrap().states(world.now).into_iter().map(|state| state.words).collect();
    assert_eq!(words, ["active, no partner", "stands by, no partner", "stands by, no partner"]);
    let before = world.missing();
    world.steps(1000, 5);
    world.steps(100, 0);
    assert_eq!(world.missing(), before, "nothing is lost");
}
