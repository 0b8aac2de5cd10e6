//! Rings that break the rules, case by case and at random.

use std::sync::Arc;

use nicety_adapter::{Event, Outbox, Queue, Reason, RingPlace, Set};
use nicety_memory::Map;

use virtio_bindings::virtio_config::{VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::{VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_MQ};

use crate::guest::{Dice, Guest, MEMORY, Part, bit, cx, rings};
use crate::packed::available;
use crate::packets::{payload, tcp4};
use crate::traffic::{plain, rich};

fn raw(guest: &Guest, index: u16, words: (u64, u32, u16, u16)) {
    let table = guest.queues[1].place.descriptors;
    let (address, len, flags, next) = words;
    let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
    guest.put(table + 16 * u64::from(index), &bytes);
}

/// The only stopped queue, and the reason. Its ring is reported once, and just now.
fn stalled(guest: &mut Guest) -> (Queue, &'static str) {
    let all: Vec<_> = (0..Set::NUMBERS).filter_map(|ring| Some((ring, guest.nic.stall(ring)?))).collect();
    let [(ring, stall)] = all[..] else { panic!("one ring has broken, and not {all:?}") };
    let mut reported = std::mem::take(&mut guest.out.stalled);
    reported.remove(Outbox::KEEP);
    assert!(reported.contains(ring) && reported.contains(Outbox::GUEST_ERROR) && reported.len() == 2, "{reported:?}");
    assert!(stall.cure.contains("unbind") && stall.cure.contains("restart the guest"), "{stall}");
    (stall.queue, stall.why)
}

/// Breaks a transmit ring with `act`. The ring stops, reports the reason, is counted once, and works again after a restart.
fn breaks(what: &str, why: &str, act: impl Fn(&mut Guest)) {
    let mut guest = Guest::new(rich(), 16);
    act(&mut guest);
    for _ in 0..3 {
        let progress = guest.fetch_of(0);
        assert!(guest.batch.is_empty() && progress.armed && !progress.more, "{what}");
    }
    let (queue, reason) = stalled(&mut guest);
    assert!(queue == Queue::Transmit(0) && reason.contains(why), "{what}: {queue}: {reason}");
    guest.fetch_of(0);
    assert!(guest.out.stalled.is_empty(), "{what}: told once");
    assert_eq!(guest.counters.guest_errors(), 1, "{what}");
    let place = guest.queues[1].place;
    guest.put(place.driver, &[0; 4]);
    guest.put(place.device, &[0; 4]);
    guest.queues[1].added = 0;
    let face = rings(&mut *guest.nic);
    face.stop(1, cx!(guest));
    assert_eq!(guest.nic.stall(1), None, "{what}: a ring that is stopped is to stand still");
    assert!(rings(&mut *guest.nic).start(1, 0, cx!(guest)));
    assert_eq!(guest.nic.stall(1), None, "{what}");
    guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    guest.fetch_of(0);
    assert_eq!(guest.batch.len(), 1, "{what}: it works again");
    assert!(guest.out.stalled.is_empty() && guest.nic.stall(1).is_none(), "{what}");
}

#[test]
fn a_ring_that_breaks_the_rules_stops_until_it_is_started_again() {
    // QEMU's CVE-2016-5403: more chains in flight than the ring holds.
    breaks("an index that runs ahead", "index ran further ahead", |guest| {
        guest.put(guest.queues[1].place.driver + 2, &17u16.to_le_bytes());
    });
    breaks("a head behind the table", "head beyond", |guest| guest.offer(1, 16));
    breaks("a chain that loops", "loops", |guest| {
        raw(guest, 0, (0x10_0000, 12, 1, 1));
        raw(guest, 1, (0x10_0000, 64, 1, 1));
        guest.offer(1, 0);
    });
    breaks("a chain out of the table", "leaves its table", |guest| {
        raw(guest, 0, (0x10_0000, 12, 1, 999));
        guest.offer(1, 0);
    });
    breaks("a buffer of no bytes", "no bytes", |guest| {
        raw(guest, 0, (0x10_0000, 0, 0, 0));
        guest.offer(1, 0);
    });
    breaks("a table in a table", "indirect", |guest| {
        let inner = [&0x10_0000u64.to_le_bytes()[..], &16u32.to_le_bytes(), &4u16.to_le_bytes(), &[0; 2]].concat();
        guest.put(0x10_0000, &inner);
        raw(guest, 0, (0x10_0000, 16, 4, 0));
        guest.offer(1, 0);
    });
    breaks("a table that goes on", "indirect", |guest| {
        raw(guest, 0, (0x10_0000, 16, 4 | 1, 1));
        guest.offer(1, 0);
    });
    breaks("a table of broken size", "indirect", |guest| {
        raw(guest, 0, (0x10_0000, 17, 4, 0));
        guest.offer(1, 0);
    });
    breaks("a table outside memory", "indirect", |guest| {
        raw(guest, 0, (MEMORY - 8, 16, 4, 0));
        guest.offer(1, 0);
    });
}

#[test]
fn a_table_of_descriptors_that_was_not_negotiated_breaks_the_ring() {
    let mut guest = Guest::new(plain(), 16);
    raw(&guest, 0, (0x10_0000, 32, 4, 0));
    guest.offer(1, 0);
    guest.fetch_of(0);
    assert_eq!(guest.counters.guest_errors(), 1);
    assert!(stalled(&mut guest).1.contains("indirect"));
}

#[test]
fn a_ring_whose_memory_goes_away_says_so_whoever_finds_it() {
    let gone = Arc::new(Map::private(0x2000).unwrap());
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    sender.fetch_of(0);
    type Find = fn(&mut Guest, &Guest);
    let finders: [(Queue, Find); 3] = [
        (Queue::Transmit(0), |guest, _| assert!(guest.fetch_of(0).armed)),
        (Queue::Transmit(0), |guest, _| guest.complete()),
        (Queue::Receive(0), |guest, sender| assert_eq!(guest.deliver(&sender.batch).refused(), 0)),
    ];
    for (queue, find) in finders {
        let mut guest = Guest::new(plain(), 16);
        guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        guest.fetch_of(0);
        guest.map = Arc::clone(&gone);
        find(&mut guest, &sender);
        assert_eq!(stalled(&mut guest), (queue, "the ring lies where no memory is"));
    }
}

#[test]
fn a_control_queue_that_breaks_says_so() {
    let ends = [
        (None, "a command has no room for its answer"),
        (Some(MEMORY), "a buffer lies where no memory is, or where a device may not write"),
    ];
    for (answer, why) in ends {
        let mut guest = Guest::new(plain() | bit(VIRTIO_NET_F_CTRL_VQ), 16);
        let command = Part { address: 0x10_0000, len: 3, write: false };
        let answer = answer.map(|address| Part { address, len: 1, write: true });
        // Without MQ the control queue is ring 2.
        guest.add(2, &[&[command][..], answer.as_slice()].concat());
        guest.kick(2);
        guest.later();
        assert_eq!(stalled(&mut guest), (Queue::Control, why));
    }
}

#[test]
fn a_frame_that_cannot_be_read_is_dropped_with_its_reason_and_the_next_one_goes() {
    let mut guest = Guest::new(plain(), 16);
    let header = guest.allocate(12);
    let top = Part { address: header, len: 12, write: false };
    guest.add(1, &[top, Part { address: MEMORY, len: 100, write: false }]);
    guest.add(1, &[Part { address: u64::MAX - 3, len: 100, write: false }]);
    guest.add(1, &[top, Part { address: header, len: 100, write: true }]);
    guest.add(1, &[top]);
    guest.add(1, &[Part { address: header, len: 11, write: false }]);
    guest.add(1, &[top, Part { address: header, len: 70_000, write: false }]);
    guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    guest.fetch_of(0);
    assert_eq!(guest.batch.len(), 1);
    let drops = |reason: Reason| guest.counters.transmit_drops[reason as usize];
    assert_eq!(drops(Reason::BadAddress), 2);
    assert_eq!(drops(Reason::BadDescriptor), 2);
    assert_eq!((drops(Reason::TooShort), drops(Reason::TooLong)), (1, 1));
    assert_eq!(guest.used(1).len(), 6, "the dropped ones are given back");
}

#[test]
fn a_receive_buffer_that_the_device_may_not_write_breaks_that_ring_only() {
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    sender.fetch_of(0);
    for part in [Part { address: 0x10_0000, len: 2048, write: false }, Part { address: MEMORY, len: 2048, write: true }]
    {
        let mut guest = Guest::new(plain(), 16);
        guest.add(0, &[part]);
        assert_eq!(guest.deliver(&sender.batch).refused(), 0);
        assert_eq!(guest.counters.guest_errors(), 1);
        let why =
            if part.write { "a buffer lies where no memory is" } else { "a receive buffer is not for the device" };
        let (queue, reason) = stalled(&mut guest);
        assert!(queue == Queue::Receive(0) && reason.starts_with(why), "{queue}: {reason}");
        assert_eq!(guest.counters.receive_drops.iter().sum::<u64>(), 1);
        guest.deliver(&sender.batch);
        assert_eq!(guest.counters.receive_drops.iter().sum::<u64>(), 2);
        guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        guest.fetch_of(0);
        assert_eq!(guest.batch.len(), 1, "its transmit ring goes on");
    }
}

#[test]
fn a_ring_that_lies_where_none_can_is_not_placed_or_not_started() {
    let mut guest = Guest::new(plain(), 16);
    let place = guest.queues[1].place;
    let face = rings(&mut *guest.nic);
    assert!(!face.place(1, place), "not while it runs");
    face.stop(1, cx!(guest));
    for size in [0, 3, 40_000] {
        assert!(!face.place(1, RingPlace { size, ..place }), "size {size}");
    }
    assert!(!face.place(1, RingPlace { descriptors: 8, ..place }), "alignment");
    assert!(!face.place(99, place));
    assert!(face.place(1, RingPlace { device: MEMORY - 64, ..place }));
    assert!(!face.start(1, 0, cx!(guest)), "it ends outside memory");
    assert!(!face.start(99, 0, cx!(guest)));
    assert_eq!(face.stop(99, cx!(guest)), 0);
}

/// A random address and length, more often plausible than not.
fn buffer(random: &mut Dice) -> (u64, u32) {
    let address = if random.below(8) == 0 { random.roll() } else { random.below(MEMORY) };
    let len = if random.below(8) == 0 { random.roll() as u32 } else { 16 * random.below(200) as u32 };
    (address, len)
}

/// VIRTQ_DESC_F_WRITE, if the device writes to this ring's buffers.
fn direction(ring: u16) -> u16 {
    if ring.is_multiple_of(2) { 2 } else { 0 }
}

/// Writes a random descriptor, more often plausible than not.
fn scribble(guest: &Guest, ring: u16, random: &mut Dice) {
    let (address, len) = buffer(random);
    let queue = &guest.queues[usize::from(ring)];
    let likely = direction(ring) | random.below(2) as u16;
    let flags = if random.below(3) == 0 { random.roll() as u16 } else { likely };
    // The last two words of a packed ring's descriptor are in the other order (2.8.5).
    let words = match guest.is_packed() {
        true => [random.roll() as u16, flags | available(queue.laps[0])],
        false => [flags, random.below(18) as u16],
    };
    let bytes = [&address.to_le_bytes()[..], &len.to_le_bytes(), &words[0].to_le_bytes(), &words[1].to_le_bytes()];
    guest.put(queue.place.descriptors + 16 * random.below(16), &bytes.concat());
}

/// Makes a random head available. In a packed ring: up to 20 descriptors, one after another, so that some are in the ring's next lap and may
/// lie over others that the device has not returned. Most are chains of their own; others are torn, in another lap, or out of memory.
fn offer(guest: &mut Guest, ring: u16, random: &mut Dice) {
    if !guest.is_packed() {
        return guest.offer(ring, random.below(17) as u16);
    }
    for _ in 0..1 + random.below(20) {
        let queue = guest.queues[usize::from(ring)];
        let at = queue.place.descriptors + 16 * u64::from(queue.slot);
        let (address, len) = match random.below(32) {
            0 => buffer(random),
            _ => (random.below(MEMORY - 2048), 72 + random.below(1500) as u32),
        };
        let odd = match random.below(48) {
            0 => random.roll() as u16,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        let flags = (direction(ring) | available(queue.laps[0])) ^ odd;
        guest.put(at, &[&address.to_le_bytes()[..], &len.to_le_bytes()].concat());
        guest.put(at + 12, &[random.roll() as u16, flags].map(u16::to_le_bytes).concat());
        let queue = &mut guest.queues[usize::from(ring)];
        queue.slot += 1;
        if queue.slot == queue.place.size {
            (queue.slot, queue.laps[0]) = (0, !queue.laps[0]);
        }
    }
}

/// Stops a ring, and starts it again at the same place. The driver of a packed ring usually goes on there too.
fn restart(guest: &mut Guest, ring: u16, random: &mut Dice) {
    let face = rings(&mut *guest.nic);
    let base = face.stop(ring, cx!(guest));
    face.start(ring, base, cx!(guest));
    let queue = &mut guest.queues[usize::from(ring)];
    if base as u16 & 0x7fff < queue.place.size && random.below(4) > 0 {
        (queue.slot, queue.laps[0]) = (base as u16 & 0x7fff, base & 0x8000 != 0);
    }
}

/// Random steps of drivers with these features, 50 in each round. Returns the packets sent and received.
fn random_rounds(features: [u128; 2], rounds: usize, random: &mut Dice) -> [u64; 2] {
    let mut sender = Guest::new(rich(), 16);
    for _ in 0..4 {
        sender.send(0, &[0; 12], &tcp4(&payload(3000)), 1000);
    }
    for _ in 0..8 {
        sender.send(0, &[0; 12], &tcp4(&payload(60)), 1000);
    }
    sender.fetch_of(0);
    let mut carried = [0; 2];
    for round in 0..rounds {
        let mut guest = Guest::new(features[round % 2], 16);
        let count = guest.queues.len() as u64;
        for _ in 0..50 {
            let ring = random.below(count) as u16;
            let place = guest.queues[usize::from(ring)].place;
            match random.below(8) {
                0 => scribble(&guest, ring, random),
                1 | 2 => offer(&mut guest, ring, random),
                3 => guest.put(place.driver + random.below(40), &random.roll().to_le_bytes()),
                4 => drop(guest.fetch_of(random.below(3) as u16)),
                5 => guest.complete(),
                6 => drop(guest.deliver(&sender.batch)),
                _ => guest.kick(ring),
            }
            // A call reads at most 2048 descriptors beyond the usual, and ends a chain that it has begun.
            assert!(guest.out.excess <= 2048 + 1024, "round {round}: {} descriptors", guest.out.excess);
            let is_broken = guest.nic.stall(ring).is_some();
            if random.below(if is_broken { 4 } else { 40 }) == 0 {
                restart(&mut guest, ring, random);
            }
            guest.out = Outbox::default();
        }
        let sent = guest.counters.transmitted().packets;
        assert!(sent < 50 * 64, "round {round}: {sent} packets");
        carried[0] += sent;
        carried[1] += guest.counters.taken().packets;
    }
    carried
}

#[test]
fn random_rings_over_random_memory_never_panic_and_every_call_is_bounded() {
    let mut random = Dice(2026);
    let all = rich() | bit(17) | bit(18) | bit(19) | bit(22) | bit(29);
    let packed = bit(VIRTIO_F_RING_PACKED);
    random_rounds([all, plain()], 200, &mut random);
    let [sent, received] = random_rounds([all | packed, plain() | packed], 400, &mut random);
    // Else no ring would have come as far as the paths that take and return chains in runs.
    assert!(sent > 2_000 && received > 500, "packed rings carried {sent} and {received} packets");
}

/// The device may write the second half of a descriptor, whose flags say that it is used, and its own area (2.8).
#[test]
fn a_random_packed_transmit_ring_has_the_device_write_nothing_but_used_descriptors() {
    let mut random = Dice(49);
    let mut returned = 0;
    for round in 0..300 {
        let mut guest = Guest::new(plain() | bit(VIRTIO_F_RING_PACKED), [16, 7, 1][round % 3]);
        let place = guest.queues[1].place;
        for step in 0..40 {
            offer(&mut guest, 1, &mut random);
            let area = 0x8000;
            let before = guest.get(place.descriptors, area);
            match step % 2 {
                0 => drop(guest.fetch_of(0)),
                _ => guest.complete(),
            }
            let after = guest.get(place.descriptors, area);
            let differs = |at: &usize| before[*at] != after[*at];
            let own = (place.device - place.descriptors) as usize;
            for at in (0..area).filter(differs) {
                let is_descriptor = at < 16 * usize::from(place.size) && at % 16 >= 8;
                let is_own = (own..own + 4).contains(&at);
                assert!(is_descriptor || is_own, "round {round}, step {step}: byte {at:#x}");
            }
            for slot in 0..usize::from(place.size) {
                let [before, after] = [&before, &after].map(|bytes| &bytes[16 * slot + 8..16 * slot + 16]);
                if before != after {
                    let flags = u16::from_le_bytes([after[6], after[7]]);
                    assert!([0, 1 << 7 | 1 << 15].contains(&flags), "round {round}, step {step}: flags {flags:#x}");
                    assert_eq!(
                        after[..4],
                        [0; 4],
                        "round {round}, step {step}: bytes written to a buffer of a transmit ring"
                    );
                    returned += 1;
                }
            }
            if guest.nic.stall(1).is_some() {
                restart(&mut guest, 1, &mut random);
            }
            guest.out = Outbox::default();
        }
    }
    assert!(returned > 5_000, "{returned} descriptors came back");
}

/// Sections of virtio 1.2.
#[test]
fn a_drivers_mistakes_are_listed_with_place_value_and_expectation() {
    let mut guest = Guest::new(rich() | bit(VIRTIO_NET_F_CTRL_VQ) | bit(VIRTIO_NET_F_MQ), 16);
    let address = guest.allocate(100);
    let good = guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    let bad = guest.add(1, &[Part { address, len: 12, write: false }, Part { address, len: 60, write: true }]);
    let nowhere =
        guest.add(1, &[Part { address, len: 12, write: false }, Part { address: 1 << 40, len: 60, write: false }]);
    assert_eq!((good, bad), (0, 2));
    for _ in 0..3 {
        guest.fetch_of(0);
        guest.complete();
    }
    guest.command(99, 7, &[0]);
    guest.offer(1, 16);
    guest.fetch_of(0);
    let said: Vec<String> = guest.counters.errors().iter().map(ToString::to_string).collect();
    assert_eq!(
        said[..2],
        [
            format!(
                "transmit queue 0, descriptor 2: {address:#x}; expected device-readable buffers with the whole virtio_net_hdr first \
                 (5.1.6.2)"
            ),
            format!(
                "transmit queue 0, descriptor {nowhere}: 0x10000000000; expected the address of a buffer in guest memory that the \
                 device may read"
            ),
        ]
    );
    assert!(said[2].starts_with("the control queue, descriptor 0: 0x6307; expected a class and command"), "{said:?}");
    assert_eq!(said[3], "transmit queue 0, descriptor 3: 0x3; expected a head below the queue's size (2.7.6)");
}

#[test]
fn a_driver_that_has_started_no_receive_queue_is_told() {
    let mut guest = Guest::new(bit(VIRTIO_F_VERSION_1), 64);
    assert_eq!(guest.nic.receive_block(), None);
    guest.call(|nic, cx| nic.notice(Event::Link(false), cx));
    assert_eq!(guest.nic.receive_block(), Some("its link is down"));
    let receive_rings = (0..guest.queues.len() as u16).step_by(2);
    receive_rings.for_each(|ring| guest.call(|nic, cx| _ = rings(nic).stop(ring, cx)));
    assert_eq!(guest.nic.receive_block(), Some("no receive queue is started"));
}

/// virtio 1.2, 2.7.6: the index moves by one for each chain. One that jumped, before any frame came.
#[test]
fn a_receive_queue_whose_index_jumped_stands_still_and_says_so() {
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    sender.fetch_of(0);
    let mut guest = Guest::new(plain(), 16);
    guest.put(guest.queues[0].place.driver + 2, &500u16.to_le_bytes());
    guest.deliver(&sender.batch);
    assert_eq!(stalled(&mut guest), (Queue::Receive(0), "the driver's index ran further ahead than the ring is long"));
}
