//! Interrupt moderation: a bulk flow interrupts at most once per interval while buffers are left, and every packet is signalled in
//! the end.

use nicety_adapter::{Outbox, Time};

use crate::guest::{Guest, cx, rings};
use crate::packets::{payload, tcp4};
use crate::traffic::plain;

/// Interval between interrupts: 4000 a second.
const SPAN_NS: u64 = 500_000;
const RING: u16 = 64;

/// A guest with a full receive ring, and a sender's batch of twelve full frames.
fn both() -> (Guest, Guest) {
    let mut guest = Guest::new(plain(), RING);
    guest.now = Time(1_000_000);
    guest.post(0, usize::from(RING), 2048);
    (guest, sender(12, 1400))
}

fn sender(frames: usize, bytes: usize) -> Guest {
    let mut sender = Guest::new(plain(), RING);
    for _ in 0..frames {
        sender.send(0, &[0; 12], &tcp4(&payload(bytes)), 2000);
    }
    sender.fetch_of(0);
    sender
}

/// Delivers a batch. Returns whether the guest is interrupted, and the tick that the adapter requests.
fn deliver(guest: &mut Guest, sender: &Guest) -> (bool, Option<Time>) {
    guest.out = Outbox::default();
    assert_eq!(guest.deliver(&sender.batch).refused(), 0);
    (guest.out.messages.contains(0), guest.out.wake)
}

fn tick(guest: &mut Guest) -> bool {
    guest.out = Outbox::default();
    guest.nic.tick(cx!(guest));
    guest.out.messages.contains(0)
}

#[test]
fn a_bulk_flow_interrupts_once_in_a_span_and_is_told_of_the_last_frame_too() {
    let (mut guest, sender) = both();
    assert_eq!(deliver(&mut guest, &sender), (true, None));
    let due = guest.now.after_ns(SPAN_NS);
    guest.now = guest.now.after_ns(10_000);
    assert_eq!(deliver(&mut guest, &sender), (false, Some(due)));
    assert_eq!(guest.received(0).len(), 24, "whoever looks finds it");
    guest.now = due;
    assert!(tick(&mut guest));
    assert!(!tick(&mut guest), "and once");
    assert_eq!((guest.counters.interrupts, guest.out.wake), (2, None));
}

#[test]
fn buffers_that_run_short_are_told_of_at_once() {
    let (mut guest, sender) = both();
    assert!(deliver(&mut guest, &sender).0);
    assert!(!deliver(&mut guest, &sender).0, "24 of 64 are used");
    assert!(deliver(&mut guest, &sender).0, "36 are: the driver had better post some");
}

#[test]
fn what_carries_little_is_told_at_once_every_time() {
    let (mut guest, sender) = (both().0, sender(1, 100));
    for _ in 0..20 {
        assert_eq!(deliver(&mut guest, &sender), (true, None));
        guest.now = guest.now.after_ns(1000);
    }
}

/// Sends one frame whose buffers come back. Returns whether the driver is interrupted at once, and the tick that the adapter
/// requests.
fn sent(guest: &mut Guest) -> (bool, Option<Time>) {
    guest.send(0, &[0; 12], &tcp4(&payload(100)), 2000);
    guest.fetch_of(0);
    guest.out = Outbox::default();
    guest.complete();
    (guest.out.messages.contains(1), guest.out.wake)
}

#[test]
fn buffers_that_come_back_wait_for_company_and_not_for_ever() {
    let (mut guest, _) = both();
    let (interrupted, due) = sent(&mut guest);
    assert!(!interrupted && due.is_some_and(|due| due <= guest.now.after_ns(100_000)), "{due:?}");
    assert_eq!(guest.used(1).len(), 1, "whoever looks finds it");
    guest.later();
    assert!(guest.out.messages.contains(1));
    assert!(!tick(&mut guest) && !guest.out.messages.contains(1), "and once");
    assert!(!sent(&mut guest).0 && !sent(&mut guest).0);
    assert!(sent(&mut guest).0, "three of 64 may have filled the ring");
    sent(&mut guest);
    guest.out = Outbox::default();
    rings(&mut *guest.nic).stop(1, cx!(guest));
    assert!(guest.out.messages.contains(1), "a ring that stops says what it has");
}

#[test]
fn a_ring_that_had_a_life_before_is_told_first_thing_whatever_index_its_driver_named() {
    let features = plain() | crate::guest::bit(virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX);
    for past in [0u16, 7] {
        let mut guest = Guest::new(features, RING);
        let place = guest.queues[0].place;
        rings(&mut *guest.nic).stop(0, cx!(guest));
        // The driver waits for a notification of chains from the time without a server.
        guest.put(place.device + 2, &past.to_le_bytes());
        guest.put(place.driver + 4 + 2 * u64::from(RING), &3u16.to_le_bytes());
        (guest.queues[0].added, guest.queues[0].seen) = (past, past);
        guest.put(place.driver + 2, &past.to_le_bytes());
        guest.post(0, 8, 2048);
        assert!(rings(&mut *guest.nic).start(0, 0, cx!(guest)));
        assert_eq!(deliver(&mut guest, &sender(1, 100)).0, past > 0, "{past}");
        assert!(!deliver(&mut guest, &sender(1, 100)).0, "once");
    }
}

#[test]
fn what_waits_is_told_when_the_ring_stops_and_in_its_time_when_the_state_moves() {
    let (mut guest, sender) = both();
    deliver(&mut guest, &sender);
    assert!(!deliver(&mut guest, &sender).0);
    let saved = guest.nic.save();
    guest.nic.restore(&saved).unwrap();
    assert!(!tick(&mut guest), "a restored state waits as the saved one did");
    guest.now = guest.now.after_ns(SPAN_NS);
    assert!(tick(&mut guest), "as long");
    let (mut guest, _) = both();
    deliver(&mut guest, &sender);
    assert!(!deliver(&mut guest, &sender).0);
    guest.out = Outbox::default();
    rings(&mut *guest.nic).stop(0, cx!(guest));
    assert!(guest.out.messages.contains(0));
    guest.now = guest.now.after_ns(SPAN_NS);
    assert!(!tick(&mut guest), "a ring that is stopped says nothing");
}
