//! Descriptors against the bit fields of Linux's vmxnet3_defs.h. The numbers are written here again.

use nicety_adapter::Segment;

use super::*;

/// A TCP packet over IPv4 with this much payload. Its checksum field has a stack's value.
fn tcp(payload: usize) -> Vec<u8> {
    let mut packet = vec![0; 54 + payload];
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    packet[14] = 0x45;
    packet[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    packet[23] = 6;
    packet[24..26].copy_from_slice(&[0xab, 0xcd]);
    packet[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[46] = 0x50;
    packet
}

const PARTIAL: Checksum = Checksum::Partial { start: 34, field: 50 };

struct Bench {
    memory: Map,
    queue: Transmit,
}

impl Bench {
    fn new() -> Bench {
        let memory = Map::private(1 << 20).unwrap();
        let mut arena = Arena::new(0x1000, (1 << 20) - 0x1000);
        let queue = Transmit::new(&memory, &mut arena, 64, 128, 0).unwrap();
        memory.write(4, &[1]).unwrap();
        Bench { memory, queue }
    }

    fn descriptor(&self, index: u64) -> (u64, u32, u32) {
        let mut bytes = [0; 16];
        self.memory.read(self.queue.ring.base + 16 * index, &mut bytes).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (u64::from(word(0)) | u64::from(word(4)) << 32, word(8), word(12))
    }
}

#[test]
fn a_short_packet_is_one_descriptor_into_the_data_ring() {
    let mut bench = Bench::new();
    assert!(bench.queue.queue(&bench.memory, &[7; 60], &Offload::default()).unwrap());
    // Length 60, gen 1; end of packet and completion request are bits 12 and 13.
    assert_eq!(bench.descriptor(0), (bench.queue.data, 60 | 0x4000, 0x3000));
    assert_eq!(bench.queue.doorbell(&bench.memory).unwrap(), Some(1));
    assert_eq!(bench.queue.doorbell(&bench.memory).unwrap(), None);
}

#[test]
fn a_packet_to_segment_has_its_headers_in_the_data_ring_as_the_device_wants_them() {
    let mut bench = Bench::new();
    let segment = Segment { kind: SegmentKind::Tcp, mss: 1460, headers: 54 };
    let offload = Offload { checksum: PARTIAL, segment: Some(segment) };
    assert!(bench.queue.queue(&bench.memory, &tcp(10_000), &offload).unwrap());
    // Offload mode 3, header length 54, MSS in the third word from bit 18.
    assert_eq!(bench.descriptor(0), (bench.queue.data, 1460 << 18 | 0x4000 | 54, 0xc00 | 54));
    assert_eq!(bench.descriptor(3).1, 0x4000 | (10_000 - 2 * 4096));
    assert_eq!(bench.descriptor(3).2, 0x3000);
    let mut headers = [0; 54];
    bench.memory.read(bench.queue.data, &mut headers).unwrap();
    assert_eq!(headers[24..26], [0, 0], "no IP checksum");
    // 10.0.0.1 + 10.0.0.2 + protocol 6, without the length.
    assert_eq!(u16::from_be_bytes([headers[50], headers[51]]), 0x0a00 + 1 + 0x0a00 + 2 + 6);
    // The packet counts as seven frames.
    assert_eq!(bench.memory.window(0, 256, Rights::BOTH).unwrap().load_u32(0), 7);
}

#[test]
fn a_tag_leaves_the_packet_for_the_descriptor_and_offsets_move_with_it() {
    let mut bench = Bench::new();
    let mut packet = tcp(100);
    packet.splice(12..12, [0x81, 0x00, 0x60, 0x2a]);
    let offload = Offload { checksum: Checksum::Partial { start: 38, field: 54 }, segment: None };
    assert!(bench.queue.queue(&bench.memory, &packet, &offload).unwrap());
    // Mode 2, header length 34, checksum at 50; tag insertion is bit 15, the tag above it.
    assert_eq!(bench.descriptor(0), (bench.queue.data, 50 << 18 | 0x4000 | 54, 0x602a_8000 | 0x800 | 34));
    assert_eq!(bench.descriptor(1).1, 0x4000 | 100);
    let mut sent = [0; 54];
    bench.memory.read(bench.queue.data, &mut sent).unwrap();
    assert_eq!(sent[..], tcp(100)[..54]);
}

#[test]
fn the_device_is_told_when_as_many_packets_wait_as_it_asked_for() {
    let mut bench = Bench::new();
    bench.memory.write(4, &[3]).unwrap();
    for expected in [None, None, Some(3)] {
        assert!(bench.queue.queue(&bench.memory, &[0; 60], &Offload::default()).unwrap());
        assert_eq!(bench.queue.doorbell(&bench.memory).unwrap(), expected);
    }
}

#[test]
fn the_first_descriptor_changes_hands_last_and_the_generation_flips_at_the_rings_end() {
    let mut bench = Bench::new();
    let mut sent = 0u32;
    for _ in 0..10 {
        while bench.queue.queue(&bench.memory, &[0; 300], &Offload::default()).unwrap() {
            sent += 1;
        }
        // All queued packets are complete: the completion names the last descriptor.
        let last = (bench.queue.ring.next + 63) % 64;
        let done = bench.queue.done;
        bench.memory.write(done.base + done.at() as u64, &last.to_le_bytes()).unwrap();
        bench.memory.write(done.base + done.at() as u64 + 12, &(done.generation << 31).to_le_bytes()).unwrap();
    }
    // Two descriptors each; one of 64 is always free.
    assert_eq!(sent, 10 * 31);
    assert_eq!(bench.queue.ring.generation, u32::from((sent * 2 / 64).is_multiple_of(2)));
}

#[test]
fn requests_that_the_device_cannot_carry_are_refused() {
    let mut bench = Bench::new();
    let segment = Segment { kind: SegmentKind::Udp, mss: 1460, headers: 42 };
    let udp = Offload { checksum: PARTIAL, segment: Some(segment) };
    let far = Offload { checksum: Checksum::Partial { start: 34, field: 2000 }, segment: None };
    for offload in [udp, far] {
        assert!(bench.queue.queue(&bench.memory, &tcp(3000), &offload).is_err());
    }
    assert!(bench.queue.queue(&bench.memory, &[], &Offload::default()).is_err());
}
