//! The life cycle of rings: features, start, stop, save.

use nicety_adapter::{Outbox, Progress, Reason, RestoreError};
use nicety_adapters::{CreateError, Settings, find};
use nicety_frame::Mac;
use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

use crate::guest::{Guest, adapter_with, bit, cx, rings, settings};
use crate::packets::{payload, tcp4};
use crate::traffic::{plain, rich};

#[test]
fn features_that_are_not_offered_are_not_taken() {
    let mut guest = Guest::new(plain(), 16);
    let face = rings(&mut *guest.nic);
    let offer = face.features();
    for absent in [VIRTIO_NET_F_STANDBY, VIRTIO_NET_F_GUEST_UFO] {
        assert_eq!(offer & bit(absent), 0, "feature {absent} is not served");
        assert!(!face.take_features(bit(absent)));
    }
    for present in [VIRTIO_NET_F_MAC, VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_MQ, VIRTIO_NET_F_HOST_USO] {
        assert_ne!(offer & bit(present), 0);
    }
    assert!(!face.take_features(rich()), "not while rings run");
    assert!(face.take_features(plain()), "the same again is no change");
}

#[test]
fn a_standby_is_offered_where_one_was_asked_for() {
    let settings = Settings { standby: true, ..Settings::new(Mac([2, 0, 0, 0, 0, 1])) };
    let guest = Guest::with(plain() | bit(VIRTIO_NET_F_STANDBY), 16, settings);
    assert!(guest.nic.features().contains(&"standby"));
}

#[test]
fn an_adapter_that_cannot_be_is_not_made() {
    let create = find("virtio-net").unwrap().create;
    let group = Settings::new(Mac([1, 0, 0, 0, 0, 1]));
    assert!(matches!(create(&group), Err(CreateError::Address(_))));
    let many = Settings { queues: Some(17), ..Settings::new(Mac([2, 0, 0, 0, 0, 1])) };
    assert!(matches!(create(&many), Err(CreateError::Queues { most: 16, .. })));
}

#[test]
fn a_completion_that_comes_after_a_stop_gives_nothing_back_and_the_ring_resumes_where_it_stood() {
    let mut guest = Guest::new(plain(), 16);
    for _ in 0..3 {
        guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    }
    guest.fetch_of(0);
    assert_eq!(guest.batch.len(), 3);
    let base = rings(&mut *guest.nic).stop(1, cx!(guest));
    assert_eq!(base, 0, "nothing has been given back");
    guest.complete();
    assert!(guest.used(1).is_empty());
    let face = rings(&mut *guest.nic);
    assert!(face.start(1, base, cx!(guest)));
    assert_eq!(guest.out.work.pop(), Some(0));
    guest.fetch_of(0);
    assert_eq!(guest.batch.len(), 3, "they are sent after all");
    guest.complete();
    assert_eq!(guest.used(1).len(), 3);
}

#[test]
fn a_completion_of_before_a_stop_gives_nothing_back_after_the_ring_was_started_again() {
    let mut guest = Guest::new(plain(), 16);
    guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    guest.fetch_of(0);
    assert_eq!(guest.batch.len(), 1);
    let face = rings(&mut *guest.nic);
    let base = face.stop(1, cx!(guest));
    assert!(face.start(1, base, cx!(guest)));
    guest.complete();
    assert!(guest.used(1).is_empty(), "it is taken again, and given back then");
    guest.fetch_of(0);
    assert_eq!(guest.batch.len(), 1);
    guest.complete();
    assert_eq!(guest.used(1).len(), 1);
}

#[test]
fn a_reset_between_fetch_and_complete_leaves_the_guests_memory_alone() {
    let mut guest = Guest::new(plain(), 16);
    guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    guest.fetch_of(0);
    guest.nic.reset(nicety_adapter::Reset::Bus, cx!(guest));
    guest.out = Outbox::default();
    guest.complete();
    assert!(guest.used(1).is_empty());
    assert_eq!(guest.out, Outbox::default());
}

/// vhost-user.rst, "Ring states": of a started, disabled ring "the back-end must process the ring without causing any side effects": it "must
/// not supply any new RX packets, but must process and discard any TX packets".
#[test]
fn a_started_disabled_transmit_ring_is_processed_and_discarded_and_a_receive_ring_gets_nothing() {
    for features in [plain(), plain() | bit(VIRTIO_F_RING_PACKED)] {
        let mut guest = Guest::new(features, 16);
        rings(&mut *guest.nic).enable(1, false, cx!(guest));
        for round in 0..20 {
            let head = guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
            guest.kick(1);
            assert_eq!(guest.out.work.pop(), Some(0));
            guest.fetch_of(0);
            assert!(guest.batch.is_empty());
            assert_eq!(guest.used(1), [(head.into(), 0)], "round {round}");
        }
        assert_eq!(guest.counters.transmit_drops[Reason::QueueOff as usize], 20);
        assert!(!guest.out.messages.is_empty(), "the driver is told");
        rings(&mut *guest.nic).enable(1, true, cx!(guest));
        assert_eq!(guest.out.work.pop(), Some(0));
        guest.fetch_of(0);
        assert!(guest.batch.is_empty(), "nothing was kept");
        guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        guest.fetch_of(0);
        assert_eq!(guest.batch.len(), 1);
        let mut receiver = Guest::new(features, 16);
        receiver.post(0, 1, 2048);
        for queue in [0, 2] {
            rings(&mut *receiver.nic).enable(queue, false, cx!(receiver));
        }
        assert_eq!(receiver.deliver(&guest.batch).refused(), 0, "dropped, not refused");
        assert_eq!(receiver.counters.receive_drops[Reason::ReceiverOff as usize], 1);
        assert!(receiver.used(0).is_empty());
    }
}

/// User-mode Linux disables a ring that it no longer uses, and never stops it. Its memory may have another use by then.
#[test]
fn a_disabled_ring_whose_driver_does_not_ring_is_not_looked_at() {
    let mut guest = Guest::new(plain(), 16);
    rings(&mut *guest.nic).enable(1, false, cx!(guest));
    guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    guest.fetch_of(0);
    assert!(guest.batch.is_empty() && guest.used(1).is_empty());
    rings(&mut *guest.nic).stop(1, cx!(guest));
    guest.kick(1);
    guest.fetch_of(0);
    assert!(guest.used(1).is_empty(), "nor one that is stopped");
}

#[test]
fn a_saved_adapter_goes_on_in_another_and_saves_the_same_bytes() {
    let mut guest = Guest::new(rich() | bit(VIRTIO_NET_F_CTRL_VQ) | bit(VIRTIO_NET_F_MQ), 16);
    guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &2u16.to_le_bytes());
    guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    guest.fetch_of(0);
    guest.complete();
    let saved = guest.nic.save();
    let mut other = adapter_with("virtio-net", &settings());
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    guest.nic = other;
    guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
    guest.fetch_of(0);
    guest.complete();
    assert_eq!(guest.used(1).len(), 2);
    for cut in 0..saved.len() {
        assert!(guest.nic.restore(&saved[..cut]).is_err());
    }
    let other = Settings::new(Mac([2, 0, 0, 0, 0, 1]));
    let mut wider = (find("virtio-net").unwrap().create)(&other).unwrap();
    assert!(matches!(wider.restore(&saved), Err(RestoreError::Impossible(_))));
}

#[test]
fn the_features_taken_are_told_in_words() {
    let guest = Guest::new(rich(), 16);
    let words = guest.nic.features();
    assert!(words.contains(&"tso4") && words.contains(&"mergeable") && !words.contains(&"mq"));
}

#[test]
fn a_device_that_sleeps_is_kicked_for_what_is_added_and_wakes() {
    for event_index in [false, true] {
        let features = if event_index { plain() | bit(VIRTIO_RING_F_EVENT_IDX) } else { plain() };
        let mut guest = Guest::new(features, 16);
        // Section 2.7.10, from the driver's side.
        let must_kick = |guest: &Guest, ring: usize, old: u16| {
            let place = guest.queues[ring].place;
            let new = guest.queues[ring].added;
            let event = guest.get16(place.device + 4 + 8 * 16);
            let flag = guest.get16(place.device) & 1 == 0;
            if event_index { new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old) } else { flag }
        };
        // Transmit: no packet is left when it arms. More frames than the ring holds, so that every index is used.
        for sent in 0..40 {
            let progress = guest.fetch_of(0);
            assert!(progress.armed && !progress.more, "{event_index}, {sent}");
            guest.complete();
            guest.out = Outbox::default();
            guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
            assert!(must_kick(&guest, 1, sent), "{event_index}, {sent}: transmit");
            guest.kick(1);
            assert_eq!(guest.out.work.pop(), Some(0), "{event_index}, {sent}");
            assert!(guest.fetch_of(0).more);
            guest.complete();
        }
        // Receive: no buffer is left for the frame.
        let mut sender = Guest::new(plain(), 16);
        sender.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        sender.fetch_of(0);
        for posted in 0..40 {
            assert_eq!(guest.deliver(&sender.batch).refused(), 1, "{event_index}, {posted}");
            guest.out = Outbox::default();
            guest.post(0, 1, 2048);
            assert!(must_kick(&guest, 0, posted), "{event_index}, {posted}: receive");
            guest.kick(0);
            assert_eq!(guest.out.room.pop(), Some(0), "{event_index}, {posted}");
            assert_eq!(guest.deliver(&sender.batch).refused(), 0, "{event_index}, {posted}");
        }
    }
}

/// Without EVENT_IDX, as DPDK's drivers: they would notify of each buffer that they refill.
#[test]
fn a_driver_is_not_asked_to_notify_of_receive_buffers_while_there_are_some() {
    for ring in [0, bit(VIRTIO_F_RING_PACKED)] {
        let mut guest = Guest::new(plain() | ring, 16);
        let place = guest.queues[0].place;
        // Packed: the device's event suppression. Split: the flags before its used entries.
        let is_asked = |guest: &Guest| match ring {
            0 => guest.get16(place.device) & 1 == 0,
            _ => guest.get16(place.device + 2) == 0,
        };
        guest.post(0, 8, 2048);
        let mut sender = Guest::new(plain(), 16);
        sender.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        sender.fetch_of(0);
        assert_eq!(guest.deliver(&sender.batch).refused(), 0);
        assert!(!is_asked(&guest), "{ring:x}");
        for _ in 0..7 {
            assert_eq!(guest.deliver(&sender.batch).refused(), 0);
        }
        assert_eq!(guest.deliver(&sender.batch).refused(), 1);
        assert!(is_asked(&guest), "{ring:x}");
    }
}

/// A worker that has a processor of its own.
#[test]
fn the_driver_of_a_ring_that_is_polled_all_the_time_is_never_asked_to_notify() {
    for ring in [0, bit(VIRTIO_F_RING_PACKED)] {
        let mut guest = Guest::new(plain() | ring, 16);
        guest.polls = true;
        let place = guest.queues[1].place;
        let is_asked = |guest: &Guest| match ring {
            0 => guest.get16(place.device) & 1 == 0,
            _ => guest.get16(place.device + 2) == 0,
        };
        for sent in 0..40 {
            let progress = guest.fetch_of(0);
            assert_eq!((progress.more, progress.armed), (false, false), "{ring:x}, {sent}");
            assert!(!is_asked(&guest), "{ring:x}, {sent}");
            guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
            assert!(guest.fetch_of(0).more, "{ring:x}, {sent}");
            assert_eq!(guest.batch.len(), 1);
            guest.complete();
        }
        guest.polls = false;
        assert!(guest.fetch_of(0).armed);
        assert!(is_asked(&guest), "{ring:x}");
    }
}

#[test]
fn a_polled_ring_that_is_disabled_asks_for_kicks_and_is_looked_at_once_for_each() {
    for ring in [0, bit(VIRTIO_F_RING_PACKED)] {
        for left in [false, true] {
            let mut guest = Guest::new(plain() | ring, 16);
            guest.polls = true;
            let place = guest.queues[1].place;
            let is_asked = |guest: &Guest| match ring {
                0 => guest.get16(place.device) & 1 == 0,
                _ => guest.get16(place.device + 2) == 0,
            };
            assert!(!guest.fetch_of(0).armed && !is_asked(&guest), "{ring:x}");
            // A frame that its driver has not notified of, as it was not asked to.
            let before =
                if left { vec![(guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000).into(), 0)] } else { vec![] };
            rings(&mut *guest.nic).enable(1, false, cx!(guest));
            assert!(is_asked(&guest), "{ring:x}");
            assert_eq!(guest.out.work.pop(), left.then_some(0), "{ring:x}: what is there is discarded");
            assert!(guest.fetch_of(0).armed && guest.batch.is_empty());
            assert_eq!(guest.used(1), before, "{ring:x}");
            let head = guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
            assert!(guest.fetch_of(0).armed && guest.used(1).is_empty(), "{ring:x}: its driver has not kicked");
            guest.kick(1);
            let progress = guest.fetch_of(0);
            assert_eq!(guest.used(1), [(head.into(), 0)], "{ring:x}");
            // Empty by now: the memory may be another's, so it is not looked at again.
            if progress.more {
                guest.fetch_of(0);
            }
            guest.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
            let progress = guest.fetch_of(0);
            assert!((progress.more, progress.armed) == (false, true) && guest.used(1).is_empty(), "{ring:x}");
        }
    }
}

#[test]
fn a_ring_that_had_frames_is_looked_at_once_more_before_its_driver_is_asked_to_notify() {
    for (event_index, packed) in [(false, false), (true, false), (false, true), (true, true)] {
        let event = if event_index { bit(VIRTIO_RING_F_EVENT_IDX) } else { 0 };
        let ring = if packed { bit(VIRTIO_F_RING_PACKED) } else { 0 };
        let mut guest = Guest::new(plain() | event | ring, 16);
        // What the device asks for in its area: of a split ring with EVENT_IDX the index behind the used entries, else the first words.
        let place = guest.queues[1].place;
        let asked = |guest: &Guest| match (event_index, packed) {
            (true, false) => guest.get(place.device + 4 + 8 * 16, 2),
            (false, false) => guest.get(place.device, 2),
            (_, true) => guest.get(place.device, 4),
        };
        assert!(guest.look_at(0).armed, "the driver must notify of its first frame");
        let first = asked(&guest);
        let frame = tcp4(&payload(20));
        for _ in 0..3 {
            guest.send(0, &[0; 12], &frame, 2000);
            let Progress { more, armed } = guest.fetch_of(0);
            assert!(more && !armed && guest.batch.len() == 1, "{event_index}, {packed}");
            guest.complete();
            let quiet = asked(&guest);
            assert_eq!(quiet == first, event_index, "it asks for nothing new: {event_index}, {packed}");
        }
        let Progress { more, armed } = guest.fetch_of(0);
        assert!(!more && armed && guest.batch.is_empty(), "{event_index}, {packed}");
        assert_eq!(asked(&guest) == first, !event_index, "it asks for the next one: {event_index}, {packed}");
    }
}
