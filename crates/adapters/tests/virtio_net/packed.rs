//! Packed rings (virtio 1.2, section 2.8), and returns in order. The driver's side is written here again.

use std::cell::Cell;

use nicety_adapter::{Outbox, Queue, Reason};
use virtio_bindings::virtio_config::{VIRTIO_F_IN_ORDER, VIRTIO_F_RING_PACKED};
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::guest::{Guest, Part, bit, cx, rings};
use crate::packets::{payload, tcp4};
use crate::traffic::{plain, rich};

/// The base of a new ring: its first descriptor, with wrap counters of 1.
pub const BASE: u32 = 0x8000_8000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

fn packed() -> u128 {
    bit(VIRTIO_F_RING_PACKED)
}

/// `flags` of an available descriptor (2.8.1): AVAIL equals the wrap counter, USED its inverse.
pub fn available(lap: bool) -> u16 {
    if lap { 1 << 7 } else { 1 << 15 }
}

impl Guest {
    pub fn is_packed(&self) -> bool {
        self.took(VIRTIO_F_RING_PACKED)
    }

    fn lay(&self, at: u64, part: Part, id: u16, flags: u16) {
        let flags = flags | if part.write { WRITE } else { 0 };
        let words = [&part.address.to_le_bytes()[..], &part.len.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes()];
        self.put(at, &words.concat());
    }

    /// Adds a chain, in an indirect table if there is one. Returns its identifier. The first descriptor is handed over last.
    pub fn add_packed(&mut self, ring: u16, parts: &[Part], table: Option<u64>) -> u16 {
        let first = parts[0].address;
        let inside = match table {
            None => parts.to_vec(),
            Some(address) => {
                // In a table, neither NEXT nor the identifier has a meaning (2.8.7).
                (0..).zip(parts).for_each(|(i, part)| self.lay(address + 16 * i, *part, 0xdead, NEXT));
                vec![Part { address, len: 16 * parts.len() as u32, write: false }]
            }
        };
        let queue = &mut self.queues[usize::from(ring)];
        queue.added = queue.added.wrapping_add(1);
        let (size, start, id) = (queue.place.size, queue.slot, queue.added.wrapping_mul(40503));
        let mut laid = Vec::new();
        for (i, part) in inside.iter().enumerate() {
            let more = if i + 1 < inside.len() { NEXT } else { 0 };
            let flags = more | if table.is_some() { INDIRECT } else { 0 } | available(queue.laps[0]);
            laid.push((queue.place.descriptors + 16 * u64::from(queue.slot), *part, flags));
            queue.slot += 1;
            if queue.slot == size {
                (queue.slot, queue.laps[0]) = (0, !queue.laps[0]);
            }
        }
        // Only the last descriptor's identifier counts.
        let last = laid.len() - 1;
        for (i, (at, part, flags)) in laid.into_iter().enumerate().rev() {
            self.lay(at, part, if i == last { id } else { 0xbeef }, flags);
        }
        assert!(inside.len() <= usize::from(size), "from {start} on");
        self.chains.insert((ring, id), (inside.len() as u16, first));
        id
    }

    /// Returned chains: identifiers and lengths.
    pub fn used_packed(&mut self, ring: u16) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        loop {
            let queue = self.queues[usize::from(ring)];
            let bytes = self.get(queue.place.descriptors + 16 * u64::from(queue.seen), 16);
            let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let flags = word(14);
            if [flags & 1 << 7 != 0, flags & 1 << 15 != 0] != [queue.laps[1]; 2] {
                return out;
            }
            let len = u32::from(word(8)) | u32::from(word(10)) << 16;
            assert_eq!(flags & WRITE != 0, len > 0, "WRITE says that the length counts (2.8.5)");
            out.push((word(12).into(), len));
            let (slots, _) = self.chains[&(ring, word(12))];
            let queue = &mut self.queues[usize::from(ring)];
            queue.seen += slots;
            if queue.seen >= queue.place.size {
                (queue.seen, queue.laps[1]) = (queue.seen - queue.place.size, !queue.laps[1]);
            }
        }
    }
}

/// Sends frames of growing length from one guest to the other, `laps` times around rings of `size`.
fn goes_around(features: u128, size: u16, step: usize) {
    let mut sender = Guest::new(features, size);
    let mut receiver = Guest::new(features, size);
    let count = u32::from(size);
    let buffers = receiver.post(0, usize::from(size), 2048);
    let memory = sender.allocate(4096);
    for number in 0..10 * count {
        let frame = tcp4(&payload(20 + number as usize));
        sender.put(memory, &[&[0; 12][..], &frame].concat());
        let len = 12 + frame.len() as u32;
        let parts: Vec<Part> = (0..len)
            .step_by(step)
            .map(|at| Part { address: memory + u64::from(at), len: (step as u32).min(len - at), write: false })
            .collect();
        let id = if sender.took(VIRTIO_RING_F_INDIRECT_DESC) && number % 3 == 0 {
            sender.add_indirect(1, &parts)
        } else {
            sender.add(1, &parts)
        };
        sender.kick(1);
        let progress = sender.fetch_of(0);
        assert!(progress.more && sender.batch.len() == 1, "frame {number}");
        assert!(sender.look_at(0).armed, "frame {number}");
        assert_eq!(receiver.deliver(&sender.batch).refused(), 0, "frame {number}");
        sender.complete();
        assert_eq!(sender.used(1), [(id.into(), 0)], "frame {number}");
        let got = receiver.received(0);
        assert_eq!(got.len(), 1, "frame {number}");
        assert_eq!(got[0].1, frame, "frame {number}");
        let address = buffers[number as usize % usize::from(size)];
        receiver.add(0, &[Part { address, len: 2048, write: true }]);
    }
}

#[test]
fn frames_go_around_packed_rings_of_any_size_in_chains_of_any_length() {
    // A packed ring need not be a power of two (2.8.10.1).
    for size in [1, 2, 5, 16, 37] {
        for features in [plain(), plain() | bit(VIRTIO_RING_F_EVENT_IDX), plain() | bit(VIRTIO_RING_F_INDIRECT_DESC)] {
            goes_around(packed() | features, size, 2048);
        }
    }
    goes_around(packed() | rich(), 37, 64);
    goes_around(packed() | rich() | bit(VIRTIO_RING_F_EVENT_IDX), 64, 23);
}

#[test]
fn a_long_packet_fills_several_buffers_of_a_packed_ring_around_its_end() {
    let mut sender = Guest::new(packed() | rich(), 8);
    let mut receiver = Guest::new(packed() | rich(), 7);
    for round in 0..5 {
        let frame = tcp4(&payload(1400 + round));
        sender.send(0, &[0; 12], &frame, 500);
        sender.fetch_of(0);
        receiver.post(0, 4, 400);
        assert_eq!(receiver.deliver(&sender.batch).refused(), 0);
        sender.complete();
        let got = receiver.received(0);
        assert_eq!(got[0].1, frame, "round {round}");
        assert_eq!(got[0].0[10], 4, "buffers");
        assert_eq!(sender.used(1).len(), 1);
    }
}

#[test]
fn a_packed_receive_ring_without_enough_buffers_refuses_and_gets_the_frame_later() {
    let mut sender = Guest::new(plain(), 16);
    let frame = tcp4(&payload(1000));
    sender.send(0, &[0; 12], &frame, 2000);
    sender.fetch_of(0);
    for events in [0, bit(VIRTIO_RING_F_EVENT_IDX)] {
        let mut receiver = Guest::new(packed() | rich() | events, 4);
        receiver.post(0, 2, 400);
        assert_eq!(receiver.deliver(&sender.batch).refused(), 1);
        assert!(receiver.used(0).is_empty());
        receiver.post(0, 1, 400);
        receiver.kick(0);
        assert!(receiver.out.room.contains(0));
        assert_eq!(receiver.deliver(&sender.batch).refused(), 0);
        assert_eq!(receiver.received(0)[0].1, frame);
    }
}

#[test]
fn more_frames_at_once_than_a_packed_ring_has_buffers_fill_each_of_them_once() {
    let mut sender = Guest::new(plain(), 32);
    let frames: Vec<_> = (0..11).map(|number| tcp4(&payload(100 + number))).collect();
    for frame in &frames {
        sender.send(0, &[0; 12], frame, 2000);
    }
    sender.fetch_of(0);
    for features in [packed() | plain(), packed() | rich(), packed() | plain() | bit(VIRTIO_RING_F_EVENT_IDX)] {
        for size in [1, 2, 5, 8] {
            let mut receiver = Guest::new(features, size);
            for round in 0..4 {
                receiver.post(0, size.into(), 400);
                let refused = receiver.deliver(&sender.batch).refused().count_ones();
                assert_eq!(refused, frames.len() as u32 - u32::from(size), "{size} buffers, round {round}");
                let got: Vec<_> = receiver.received(0).into_iter().map(|(_, frame)| frame).collect();
                assert_eq!(got, frames[..usize::from(size)], "{size} buffers, round {round}");
                assert!(std::mem::take(&mut receiver.out).messages.contains(0), "it is told of all of them");
            }
        }
    }
}

#[test]
fn a_driver_is_told_that_all_of_its_packed_ring_has_come_back_at_once() {
    for (size, parts) in [(1, 1), (4, 1), (16, 1), (64, 1), (16, 4)] {
        let mut guest = Guest::new(packed() | plain(), size);
        for round in 0..4 {
            for _ in 0..size / parts {
                let bytes = [&[0; 12][..], &tcp4(&payload(100))].concat();
                guest.put(0x10_0000, &bytes);
                let len = bytes.len() as u32 / u32::from(parts);
                let part = |at: u32| Part { address: 0x10_0000 + u64::from(at * len), len, write: false };
                guest.add(1, &(0..parts.into()).map(part).collect::<Vec<_>>());
            }
            guest.fetch_of(0);
            guest.complete();
            guest.later();
            assert_eq!(guest.used(1).len(), usize::from(size / parts), "a ring of {size}, round {round}");
            assert!(std::mem::take(&mut guest.out).messages.contains(1), "a ring of {size}, round {round}");
        }
    }
}

#[test]
fn commands_go_through_a_packed_control_queue() {
    let features = [VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_CTRL_RX, VIRTIO_NET_F_MQ].map(bit).iter().sum::<u128>();
    let mut guest = Guest::new(packed() | rich() | features, 5);
    for on in 0..7 {
        assert_eq!(guest.command(VIRTIO_NET_CTRL_RX, VIRTIO_NET_CTRL_RX_PROMISC, &[on]), 0);
    }
    assert_eq!(guest.command(9, 9, &[0]), 1);
}

#[test]
fn what_goes_nowhere_comes_back_after_what_was_sent_before_it() {
    for order in [packed(), bit(VIRTIO_F_IN_ORDER), packed() | bit(VIRTIO_F_IN_ORDER)] {
        let mut guest = Guest::new(plain() | order, 16);
        let good = tcp4(&payload(100));
        let mut sent = Vec::new();
        for bad in [false, true, true, false, true] {
            let frame: &[u8] = if bad { &good[..5] } else { &good };
            sent.push(u32::from(guest.send(0, &[0; 12], frame, 2000)));
        }
        let mut back = Vec::new();
        for _ in 0..3 {
            guest.fetch_of(0);
            back.extend(guest.used(1));
            guest.complete();
            back.extend(guest.used(1));
        }
        let back: Vec<u32> = back.into_iter().map(|(id, _)| id).collect();
        assert_eq!(back, sent);
        assert_eq!(guest.counters.transmit_drops[Reason::TooShort as usize], 3);
        assert_eq!(guest.counters.transmitted().frames, 2);
    }
}

#[test]
fn a_packed_ring_goes_on_where_it_was_stopped() {
    let mut guest = Guest::new(packed() | plain(), 5);
    for round in 0..23 {
        guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        guest.fetch_of(0);
        assert_eq!(guest.batch.len(), 1, "round {round}");
        let base = rings(&mut *guest.nic).stop(1, cx!(guest));
        guest.complete();
        assert!(guest.used(1).is_empty(), "what was taken is not given back after a stop");
        let face = rings(&mut *guest.nic);
        // DPDK's virtio-user gives only one position.
        let position = if round % 2 == 0 { base } else { base & 0xffff };
        assert!(face.start(1, position, cx!(guest)), "round {round}: {base:#x}");
        guest.fetch_of(0);
        assert_eq!(guest.batch.len(), 1, "round {round}: it is sent after all");
        guest.complete();
        assert_eq!(guest.used(1).len(), 1, "round {round}");
    }
}

#[test]
fn a_packed_ring_that_begins_behind_its_end_is_not_started() {
    let mut guest = Guest::new(packed() | plain(), 4);
    let placed = guest.queues[1].place;
    let face = rings(&mut *guest.nic);
    face.stop(1, cx!(guest));
    assert!(!face.start(1, 0x8004_8004, cx!(guest)));
    assert!(!face.start(1, 5, cx!(guest)));
    let place = nicety_adapter::RingPlace { driver: 2, ..placed };
    assert!(!face.place(1, place), "event suppression is aligned to 4 bytes");
    let place = nicety_adapter::RingPlace { size: 0, ..placed };
    assert!(!face.place(1, place));
    let place = nicety_adapter::RingPlace { size: 32769, ..placed };
    assert!(!face.place(1, place));
}

/// Breaks a packed transmit ring in some way.
fn breaks(why: &str, descriptors: &[(u64, u32, u16)]) {
    let mut guest = Guest::new(packed() | rich(), 4);
    for (i, (address, len, flags)) in descriptors.iter().enumerate() {
        let at = guest.queues[1].place.descriptors + 16 * i as u64;
        guest.lay(at, Part { address: *address, len: *len, write: false }, 7, *flags | available(true));
    }
    for _ in 0..3 {
        let progress = guest.fetch_of(0);
        assert!(guest.batch.is_empty() && progress.armed && !progress.more, "{why}");
    }
    let stall = guest.nic.stall(1).expect("it stands still");
    assert!(stall.queue == Queue::Transmit(0) && stall.why.contains(why), "{stall}");
    assert_eq!(guest.counters.guest_errors(), 1, "{why}");
    assert!(guest.out.stalled.contains(1));
    guest.out = Outbox::default();
}

#[test]
fn a_packed_ring_that_breaks_the_rules_stops() {
    let buffer = (0x10_0000, 64, NEXT);
    breaks("loops", &[buffer; 4]);
    breaks("no bytes", &[(0x10_0000, 0, 0)]);
    breaks("indirect", &[(0x10_0000, 17, INDIRECT)]);
    breaks("indirect", &[(0x10_0000, 32, INDIRECT | NEXT)]);
    breaks("indirect", &[(u64::MAX - 8, 32, INDIRECT)]);
    breaks("indirect", &[(0x10_0000, 16 * 1025, INDIRECT)]);
}

#[test]
fn a_table_that_names_a_table_in_a_packed_ring_is_no_table() {
    // In a table only WRITE has a meaning (2.8.7): a descriptor with INDIRECT there names an ordinary buffer.
    let mut guest = Guest::new(packed() | rich(), 4);
    let table = guest.allocate(16);
    guest.lay(table, Part { address: 0x10_0000, len: 64, write: false }, 0, INDIRECT | NEXT);
    let at = guest.queues[1].place.descriptors;
    guest.lay(at, Part { address: table, len: 16, write: false }, 7, INDIRECT | available(true));
    guest.fetch_of(0);
    assert_eq!((guest.batch.len(), guest.counters.guest_errors()), (1, 0));
}

/// The position after `count` descriptors, over a ring's two laps, in the format of event suppression.
fn place(size: u16, count: u32) -> u16 {
    let (lap, slot) = (count / u32::from(size), count % u32::from(size));
    slot as u16 | if lap.is_multiple_of(2) { 1 << 15 } else { 0 }
}

#[test]
fn a_packed_ring_is_notified_of_where_its_driver_asks_and_asks_for_kicks_where_it_stands() {
    const SIZE: u16 = 5;
    let events = bit(VIRTIO_RING_F_EVENT_IDX);
    let notifications = Cell::new(0);
    let mut guest = Guest::new(packed() | plain() | events, SIZE);
    let area = guest.queues[1].place;
    // The adapter does not know the earlier notifications: the first one comes in any case.
    let go = |guest: &mut Guest, number: u32, event: Option<u32>| {
        let word = event.map_or(1 << 16, |count| u32::from(place(SIZE, count)) | 2 << 16);
        guest.put(area.driver, &word.to_le_bytes());
        guest.add(1, &[Part { address: 0x10_0000, len: 112, write: false }]);
        guest.fetch_of(0);
        assert!(guest.look_at(0).armed, "chain {number}");
        let asked = u32::from(guest.get16(area.device)) | u32::from(guest.get16(area.device + 2)) << 16;
        assert_eq!(asked, u32::from(place(SIZE, number + 1)) | 2 << 16, "chain {number}");
        guest.complete();
        guest.later();
        assert_eq!(guest.used(1).len(), 1);
        let notified = std::mem::take(&mut guest.out).messages.contains(1);
        notifications.set(notifications.get() + u32::from(notified));
        notified
    };
    for number in 0..50 {
        match number % 4 {
            0 => assert!(!go(&mut guest, number, None), "chain {number}: it does not want any"),
            1 => assert!(!go(&mut guest, number, Some(number + 1)), "chain {number}: only the next one"),
            2 => assert!(go(&mut guest, number, Some(number)), "chain {number}: this one"),
            _ => assert!(!go(&mut guest, number, Some(number + 2)), "chain {number}"),
        }
    }
    assert_eq!(notifications.get(), 12);
}

#[test]
fn a_packed_ring_without_event_index_is_quiet_as_its_driver_asks() {
    let mut guest = Guest::new(packed() | plain(), 8);
    let area = guest.queues[1].place;
    for (flags, wanted) in [(0u16, true), (1, false), (2, true), (0, true)] {
        guest.put(area.driver + 2, &flags.to_le_bytes());
        guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        guest.fetch_of(0);
        guest.complete();
        guest.later();
        assert_eq!(std::mem::take(&mut guest.out).messages.contains(1), wanted, "flags {flags}");
        assert!(guest.fetch_of(0).armed, "the look that found a frame asks for another one first");
        assert_eq!(guest.get16(area.device + 2), 0, "it wants to be kicked");
        guest.used(1);
    }
}

#[test]
fn a_saved_packed_ring_goes_on() {
    let mut guest = Guest::new(packed() | plain(), 5);
    for round in 0..12 {
        guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        guest.fetch_of(0);
        guest.complete();
        assert_eq!(guest.used(1).len(), 1, "round {round}");
        let saved = guest.nic.save();
        guest.nic.restore(&saved).unwrap();
    }
}
