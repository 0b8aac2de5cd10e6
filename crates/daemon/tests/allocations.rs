//! Workers, transports and an uplink allocate nothing for frames. The test has two daemons in this process, an uplink between
//! them, and guests at both. Allocations of the test's own thread, on which all guests run, do not count. It has a binary of its
//! own: the allocator belongs to the whole process, and other tests' daemons would too.

mod nic;
mod stage;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nic::{FRAME, MIB, Nic, file, seen};
use nicety_adapter::RingPlace;
use nicety_daemon::daemon::JoiningUplink;
use nicety_memory::Map;
use nicety_uplink::Pair;
use nicety_vhost_user::frontend::{Bells, Frontend, Shared};
use stage::Stage;

/// Allocations of all threads except those of guests.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_GUEST: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

fn count() {
    if !IS_GUEST.get() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with its own arguments. Only two counters are added; they have no destructors
// and never allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Frames that a guest sends at once: they fill the virtio guest's ring.
const SENT: u64 = 64;
/// The guest's transmit ring, a split ring (VIRTIO 1.2, section 2.7).
const PLACE: RingPlace = RingPlace { size: SENT as u16, descriptors: 0x1000, driver: 0x2000, device: 0x3000 };
const BUFFER: u64 = 0x4000;
/// Bytes of the header before each frame (section 5.1.6).
const HEADER: usize = 12;
const VERSION_1: u64 = 1 << 32;

/// A bare guest behind vhost-user that sends one frame again and again.
struct Rings {
    _front: Frontend,
    bells: Bells,
    memory: Map,
    available: u16,
}

impl Rings {
    fn new(stage: &Stage, number: usize) -> Rings {
        let file = file("rings");
        let memory = seen(&file);
        for index in 0..SENT {
            let len = (HEADER + FRAME) as u64;
            memory.write(PLACE.descriptors + index * 16, &[BUFFER, len].map(u64::to_le_bytes).concat()).unwrap();
            memory.write(PLACE.driver + 4 + index * 2, &(index as u16).to_le_bytes()).unwrap();
        }
        let mut frame = [0; HEADER + FRAME];
        frame[HEADER..][..14].copy_from_slice(b"\xff\xff\xff\xff\xff\xff\x52\x54\x00\x00\x00\x02\x88\xb5");
        memory.write(BUFFER, &frame).unwrap();
        let mut front = Frontend::connect(stage.socket(number)).unwrap();
        assert_eq!(front.negotiate(VERSION_1).unwrap() & VERSION_1, VERSION_1);
        front.share(&[Shared { base: 0, len: MIB, fd: file.as_fd(), offset: 0 }]).unwrap();
        let bells = front.start(1, PLACE, 0).unwrap();
        front.enable(1, true).unwrap();
        Rings { _front: front, bells, memory, available: 0 }
    }

    fn send(&mut self) {
        self.available = self.available.wrapping_add(SENT as u16);
        self.memory.write(PLACE.driver + 2, &self.available.to_le_bytes()).unwrap();
        self.bells.kick.ring().unwrap();
    }
}

/// Both guests send their frames this many times, over the uplink to the other daemon's guest. Returns the allocations meanwhile.
fn traffic(times: u64, senders: (&mut Nic, &mut Rings), stage: &Stage, receiver: &mut Nic) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..times {
        let taken = stage.taken(1);
        senders.0.send().unwrap();
        senders.1.send();
        receiver.repost().unwrap();
        stage.until("frames", || stage.taken(1) >= taken + 2 * SENT);
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn nothing_is_allocated_for_a_frame_by_workers_transports_or_uplinks() {
    IS_GUEST.set(true);
    for workers in [1, 2] {
        let (near, far) = (Stage::new(workers, &["e1000", "virtio-net"]), Stage::new(workers, &["e1000"]));
        let (one, other) = Pair::connected().unwrap();
        near.daemon.open_uplink(JoiningUplink::new("up", Box::new(one))).unwrap();
        far.daemon.open_uplink(JoiningUplink::new("up", Box::new(other))).unwrap();
        let (mut function, mut rings, mut receiver) = (Nic::new(&near, 1), Rings::new(&near, 2), Nic::new(&far, 1));
        let mut traffic = |times| traffic(times, (&mut function, &mut rings), &far, &mut receiver);
        // Let all buffers grow to their final size.
        assert!(traffic(100) > 0, "what daemons allocate is counted");
        let (few, many) = (traffic(20), traffic(200));
        println!("{workers} workers: {few} allocations for 2560 frames, {many} for 25,600");
        assert_eq!((few, many), (0, 0));
    }
}
