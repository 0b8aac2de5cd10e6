//! I/O control and pacing under a worker that comes late and is interrupted, as on a machine with more to do than processors: what it was late
//! by is passed on at once, so that no rate and no reservation is lost.

mod guests;
mod ringed;
mod silent;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use guests::{Guest, Received};
use nicety_adapter::{Batch, Budget, Context, Counters, Delivery, Frames, PortId, Progress, Rate, Time, Uplink};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_memory::Map;
use nicety_plane::{End, InwardControl, Plane, Port, Turn};
use nicety_switch::Limits;
use ringed::Traffic;
use silent::Silent;

const MS: u64 = 1_000_000;
const LEN: u64 = 1250;

/// A full link by which frames come in for guests 1, 2 and so on, at these rates. A queue keeps what nobody has fetched yet.
struct Link {
    map: Arc<Map>,
    mbits: Vec<u64>,
    fetched: Vec<u64>,
}

impl Uplink for Link {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, _: &mut Counters, now: Time) -> Progress {
        batch.start(&self.map, port, 0);
        let arrived = |mbit: &u64| now.0 / 1000 * mbit / 8 / LEN;
        let left = |fetched: &[u64]| fetched.iter().zip(&self.mbits).any(|(fetched, mbit)| *fetched < arrived(mbit));
        while left(&self.fetched) && budget.allows(batch) {
            for ((at, mbit), fetched) in (1..).zip(&self.mbits).zip(&mut self.fetched) {
                if *fetched < arrived(mbit) && budget.allows(batch) {
                    let mut draft = batch.draft(0).unwrap();
                    draft.push(4096 * at, LEN as u32).unwrap();
                    draft.finish_plain(0);
                    *fetched += 1;
                }
            }
        }
        Progress { more: left(&self.fetched), armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, _: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

/// Bytes of each guest in windows of 100 ms, of a link by which so many Mbit/s come in for each. The second has a reservation.
fn windows(seed: u64, mbits: &[u64], inward_mbit: u64, reserved_mbit: u64) -> Vec<Vec<u64>> {
    let mut random = Random(seed);
    let plane = Plane::new(Limits::default());
    let map = Map::private(1 << 16).unwrap();
    for target in 1..=mbits.len() as u8 {
        map.write(4096 * u64::from(target), &[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, 0, 0x88, 0xb5]).unwrap();
    }
    let link = Link { map: Arc::new(map), mbits: mbits.to_vec(), fetched: vec![0; mbits.len()] };
    let uplink = Port::new(PortId(0), End::link(Box::new(link)), Box::new(Silent), 256 << 10).unwrap();
    let (mut ports, mut received) = (vec![Arc::new(uplink)], Vec::new());
    for id in 1..=mbits.len() as u16 {
        let count = Received::default();
        ports.push(guests::port(id, Guest::new(&count)));
        received.push(count);
    }
    for port in &ports {
        plane.join(Arc::clone(port)).unwrap();
    }
    let mut turn = Turn::new();
    for port in &ports[1..] {
        port.with_rings(Time(1), |rings, cx| rings.kick(0, cx)).unwrap();
        while plane.turn(port, &mut turn, Time(1)).unfinished {}
    }
    let terms = Terms { shares: 1, reservation: Rate::new(reserved_mbit * 1_000_000), ..Terms::default() };
    let matches = vec![Match { ports: Some(vec![2]), ..Match::default() }];
    let terms = ClassTerms { class: terms, ..ClassTerms::default() };
    let reserved = Class { name: "reserved".to_owned(), terms, matches, ..Class::default() };
    let rest = Terms { shares: 100, ..Terms::default() };
    let rest = Class { terms: ClassTerms { class: rest, ..ClassTerms::default() }, ..Class::default() };
    let rate = Rate::new(inward_mbit * 1_000_000).unwrap();
    let control = InwardControl { rate, buffer_bytes: 4 << 20, classes: vec![rest, reserved] };
    ports[0].set_inward(Some(&control), Time(1)).unwrap();
    let (mut now, mut windows, mut before) = (Time(1), Vec::new(), Vec::new());
    for window in 1..=15u64 {
        while now.0 < window * 100 * MS {
            ports[0].ready();
            // It is interrupted after some turns, with work to do or without.
            let turns = 1 + random.below(20);
            for _ in 0..turns {
                if !ports.iter().any(|port| port.busy(now)) {
                    break;
                }
                for port in ports.iter().filter(|port| port.busy(now)) {
                    while plane.turn(port, &mut turn, now).unfinished {}
                }
            }
            // It comes back soon, or late.
            let late = if random.below(10) == 0 { 5 * MS + random.below(35 * MS) } else { random.below(MS) };
            now = now.after_ns(1 + late);
        }
        let counts: Vec<u64> = received.iter().map(|count| count[0].load(Ordering::Relaxed) * LEN).collect();
        if before.is_empty() {
            before = counts.iter().map(|_| 0).collect();
        }
        windows.push(counts.iter().zip(&before).map(|(now, before)| now - before).collect());
        before = counts;
    }
    windows
}

#[test]
fn a_worker_that_comes_late_passes_on_what_it_was_late_by() {
    for seed in 0..2 {
        let windows = windows(seed, &[600, 400], 900, 400);
        let mbit =
            |at: usize| -> Vec<f64> { windows[1..].iter().map(|window| window[at] as f64 * 8.0 / 100_000.0).collect() };
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let (greedy, reserved) = (mbit(0), mbit(1));
        println!("seed {seed}: {:.1} and {:.1} Mbit/s: {reserved:.0?}", mean(&greedy), mean(&reserved));
        // Once in ten times it pauses for 5 to 40 ms, with work left or without. Tokens of pauses with work left were lost once: 14 % of the
        // rate.
        assert!(mean(&reserved) >= 0.95 * 400.0, "{reserved:?}");
        assert!(mean(&greedy) + mean(&reserved) >= 0.94 * 900.0, "{greedy:?} {reserved:?}");
        assert!(mean(&greedy) + mean(&reserved) <= 1.01 * 900.0, "{greedy:?} {reserved:?}");
    }
}

/// A link that takes nothing until it opens, and then all. It notes when turns end with frames that wait.
struct Gated {
    opens: Time,
    pauses: Arc<Mutex<Vec<Time>>>,
}

impl Uplink for Gated {
    fn fetch(&mut self, port: PortId, _: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&Map::empty(), port, 0);
        Progress { more: false, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        if now < self.opens {
            return Delivery::all_refused(frames);
        }
        counters.received(0, frames.picks.len() as u64, 0);
        Delivery::default()
    }

    fn pause(&mut self, now: Time) {
        self.pauses.lock().unwrap().push(now);
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// A guest that sends this many broadcasts of 1000 bytes.
struct Sender(u64);

impl Traffic for Sender {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while self.0 > 0 && budget.allows(batch) {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, 1000).unwrap();
            draft.finish_plain(0);
            self.0 -= 1;
        }
        Progress { more: self.0 > 0, armed: true }
    }
}

/// So a limit loses no tokens while the worker serves others (`nicety_uplink::Paced`).
#[test]
fn an_uplink_is_told_when_a_turn_ends_with_frames_that_it_has_not_refused() {
    let (plane, pauses) = (Plane::new(Limits::default()), Arc::<Mutex<Vec<Time>>>::default());
    let link = Gated { opens: Time(MS), pauses: Arc::clone(&pauses) };
    let uplink = Arc::new(Port::new(PortId(0), End::link(Box::new(link)), Box::new(Silent), 256 << 10).unwrap());
    plane.join(Arc::clone(&uplink)).unwrap();
    let mut turn = Turn::new();
    for id in 1..=2 {
        // A batch; then it is held.
        let port = guests::port(id, Sender(64));
        plane.join(Arc::clone(&port)).unwrap();
        port.with_rings(Time(1), |rings, cx| rings.kick(0, cx)).unwrap();
        while plane.turn(&port, &mut turn, Time(1)).unfinished {}
    }
    let waiting = || uplink.state().backlog_frames;
    assert_eq!((waiting(), pauses.lock().unwrap().len()), (128, 0), "it has refused them");
    for left in [64, 0, 0] {
        uplink.ready();
        plane.turn(&uplink, &mut turn, Time(MS));
        assert_eq!((waiting(), pauses.lock().unwrap().as_slice()), (left, &[Time(MS)][..]));
    }
}
