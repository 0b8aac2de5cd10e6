//! A guest with a virtio-net behind vhost-user, whose split rings are written by hand: all receive buffers are available, and it can send.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_adapter::RingPlace;
use nicety_daemon::daemon::Daemon;
use nicety_daemon::serve;
use nicety_host::Host;
use nicety_memory::shared_file;
use nicety_vhost_user::frontend::{Bells, Frontend, Shared};
use tempfile::TempDir;

pub const MEMORY: u64 = 1 << 20;
pub const RECEIVE: RingPlace = RingPlace { size: 256, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
const TRANSMIT: RingPlace = RingPlace { size: 256, descriptors: 0x5000, driver: 0x6000, device: 0x7000 };
/// Guest-physical address of the receive buffers, 2 KiB each, in the ring's order.
pub const BUFFERS: u64 = 0x1_0000;
/// The last frames that it has sent, a slot for each, behind a header of virtio 1, and how many there are.
const FRAME: u64 = 0x9000;
const SLOT: u64 = 128;
const FRAMES: u64 = 32;
/// Bytes of the shortest frame (IEEE 802.3), without a frame check sequence.
const SHORTEST: usize = 60;
/// Bytes of that header (virtio 1.2, section 5.1.6), and of an Ethernet header.
const HEADER: u64 = 12;
const ETHERNET: u64 = 14;
/// Most bytes of a frame that it sends.
const FRAME_MAX: usize = (SLOT - HEADER) as usize;
/// VIRTIO_F_VERSION_1.
const VERSION_1: u64 = 1 << 32;

/// Most time for any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(60);

pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A daemon with virtio-net ports `vm1` and `vm2`.
pub fn two_ports() -> (TempDir, Host, Arc<Daemon>) {
    nicety_sandbox::begin_for_tests();
    let folder = TempDir::new().unwrap();
    let port = |number: u8| {
        format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:{number:02x}\"\n\
             socket = \"vm{number}.sock\"\n"
        )
    };
    let host = Host::parse(&[port(1), port(2)].concat(), &folder.path().join("host.toml")).unwrap();
    let daemon = Arc::new(serve::start(serve::prepare(&host, None).unwrap()).unwrap());
    (folder, host, daemon)
}

pub struct Guest {
    pub front: Frontend,
    pub memory: OwnedFd,
    pub features: u64,
    bells: Option<[Bells; 2]>,
    sent: u16,
    /// Frames that [`Guest::take`] has returned.
    took: u16,
}

impl Guest {
    /// A guest that connects to this socket. Its rings run.
    pub fn new(socket: PathBuf) -> Self {
        let mut guest = Self::waiting(socket);
        guest.start([0, 0]);
        guest
    }

    /// The same, whose rings do not run yet.
    pub fn waiting(socket: PathBuf) -> Self {
        let memory = shared_file("memory", MEMORY).unwrap();
        let write = |at: u64, bytes: &[u8]| _ = rustix::io::pwrite(&memory, bytes, at).unwrap();
        for index in 0..u64::from(RECEIVE.size) {
            // Address, length, VIRTQ_DESC_F_WRITE (virtio 1.2, section 2.7.5); then the available ring's entry.
            let buffer = BUFFERS + index * 2048;
            write(
                RECEIVE.descriptors + 16 * index,
                &[buffer.to_le_bytes(), (2048u64 | 2 << 32).to_le_bytes()].concat(),
            );
            write(RECEIVE.driver + 4 + 2 * index, &(index as u16).to_le_bytes());
        }
        write(RECEIVE.driver + 2, &RECEIVE.size.to_le_bytes());
        let mut front = Frontend::connect(socket).unwrap();
        let features = front.negotiate(VERSION_1).unwrap();
        front.share(&[Shared { base: 0, len: MEMORY, fd: memory.as_fd(), offset: 0 }]).unwrap();
        Self { front, memory, features, bells: None, sent: 0, took: 0 }
    }

    /// Starts both rings from these positions.
    pub fn start(&mut self, bases: [u32; 2]) {
        let places = [RECEIVE, TRANSMIT];
        self.bells = Some(
            [0, 1].map(|ring| self.front.start(ring, places[usize::from(ring)], bases[usize::from(ring)]).unwrap()),
        );
    }

    /// Stops both rings: their positions.
    pub fn stop(&mut self) -> [u32; 2] {
        [0, 1].map(|ring| self.front.stop(ring).unwrap())
    }

    /// The state of its port, as its front end reads it.
    pub fn save(&mut self) -> Vec<u8> {
        let (mut from, to) = std::io::pipe().unwrap();
        self.front.save_state(to.as_fd()).unwrap();
        drop(to);
        let mut state = Vec::new();
        from.read_to_end(&mut state).unwrap();
        self.front.check_state().unwrap();
        state
    }

    /// Passes a state to its port. The front end hears of no mistake in it.
    pub fn load(&mut self, state: &[u8]) {
        let (from, mut to) = std::io::pipe().unwrap();
        self.front.load_state(from.as_fd()).unwrap();
        to.write_all(state).unwrap();
        drop((from, to));
        self.front.check_state().unwrap();
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        rustix::io::pwrite(&self.memory, bytes, at).unwrap();
    }

    /// Sends a broadcast of 60 bytes from `source`, whose payload begins with `first`.
    pub fn send(&mut self, source: [u8; 6], first: u8) {
        self.send_to([0xff; 6], source, first);
    }

    /// The same to one address.
    pub fn send_to(&mut self, target: [u8; 6], source: [u8; 6], first: u8) {
        self.send_payload(target, source, &[first]);
    }

    /// The same with this payload, of which 46 bytes have room.
    pub fn send_payload(&mut self, target: [u8; 6], source: [u8; 6], payload: &[u8]) {
        let mut frame = [&target[..], &source, &[0x88, 0xb5], payload].concat();
        frame.resize(SHORTEST, 0);
        self.send_frame(&frame);
    }

    /// Sends a frame of at most [`FRAME_MAX`] bytes.
    pub fn send_frame(&mut self, frame: &[u8]) {
        self.add_frame(frame);
        self.kick();
    }

    /// Sends a frame, and notifies the device only if it wants that (virtio 1.2, section 2.7.13). Returns whether it has.
    pub fn send_as_asked(&mut self, frame: &[u8]) -> bool {
        self.add_frame(frame);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let wants = self.wants_kicks();
        if wants {
            self.kick();
        }
        wants
    }

    /// Whether the device wants notifications of frames: VIRTQ_USED_F_NO_NOTIFY is not set (virtio 1.2, section 2.7.8).
    pub fn wants_kicks(&self) -> bool {
        let mut flags = [0; 2];
        rustix::io::pread(&self.memory, &mut flags, TRANSMIT.device).unwrap();
        flags[0] & 1 == 0
    }

    fn kick(&self) {
        self.bells.as_ref().unwrap()[1].kick.ring().unwrap();
    }

    fn add_frame(&mut self, frame: &[u8]) {
        assert!(frame.len() <= FRAME_MAX, "{} bytes", frame.len());
        let slot = u64::from(self.sent % TRANSMIT.size);
        let at = FRAME + SLOT * (slot % FRAMES);
        self.write(at, &[&[0; HEADER as usize], frame].concat());
        let len = HEADER + frame.len() as u64;
        self.write(TRANSMIT.descriptors + 16 * slot, &[at.to_le_bytes(), len.to_le_bytes()].concat());
        self.write(TRANSMIT.driver + 4 + 2 * slot, &(slot as u16).to_le_bytes());
        self.sent = self.sent.wrapping_add(1);
        self.write(TRANSMIT.driver + 2, &self.sent.to_le_bytes());
    }

    /// Whether another frame can be sent: each that was not taken yet has a place of its own.
    pub fn has_room(&self) -> bool {
        u64::from(self.sent.wrapping_sub(self.used(TRANSMIT) as u16)) < FRAMES
    }

    /// Frames that it has received.
    pub fn received(&self) -> usize {
        self.used(RECEIVE)
    }

    /// Frames of its own that were taken.
    pub fn taken(&self) -> usize {
        self.used(TRANSMIT)
    }

    /// The first bytes of the payloads that have come since the last call. Their buffers are available again.
    pub fn take(&mut self) -> Vec<u8> {
        self.take_frames().iter().map(|frame| frame[ETHERNET as usize]).collect()
    }

    /// The frames that have come since the last call. Their buffers are available again.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        let mut index = [0; 2];
        rustix::io::pread(&self.memory, &mut index, RECEIVE.device + 2).unwrap();
        let used = u16::from_le_bytes(index);
        let mut came = Vec::new();
        while self.took != used {
            came.push(self.frame((self.took % RECEIVE.size).into()));
            self.took = self.took.wrapping_add(1);
        }
        // The available ring names the buffers in their order, and they are used in it.
        self.write(RECEIVE.driver + 2, &used.wrapping_add(RECEIVE.size).to_le_bytes());
        // After a burst the device may wait for buffers.
        if let Some([receive, _]) = self.bells.as_ref().filter(|_| !came.is_empty()) {
            receive.kick.ring().unwrap();
        }
        came
    }

    /// The frame in this buffer, whose length is in the used ring's entry (virtio 1.2, section 2.7.8).
    fn frame(&self, buffer: u64) -> Vec<u8> {
        let mut len = [0; 4];
        rustix::io::pread(&self.memory, &mut len, RECEIVE.device + 4 + 8 * buffer + 4).unwrap();
        let mut frame = vec![0; u32::from_le_bytes(len) as usize - HEADER as usize];
        rustix::io::pread(&self.memory, &mut frame, BUFFERS + 2048 * buffer + HEADER).unwrap();
        frame
    }

    fn used(&self, ring: RingPlace) -> usize {
        let mut index = [0; 2];
        rustix::io::pread(&self.memory, &mut index, ring.device + 2).unwrap();
        u16::from_le_bytes(index).into()
    }

    /// The first byte of the payload of its `number`th frame.
    pub fn first_byte(&self, number: usize) -> u8 {
        let mut byte = [0];
        let at = BUFFERS + number as u64 * 2048 + HEADER + ETHERNET;
        rustix::io::pread(&self.memory, &mut byte, at).unwrap();
        byte[0]
    }
}
