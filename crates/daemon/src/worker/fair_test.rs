//! Deficit round-robin, counted: the service of a port that floods 255 others, between two turns of another port.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, Progress, Set, Uplink};
use nicety_memory::Map;
use nicety_plane::{End, Port, Shell};
use nicety_switch::Limits;
use nicety_uplink::Null;

use super::*;
use crate::port_log::PortLog;
use crate::service::QUANTUM;

const PORTS: u16 = 256;
/// The charge for a frame beside its bytes.
const FRAME: u64 = 256;
/// The largest cost of one turn: its limit, plus a batch to the last receiver.
const TURN: u64 = (128 << 10) + (64 << 10) + 1514 + 64 * FRAME;

/// An uplink that always has more frames, at most this many per turn.
pub(super) struct Source {
    map: Arc<Map>,
    len: u32,
    most: Arc<AtomicUsize>,
    fetches: Arc<AtomicU64>,
}

impl Source {
    pub fn new(target: u8, source: u8, len: u32, most: usize) -> Self {
        let map = Arc::new(Map::private(1 << 12).unwrap());
        let mut frame = vec![0; len as usize];
        frame[..6].fill(target);
        frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, source, 0x88, 0xb5]);
        map.write(0, &frame).unwrap();
        Self { map, len, most: Arc::new(AtomicUsize::new(most)), fetches: Arc::default() }
    }
}

impl Uplink for Source {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        let most = self.most.load(Ordering::Relaxed);
        while budget.allows(batch) && batch.len() < most {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, self.len).unwrap();
            draft.finish_plain(0);
        }
        self.fetches.fetch_add(1, Ordering::Relaxed);
        Progress { more: true, armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, _: &Frames<'_>, _: &mut Counters, _: Time) -> Delivery {
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}

/// A shell without interrupts and turns.
pub(super) struct Silent;

impl Shell for Silent {
    fn messages(&self, _vectors: Set) {}
    fn line(&self, _level: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _time: Time) {}
}

/// A port that floods 254 others, and one that always gets its turn and sends nothing.
struct Bench {
    worker: Worker,
    ports: Vec<Arc<Port>>,
    /// The length of the flood's frames in bytes.
    len: u32,
    /// Most frames per turn.
    most: Arc<AtomicUsize>,
    /// Turns of the port that sends nothing.
    turns: Arc<AtomicU64>,
}

impl Bench {
    fn new(len: u32) -> Self {
        let plane = Arc::new(Plane::new(Limits::default()));
        let mut worker =
            Worker::new(Arc::clone(&plane), Clock::start(), Arc::new(Inbox::new().unwrap()), mpsc::channel().1)
                .unwrap();
        let flood = Source::new(0xff, 1, len, usize::MAX);
        // The port sends nothing, but always asks for more turns.
        let other = Source::new(0xff, 2, 60, 0);
        let (most, turns) = (Arc::clone(&flood.most), Arc::clone(&other.fetches));
        let mut ends: Vec<Box<dyn Uplink>> = vec![Box::new(flood), Box::new(other)];
        ends.extend((2..PORTS).map(|_| Box::new(Null) as Box<dyn Uplink>));
        let mut ports = Vec::new();
        for (id, end) in (0..PORTS).zip(ends) {
            let port = Arc::new(Port::new(PortId(id), End::link(end), Box::new(Silent), 1 << 16).unwrap());
            plane.join(Arc::clone(&port)).unwrap();
            ports.push(port);
        }
        for port in &ports[..2] {
            let link = Link::Rings { kicks: Vec::new() };
            let log = Arc::new(PortLog::new(port.id(), "vm", "e1000", worker.clock, Arc::clone(&worker.inbox)));
            worker.serve(Service::new(log, Arc::clone(port), Arc::default(), link));
            port.ready();
        }
        Self { worker, ports, len, most, turns }
    }

    /// The bytes that the flood was charged in this many more rounds. The other port's share is not counted.
    fn served(&mut self, rounds: u64) -> u64 {
        for _ in 0..rounds {
            self.worker.rounds += 1;
            self.worker.turns();
        }
        let frames: u64 = self.ports[2..].iter().map(|port| port.state().counters.taken().packets).sum();
        frames * (u64::from(self.len) + FRAME)
    }
}

const ROUNDS: u64 = 200;
const MOST: u64 = ROUNDS * QUANTUM as u64 + TURN;

#[test]
fn a_port_that_floods_255_others_has_its_quantum_a_round_and_every_other_port_its_turn() {
    for len in [60, 1514] {
        let mut bench = Bench::new(len);
        let cost = bench.served(ROUNDS);
        assert_eq!(bench.turns.load(Ordering::Relaxed), ROUNDS, "a turn in each round");
        assert!(cost <= MOST && cost * 2 > MOST, "frames of {len} bytes: {cost} served in {ROUNDS} rounds, not {MOST}");
    }
}

#[test]
fn turns_in_which_a_port_sent_nothing_are_not_saved_for_a_flood() {
    for len in [60, 1514] {
        let mut bench = Bench::new(len);
        bench.most.store(0, Ordering::Relaxed);
        assert_eq!(bench.served(ROUNDS), 0);
        bench.most.store(usize::MAX, Ordering::Relaxed);
        let cost = bench.served(ROUNDS);
        assert!(cost <= MOST && cost * 2 > MOST, "frames of {len} bytes: {cost} served in {ROUNDS} rounds, not {MOST}");
    }
}

#[test]
fn a_port_that_is_closed_in_the_middle_of_a_flood_is_heard_by_all_to_the_end() {
    let mut bench = Bench::new(1514);
    let flood = bench.ports[0].id();
    while bench.worker.services[&flood].turn.is_none() {
        bench.served(1);
    }
    bench.worker.remove(&[flood]);
    let taken: Vec<u64> = bench.ports[2..].iter().map(|port| port.state().counters.taken().packets).collect();
    assert!(taken[0] > 0 && taken.iter().all(|frames| *frames == taken[0]), "{taken:?}");
}

/// Each turn has some 100 KB. A thousand guests that flood once would leave 0.1 GB for good.
#[test]
fn of_the_turns_of_many_floods_four_are_kept_for_the_next() {
    let mut bench = Bench::new(60);
    for port in &bench.ports[2..34] {
        let log = Arc::new(PortLog::new(port.id(), "vm", "e1000", bench.worker.clock, Arc::clone(&bench.worker.inbox)));
        let link = Link::Rings { kicks: Vec::new() };
        let flooding =
            Service { turn: Some(Box::default()), ..Service::new(log, Arc::clone(port), Arc::default(), link) };
        bench.worker.serve(flooding);
    }
    bench.most.store(0, Ordering::Relaxed);
    bench.served(2);
    assert!(bench.worker.services.ports().iter().all(|id| bench.worker.services[id].turn.is_none()));
    assert_eq!(bench.worker.kept_turns.len(), 4);
}
