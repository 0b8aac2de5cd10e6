//! Guests with rings and buffers in untouched memory. Pages that are read stay unallocated, and pages that are written are
//! counted. Each test runs with one worker and with two.

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
mod stage;

use std::os::fd::{AsFd, OwnedFd};

use nicety_adapter::RingPlace;
use nicety_daemon::report::PortReport;
use nicety_memory::shared_file;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};
use nicety_vhost_user::frontend::{Frontend, Shared};
use stage::Stage;

const MEMORY: u64 = 256 << 20;
const PAGE: u64 = 4096;
/// The address of touched memory, and the number of descriptors of the ring there.
const RING: u64 = 0x1000;
const DESCRIPTORS: u32 = 128;

fn allocated(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512
}

fn report(stage: &Stage, number: usize) -> PortReport {
    PortReport::of(&stage.view(number))
}

/// A guest with an 82540EM whose driver has set the link up, and untouched memory.
fn guest(stage: &Stage, number: usize) -> (Client, OwnedFd) {
    let file = shared_file("sparse", MEMORY).unwrap();
    let mut client = Client::connect(stage.socket(number)).unwrap();
    let (range, both) = (DmaRange { address: 0, size: MEMORY }, DmaProtection { read: true, write: true });
    client.dma_map(range, both, Some((file.as_fd(), 0))).unwrap();
    client.region_write(7, 4, &[7, 0]).unwrap();
    write(&mut client, 0, 0x40);
    (client, file)
}

fn write(client: &mut Client, register: u64, value: u32) {
    client.region_write(0, register, &value.to_le_bytes()).unwrap();
}

/// 8254x manual, chapter 13: base, length, head and tail of a ring, and its enable register.
fn start(client: &mut Client, ring: u64, (base, descriptors): (u64, u32), tail: u32, (control, on): (u64, u32)) {
    for (offset, value) in [(0, base as u32), (4, 0), (8, descriptors * 16), (0x10, 0)] {
        write(client, ring + offset, value);
    }
    write(client, control, on);
    write(client, ring + 0x18, tail);
}

/// Waits until TDH has walked the ring.
fn walked(stage: &Stage, client: &mut Client, tail: u32) {
    let mut head = [0; 4];
    stage.until("the walk of its ring", || {
        client.region_read(0, 0x3810, &mut head).unwrap();
        u32::from_le_bytes(head) == tail
    });
}

fn frames_from_pages_that_nobody_has_touched_allocate_none_and_pages_that_they_are_written_to_are_counted(
    workers: usize,
) {
    let stage = Stage::new(workers, &["e1000", "e1000"]);
    let ((mut sender, source), (mut receiver, target)) = (guest(&stage, 1), guest(&stage, 2));
    for index in 0..u64::from(DESCRIPTORS) {
        // A frame over two pages, the first of which has been touched. 8254x manual, section 3.3.3: length, and EOP, IFCS and RS.
        let frame = ((1 + 2 * index) << 20) - 500;
        rustix::io::pwrite(&source, &[0xff; 6], frame).unwrap();
        let descriptor = [frame, 0x0b00_0000 | 1500].map(u64::to_le_bytes);
        rustix::io::pwrite(&source, &descriptor.concat(), RING + 16 * index).unwrap();
        rustix::io::pwrite(&target, &((1 + 2 * index) << 20).to_le_bytes(), RING + 16 * index).unwrap();
    }
    // RCTL: EN, UPE, MPE, BAM.
    start(&mut receiver, 0x2800, (RING, DESCRIPTORS), DESCRIPTORS - 1, (0x100, 0x801a));
    let before = (allocated(&source), allocated(&target));
    start(&mut sender, 0x3800, (RING, DESCRIPTORS), DESCRIPTORS - 1, (0x400, 2));
    walked(&stage, &mut sender, DESCRIPTORS - 1);
    stage.until("the frames", || stage.taken(2) == u64::from(DESCRIPTORS - 1));
    assert_eq!((allocated(&source), report(&stage, 1).allocated_bytes), (before.0, 0));
    let written = u64::from(DESCRIPTORS - 1) * PAGE;
    assert_eq!((allocated(&target) - before.1, report(&stage, 2).allocated_bytes), (written, written));
}

fn a_ring_in_pages_that_nobody_has_touched_is_walked_and_allocates_none(workers: usize) {
    let stage = Stage::new(workers, &["e1000"]);
    let (mut client, file) = guest(&stage, 1);
    // Descriptors of zeros request nothing.
    start(&mut client, 0x3800, (16 << 20, 4096), 4095, (0x400, 2));
    walked(&stage, &mut client, 4095);
    assert_eq!((allocated(&file), report(&stage, 1).allocated_bytes), (0, 0));
}

fn virtio_rings_in_pages_that_nobody_has_touched_are_read_and_only_the_used_ring_allocates(workers: usize) {
    let stage = Stage::new(workers, &["virtio-net"]);
    let file = shared_file("sparse", MEMORY).unwrap();
    let mut front = Frontend::connect(stage.socket(1)).unwrap();
    front.negotiate(1 << 32 | 1 << 15).unwrap();
    front.share(&[Shared { base: 0, len: MEMORY, fd: file.as_fd(), offset: 0 }]).unwrap();
    let at = |mib: u64| mib << 20;
    let place = RingPlace { size: 256, descriptors: at(1), driver: at(2), device: at(3) };
    // Descriptor 0 has 1000 bytes in untouched memory and is offered 64 times. Everything else is zero.
    rustix::io::pwrite(&file, &[at(4).to_le_bytes(), 1000u64.to_le_bytes()].concat(), place.descriptors).unwrap();
    rustix::io::pwrite(&file, &64u16.to_le_bytes(), place.driver + 2).unwrap();
    let before = allocated(&file);
    let bells = front.start(1, place, 0).unwrap();
    bells.kick.ring().unwrap();
    stage.until("the frames", || report(&stage, 1).transmit.iter().any(|queue| queue.frames == 64));
    // The device reports used buffers in the used ring.
    stage.until("the used ring", || allocated(&file) > before);
    assert_eq!((allocated(&file) - before, report(&stage, 1).allocated_bytes), (PAGE, PAGE));
}

with_one_worker_and_with_two!(
    frames_from_pages_that_nobody_has_touched_allocate_none_and_pages_that_they_are_written_to_are_counted,
    a_ring_in_pages_that_nobody_has_touched_is_walked_and_allocates_none,
    virtio_rings_in_pages_that_nobody_has_touched_are_read_and_only_the_used_ring_allocates,
);
