//! A port whose queue pairs two workers serve: opened and closed while others work, under a front end that comes again, and under one that
//! means harm.

#[allow(dead_code, reason = "these tests count frames by their queues")]
mod stage;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nicety_adapter::RingPlace;
use nicety_daemon::daemon::PortSpec;
use nicety_memory::{Map, Mapping, Rights, shared_file};
use nicety_vhost_user::frontend::{Bells, Frontend, Shared};
use stage::Stage;

const MEMORY: u64 = 256 << 10;
const VERSION_1: u64 = 1 << 32;
const MQ: u64 = 1 << 22;
const CTRL_VQ: u64 = 1 << 17;
/// Rings: receive, transmit, receive, transmit.
const RINGS: u16 = 4;
const SIZE: u16 = 64;
/// A virtio header of 12 bytes and the smallest frame.
const BYTES: u32 = 12 + 60;
const TIMEOUT: Duration = Duration::from_secs(20);

/// A guest whose driver has two queue pairs. Each transmit ring sends one buffer over and over.
struct Guest {
    memory: Map,
    front: Frontend,
    bells: Vec<Bells>,
    _file: OwnedFd,
}

/// The place of a ring: 64 KiB for each.
fn place(ring: u16) -> RingPlace {
    let base = u64::from(ring) << 16;
    RingPlace { size: SIZE, descriptors: base, driver: base + 0x2000, device: base + 0x3000 }
}

impl Guest {
    /// Connects to a port, with the ring of this number at each place.
    fn new(stage: &Stage, number: u8, rings: [u16; RINGS as usize]) -> Self {
        let file = shared_file("guest", MEMORY).unwrap();
        let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, MEMORY, true).unwrap();
        let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
        let mut front = Frontend::connect(stage.socket(number.into())).unwrap();
        assert_eq!(front.negotiate(VERSION_1 | MQ).unwrap() & MQ, MQ);
        assert_eq!(front.queue_pairs().unwrap(), 2);
        front.share(&[Shared { base: 0, len: MEMORY, fd: file.as_fd(), offset: 0 }]).unwrap();
        for ring in 0..RINGS {
            let (place, packet) = (place(ring), (u64::from(ring) << 16) + 0x4000);
            let is_receive = ring % 2 == 0;
            if !is_receive {
                let source = [0x52, 0x54, 0, 0, 0, number];
                memory.write(packet + 12, &[&[0xff; 6][..], &source, &[0x88, 0xb5]].concat()).unwrap();
            }
            for slot in 0..u64::from(SIZE) {
                // Section 2.7.5 of virtio 1.2: address, length, flags (2: the device writes), next.
                let (at, len) =
                    (packet + if is_receive { slot * 512 } else { 0 }, if is_receive { 512 } else { BYTES });
                let flags = if is_receive { 2u16 } else { 0 };
                let entry = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &[0; 2]].concat();
                memory.write(place.descriptors + 16 * slot, &entry).unwrap();
                memory.write(place.driver + 4 + 2 * slot, &(slot as u16).to_le_bytes()).unwrap();
            }
        }
        let bells = (0..).zip(rings).map(|(ring, at)| front.start(ring, place(at), 0).unwrap()).collect();
        Self { memory, front, bells, _file: file }
    }

    fn index(&self, at: u64) -> u16 {
        let mut word = [0; 2];
        self.memory.read(at + 2, &mut word).unwrap();
        u16::from_le_bytes(word)
    }

    /// Offers more buffers in a ring, and rings.
    fn offer(&self, ring: u16, count: u16) {
        let at = place(ring).driver;
        self.memory.write(at + 2, &self.index(at).wrapping_add(count).to_le_bytes()).unwrap();
        self.bells[usize::from(ring)].kick.ring().unwrap();
    }

    /// Waits until a ring's buffers were all returned.
    fn is_served(&self, ring: u16) -> bool {
        let (end, place) = (Instant::now() + TIMEOUT, place(ring));
        while self.index(place.device) != self.index(place.driver) && Instant::now() < end {
            std::thread::yield_now();
        }
        self.index(place.device) == self.index(place.driver)
    }
}

fn two(stage: &Stage, number: u8) -> PortSpec {
    let mut spec = stage.spec(number, "virtio-net");
    spec.config.workers = 2;
    spec.config.queues = Some(2);
    spec
}

/// Frames that a port's guest has sent, by queue.
fn sent(stage: &Stage, number: usize) -> [u64; 2] {
    let counters = stage.view(number).state.counters;
    [0, 1].map(|queue| counters.transmit[queue].frames)
}

#[test]
fn each_pair_has_its_worker_and_a_front_end_that_comes_again_finds_both() {
    let stage = Stage::new(2, &["e1000"]);
    stage.daemon.open(two(&stage, 2)).unwrap();
    let mut workers = stage.view(2).workers;
    workers.sort();
    assert_eq!(workers, [0, 1]);
    let mut front = Frontend::connect(stage.socket(2)).unwrap();
    assert_eq!(front.negotiate(MQ | CTRL_VQ).unwrap() & (MQ | CTRL_VQ), MQ, "its VMM runs the control queue");
    drop(front);
    stage.until("the front end has gone", || !stage.view(2).state.attached);
    for round in 1..=3 {
        let guest = Guest::new(&stage, 2, [0, 1, 2, 3]);
        for ring in [1, 3] {
            let (before, frames) = (stage.daemon.wakes(), sent(&stage, 2));
            let (own, queue) = (stage.view(2).workers[usize::from(ring / 2)], usize::from(ring / 2));
            let mut offered = 0;
            // A worker that busy polls need not be woken.
            stage.until("its own worker wakes", || {
                guest.offer(ring, 10);
                offered += 10;
                assert!(guest.is_served(ring), "round {round}, ring {ring}");
                stage.daemon.wakes()[own] > before[own]
            });
            stage.until("the frames are counted", || sent(&stage, 2)[queue] == frames[queue] + offered);
            assert_eq!(sent(&stage, 2)[1 - queue], frames[1 - queue]);
        }
        drop(guest);
        stage.until("the front end has gone", || !stage.view(2).state.attached);
    }
    let mut carried = [0; 2];
    stage.daemon.carried(&mut |name, _, bytes| carried = if name == "vm2" { bytes } else { carried });
    let counters = stage.view(2).state.counters;
    assert!(counters.transmit[..2].iter().all(|queue| queue.bytes > 0), "of both parts");
    assert_eq!(carried, [counters.transmitted().bytes, counters.taken().bytes]);
    stage.daemon.close("vm2").unwrap();
    assert!(stage.daemon.views().iter().all(|view| view.name != "vm2"));
    // Its numbers are free again.
    stage.daemon.open(two(&stage, 3)).unwrap();
    let guest = Guest::new(&stage, 3, [0, 1, 2, 3]);
    guest.offer(3, 10);
    assert!(guest.is_served(3));
}

#[test]
fn what_comes_for_the_guest_goes_to_the_pairs_that_it_has_enabled() {
    let stage = Stage::new(2, &[]);
    [1, 2].iter().for_each(|number| _ = stage.daemon.open(two(&stage, *number)).unwrap());
    let (sender, mut receiver) = (Guest::new(&stage, 1, [0, 1, 2, 3]), Guest::new(&stage, 2, [0, 1, 2, 3]));
    [0, 2].iter().for_each(|ring| receiver.offer(*ring, 32));
    let received = || [0, 1].map(|queue| stage.view(2).state.counters.receive[queue].frames);
    for (off, on) in [(0, 1), (1, 0)] {
        receiver.front.enable(2 * off, false).unwrap();
        receiver.front.enable(2 * on, true).unwrap();
        let before = received();
        sender.offer(1, 10);
        assert!(sender.is_served(1));
        stage.until("frames", || received()[usize::from(on)] == before[usize::from(on)] + 10);
        assert_eq!(received()[usize::from(off)], before[usize::from(off)], "pair {off} is off");
    }
}

#[test]
fn rings_of_both_parts_at_one_place_and_kicks_for_the_wrong_one_harm_nobody_else() {
    let stage = Stage::new(2, &["virtio-net"]);
    stage.daemon.open(two(&stage, 2)).unwrap();
    let neighbour = {
        let mut spec = stage.spec(3, "virtio-net");
        spec.config.queues = Some(2);
        stage.daemon.open(spec).unwrap();
        Guest::new(&stage, 3, [0, 1, 2, 3])
    };
    // Both transmit rings are one, in the memory that two workers read and write at once.
    let hostile = Guest::new(&stage, 2, [0, 1, 2, 1]);
    for _ in 0..200 {
        hostile.offer(1, 7);
        hostile.bells[3].kick.ring().unwrap();
        hostile.bells[0].kick.ring().unwrap();
    }
    for ring in [1, 3] {
        neighbour.offer(ring, 20);
        assert!(neighbour.is_served(ring), "the neighbour's ring {ring}");
    }
    assert!(stage.daemon.views().iter().all(|view| view.state.failed.is_none()));
}

#[test]
fn a_new_port_goes_to_the_worker_that_is_busy_least_though_it_has_most_ports() {
    let stage = Stage::new(2, &[]);
    let open = |number, worker| {
        let mut spec = stage.spec(number, "virtio-net");
        spec.config.worker = worker;
        spec.config.queues = Some(2);
        stage.daemon.open(spec).unwrap();
    };
    open(1, Some(0));
    [2, 3, 4].iter().for_each(|number| open(*number, Some(1)));
    let (guest, stop) = (Guest::new(&stage, 1, [0, 1, 2, 3]), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + 3 * TIMEOUT;
            while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                guest.offer(1, 32);
                guest.is_served(1);
            }
        });
        stage.until("frames", || sent(&stage, 1)[0] > 1000);
        // By their number alone it would be worker 0. On a busy machine a look may find that it had no processor.
        stage.until("a port at worker 1", || {
            open(5, None);
            let found = stage.view(5).workers == [1];
            stage.daemon.close("vm5").unwrap();
            found
        });
        stop.store(true, Ordering::Relaxed);
    });
}
