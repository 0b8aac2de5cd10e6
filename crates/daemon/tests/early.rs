//! Front ends that wait for their socket and go to work the moment it is there: each with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nicety_adapter::RingPlace;
use nicety_adapters::{Settings, find};
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_memory::{Map, Mapping, Rights, shared_file};
use nicety_switch::Limits;
use nicety_vhost_user::frontend::{Frontend, Shared};
use tempfile::TempDir;

const ROUNDS: u8 = 100;
const MEMORY: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
const TRANSMIT: u16 = 1;
const VERSION_1: u64 = 1 << 32;
const PLACE: RingPlace = RingPlace { size: 64, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
const PACKET: u64 = 0x4000;
/// A virtio header of 12 bytes, and the smallest frame.
const BYTES: u32 = 12 + 60;

/// Sends one broadcast frame as soon as `socket` is there. Whether it came back as sent.
fn send(socket: &Path) -> bool {
    let file = shared_file("guest", MEMORY).unwrap();
    let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, MEMORY, true).unwrap();
    let memory = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
    memory.write(PACKET + 12, &[0xff; 6]).unwrap();
    // Section 2.7.5 of virtio 1.2: address, length, no flags. Section 2.7.6: no flags, index 1, descriptor 0.
    memory.write(PLACE.descriptors, &[PACKET.to_le_bytes(), u64::from(BYTES).to_le_bytes()].concat()).unwrap();
    memory.write(PLACE.driver, &[0, 0, 1, 0, 0, 0]).unwrap();

    let end = Instant::now() + PATIENCE;
    let mut front = loop {
        match Frontend::connect(socket) {
            Ok(front) => break front,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    };
    front.negotiate(VERSION_1).unwrap();
    front.share(&[Shared { base: 0, len: MEMORY, fd: file.as_fd(), offset: 0 }]).unwrap();
    let bells = front.start(TRANSMIT, PLACE, 0).unwrap();
    bells.kick.ring().unwrap();
    let mut used = [0; 2];
    while used == [0, 0] && Instant::now() < end {
        memory.read(PLACE.device + 2, &mut used).unwrap();
        thread::yield_now();
    }
    used == [1, 0]
}

fn a_front_end_that_waits_for_its_socket_is_served(workers: usize) {
    let dir = TempDir::new().unwrap();
    let daemon = Daemon::start(Limits::default(), workers).unwrap();
    let mut deaf = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("vm{round}");
        let socket = dir.path().join(format!("{name}.sock"));
        let path = socket.clone();
        let guest = thread::spawn(move || send(&path));
        let settings = Settings::new(nicety_frame::Mac([0x52, 0x54, 0, 0, 0, round]));
        let entry = find("virtio-net").unwrap();
        let spec = PortSpec { name: name.clone(), entry, settings, socket, mapped: false, buffer_bytes: 1 << 20 };
        daemon.open(spec).unwrap();
        if !guest.join().unwrap() {
            deaf.push(round);
        }
        assert!(daemon.close(&name));
    }
    assert!(deaf.is_empty(), "of {ROUNDS} front ends these were not heard: {deaf:?}");
    daemon.stop();
}

with_one_worker_and_with_two!(a_front_end_that_waits_for_its_socket_is_served);
