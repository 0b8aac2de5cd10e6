//! I/O control's bound of delay, by the test's own clock: frames of a class of low delay, and of one with a reservation, beside a full
//! link of large packets of one guest or several, outward and inward, by an uplink and by a team, and beside another class of low delay.
//! Expected values are docs/io-control.md's, *Delay*.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use nicety_adapter::{
    Batch, Budget, Checksum, Context, Delivery, Frames, Offload, PortId, Progress, Rate, Segment, SegmentKind, Time,
};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_memory::Map;
use nicety_plane::doubles::{Linked, Ringed, Silent, Traffic};
use nicety_plane::{End, Group, Hash, InwardControl, Plane, Port, Standby, Steering, Turn};
use nicety_switch::{Limits, Policy};
use nicety_uplink::Paced;

const SECOND: u64 = 1_000_000_000;
const BULK: u8 = 1;
const PROBE: u8 = 2;
/// Two more guests that fill the link.
const MORE_BULK: [u8; 2] = [3, 4];
/// The guest of another class of low delay.
const OTHER: u8 = 5;
const OUTSIDE: u8 = 100;
const TEAM: PortId = PortId(10);
/// Ethernet, IPv4 and TCP.
const HEADERS: u32 = 54;
const MSS: u16 = 1460;
/// An uplink with a rate spends its tokens in portions of as much time.
const PORTION_NS: u64 = 200_000;

/// Frames that a station has sent and nobody has fetched.
#[derive(Default)]
struct Source {
    waiting: VecDeque<Frame>,
    /// Always has another packet like this.
    greedy: Option<Packet>,
}

/// A packet of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    len: u32,
    /// It is segmented if it is longer.
    mss: u16,
}

#[derive(Clone, Copy)]
struct Frame {
    target: u8,
    packet: Packet,
    /// Its time of sending.
    at: u64,
}

/// Delays of probes so far, in nanoseconds.
type Delays = Arc<Mutex<Vec<u64>>>;

/// A station's end of its cable.
struct Station {
    id: u8,
    source: Arc<Mutex<Source>>,
    delays: Delays,
    map: Arc<Map>,
}

fn memory() -> Arc<Map> {
    Arc::new(Map::private(1 << 20).unwrap())
}

impl Packet {
    const fn new(len: u32) -> Self {
        Self { len, mss: MSS }
    }

    fn is_segmented(self) -> bool {
        self.len > HEADERS + u32::from(self.mss)
    }

    /// Bytes on the wire.
    fn wire_bytes(self) -> u64 {
        let frames = (self.len - HEADERS).div_ceil(self.mss.into()).max(1);
        u64::from(self.len + (frames - 1) * HEADERS)
    }
}

impl Station {
    /// Puts a frame into the batch: a segmented TCP packet if it is long.
    fn draft(&self, frame: Frame, place: u64, batch: &mut Batch) {
        let Frame { target, packet, at } = frame;
        let Packet { len, mss } = packet;
        let mut head = [0u8; HEADERS as usize];
        head[..14].copy_from_slice(&[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, self.id, 8, 0]);
        let ip_len = (len - 14).to_be_bytes();
        head[14..24].copy_from_slice(&[0x45, 0, ip_len[2], ip_len[3], 0, 0, 0x40, 0, 64, 6]);
        head[26..34].copy_from_slice(&[10, 0, 0, self.id, 10, 0, 0, target]);
        head[46] = 0x50;
        // A frame's sending time, where TCP has ports and numbers.
        head[34..42].copy_from_slice(&at.to_be_bytes());
        self.map.write(place, &head).unwrap();
        let mut draft = batch.draft(HEADERS as usize).unwrap();
        draft.push(place, len).unwrap();
        let mut offload = Offload::default();
        if packet.is_segmented() {
            offload.checksum = Checksum::Partial { start: 34, field: 50 };
            offload.segment = Segment::of(SegmentKind::Tcp, mss, HEADERS as u16, len);
        }
        if offload.changes_bytes() { draft.finish(offload, 0).unwrap() } else { draft.finish_plain(0) }
    }

    fn send(&self, budget: Budget, batch: &mut Batch, now: Time) -> Progress {
        let mut source = self.source.lock().unwrap();
        let mut place = 0;
        while budget.allows(batch) {
            let greedy = source.greedy.map(|packet| Frame { target: OUTSIDE, packet, at: now.0 });
            let Some(frame) = source.waiting.pop_front().or(greedy) else { break };
            // Only heads differ.
            self.draft(frame, place, batch);
            place += 2048;
        }
        Progress { more: source.greedy.is_some() || !source.waiting.is_empty(), armed: true }
    }

    fn receive(&self, frames: &Frames<'_>, now: Time) {
        for (_, _, packet) in frames.iter() {
            let head = frames.batch.head(packet);
            // A guest also sees what is flooded.
            if head[5] == self.id && (head[29] == PROBE || head[33] == PROBE) {
                let at = u64::from_be_bytes(*head[34..].first_chunk().unwrap());
                self.delays.lock().unwrap().push(now.0 - at);
            }
        }
    }
}

impl Traffic for Station {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.send(budget, batch, cx.now)
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.receive(frames, cx.now);
        Delivery::default()
    }
}

/// A link of this rate between guests and the outside. Port 0 is the uplink.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    sources: Vec<Arc<Mutex<Source>>>,
    delays: Delays,
    turn: Turn,
    now: Time,
    step_ns: u64,
    random: u64,
    /// A second sender: its station, its next frame, and the mean time between two.
    beside: Option<(u8, Frame, u64)>,
}

/// A team of one link.
fn team(plane: &Plane, new: impl FnOnce() -> Port) -> Arc<Port> {
    let steering = Arc::new(Steering::new(Box::new(Standby::new(0, std::time::Duration::ZERO)), Hash::Layer2));
    let member = Arc::new(new().in_team(TEAM, &steering, 0));
    let team = Arc::new(Group::team(TEAM, steering, vec![Some(Arc::clone(&member))]));
    plane.join_team(team, &Policy::default()).unwrap();
    member
}

impl World {
    fn new(rate: Option<Rate>, step_ns: u64, is_team: bool) -> Self {
        let plane = Plane::new(Limits::default());
        let delays = Delays::default();
        let (mut ports, mut sources) = (Vec::new(), Vec::new());
        let ids = [OUTSIDE, BULK, PROBE, MORE_BULK[0], MORE_BULK[1], OTHER];
        for id in ids {
            let source = Arc::new(Mutex::new(Source::default()));
            let map = memory();
            let station =
                Station { id, source: Arc::clone(&source), delays: Arc::clone(&delays), map: Arc::clone(&map) };
            let linked = |station| Linked::sending_from(station, Arc::clone(&map));
            let end = match rate {
                _ if id != OUTSIDE => End::guest(Box::new(Ringed(station))),
                Some(rate) => End::link(Box::new(Paced::new(linked(station), rate).unwrap())),
                None => End::link(Box::new(linked(station))),
            };
            let number = PortId(ports.len() as u16);
            let new = || Port::new(number, end, Box::new(Silent), 4 << 20).unwrap();
            let port = if id == OUTSIDE && is_team { team(&plane, new) } else { Arc::new(new()) };
            plane.join(Arc::clone(&port)).unwrap();
            if id != OUTSIDE {
                port.attach();
                port.set_memory(map, Time::ZERO);
            }
            ports.push(port);
            sources.push(source);
        }
        let (turn, random) = (Turn::new(), 88_172_645_463_325_252);
        let mut world = Self { plane, ports, sources, delays, turn, now: Time(1), step_ns, random, beside: None };
        // A team's member takes frames a moment after its link is up.
        world.ports[0].ready();
        for _ in 0..SECOND / 50 / step_ns + 1 {
            world.step();
        }
        // The switch learns where guests are.
        for id in &ids[1..] {
            world.send(*id, Frame { target: OUTSIDE, packet: Packet::new(60), at: 0 });
        }
        world.step();
        world.delays.lock().unwrap().clear();
        world
    }

    fn send(&self, from: u8, frame: Frame) {
        let place = if from == OUTSIDE { 0 } else { usize::from(from) };
        self.sources[place].lock().unwrap().waiting.push_back(frame);
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn step(&mut self) {
        self.now = self.now.after_ns(self.step_ns);
        while let Some((from, frame, mean_ns)) = self.beside.filter(|(_, frame, _)| frame.at <= self.now.0) {
            self.send(from, frame);
            let at = frame.at + 1 + self.random(2 * mean_ns);
            self.beside = Some((from, Frame { at, ..frame }, mean_ns));
        }
        if !self.sources[0].lock().unwrap().waiting.is_empty() {
            self.ports[0].ready();
        }
        for port in &self.ports[1..] {
            port.with_rings(self.now, |rings, cx| rings.kick(0, cx)).unwrap();
        }
        for _ in 0..1000 {
            let mut is_busy = false;
            for port in self.ports.iter().filter(|port| port.busy(self.now)) {
                while self.plane.turn(port, &mut self.turn, self.now).unfinished {}
                is_busy = true;
            }
            if !is_busy {
                return;
            }
        }
    }

    /// Sends probes of `len` bytes from a station to another, `mean_ns` apart on average, and returns their delays.
    fn probe(&mut self, [from, target]: [u8; 2], len: u32, mean_ns: u64, probes: usize) -> Vec<u64> {
        let mut next = self.now.0;
        let (mut sent, before) = (0, self.delays.lock().unwrap().len());
        while sent < probes {
            while next <= self.now.0 + self.step_ns && sent < probes {
                self.send(from, Frame { target, packet: Packet::new(len), at: next });
                next += 1 + self.random(2 * mean_ns);
                sent += 1;
            }
            self.step();
        }
        for _ in 0..10_000 {
            if self.delays.lock().unwrap().len() - before == probes {
                break;
            }
            self.step();
        }
        self.delays.lock().unwrap().split_off(before)
    }
}

fn classes(reservation: Rate, is_urgent: bool) -> Vec<Class> {
    let class = |name: &str, port: u8, is_urgent| {
        let class = Terms { shares: 1, reservation: Some(reservation), is_urgent, ..Terms::default() };
        Class {
            name: name.to_owned(),
            terms: ClassTerms { class, ..ClassTerms::default() },
            matches: vec![Match { ports: Some(vec![port.into()]), ..Match::default() }],
            ..Class::default()
        }
    };
    let vm = Class { name: "vm".to_owned(), ..Class::default() };
    vec![vm, class("low", PROBE, is_urgent), class("other", OTHER, true)]
}

/// A link and what is on it.
#[derive(Clone, Copy, Debug)]
struct Case {
    mbit: u64,
    bulk: Packet,
    is_urgent: bool,
    /// Guests that fill the link.
    guests: usize,
    is_team: bool,
    /// Packets of the other class of low delay, which keeps to its reservation.
    other: Option<Packet>,
}

/// Bytes of IPv4's longest packet, with the Ethernet header.
const GSO: Packet = Packet::new(65_549);
const JUMBO: u16 = 8_960;

fn cases() -> impl Iterator<Item = Case> {
    let links = [10, 100, 1_000, 10_000].into_iter();
    links.flat_map(|mbit| {
        let of = move |bulk, is_urgent| Case { mbit, bulk, is_urgent, guests: 1, is_team: false, other: None };
        let plain = [1514, 60_054].map(|len| [true, false].map(|is_urgent| of(Packet::new(len), is_urgent)));
        let jumbo = [9_014, GSO.len].map(|len| of(Packet { len, mss: JUMBO }, len > 9_014));
        let several = [true, false].map(|is_urgent| Case { guests: 3, ..of(GSO, is_urgent) });
        let teams = [1514, GSO.len].map(|len| Case { is_team: true, ..of(Packet::new(len), len > 1514) });
        let two = [1514, GSO.len].map(|len| Case { other: Some(Packet::new(len)), ..of(GSO, true) });
        let beside = [jumbo, several, teams, two];
        plain.into_iter().chain(beside).flatten()
    })
}

const PROBE_LEN: u32 = 200;

impl Case {
    fn rate(self) -> Rate {
        Rate::new(self.mbit * 1_000_000).unwrap()
    }

    /// A fifth of the link. Probes take a tenth of it at most.
    fn reservation(self) -> Rate {
        Rate::new(self.mbit * 200_000).unwrap()
    }

    fn on_link(self, bytes: u64) -> u64 {
        bytes * 8 * 1_000 / self.mbit
    }

    /// Time between probes, on average: several in a bulk packet's time.
    fn mean_ns(self) -> u64 {
        (self.on_link(self.bulk.len.into()) / 3).max(self.on_link(10 * u64::from(PROBE_LEN)))
    }

    fn step_ns(self) -> u64 {
        (self.mean_ns() / 16).clamp(1_000, 200_000)
    }

    /// The page's bound: its own time at the class's guaranteed rate, one largest packet of another, a portion of tokens; of another class
    /// of low delay 64 KiB and the packet beyond them, at the rate that both reservations leave. And a step.
    fn bound_ns(self) -> u64 {
        let other = self.other.map_or(0, |packet| self.on_link((65_536 + packet.wire_bytes()) * 10 / 6));
        self.on_link(5 * 1514) + self.on_link(self.bulk.wire_bytes()) + other + PORTION_NS + 2 * self.step_ns()
    }

    fn check(self, way: &str, mut delays: Vec<u64>) {
        delays.sort_unstable();
        let (worst, bound) = (*delays.last().unwrap(), self.bound_ns());
        println!("{way}: {self:?}: median {}, worst {worst} of {bound} ns", delays[delays.len() / 2]);
        assert!(worst <= bound, "{way}: {self:?}: {worst} ns > {bound}");
        assert!(worst >= self.on_link(self.bulk.len.into()) / 2, "{way}: {self:?}: the link was not full: {worst}");
    }

    /// The other class's guest, or who sends to it, begins: it uses half of the reservation.
    fn begin_beside(self, world: &mut World, [from, target]: [u8; 2]) {
        world.beside = self.other.map(|packet| {
            let mean_ns = self.on_link(10 * packet.wire_bytes());
            (from, Frame { target, packet, at: world.now.0 + mean_ns }, mean_ns)
        });
    }
}

const PROBES: usize = 200;

#[test]
fn beside_a_full_link_a_frame_with_a_reservation_waits_for_one_packet_of_another_on_its_way_out() {
    for case in cases() {
        let mut world = World::new(Some(case.rate()), case.step_ns(), case.is_team);
        world.ports[0].set_io_control(&classes(case.reservation(), case.is_urgent), world.now);
        for id in [BULK].into_iter().chain(MORE_BULK).take(case.guests) {
            world.sources[usize::from(id)].lock().unwrap().greedy = Some(case.bulk);
        }
        // The bucket's depth.
        let end = world.now.after_ns(case.on_link(256 << 10) + SECOND / 100);
        while world.now < end {
            world.step();
        }
        case.begin_beside(&mut world, [OTHER, OUTSIDE]);
        let delays = world.probe([PROBE, OUTSIDE], PROBE_LEN, case.mean_ns(), PROBES);
        assert_eq!(delays.len(), PROBES, "none is lost: {case:?}");
        case.check("outward", delays);
    }
}

#[test]
fn beside_a_full_link_a_frame_with_a_reservation_waits_for_one_packet_of_another_on_its_way_in() {
    for case in cases() {
        let mut world = World::new(None, case.step_ns(), case.is_team);
        let classes = classes(case.reservation(), case.is_urgent);
        let control = InwardControl { rate: case.rate(), buffer_bytes: 1 << 20, classes };
        world.ports[0].set_inward(Some(&control), world.now).unwrap();
        let packet_ns = case.on_link(case.bulk.wire_bytes());
        let start = world.now.0 + 2 * case.step_ns();
        // More than the bucket holds, which has tokens for 2 ms.
        let mut bulk_at = start;
        let (early, mut next) = (case.on_link(192 << 10) + SECOND / 250, start);
        let end = start + case.mean_ns() * PROBES as u64;
        let mut targets = [BULK].into_iter().chain(MORE_BULK).take(case.guests).cycle();
        case.begin_beside(&mut world, [OUTSIDE, OTHER]);
        while world.now.0 < end {
            // A little more than is passed on.
            while bulk_at <= world.now.0 + early {
                world.send(OUTSIDE, Frame { target: targets.next().unwrap(), packet: case.bulk, at: 0 });
                bulk_at += packet_ns * 98 / 100;
            }
            while next <= world.now.0 + case.step_ns() {
                world.send(OUTSIDE, Frame { target: PROBE, packet: Packet::new(PROBE_LEN), at: next });
                next += 1 + world.random(2 * case.mean_ns());
            }
            world.step();
        }
        let delays = std::mem::take(&mut *world.delays.lock().unwrap());
        case.check("inward", delays);
    }
}
