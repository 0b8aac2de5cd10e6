//! Descriptors against the datasheet's figures 3-9 to 3-13. The numbers are written here again.

use nicety_adapter::{Segment, SegmentKind};

use super::*;

/// A TCP packet over IPv4 with 20 + 20 bytes of headers and this much payload.
fn tcp(payload: usize) -> Vec<u8> {
    let mut packet = vec![0; 54 + payload];
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    packet[14] = 0x45;
    packet[16..18].copy_from_slice(&((40 + payload) as u16).to_be_bytes());
    packet[23] = 6;
    packet[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[46] = 0x50;
    packet
}

const PARTIAL: Checksum = Checksum::Partial { start: 34, field: 50 };

#[test]
fn a_checksum_takes_a_context_with_the_offsets_in_bytes_four_and_five() {
    let request = Request::of(&tcp(100), &Offload { checksum: PARTIAL, segment: None }).unwrap();
    let (offsets, third, fourth) = request.context.unwrap();
    assert_eq!(offsets.to_le_bytes(), [0, 0, 0, 0, 34, 50, 0, 0]);
    // DEXT is bit 5 of the command byte. DTYP 0 means context. No segmentation.
    assert_eq!((third >> 29 & 1, third >> 20 & 0xf, third >> 26 & 1, third & 0xf_ffff, fourth), (1, 0, 0, 0, 0));
    // The data descriptor: DTYP 1, DEXT, IFCS; TXSM is bit 1 of POPTS.
    assert_eq!((request.command, request.options), (0x0010_0000 | 0x2200_0000, 0x200));
}

#[test]
fn segmentation_zeroes_lengths_and_leaves_the_length_out_of_the_pseudo_header() {
    let segment = Segment { kind: SegmentKind::Tcp, mss: 1460, headers: 54 };
    let request = Request::of(&tcp(10_000), &Offload { checksum: PARTIAL, segment: Some(segment) }).unwrap();
    let (offsets, third, fourth) = request.context.unwrap();
    assert_eq!(offsets.to_le_bytes(), [14, 24, 33, 0, 34, 50, 0, 0]);
    assert_eq!(third & 0xf_ffff, 10_000);
    // TSE, IP and TCP.
    assert_eq!(third >> 24 & 0x07, 0b111);
    assert_eq!(fourth, 1460 << 16 | 54 << 8);
    let (head, len) = request.head.unwrap();
    assert_eq!((len, &head[16..18], &head[24..26]), (54, &[0, 0][..], &[0, 0][..]));
    // 10.0.0.1 + 10.0.0.2 + protocol 6, in ones' complement.
    assert_eq!(u16::from_be_bytes([head[50], head[51]]), 0x0a00 + 1 + 0x0a00 + 2 + 6);
}

#[test]
fn a_full_ring_refuses_and_has_room_again_when_the_device_has_written_back() {
    let memory = Map::private(2 << 20).unwrap();
    let mut arena = Arena::new(0, 2 << 20);
    let mut transmit = Transmit::new(&memory, &mut arena).unwrap();
    let mut moderation = Moderation::default();
    let plain = Offload::default();
    let mut queued = 0;
    while transmit.queue(&memory, &[0; 60], &plain, &mut moderation).unwrap() {
        queued += 1;
    }
    // One descriptor is never used; one is reserved for a context.
    assert_eq!(queued, 254);
    assert_eq!(transmit.doorbell(), Some(254));
    assert_eq!(transmit.doorbell(), None);
    for index in 0..10 {
        memory.write(transmit.ring + index * 16 + 12, &[1]).unwrap();
    }
    assert!(transmit.queue(&memory, &[0; 60], &plain, &mut moderation).unwrap());
    assert_eq!(transmit.room(), 10);
}
