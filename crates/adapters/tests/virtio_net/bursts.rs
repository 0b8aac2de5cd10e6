//! Runs of packets whose header and frame are in one buffer, mixed with packets of other kinds, on a transmit ring.

use nicety_adapter::{Budget, Checksum, Reason};
use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;
use virtio_bindings::virtio_net::VIRTIO_NET_F_CSUM;

use crate::guest::{Guest, Part, bit, cx};
use crate::packets::{payload, tcp4};
use crate::traffic::plain;

/// VIRTIO_NET_HDR_F_NEEDS_CSUM, with TCP's start and offset behind IPv4 (5.1.6.2).
const CHECKSUM: [u8; 12] = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0];

fn both() -> [u128; 2] {
    [plain(), plain() | bit(VIRTIO_F_RING_PACKED)]
}

/// Sends header and frame in one buffer.
fn send_whole(guest: &mut Guest, header: &[u8], frame: &[u8]) -> u16 {
    let bytes = [header, frame].concat();
    let address = guest.allocate(bytes.len() as u32);
    guest.put(address, &bytes);
    guest.add(1, &[Part { address, len: bytes.len() as u32, write: false }])
}

/// A frame of this many bytes.
fn frame_of(len: usize, fill: u8) -> Vec<u8> {
    let mut frame = tcp4(&payload(len.saturating_sub(54)));
    frame.truncate(len);
    frame[11] = fill;
    frame
}

/// The packets of the guest's batch.
fn taken(guest: &Guest) -> Vec<Vec<u8>> {
    let whole = |packet| {
        let mut bytes = vec![0; 2000];
        let len = guest.batch.copy(packet, &mut bytes);
        bytes.truncate(len);
        bytes
    };
    guest.batch.packets().iter().map(whole).collect()
}

#[test]
fn packets_of_all_lengths_and_kinds_in_one_burst_leave_in_order_with_all_their_bytes() {
    for features in both() {
        let mut guest = Guest::new(features | bit(VIRTIO_NET_F_CSUM), 64);
        let lens = [60, 64, 61, 14, 65, 128, 129, 59, 700, 60, 1514, 127, 60];
        for round in 0..40 {
            let (mut expected, mut names) = (Vec::new(), Vec::new());
            for (number, len) in lens.iter().enumerate() {
                let mut frame = frame_of(*len, (13 * round + number) as u8);
                names.push(match (round + number) % 7 {
                    3 => guest.send(0, &[0; 12], &frame, 400),
                    5 if *len > 60 => send_whole(&mut guest, &CHECKSUM, &frame),
                    _ => send_whole(&mut guest, &[0; 12], &frame),
                });
                frame.resize((*len).max(60), 0);
                expected.push(frame);
            }
            assert!(guest.fetch_of(0).more, "it is looked at again");
            assert!(guest.look_at(0).armed, "all were taken");
            assert_eq!(taken(&guest), expected, "round {round}");
            let requests = guest.batch.packets().iter().zip(lens).enumerate();
            for (number, (packet, len)) in requests {
                let requested = packet.offload.checksum != Checksum::AsIs;
                assert_eq!(requested, (round + number) % 7 == 5 && len > 60, "round {round}, packet {number}");
                assert_eq!((packet.len(), packet.frames()), (len.max(60) as u32, 1));
            }
            guest.complete();
            let returned: Vec<_> = guest.used(1).iter().map(|(name, bytes)| (*name as u16, *bytes)).collect();
            assert_eq!(returned, names.iter().map(|name| (*name, 0)).collect::<Vec<_>>());
        }
        let sent = guest.counters.transmitted();
        let bytes: usize = lens.iter().map(|len| len.max(&60)).sum();
        assert_eq!((sent.packets, sent.frames, sent.bytes), (520, 520, 40 * bytes as u64));
    }
}

#[test]
fn a_burst_ends_where_the_budget_does() {
    for features in both() {
        let mut guest = Guest::new(features, 64);
        for number in 0..10 {
            send_whole(&mut guest, &[0; 12], &frame_of(100, number));
        }
        let mut fetched = Vec::new();
        for budget in [Budget { packets: 3, bytes: 1 << 16 }, Budget { packets: 64, bytes: 101 }, Budget::TURN] {
            let mut batch = std::mem::take(&mut guest.batch);
            batch.start(&guest.map, nicety_adapter::PortId(0), 0);
            let progress = guest.nic.fetch(0, budget, &mut batch, cx!(guest));
            guest.batch = batch;
            fetched.push((guest.batch.len(), progress.more));
            guest.complete();
        }
        // The second call takes a second packet, because the first one does not use its bytes up.
        assert_eq!(fetched, [(3, true), (2, true), (5, true)]);
        assert_eq!(guest.used(1).len(), 10);
    }
}

#[test]
fn a_bad_packet_in_a_burst_is_dropped_with_its_reason_and_those_around_it_leave() {
    for features in both() {
        let mut guest = Guest::new(features, 64);
        let good = frame_of(60, 1);
        send_whole(&mut guest, &[0; 12], &good);
        // A checksum request that was not negotiated; a frame of 13 bytes; half a header; no memory; a buffer for the device to write.
        send_whole(&mut guest, &CHECKSUM, &good);
        send_whole(&mut guest, &[0; 12], &good[..13]);
        send_whole(&mut guest, &[0; 6], &[]);
        guest.add(1, &[Part { address: 1 << 40, len: 72, write: false }]);
        guest.add(1, &[Part { address: 0x10_0000, len: 72, write: true }]);
        send_whole(&mut guest, &[0; 12], &good);
        let mut frames = Vec::new();
        for _ in 0..4 {
            guest.fetch_of(0);
            frames.extend(taken(&guest));
            guest.complete();
        }
        assert_eq!(frames, [good.clone(), good]);
        let dropped = |reason: Reason| guest.counters.transmit_drops[reason as usize];
        assert_eq!((dropped(Reason::BadOffload), dropped(Reason::TooShort), dropped(Reason::BadDescriptor)), (1, 1, 2));
        assert_eq!(guest.counters.transmit_drops.iter().sum::<u64>(), 5);
        assert_eq!(guest.used(1).len(), 7, "all come back");
    }
}
