//! What workers, transports and an uplink allocate for frames: nothing. Two daemons in this process, an uplink between them
//! and a guest at each; of the process's allocations those of the test's own thread, which is both guests, do not count.
//! A binary of its own: the allocator is the whole process's, and so are other tests' daemons.

mod nic;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use nic::{Nic, Stage};
use nicety_uplink::Pair;

/// Of all threads that are not guests.
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

// SAFETY: every call goes to the system's allocator with the arguments that it came with; two counters without
// destructors, which never allocate, are all that is added.
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

/// Sends 64 frames so many times, each over the uplink to the other daemon's guest; allocations meanwhile.
fn traffic(times: u64, stage: &Stage, sender: &mut Nic, receiver: &mut Nic) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..times {
        let taken = stage.taken(1);
        sender.send().unwrap();
        receiver.repost().unwrap();
        stage.until("64 frames", || stage.taken(1) >= taken + 64);
    }
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

#[test]
fn nothing_is_allocated_for_a_frame_by_workers_transports_or_uplinks() {
    IS_GUEST.set(true);
    for workers in [1, 2] {
        let (near, far) = (Stage::new(workers, &["e1000"]), Stage::new(workers, &["e1000"]));
        let (one, other) = Pair::connected().unwrap();
        near.daemon.open_uplink("up", Box::new(one), 1 << 20).unwrap();
        far.daemon.open_uplink("up", Box::new(other), 1 << 20).unwrap();
        let (mut sender, mut receiver) = (Nic::new(&near, 1), Nic::new(&far, 1));
        // Everything reaches its size.
        assert!(traffic(100, &far, &mut sender, &mut receiver) > 0, "what daemons allocate is counted");
        let few = traffic(20, &far, &mut sender, &mut receiver);
        let many = traffic(200, &far, &mut sender, &mut receiver);
        println!("{workers} workers: {few} allocations for 1280 frames, {many} for 12,800");
        assert_eq!((few, many), (0, 0));
    }
}
