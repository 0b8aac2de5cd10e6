//! Hashes of received frames (virtio 1.2, sections 5.1.6.4.3, 5.1.6.4.4, 5.1.6.5.6.4 and 5.1.6.5.7), and other commands for queues:
//! coalescing (5.1.6.5.8), statistics, announcements.

use nicety_adapter::{Event, Reason};
use nicety_adapters::Settings;
use nicety_frame::{Mac, toeplitz};
use virtio_bindings::virtio_net::*;

use crate::guest::{Guest, Part, bit, cx, rings};
use crate::packets::{KEY, payload, tcp4, tcp6};
use crate::traffic::{plain, rich};

const OK: u8 = VIRTIO_NET_OK as u8;
const ERR: u8 = VIRTIO_NET_ERR as u8;
const TYPES: u32 = VIRTIO_NET_RSS_HASH_TYPE_IPv4 | VIRTIO_NET_RSS_HASH_TYPE_TCPv4 | VIRTIO_NET_RSS_HASH_TYPE_TCPv6;

/// A guest with this many pairs, the control queue and these features.
fn guest(pairs: u16, features: &[u32]) -> Guest {
    let bits = [VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_MQ];
    let features = rich() | bits.iter().chain(features).map(|number| bit(*number)).sum::<u128>();
    let mut guest =
        Guest::with(features, 32, Settings { queues: Some(pairs), ..Settings::new(Mac([2, 0, 0, 0, 0, 1])) });
    if features & bit(VIRTIO_NET_F_HASH_REPORT) != 0 {
        guest.header_len = 20;
    }
    guest
}

/// `struct virtio_net_rss_config`.
fn scaling(types: u32, table: &[u16], unclassified: u16, transmit: u16, key: &[u8]) -> Vec<u8> {
    let mut out = types.to_le_bytes().to_vec();
    out.extend((table.len() as u16 - 1).to_le_bytes());
    out.extend(unclassified.to_le_bytes());
    table.iter().for_each(|queue| out.extend(queue.to_le_bytes()));
    out.extend(transmit.to_le_bytes());
    out.push(key.len() as u8);
    out.extend(key);
    out
}

/// A frame of the same connection, with another source port.
fn from_port(port: u16) -> Vec<u8> {
    let mut frame = tcp4(&payload(60));
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame
}

/// The hash over a TCP/IPv4 frame's addresses and ports.
fn hash4(frame: &[u8]) -> u32 {
    toeplitz::hash(&KEY, &frame[26..38])
}

/// The queue on which a frame arrives.
fn arrives(guest: &mut Guest, frame: &[u8]) -> Option<u16> {
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], frame, 2000);
    sender.fetch_of(0);
    let pairs = guest.queues.len() as u16 / 2;
    (0..pairs).for_each(|queue| drop(guest.post(queue, 1, 2048)));
    guest.deliver(&sender.batch);
    let at: Vec<u16> = (0..pairs).filter(|queue| !guest.received(*queue).is_empty()).collect();
    assert!(at.len() <= 1, "{at:?}");
    at.first().copied()
}

#[test]
fn frames_go_where_the_drivers_table_says_by_their_hash() {
    let mut guest = guest(8, &[VIRTIO_NET_F_RSS]);
    let table: Vec<u16> = (0..16).map(|entry| 7 - entry % 8).collect();
    let set = scaling(TYPES, &table, 5, 8, &KEY);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &set), OK);
    let mut used = std::collections::BTreeSet::new();
    for port in 1000..1026 {
        let frame = from_port(port);
        let queue = table[hash4(&frame) as usize % 16];
        assert_eq!(arrives(&mut guest, &frame), Some(queue), "port {port}");
        used.insert(queue);
    }
    assert_eq!(used.len(), 8, "all queues");
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 9, 8, 6]);
    arp.resize(60, 0);
    assert_eq!(arrives(&mut guest, &arp), Some(5), "what has no hash is unclassified");
    // Automatic steering again, with the single pair that is left.
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &1u16.to_le_bytes()), OK);
    assert_eq!(arrives(&mut guest, &from_port(1000)), Some(0));
}

/// QEMU's CVE-2024-6505: a table with numbers of missing queues.
#[test]
fn cve_2024_6505_a_table_that_names_a_queue_that_there_is_not_is_refused_and_nothing_changes() {
    let mut guest = guest(4, &[VIRTIO_NET_F_RSS]);
    let good = scaling(TYPES, &[2; 8], 2, 4, &KEY);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &good), OK);
    let long = scaling(TYPES, &[0; 128], 0, 4, &KEY);
    let mut odd = long.clone();
    odd[4..6].copy_from_slice(&9u16.to_le_bytes());
    let mut longest = long.clone();
    longest[4..6].copy_from_slice(&0xffffu16.to_le_bytes());
    let mut key = good.clone();
    *key.get_mut(4 + 4 + 16 + 2).unwrap() = 41;
    key.push(0);
    let bad = [
        scaling(TYPES, &[0, 1, 2, 4], 0, 4, &KEY),
        scaling(TYPES, &[0, 0xffff], 0, 4, &KEY),
        scaling(TYPES, &[0], 4, 4, &KEY),
        scaling(TYPES, &[0], 0, 0, &KEY),
        scaling(TYPES, &[0], 0, 5, &KEY),
        scaling(TYPES | 1 << 9, &[0], 0, 4, &KEY),
        odd,
        longest,
        key,
        good[..20].to_vec(),
        Vec::new(),
    ];
    for (number, set) in bad.iter().filter(|set| !set.is_empty()).enumerate() {
        let answer = guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, set);
        assert_eq!(answer, ERR, "configuration {number}");
        assert_eq!(arrives(&mut guest, &from_port(77)), Some(2), "configuration {number}");
    }
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &long), OK);
}

#[test]
fn a_frame_for_a_queue_that_its_driver_has_stopped_is_dropped_and_counted() {
    let mut guest = guest(4, &[VIRTIO_NET_F_RSS]);
    let set = scaling(TYPES, &[3], 3, 4, &KEY);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &set), OK);
    rings(&mut *guest.nic).stop(6, cx!(guest));
    assert_eq!(arrives(&mut guest, &from_port(1)), None);
    assert_eq!(guest.counters.receive_drops[Reason::ReceiverOff as usize], 1);
}

#[test]
fn headers_tell_the_hash_that_was_asked_for() {
    let mut guest = guest(2, &[VIRTIO_NET_F_HASH_REPORT]);
    let report = |guest: &mut Guest, frame: &[u8]| {
        let mut sender = Guest::new(plain(), 16);
        sender.send(0, &[0; 12], frame, 2000);
        sender.fetch_of(0);
        guest.post(0, 2, 1024);
        guest.deliver(&sender.batch);
        let got = guest.received(0).remove(0);
        assert_eq!(got.1, frame);
        assert_eq!(got.0[10..12], [1, 0], "one buffer");
        assert_eq!(got.0[18..], [0; 2]);
        (u32::from_le_bytes(*got.0[12..].first_chunk().unwrap()), u16::from_le_bytes([got.0[16], got.0[17]]))
    };
    let frame = from_port(4711);
    assert_eq!(report(&mut guest, &frame), (0, VIRTIO_NET_HASH_REPORT_NONE as u16), "before it is asked for");
    // struct virtio_net_hash_config: types, four reserved words, the key.
    let set = |types: u32| [&types.to_le_bytes()[..], &[0; 8], &[40], &KEY].concat();
    const HASH_CONFIG: u32 = 2;
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, HASH_CONFIG, &set(TYPES)), OK);
    assert_eq!(report(&mut guest, &frame), (hash4(&frame), VIRTIO_NET_HASH_REPORT_TCPv4 as u16));
    let six = tcp6(&payload(60));
    let hash6 = toeplitz::hash(&KEY, &six[22..58]);
    assert_eq!(report(&mut guest, &six), (hash6, VIRTIO_NET_HASH_REPORT_TCPv6 as u16));
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, HASH_CONFIG, &set(VIRTIO_NET_RSS_HASH_TYPE_IPv4)), OK);
    let addresses = toeplitz::hash(&KEY, &frame[26..34]);
    assert_eq!(report(&mut guest, &frame), (addresses, VIRTIO_NET_HASH_REPORT_IPv4 as u16));
    assert_eq!(report(&mut guest, &six), (0, VIRTIO_NET_HASH_REPORT_NONE as u16));
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, HASH_CONFIG, &set(1 << 8)), ERR, "extension headers");
    // Sent frames have a header of 20 bytes too.
    guest.send(0, &[0; 20], &frame, 2000);
    guest.fetch_of(0);
    let packet = &guest.batch.packets()[0];
    assert_eq!(packet.len() as usize, frame.len());
}

#[test]
fn a_saved_table_sends_frames_where_it_did() {
    let mut guest = guest(4, &[VIRTIO_NET_F_RSS]);
    let set = scaling(TYPES, &[3, 2, 1, 0], 0, 4, &KEY);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_RSS_CONFIG, &set), OK);
    let saved = guest.nic.save();
    guest.nic.restore(&saved).unwrap();
    let frame = from_port(9);
    assert_eq!(arrives(&mut guest, &frame), Some(3 - (hash4(&frame) % 4) as u16));
}

/// Delivers one frame. Returns whether it notified at once, and the time of a later notification.
fn notified(guest: &mut Guest) -> (bool, Option<u64>) {
    let mut sender = Guest::new(plain(), 16);
    sender.send(0, &[0; 12], &from_port(1), 2000);
    sender.fetch_of(0);
    guest.out = Default::default();
    guest.deliver(&sender.batch);
    let at = guest.out.wake.map(|wake| wake.since(guest.now).as_micros() as u64);
    (guest.out.messages.contains(0), at)
}

#[test]
fn notifications_wait_for_as_many_packets_or_as_long_as_the_driver_says() {
    let mut guest = guest(2, &[VIRTIO_NET_F_NOTF_COAL, VIRTIO_NET_F_VQ_NOTF_COAL]);
    guest.post(0, 30, 2048);
    // Packets, then microseconds.
    let limits = |packets: u32, usecs: u32| [packets.to_le_bytes(), usecs.to_le_bytes()].concat();
    let command = |guest: &mut Guest, number: u32, data: &[u8]| guest.command(VIRTIO_NET_CTRL_NOTF_COAL, number, data);
    assert_eq!(command(&mut guest, VIRTIO_NET_CTRL_NOTF_COAL_RX_SET, &limits(3, 700)), OK);
    assert_eq!(notified(&mut guest), (false, Some(700)));
    assert!(!notified(&mut guest).0);
    assert!(notified(&mut guest).0, "the third");
    assert_eq!(notified(&mut guest), (false, Some(700)));
    guest.now = guest.now.after_ns(700_000);
    guest.nic.tick(cx!(guest));
    assert!(guest.out.messages.contains(0), "its time has come");
    // For this queue alone: at once.
    let queue = [&0u32.to_le_bytes()[..], &limits(0, 0)].concat();
    assert_eq!(command(&mut guest, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET, &queue), OK);
    assert!(notified(&mut guest).0);
    // A ring without frames has no such setting, and there is no tenth ring.
    for ring in [4u32, 10] {
        let queue = [&ring.to_le_bytes()[..], &limits(1, 1)].concat();
        assert_eq!(command(&mut guest, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET, &queue), ERR, "ring {ring}");
    }
    assert_eq!(command(&mut guest, VIRTIO_NET_CTRL_NOTF_COAL_RX_SET, &[0; 7]), ERR);
    assert_eq!(command(&mut guest, 9, &[0; 8]), ERR);
}

#[test]
fn completions_wait_as_the_driver_says() {
    let mut guest = guest(2, &[VIRTIO_NET_F_NOTF_COAL]);
    let limits = [2u32.to_le_bytes(), 400u32.to_le_bytes()].concat();
    assert_eq!(guest.command(VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_TX_SET, &limits), OK);
    for notified in [false, true, false] {
        guest.out = Default::default();
        guest.send(0, &[0; 12], &from_port(1), 2000);
        guest.fetch_of(0);
        guest.complete();
        assert_eq!(guest.used(1).len(), 1, "it is back at once");
        assert_eq!(guest.out.messages.contains(1), notified);
    }
    assert_eq!(guest.out.wake.map(|wake| wake.since(guest.now).as_micros()), Some(400));
    guest.later();
    assert!(guest.out.messages.contains(1));
}

/// Sends a command that asks for an answer of `len` bytes. Returns its acknowledgement, and the answer.
fn ask(guest: &mut Guest, class: u32, command: u32, data: &[u8], len: u32) -> (u8, Vec<u8>) {
    let ring = guest.queues.len() as u16 - 1;
    let bytes = [&[class as u8, command as u8][..], data].concat();
    let (address, ack, answer) = (guest.allocate(bytes.len() as u32), guest.allocate(1), guest.allocate(len));
    guest.put(address, &bytes);
    let parts = [
        Part { address, len: bytes.len() as u32, write: false },
        Part { address: ack, len: 1, write: true },
        Part { address: answer, len, write: true },
    ];
    guest.add(ring, &parts);
    guest.kick(ring);
    guest.later();
    let written = guest.used(ring)[0].1 as usize;
    (guest.get(ack, 1)[0], guest.get(answer, written - 1))
}

#[test]
fn flows_that_the_guest_has_not_sent_are_spread_over_its_queues() {
    let mut guest = guest(2, &[]);
    let mut sender = Guest::new(plain(), 128);
    for port in 1..41 {
        sender.send(0, &[0; 12], &from_port(port), 2000);
    }
    sender.fetch_of(0);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET, &2u16.to_le_bytes()), OK);
    (0..2).for_each(|queue| drop(guest.post(queue, 32, 2000)));
    guest.deliver(&sender.batch);
    let came = [0, 1].map(|queue| guest.received(queue).len());
    assert!(came.iter().all(|&frames| frames >= 8) && came.iter().sum::<usize>() == 40, "{came:?}");
}

#[test]
fn the_driver_reads_back_what_it_has_set_and_what_its_queues_have_carried() {
    let mut guest = guest(2, &[VIRTIO_NET_F_VQ_NOTF_COAL, VIRTIO_NET_F_DEVICE_STATS]);
    let set = [&2u32.to_le_bytes()[..], &7u32.to_le_bytes(), &90u32.to_le_bytes()].concat();
    assert_eq!(guest.command(VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_VQ_SET, &set), OK);
    let (class, get) = (VIRTIO_NET_CTRL_NOTF_COAL, VIRTIO_NET_CTRL_NOTF_COAL_VQ_GET);
    assert_eq!(ask(&mut guest, class, get, &2u32.to_le_bytes(), 12), (OK, set));
    assert_eq!(ask(&mut guest, class, get, &2u32.to_le_bytes(), 11), (ERR, Vec::new()), "no room for the answer");
    let query = ask(&mut guest, VIRTIO_NET_CTRL_STATS, VIRTIO_NET_CTRL_STATS_QUERY, &[], 8);
    let types = u64::from(VIRTIO_NET_STATS_TYPE_RX_BASIC | VIRTIO_NET_STATS_TYPE_TX_BASIC);
    assert_eq!(query, (OK, types.to_le_bytes().to_vec()));
    let frame = from_port(1);
    guest.send(0, &[0; 12], &frame, 2000);
    guest.kick(1);
    guest.fetch_of(0);
    guest.complete();
    guest.later();
    // struct virtio_net_ctrl_queue_stats: ring, reserved, types.
    let of = |ring: u16| [&ring.to_le_bytes()[..], &[0; 6], &types.to_le_bytes()].concat();
    let (ack, answer) =
        ask(&mut guest, VIRTIO_NET_CTRL_STATS, VIRTIO_NET_CTRL_STATS_GET, &[of(1), of(0)].concat(), 400);
    assert_eq!((ack, answer.len()), (OK, 2 * 56));
    assert_eq!(answer[..8], [VIRTIO_NET_STATS_TYPE_REPLY_TX_BASIC as u8, 0, 1, 0, 0, 0, 56, 0]);
    let counter = |at: usize| u64::from_le_bytes(*answer[8 + 8 * at..].first_chunk().unwrap());
    let (kicked, packets, bytes, called) = (counter(0), counter(1), counter(2), counter(3));
    assert_eq!((packets, bytes), (1, frame.len() as u64), "packets, bytes");
    assert_eq!((kicked, called), (1, 1), "notifications by the driver, and to it");
    assert_eq!(ask(&mut guest, VIRTIO_NET_CTRL_STATS, VIRTIO_NET_CTRL_STATS_GET, &of(99), 400).0, ERR);
    assert_eq!(ask(&mut guest, VIRTIO_NET_CTRL_STATS, VIRTIO_NET_CTRL_STATS_GET, &[0; 15], 400).0, ERR);
    assert_eq!(ask(&mut guest, VIRTIO_NET_CTRL_STATS, VIRTIO_NET_CTRL_STATS_GET, &of(0).repeat(41), 4000).0, ERR);
}

#[test]
fn a_driver_announces_itself_after_a_restore_until_it_says_that_it_has() {
    let mut guest = guest(2, &[VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_STATUS]);
    let status = |guest: &mut Guest| {
        let mut byte = [0];
        assert!(rings(&mut *guest.nic).config(6, &mut byte));
        u32::from(byte[0])
    };
    assert_eq!(status(&mut guest), VIRTIO_NET_S_LINK_UP);
    guest.nic.notice(Event::Restored, cx!(guest));
    assert_eq!(status(&mut guest), VIRTIO_NET_S_LINK_UP | VIRTIO_NET_S_ANNOUNCE);
    assert_eq!(guest.command(VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, &[0]), OK);
    assert_eq!(status(&mut guest), VIRTIO_NET_S_LINK_UP);
}

/// QEMU's CVE-2023-6693: a header longer than the usual one, copied for a driver with hash reports.
#[test]
fn cve_2023_6693_a_long_header_is_read_in_any_pieces_and_a_packet_shorter_than_it_is_dropped() {
    let frame = from_port(1000);
    for pieces in [&[20][..], &[12, 8], &[1; 20], &[19, 1]] {
        let mut guest = guest(2, &[VIRTIO_NET_F_HASH_REPORT]);
        let mut parts = Vec::new();
        for len in pieces.iter().copied().chain([frame.len() as u32]) {
            parts.push(Part { address: guest.allocate(len), len, write: false });
        }
        guest.put(parts.last().unwrap().address, &frame);
        guest.add(1, &parts);
        guest.fetch_of(0);
        assert_eq!(guest.batch.len(), 1, "{pieces:?}");
    }
    for len in [1, 12, 19, 20] {
        let mut guest = guest(2, &[VIRTIO_NET_F_HASH_REPORT]);
        let address = guest.allocate(len);
        guest.add(1, &[Part { address, len, write: false }]);
        guest.fetch_of(0);
        assert!(guest.batch.is_empty(), "{len}");
        guest.complete();
        assert_eq!(guest.used(1).len(), 1, "{len}");
        assert_eq!(guest.counters.transmit_drops.iter().sum::<u64>(), 1, "{len}");
    }
}
