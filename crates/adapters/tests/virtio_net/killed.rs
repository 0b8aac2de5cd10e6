//! A server that is killed at any point, and its successor: no buffer is lost, and none comes back twice.

use std::sync::Arc;

use nicety_adapter::Reason;
use nicety_memory::Map;
use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;

use crate::guest::{Guest, bit, rings};
use crate::packets::{payload, tcp4};
use crate::traffic::{plain, rich};

const SIZE: u16 = 7;
const RING_BYTES: usize = 16 * SIZE as usize;

fn kept() -> Arc<Map> {
    Arc::new(Map::private(5 * 4096).unwrap())
}

/// A packed guest whose server records the buffers that it gives back.
fn packed(kept: &Arc<Map>) -> Guest {
    let mut guest = Guest::new(bit(VIRTIO_F_RING_PACKED) | rich(), SIZE);
    rings(&mut *guest.nic).keep(Some(kept.clone()));
    guest
}

/// A guest with a frame of this many bytes in flight, not yet given back.
fn sending(len: usize) -> Guest {
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], &tcp4(&payload(len)), 2000);
    sender.fetch_of(0);
    sender
}

fn ring(guest: &Guest, number: usize) -> Vec<u8> {
    guest.get(guest.queues[number].place.descriptors, RING_BYTES)
}

/// The ring of a server that was killed after it had stored this many of the used descriptors. The first one is stored last.
fn killed(before: &[u8], after: &[u8], first: u16, chains: u16, stored: u16) -> Vec<u8> {
    let mut left = before.to_vec();
    for chain in (1..chains).chain([0]).take(usize::from(stored)) {
        let at = 16 * usize::from((first + chain) % SIZE);
        left[at..at + 16].copy_from_slice(&after[at..at + 16]);
    }
    left
}

#[test]
fn a_frame_whose_buffers_were_being_given_back_is_there_whole_when_the_next_server_has_come() {
    for chains in [1, 2, 5] {
        let sender = sending(300 * usize::from(chains) - 100);
        for stored in 0..=chains {
            let kept = kept();
            let mut guest = packed(&kept);
            // From each descriptor of the ring, and across its end.
            for round in 0..2 * SIZE {
                let first = guest.queues[0].slot;
                guest.post(0, chains.into(), 320);
                let before = ring(&guest, 0);
                assert_eq!(guest.deliver(&sender.batch).refused(), 0);
                let left = killed(&before, &ring(&guest, 0), first, chains, stored);
                guest.put(guest.queues[0].place.descriptors, &left);
                guest.taken_over(&kept);
                let got = guest.received(0);
                assert_eq!(got.len(), 1, "{chains} buffers, {stored} given back, round {round}");
                assert_eq!(got[0].1, tcp4(&payload(300 * usize::from(chains) - 100)));
                assert!(guest.used(0).is_empty(), "once");
            }
        }
    }
}

#[test]
fn buffers_that_were_filled_and_not_given_back_are_filled_again() {
    let (kept, sender) = (kept(), sending(500));
    let mut guest = packed(&kept);
    for _ in 0..2 * SIZE {
        guest.post(0, 2, 320);
        let (before, words) = (ring(&guest, 0), {
            let mut words = [0; 4096];
            kept.read(0, &mut words).unwrap();
            words
        });
        guest.deliver(&sender.batch);
        guest.put(guest.queues[0].place.descriptors, &before);
        kept.write(0, &words).unwrap();
        guest.taken_over(&kept);
        assert!(guest.received(0).is_empty());
        assert_eq!(guest.deliver(&sender.batch).refused(), 0);
        assert_eq!(guest.received(0).len(), 1);
    }
}

/// The server was killed while it recorded the chains to give back next. Their lengths differ from those before.
#[test]
fn a_record_that_was_cut_off_says_that_nothing_was_given_back_since() {
    let kept = kept();
    let read = || {
        let mut words = [0; 4096];
        kept.read(0, &mut words).unwrap();
        words
    };
    let mut guest = packed(&kept);
    for (round, (first, second)) in [(1, 3), (3, 1), (2, 3), (3, 2)].into_iter().enumerate() {
        let (one, other) = (sending(300 * first - 100), sending(300 * second - 100));
        guest.post(0, first, 320);
        assert_eq!(guest.deliver(&one.batch).refused(), 0);
        let (before, whole) = (read(), guest.received(0));
        assert_eq!(whole.len(), 1);
        guest.post(0, second, 320);
        let ring_before = ring(&guest, 0);
        guest.deliver(&other.batch);
        let after = read();
        // Each store of the record may have been the last: the invalid position, and its chains with other lengths.
        let begun = [&after[..2], &[0, 0, 1, 0, 0, 0]].concat();
        for chains in [&before[8..], &after[8..]] {
            guest.put(guest.queues[0].place.descriptors, &ring_before);
            kept.write(0, &[&begun, chains].concat()).unwrap();
            guest.taken_over(&kept);
            assert!(guest.received(0).is_empty(), "round {round}");
        }
        assert_eq!(guest.deliver(&other.batch).refused(), 0);
        let got = guest.received(0);
        assert_eq!((got.len(), &got[0].1), (1, &tcp4(&payload(300 * second - 100))), "round {round}");
    }
}

#[test]
fn a_frame_that_was_sent_and_not_given_back_is_sent_again_and_given_back_once() {
    let kept = kept();
    let mut guest = packed(&kept);
    for round in 0..2 * SIZE {
        let id = guest.send(0, &[0; 12], &tcp4(&payload(100)), 2000);
        guest.fetch_of(0);
        assert_eq!(guest.batch.len(), 1, "round {round}");
        guest.taken_over(&kept);
        guest.fetch_of(0);
        assert_eq!(guest.batch.len(), 1, "round {round}");
        let before = ring(&guest, 1);
        guest.complete();
        if round % 2 == 0 {
            guest.put(guest.queues[1].place.descriptors, &before);
            guest.taken_over(&kept);
        }
        assert_eq!(guest.used(1), [(id.into(), 0)], "round {round}");
        guest.fetch_of(0);
        assert!(guest.batch.is_empty(), "round {round}");
    }
}

/// What QEMU does without a back end when the guest kicks a packed transmit ring (virtio.c, `virtqueue_packed_drop_all`): it completes the
/// chains that are available from its own base on. Returns its new base. The chains have one descriptor each.
fn dropped_by_qemu(guest: &Guest, base: u32) -> u32 {
    let (mut slot, mut lap) = (base as u16 & 0x7fff, base & 0x8000 != 0);
    for _ in 0..SIZE {
        let at = guest.queues[1].place.descriptors + 16 * u64::from(slot);
        let flags = u16::from_le_bytes(guest.get(at + 14, 2).try_into().unwrap());
        if [flags & 1 << 7 != 0, flags & 1 << 15 != 0] != [lap, !lap] {
            break;
        }
        guest.put(at + 8, &[0; 4]);
        guest.put(at + 14, &if lap { 0x8080_u16 } else { 0 }.to_le_bytes());
        (slot, lap) = if slot + 1 < SIZE { (slot + 1, lap) } else { (0, !lap) };
    }
    let place = u32::from(slot) | u32::from(lap) << 15;
    place << 16 | place
}

/// QEMU knows no newer base than the one with which the ring was started. Where the chains in flight cross it, QEMU completes those
/// behind it, and leaves those before it.
#[test]
fn chains_that_qemu_left_when_it_completed_those_behind_them_come_back_once() {
    for (taken, recorded) in [(false, false), (true, false), (true, true)] {
        let kept = kept();
        let mut guest = packed(&kept);
        let (mut base, mut moved) = (crate::packed::BASE, 0);
        for round in 0..8 * SIZE {
            // In a table each, so that a chain has one descriptor.
            let send = |guest: &mut Guest| guest.send(0, &[0; 12], &tcp4(&payload(100)), 50).into();
            let mut ids: Vec<u32> = (0..2 + round % 3).map(|_| send(&mut guest)).collect();
            if taken {
                guest.fetch_of(0);
            }
            if recorded {
                let before = ring(&guest, 1);
                guest.complete();
                guest.put(guest.queues[1].place.descriptors, &before);
            }
            let next = dropped_by_qemu(&guest, base);
            moved += u32::from(next != base);
            base = next;
            guest.out.messages = Default::default();
            guest.taken_over_at(&kept, base);
            assert!(
                round == 0 || guest.out.messages.contains(1),
                "the driver may wait for what it was not notified of"
            );
            ids.extend((0..2).map(|_| send(&mut guest)).collect::<Vec<u32>>());
            guest.fetch_of(0);
            guest.complete();
            let back: Vec<u32> = guest.used(1).into_iter().map(|(id, _)| id).collect();
            assert_eq!(back, ids, "round {round}, base {base:#x}");
        }
        assert!(moved > 2, "QEMU completed some");
    }
}

/// A new driver starts the ring anew while there is no back end, at the same place.
#[test]
fn a_new_driver_s_ring_begins_at_its_base_whatever_the_record_says_of_the_old_one() {
    let kept = kept();
    for before in 1..2 * SIZE {
        let mut guest = packed(&kept);
        kept.write(4096, &[0; 8]).unwrap();
        rings(&mut *guest.nic).stop(1, crate::guest::cx!(guest));
        assert!(rings(&mut *guest.nic).start(1, crate::packed::BASE, crate::guest::cx!(guest)));
        for _ in 0..before {
            guest.send(0, &[0; 12], &tcp4(&payload(100)), 50);
            guest.fetch_of(0);
            guest.complete();
            assert_eq!(guest.used(1).len(), 1);
        }
        guest.put(guest.queues[1].place.descriptors, &[0; RING_BYTES]);
        (guest.queues[1].slot, guest.queues[1].seen, guest.queues[1].laps) = (0, 0, [true; 2]);
        let first = u32::from(guest.send(0, &[0; 12], &tcp4(&payload(100)), 50));
        let base = dropped_by_qemu(&guest, crate::packed::BASE);
        let second = u32::from(guest.send(0, &[0; 12], &tcp4(&payload(100)), 50));
        guest.taken_over_at(&kept, base);
        guest.fetch_of(0);
        guest.complete();
        let back: Vec<u32> = guest.used(1).into_iter().map(|(id, _)| id).collect();
        assert_eq!(back, [first, second], "after {before}");
    }
}

/// A split ring's used index shows its position: chains come back in the order in which they were taken, dropped or not.
#[test]
fn a_split_ring_s_chains_come_back_in_order_even_if_some_are_dropped() {
    let mut guest = Guest::new(plain(), 16);
    let good = guest.send(0, &[0; 12], &tcp4(&payload(100)), 2000);
    let bad = guest.send(0, &[0; 12], &[1; 5], 2000);
    let more = guest.send(0, &[0; 12], &tcp4(&payload(100)), 2000);
    let progress = guest.fetch_of(0);
    assert!(progress.more && guest.batch.len() == 1 && guest.used(1).is_empty(), "the second waits for the first");
    guest.taken_over(&kept());
    let mut heads = Vec::new();
    while heads.len() < 3 {
        guest.fetch_of(0);
        guest.complete();
        heads.extend(guest.used(1).iter().map(|(head, _)| *head as u16));
    }
    assert_eq!(heads, [good, bad, more]);
}

/// The record's format is the back end's own (vhost-user.rst, "Inflight I/O tracking"): a position in bits 15:0 with its wrap
/// counter, a count in 31:16, bit 32 if the record is valid; then for each chain an identifier, a number of descriptors and a
/// number of bytes.
#[test]
fn what_a_front_end_keeps_may_be_anything_and_a_ring_begins_where_one_can_or_not_at_all() {
    const SAYS: u64 = 1 << 32;
    let sender = sending(100);
    let words =
        [u64::MAX, SAYS | 6, SAYS | 3 << 16, SAYS | 300 << 16 | 2, SAYS | 301 << 16, SAYS | 7, SAYS | 0x7fff, 0];
    for word in words {
        for chain in [0, u64::MAX, 1 << 16, 0xffff << 16] {
            let kept = kept();
            let mut guest = packed(&kept);
            guest.post(0, 3, 320);
            kept.write(0, &word.to_le_bytes()).unwrap();
            (1..301).for_each(|at| kept.write(8 * at, &chain.to_le_bytes()).unwrap());
            let before = ring(&guest, 0);
            rings(&mut *guest.nic).stop(0, crate::guest::cx!(guest));
            let started = rings(&mut *guest.nic).start(0, crate::packed::BASE, crate::guest::cx!(guest));
            let (place, count) = (word & 0x7fff, word >> 16 & 0xffff);
            // More chains than one frame can have: the record is invalid, and the front end's own base is used.
            let valid = word & SAYS != 0 && count <= 300;
            // Section 2.8.10: a position in the ring, and no more descriptors than it has.
            let possible = place < SIZE.into() && count * (chain >> 16 & 0xffff) <= SIZE.into();
            assert_eq!(started, !valid || possible, "{word:#x} {chain:#x}");
            assert!(
                ring(&guest, 0) == before,
                "{word:#x} {chain:#x}: nothing was given back that was not offered for that lap"
            );
            let refused = guest.deliver(&sender.batch).refused().count_ones();
            let got = guest.received(0);
            if valid {
                // The ring is off, or it is in a lap for which its driver has made nothing available: it stays as the driver left
                // it.
                assert_eq!((got.len(), refused), (0, u32::from(started)), "{word:#x} {chain:#x}");
                assert!(ring(&guest, 0) == before);
                assert_eq!(guest.counters.receive_drops[Reason::ReceiverOff as usize], u64::from(!started));
            } else {
                assert_eq!((got.len(), &got[0].1, refused), (1, &tcp4(&payload(100)), 0), "{word:#x} {chain:#x}");
            }
            assert_eq!((guest.counters.guest_errors(), guest.nic.stall(0)), (0, None), "the driver has broken nothing");
        }
    }
}
