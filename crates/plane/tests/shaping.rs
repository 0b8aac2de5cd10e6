//! A shaped port: exact in the long term and in every window, by the test's own clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nicety_adapter::{
    Batch, Budget, Checksum, Context, Delivery, Frames, Offload, PEAK_NS, PortId, Progress, Rate, Reason, Segment,
    SegmentKind, Shape, Time,
};
use nicety_memory::Map;
use nicety_plane::doubles::{Memo, Ringed, Traffic};
use nicety_plane::{End, Intake, Plane, Port, Prospect, Trace, TraceError, Turn};
use nicety_switch::{Limits, Policy};

const SECOND: u64 = 1_000_000_000;
const BUFFER: u32 = 4 << 20;

/// Time and bytes of each packet.
type Deliveries = Arc<Mutex<Vec<(u64, u64)>>>;

/// A guest with this many packets to send, and room for this many.
struct Guest {
    len: u32,
    mss: Option<u16>,
    left: Arc<AtomicU64>,
    room: Arc<AtomicU64>,
    sent: Deliveries,
    got: Deliveries,
}

impl Traffic for Guest {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        while self.left.load(Ordering::Relaxed) > 0 && budget.allows(batch) {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, self.len).unwrap();
            let segment = self.mss.and_then(|mss| Segment::of(SegmentKind::Tcp, mss, 54, self.len));
            let checksum = segment.map_or(Checksum::AsIs, |_| Checksum::Partial { start: 34, field: 50 });
            draft.finish(Offload { checksum, segment }, 0).unwrap();
            self.left.fetch_sub(1, Ordering::Relaxed);
        }
        let bytes = batch.packets().iter().map(nicety_adapter::Packet::wire_bytes).sum();
        cx.counters.sent(0, 1, bytes);
        self.sent.lock().unwrap().push((cx.now.0, bytes));
        Progress { more: self.left.load(Ordering::Relaxed) > 0, armed: true }
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let (mut delivery, mut bytes) = (Delivery::default(), 0);
        for (index, pick, packet) in frames.iter() {
            if delivery.refused() != 0 || self.room.load(Ordering::Relaxed) == 0 {
                delivery.refuse(index, 3, pick.from.into());
                continue;
            }
            self.room.fetch_sub(1, Ordering::Relaxed);
            cx.counters.received(0, 1, packet.wire_bytes());
            bytes += packet.wire_bytes();
        }
        self.got.lock().unwrap().push((cx.now.0, bytes));
        delivery
    }

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        // Like a driver that has sent, and has returned buffers to queue 3.
        cx.out.work.insert(ring);
        cx.out.room.insert(3);
    }
}

struct Station {
    port: Arc<Port>,
    left: Arc<AtomicU64>,
    room: Arc<AtomicU64>,
    sent: Deliveries,
    got: Deliveries,
    memo: Memo,
}

/// Stations 0 and 1, which send to each other.
struct World {
    plane: Plane,
    stations: Vec<Station>,
    turn: Turn,
    now: Time,
    /// Requested wake-up times that have not arrived.
    wakes: Vec<Time>,
}

impl World {
    fn new(len: u32, mss: Option<u16>) -> Self {
        let plane = Plane::new(Limits::default());
        let stations = [0u8, 1].map(|id| {
            let (left, room): (Arc<AtomicU64>, _) = (Arc::default(), Arc::new(AtomicU64::new(u64::MAX)));
            let (sent, got) = (Deliveries::default(), Deliveries::default());
            let guest = Guest {
                len,
                mss,
                left: Arc::clone(&left),
                room: Arc::clone(&room),
                sent: Arc::clone(&sent),
                got: Arc::clone(&got),
            };
            let memo = Memo::default();
            let shell = Box::new(memo.clone());
            let port =
                Arc::new(Port::new(PortId(id.into()), End::guest(Box::new(Ringed(guest))), shell, BUFFER).unwrap());
            plane.join(Arc::clone(&port)).unwrap();
            port.attach();
            let map = Map::private(1 << 17).unwrap();
            // TCP over IPv4, as far as a parser reads.
            let mut head = [0; 54];
            head[..15].copy_from_slice(&[2, 0, 0, 0, 0, 1 - id, 2, 0, 0, 0, 0, id, 8, 0, 0x45]);
            (head[23], head[46]) = (6, 0x50);
            map.write(0, &head).unwrap();
            port.set_memory(Arc::new(map), Time::ZERO);
            Station { port, left, room, sent, got, memo }
        });
        let stations = stations.into_iter().collect();
        Self { plane, stations, turn: Turn::new(), now: Time(SECOND), wakes: Vec::new() }
    }

    fn shape(&self, station: usize, policy: &Policy) {
        self.plane.set_policy(&self.stations[station].port, policy);
    }

    fn give(&mut self, station: usize, packets: u64) {
        let Station { port, left, .. } = &self.stations[station];
        left.store(packets, Ordering::Relaxed);
        port.with_rings(self.now, |rings, cx| rings.kick(0, cx)).unwrap();
    }

    fn settle(&mut self) {
        while let Some(at) = self.stations.iter().position(|station| station.port.busy(self.now)) {
            while self.plane.turn(&self.stations[at].port, &mut self.turn, self.now).unfinished {}
        }
    }

    /// Runs until this time, with turns at the requested times only.
    fn run_until(&mut self, end: Time) {
        loop {
            self.settle();
            let take = |station: &Station| std::mem::take(&mut station.memo.asked().wakes);
            self.wakes.extend(self.stations.iter().flat_map(take));
            self.wakes.retain(|at| *at > self.now);
            match self.wakes.iter().copied().min() {
                Some(at) if at <= end => {
                    self.now = at;
                    for station in &self.stations {
                        // Like a worker when a wake-up time arrives.
                        while self.plane.turn(&station.port, &mut self.turn, at).unfinished {}
                    }
                }
                _ => break,
            }
        }
        self.now = end;
    }
}

fn shape(average: u64, peak: Option<u64>, burst_bytes: u64) -> Shape {
    Shape { average: Rate::new(average).unwrap(), peak: peak.and_then(Rate::new), burst_bytes }
}

/// Checks that every window of the journal keeps to the shape, and the whole to its average.
fn check(journal: &Deliveries, shape: Shape, longest: u64, from: u64, until: u64) {
    let journal: Vec<(u64, u64)> = journal.lock().unwrap().iter().copied().filter(|(_, bytes)| *bytes > 0).collect();
    let bytes_at = |rate: Rate, ns: u64| (u128::from(rate.bits_per_second()) * u128::from(ns) / 8_000_000_000) as u64;
    // The largest excess over a line of this slope: the most that any window has above rate × length.
    let excess = |rate: Rate| {
        let (mut sum, mut least, mut most) = (0i128, i128::MAX, 0i128);
        for (at, bytes) in &journal {
            let line = i128::from(bytes_at(rate, at - from));
            least = least.min(sum - line);
            sum += i128::from(*bytes);
            most = most.max(sum - line - least);
        }
        most
    };
    let above = excess(shape.average);
    assert!(
        above <= i128::from(shape.burst_bytes + longest),
        "a window has {above} bytes above the average, of {shape}"
    );
    if let Some(peak) = shape.peak {
        let above = excess(peak);
        let depth = bytes_at(peak, PEAK_NS);
        assert!(above <= i128::from(depth + longest), "a window has {above} bytes above the peak, of {shape}");
        assert!(above <= i128::from(shape.burst_bytes), "bucket plus peak: {above}, of {shape}");
    }
    let sum: u64 = journal.iter().map(|(_, bytes)| bytes).sum();
    let ideal = bytes_at(shape.average, until - from) + shape.burst_bytes;
    let off = sum.abs_diff(ideal) as f64 / ideal as f64;
    assert!(off < 0.001, "{sum} bytes of {ideal}: {off:.5} off, of {shape}");
}

const SHAPES: [(u64, Option<u64>, u64); 5] = [
    (100_000_000, None, 256 << 10),
    (100_000_000, Some(200_000_000), 256 << 10),
    (1_000_000_000, Some(3_000_000_000), 2 << 20),
    (950_000, Some(1_000_000), 128 << 10),
    (9_990_000_000, None, 1 << 20),
];

#[test]
fn what_a_guest_sends_keeps_to_its_shape_in_the_long_term_and_in_every_window() {
    for (average, peak, burst) in SHAPES {
        for (len, mss) in [(60, None), (1514, None), (64_000, Some(1460))] {
            if len == 60 && average != 100_000_000 {
                continue;
            }
            let seconds = if len == 60 { 1 } else { (1_000_000_000 / average).clamp(1, 1000) };
            let mut world = World::new(len, mss);
            let shape = shape(average, peak, burst);
            world.shape(0, &Policy { transmit: Some(shape), ..Policy::default() });
            let from = world.now.0;
            world.give(0, u64::MAX);
            let until = from + seconds * SECOND;
            world.run_until(Time(until));
            let longest = if mss.is_some() { 66_400 + 2400 } else { u64::from(len) };
            check(&world.stations[0].sent, shape, longest, from, until);
            assert!(world.stations[0].left.load(Ordering::Relaxed) > 0, "the rest waits in the guest's ring");
            let dropped: u64 = world.stations[1].port.state().counters.receive_drops.iter().sum();
            assert_eq!(dropped, 0);
        }
    }
}

#[test]
fn what_a_guest_gets_keeps_to_its_shape_and_waits_in_its_receive_buffer() {
    for (average, peak, burst) in [SHAPES[0], SHAPES[1], SHAPES[2]] {
        for (len, mss) in [(1514, None), (64_000, Some(1460))] {
            let mut world = World::new(len, mss);
            let shape = shape(average, peak, burst);
            // Sends twice as fast as the receiver's shape permits.
            let twice = Shape { average: Rate::new(2 * average).unwrap(), peak: None, burst_bytes: burst };
            world.shape(0, &Policy { transmit: Some(twice), ..Policy::default() });
            world.shape(1, &Policy { receive: Some(shape), ..Policy::default() });
            let from = world.now.0;
            world.give(0, u64::MAX);
            let until = from + (1_000_000_000 / average).max(1) * SECOND;
            world.run_until(Time(until));
            let longest = if mss.is_some() { 66_400 + 2400 } else { u64::from(len) };
            check(&world.stations[1].got, shape, longest, from, until);
            let state = world.stations[1].port.state();
            let dropped = state.counters.receive_drops[Reason::BufferFull as usize];
            assert!(dropped > 0 && state.backlog_bytes > u64::from(BUFFER) * 9 / 10, "its buffer is full");
            // Each frame counts once: received, waiting or dropped.
            let sent: u64 = world.stations[0].sent.lock().unwrap().iter().map(|(_, bytes)| bytes).sum();
            let frame = if mss.is_some() { 64_000 + 43 * 54 } else { u64::from(len) };
            let got = state.counters.taken().packets;
            assert_eq!(sent / frame, got + state.backlog_frames as u64 + dropped);
        }
    }
}

#[test]
fn the_time_for_which_frames_wait_for_tokens_is_counted_in_each_direction() {
    const MS: u64 = 1_000_000;
    let throttled = |world: &World, station: usize| {
        let counters = world.stations[station].port.state().counters;
        [counters.transmit_throttled_ns / MS, counters.receive_throttled_ns / MS]
    };
    // A frame takes a millisecond of tokens: 100 frames go at once, and the last of the others after 500 ms.
    let shape = Some(shape(8_000_000, None, 100_000));
    let mut world = World::new(1000, None);
    world.shape(0, &Policy { transmit: shape, ..Policy::default() });
    world.give(0, 600);
    world.run_until(Time(SECOND + 250 * MS));
    assert!((248..=250).contains(&throttled(&world, 0)[0]), "{:?}: it grows meanwhile", throttled(&world, 0));
    world.run_until(Time(3 * SECOND));
    assert!((498..=501).contains(&throttled(&world, 0)[0]), "{:?}", throttled(&world, 0));
    assert_eq!((throttled(&world, 0)[1], throttled(&world, 1)), (0, [0, 0]));
    let mut world = World::new(1000, None);
    world.shape(1, &Policy { receive: shape, ..Policy::default() });
    world.give(0, 600);
    world.run_until(Time(3 * SECOND));
    assert!((498..=501).contains(&throttled(&world, 1)[1]), "{:?}", throttled(&world, 1));
    assert_eq!((throttled(&world, 1)[0], throttled(&world, 0)), (0, [0, 0]));
}

#[test]
fn frames_that_a_full_guest_refuses_are_charged_once_and_come_in_order_when_it_has_room() {
    let mut world = World::new(1000, None);
    let shape = shape(8_000_000, None, 100_000);
    world.shape(1, &Policy { receive: Some(shape), ..Policy::default() });
    world.stations[1].room.store(0, Ordering::Relaxed);
    world.give(0, 500);
    world.run_until(Time(2 * SECOND));
    assert_eq!(world.stations[1].port.state().backlog_frames, 500);
    world.stations[1].room.store(u64::MAX, Ordering::Relaxed);
    let (from, kick) = (world.now.0, 1);
    world.give(kick, 0);
    // The bucket is still full: refused frames were not charged. 100 frames at once, then a thousand per second.
    world.settle();
    let got = world.stations[1].port.state().counters.taken().packets;
    assert!((100..=101).contains(&got), "{got}");
    world.run_until(Time(from + 200_000_000));
    let got = world.stations[1].port.state().counters.taken().packets;
    assert!((299..=301).contains(&got), "{got}");
    world.run_until(Time(from + SECOND));
    assert_eq!(world.stations[1].port.state().counters.taken().packets, 500);
}

#[test]
fn a_shape_that_is_taken_away_lets_go_what_waits() {
    let mut world = World::new(1000, None);
    world.shape(1, &Policy { receive: Some(shape(8_000, None, 64 << 10)), ..Policy::default() });
    world.shape(0, &Policy { transmit: Some(shape(8_000_000, None, 64 << 10)), ..Policy::default() });
    world.give(0, 1000);
    world.run_until(Time(SECOND + 1_000_000));
    assert!(world.stations[0].left.load(Ordering::Relaxed) > 900);
    world.shape(0, &Policy::default());
    world.settle();
    assert_eq!(world.stations[0].left.load(Ordering::Relaxed), 0);
    assert!(world.stations[1].port.state().backlog_frames > 900);
    world.shape(1, &Policy::default());
    world.settle();
    assert_eq!(world.stations[1].port.state().backlog_frames, 0);
    assert_eq!(world.stations[1].port.state().counters.taken().packets, 1000);
    world.give(0, 10);
    world.settle();
    assert_eq!(world.stations[1].port.state().counters.taken().packets, 1010, "and later ones do not wait");
}

#[test]
fn the_same_shape_again_does_not_fill_the_bucket() {
    let mut world = World::new(1000, None);
    let policy = Policy { transmit: Some(shape(8_000_000, None, 100_000)), ..Policy::default() };
    world.shape(0, &policy);
    world.give(0, u64::MAX);
    world.settle();
    let sent = |world: &World| world.stations[0].port.state().counters.transmitted().bytes;
    let before = sent(&world);
    for _ in 0..100 {
        world.shape(0, &policy);
        world.settle();
    }
    assert_eq!(sent(&world), before);
}

#[test]
fn a_shaped_port_that_has_nothing_to_do_asks_for_nothing() {
    let mut world = World::new(1000, None);
    let slow = Some(shape(8_000, None, 64 << 10));
    for station in 0..2 {
        world.shape(station, &Policy { transmit: slow, receive: slow, ..Policy::default() });
    }
    world.give(0, 10);
    world.run_until(Time(100 * SECOND));
    for station in &world.stations {
        assert!(!station.port.busy(world.now));
        assert_eq!(station.memo.asked().wakes.len(), 0, "no timer that nobody needs");
    }
}

#[test]
fn refusals_are_told_once_a_second_if_they_are_to_be_told() {
    let mut world = World::new(1000, None);
    let policy = Policy { forged_transmits: false, log: true, ..Policy::default() };
    world.shape(0, &policy);
    for _ in 0..50 {
        world.give(0, 10);
        world.settle();
        world.now = world.now.after_ns(SECOND / 10);
    }
    assert_eq!(world.stations[0].memo.asked().refused, [Reason::Forged; 5]);
    let counters = world.stations[0].port.state().counters;
    assert_eq!(counters.transmit_drops[Reason::Forged as usize], 500);
    world.shape(0, &Policy { log: false, ..policy });
    world.give(0, 10);
    world.settle();
    assert_eq!(world.stations[0].memo.asked().refused, [Reason::Forged; 5]);
}

#[test]
fn a_frame_that_is_traced_waits_for_tokens_as_a_real_one_would_and_spends_none() {
    let mut world = World::new(1000, None);
    let frame = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 8, 0][..], &[0; 986]].concat();
    let trace = |world: &World| {
        let Trace { intake, receivers, dropped, .. } = world.plane.trace(PortId(0), &frame, world.now).unwrap();
        assert_eq!((receivers.len(), dropped), (1, None));
        (intake, receivers[0].2)
    };
    assert_eq!(trace(&world), (Intake::Fetches, Prospect::Offered { driven: true }));
    world.shape(0, &Policy { transmit: Some(shape(8_000_000, None, 64 << 10)), ..Policy::default() });
    world.shape(1, &Policy { receive: Some(shape(800_000, None, 64 << 10)), ..Policy::default() });
    for _ in 0..200 {
        assert_eq!(trace(&world), (Intake::Fetches, Prospect::Offered { driven: true }), "full buckets");
    }
    world.give(0, 2000);
    world.settle();
    let (intake, prospect) = trace(&world);
    let Intake::Tokens(at) = intake else { panic!("{intake:?}") };
    assert!(at > world.now && at < world.now.after_ns(10_000_000), "{at:?}");
    assert!(matches!(prospect, Prospect::Waits(_)), "{prospect:?}");
    let counted = world.stations.iter().map(|station| station.port.state().counters).collect::<Vec<_>>();
    trace(&world);
    let again = world.stations.iter().map(|station| station.port.state().counters).collect::<Vec<_>>();
    assert_eq!(again, counted);
    // Until its receive buffer is full.
    world.stations[1].room.store(0, Ordering::Relaxed);
    world.shape(0, &Policy::default());
    world.give(0, 5000);
    world.settle();
    assert_eq!(trace(&world).1, Prospect::Dropped(Reason::BufferFull));
    world.stations[1].port.detach(world.now);
    assert_eq!(trace(&world).1, Prospect::Dropped(Reason::NoVm));
    assert!(matches!(world.plane.trace(PortId(7), &frame, world.now), Err(TraceError::Missing)));
    assert!(matches!(world.plane.trace(PortId(0), &[], world.now), Err(TraceError::Length(0))));
}
