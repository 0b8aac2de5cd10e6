//! Deficit round-robin, counted: the service of a port that floods 255 others, between two turns of another port.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;

use nicety_adapter::{Batch, Budget, Context, Progress, Uplink};
use nicety_plane::doubles::{Linked, Silent, Traffic, frame, memory, send};
use nicety_plane::{End, Port};
use nicety_switch::Limits;
use nicety_uplink::Null;

use super::*;
use crate::run::port_log::PortLog;
use crate::run::service::QUANTUM;

const PORTS: u16 = 256;
/// The charge for a frame beside its bytes.
const FRAME: u64 = 256;
/// The largest cost of one turn: its limit, plus a batch to the last receiver.
const TURN: u64 = (128 << 10) + (64 << 10) + 1514 + 64 * FRAME;

/// An uplink that always has more frames, at most this many per turn.
pub(super) struct Source {
    len: u32,
    most: Arc<AtomicUsize>,
    fetches: Arc<AtomicU64>,
}

impl Source {
    pub fn new(len: u32, most: usize) -> Self {
        Self { len, most: Arc::new(AtomicUsize::new(most)), fetches: Arc::default() }
    }

    /// An uplink that sends frames of this length to everybody.
    pub fn uplink(self, from: u8) -> Linked<Self> {
        let frame = frame(0xff, from, self.len as usize);
        Linked::sending_from(self, memory(&frame))
    }
}

impl Traffic for Source {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        let most = self.most.load(Ordering::Relaxed);
        while budget.allows(batch) && batch.len() < most {
            send(batch, 0, self.len);
        }
        self.fetches.fetch_add(1, Ordering::Relaxed);
        Progress { more: true, armed: true }
    }
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
        let flood = Source::new(len, usize::MAX);
        // The port sends nothing, but always asks for more turns.
        let other = Source::new(60, 0);
        let (most, turns) = (Arc::clone(&flood.most), Arc::clone(&other.fetches));
        let mut ends: Vec<Box<dyn Uplink>> = vec![Box::new(flood.uplink(1)), Box::new(other.uplink(2))];
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
const MAX: u64 = ROUNDS * QUANTUM as u64 + TURN;

#[test]
fn a_port_that_floods_255_others_has_its_quantum_a_round_and_every_other_port_its_turn() {
    for len in [60, 1514] {
        let mut bench = Bench::new(len);
        let cost = bench.served(ROUNDS);
        assert_eq!(bench.turns.load(Ordering::Relaxed), ROUNDS, "a turn in each round");
        assert!(cost <= MAX && cost * 2 > MAX, "frames of {len} bytes: {cost} served in {ROUNDS} rounds, not {MAX}");
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
        assert!(cost <= MAX && cost * 2 > MAX, "frames of {len} bytes: {cost} served in {ROUNDS} rounds, not {MAX}");
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
