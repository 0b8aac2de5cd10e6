//! Rings and chains of the greatest length: what passes, what breaks the ring, and how much one call walks.

use nicety_adapter::{Outbox, Progress, Reason, RingPlace, Set};
use nicety_memory::count;
use virtio_bindings::virtio_net::VIRTIO_NET_F_CTRL_VQ;

use crate::guest::{Guest, Part, bit, cx, rings};
use crate::packets::{payload, tcp4};
use crate::traffic::{plain, rich};

/// The longest ring (virtio 1.2, section 2.7), and its address.
const SIZE: u16 = 32768;
const PLACE: RingPlace = RingPlace { size: SIZE, descriptors: 0x20_0000, driver: 0x28_0000, device: 0x2a_0000 };
/// Zeros: a header, and the bytes after it.
const BUFFERS: u64 = 0x30_0000;
/// QEMU's VIRTQUEUE_MAX_SIZE.
const CHAIN_MAX: u16 = 1024;
/// Most accesses to guest memory by a call, as in the hostile guest's trials.
const WORK: u64 = 16_384;

/// A guest whose ring of this number has the maximum length.
fn guest(features: u128, ring: u16) -> Guest {
    let mut guest = Guest::new(features, 16);
    let face = rings(&mut *guest.nic);
    face.stop(ring, cx!(guest));
    assert!(face.place(ring, PLACE) && face.start(ring, 0, cx!(guest)));
    guest.queues[usize::from(ring)].place = PLACE;
    guest.out = Outbox::default();
    guest
}

/// `count` adjacent buffers of one byte each; the last has `last` bytes.
fn bytes(count: u16, last: u32, write: bool) -> Vec<Part> {
    let part = |i| Part { address: BUFFERS + u64::from(i), len: if i + 1 < count { 1 } else { last }, write };
    (0..count).map(part).collect()
}

/// Adds the same chain again, `times` times.
fn again(guest: &mut Guest, ring: u16, head: u16, times: usize) {
    (0..times).for_each(|_| guest.offer(ring, head));
}

fn stalled(guest: &Guest) -> Vec<&'static str> {
    (0..Set::NUMBERS).filter_map(|ring| guest.nic.stall(ring)).map(|stall| stall.why).collect()
}

/// Fetches. Returns the progress and the work.
fn fetch(guest: &mut Guest) -> (Progress, u64) {
    count::take();
    let progress = guest.fetch_of(0);
    let work = count::take();
    assert!(work <= WORK, "{work} accesses in a call");
    (progress, work)
}

#[test]
fn a_chain_of_1024_buffers_passes_and_a_longer_one_breaks_the_ring() {
    for (before, in_table, passes) in [
        (CHAIN_MAX, 0, true),
        (CHAIN_MAX + 1, 0, false),
        (SIZE, 0, false),
        (0, CHAIN_MAX, true),
        (3, CHAIN_MAX - 3, true),
        (3, CHAIN_MAX - 2, false),
    ] {
        let mut guest = guest(rich(), 1);
        let all = bytes(before.saturating_add(in_table), 1, false);
        let (direct, indirect) = all.split_at(usize::from(before));
        if indirect.is_empty() {
            guest.add(1, direct);
        } else {
            guest.add_indirect(1, indirect);
            if !direct.is_empty() {
                // In front of the descriptor that names the table: the driver's last entry now begins here.
                let table = guest.get(PLACE.descriptors, 16);
                guest.put(PLACE.descriptors + 16 * u64::from(before), &table);
                for (i, part) in direct.iter().enumerate() {
                    let words = [&part.address.to_le_bytes()[..], &part.len.to_le_bytes(), &[1, 0, i as u8 + 1, 0]];
                    guest.put(PLACE.descriptors + 16 * i as u64, &words.concat());
                }
            }
        }
        let (progress, _) = fetch(&mut guest);
        assert!(progress.more == passes && progress.armed != passes);
        assert_eq!(guest.batch.len(), usize::from(passes), "{before} and {in_table}");
        match stalled(&guest)[..] {
            [] => assert!(passes, "{before} and {in_table}"),
            [why] => assert!(!passes && why.contains("1024"), "{before} and {in_table}: {why}"),
            ref more => panic!("{more:?}"),
        }
    }
}

#[test]
fn a_table_of_more_than_1024_descriptors_breaks_the_ring_however_few_are_used() {
    for (entries, breaks) in [(CHAIN_MAX, false), (CHAIN_MAX + 1, true)] {
        let mut guest = guest(rich(), 1);
        let header = Part { address: BUFFERS, len: 100, write: false };
        guest.add_indirect(1, &[header]);
        guest.put(PLACE.descriptors + 8, &(16 * u32::from(entries)).to_le_bytes());
        fetch(&mut guest);
        assert_eq!(guest.batch.is_empty(), breaks);
        assert_eq!(stalled(&guest).iter().any(|why| why.contains("indirect")), breaks);
    }
}

#[test]
fn long_chains_that_go_nowhere_are_walked_a_few_in_each_call_and_the_port_is_charged() {
    // The last buffer is for the device to write, which is wrong.
    let mut parts = bytes(CHAIN_MAX, 1, false);
    parts.last_mut().unwrap().write = true;
    let mut guest = guest(plain(), 1);
    let head = guest.add(1, &parts);
    again(&mut guest, 1, head, 63);
    let mut calls = 0;
    loop {
        let (progress, _) = fetch(&mut guest);
        calls += 1;
        let excess = std::mem::take(&mut guest.out).excess;
        assert!((1000..=4096).contains(&excess), "{excess} descriptors charged");
        if !progress.more {
            break;
        }
        assert!(!progress.armed && calls < 64);
    }
    assert!(calls > 8, "{calls} calls");
    assert_eq!(guest.counters.transmit_drops[Reason::BadDescriptor as usize], 64, "all the same");
    assert_eq!(guest.used(1).len(), 64);
    assert!(stalled(&guest).is_empty());
}

#[test]
fn sixty_four_of_linux_longest_chains_go_in_one_call_and_cost_nothing_beside() {
    let mut guest = guest(plain(), 1);
    // The header, and MAX_SKB_FRAGS + 1 pieces.
    let head = guest.add(1, &bytes(19, 100, false));
    again(&mut guest, 1, head, 63);
    let (progress, _) = fetch(&mut guest);
    assert_eq!((guest.batch.len(), progress.armed), (64, false));
    assert!(guest.look_at(0).armed, "none is left");
    assert_eq!(guest.out.excess, 0);
}

/// Delivers a batch. Returns the refused picks, and the work.
fn deliver(guest: &mut Guest, sender: &Guest) -> (u64, u64) {
    count::take();
    let refused = guest.deliver(&sender.batch).refused();
    let work = count::take();
    assert!(work <= WORK, "{work} accesses in a call");
    (refused, work)
}

/// A batch of `count` frames of `len` bytes.
fn sender(count: usize, len: usize) -> Guest {
    let mut guest = Guest::new(plain(), 64);
    let mut frame = tcp4(&payload(1460));
    frame.resize(len, 0);
    (0..count).for_each(|_| _ = guest.send(0, &[0; 12], &frame, 2000));
    // Each frame takes two descriptors.
    guest.fetch_of(0);
    assert_eq!(guest.batch.len(), count);
    guest
}

#[test]
fn a_receive_chain_of_more_than_1024_buffers_breaks_its_ring() {
    let mut guest = guest(plain(), 0);
    guest.add(0, &bytes(SIZE, 1, true));
    deliver(&mut guest, &sender(32, 100));
    assert!(matches!(stalled(&guest)[..], [why] if why.contains("1024")));
    assert_eq!(guest.counters.receive_drops.iter().sum::<u64>(), 32);
}

#[test]
fn frames_for_long_chains_are_taken_a_few_in_each_call_and_the_rest_is_looked_at_again() {
    let mut guest = guest(plain(), 0);
    let head = guest.add(0, &bytes(CHAIN_MAX, 1, true));
    again(&mut guest, 0, head, 63);
    let sender = sender(32, 100);
    let (refused, _) = deliver(&mut guest, &sender);
    assert_eq!(refused, u64::from(u32::MAX) & !0b11, "two were taken");
    assert!(guest.out.room.contains(0), "the rest is offered again without being asked for");
    assert!(guest.out.excess > 1024);
    assert_eq!(guest.used(0).len(), 2);
    deliver(&mut guest, &sender);
    assert_eq!(guest.counters.taken().packets, 4);
}

#[test]
fn a_chain_that_is_too_small_is_walked_once_and_not_for_each_frame() {
    // With merging a frame may take several chains; 32 of them are walked for 1526 bytes, but no more than 1024 descriptors.
    for (features, count, reason) in [(plain(), CHAIN_MAX, Reason::TooLong), (rich(), 32, Reason::TooManyPieces)] {
        let mut guest = guest(features, 0);
        let head = guest.add(0, &bytes(count, 1, true));
        again(&mut guest, 0, head, 200);
        let long = sender(32, 1514);
        let (refused, work) = deliver(&mut guest, &long);
        let drops = |guest: &Guest| guest.counters.receive_drops[reason as usize];
        assert_eq!((refused, drops(&guest)), (0, 32));
        assert!(work < 5 * u64::from(CHAIN_MAX), "{work} accesses");
        let (_, work) = deliver(&mut guest, &long);
        assert_eq!(drops(&guest), 64);
        assert!(work < 100, "{work} accesses");
        // Nor for a shorter frame after a longer one, once the chain was too small for one of that length.
        let shorter = sender(1, 1514 - 100);
        deliver(&mut guest, &shorter);
        let (_, work) = deliver(&mut guest, &long);
        let (_, again) = deliver(&mut guest, &shorter);
        assert!(work < 100 && again < 100, "{work} and {again} accesses");
        assert_eq!(drops(&guest), 98);
        // A frame that fits is received, and then the next buffers are read.
        deliver(&mut guest, &sender(1, 100));
        assert_eq!(guest.counters.taken().packets, 1);
        let (_, work) = deliver(&mut guest, &long);
        assert!(work > u64::from(CHAIN_MAX), "{work} accesses");
        assert_eq!(drops(&guest), 130);
    }
}

#[test]
fn buffers_of_a_ring_that_was_started_anew_are_looked_at_though_those_before_were_too_small() {
    let mut guest = guest(plain(), 0);
    guest.add(0, &bytes(2, 100, true));
    let long = sender(1, 1514);
    deliver(&mut guest, &long);
    assert_eq!(guest.counters.receive_drops[Reason::TooLong as usize], 1);
    // The driver restarts with a longer buffer.
    let face = rings(&mut *guest.nic);
    face.stop(0, cx!(guest));
    let descriptor = [&BUFFERS.to_le_bytes()[..], &2000u32.to_le_bytes(), &[2, 0, 0, 0]].concat();
    guest.put(PLACE.descriptors, &descriptor);
    let face = rings(&mut *guest.nic);
    assert!(face.place(0, PLACE) && face.start(0, 0, cx!(guest)));
    deliver(&mut guest, &long);
    assert_eq!(guest.counters.taken().packets, 1);
}

#[test]
fn long_commands_are_served_a_few_in_each_call() {
    let mut guest = guest(plain() | bit(VIRTIO_NET_F_CTRL_VQ), 2);
    let mut parts = bytes(CHAIN_MAX, 1, false);
    parts.last_mut().unwrap().write = true;
    let head = guest.add(2, &parts);
    again(&mut guest, 2, head, 63);
    count::take();
    (0..64).for_each(|_| guest.kick(2));
    assert_eq!((count::take(), guest.out.excess), (0, 0), "however often it is rung, it is served in the port's turn");
    guest.later();
    let work = count::take();
    assert!(work <= WORK, "{work} accesses in a call");
    let first = guest.used(2).len();
    assert!((1..10).contains(&first), "{first} commands in a call");
    assert!(guest.out.excess >= first as u32 * u32::from(CHAIN_MAX), "the port pays for {first}: {}", guest.out.excess);
    for _ in 0..64 {
        guest.later();
    }
    assert_eq!(guest.used(2).len(), 64 - first, "the rest comes without another kick");
}
