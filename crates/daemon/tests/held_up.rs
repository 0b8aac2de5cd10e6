//! VMMs that try to block their port's worker with an interrupt descriptor that is full and blocks, or their port's thread with a
//! descriptor that takes long to be closed. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
#[path = "../../peer/tests/lingering/mod.rs"]
mod lingering;
mod nic;
mod stage;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use lingering::lingering;
use nic::{MIB, Nic, file, seen};
use nicety_adapter::RingPlace;
use nicety_daemon::report::{Condition, PortReport};
use nicety_vhost_user::frontend::{Frontend, Shared};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{read, write};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use stage::Stage;

/// Most time for any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(20);
const PLACE: RingPlace = RingPlace { size: 64, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
const PACKET: u64 = 0x4000;
/// A virtio header of 12 bytes and the smallest frame.
const BYTES: u64 = 12 + 60;
const VERSION_1: u64 = 1 << 32;
/// vfio's index of the INTx line.
const INTX: u32 = 0;

/// A full eventfd that was passed to the daemon. Its next write blocks until this is dropped (eventfd(2)).
struct Trap(OwnedFd);

impl Trap {
    fn set(eventfd: BorrowedFd<'_>) -> Trap {
        let trap = Trap(eventfd.try_clone_to_owned().unwrap());
        trap.block(false);
        // The eventfd may have been signalled.
        let _ = read(&trap.0, &mut [0; 8]);
        write(&trap.0, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        trap.block(true);
        trap
    }

    fn block(&self, block: bool) {
        let flags = fcntl_getfl(&self.0).unwrap();
        fcntl_setfl(&self.0, if block { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK }).unwrap();
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        self.block(false);
        let _unblocked = read(&self.0, &mut [0; 8]);
    }
}

/// Checks that frames of the second port's guest reach the third's. Reads that guest's own register: the daemon's view of all
/// ports may wait for one.
fn frames_fly([sender, receiver]: [&mut Nic; 2]) {
    let (end, mut received) = (Instant::now() + TIMEOUT, 0);
    while received <= 64 {
        assert!(Instant::now() < end, "{received} frames within {TIMEOUT:?}");
        sender.send().unwrap();
        receiver.repost().unwrap();
        // 8254x manual, chapter 13: GPRC, which a read clears.
        received += receiver.read(0x4074).unwrap();
    }
}

fn a_vmm_whose_interrupt_is_full_and_blocks_holds_nobody_up(workers: usize) {
    let stage = Stage::new(workers, &["e1000", "e1000", "e1000"]);
    let [mut hostile, mut sender, mut receiver] = [1, 2, 3].map(|number| Nic::new(&stage, number));
    let interrupt = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    hostile.client.connect_irqs(INTX, 0, &[interrupt.as_fd()]).unwrap();
    let _trap = Trap::set(interrupt.as_fd());
    // 8254x manual, chapter 13: IMS and ICS, link status change.
    for register in [0xd0, 0xc8] {
        hostile.client.region_write(0, register, &4u32.to_le_bytes()).unwrap();
    }
    frames_fly([&mut sender, &mut receiver]);
    // When unmasked, the line interrupts again: it is still asserted.
    hostile.client.mask_irqs(INTX, 0, 1, false).unwrap();
    frames_fly([&mut sender, &mut receiver]);
    assert!(stage.view(1).signals > 0 && stage.taken(3) > 2 * 64);
}

fn a_front_end_whose_calls_are_full_and_block_holds_nobody_up(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net", "e1000", "e1000"]);
    let [mut sender, mut receiver] = [2, 3].map(|number| Nic::new(&stage, number));
    let file = file("rings");
    let memory = seen(&file);
    // Sections 2.7.5 and 2.7.6 of virtio 1.2: one buffer, which all entries of the available ring name.
    memory.write(PLACE.descriptors, &[PACKET, BYTES].map(u64::to_le_bytes).concat()).unwrap();
    memory.write(PACKET + 12, &[0xff; 6]).unwrap();
    let mut front = Frontend::connect(stage.socket(1)).unwrap();
    front.negotiate(VERSION_1).unwrap();
    front.share(&[Shared { base: 0, len: MIB, fd: file.as_fd(), offset: 0 }]).unwrap();
    let error = front.error_bell(1).unwrap();
    let bells = front.start(1, PLACE, 0).unwrap();
    let _traps = [Trap::set(bells.call.as_fd()), Trap::set(error.as_fd())];
    for sent in [1u16, 2] {
        memory.write(PLACE.driver + 2, &sent.to_le_bytes()).unwrap();
        bells.kick.ring().unwrap();
        stage.until("its frame", || {
            let mut used = [0; 2];
            memory.read(PLACE.device + 2, &mut used).unwrap();
            used == sent.to_le_bytes()
        });
        frames_fly([&mut sender, &mut receiver]);
    }
    // An index further ahead than the ring is long: the ring breaks, and the error eventfd is signalled.
    memory.write(PLACE.driver + 2, &100u16.to_le_bytes()).unwrap();
    bells.kick.ring().unwrap();
    frames_fly([&mut sender, &mut receiver]);
    stage.until("a broken ring", || PortReport::of(&stage.view(1)).condition == Condition::Broken);
    frames_fly([&mut sender, &mut receiver]);
    assert!(stage.taken(3) > 4 * 64);
}

/// A front end whose session waits for it to read its answers. It has also sent an unread descriptor: a socket that lingers.
fn lingerer(stage: &Stage) -> (UnixStream, TcpStream) {
    let mut front = UnixStream::connect(stage.socket(1)).unwrap();
    front.set_read_timeout(Some(TIMEOUT)).unwrap();
    front.set_write_timeout(Some(TIMEOUT)).unwrap();
    // docs/interop/vhost-user.rst: GET_FEATURES, version 1, no body. The answer has a number of 8 bytes.
    let get_features = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
    front.write_all(&get_features).unwrap();
    front.read_exact(&mut [0; 12 + 8]).unwrap();
    // Each answer has its own buffer, and no socket has room for so many.
    front.write_all(&get_features.repeat(4096)).unwrap();
    let (socket, unread) = lingering();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = [socket.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
    sendmsg(&front, &[IoSlice::new(&get_features)], &mut control, SendFlags::NOSIGNAL).unwrap();
    (front, unread)
}

fn a_front_end_that_has_sent_what_lingers_holds_no_stop_up(workers: usize) {
    let stage = Arc::new(Stage::new(workers, &["virtio-net"]));
    let _front = lingerer(&stage);
    let (stopped, done) = mpsc::channel();
    let stopping = Arc::clone(&stage);
    std::thread::spawn(move || {
        stopping.daemon.stop();
        drop(stopping);
        stopped.send(()).unwrap();
    });
    done.recv_timeout(TIMEOUT).expect("it waits for a descriptor to be closed");
}

with_one_worker_and_with_two!(
    a_front_end_that_has_sent_what_lingers_holds_no_stop_up,
    a_vmm_whose_interrupt_is_full_and_blocks_holds_nobody_up,
    a_front_end_whose_calls_are_full_and_block_holds_nobody_up,
);
