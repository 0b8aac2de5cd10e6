//! Memory that changes while frames fly: a VMM unmaps it, punches holes into it, or truncates it. The guests are bare: an
//! 82540EM by hand, with its rings in one memory file and its buffers in another; each with one worker and with two.

#[macro_use]
mod workers;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_adapter::{Reason, RingPlace};
use nicety_adapters::{Settings, find};
use nicety_daemon::daemon::{Daemon, PortSpec, PortView};
use nicety_memory::{Map, Mapping, Rights};
use nicety_switch::Limits;
use nicety_vfio_user::{Client, ClientError, DmaProtection, DmaRange};
use nicety_vhost_user::frontend::{Frontend, Shared};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use tempfile::TempDir;

const CONFIG: u32 = 7;
const BOTH: DmaProtection = DmaProtection { read: true, write: true };
const MIB: u64 = 1 << 20;
/// The rings' file is at 0, the buffers' behind it.
const RINGS: DmaRange = DmaRange { address: 0, size: MIB };
const BUFFERS: DmaRange = DmaRange { address: MIB, size: MIB };
const TRANSMIT: u64 = 0x1000;
const RECEIVE: u64 = 0x4000;
/// Descriptors of each ring; as many buffers of 2 KiB, for both.
const RING: u32 = 256;
const FRAME: usize = 1000;
/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file that can shrink: what a guest's memory is, unless its VMM seals it.
fn file(name: &str) -> OwnedFd {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, MIB).unwrap();
    fd
}

/// The same memory, seen by who owns it.
fn seen(file: &OwnedFd) -> Map {
    let mapping = Mapping::of_file(file.try_clone().unwrap(), 0, MIB, true).unwrap();
    Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap()
}

struct Stage {
    daemon: Daemon,
    dir: TempDir,
}

impl Stage {
    fn new(workers: usize, adapters: &[&str]) -> Stage {
        let dir = TempDir::new().unwrap();
        let daemon = Daemon::start(Limits::default(), workers).unwrap();
        for (number, adapter) in (1..).zip(adapters) {
            let name = format!("vm{number}");
            let socket = dir.path().join(format!("{name}.sock"));
            let settings = Settings::new(nicety_frame::Mac([0x52, 0x54, 0, 0, 0, number]));
            let entry = find(adapter).unwrap();
            daemon.open(PortSpec { name, entry, settings, socket, mapped: false, buffer_bytes: 1 << 20 }).unwrap();
        }
        Stage { daemon, dir }
    }

    fn socket(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("vm{number}.sock"))
    }

    fn view(&self, number: usize) -> PortView {
        self.daemon.views().into_iter().find(|view| view.name == format!("vm{number}")).unwrap()
    }

    /// Frames that a guest took.
    fn taken(&self, number: usize) -> u64 {
        self.view(number).state.counters.taken().packets
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.daemon.stop();
    }
}

/// A guest with an 82540EM whose driver keeps to the datasheet (8254x manual, chapters 3 and 13), but asks for nothing that
/// takes time: no reset, no EEPROM, no PHY.
struct Nic {
    client: Client,
    files: [OwnedFd; 2],
    rings: Map,
    buffers: Map,
    tail: u32,
}

impl Nic {
    fn new(stage: &Stage, number: usize) -> Nic {
        let client = Client::connect(stage.socket(number)).unwrap();
        let files = [file("rings"), file("buffers")];
        let (rings, buffers) = (seen(&files[0]), seen(&files[1]));
        let mut nic = Nic { client, files, rings, buffers, tail: 0 };
        nic.client.region_write(CONFIG, 4, &[7, 0]).unwrap();
        nic.map(RINGS).unwrap();
        nic.map(BUFFERS).unwrap();
        nic.lay();
        // CTRL: set link up. Base, length, head and tail of each ring; then what turns it on.
        nic.write(0, 0x40).unwrap();
        for (ring, base, control, on) in [(0x2800, RECEIVE, 0x100, 0x8002), (0x3800, TRANSMIT, 0x400, 0x0004_010a)] {
            for (offset, value) in [(0, base as u32), (4, 0), (8, RING * 16), (0x10, 0), (0x18, 0)] {
                nic.write(ring + offset, value).unwrap();
            }
            nic.write(control, on).unwrap();
        }
        nic.write(0x2818, RING - 1).unwrap();
        nic
    }

    fn map(&mut self, range: DmaRange) -> Result<(), ClientError> {
        let file = &self.files[(range.address / MIB) as usize];
        self.client.dma_map(range, BOTH, Some((file.as_fd(), 0)))
    }

    /// Descriptors and frames, broadcast.
    fn lay(&mut self) {
        for index in 0..u64::from(RING) {
            let buffer = index * 2048;
            // IFCS, RS and EOP.
            let command = 0x0b00_0000u32 | FRAME as u32;
            let transmit = [(MIB + buffer).to_le_bytes(), u64::from(command).to_le_bytes()].concat();
            self.rings.write(TRANSMIT + index * 16, &transmit).unwrap();
            let receive = [(MIB + 512 * 1024 + buffer % (512 * 1024)).to_le_bytes(), [0; 8]].concat();
            self.rings.write(RECEIVE + index * 16, &receive).unwrap();
            let frame = [&[0xff; 6][..], &[0x52, 0x54, 0, 0, 0, 1, 0x88, 0xb5], &[index as u8; FRAME - 14]].concat();
            self.buffers.write(buffer % (512 * 1024), &frame).unwrap();
        }
    }

    fn write(&mut self, register: u64, value: u32) -> Result<(), ClientError> {
        self.client.region_write(0, register, &value.to_le_bytes())
    }

    fn read(&mut self, register: u64) -> Result<u32, ClientError> {
        let mut bytes = [0; 4];
        self.client.region_read(0, register, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// 64 frames more; they fly when this returns.
    fn send(&mut self) -> Result<(), ClientError> {
        self.tail = (self.tail + 64) % RING;
        self.write(0x3818, self.tail)
    }

    /// All buffers that frames have come to are there for the next ones.
    fn repost(&mut self) -> Result<(), ClientError> {
        let head = self.read(0x2810)?;
        self.write(0x2818, (head + RING - 1) % RING)
    }
}

fn memory_may_be_unmapped_while_frames_fly_and_is_not_touched_afterwards(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    for round in 0..200 {
        sender.send().unwrap();
        receiver.repost().unwrap();
        match round % 10 {
            3 => {
                sender.client.dma_unmap(BUFFERS).unwrap();
                sender.send().unwrap();
                sender.read(0x08).unwrap();
                sender.map(BUFFERS).unwrap();
            }
            7 => {
                sender.send().unwrap();
                receiver.client.dma_unmap(BUFFERS).unwrap();
                // The answer is the promise: from here on these pages are the VMM's alone.
                let mark = [0x77; 512 << 10];
                receiver.buffers.write(512 << 10, &mark).unwrap();
                for _ in 0..3 {
                    sender.send().unwrap();
                    receiver.repost().unwrap();
                }
                let mut now = vec![0; mark.len()];
                receiver.buffers.read(512 << 10, &mut now).unwrap();
                assert!(now == mark, "round {round}: it was written to after it was unmapped");
                receiver.map(BUFFERS).unwrap();
            }
            _ => {}
        }
    }
    let before = stage.taken(2);
    stage.until("frames fly again", || {
        sender.send().unwrap();
        receiver.repost().unwrap();
        stage.taken(2) > before + 64
    });
    let lost = |number: usize| stage.view(number).state.counters;
    assert!(lost(1).transmit_drops[Reason::BadAddress as usize] > 0, "some were sent from where nothing was");
    assert!(lost(2).receive_drops.iter().sum::<u64>() > 0, "some came to where nothing was");
}

fn holes_punched_under_traffic_are_zeros_and_nothing_else(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let (mut sender, mut receiver) = (Nic::new(&stage, 1), Nic::new(&stage, 2));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for round in 0..200 {
        sender.send().unwrap();
        receiver.repost().unwrap();
        if round % 10 == 5 {
            // Both files of both guests, rings and all, while 64 frames are on their way.
            for file in sender.files.iter().chain(&receiver.files) {
                fallocate(file, punch, 0, MIB).unwrap();
            }
            sender.send().unwrap();
            receiver.repost().unwrap();
            sender.lay();
            receiver.lay();
        }
    }
    let before = stage.taken(2);
    stage.until("frames fly again", || {
        sender.lay();
        sender.send().unwrap();
        receiver.repost().unwrap();
        stage.taken(2) > before + 64
    });
    for number in [1, 2] {
        let state = stage.view(number).state;
        assert!(state.attached && !state.damaged, "vm{number}");
    }
}

fn a_vmm_that_truncates_its_memory_under_traffic_loses_its_adapter_alone(workers: usize) {
    for which in [0, 1] {
        let stage = Stage::new(workers, &["e1000", "e1000", "e1000"]);
        let mut nics = [1, 2, 3].map(|number| Nic::new(&stage, number));
        for _ in 0..20 {
            nics[0].send().unwrap();
            nics.iter_mut().for_each(|nic| nic.repost().unwrap());
        }
        // The second guest's rings, or its buffers, while 64 frames are on their way to it.
        nics[0].send().unwrap();
        ftruncate(&nics[1].files[which], 0).unwrap();
        let begun = Instant::now();
        stage.until("the cheat's end", || {
            nics[0].send().unwrap();
            nics[2].repost().unwrap();
            !stage.view(2).state.attached
        });
        // By what happened to its memory, and not by the timer that looks after silent VMMs.
        assert!(begun.elapsed() < Duration::from_secs(8));
        let before = stage.taken(3);
        stage.until("the others' frames", || {
            nics[0].send().unwrap();
            nics[2].repost().unwrap();
            stage.taken(3) > before + 64
        });
        assert!(stage.view(1).state.attached && stage.view(3).state.attached);
        assert!(nics[1].read(0x08).is_err());
    }
}

fn a_front_end_that_truncates_its_memory_stops_its_own_port(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net", "e1000", "e1000"]);
    let memory = file("rings");
    let mut front = Frontend::connect(stage.socket(1)).unwrap();
    front.negotiate(1 << 32).unwrap();
    front.share(&[Shared { base: 0, len: MIB, fd: memory.as_fd(), offset: 0 }]).unwrap();
    let place = RingPlace { size: 64, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
    let bells = front.start(1, place, 0).unwrap();
    front.enable(1, true).unwrap();
    let (mut sender, mut receiver) = (Nic::new(&stage, 2), Nic::new(&stage, 3));
    sender.send().unwrap();
    ftruncate(&memory, 0).unwrap();
    stage.until("its port's end", || {
        let _ = bells.kick.ring();
        sender.send().unwrap();
        receiver.repost().unwrap();
        !stage.view(1).state.attached
    });
    let before = stage.taken(3);
    stage.until("the others' frames", || {
        sender.send().unwrap();
        receiver.repost().unwrap();
        stage.taken(3) > before + 64
    });
    // The port serves the next one.
    drop(front);
    stage.until("the next front end", || {
        Frontend::connect(stage.socket(1)).and_then(|mut next| next.negotiate(1 << 32)).is_ok()
    });
}

with_one_worker_and_with_two!(
    memory_may_be_unmapped_while_frames_fly_and_is_not_touched_afterwards,
    holes_punched_under_traffic_are_zeros_and_nothing_else,
    a_vmm_that_truncates_its_memory_under_traffic_loses_its_adapter_alone,
    a_front_end_that_truncates_its_memory_stops_its_own_port,
);
