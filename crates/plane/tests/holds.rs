//! A full uplink holds its senders: their descriptors wait in their guests, no frame is dropped, and each sender has its share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nicety_adapter::{Batch, Budget, Context, Delivery, Frames, PortId, Progress, Rate, Reason, Time};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_memory::Map;
use nicety_plane::doubles::{Linked, Ringed, Silent, Traffic, send};
use nicety_plane::{Agent, End, Group, Hash, InwardControl, Plane, Port, Role, Spread, Standby, Steering, Turn};
use nicety_switch::{Limits, Policy};

const MS: u64 = 1_000_000;
const BUFFER: u32 = 256 << 10;

/// A guest that always has frames of one length to one address.
struct Sender {
    len: u32,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    /// Number of frames left to send.
    left: Arc<AtomicU64>,
}

impl Traffic for Sender {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while self.left.load(Ordering::Relaxed) > 0 && budget.allows(batch) {
            send(batch, 0, self.len);
            self.left.fetch_sub(1, Ordering::Relaxed);
            self.sent.fetch_add(1, Ordering::Relaxed);
        }
        Progress { more: self.left.load(Ordering::Relaxed) > 0, armed: true }
    }

    fn deliver(&mut self, frames: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        self.received.fetch_add(frames.picks.len() as u64, Ordering::Relaxed);
        Delivery::default()
    }
}

/// A wire that takes this many bytes per millisecond.
struct Wire {
    bytes_per_ms: u64,
    until: Time,
    left: i64,
    full: bool,
    from: Arc<Mutex<[u64; 16]>>,
    carrier: Arc<AtomicBool>,
}

impl Wire {
    fn new(bytes_per_ms: u64, from: &Arc<Mutex<[u64; 16]>>) -> Self {
        let (from, carrier) = (Arc::clone(from), Arc::new(AtomicBool::new(true)));
        Self { bytes_per_ms, until: Time::ZERO, left: 0, full: false, from, carrier }
    }
}

impl Traffic for Wire {
    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        if cx.now >= self.until {
            (self.until, self.left) = (cx.now.after_ns(MS), self.left + self.bytes_per_ms as i64);
        }
        self.full = false;
        let mut delivery = Delivery::default();
        for (index, pick, packet) in frames.iter() {
            let bytes = u64::from(packet.len());
            if delivery.refused() != 0 || self.left <= 0 {
                delivery.refuse(index, 0, pick.from.into());
                self.full = true;
                continue;
            }
            self.left -= bytes as i64;
            cx.counters.received(0, 1, bytes);
            let sender = frames.batch.head(packet)[11];
            self.from.lock().unwrap()[usize::from(sender)] += bytes;
        }
        delivery
    }

    fn wake(&self) -> Option<Time> {
        (self.full && self.bytes_per_ms > 0).then_some(self.until)
    }

    fn carrier(&self) -> bool {
        self.carrier.load(Ordering::Relaxed)
    }
}

/// Port 0 is the uplink, with address 0; sender n has address n.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    from: Arc<Mutex<[u64; 16]>>,
    left: Vec<Arc<AtomicU64>>,
    sent: Vec<Arc<AtomicU64>>,
    received: Vec<Arc<AtomicU64>>,
    now: Time,
}

impl World {
    /// Creates senders with these lengths and targets of their frames.
    fn new(bytes_per_ms: u64, senders: &[(u32, u8)]) -> Self {
        let from = Arc::default();
        let wire = Wire::new(bytes_per_ms, &from);
        let mut world = Self {
            plane: Plane::new(Limits::default()),
            ports: Vec::new(),
            from,
            left: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
            now: Time(1),
        };
        world.join(End::link(Box::new(Linked::new(wire))));
        for (id, &(len, target)) in (1u8..).zip(senders) {
            let (sent, received, left) = (Arc::default(), Arc::default(), Arc::default());
            let sender =
                Sender { len, sent: Arc::clone(&sent), received: Arc::clone(&received), left: Arc::clone(&left) };
            let port = world.join(End::guest(Box::new(Ringed(sender))));
            port.attach();
            let map = Map::private(1 << 16).unwrap();
            map.write(0, &[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, id, 0x88, 0xb5]).unwrap();
            port.set_memory(Arc::new(map), Time::ZERO);
            world.left.push(left);
            world.sent.push(sent);
            world.received.push(received);
        }
        world
    }

    fn join(&mut self, end: End) -> Arc<Port> {
        let id = PortId(self.ports.len() as u16);
        let port = Arc::new(Port::new(id, end, Box::new(Silent), BUFFER).unwrap());
        self.plane.join(Arc::clone(&port)).unwrap();
        self.ports.push(Arc::clone(&port));
        port
    }

    fn give(&self, sender: usize, frames: u64) {
        self.left[sender - 1].store(frames, Ordering::Relaxed);
        self.ports[sender].with_rings(self.now, |rings, cx| rings.kick(0, cx)).unwrap();
    }

    fn run(&mut self, ms: u64) {
        let mut turn = Turn::new();
        for _ in 0..ms {
            self.now = self.now.after_ns(MS);
            // In rotation, like a worker, while any port has work.
            let (mut busy, mut rounds) = (true, 0);
            while std::mem::take(&mut busy) {
                rounds += 1;
                assert!(rounds < 100_000, "a worker is kept busy for nothing");
                for port in self.ports.iter().filter(|port| port.busy(self.now)) {
                    while self.plane.turn(port, &mut turn, self.now).unfinished {}
                    busy = true;
                }
            }
        }
    }

    fn dropped(&self) -> u64 {
        let of = |port: &Arc<Port>| {
            let counters = port.state().counters;
            counters.receive_drops.iter().chain(&counters.transmit_drops).sum::<u64>()
        };
        self.ports.iter().map(of).sum()
    }
}

#[test]
fn eight_senders_into_a_paced_uplink_lose_nothing_and_have_an_eighth_each() {
    // One gigabit per second, 125,000 bytes per millisecond; frames of many lengths to an unknown target.
    let lengths = [60, 100, 590, 1514, 1514, 9014, 30_000, 65_000];
    let senders: Vec<_> = lengths.iter().map(|len| (*len, 0xee)).collect();
    let mut world = World::new(125_000, &senders);
    // They also see each other's frames, which must not slow down the wire.
    for sender in 1..=8 {
        world.give(sender, u64::MAX);
    }
    world.run(50);
    *world.from.lock().unwrap() = [0; 16];
    world.run(400);
    assert_eq!(world.dropped(), 0);
    let from = world.from.lock().unwrap();
    let all: u64 = from.iter().sum();
    assert!(all > 400 * 125_000 * 95 / 100, "the wire is in use: {all} bytes");
    for (sender, bytes) in from.iter().enumerate().skip(1).take(8) {
        let share = *bytes as f64 * 8.0 / all as f64;
        assert!((0.95..=1.05).contains(&share), "sender {sender}: {share:.3} of an eighth, {from:?}");
    }
    assert!(world.ports[1..].iter().any(|port| port.state().held));
}

/// Says a word to the neighbour each 100 ms, as LACP does each second, and notes when it leaves.
struct Speaker {
    next: Time,
    said: Arc<Mutex<Vec<Time>>>,
}

impl Agent for Speaker {
    fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        // Slow protocols' address and type (IEEE 802.3, annex 57A), from station 15.
        let mut frame = [0; 124];
        frame[..14].copy_from_slice(&[1, 0x80, 0xc2, 0, 0, 2, 2, 0, 0, 0, 0, 15, 0x88, 9]);
        if now >= self.next && send(&frame) {
            self.said.lock().unwrap().push(now);
            self.next = now.after_ns(100 * MS);
        }
    }

    fn wake(&self) -> Option<Time> {
        Some(self.next)
    }
}

/// Each turn of a full link begins with the frames that wait, and they take all that it has room for. LACP's went behind them: a link that
/// was full for three seconds was taken out of its team by its partner.
#[test]
fn an_agent_speaks_in_time_by_a_link_that_is_full() {
    let mut world = World::new(125_000, &[(1514, 0xee), (65_000, 0xee)]);
    world.plane.leave(PortId(0)).unwrap();
    let wire = Wire::new(6_250, &world.from);
    let said = Arc::<Mutex<Vec<Time>>>::default();
    let speaker = Speaker { next: Time(50 * MS), said: Arc::clone(&said) };
    let port = Port::new(PortId(0), End::link(Box::new(Linked::new(wire))), Box::new(Silent), BUFFER).unwrap();
    let port = Arc::new(port.with_agent(Role::Other, Box::new(speaker)));
    world.plane.join(Arc::clone(&port)).unwrap();
    port.ready();
    world.ports[0] = port;
    (1..=2).for_each(|sender| world.give(sender, u64::MAX));
    world.run(1_050);
    let said = said.lock().unwrap();
    // A packet of 65,000 bytes that the link has begun is in front of it.
    let most = 100 * MS + 65_000 / 6_250 * MS + 2 * MS;
    assert!(said.len() >= 9 && said.windows(2).all(|two| two[1].0 - two[0].0 <= most), "{said:?}");
    assert!(world.from.lock().unwrap()[15] > 0 && world.ports[1].state().held);
}

#[test]
fn who_sends_elsewhere_is_not_held_and_who_was_goes_on_when_the_uplink_leaves() {
    let mut world = World::new(1000, &[(1000, 0xee), (1000, 3), (1000, 2)]);
    // The switch knows both two and three.
    world.give(2, 1);
    world.give(3, 1);
    world.run(200);
    world.give(1, 1_000_000);
    world.run(2);
    assert!(world.ports[1].state().held);
    let held = world.sent[0].load(Ordering::Relaxed);
    let before = world.received[2].load(Ordering::Relaxed);
    world.give(2, 5000);
    world.run(1);
    assert!(!world.ports[2].state().held);
    // The target of the first one's frames is unknown meanwhile, so the third one gets them too.
    let flooded = world.sent[0].load(Ordering::Relaxed) - held;
    assert_eq!(world.received[2].load(Ordering::Relaxed) - before, 5000 + flooded);
    world.plane.leave(PortId(0)).unwrap();
    assert!(!world.ports[1].state().held);
    world.run(1);
    assert_eq!(world.left[0].load(Ordering::Relaxed), 0);
}

#[test]
fn an_uplink_that_takes_nothing_for_a_second_holds_nobody_any_more() {
    let mut world = World::new(0, &[(1000, 0xee), (1000, 0xee)]);
    world.give(1, 100_000);
    world.run(900);
    assert!(world.ports[1].state().held && world.left[0].load(Ordering::Relaxed) > 0);
    world.run(200);
    assert!(!world.ports[1].state().held);
    assert_eq!(world.left[0].load(Ordering::Relaxed), 0, "others get them");
    assert_eq!(world.received[1].load(Ordering::Relaxed), 100_000);
    assert!(world.dropped() > 0, "the uplink did not");
    world.give(2, 10);
    world.run(1);
    assert!(!world.ports[2].state().held);
}

#[test]
fn a_sender_that_a_teams_stuck_link_holds_goes_on_by_another_when_that_link_dies() {
    let mut world = World::new(125_000, &[(1000, 0xee)]);
    let steering = Arc::new(Steering::new(Box::new(Standby::new(0, Duration::ZERO)), Hash::Layer2));
    let (stuck, good) = (Wire::new(0, &world.from), Wire::new(125_000, &Arc::default()));
    let (carrier, far) = (Arc::clone(&stuck.carrier), Arc::clone(&good.from));
    let member = |index: usize, wire| {
        let port =
            Port::new(PortId(11 + index as u16), End::link(Box::new(Linked::new(wire))), Box::new(Silent), BUFFER);
        Arc::new(port.unwrap().in_team(PortId(10), &steering, index))
    };
    let members = vec![member(0, stuck), member(1, good)];
    let team = Group::team(PortId(10), Arc::clone(&steering), members.iter().cloned().map(Some));
    world.plane.join_team(Arc::new(team), &Policy::default()).unwrap();
    for member in members {
        world.plane.join(Arc::clone(&member)).unwrap();
        member.ready();
        world.ports.push(member);
    }
    world.run(1);
    world.give(1, 1_000_000);
    world.run(10);
    assert!(world.ports[1].state().held, "the stuck link holds it");
    let sent = world.sent[0].load(Ordering::Relaxed);
    carrier.store(false, Ordering::Relaxed);
    world.ports[2].ready();
    world.run(10);
    let by_the_other: u64 = far.lock().unwrap().iter().sum();
    assert!(by_the_other >= 9 * 125_000, "{by_the_other}");
    let more = world.sent[0].load(Ordering::Relaxed) - sent;
    let lost = world.ports[2].state().counters.receive_drops[Reason::LinkDown as usize];
    assert!(more > 1000 && lost * 1000 <= BUFFER.into(), "{more} more, {lost} lost");
}

/// A guest that sends as much as is taken, in turn to two addresses.
struct TwoFlows {
    next: u64,
}

impl Traffic for TwoFlows {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while budget.allows(batch) {
            send(batch, self.next % 2 * 2048, 1000);
            self.next += 1;
        }
        Progress { more: true, armed: true }
    }
}

/// A sender that waits for one link would leave the others empty. Linux's bonding holds nobody either.
#[test]
fn a_full_link_of_a_team_that_spreads_flows_drops_its_own_and_keeps_no_frame_from_the_other_links() {
    const LINK: u64 = 10_000;
    // Flooded frames also leave by another uplink, which takes all.
    let mut world = World::new(1 << 40, &[]);
    let steering = Arc::new(Steering::new(Box::new(Spread::new()), Hash::Layer2));
    let froms: [Arc<Mutex<[u64; 16]>>; 2] = Default::default();
    // The first link takes a hundredth of what the second does.
    let wires = [Wire::new(LINK / 100, &froms[0]), Wire::new(LINK, &froms[1])];
    let member = |(index, wire): (usize, Wire)| {
        let port =
            Port::new(PortId(11 + index as u16), End::link(Box::new(Linked::new(wire))), Box::new(Silent), BUFFER);
        Arc::new(port.unwrap().in_team(PortId(10), &steering, index))
    };
    let members: Vec<Arc<Port>> = wires.into_iter().enumerate().map(member).collect();
    let team = Group::team(PortId(10), Arc::clone(&steering), members.iter().cloned().map(Some));
    world.plane.join_team(Arc::new(team), &Policy::default()).unwrap();
    for member in members {
        world.plane.join(Arc::clone(&member)).unwrap();
        member.ready();
        world.ports.push(member);
    }
    world.run(20);
    let port = Arc::new(
        Port::new(PortId(1), End::guest(Box::new(Ringed(TwoFlows { next: 0 }))), Box::new(Silent), BUFFER).unwrap(),
    );
    port.attach();
    let map = Map::private(1 << 16).unwrap();
    for target in [0u8, 1] {
        let head = [2, 0, 0, 0, 0, 0xe0 + target, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        map.write(2048 * u64::from(target), &head).unwrap();
    }
    port.set_memory(Arc::new(map), Time::ZERO);
    world.plane.join(Arc::clone(&port)).unwrap();
    world.ports.push(Arc::clone(&port));
    port.with_rings(world.now, |rings, cx| rings.kick(0, cx)).unwrap();
    let mut turn = Turn::new();
    for _ in 0..1000 {
        world.now = world.now.after_ns(MS / 10);
        for port in &world.ports {
            if port.busy(world.now) {
                world.plane.turn(port, &mut turn, world.now);
            }
        }
    }
    let sent = froms.map(|from| from.lock().unwrap().iter().sum::<u64>());
    assert!(!port.state().held);
    assert!(sent.iter().max() > Some(&(90 * LINK)), "{sent:?} of {}", 100 * LINK);
    assert!(world.dropped() > 0);
}

fn terms(shares: u16, reservation: Option<u64>, limit: Option<u64>) -> ClassTerms {
    let rate = |rate: Option<u64>| rate.and_then(Rate::new);
    let class = Terms { shares, reservation: rate(reservation), limit: rate(limit), is_urgent: false };
    ClassTerms { class, ..ClassTerms::default() }
}

/// A class of one sender's frames.
fn class(name: &str, sender: u16, terms: ClassTerms) -> Class {
    let matches = vec![Match { ports: Some(vec![sender]), ..Match::default() }];
    Class { name: name.to_owned(), terms, matches, mark_pcp: None, mark_dscp: None }
}

/// Bytes per sender in this many milliseconds.
fn sent_in(world: &mut World, ms: u64) -> [u64; 16] {
    *world.from.lock().unwrap() = [0; 16];
    world.run(ms);
    *world.from.lock().unwrap()
}

#[test]
fn with_io_control_each_class_has_its_reservation_and_the_rest_by_shares_and_nothing_is_dropped() {
    // One gigabit per second. Sender 1 is greedy and has most shares, and sends long packets.
    let mut world = World::new(125_000, &[(60_000, 0xee), (1514, 0xee), (1514, 0xee), (60, 0xee)]);
    let rest = Class { name: "vm".to_owned(), terms: terms(50, None, None), ..Class::default() };
    let classes = [
        rest,
        class("greedy", 1, terms(100, None, None)),
        class("storage", 2, terms(1, Some(200_000_000), None)),
        class("management", 3, terms(1, Some(100_000_000), None)),
    ];
    world.ports[0].set_io_control(&classes, world.now);
    (1..=4).for_each(|sender| world.give(sender, u64::MAX));
    world.run(50);
    for _ in 0..4 {
        let sent = sent_in(&mut world, 100);
        let mbit = sent.map(|bytes| bytes as f64 * 8.0 / 100_000.0);
        assert!(mbit[2] >= 196.0 && mbit[3] >= 98.0, "{mbit:?}");
        assert!(mbit[2] <= 220.0 && mbit[3] <= 110.0, "{mbit:?}");
        // The rest, 700 Mbit/s, by 100 to 50.
        assert!((440.0..490.0).contains(&mbit[1]) && (215.0..250.0).contains(&mbit[4]), "{mbit:?}");
        assert!(mbit.iter().sum::<f64>() >= 990.0, "{mbit:?}");
    }
    assert_eq!(world.dropped(), 0);
    let states = world.ports[0].state().classes;
    let names: Vec<&str> = states.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["vm", "greedy", "storage", "management"]);
    assert!(states.iter().all(|state| state.bytes > 0 && state.waiting > 0 && state.dropped == 0), "{states:?}");
    let waiting: u64 = states.iter().map(|state| state.waiting).sum();
    assert_eq!(waiting, world.ports[0].state().backlog_frames as u64);
    // Senders that stop lend their reservations at once.
    world.left[2].store(0, Ordering::Relaxed);
    world.left[1].store(0, Ordering::Relaxed);
    world.run(10);
    let sent = sent_in(&mut world, 100).map(|bytes| bytes as f64 * 8.0 / 100_000.0);
    assert!(sent[1] + sent[4] >= 990.0 && sent[2] == 0.0, "{sent:?}");
}

/// Hardware QoS of a card's functions: `min_rate` in a host file.
#[test]
fn ports_of_one_class_have_their_own_reservations_and_divide_the_rest() {
    // One gigabit per second. Sender 1 is greedy, and sends long packets.
    let mut world = World::new(125_000, &[(60_000, 0xee), (1514, 0xee), (1514, 0xee), (60, 0xee)]);
    let reserved = |rate| Terms { reservation: Rate::new(rate), ..Terms::default() };
    let terms = ClassTerms {
        class: reserved(600_000_000),
        each: Terms::default(),
        ports: vec![(2, reserved(500_000_000)), (3, reserved(100_000_000))],
    };
    world.ports[0].set_io_control(&[Class { name: "vm".to_owned(), terms, ..Class::default() }], world.now);
    (1..=4).for_each(|sender| world.give(sender, u64::MAX));
    world.run(50);
    for _ in 0..4 {
        let mbit = sent_in(&mut world, 100).map(|bytes| bytes as f64 * 8.0 / 100_000.0);
        assert!(mbit[2] >= 490.0 && mbit[3] >= 98.0, "{mbit:?}");
        // The rest, 400 Mbit/s, is divided among all four.
        assert!([1, 4].iter().all(|sender| (98.0..140.0).contains(&mbit[*sender])), "{mbit:?}");
        assert!(mbit.iter().sum::<f64>() >= 990.0, "{mbit:?}");
    }
    // The others get the rate that it does not use, at once.
    world.left[1].store(0, Ordering::Relaxed);
    world.run(10);
    let mbit = sent_in(&mut world, 100).map(|bytes| bytes as f64 * 8.0 / 100_000.0);
    assert!([1, 4].iter().all(|sender| (290.0..340.0).contains(&mbit[*sender])) && mbit[3] >= 300.0, "{mbit:?}");
    assert!(mbit.iter().sum::<f64>() >= 990.0, "{mbit:?}");
    assert_eq!(world.dropped(), 0);
}

#[test]
fn a_limit_holds_while_the_uplink_has_room_and_others_pass() {
    let mut world = World::new(125_000, &[(1000, 0xee), (1000, 0xee)]);
    let classes = [Class::default(), class("slow", 1, terms(50, None, Some(80_000_000)))];
    world.ports[0].set_io_control(&classes, world.now);
    world.give(1, u64::MAX);
    world.run(20);
    // 80 Mbit/s are 10,000 bytes per millisecond.
    let sent = sent_in(&mut world, 200)[1];
    assert!((1_960_000..=2_040_000).contains(&sent), "{sent} bytes in 200 ms");
    world.give(2, 1000);
    world.run(20);
    assert_eq!(world.from.lock().unwrap()[2], 1_000_000);
    assert_eq!(world.dropped(), 0);
    // Changed while it serves: nothing is lost, and what waits goes at once.
    world.ports[0].set_io_control(&[Class::default()], world.now);
    let sent = sent_in(&mut world, 100)[1];
    assert!(sent >= 100 * 125_000 * 98 / 100, "{sent} bytes in 100 ms");
    world.give(2, u64::MAX);
    world.ports[0].set_io_control(&[], world.now);
    world.run(20);
    let sent = sent_in(&mut world, 100);
    assert!(sent[1].abs_diff(sent[2]) < 100_000, "{sent:?}");
    world.left.iter().for_each(|left| left.store(0, Ordering::Relaxed));
    world.run(50);
    assert_eq!((world.dropped(), world.ports[0].state().backlog_frames), (0, 0));
    let all: u64 = world.sent.iter().map(|sent| sent.load(Ordering::Relaxed)).sum();
    assert_eq!(world.ports[0].state().counters.taken().packets, all, "none is lost or doubled");
}

#[test]
fn what_waits_stays_in_its_class_when_classes_before_it_leave_or_join() {
    let mut world = World::new(125_000, &[(1000, 0xee), (1000, 0xee), (1000, 0xee)]);
    let limited = |name, sender| class(name, sender, terms(50, None, Some(8_000_000)));
    let (slow, slower, storage) = (limited("slow", 1), limited("slower", 2), limited("storage", 3));
    let waiting = |world: &World| -> Vec<(String, u64)> {
        world.ports[0].state().classes.into_iter().map(|state| (state.name, state.waiting)).collect()
    };
    world.ports[0].set_io_control(&[Class::default(), slow, slower.clone(), storage.clone()], world.now);
    (1..=3).for_each(|sender| world.give(sender, 30 + 20 * sender as u64));
    world.run(2);
    let before = waiting(&world);
    assert!(before[1].1 > 0 && before[2].1 > before[1].1 + 5 && before[3].1 > before[2].1 + 5, "{before:?}");
    // The first goes, and what waits of it is of the class of all others.
    world.ports[0].set_io_control(&[Class::default(), slower.clone(), storage.clone()], world.now);
    let after = waiting(&world);
    assert_eq!(after, [(String::new(), before[1].1), before[2].clone(), before[3].clone()]);
    // One joins, and the two others change places.
    world.ports[0].set_io_control(&[Class::default(), limited("new", 4), storage, slower], world.now);
    let new = ("new".to_owned(), 0);
    assert_eq!(waiting(&world), [after[0].clone(), new, after[2].clone(), after[1].clone()]);
    world.run(200);
    let counts = world.ports[0].state().classes;
    let of = |name: &str| counts.iter().find(|state| state.name == name).map(|state| state.packets);
    assert_eq!((of("slower"), of("storage"), of("new")), (Some(70), Some(90), Some(0)));
    assert_eq!((world.dropped(), world.ports[0].state().backlog_frames), (0, 0));
}

/// A guest whose frames are in turn of the class of TCP port 3260, from address 2, and of no class, from address 1.
struct TwoClasses {
    next: u64,
    /// Packets in its ring.
    left: Arc<AtomicU64>,
    has_storage: Arc<AtomicBool>,
}

impl Traffic for TwoClasses {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while self.left.load(Ordering::Relaxed) > 0 && budget.allows(batch) {
            self.next += 1;
            let is_storage = self.next % 2 == 1 && self.has_storage.load(Ordering::Relaxed);
            send(batch, 2048 * u64::from(is_storage), 1514);
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
        Progress { more: self.left.load(Ordering::Relaxed) > 0, armed: true }
    }
}

impl TwoClasses {
    /// Joins as port 1.
    fn join(world: &mut World, left: &Arc<AtomicU64>, has_storage: &Arc<AtomicBool>) {
        let (left, has_storage) = (Arc::clone(left), Arc::clone(has_storage));
        let port = world.join(End::guest(Box::new(Ringed(Self { next: 0, left, has_storage }))));
        port.attach();
        let map = Map::private(4096).unwrap();
        for (place, from, service) in [(0, 1, 5001u16), (2048, 2, 3260)] {
            let mut head = [0; 54];
            head[..20].copy_from_slice(&[2, 0, 0, 0, 0, 0xee, 2, 0, 0, 0, 0, from, 8, 0, 0x45, 0, 5, 0xdc, 0, 0]);
            (head[22], head[23], head[46]) = (64, 6, 0x50);
            head[36..38].copy_from_slice(&service.to_be_bytes());
            map.write(place, &head).unwrap();
        }
        port.set_memory(Arc::new(map), Time::ZERO);
    }
}

#[test]
fn a_class_keeps_its_reservation_beside_another_of_the_same_port_that_waits() {
    // One gigabit per second. A ring of 512 packets, to which a hundred are added each millisecond: 606 Mbit/s of either kind.
    let mut world = World::new(125_000, &[]);
    let (left, has_storage) = (Arc::<AtomicU64>::default(), Arc::new(AtomicBool::new(true)));
    TwoClasses::join(&mut world, &left, &has_storage);
    let offer = |world: &mut World, ms: u64| {
        *world.from.lock().unwrap() = [0; 16];
        let mut was_held = false;
        for _ in 0..ms {
            left.store((left.load(Ordering::Relaxed) + 100).min(512), Ordering::Relaxed);
            world.ports[1].with_rings(world.now, |rings, cx| rings.kick(0, cx)).unwrap();
            world.run(1);
            was_held |= world.ports[1].state().held;
        }
        let mbit = world.from.lock().unwrap().map(|bytes| bytes as f64 * 8.0 / 1000.0 / ms as f64);
        (mbit[1], mbit[2], was_held)
    };
    let limited = |mbit: u64| Terms { limit: Rate::new(mbit * 1_000_000), ..Terms::default() };
    let vm = ClassTerms { each: limited(100), ..ClassTerms::default() };
    let vm = Class { name: "vm".to_owned(), terms: vm, ..Class::default() };
    let storage = |terms| Class {
        name: "iscsi".to_owned(),
        terms,
        matches: vec![Match { transport: Some((3260, 3260)), ..Match::default() }],
        ..Class::default()
    };
    let reserved = storage(terms(1, Some(200_000_000), None));
    world.ports[0].set_io_control(&[vm.clone(), reserved], world.now);
    offer(&mut world, 100);
    let (vm_mbit, storage_mbit, was_held) = offer(&mut world, 500);
    assert!(storage_mbit >= 600.0, "{storage_mbit} Mbit/s: the link has room for all, and 200 are reserved");
    assert!((97.0..=103.0).contains(&vm_mbit), "{vm_mbit} Mbit/s, of at most 100");
    assert!(!was_held && world.dropped() > 0, "what is above the limit has no room");
    // It sends by one class alone: nothing is lost any more.
    has_storage.store(false, Ordering::Relaxed);
    offer(&mut world, 2_500);
    let dropped = world.dropped();
    let (vm_mbit, _, was_held) = offer(&mut world, 500);
    assert!((97.0..=103.0).contains(&vm_mbit) && was_held, "{vm_mbit} Mbit/s");
    assert_eq!(world.dropped(), dropped, "it is held");
    // Both wait: it is held until little is left of one, and both have what they may.
    has_storage.store(true, Ordering::Relaxed);
    let both = [vm, storage(ClassTerms { each: limited(300), ..ClassTerms::default() })];
    world.ports[0].set_io_control(&both, world.now);
    offer(&mut world, 100);
    let (vm_mbit, storage_mbit, was_held) = offer(&mut world, 500);
    assert!((97.0..=103.0).contains(&vm_mbit), "{vm_mbit} Mbit/s, of at most 100");
    assert!((291.0..=309.0).contains(&storage_mbit), "{storage_mbit} Mbit/s, of at most 300");
    assert!(was_held);
}

/// A link by which frames of these lengths come in for the senders 1, 2 and so on: so many each millisecond.
struct Feed {
    map: Arc<Map>,
    each_ms: Vec<(u32, u64)>,
    until: Time,
    left: Vec<u64>,
    /// Only the first millisecond's come.
    is_burst: bool,
}

impl Feed {
    /// IPv4 TCP with ECT(0) to sender n, from a frame at n · 4096 of its memory.
    fn new(each_ms: &[(u32, u64)]) -> Self {
        let map = Map::private(1 << 16).unwrap();
        for target in 1..=each_ms.len() as u8 {
            let mut head = [0; 54];
            head[..20].copy_from_slice(&[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, 0, 8, 0, 0x45, 2, 5, 0xdc, 0, 0]);
            (head[22], head[23], head[33], head[46]) = (64, 6, target, 0x50);
            map.write(4096 * u64::from(target), &head).unwrap();
        }
        Self {
            map: Arc::new(map),
            each_ms: each_ms.to_vec(),
            until: Time::ZERO,
            left: vec![0; each_ms.len()],
            is_burst: false,
        }
    }
}

impl Feed {
    fn linked(self) -> Linked<Self> {
        let map = Arc::clone(&self.map);
        Linked::sending_from(self, map)
    }
}

impl Traffic for Feed {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if cx.now >= self.until {
            self.until = if self.is_burst { Time(u64::MAX) } else { cx.now.after_ns(MS) };
            self.left = self.each_ms.iter().map(|(_, frames)| *frames).collect();
        }
        // Mixed, as on a wire.
        while self.left.iter().any(|left| *left > 0) && budget.allows(batch) {
            for (target, (len, _)) in (1..).zip(&self.each_ms) {
                let left = &mut self.left[target as usize - 1];
                if *left > 0 && budget.allows(batch) {
                    *left -= 1;
                    send(batch, 4096 * target, *len);
                }
            }
        }
        Progress { more: self.left.iter().any(|left| *left > 0), armed: true }
    }

    fn wake(&self) -> Option<Time> {
        Some(self.until)
    }
}

#[test]
fn what_comes_in_waits_by_class_and_receiver_and_senders_are_told_early() {
    // A full link of a gigabit: 500 Mbit/s for receiver 1, 400 for 2, 100 for 3. 900 are passed on.
    let mut world = World::new(0, &[(60, 0xee); 3]);
    // The switch learns where they are, before anything comes in.
    for sender in 1..=3 {
        world.give(sender, 1);
    }
    world.run(1);
    world.plane.leave(PortId(0)).unwrap();
    let feed = Feed::new(&[(1250, 50), (1000, 50), (500, 25)]);
    let uplink = Arc::new(Port::new(PortId(0), End::link(Box::new(feed.linked())), Box::new(Silent), BUFFER).unwrap());
    world.plane.join(Arc::clone(&uplink)).unwrap();
    world.ports[0] = Arc::clone(&uplink);
    let storage = class("storage", 2, terms(1, Some(400_000_000), None));
    let control = InwardControl {
        rate: Rate::new(900_000_000).unwrap(),
        buffer_bytes: 1 << 20,
        classes: vec![Class::default(), storage],
    };
    uplink.set_inward(Some(&control), world.now).unwrap();
    uplink.ready();
    world.run(100);
    let before: Vec<u64> = world.received.iter().map(|received| received.load(Ordering::Relaxed)).collect();
    world.run(400);
    let rate = |at: usize, len: u64| {
        (world.received[at].load(Ordering::Relaxed) - before[at]) as f64 * len as f64 * 8.0 / 400e3
    };

    let (greedy, storage, small) = (rate(0, 1250), rate(1, 1000), rate(2, 500));
    assert!(storage >= 0.98 * 400.0, "{storage} Mbit/s, reserved 400");
    assert!(small >= 0.98 * 100.0, "{small} Mbit/s: less than its share, and no frame of it is lost");
    assert!((390.0..=410.0).contains(&greedy), "{greedy} Mbit/s: the rest");
    assert!((890.0..=905.0).contains(&(greedy + storage + small)), "{}", greedy + storage + small);
    let told = uplink.state().inward_classes;
    // In 500 ms: after 100, 200, 271, 329, 379, 424 and 465 ms (RFC 8289, section 3.3). A sender that does not listen fills its room, and
    // then loses frames. Nobody else does.
    assert!((5..=7).contains(&told[0].marked) && told[0].dropped > 0, "{told:?}");
    assert_eq!((told[1].marked, told[1].dropped), (0, 0), "{told:?}");
    assert_eq!(uplink.state().counters.transmit_drops.iter().sum::<u64>(), told[0].dropped);
    assert_eq!(uplink.state().backlog_frames as u64, told.iter().map(|class| class.waiting).sum::<u64>());
    // Without control all goes on at once, and what waited is counted.
    let waiting = uplink.state().backlog_frames as u64;
    uplink.set_inward(None, world.now).unwrap();
    assert_eq!(uplink.state().counters.transmit_drops[Reason::Removed as usize], waiting);
    let before = world.received[0].load(Ordering::Relaxed);
    world.run(10);
    assert_eq!(world.received[0].load(Ordering::Relaxed) - before, 500);
}

/// The document: adapters with a receive buffer of 512 KB dropped in a burst what one with 64 MB kept.
#[test]
fn of_a_burst_a_receive_buffer_keeps_what_fits_in_it_and_who_shares_the_link_loses_nothing() {
    const LEN: u64 = 1514;
    // 4 MB for receiver 1 within a millisecond, and a little for receiver 2. 100 Mbit/s are passed on.
    const BURST: u64 = 2_800;
    const BESIDE: u64 = 100;
    for (buffer_bytes, keeps_all) in [(512 << 10, false), (64 << 20, true)] {
        let mut world = World::new(0, &[(60, 0xee); 2]);
        for sender in 1..=2 {
            world.give(sender, 1);
        }
        world.run(1);
        world.plane.leave(PortId(0)).unwrap();
        let feed = Feed { is_burst: true, ..Feed::new(&[(LEN as u32, BURST), (LEN as u32, BESIDE)]) };
        let uplink =
            Arc::new(Port::new(PortId(0), End::link(Box::new(feed.linked())), Box::new(Silent), BUFFER).unwrap());
        world.plane.join(Arc::clone(&uplink)).unwrap();
        world.ports[0] = Arc::clone(&uplink);
        let control =
            InwardControl { rate: Rate::new(100_000_000).unwrap(), buffer_bytes, classes: vec![Class::default()] };
        uplink.set_inward(Some(&control), world.now).unwrap();
        let before: Vec<u64> = world.received.iter().map(|received| received.load(Ordering::Relaxed)).collect();
        uplink.ready();
        world.run(500);
        let [first, second] = [0, 1].map(|at: usize| world.received[at].load(Ordering::Relaxed) - before[at]);
        let state = uplink.state();
        let (told, drops) = (&state.inward_classes[0], state.counters.transmit_drops.iter().sum::<u64>());
        assert_eq!((told.waiting, told.dropped), (0, drops), "{told:?}");
        assert_eq!((first + second + drops, second), (BURST + BESIDE, BESIDE), "{buffer_bytes} bytes");
        if keeps_all {
            assert_eq!(drops, 0);
        } else {
            // What fits, and the 64 KiB of the bucket that went on at once.
            let fits = u64::from(buffer_bytes) / LEN;
            assert!((fits * 9 / 10..=fits + 2 * (64 << 10) / LEN).contains(&first), "{first} frames, {fits} fit");
        }
    }
}
