//! Runs of plain packets in a batch.

use std::sync::Arc;

use nicety_adapter::{Batch, Checksum, HEAD_BYTES, Offload, PACKET_BYTES, PACKETS, PortId};
use nicety_memory::{Map, Rights, Translator};

/// Memory whose bytes follow from their addresses.
fn map() -> Arc<Map> {
    let map = Map::private(1 << 18).unwrap();
    let bytes: Vec<u8> = (0..1_u32 << 18).map(|at| (at * 7 + at / 251) as u8).collect();
    map.write(0, &bytes).unwrap();
    Arc::new(map)
}

/// Offers the packet behind a header of twelve bytes.
fn offer(batch: &mut Batch, map: &Map, address: u64, len: u32, cookie: u64) -> bool {
    let mut translator = Translator::new(map);
    let memory = translator.readable(address, 12 + len).unwrap();
    let mut plain = batch.plain();
    let taken = plain.push(memory, 12, cookie, || map.whole(address, 12 + len, Rights::READ));
    plain.end();
    taken
}

#[test]
fn a_run_takes_packets_that_need_no_padding_and_are_not_too_long_with_all_their_bytes() {
    let (map, mut batch) = (map(), Batch::new());
    for len in [59, 60, 64, 65, 128, 129, 1514, PACKET_BYTES, PACKET_BYTES + 1] {
        batch.start(&map, PortId(0), 0);
        let fits = (60..=PACKET_BYTES).contains(&len);
        assert_eq!(offer(&mut batch, &map, 100, len, 7), fits, "{len}");
        let Some(packet) = batch.packets().first() else {
            assert!(!fits && batch.is_empty() && batch.bytes() == 0);
            continue;
        };
        let (mut bytes, mut expected) = (vec![0; len as usize], vec![0; len as usize]);
        map.read(112, &mut expected).unwrap();
        assert_eq!((batch.copy(packet, &mut bytes), bytes), (len as usize, expected));
        assert_eq!((packet.len(), packet.cookie, packet.offload), (len, 7, Offload::default()));
        assert_eq!(usize::from(packet.head_len()), HEAD_BYTES.min(len as usize));
        assert_eq!(batch.bytes(), u64::from(len));
    }
}

#[test]
fn a_run_ends_when_the_batch_is_full_and_goes_on_behind_a_draft() {
    let (map, mut batch) = (map(), Batch::new());
    batch.start(&map, PortId(0), 0);
    let mut draft = batch.draft(0).unwrap();
    draft.push(5000, 300).unwrap();
    draft.finish_plain(0);
    for number in 1..PACKETS as u64 {
        assert!(offer(&mut batch, &map, 200 * number, 100 + number as u32, number));
    }
    assert!(!offer(&mut batch, &map, 0, 64, 0), "it is full");
    assert_eq!(batch.len(), PACKETS);
    for (number, packet) in batch.packets().iter().enumerate().skip(1) {
        let mut expected = vec![0; 100 + number];
        map.read(200 * number as u64 + 12, &mut expected).unwrap();
        assert_eq!(batch.head(packet), &expected[..expected.len().min(HEAD_BYTES)], "packet {number}");
        assert_eq!((packet.cookie, packet.len()), (number as u64, expected.len() as u32));
    }
}

#[test]
fn a_parsed_head_is_never_taken_for_that_of_another_packet() {
    let map = Arc::new(Map::private(1 << 16).unwrap());
    let head = |kind: [u8; 2]| [&[2; 12][..], &kind, &[0x45, 0, 0, 46, 0, 1, 0, 0, 64, 6], &[0; 36]].concat();
    map.write(12, &head([8, 0])).unwrap();
    map.write(1012, &head([8, 6])).unwrap();
    let mut batch = Batch::new();
    batch.start(&map, PortId(0), 0);
    assert!(offer(&mut batch, &map, 0, 60, 0));
    assert!(batch.layout(&batch.packets()[0]).l3.is_some(), "IPv4");
    // The next batch has another packet there.
    batch.start(&map, PortId(0), 0);
    assert!(offer(&mut batch, &map, 1000, 60, 0));
    assert!(batch.layout(&batch.packets()[0]).l3.is_none(), "ARP");
    // A draft whose head was parsed to admit a checksum is given up.
    let mut draft = batch.draft(0).unwrap();
    draft.push(12, 60).unwrap();
    let checksum = Checksum::Partial { start: 34, field: 50 };
    assert!(draft.admit(Offload { checksum, segment: None }).is_ok());
    drop(draft);
    assert!(offer(&mut batch, &map, 1000, 60, 0));
    assert!(batch.layout(&batch.packets()[1]).l3.is_none(), "ARP");
}
