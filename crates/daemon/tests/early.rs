//! Front ends that are quicker than their back end: one works as soon as its socket exists, one signals a kick descriptor and
//! replaces it. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nicety_adapter::RingPlace;
use nicety_adapters::find;
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_host::PortConfig;
use nicety_memory::{Map, Mapping, Rights, shared_file};
use nicety_switch::Limits;
use nicety_vhost_user::frontend::{Frontend, Shared};
use tempfile::TempDir;

const ROUNDS: u8 = 100;
const MEMORY: u64 = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);
const TRANSMIT: u16 = 1;
const VERSION_1: u64 = 1 << 32;
const PLACE: RingPlace = RingPlace { size: 64, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
const PACKET: u64 = 0x4000;
/// A virtio header of 12 bytes and the smallest frame.
const BYTES: u32 = 12 + 60;

/// A guest with one buffer that it sends over and over.
struct Guest {
    file: OwnedFd,
    memory: Map,
    sent: u16,
}

impl Guest {
    fn new() -> Self {
        let file = shared_file("guest", MEMORY).unwrap();
        let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, MEMORY, true).unwrap();
        let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
        memory.write(PACKET + 12, &[0xff; 6]).unwrap();
        // Section 2.7.5 of virtio 1.2: address, length, no flags.
        memory.write(PLACE.descriptors, &[PACKET.to_le_bytes(), u64::from(BYTES).to_le_bytes()].concat()).unwrap();
        Self { file, memory, sent: 0 }
    }

    fn join(&self, front: &mut Frontend) {
        front.negotiate(VERSION_1).unwrap();
        front.share(&[Shared { base: 0, len: MEMORY, fd: self.file.as_fd(), offset: 0 }]).unwrap();
    }

    /// Offers one more broadcast frame. Section 2.7.6: all entries name descriptor 0, and the index is the second word.
    fn offer(&mut self) {
        self.sent += 1;
        self.memory.write(PLACE.driver + 2, &self.sent.to_le_bytes()).unwrap();
    }

    /// Whether all buffers were returned in time.
    fn is_served(&self) -> bool {
        let (end, mut used) = (Instant::now() + TIMEOUT, [0; 2]);
        while used != self.sent.to_le_bytes() && Instant::now() < end {
            self.memory.read(PLACE.device + 2, &mut used).unwrap();
            thread::yield_now();
        }
        used == self.sent.to_le_bytes()
    }
}

/// Sends a frame as soon as `socket` exists. Returns whether the buffer was returned.
fn send(socket: &Path) -> bool {
    let mut guest = Guest::new();
    guest.offer();
    let end = Instant::now() + TIMEOUT;
    let mut front = loop {
        match Frontend::connect(socket) {
            Ok(front) => break front,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    guest.join(&mut front);
    let bells = front.start(TRANSMIT, PLACE, 0).unwrap();
    bells.kick.ring().unwrap();
    guest.is_served()
}

fn spec(name: &str, socket: PathBuf, last: u8) -> PortSpec {
    let entry = find("virtio-net").unwrap();
    PortSpec::plain(PortConfig::new(name, entry, nicety_frame::Mac([0x52, 0x54, 0, 0, 0, last]), socket))
}

fn a_ring_whose_kick_is_replaced_is_looked_at(workers: usize) {
    let dir = TempDir::new().unwrap();
    nicety_sandbox::begin_for_tests();
    let daemon = Daemon::start(Limits::default(), workers).unwrap();
    let socket = dir.path().join("sock");
    daemon.open(spec("vm", socket.clone(), 1)).unwrap();
    let (mut guest, mut front) = (Guest::new(), Frontend::connect(&socket).unwrap());
    guest.join(&mut front);
    let mut bells = Vec::new();
    for _ in 0..ROUNDS {
        // The front end configures the running ring again. The kick for this frame went to the old descriptor and was not read.
        guest.offer();
        bells.push(front.start(TRANSMIT, PLACE, 0).unwrap());
        assert!(guest.is_served(), "frame {}", guest.sent);
    }
    daemon.stop();
}

fn a_front_end_that_waits_for_its_socket_is_served(workers: usize) {
    let dir = TempDir::new().unwrap();
    nicety_sandbox::begin_for_tests();
    let daemon = Daemon::start(Limits::default(), workers).unwrap();
    let mut unserved = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("vm{round}");
        let socket = dir.path().join(format!("{name}.sock"));
        let path = socket.clone();
        let guest = thread::spawn(move || send(&path));
        daemon.open(spec(&name, socket, round)).unwrap();
        if !guest.join().unwrap() {
            unserved.push(round);
        }
        assert!(daemon.close(&name).is_some());
    }
    assert!(unserved.is_empty(), "of {ROUNDS} front ends these were not heard: {unserved:?}");
    daemon.stop();
}

with_one_worker_and_with_two!(
    a_front_end_that_waits_for_its_socket_is_served,
    a_ring_whose_kick_is_replaced_is_looked_at
);
