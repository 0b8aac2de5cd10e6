//! Offloads that a batch accepts: only those that change nothing that the switch judges.

use std::sync::Arc;

use nicety_adapter::{Batch, Checksum, Offload, PortId, Reason, Segment, SegmentKind};
use nicety_memory::Map;

const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// Drafts a frame from guest memory in pieces of `step` bytes.
fn offer(frame: &[u8], step: usize, offload: Offload) -> Result<Batch, Reason> {
    let map = Arc::new(Map::private(1 << 17).unwrap());
    let mut batch = Batch::new();
    batch.start(&map, PortId(0), 0);
    let mut draft = batch.draft(0).unwrap();
    for (i, piece) in frame.chunks(step).enumerate() {
        let at = (i * (step + 3)) as u64;
        map.write(at, piece).unwrap();
        draft.push(at, piece.len() as u32).unwrap();
    }
    draft.finish(offload, 0).map(|()| batch)
}

fn partial(start: u16, field: u16) -> Offload {
    Offload { checksum: Checksum::Partial { start, field }, segment: None }
}

fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + payload.len() as u16).to_be_bytes();
    let header = [0x45, 0, high, low, 0, 1, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    [&header[..], payload].concat()
}

fn tcp(payload: usize) -> Vec<u8> {
    let header = [3, 232, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 4, 0, 0, 0, 0, 0];
    [&header[..], &(0..payload).map(|i| (i * 7 + i / 251) as u8).collect::<Vec<u8>>()].concat()
}

fn ethernet(types: &[u8], payload: &[u8]) -> Vec<u8> {
    [&ADDRESSES, types, payload].concat()
}

/// The folded sum (RFC 1071, section 4.1).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

#[test]
fn the_checksum_of_the_transport_header_is_left_to_the_receiver() {
    let frame = ethernet(&[8, 0], &ipv4(6, &tcp(500)));
    let batch = offer(&frame, 600, partial(34, 50)).unwrap();
    assert_eq!(batch.packets()[0].offload, partial(34, 50));
    assert_eq!(batch.head(&batch.packets()[0]), &frame[..128]);
}

#[test]
fn a_checksum_anywhere_else_in_the_headers_is_refused_and_leaves_the_batch_as_it_was() {
    let frame = ethernet(&[8, 0], &ipv4(6, &tcp(500)));
    let places = (0..54).flat_map(|start| (start..54).map(move |field| (start, field)));
    for (start, field) in places.filter(|places| *places != (34, 50)).chain([(34, 60), (53, 54), (60, 54)]) {
        assert_eq!(offer(&frame, 600, partial(start, field)).unwrap_err(), Reason::BadOffload, "{start} {field}");
    }
    let map = Arc::new(Map::private(4096).unwrap());
    map.write(0, &frame).unwrap();
    let mut batch = Batch::new();
    batch.start(&map, PortId(0), 0);
    for (offload, taken) in [(partial(14, 24), 0), (partial(34, 50), 1), (partial(0, 10), 1), (Offload::default(), 2)] {
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        let _result = draft.finish(offload, 7);
        assert_eq!((batch.len(), batch.bytes()), (taken, taken as u64 * frame.len() as u64));
    }
    assert!(batch.packets().iter().all(|packet| batch.head(packet) == &frame[..128] && packet.cookie == 7));
}

#[test]
fn a_checksum_behind_all_that_was_understood_is_made_before_anybody_judges() {
    // RFC 2784: GRE with its checksum, of an IPv4 packet. RFC 2003: IP in IP.
    let gre = [&[0x80, 0, 8, 0, 0, 0, 0, 0][..], &ipv4(6, &tcp(900))].concat();
    let gre = ethernet(&[8, 0], &ipv4(47, &gre));
    let ip_in_ip = ethernet(&[8, 0], &ipv4(4, &ipv4(6, &tcp(901))));
    for (frame, start, field) in [(gre, 34, 38), (ip_in_ip, 54, 70)] {
        for step in [7, 100, 128, 2000] {
            let batch = offer(&frame, step, partial(start, field)).unwrap();
            let packet = &batch.packets()[0];
            assert_eq!(packet.offload, Offload::default());
            let (start, field) = (usize::from(start), usize::from(field));
            let mut expected = frame[..128].to_vec();
            expected[field..field + 2].copy_from_slice(&(!sum(&frame[start..])).to_be_bytes());
            assert_eq!(batch.head(packet), expected, "in pieces of {step} bytes");
        }
    }
}

#[test]
fn a_packet_is_cut_only_as_its_own_headers_say() {
    let frame = ethernet(&[8, 0], &ipv4(6, &tcp(3000)));
    let cut = |kind, headers, start, field| Offload {
        segment: Some(Segment { kind, mss: 1000, headers }),
        ..partial(start, field)
    };
    let right = cut(SegmentKind::Tcp, 54, 34, 50);
    assert_eq!(offer(&frame, 4000, right).unwrap().packets()[0].offload, right);
    let mut fragment = frame.clone();
    fragment[20] = 0x20;
    for (frame, wrong) in [
        (&frame, cut(SegmentKind::Udp, 54, 34, 50)),
        (&frame, cut(SegmentKind::Tunnel, 54, 34, 50)),
        (&frame, cut(SegmentKind::Tcp, 53, 34, 50)),
        (&frame, cut(SegmentKind::Tcp, 66, 34, 50)),
        (&frame, cut(SegmentKind::Tcp, 54, 34, 40)),
        (&frame, cut(SegmentKind::Tcp, 54, 60, 76)),
        (&frame, Offload { checksum: Checksum::AsIs, ..right }),
        (&fragment, right),
    ] {
        assert_eq!(offer(frame, 4000, wrong).unwrap_err(), Reason::BadOffload, "{wrong:?}");
    }
}
