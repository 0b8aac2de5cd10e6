//! Frames between two guests, with and without offloads.

use nicety_adapter::{Delivery, Outbox, Pick, Reason};
use nicety_adapters::Settings;
use nicety_frame::Mac;
use virtio_bindings::virtio_config::{VIRTIO_F_RING_PACKED, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_net::*;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::guest::{Guest, Part, bit, rings};
use crate::packets::{HEADERS4, HEADERS6, partial, payload, tcp4, tcp6, verified};

/// Features of a plain modern driver.
pub fn plain() -> u128 {
    bit(VIRTIO_F_VERSION_1)
}

/// Features of Linux's driver.
pub fn rich() -> u128 {
    let bits = [
        VIRTIO_F_VERSION_1,
        VIRTIO_NET_F_MRG_RXBUF,
        VIRTIO_NET_F_CSUM,
        VIRTIO_NET_F_GUEST_CSUM,
        VIRTIO_NET_F_HOST_TSO4,
        VIRTIO_NET_F_HOST_TSO6,
        VIRTIO_NET_F_GUEST_TSO4,
        VIRTIO_NET_F_GUEST_TSO6,
        VIRTIO_RING_F_INDIRECT_DESC,
    ];
    bits.into_iter().map(bit).sum()
}

/// A header in the specification's layout (5.1.6): flags, kind, header bytes, segment, start, offset, buffers.
pub fn header(flags: u32, kind: u32, numbers: [u16; 4]) -> [u8; 12] {
    let mut out = [0; 12];
    (out[0], out[1]) = (flags as u8, kind as u8);
    for (i, number) in numbers.into_iter().enumerate() {
        out[2 + 2 * i..4 + 2 * i].copy_from_slice(&number.to_le_bytes());
    }
    out
}

fn tso(version: u8) -> ([u8; 12], Vec<u8>) {
    let (frame, kind, headers) = match version {
        4 => (tcp4(&payload(5000)), VIRTIO_NET_HDR_GSO_TCPV4, HEADERS4),
        _ => (tcp6(&payload(5000)), VIRTIO_NET_HDR_GSO_TCPV6, HEADERS6),
    };
    // An MTU of 1500, minus the headers.
    let numbers = [headers as u16, 1514 - headers as u16, headers as u16 - 20, 16];
    (header(VIRTIO_NET_HDR_F_NEEDS_CSUM, kind, numbers), partial(frame))
}

#[test]
fn a_frame_goes_from_one_guest_to_another_and_both_get_their_buffers_back() {
    let (mut sender, mut receiver) = (Guest::new(plain(), 16), Guest::new(plain(), 16));
    receiver.post(0, 4, 2048);
    let frame = tcp4(&payload(700));
    let head = sender.send(0, &[0; 12], &frame, 100);
    sender.kick(1);
    assert_eq!(sender.out.work.pop(), Some(0), "the kick became work");
    assert!(sender.fetch_of(0).more && sender.look_at(0).armed);
    assert_eq!(sender.batch.len(), 1);
    assert!(sender.used(1).is_empty(), "nothing is given back before it is dealt with");
    assert_eq!(receiver.deliver(&sender.batch).refused(), 0);
    sender.complete();
    assert_eq!(sender.used(1), [(u32::from(head), 0)]);
    sender.later();
    assert!(sender.out.messages.contains(1) && receiver.out.messages.contains(0));
    let got = receiver.received(0);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].1, frame);
    assert_eq!(got[0].0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "one buffer, nothing vouched for (5.1.6.4.1)");
    assert_eq!(sender.counters.transmitted().bytes, frame.len() as u64);
    assert_eq!(receiver.counters.taken().frames, 1);
}

/// Frames that need no change are written in runs, into buffers that are read ahead; the others, and chains of two descriptors, are taken
/// one by one.
#[test]
fn frames_that_need_work_keep_their_place_among_those_that_do_not_in_buffers_of_any_kind() {
    let asked = header(VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_NONE, [0, 0, 34, 16]);
    for features in [plain(), plain() | bit(VIRTIO_NET_F_MRG_RXBUF), plain() | bit(VIRTIO_F_RING_PACKED)] {
        let (mut sender, mut receiver) = (Guest::new(rich(), 64), Guest::new(features, 32));
        for round in 0..9usize {
            let (mut sent, mut partly) = (Vec::new(), 0);
            for n in 0..13 {
                let is_partial = (round + n) % 5 == 3;
                let frame = tcp4(&payload([6, 10, 11, 74, 75, 300, 1400][(3 * round + n) % 7]));
                let (head, frame) = if is_partial { (asked, partial(frame)) } else { ([0; 12], frame) };
                sender.send(0, &head, &frame, 2000);
                sent.push((is_partial, frame));
                partly += u64::from(is_partial);
                let address = receiver.allocate(2048);
                let rest = Part { address: address + 12, len: 2036, write: true };
                match (round * n) % 4 {
                    2 => receiver.add(0, &[Part { address, len: 12, write: true }, rest][..]),
                    _ => receiver.add(0, &[Part { address, len: 2048, write: true }][..]),
                };
            }
            assert!(partly > 1);
            sender.fetch_of(0);
            assert_eq!(sender.batch.len(), 13);
            assert_eq!(receiver.deliver(&sender.batch).refused(), 0, "round {round}");
            let got = receiver.received(0);
            assert_eq!(got.len(), 13);
            for (n, ((is_partial, frame), (head, found))) in sent.iter().zip(&got).enumerate() {
                assert_eq!(head[..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "round {round}, frame {n}");
                let expected = if *is_partial { verified(found) } else { frame[HEADERS4..].to_vec() };
                assert_eq!((found.len(), &found[HEADERS4..]), (frame.len(), &expected[..]), "round {round}, frame {n}");
            }
            sender.complete();
            assert_eq!(sender.used(1).len(), 13);
            let taken = receiver.counters.taken();
            assert_eq!((taken.packets, taken.frames), (13 * (round as u64 + 1), 13 * (round as u64 + 1)));
            assert_eq!(taken.bytes, sender.counters.transmitted().bytes);
        }
    }
}

#[test]
fn a_legacy_driver_has_a_header_of_ten_bytes_in_a_descriptor_of_its_own() {
    let (mut sender, mut receiver) = (Guest::new(0, 16), Guest::new(0, 16));
    let frame = tcp4(&payload(100));
    sender.send(0, &[0; 10], &frame, 2000);
    let (top, rest) = (receiver.allocate(10), receiver.allocate(1526));
    receiver.add(0, &[Part { address: top, len: 10, write: true }, Part { address: rest, len: 1526, write: true }]);
    sender.fetch_of(0);
    assert_eq!(receiver.deliver(&sender.batch).refused(), 0);
    assert_eq!(receiver.used(0), [(0, 10 + frame.len() as u32)]);
    let mut got = vec![0; frame.len()];
    receiver.map.read(rest, &mut got).unwrap();
    assert_eq!(got, frame);
}

#[test]
fn a_checksum_is_made_for_a_receiver_that_cannot_and_left_to_one_that_can() {
    let frame = partial(tcp4(&payload(900)));
    let asked = header(VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_NONE, [0, 0, 34, 16]);
    let mut sender = Guest::new(rich(), 16);
    sender.send(0, &asked, &frame, 333);
    sender.fetch_of(0);
    let mut simple = Guest::new(plain(), 16);
    simple.post(0, 1, 2048);
    simple.deliver(&sender.batch);
    let got = simple.received(0);
    assert_eq!(verified(&got[0].1), payload(900));
    assert_eq!(got[0].0[0], 0, "DATA_VALID was not negotiated");
    let mut able = Guest::new(rich(), 16);
    able.post(0, 1, 2048);
    able.deliver(&sender.batch);
    let got = able.received(0);
    assert_eq!(got[0].1, frame, "nobody summed anything");
    assert_eq!(got[0].0[..10], asked[..10]);
}

#[test]
fn a_whole_checksum_is_vouched_for_and_a_wrong_one_is_not() {
    let mut sender = Guest::new(rich(), 16);
    let mut wrong = tcp4(&payload(300));
    wrong[80] ^= 1;
    sender.send(0, &[0; 12], &tcp4(&payload(300)), 2000);
    sender.send(0, &[0; 12], &wrong, 2000);
    sender.fetch_of(0);
    let mut receiver = Guest::new(rich(), 16);
    receiver.post(0, 2, 2048);
    receiver.deliver(&sender.batch);
    let flags: Vec<u8> = receiver.received(0).iter().map(|(header, _)| header[0]).collect();
    assert_eq!(flags, [VIRTIO_NET_HDR_F_DATA_VALID as u8, 0]);
}

#[test]
fn an_uncut_packet_stays_uncut_over_merged_buffers() {
    for version in [4, 6] {
        let (asked, packet) = tso(version);
        let (mut sender, mut receiver) = (Guest::new(rich(), 32), Guest::new(rich(), 32));
        sender.send(0, &asked, &packet, 1000);
        sender.fetch_of(0);
        assert_eq!(sender.batch.packets()[0].frames(), 4);
        receiver.post(0, 8, 1526);
        assert_eq!(receiver.deliver(&sender.batch).refused(), 0);
        let got = receiver.received(0);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].1, packet);
        assert_eq!(got[0].0[..10], asked[..10]);
        assert_eq!(got[0].0[10], 4, "5 KB in buffers of 1526 bytes");
        assert_eq!(receiver.counters.taken().frames, 4);
    }
}

#[test]
fn an_uncut_packet_is_cut_for_a_plain_receiver_and_every_checksum_holds() {
    for version in [4, 6] {
        let (asked, packet) = tso(version);
        let (mut sender, mut receiver) = (Guest::new(rich(), 32), Guest::new(plain(), 32));
        sender.send(0, &asked, &packet, 700);
        sender.fetch_of(0);
        receiver.post(0, 8, 1526);
        assert_eq!(receiver.deliver(&sender.batch).refused(), 0);
        let got = receiver.received(0);
        assert_eq!(got.len(), 4);
        let whole: Vec<u8> = got.iter().flat_map(|(_, frame)| verified(frame)).collect();
        assert_eq!(whole, payload(5000));
        let taken = receiver.counters.taken();
        assert_eq!((taken.packets, taken.frames), (1, 4), "in four pieces it is still one packet");
    }
}

#[test]
fn a_packet_that_found_too_few_buffers_goes_on_where_it_stopped() {
    let (asked, packet) = tso(4);
    let (mut sender, mut receiver) = (Guest::new(rich(), 32), Guest::new(plain(), 32));
    sender.send(0, &asked, &packet, 700);
    sender.fetch_of(0);
    receiver.post(0, 1, 1526);
    let all = [Pick::whole(0)];
    let rest: Vec<Pick> = receiver.deliver(&sender.batch).again(&all).collect();
    assert_eq!(rest, [Pick { from: 1, ..all[0] }]);
    receiver.post(0, 1, 1526);
    let rest: Vec<Pick> = receiver.deliver_some(&sender.batch, &rest).again(&rest).collect();
    assert_eq!(rest, [Pick { from: 2, ..all[0] }]);
    assert!(receiver.out.room.is_empty());
    receiver.post(0, 2, 1526);
    receiver.kick(0);
    assert_eq!(receiver.out.room.pop(), Some(0), "the kick after a refusal tells of room");
    assert_eq!(receiver.deliver_some(&sender.batch, &rest).refused(), 0);
    let whole: Vec<u8> = receiver.received(0).iter().flat_map(|(_, frame)| verified(frame)).collect();
    assert_eq!(whole, payload(5000), "each segment once, in order");
}

#[test]
fn what_was_dropped_after_it_had_begun_makes_the_next_packet_begin_at_its_beginning() {
    let (asked, packet) = tso(4);
    let (mut sender, mut receiver) = (Guest::new(rich(), 32), Guest::new(plain(), 32));
    sender.send(0, &asked, &packet, 700);
    sender.fetch_of(0);
    receiver.post(0, 2, 1526);
    assert!(receiver.deliver(&sender.batch).is_refused(0));
    receiver.received(0);
    receiver.post(0, 4, 1526);
    assert_eq!(receiver.deliver(&sender.batch), Delivery::default());
    let whole: Vec<u8> = receiver.received(0).iter().flat_map(|(_, frame)| verified(frame)).collect();
    assert_eq!(whole, payload(5000));
}

#[test]
fn a_congestion_signal_cuts_a_packet_for_a_driver_that_did_not_take_ecn() {
    let (mut asked, mut packet) = tso(4);
    packet[14 + 20 + 13] |= 0x80;
    asked[1] |= VIRTIO_NET_HDR_GSO_ECN as u8;
    let mut sender = Guest::new(rich() | bit(VIRTIO_NET_F_HOST_ECN), 32);
    sender.send(0, &asked, &packet, 2000);
    sender.fetch_of(0);
    let mut without = Guest::new(rich(), 32);
    without.post(0, 8, 4096);
    without.deliver(&sender.batch);
    assert_eq!(without.received(0).len(), 4);
    let mut with = Guest::new(rich() | bit(VIRTIO_NET_F_GUEST_ECN), 32);
    with.post(0, 8, 4096);
    with.deliver(&sender.batch);
    let got = with.received(0);
    assert_eq!(got.len(), 1);
    assert_eq!(u32::from(got[0].0[1]), VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_ECN);
}

#[test]
fn an_offload_that_makes_no_sense_is_dropped_with_its_reason_and_the_ring_goes_on() {
    let frame = partial(tcp4(&payload(3000)));
    let csum = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    let bad = [
        // 3000 frames of a byte each.
        header(csum, VIRTIO_NET_HDR_GSO_TCPV4, [54, 1, 34, 16]),
        header(csum, VIRTIO_NET_HDR_GSO_NONE, [0, 0, 34, 0xffff]),
        header(csum, VIRTIO_NET_HDR_GSO_NONE, [0, 0, 60_000, 16]),
        header(csum, VIRTIO_NET_HDR_GSO_NONE, [0, 0, 2, 2]),
        header(csum, VIRTIO_NET_HDR_GSO_TCPV4, [54, 0, 34, 16]),
        header(csum, VIRTIO_NET_HDR_GSO_TCPV6, [54, 1448, 34, 16]),
        header(csum, VIRTIO_NET_HDR_GSO_UDP, [54, 1448, 34, 16]),
        header(csum, VIRTIO_NET_HDR_GSO_TCPV4, [54, 1448, 30, 16]),
        header(0, VIRTIO_NET_HDR_GSO_TCPV4, [54, 1448, 34, 16]),
        header(csum, 0x77, [54, 1448, 34, 16]),
    ];
    let mut sender = Guest::new(rich(), 64);
    for header in &bad {
        sender.send(0, header, &frame, 4000);
    }
    sender.send(0, &[0; 12], &tcp4(&payload(10)), 4000);
    sender.fetch_of(0);
    assert_eq!(sender.batch.len(), 1, "the good one");
    assert_eq!(sender.counters.transmit_drops[Reason::BadOffload as usize], bad.len() as u64);
    sender.complete();
    assert_eq!(sender.used(1).len(), bad.len() + 1, "all buffers come back");
    // A first fragment has its TCP header, but must not be segmented (RFC 791: more fragments).
    let mut fragment = frame.clone();
    fragment[20] |= 0x20;
    let asked = header(csum, VIRTIO_NET_HDR_GSO_TCPV4, [54, 1448, 34, 16]);
    for (frame, good) in [(&fragment, false), (&frame, true)] {
        let mut sender = Guest::new(rich(), 16);
        sender.send(0, &asked, frame, 4000);
        sender.fetch_of(0);
        assert_eq!(!sender.batch.is_empty(), good);
        assert_eq!(sender.counters.transmit_drops[Reason::BadOffload as usize], u64::from(!good));
    }
    let mut plainer = Guest::new(plain(), 16);
    plainer.send(0, &header(csum, 0, [0, 0, 34, 16]), &frame, 4000);
    plainer.fetch_of(0);
    assert_eq!(plainer.counters.transmit_drops[Reason::BadOffload as usize], 1, "it was not negotiated");
}

#[test]
fn a_frame_that_no_buffer_can_hold_is_dropped_and_the_next_one_arrives() {
    let mut sender = Guest::new(rich(), 16);
    sender.send(0, &[0; 12], &tcp4(&payload(3000)), 4000);
    sender.send(0, &[0; 12], &tcp4(&payload(30)), 4000);
    sender.fetch_of(0);
    let mut receiver = Guest::new(plain(), 16);
    receiver.post(0, 2, 1526);
    assert_eq!(receiver.deliver(&sender.batch).refused(), 0);
    assert_eq!(receiver.counters.receive_drops[Reason::TooLong as usize], 1);
    assert_eq!(verified(&receiver.received(0)[0].1), payload(30));
}

#[test]
fn an_mtu_bounds_what_is_delivered_and_stands_in_configuration_space() {
    let settings = Settings { mtu: Some(1500), ..Settings::new(Mac([2, 0, 0, 0, 0, 9])) };
    let mut receiver = Guest::with(rich() | bit(VIRTIO_NET_F_MTU), 16, settings);
    let mut bytes = [0xff; 24];
    assert!(rings(&mut *receiver.nic).config(0, &mut bytes));
    // struct virtio_net_config: mac, status, max_virtqueue_pairs, mtu, speed, duplex.
    assert_eq!(bytes[..6], [2, 0, 0, 0, 0, 9]);
    assert_eq!(u32::from(bytes[6]), VIRTIO_NET_S_LINK_UP);
    assert_eq!(u16::from_le_bytes([bytes[10], bytes[11]]), 1500);
    assert_eq!(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]), 10_000);
    assert_eq!(bytes[16], 1, "full duplex");
    assert_eq!(bytes[17..], [40, 128, 0, 0x3f, 0, 0, 0], "a key, a table, hashes of IP, TCP and UDP");
    assert!(!rings(&mut *receiver.nic).config(21, &mut [0; 8]), "a byte beyond the end");
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], &tcp4(&payload(1460)), 4000);
    sender.send(0, &[0; 12], &tcp4(&payload(1461)), 4000);
    sender.fetch_of(0);
    receiver.post(0, 4, 4096);
    receiver.deliver(&sender.batch);
    assert_eq!(receiver.received(0).len(), 1);
    assert_eq!(receiver.counters.receive_drops[Reason::TooLong as usize], 1);
}

#[test]
fn a_driver_that_named_an_index_is_interrupted_when_it_is_passed_and_rings_only_when_asked() {
    let features = plain() | bit(VIRTIO_RING_F_EVENT_IDX);
    let mut sender = Guest::new(features, 16);
    let place = sender.queues[1].place;
    // used_event follows the driver's ring, avail_event the device's (2.7.7, 2.7.10).
    let (used_event, avail_event) = (place.driver + 4 + 2 * 16, place.device + 4 + 8 * 16);
    sender.put(used_event, &1u16.to_le_bytes());
    for (sent, notified) in [(1, false), (2, true), (3, false)] {
        sender.send(0, &[0; 12], &tcp4(&payload(20)), 2000);
        assert!(sender.fetch_of(0).more && sender.look_at(0).armed);
        assert_eq!(sender.get16(avail_event), sent, "ring at the next one");
        sender.out = Outbox::default();
        sender.complete();
        sender.later();
        assert_eq!(sender.out.messages.contains(1), notified, "after {sent}");
    }
}

#[test]
fn a_flow_comes_back_on_the_queue_that_it_was_sent_on() {
    let features = rich() | bit(VIRTIO_NET_F_MQ);
    let mut guest = Guest::new(features, 16);
    let (mut peer, frame) = (Guest::new(plain(), 16), tcp4(&payload(64)));
    peer.send(0, &[0; 12], &frame, 2000);
    peer.fetch_of(0);
    for queue in [1, 0] {
        guest.post(0, 1, 2048);
        guest.post(1, 1, 2048);
        guest.send(queue, &[0; 12], &frame, 2000);
        guest.fetch_of(queue);
        guest.complete();
        guest.deliver(&peer.batch);
        assert_eq!(guest.received(queue).len(), 1, "queue {queue}");
        assert!(guest.received(1 - queue).is_empty());
    }
}
