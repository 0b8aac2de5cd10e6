//! Guests that break their queues: what the report, the log and the front end are told, and that it ends with the cause.
//! Each with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use nicety_adapter::RingPlace;
use nicety_adapters::{Settings, find};
use nicety_daemon::daemon::{Daemon, PortSpec};
use nicety_daemon::report::{Condition, PortReport};
use nicety_memory::shared_file;
use nicety_switch::Limits;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use nicety_vhost_user::Bell;
use nicety_vhost_user::frontend::{Frontend, Shared};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);
const MEMORY: u64 = 1 << 20;
/// Lines about broken queues that a port may have at once, and how long it waits for each after those.
const LINES: u64 = 8;
const PAUSE_SECONDS: u64 = 60;

/// What all daemons of this process have logged.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What was logged of a port's broken queues.
fn logged(port: &str) -> Vec<String> {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    let port = format!("port=\"{port}\"");
    log.lines().filter(|line| line.contains("stands still") && line.contains(&port)).map(str::to_owned).collect()
}

/// A daemon with one port.
struct Stage {
    daemon: Daemon,
    name: String,
    place: TempDir,
}

impl Stage {
    fn new(name: &str, adapter: &str, workers: usize) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| Log).init());
        let (daemon, place) = (Daemon::start(Limits::default(), workers).unwrap(), TempDir::new().unwrap());
        // Tests run side by side, and share a log.
        let name = format!("{name}{workers}");
        let spec = PortSpec {
            name: name.clone(),
            entry: find(adapter).unwrap(),
            settings: Settings::new(nicety_frame::Mac([2, 0, 0, 0, 0, 1])),
            socket: place.path().join("socket"),
            mapped: false,
            buffer_bytes: 1 << 20,
        };
        daemon.open(spec).unwrap();
        Self { daemon, name, place }
    }

    fn report(&self) -> PortReport {
        self.daemon.views().iter().map(PortReport::of).next().unwrap()
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}: {:?}", self.report());
            std::thread::yield_now();
        }
    }

    fn until_is(&self, condition: Condition) {
        self.until(&format!("{condition:?}"), || self.report().condition == condition);
    }
}

fn rang(bell: &Bell) -> bool {
    let until = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&until)).unwrap();
    bell.clear()
}

/// A driver that has put so many chains into its available ring (virtio 1.2, section 2.7.6: the index is its second word).
fn set_index(memory: &OwnedFd, place: RingPlace, index: u16) {
    rustix::io::pwrite(memory, &index.to_le_bytes(), place.driver + 2).unwrap();
}

fn a_ring_that_breaks_is_reported_and_logged_and_its_front_end_is_rung_until_it_is_started_again(workers: usize) {
    let stage = Stage::new("ring", "virtio-net", workers);
    let memory = shared_file("rings", MEMORY).unwrap();
    let mut front = Frontend::connect(stage.place.path().join("socket")).unwrap();
    // VERSION_1 and MRG_RXBUF.
    front.negotiate(1 << 32 | 1 << 15).unwrap();
    front.share(&[Shared { base: 0, len: MEMORY, fd: memory.as_fd(), offset: 0 }]).unwrap();
    let place = RingPlace { size: 64, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
    let (other, error) = (front.error_bell(0).unwrap(), front.error_bell(1).unwrap());
    let bells = front.start(1, place, 0).unwrap();
    stage.until_is(Condition::Up);
    set_index(&memory, place, 65);
    bells.kick.ring().unwrap();
    assert!(rang(&error), "the front end is told");
    stage.until_is(Condition::Broken);
    let sentence = stage.report().sentence;
    let said = "transmit queue 0 stands still: the driver's index ran further ahead than the ring is long; ";
    assert!(sentence.starts_with(said) && sentence.contains("unbind"), "{sentence}");
    stage.until("a line of the log", || !logged(&stage.name).is_empty());
    assert!(logged(&stage.name)[0].contains(&sentence) && logged(&stage.name)[0].contains("WARN"));
    front.stop(1).unwrap();
    set_index(&memory, place, 0);
    let _bells = front.start(1, place, 0).unwrap();
    assert_eq!(stage.report().condition, Condition::Up, "started anew");
    assert!(!error.clear() && !other.clear(), "rung once, and for this ring alone");
    assert_eq!((stage.report().guest_errors, logged(&stage.name).len()), (1, 1));
}

fn a_ring_that_is_broken_again_and_again_does_not_fill_the_log(workers: usize) {
    let begun = Instant::now();
    let stage = Stage::new("flood", "virtio-net", workers);
    let memory = shared_file("rings", MEMORY).unwrap();
    let mut front = Frontend::connect(stage.place.path().join("socket")).unwrap();
    front.negotiate(1 << 32).unwrap();
    front.share(&[Shared { base: 0, len: MEMORY, fd: memory.as_fd(), offset: 0 }]).unwrap();
    let place = RingPlace { size: 64, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
    let error = front.error_bell(1).unwrap();
    set_index(&memory, place, 65);
    for _ in 0..100 {
        front.start(1, place, 0).unwrap();
        assert!(rang(&error));
        front.stop(1).unwrap();
    }
    assert_eq!(stage.report().guest_errors, 100);
    // When its workers have ended all is said.
    stage.daemon.stop();
    let most = LINES + begun.elapsed().as_secs() / PAUSE_SECONDS;
    let lines = logged(&stage.name).len() as u64;
    assert!((LINES..=most).contains(&lines), "{lines} lines, and not {LINES} to {most}");
}

fn a_ring_of_registers_in_no_memory_is_reported_and_logged_until_it_lies_in_some(workers: usize) {
    let stage = Stage::new("function", "e1000", workers);
    let memory = shared_file("memory", MEMORY).unwrap();
    rustix::io::pwrite(&memory, &[1], 0).unwrap();
    let mut client = Client::connect(stage.place.path().join("socket")).unwrap();
    let (range, both) = (DmaRange { address: 0, size: MEMORY }, DmaProtection { read: true, write: true });
    client.dma_map(range, both, Some((memory.as_fd(), 0))).unwrap();
    client.region_write(7, 4, &[7, 0]).unwrap();
    let mut write = |register: u64, value: u32| client.region_write(0, register, &value.to_le_bytes()).unwrap();
    // 8254x manual, chapter 13: RXCSUM.TUOFLD; CTRL.SLU; TDBAL beyond the memory, TDLEN, TCTL.EN, TDT.
    for (register, value) in
        [(0x5000, 1 << 9), (0, 0x40), (0x3800, MEMORY as u32), (0x3808, 128), (0x400, 2), (0x3818, 1)]
    {
        write(register, value);
    }
    stage.until_is(Condition::Broken);
    let sentence = stage.report().sentence;
    let said = "transmit queue 0 stands still: the ring lies where no memory is; ";
    assert!(sentence.starts_with(said) && sentence.contains("ip link set"), "{sentence}");
    stage.until("a line of the log", || logged(&stage.name).iter().any(|line| line.contains(&sentence)));
    write(0x3800, 0x1000);
    write(0x3818, 1);
    stage.until_is(Condition::Up);
    assert_eq!(logged(&stage.name).len(), 1);
}

with_one_worker_and_with_two!(
    a_ring_that_breaks_is_reported_and_logged_and_its_front_end_is_rung_until_it_is_started_again,
    a_ring_that_is_broken_again_and_again_does_not_fill_the_log,
    a_ring_of_registers_in_no_memory_is_reported_and_logged_until_it_lies_in_some,
);
