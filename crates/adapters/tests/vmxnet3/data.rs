//! Frames in both directions: offloads, tags, large and small packets, refusals.

use nicety_adapter::{Batch, Checksum, Edit, Frames, Offload as Asked, Pick, Reset, Segment, SegmentKind};
use nicety_frame::{Tag, Tci};

use crate::guest::{
    F_LRO, F_RSS, F_RXCSUM, F_RXVLAN, Guest, MAC, MEMORY, Offload, Open, QUEUES, RING, RSS, SEQUENCE, SHARED, batch_of,
    packets_of, payload, plain_batch,
};
use crate::packets::{KEY, prepared_for_tso, sequence, tcp4, tcp6, udp4, verified};

/// A batch with one packet from another port.
pub fn foreign(bytes: &[u8], offload: Asked) -> Batch {
    batch_of(&[(bytes, offload)])
}

pub fn plain(bytes: &[u8]) -> Batch {
    plain_batch(&[bytes])
}

pub const OK4: u32 = 1 << 16 | 1 << 19 | 1 << 21;
pub const TUC: u32 = 1 << 16;
pub const TCP: u32 = 1 << 18;

#[test]
fn a_frame_goes_out_in_two_pieces_and_its_last_descriptor_comes_back() {
    let mut guest = Guest::opened(Open::default());
    let frame = udp4([2; 6], 1, &payload(700));
    let mut batch = Batch::new();
    for round in 0..3 * RING {
        assert!(guest.send(0, &[&frame[..42], &frame[42..]], Offload::default()), "an idle device wants the doorbell");
        assert!(guest.out.work.contains(0));
        assert!(guest.fetch_into(0, &mut batch).more);
        assert_eq!(packets_of(&batch)[0].0, frame);
        assert!(guest.sent(0).is_empty(), "nothing comes back before it is dealt with");
        guest.complete_of(&batch);
        assert_eq!(guest.sent(0), [(2 * round + 1) as u32 % RING as u32]);
        assert!(!guest.out.messages.contains(0), "a completion waits for company");
        let at = guest.out.wake.expect("a time");
        assert!(at.since(guest.now).as_millis() <= 2);
        guest.now = guest.now.after_ns(2_000_000);
        guest.tick();
        assert!(guest.out.messages.contains(0), "and is told when none comes");
        guest.write(0, 0, 0);
        assert!(guest.fetch_into(0, &mut batch).armed);
        guest.out = Default::default();
    }
    assert_eq!(guest.counters.transmitted().packets, 3 * RING);
    assert_eq!(guest.counters.guest_errors(), 0);
}

#[test]
fn a_busy_queue_needs_no_doorbell_and_an_idle_one_does() {
    let mut guest = Guest::opened(Open::default());
    let frame = udp4([2; 6], 1, b"x");
    let mut batch = Batch::new();
    assert!(guest.send(0, &[&frame], Offload::default()));
    assert!(guest.fetch_into(0, &mut batch).more);
    guest.complete_of(&batch);
    for _ in 0..20 {
        assert!(!guest.send(0, &[&frame], Offload::default()));
    }
    guest.fetch_into(0, &mut batch);
    assert_eq!(batch.len(), 20);
    guest.complete_of(&batch);
    assert_eq!(guest.sent(0).len(), 21);
    let progress = guest.fetch_into(0, &mut batch);
    assert!(progress.armed && !progress.more);
    // The driver may have read the threshold just before: a tick checks again.
    let wake = guest.out.wake.expect("a second look");
    guest.put32(QUEUES + 4, 1024);
    assert!(!guest.send(0, &[&frame], Offload::default()));
    guest.now = wake;
    guest.out = Default::default();
    guest.tick();
    assert!(guest.out.work.contains(0));
}

#[test]
fn checksums_are_asked_for_in_neutral_words_and_count_a_tag() {
    let mut guest = Guest::opened(Open::default());
    let frame = udp4([2; 6], 1, &payload(100));
    let mut batch = Batch::new();
    let asked = Offload { om: 2, hlen: 34, msscof: 40, tag: Some(0x2007), ..Offload::default() };
    guest.send(0, &[&frame], asked);
    guest.fetch_into(0, &mut batch);
    assert_eq!(batch.packets()[0].offload.checksum, Checksum::Partial { start: 38, field: 44 });
    assert_eq!(packets_of(&batch)[0].0[12..16], [0x81, 0, 0x20, 7]);
    for wrong in [Offload { msscof: 33, ..asked }, Offload { msscof: 1000, ..asked }, Offload { hlen: 3, ..asked }] {
        guest.send(0, &[&frame], wrong);
    }
    guest.send(0, &[&frame], Offload { om: 1, ..asked });
    guest.complete_of(&batch);
    guest.fetch_into(0, &mut batch);
    assert!(batch.is_empty());
    assert_eq!(guest.sent(0), [0, 1, 2, 3, 4], "dropped ones come back too, in order");
    assert_eq!(guest.counters.transmit_drops.iter().sum::<u64>(), 4);
}

#[test]
fn a_dropped_packet_between_good_ones_comes_back_in_its_place() {
    let mut guest = Guest::opened(Open::default());
    let frame = udp4([2; 6], 1, b"x");
    guest.send(0, &[&frame], Offload::default());
    guest.send(0, &[&frame[..8]], Offload::default());
    guest.send(0, &[&frame], Offload::default());
    guest.send(0, &[&frame[..8]], Offload::default());
    let mut batch = Batch::new();
    guest.fetch_into(0, &mut batch);
    assert_eq!(batch.len(), 2);
    assert!(guest.sent(0).is_empty());
    guest.complete_of(&batch);
    assert_eq!(guest.sent(0), [0, 1, 2, 3]);
}

/// A guest that sends a packet with a segmentation request, and the fetched batch.
fn asked(frame: Vec<u8>, mss: u32) -> (Guest, Batch) {
    let headers = if frame[12..14] == [8, 0] { 54 } else { 74 };
    let mut guest = Guest::opened(Open::default());
    let frame = prepared_for_tso(frame);
    let rest: Vec<&[u8]> = frame[headers..].chunks(16384).collect();
    let pieces: Vec<&[u8]> = std::iter::once(&frame[..headers]).chain(rest).collect();
    guest.send(0, &pieces, Offload { om: 3, hlen: headers as u32, msscof: mss, ..Offload::default() });
    let mut batch = Batch::new();
    guest.fetch_into(0, &mut batch);
    (guest, batch)
}

fn tso(frame: Vec<u8>, mss: u32) -> (Guest, Batch) {
    let (guest, batch) = asked(frame, mss);
    assert_eq!(batch.len(), 1);
    assert_eq!(guest.counters.transmitted().frames, u64::from(batch.packets()[0].frames()));
    (guest, batch)
}

#[test]
fn a_packet_that_asks_for_thousands_of_tiny_frames_is_dropped() {
    for mss in [0, 1, 8, 29] {
        let (mut guest, batch) = asked(tcp4(MAC, &payload(60_000)), mss);
        assert!(batch.is_empty(), "{mss}");
        guest.complete_of(&batch);
        assert_eq!(guest.counters.transmit_drops[nicety_adapter::Reason::BadOffload as usize], 1);
        assert!(!guest.sent(0).is_empty(), "its descriptors come back");
    }
    assert_eq!(asked(tcp4(MAC, &payload(60_000)), 48).1.len(), 1, "the least that Linux asks for");
}

#[test]
fn a_large_packet_is_cut_for_a_guest_without_lro() {
    let payload = payload(40_000);
    for frame in [tcp4(MAC, &payload), tcp6(MAC, &payload)] {
        let v4 = frame[12] == 8;
        let (_sender, batch) = tso(frame, 1400);
        let mut receiver = Guest::opened(Open::default());
        assert_eq!(receiver.deliver(&batch).refused(), 0);
        let packets = receiver.receive(0, true);
        assert_eq!(packets.len(), 29);
        let mut joined = Vec::new();
        for packet in &packets {
            assert_eq!(sequence(&packet.bytes), SEQUENCE + joined.len() as u32);
            joined.extend(verified(&packet.bytes));
            let [low, _, _, high] = packet.last();
            assert_eq!(low >> 30 & 1, 0);
            let good = if v4 { OK4 | TCP } else { TUC | TCP | 1 << 20 };
            assert_eq!(high & good, good);
            assert_eq!(high >> 24 & 0x7f, 3);
        }
        assert_eq!(joined, payload);
        assert_eq!(receiver.counters.taken().packets, 1);
        assert_eq!(receiver.out.messages.len(), 1, "one interrupt");
    }
}

#[test]
fn a_large_packet_stays_whole_for_a_guest_with_lro() {
    let payload = payload(60_000);
    for frame in [tcp4(MAC, &payload), tcp6(MAC, &payload)] {
        let headers = frame.len() - payload.len();
        let (_sender, batch) = tso(frame, 1448);
        let mut receiver = Guest::opened(Open { features: F_LRO | F_RXCSUM | F_RXVLAN, ..Open::default() });
        for _ in 0..20 {
            assert_eq!(receiver.deliver(&batch).refused(), 0);
            let packets = receiver.receive(0, true);
            let [packet] = &packets[..] else { panic!("one packet") };
            assert_eq!(packet.bytes[headers..], payload);
            let [first, last] = [packet.words[0], packet.last()];
            assert_eq!(first[3] >> 24 & 0x7f, 4);
            assert_eq!((first[1] & 0xff, first[3] & 0xffff), (42, 1448));
            assert_eq!(last[3] >> 24 & 0x7f, 3);
            assert_ne!(last[3] & TUC, 0);
            assert!(packet.words.len() <= 18);
            if headers == 54 {
                let header = etherparse::Ipv4HeaderSlice::from_slice(&packet.bytes[14..34]).unwrap().to_header();
                assert_eq!(header.calc_header_checksum(), header.header_checksum, "Linux ip_rcv looks at it");
                assert_eq!(usize::from(header.total_len), packet.bytes.len() - 14);
            }
        }
    }
}

#[test]
fn a_packet_that_the_buffers_cannot_hold_uncut_comes_cut() {
    let (_sender, batch) = tso(tcp4(MAC, &payload(60_000)), 1448);
    let mut receiver = Guest::opened(Open { features: F_LRO, ..Open::default() });
    receiver.put(SHARED + 60, &4u16.to_le_bytes());
    receiver.command(0xcafe_0000);
    assert_eq!(receiver.deliver(&batch).refused(), 0);
    assert_eq!(receiver.receive(0, true).len(), 42);
}

#[test]
fn small_frames_go_to_the_data_ring_and_larger_ones_to_their_buffer() {
    let mut guest = Guest::opened(Open::default());
    for round in 0..2 * RING {
        let (small, large) = (udp4(MAC, 1, &payload(86)), udp4(MAC, 1, &payload(87)));
        assert_eq!((small.len(), large.len()), (128, 129));
        guest.deliver(&plain(&small));
        guest.deliver(&plain(&large));
        let packets = guest.receive(0, true);
        assert_eq!(packets.len(), 2, "{round}");
        assert_eq!((&packets[0].bytes, &packets[1].bytes), (&small, &large));
        let id = |at: usize| packets[at].last()[0] >> 16 & 0x3ff;
        assert_eq!((id(0), id(1)), (2, 0));
        guest.write(0, 0, 0);
    }
}

#[test]
fn a_tag_is_stripped_and_told_or_left() {
    let mut frame = udp4(MAC, 1, &payload(300));
    frame.splice(12..12, [0x81, 0, 0x60, 5]);
    let mut guest = Guest::opened(Open::default());
    guest.put32(SHARED + 136, 1 | 1 << 5);
    guest.command(0xcafe_0005);
    guest.deliver(&plain(&frame));
    let packets = guest.receive(0, true);
    assert_eq!(packets[0].bytes.len(), frame.len() - 4);
    assert_eq!(packets[0].last()[2] >> 15, 1 | 0x6005 << 1);
    assert_eq!(packets[0].last()[3] & OK4, OK4);
    let mut whole = Guest::opened(Open { features: F_RXCSUM, ..Open::default() });
    whole.put32(SHARED + 136, 0);
    whole.command(0xcafe_0005);
    whole.deliver(&plain(&frame));
    let packets = whole.receive(0, true);
    assert_eq!(packets[0].bytes, frame);
    assert_eq!(packets[0].last()[2] >> 15, 0);
    // This table does not contain VLAN 5.
    let mut filtered = Guest::opened(Open::default());
    filtered.deliver(&plain(&frame));
    assert!(filtered.receive(0, true).is_empty());
}

#[test]
fn a_jumbo_frame_takes_bodies_of_ring_1_or_of_ring_0() {
    let frame = udp4(MAC, 1, &payload(7000));
    let seven = Open { mtu: 9000, head: 3072, ..Open::default() };
    let three = Open { version: 3, per_packet: 2, ..seven };
    for (open, rings) in [(seven, [0, 1]), (three, [0, 0])] {
        let mut guest = Guest::opened(open);
        for round in 0..100 {
            guest.deliver(&plain(&frame));
            let packets = guest.receive(0, true);
            assert_eq!(packets.len(), 1, "{round}");
            assert_eq!(packets[0].bytes, frame);
            let ids: Vec<u32> = packets[0].words.iter().map(|words| words[0] >> 16 & 0x3ff).collect();
            assert_eq!(ids, rings);
            // A short packet leaves bodies of ring 0 unused.
            let short = udp4(MAC, 1, &payload(200));
            guest.deliver(&plain(&short));
            assert_eq!(guest.receive(0, true)[0].bytes, short);
        }
        assert_eq!(guest.counters.guest_errors(), 0);
    }
}

#[test]
fn frames_that_nobody_asked_for_are_filtered() {
    let mut guest = Guest::opened(Open::default());
    let groups: [[u8; 6]; 3] = [[0x33, 0x33, 0, 0, 0, 9], [1, 0, 0x5e, 0, 0, 1], [1, 0, 0x5e, 0, 0, 7]];
    guest.put(0x9000, groups[..2].concat().as_slice());
    guest.put32(SHARED + 120, 7);
    guest.put32(SHARED + 124, 12);
    guest.put64(SHARED + 128, 0x9000);
    guest.command(0xcafe_0003);
    guest.command(0xcafe_0004);
    let takes = |guest: &mut Guest, target| {
        guest.deliver(&plain(&udp4(target, 1, b"x")));
        !guest.receive(0, true).is_empty()
    };
    assert!(takes(&mut guest, MAC));
    assert!(takes(&mut guest, [0xff; 6]));
    assert!(!takes(&mut guest, [2; 6]));
    assert_eq!(groups.map(|group| takes(&mut guest, group)), [true, true, false]);
    guest.put32(SHARED + 120, 9);
    guest.command(0xcafe_0003);
    assert!(takes(&mut guest, groups[2]));
    assert!(!takes(&mut guest, [0xff; 6]));
    guest.put32(SHARED + 120, 0x10);
    guest.command(0xcafe_0003);
    assert!(takes(&mut guest, [2; 6]));
    // The longest table that the length field can express is not scanned: all groups pass, at no cost. A table within the limit is
    // scanned.
    guest.put32(SHARED + 120, 7);
    guest.command(0xcafe_0003);
    for (addresses, scanned) in [(10_922u32, 0), (513, 0), (512, 512)] {
        guest.put32(SHARED + 124, 6 * addresses);
        guest.out.excess = 0;
        guest.command(0xcafe_0004);
        assert_eq!(takes(&mut guest, groups[2]), scanned == 0, "{addresses}");
        assert!(takes(&mut guest, groups[1]) && !takes(&mut guest, [2; 6]));
        assert!(guest.out.excess >= scanned && (scanned > 0 || guest.out.excess == 0), "{}", guest.out.excess);
    }
}

/// A filter that cannot be read lets more through, never less: the driver's stack filters again.
#[test]
fn a_table_of_groups_that_cannot_be_read_lets_all_groups_through() {
    let mut guest = Guest::opened(Open::default());
    let groups: [[u8; 6]; 2] = [[0x33, 0x33, 0, 0, 0, 9], [1, 0, 0x5e, 0, 0, 7]];
    let takes = |guest: &mut Guest, target| {
        guest.deliver(&plain(&udp4(target, 1, b"x")));
        !guest.receive(0, true).is_empty()
    };
    guest.put(0x9000, &groups[0]);
    guest.put32(SHARED + 120, 7);
    guest.command(0xcafe_0003);
    for (table, taken) in [(0x9000, [true, false]), (MEMORY as u64, [true, true]), (0x9000, [true, false])] {
        guest.put32(SHARED + 124, 6);
        guest.put64(SHARED + 128, table);
        guest.command(0xcafe_0004);
        assert_eq!(groups.map(|group| takes(&mut guest, group)), taken, "{table:#x}");
        assert!(!takes(&mut guest, [2; 6]));
    }
    assert_eq!(guest.counters.guest_errors(), 1);
}

#[test]
fn a_full_ring_refuses_and_goes_on_where_it_stopped() {
    let payload = payload(60_000);
    let (_sender, batch) = tso(tcp4(MAC, &payload), 300);
    let mut guest = Guest::opened(Open::default());
    // The packet's remaining frames after the guest was offered `rest`.
    let offer =
        |guest: &mut Guest, rest: &[Pick]| -> Vec<Pick> { guest.deliver_some(&batch, rest).again(rest).collect() };
    let mut rest = offer(&mut guest, &[Pick::whole(0)]);
    let mut packets = guest.receive(0, false);
    assert_eq!(packets.len() as u64, RING - 1);
    assert_eq!(rest, [Pick { from: RING as u16 - 1, ..Pick::whole(0) }]);
    assert_eq!(offer(&mut guest, &rest), rest, "still no room");
    // Nothing notifies of new buffers: the end of the driver's poll, or a tick, finds them.
    guest.refill(0, 0, 50);
    guest.out = Default::default();
    guest.write(0, 0, 0);
    assert!(guest.out.room.contains(0));
    rest = offer(&mut guest, &rest);
    assert_eq!(rest.len(), 1);
    packets.extend(guest.receive(0, true));
    guest.now = guest.out.wake.expect("a look later on");
    guest.out = Default::default();
    guest.tick();
    assert!(guest.out.room.contains(0));
    assert_eq!(offer(&mut guest, &rest), []);
    packets.extend(guest.receive(0, true));
    let joined: Vec<u8> = packets.iter().flat_map(|packet| verified(&packet.bytes)).collect();
    assert_eq!(joined, payload);
    assert_eq!(guest.counters.taken().packets, 1);
}

#[test]
fn a_reset_in_the_middle_of_a_batch_makes_its_completion_stale() {
    let mut guest = Guest::opened(Open::default());
    let frame = udp4([2; 6], 1, b"x");
    let mut batch = Batch::new();
    guest.send(0, &[&frame], Offload::default());
    guest.fetch_into(0, &mut batch);
    guest.command(0xcafe_0001);
    guest.command(0xcafe_0002);
    guest.open(Open::default());
    guest.complete_of(&batch);
    assert!(guest.sent(0).is_empty());
    guest.call(|adapter, cx| adapter.reset(Reset::Function, cx));
    guest.complete_of(&batch);
    assert!(guest.out.messages.is_empty());
}

#[test]
fn flows_spread_over_queues_and_carry_their_hash() {
    let mut guest = Guest::new();
    // hashType all, Toeplitz, key of 40, table of 128; the key of Microsoft's examples.
    guest.put(RSS, &[15, 0, 1, 0, 40, 0, 128, 0]);
    guest.put(RSS + 8, &KEY);
    let table: Vec<u8> = (0..128).map(|entry| entry % 4).collect();
    guest.put(RSS + 48, &table);
    let open = Open { queues: 4, features: F_RSS | F_RXCSUM, ..Open::default() };
    assert_eq!(guest.open(open), 0);
    guest.write(1, 0x48, 1);
    // 66.9.149.187:2794 to 161.142.100.80:1766 is 0x51ccc178 (Microsoft, "Verifying the RSS hash calculation").
    let mut bytes = Vec::new();
    let builder = etherparse::PacketBuilder::ethernet2([2; 6], MAC).ipv4([66, 9, 149, 187], [161, 142, 100, 80], 64);
    builder.tcp(2794, 1766, 1, 1).write(&mut bytes, b"hello").unwrap();
    guest.deliver(&plain(&bytes));
    let packets = guest.receive(0x51cc_c178 % 4, true);
    assert_eq!(packets[0].last()[1], 0x51cc_c178);
    assert_eq!(packets[0].last()[0] >> 26 & 0xf, 2);
    // UDP by addresses alone until its fields are enabled.
    let spread = |guest: &mut Guest| {
        (0..32).for_each(|port| {
            guest.deliver(&plain(&udp4(MAC, port, b"x")));
        });
        (0..4).filter(|&queue| !guest.receive(queue, true).is_empty()).count()
    };
    assert_eq!(spread(&mut guest), 1);
    guest.put32(SHARED + 704, 0x0f);
    guest.command(0xcafe_0010);
    assert_eq!(spread(&mut guest), 4);
}

/// Version 6 on: 65 vectors, in an extension of the shared structure.
#[test]
fn thirty_two_queues_each_way_have_a_vector_each_and_one_for_events() {
    let mut guest = Guest::new();
    guest.put(RSS, &[1, 0, 1, 0, 40, 0, 128, 0]);
    guest.put(RSS + 48, &[31; 128]);
    assert_eq!(guest.open(Open { queues: 32, features: F_RSS | F_RXCSUM, ..Open::default() }), 0);
    let frame = udp4(MAC, 1, &payload(300));
    guest.deliver(&plain(&frame));
    assert_eq!(guest.receive(31, true)[0].bytes, frame);
    assert!(guest.out.messages.contains(31));
    guest.out = Default::default();
    let mut batch = Batch::new();
    guest.send(31, &[&frame], Offload::default());
    guest.fetch_into(31, &mut batch);
    assert_eq!(packets_of(&batch)[0].0, frame);
    guest.complete_of(&batch);
    assert_eq!(guest.sent(31).len(), 1);
    guest.link(false);
    assert!(guest.out.messages.contains(32));
    assert_eq!(guest.counters.guest_errors(), 0);
}

#[test]
fn statistics_are_written_where_the_driver_reads_them() {
    let (mut guest, batch) = tso(tcp4(MAC, &payload(10_000)), 1000);
    guest.deliver(&batch);
    guest.command(0xf00d_0001);
    let [tx, rx] = [QUEUES + 88, QUEUES + 256 + 88];
    assert_eq!((guest.get64(tx), guest.get64(tx + 16)), (10, 10));
    assert_eq!((guest.get64(rx), guest.get64(rx + 16)), (0, 10));
    assert_eq!(guest.get64(rx + 24), 10_054);
}

#[test]
fn the_switch_may_tag_and_untag_on_the_way() {
    let frame = udp4(MAC, 1, &payload(300));
    let mut guest = Guest::opened(Open::default());
    guest.put32(SHARED + 136, 1 | 1 << 7);
    guest.command(0xcafe_0005);
    let batch = plain(&frame);
    let picks = [Pick { edit: Edit::Tag(Tag::customer(Tci(7))), ..Pick::whole(0) }];
    guest.call(|adapter, cx| adapter.deliver(&Frames::new(&batch, &picks), cx));
    let packets = guest.receive(0, true);
    assert_eq!(packets[0].bytes, frame);
    assert_eq!(packets[0].last()[2] >> 15, 1 | 7 << 1);
}

/// The driver knows only 802.1Q: an 802.1ad tag is neither stripped nor filtered.
#[test]
fn an_802_1ad_tag_arrives_as_it_left() {
    let mut frame = udp4(MAC, 1, &payload(300));
    frame.splice(12..12, Tag::service(Tci(0x6064)).to_bytes());
    let mut guest = Guest::opened(Open::default());
    guest.put32(SHARED + 136, 1 | 1 << 7);
    guest.command(0xcafe_0005);
    guest.deliver(&plain(&frame));
    let packets = guest.receive(0, true);
    assert_eq!((&packets[0].bytes, packets[0].last()[2] >> 15 & 1), (&frame, 0));
}

#[test]
fn a_packet_of_another_adapter_comes_uncut_too() {
    let payload = payload(9000);
    let segment = Segment { kind: SegmentKind::Tcp, mss: 1000, headers: 54 };
    let asked = Asked { checksum: Checksum::Partial { start: 34, field: 50 }, segment: Some(segment) };
    let batch = foreign(&tcp4(MAC, &payload), asked);
    let mut guest = Guest::opened(Open { features: F_LRO | F_RXCSUM, ..Open::default() });
    guest.deliver(&batch);
    let packets = guest.receive(0, true);
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].words[0][1], 9);
}
