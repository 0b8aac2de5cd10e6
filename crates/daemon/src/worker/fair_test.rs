//! Deficit round-robin, counted: what a port that floods 255 others is served between two turns of another port.

use std::sync::atomic::{AtomicU64, Ordering};

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, Offload, Progress, Set, Uplink};
use nicety_memory::Map;
use nicety_plane::{End, Port, Shell};
use nicety_switch::Limits;
use nicety_uplink::Null;

use super::*;

const PORTS: u16 = 256;
/// What a frame counts for beside its bytes.
const FRAME: u64 = 256;
/// The most that one turn costs: what it may give, and a batch to the last receiver.
const TURN: u64 = (128 << 10) + (64 << 10) + 1514 + 64 * FRAME;

/// An end that always has more: at most so many frames a turn.
struct Source {
    map: Arc<Map>,
    len: u32,
    most: usize,
    fetches: Arc<AtomicU64>,
}

impl Source {
    fn new(target: u8, source: u8, len: u32, most: usize) -> Self {
        let map = Arc::new(Map::private(1 << 12).unwrap());
        let mut frame = vec![0; len as usize];
        frame[..6].fill(target);
        frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, source, 0x88, 0xb5]);
        map.write(0, &frame).unwrap();
        Self { map, len, most, fetches: Arc::default() }
    }
}

impl Uplink for Source {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        while budget.allows(batch) && batch.len() < self.most {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, self.len).unwrap();
            draft.finish(Offload::default(), 0);
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

/// Nobody to interrupt, and nobody to give a turn.
pub(super) struct Silent;

impl Shell for Silent {
    fn messages(&self, _vectors: Set) {}
    fn line(&self, _level: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _time: Time) {}
}

#[test]
fn a_port_that_floods_255_others_has_its_quantum_a_round_and_every_other_port_its_turn() {
    const ROUNDS: u64 = 200;
    for len in [60, 1514] {
        let plane = Arc::new(Plane::new(Limits::default()));
        let mut worker = Worker::new(Arc::clone(&plane), Clock::start(), Arc::new(Inbox::new().unwrap())).unwrap();
        let flood = Source::new(0xff, 1, len, usize::MAX);
        // It sends nothing, and always has more.
        let other = Source::new(0xff, 2, 60, 0);
        let turns = Arc::clone(&other.fetches);
        let mut ends: Vec<Box<dyn Uplink>> = vec![Box::new(flood), Box::new(other)];
        ends.extend((2..PORTS).map(|_| Box::new(Null) as Box<dyn Uplink>));
        let mut ports = Vec::new();
        for (id, end) in (0..PORTS).zip(ends) {
            let port = Arc::new(Port::new(PortId(id), End::Uplink(end), Box::new(Silent), 1 << 16).unwrap());
            plane.join(Arc::clone(&port)).unwrap();
            ports.push(port);
        }
        for port in &ports[..2] {
            let link = Link::Rings { kicks: Vec::new() };
            worker.serve(Service::new("vm", Arc::clone(port), Arc::default(), link));
            port.ready();
        }
        for _ in 0..ROUNDS {
            worker.turns();
        }
        assert_eq!(turns.load(Ordering::Relaxed), ROUNDS, "a turn in each round");
        let frames: u64 = ports[2..].iter().map(|port| port.state().counters.taken().packets).sum();
        // The other port takes its part of the flood too, uncounted.
        let cost = frames * (u64::from(len) + FRAME);
        let most = ROUNDS * QUANTUM as u64 + TURN;
        assert!(cost <= most && cost * 2 > most, "frames of {len} bytes: {cost} served in {ROUNDS} rounds, not {most}");
    }
}
