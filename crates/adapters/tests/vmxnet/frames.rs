//! Frames in both directions: entries, pages, filters, room.

use nicety_adapter::Reason;

use crate::bench::*;

#[test]
fn a_frame_goes_out_of_one_entry_of_six_pieces_and_comes_back_to_the_driver() {
    let mut b = Bench::opened("vmxnet");
    let sent = frame(600);
    b.put(TX_DATA, &sent);
    let pieces: Vec<_> = (0..6).map(|n| (TX_DATA + 100 * n, 100)).collect();
    b.tx(0, KEEP, 0, &pieces);
    b.queue(1, &frame(20));
    b.ring_bell();
    let out = b.sent();
    assert_eq!(out, [sent, [frame(20), vec![0; 40]].concat()], "short ones are padded");
    assert_eq!([b.owner(0), b.owner(1)], [DRIVER; 2]);
    assert_eq!(b.counters.transmitted().packets, 2);
}

#[test]
fn a_packet_of_several_entries_is_one_and_waits_until_its_last_is_there() {
    let mut b = Bench::opened("vmxnet2");
    let sent = frame(9000);
    b.put(TX_DATA, &sent);
    // vmxnet_map_pkt: writes all entries before the first.
    b.tx(14, MORE | KEEP, 0, &[(TX_DATA, 1000), (TX_DATA + 1000, 2000)]);
    b.ring_bell();
    assert!(b.sent().is_empty(), "the next entry is the driver's");
    // The ring was at 0: entries before 14 were not sent.
    let mut b = Bench::opened("vmxnet2");
    b.put(TX_DATA, &sent);
    b.tx(1, MORE, 0, &[(TX_DATA + 3000, 3000)]);
    b.tx(2, 0, 0, &[(TX_DATA + 6000, 3000)]);
    b.tx(0, MORE | KEEP, 0, &[(TX_DATA, 1000), (TX_DATA + 1000, 2000)]);
    b.ring_bell();
    assert_eq!(b.sent(), [sent]);
    assert_eq!([0, 1, 2].map(|index| b.owner(index)), [DRIVER; 3]);
}

#[test]
fn entries_come_back_when_the_batch_is_done_and_not_before() {
    let mut b = Bench::opened("vmxnet");
    b.queue(0, &frame(60));
    b.ring_bell();
    b.fetch();
    assert_eq!(b.owner(0), NIC);
    b.complete();
    assert_eq!(b.owner(0), DRIVER);
}

#[test]
fn a_batch_from_before_the_rings_were_taken_back_completes_nothing() {
    let mut b = Bench::opened("vmxnet");
    b.queue(0, &frame(60));
    b.ring_bell();
    b.fetch();
    b.w(0, 0);
    b.lay();
    b.open();
    b.queue(0, &frame(61));
    b.complete();
    assert_eq!(b.owner(0), NIC);
}

#[test]
fn every_position_of_both_rings_is_used_in_turn() {
    let mut b = Bench::opened("vmxnet");
    for round in 0..50u32 {
        let (rx, tx) = (round % 8, round % 16);
        b.bring(&[&frame(60 + round as usize)]);
        assert_eq!(b.received(0, rx), (DRIVER, 0, 60 + round));
        assert_eq!(b.frame_at(rx, 0), frame(60 + round as usize));
        b.post(rx);
        b.queue(tx, &frame(70 + round as usize));
        b.ring_bell();
        assert_eq!(b.sent(), [frame(70 + round as usize)]);
    }
}

#[test]
fn a_jumbo_frame_goes_on_in_pages_and_says_where_it_ends() {
    let mut b = Bench::opened("vmxnet2");
    b.bring(&[&frame(9014), &frame(1536), &frame(1537)]);
    assert_eq!(b.received(0, 0), (DRIVER, WITH_FRAG, 1536));
    assert_eq!(b.received(1, 0), (DRIVER_FRAG, 0, 4096));
    assert_eq!(b.received(1, 1), (DRIVER_FRAG, FRAG_EOP, 9014 - 1536 - 4096));
    assert_eq!(b.received(0, 1), (DRIVER, 0, 1536));
    assert_eq!((b.received(0, 2), b.received(1, 2)), ((DRIVER, WITH_FRAG, 1536), (DRIVER_FRAG, FRAG_EOP, 1)));
    assert_eq!((b.frame_at(0, 0), b.frame_at(2, 2)), (frame(9014), frame(1537)));
    assert_eq!(b.received(1, 3).0, NIC_FRAG);
    assert!(b.nic.features().contains(&"jumbo"));
}

#[test]
fn what_is_longer_than_buffers_and_pages_is_dropped_and_the_next_one_passes() {
    let mut b = Bench::opened("vmxnet");
    b.bring(&[&frame(1537), &frame(1514)]);
    assert_eq!((b.dropped(Reason::TooLong), b.received(0, 0).2), (1, 1514), "the first vmxnet has no pages");
    let mut b = Bench::of("vmxnet2");
    b.frags = 2;
    b.lay();
    b.open();
    b.bring(&[&frame(1536 + 8193), &frame(1536 + 8192)]);
    assert_eq!((b.dropped(Reason::TooManyPieces), b.frame_at(0, 0).len()), (1, 1536 + 8192));
    b.bring(&[&frame(16 * 1024)]);
    assert_eq!(b.dropped(Reason::TooLong), 1, "VMXNET_MAX_MTU");
}

#[test]
fn a_frame_of_one_or_two_tags_passes_both_ways_as_it_is() {
    for (tags, len) in [(&[0x81, 0x00, 0x00, 0x2a][..], 1518), (&[0x88, 0xa8, 0, 9, 0x81, 0, 0, 0x2a], 1522)] {
        let mut b = Bench::opened("vmxnet");
        let mut tagged = frame(len - tags.len());
        tagged.splice(12..12, tags.iter().copied());
        b.bring(&[&tagged]);
        assert_eq!(b.frame_at(0, 0), tagged);
        b.queue(0, &tagged);
        b.ring_bell();
        assert_eq!(b.sent(), [tagged]);
    }
}

#[test]
fn short_frames_arrive_padded_with_zeros() {
    let mut b = Bench::opened("vmxnet");
    b.put(RX_DATA, &[0xff; 100]);
    b.bring(&[&frame(42)]);
    assert_eq!(b.received(0, 0), (DRIVER, 0, 60));
    assert_eq!(b.get(RX_DATA, 61), [frame(42), vec![0; 18], vec![0xff]].concat());
}

#[test]
fn ifflags_and_the_hash_choose_what_is_received() {
    let mut b = Bench::opened("vmxnet");
    let group = [0x01, 0x00, 0x5e, 0, 0, 1];
    let wants = |b: &mut Bench, flags, target| {
        b.w(0, 0);
        b.lay();
        // The hash of 01:00:5e:00:00:01 is 0x0b… >> 26, from Linux's ether_crc_le.
        let hash = nicety_frame::crc::multicast_le(nicety_frame::Mac(group)) >> 26;
        b.put32(DATA + LADRF + 4 * (hash >> 5), 1 << (hash & 31));
        b.open();
        b.flags(flags);
        b.bring(&[&to(target, 60)]);
        b.received(0, 0).0 == DRIVER
    };
    let others = [[2, 0, 0, 0, 0, 0x55], [0xff; 6], group, [0x01, 0, 0x5e, 0, 0, 2], MAC];
    let all = |b: &mut Bench, flags| others.map(|target| wants(b, flags, target));
    assert_eq!(all(&mut b, 0), [false, false, false, false, true], "its own always: vic never says DIRECTED");
    assert_eq!(all(&mut b, 2), [false, true, false, false, true], "BROADCAST");
    assert_eq!(all(&mut b, !7 | 4), [false, false, true, false, true], "MULTICAST, as Linux writes it");
    assert_eq!(all(&mut b, 1), [true; 5], "PROMISC");
    assert!(b.nic.features().contains(&"promiscuous"));
}

#[test]
fn frames_wait_for_buffers_which_are_found_without_being_told_of() {
    let mut b = Bench::opened("vmxnet");
    let frames: Vec<Vec<u8>> = (60..70).map(frame).collect();
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let delivery = b.bring(&frames);
    assert_eq!(delivery.refused(), 0b11 << 8, "eight buffers");
    b.pass(1_000_000);
    assert!(!b.out.room.contains(0));
    b.post(0);
    b.pass(4_000_000);
    assert!(b.out.room.contains(0));
    b.bring(&[&frame(68)]);
    assert_eq!(b.received(0, 0), (DRIVER, 0, 68));
    // The missing buffers may be pages.
    let mut b = Bench::of("vmxnet2");
    b.lens = [8, 2, 16];
    b.lay();
    b.open();
    let delivery = b.bring(&[&frame(9014), &frame(9014)]);
    assert_eq!(delivery.refused(), 0b10);
    b.pass(10_000_000);
    assert!(!b.out.room.contains(0), "there are buffers, but no pages");
    b.post_page(0);
    b.pass(4_000_000);
    assert!(b.out.room.contains(0));
}
