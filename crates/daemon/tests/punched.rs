//! A VMM that makes the kernel hold its memory file's lock (`i_mmap_rwsem`): it maps the file many times and punches a hole into
//! all of it. Every thread that maps or unmaps that file waits meanwhile; no other port may wait (docs/adr/0012).

mod nic;
mod stage;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nic::{MIB, Nic};
use nicety_memory::shared_file;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use stage::Stage;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory as _};

const BOTH: DmaProtection = DmaProtection { read: true, write: true };
const LEN: u64 = 16 << 20;
/// Number of mappings of such a file. A hole then takes some tenths of a second.
const MAPPINGS: usize = 500;
/// Number of mappings of a guest's buffers, half of which have pages.
const BUFFER_MAPPINGS: usize = 15_000;
/// Bytes that one page fault maps (Linux, fault_around_bytes).
const AROUND: usize = 64 << 10;
/// 8254x manual, chapter 13: a register with a constant value.
const STATUS: u64 = 8;
/// Holes per test: on a busy machine one hole may be too short, or the neighbour may be slow.
const HOLES: usize = 3;

/// A memory file that is mapped many times through one descriptor. A process cannot have so many descriptors.
struct Held {
    file: Arc<File>,
    len: u64,
    mappings: Vec<MmapRegion>,
}

impl Held {
    /// Maps `len` bytes of a file `often` times.
    fn new(file: OwnedFd, len: u64, often: usize) -> Self {
        let file = Arc::new(File::from(file));
        let mapping = |_| MmapRegion::from_file(FileOffset::from_arc(Arc::clone(&file), 0), len as usize).unwrap();
        let mappings = (0..often).map(mapping).collect();
        Self { file, len, mappings }
    }

    /// Populates all pages in each mapping.
    fn populate(&self) {
        let bytes = vec![1; self.len as usize];
        assert_eq!(rustix::io::pwrite(&self.file, &bytes, 0), Ok(bytes.len()));
        for mapping in &self.mappings {
            for at in (0..bytes.len()).step_by(AROUND) {
                let mut byte = [0u8];
                mapping.get_slice(at, 1).unwrap().copy_to(&mut byte);
                assert_eq!(byte, [1]);
            }
        }
    }

    /// Whether the lock is held for a hole: the first mapping has lost its first page (proc_pid_pagemap(5), bit 63).
    fn is_being_punched(&self) -> bool {
        let page = self.mappings[0].as_ptr().addr() / rustix::param::page_size();
        let mut entry = [0; 8];
        File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entry, 8 * page as u64).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 0
    }

    /// Punches a hole, which holds the lock. Returns the time that it took.
    fn punch(&self) -> Duration {
        let begin = Instant::now();
        fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, self.len).unwrap();
        begin.elapsed()
    }
}

/// Maps and unmaps a file on a port while `going` is set.
fn churn(mut client: Client, file: OwnedFd, going: Arc<AtomicBool>, changes: Arc<AtomicU64>) {
    let range = DmaRange { address: 0, size: LEN };
    while going.load(Ordering::Relaxed) {
        // A change that takes as long as the hole may exceed the client's timeout.
        let mapped = client.dma_map(range, BOTH, Some((file.as_fd(), 0)));
        if mapped.and_then(|()| client.dma_unmap(range)).is_err() {
            return;
        }
        changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Another port's round trips while a hole was punched.
struct Served {
    hole: Duration,
    /// The round trips, sorted.
    round_trips: Vec<Duration>,
    /// The same number of round trips without a hole, sorted.
    before: Vec<Duration>,
}

/// Times a round trip, and sleeps a moment before the next.
fn timed(round_trip: &mut impl FnMut()) -> Duration {
    let begin = Instant::now();
    round_trip();
    let took = begin.elapsed();
    thread::sleep(Duration::from_micros(100));
    took
}

/// Makes many round trips while a hole is punched.
fn served(mut round_trip: impl FnMut(), held: &Arc<Held>) -> Served {
    let mut before: Vec<_> = (0..1_000).map(|_| timed(&mut round_trip)).collect();
    let (done, punched) = mpsc::channel();
    let puncher = Arc::clone(held);
    let thread = thread::spawn(move || done.send(puncher.punch()).unwrap());
    while !held.is_being_punched() {
        thread::yield_now();
    }
    let mut round_trips = Vec::new();
    let hole = loop {
        round_trips.push(timed(&mut round_trip));
        if let Ok(hole) = punched.try_recv() {
            break hole;
        }
    };
    thread.join().unwrap();
    before.sort();
    round_trips.sort();
    Served { hole, round_trips, before }
}

/// Checks that for most holes no round trip took half of the hole's time, whatever else the machine does. A round trip that waits
/// takes all of it.
fn assert_is_served(holes: impl Iterator<Item = Served>) {
    let part = |Served { hole, round_trips, before }: Served| {
        let p99 = |times: &[Duration]| times[times.len() * 99 / 100];
        let longest = round_trips[round_trips.len() - 1];
        println!(
            "a hole of {hole:.1?}: {} round trips, p99 {:.0?}, longest {longest:.1?}; without it p99 {:.0?}, longest {:.1?}",
            round_trips.len(),
            p99(&round_trips),
            p99(&before),
            before[before.len() - 1],
        );
        longest.as_secs_f64() / hole.as_secs_f64()
    };
    let mut parts: Vec<f64> = holes.map(part).collect();
    parts.sort_by(f64::total_cmp);
    assert!(parts[HOLES / 2] < 0.5, "{parts:?}");
}

#[test]
fn a_vmm_whose_memory_file_is_held_does_not_hold_up_another_port_of_its_worker() {
    let stage = Stage::new(1, &["e1000", "e1000"]);
    let held = Arc::new(Held::new(shared_file("held", LEN).unwrap(), LEN, MAPPINGS));
    let (going, changes) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let attacker = Client::connect(stage.socket(1)).unwrap();
    let (file, go_on, count) =
        (OwnedFd::from(held.file.try_clone().unwrap()), Arc::clone(&going), Arc::clone(&changes));
    let churning = thread::spawn(move || churn(attacker, file, go_on, count));
    stage.until("its memory comes and goes", || changes.load(Ordering::Relaxed) > 1);
    let mut victim = Client::connect(stage.socket(2)).unwrap();
    assert_is_served((0..HOLES).map(|_| {
        held.populate();
        served(|| victim.region_read(0, STATUS, &mut [0; 4]).unwrap(), &held)
    }));
    going.store(false, Ordering::Relaxed);
    churning.join().unwrap();
}

/// A guest receives frames into memory that its VMM has cut off while the file's lock is held. A thread that would put other
/// pages there waits.
#[test]
fn a_vmm_that_cuts_off_its_memory_while_its_file_is_held_does_not_hold_up_another_port_of_its_worker() {
    let stage = Stage::new(1, &["e1000", "e1000"]);
    let mut sender = Nic::new(&stage, 2);
    assert_is_served((0..HOLES).map(|_| {
        let receiver = Nic::new(&stage, 1);
        // Frames are received into the second half.
        let held = Held::new(receiver.files[1].try_clone().unwrap(), MIB / 2, BUFFER_MAPPINGS);
        held.populate();
        ftruncate(&held.file, MIB / 2).unwrap();
        let held = Arc::new(held);
        let measured = served(
            || {
                sender.send().unwrap();
                sender.read(STATUS).unwrap();
            },
            &held,
        );
        stage.until("the VMM is sent away", || !stage.view(1).state.attached);
        measured
    }));
    assert_eq!(stage.taken(2), 0, "who sends hears nothing of it");
}
