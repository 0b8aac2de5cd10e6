//! Frames for a guest whose front end has stopped its rings for a moment, as QEMU does at each checkpoint of a VM and for the last step of
//! a migration: they wait. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod nic;
mod stage;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nic::{MIB, Nic, file};
use nicety_adapter::{Reason, RingPlace};
use nicety_vhost_user::frontend::{Frontend, Shared};
use stage::Stage;

const PLACE: RingPlace = RingPlace { size: 256, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
/// Frames that the other guest sends at a time.
const FRAMES: usize = 64;

/// A guest with a split receive ring, all of whose buffers are available.
struct Guest {
    front: Frontend,
    memory: OwnedFd,
}

impl Guest {
    fn new(stage: &Stage) -> Self {
        let memory = file("memory");
        let write = |at: u64, bytes: &[u8]| _ = rustix::io::pwrite(&memory, bytes, at).unwrap();
        for index in 0..u64::from(PLACE.size) {
            // Address, length, VIRTQ_DESC_F_WRITE (virtio 1.2, section 2.7.5); then the available ring's entry.
            let buffer = 0x1_0000 + index * 2048;
            write(PLACE.descriptors + 16 * index, &[buffer.to_le_bytes(), (2048u64 | 2 << 32).to_le_bytes()].concat());
            write(PLACE.driver + 4 + 2 * index, &(index as u16).to_le_bytes());
        }
        write(PLACE.driver + 2, &PLACE.size.to_le_bytes());
        let mut front = Frontend::connect(stage.socket(1)).unwrap();
        front.negotiate(1 << 32).unwrap();
        front.share(&[Shared { base: 0, len: MIB, fd: memory.as_fd(), offset: 0 }]).unwrap();
        let mut guest = Self { front, memory };
        guest.start(0);
        guest
    }

    fn start(&mut self, base: u32) {
        self.front.start(0, PLACE, base).unwrap();
        self.front.enable(0, true).unwrap();
    }

    /// Frames that its driver finds.
    fn used(&self) -> usize {
        let mut index = [0; 2];
        rustix::io::pread(&self.memory, &mut index, PLACE.device + 2).unwrap();
        u16::from_le_bytes(index).into()
    }
}

fn waiting(stage: &Stage) -> usize {
    stage.view(1).state.backlog_frames
}

fn dropped(stage: &Stage) -> u64 {
    stage.view(1).state.counters.receive_drops.iter().sum()
}

fn frames_wait_while_a_front_end_has_stopped_its_rings_and_come_in_order_when_it_starts_them(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net", "e1000"]);
    let (mut guest, mut sender) = (Guest::new(&stage), Nic::new(&stage, 2));
    sender.send().unwrap();
    stage.until("the first frames", || guest.used() == FRAMES);
    let base = guest.front.stop(0).unwrap();
    assert_eq!(base as usize, FRAMES);
    sender.send().unwrap();
    stage.until("frames that wait", || waiting(&stage) == FRAMES);
    guest.start(base);
    stage.until("frames that have waited", || guest.used() == 2 * FRAMES);
    stage.until("all of them counted", || stage.taken(1) as usize == 2 * FRAMES);
    assert_eq!((waiting(&stage), dropped(&stage)), (0, 0));
    for index in 0..2 * FRAMES as u64 {
        let mut byte = [0];
        // Behind the header of virtio 1 (12 bytes) and the Ethernet header.
        rustix::io::pread(&guest.memory, &mut byte, 0x1_0000 + index * 2048 + 12 + 14).unwrap();
        assert_eq!(u64::from(byte[0]), index, "in order");
    }
}

fn frames_for_rings_that_are_not_started_again_are_dropped_after_a_second_or_at_a_reset(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net", "e1000"]);
    let (mut guest, mut sender) = (Guest::new(&stage), Nic::new(&stage, 2));
    let off = |stage: &Stage| stage.view(1).state.counters.receive_drops[Reason::ReceiverOff as usize] as usize;
    sender.send().unwrap();
    stage.until("the first frames", || guest.used() == FRAMES);
    let (base, begin) = (guest.front.stop(0).unwrap(), Instant::now());
    sender.send().unwrap();
    stage.until("frames that wait", || waiting(&stage) == FRAMES);
    stage.until("their end", || off(&stage) == FRAMES);
    assert!(begin.elapsed() >= Duration::from_secs(1) && waiting(&stage) == 0, "{:?}", begin.elapsed());
    // Now they are dropped at once.
    sender.send().unwrap();
    stage.until("a drop", || off(&stage) == 2 * FRAMES);
    guest.start(base);
    guest.front.stop(0).unwrap();
    sender.send().unwrap();
    stage.until("frames that wait", || waiting(&stage) == FRAMES);
    guest.front.reset().unwrap();
    stage.until("their end", || off(&stage) == 3 * FRAMES);
    assert!(waiting(&stage) == 0);
}

with_one_worker_and_with_two!(
    frames_wait_while_a_front_end_has_stopped_its_rings_and_come_in_order_when_it_starts_them,
    frames_for_rings_that_are_not_started_again_are_dropped_after_a_second_or_at_a_reset,
);
