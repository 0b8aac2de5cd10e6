//! A worker that stands still while QEMU waits for an answer. Its clock is set on instead of waiting.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use nicety_switch::Limits;
use tempfile::TempDir;

use super::late::LOOK;
use super::messages_test::{connect_with, message, open, rounds_made, status};
use super::*;

const VM: PortId = PortId(1);
const READ: u16 = 9;
/// QEMU's capabilities (hw/vfio-user/proxy.c, caps_json).
const QEMU: &[u8] =
    b"{\"capabilities\": {\"max_msg_fds\": 16, \"migration\": {\"max_bitmap_size\": 268435456, \"pgsize\": 4096}, \
    \"max_dma_maps\": 65535, \"max_data_xfer_size\": 1048576, \"pgsizes\": 4096, \"write_multiple\": true}}";
/// Bytes of an answer that is a header alone, and of one to a read of four bytes.
const HEADER: usize = 16;
const WHOLE: usize = 36;
/// ICR.LSC (8254x manual, 13.4.17): the driver hears that the link has changed.
const LSC: u32 = 4;

/// A worker with an 82540EM and its QEMU.
struct Bench {
    worker: Worker,
    qemu: UnixStream,
    begun: Time,
    set_on: Duration,
    _folder: TempDir,
}

impl Bench {
    fn new(adapter: &'static str, capabilities: &[u8]) -> Self {
        let folder = TempDir::new().unwrap();
        let (plane, clock) = (Arc::new(Plane::new(Limits::default())), Clock::start());
        let mut worker = Worker::new(plane, clock, Arc::new(Inbox::new().unwrap()), mpsc::channel().1).unwrap();
        let (path, _) = open(&mut worker, VM, adapter, folder.path());
        let qemu = connect_with(&mut worker, &path, capabilities);
        let mut bench = Self { worker, qemu, begun: clock.now(), set_on: Duration::ZERO, _folder: folder };
        bench.rounds();
        bench
    }

    fn rounds(&mut self) {
        rounds_made(&mut self.worker, 3);
    }

    /// Time passes between two of the worker's instructions.
    fn stands_still(&mut self, time: Duration) {
        let real = self.worker.clock.now().since(self.begun).saturating_sub(self.set_on);
        self.set_on += time;
        self.worker.clock = Clock::begun(real + self.set_on);
    }

    /// Bytes that have come from the worker.
    fn come(&mut self) -> usize {
        let mut bytes = [0; 4096];
        self.qemu.read(&mut bytes).unwrap_or(0)
    }

    /// ICR, whose read clears it.
    fn causes(&mut self) -> u32 {
        self.qemu.write_all(&message(READ, 0, &[0xc0u32, 0, 0, 4].map(u32::to_ne_bytes).concat())).unwrap();
        self.rounds();
        let mut answer = [0; WHOLE];
        self.qemu.read_exact(&mut answer).unwrap();
        u32::from_le_bytes(*answer.last_chunk().unwrap())
    }
}

#[test]
fn after_seven_seconds_the_answer_is_a_header_and_the_driver_hears_that_its_link_has_changed() {
    for adapter in ["e1000", "e1000e"] {
        let mut bench = Bench::new(adapter, QEMU);
        bench.causes();
        bench.qemu.write_all(&status(0)).unwrap();
        bench.stands_still(Duration::from_secs(7));
        bench.rounds();
        assert_eq!(bench.come(), HEADER, "{adapter}");
        assert_eq!(bench.causes() & LSC, LSC, "{adapter}");
    }
}

/// A process is stopped anywhere, and most often where its worker is busy: it keeps effects before it answers.
#[test]
fn a_worker_that_is_stopped_after_it_has_handled_a_request_answers_by_a_header_too() {
    let mut bench = Bench::new("e1000", QEMU);
    bench.qemu.write_all(&status(0)).unwrap();
    let worker = &mut bench.worker;
    let Link::Function { device, session: Some(talk), .. } = &mut worker.services.get_mut(&VM).unwrap().link else {
        panic!("it has no VMM");
    };
    talk.since = Some(worker.looks.since());
    assert_eq!(talk.session.handle(device.as_mut()).unwrap().handled, 1);
    bench.stands_still(Duration::from_secs(7));
    bench.worker.finish(VM).unwrap();
    assert_eq!(bench.come(), HEADER);
}

#[test]
fn after_three_seconds_the_answer_is_whole_and_the_driver_hears_nothing() {
    let mut bench = Bench::new("e1000", QEMU);
    bench.causes();
    bench.qemu.write_all(&status(0)).unwrap();
    bench.stands_still(Duration::from_secs(3));
    bench.rounds();
    assert_eq!((bench.come(), bench.causes() & LSC), (WHOLE, 0));
}

/// Nobody waited, however long it was.
#[test]
fn a_driver_that_asked_for_nothing_meanwhile_hears_nothing() {
    let mut bench = Bench::new("e1000", QEMU);
    bench.causes();
    bench.stands_still(Duration::from_secs(60));
    bench.rounds();
    assert_eq!((bench.come(), bench.causes() & LSC), (0, 0));
}

/// It has slept, and not stood still.
#[test]
fn an_idle_worker_looks_so_often_that_an_answer_after_a_minute_is_whole() {
    let mut bench = Bench::new("e1000", QEMU);
    assert_eq!(bench.worker.limit(None), Some(LOOK));
    assert_eq!(bench.worker.limit(Some(Duration::from_millis(3))), Some(Duration::from_millis(3)));
    for _ in 0..120 {
        bench.stands_still(LOOK);
        rounds_made(&mut bench.worker, 1);
    }
    bench.qemu.write_all(&status(0)).unwrap();
    bench.stands_still(LOOK);
    bench.rounds();
    assert_eq!((bench.come(), bench.causes() & LSC), (WHOLE, 0));
    bench.qemu.shutdown(std::net::Shutdown::Both).unwrap();
    bench.rounds();
    assert_eq!(bench.worker.limit(None), None, "without a VMM it sleeps until something happens");
}

#[test]
fn a_client_that_waits_for_ever_gets_its_whole_answer_and_its_driver_hears_nothing() {
    let mut bench = Bench::new("e1000", b"{}");
    bench.causes();
    bench.qemu.write_all(&status(0)).unwrap();
    bench.stands_still(Duration::from_secs(60));
    bench.rounds();
    assert_eq!((bench.come(), bench.causes() & LSC), (WHOLE, 0));
}
