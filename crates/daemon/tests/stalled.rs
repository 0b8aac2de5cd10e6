//! Guests that break their queues: the report, the log and the front end show it, and it ends with its cause. Each test runs with
//! one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod logged;

use std::os::fd::{AsFd, OwnedFd};

use logged::{LINES, Stage, TIMEOUT, lines_of};
use nicety_adapter::RingPlace;
use nicety_daemon::report::Condition;
use nicety_memory::shared_file;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use nicety_vhost_user::Bell;
use nicety_vhost_user::frontend::{Frontend, Shared};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const MEMORY: u64 = 1 << 20;

/// The log's lines about a port's broken queues.
fn logged(port: &str) -> Vec<String> {
    lines_of(port).into_iter().filter(|line| line.contains("stands still")).collect()
}

fn rang(bell: &Bell) -> bool {
    let until = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&until)).unwrap();
    bell.clear()
}

/// Sets the index of the available ring, like a driver that has added so many chains (virtio 1.2, section 2.7.6: the index is the
/// second word).
fn set_index(memory: &OwnedFd, place: RingPlace, index: u16) {
    rustix::io::pwrite(memory, &index.to_le_bytes(), place.driver + 2).unwrap();
}

fn a_ring_that_breaks_is_reported_and_logged_and_its_front_end_is_rung_until_it_is_started_again(workers: usize) {
    let stage = Stage::new("ring", "virtio-net", workers);
    let memory = shared_file("rings", MEMORY).unwrap();
    let mut front = Frontend::connect(stage.socket()).unwrap();
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
    let expected = "transmit queue 0 stands still: the driver's index ran further ahead than the ring is long; ";
    assert!(sentence.starts_with(expected) && sentence.contains("unbind"), "{sentence}");
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
    let stage = Stage::new("flood", "virtio-net", workers);
    let memory = shared_file("rings", MEMORY).unwrap();
    let mut front = Frontend::connect(stage.socket()).unwrap();
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
    // When the workers have ended, everything is logged.
    stage.daemon.stop();
    let most = stage.most_lines();
    let lines = logged(&stage.name).len() as u64;
    assert!((LINES..=most).contains(&lines), "{lines} lines, and not {LINES} to {most}");
}

fn a_ring_of_registers_in_no_memory_is_reported_and_logged_until_it_lies_in_some(workers: usize) {
    let stage = Stage::new("function", "e1000", workers);
    let memory = shared_file("memory", MEMORY).unwrap();
    rustix::io::pwrite(&memory, &[1], 0).unwrap();
    let mut client = Client::connect(stage.socket()).unwrap();
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
    let expected = "transmit queue 0 stands still: the ring lies where no memory is; ";
    assert!(sentence.starts_with(expected) && sentence.contains("ip link set"), "{sentence}");
    stage.until("a line of the log", || logged(&stage.name).iter().any(|line| line.contains(&sentence)));
    write(0x3800, 0x1000);
    write(0x3818, 1);
    stage.until_is(Condition::Up);
    assert_eq!(logged(&stage.name).len(), 1);
}

fn a_ring_in_memory_that_is_not_shared_is_no_line_of_its_own(workers: usize) {
    let stage = Stage::new("unshared", "e1000", workers);
    let mut client = Client::connect(stage.socket()).unwrap();
    let (range, both) = (DmaRange { address: 0, size: 64 << 20 }, DmaProtection { read: true, write: true });
    client.dma_map(range, both, None).unwrap();
    client.region_write(7, 4, &[7, 0]).unwrap();
    // 8254x manual, chapter 13: CTRL.SLU; TDBAL, TDLEN, TCTL.EN, TDT.
    for (register, value) in [(0u64, 0x40u32), (0x3800, 0x1000), (0x3808, 128), (0x400, 2), (0x3818, 1)] {
        client.region_write(0, register, &value.to_le_bytes()).unwrap();
    }
    stage.until("a look at its ring", || stage.report().guest_errors > 0);
    let sentence = stage.report().sentence;
    // All log lines about it are written before the port is closed.
    stage.daemon.stop();
    assert!(sentence.contains("share=on"), "{sentence}");
    assert_eq!(logged(&stage.name), [""; 0], "what it advises does not help");
    assert!(lines_of(&stage.name).iter().any(|line| line.contains("share=on")), "this does");
}

with_one_worker_and_with_two!(
    a_ring_that_breaks_is_reported_and_logged_and_its_front_end_is_rung_until_it_is_started_again,
    a_ring_that_is_broken_again_and_again_does_not_fill_the_log,
    a_ring_of_registers_in_no_memory_is_reported_and_logged_until_it_lies_in_some,
    a_ring_in_memory_that_is_not_shared_is_no_line_of_its_own,
);
