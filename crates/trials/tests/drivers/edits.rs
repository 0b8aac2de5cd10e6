//! The switch's changes to a frame's VLAN tags arrive at every adapter, whether or not it takes the packet whole.

use std::sync::Arc;

use nicety_adapter::{Batch, Checksum, Edit, Frames, Offload, Pick, PortId, Segment, SegmentKind};
use nicety_frame::{Tag, Tci, vlan};
use nicety_memory::Map;
use nicety_trials::rig::MAC;

use crate::packets::{HEADERS, PARTIAL, is_right, partial};
use crate::{PEER, World, all};

const MSS: usize = 1000;

/// A TCP packet with these tags, in a batch as a sender's adapter builds it.
fn batch(stack: &[Tag], payload: usize) -> (Batch, Vec<u8>) {
    let packet = partial(MAC.0, PEER, payload, 3);
    let mut tagged = packet.clone();
    tagged.splice(12..12, stack.iter().flat_map(|tag| tag.to_bytes()));
    let shift = 4 * stack.len() as u16;
    let Checksum::Partial { start, field } = PARTIAL else { unreachable!() };
    let headers = HEADERS as u16 + shift;
    let segment = (payload > MSS).then_some(Segment { kind: SegmentKind::Tcp, mss: MSS as u16, headers });
    let checksum = Checksum::Partial { start: start + shift, field: field + shift };
    let map = Arc::new(Map::private(1 << 16).unwrap());
    map.write(0, &tagged).unwrap();
    let mut batch = Batch::new();
    batch.start(&map, PortId(9), 0);
    let mut draft = batch.draft(usize::from(headers)).unwrap();
    draft.push(0, tagged.len() as u32).unwrap();
    draft.finish(Offload { checksum, segment }, 0).unwrap();
    (batch, packet)
}

#[test]
fn every_edit_arrives_at_every_adapter() {
    let (priority, customer, service) =
        (Tag::customer(Tci(0xa000)), Tag::customer(Tci(0x6005)), Tag::service(Tci(0x2064)));
    let stacks = [vec![], vec![priority], vec![customer], vec![service], vec![service, customer]];
    let edits =
        [Edit::Keep, Edit::Untag, Edit::Tag(customer), Edit::Tag(service), Edit::Retag(customer), Edit::Retag(service)];
    for name in all() {
        let mut world = World::new(name, true);
        world.guest.join_vlan(customer.tci.id()).unwrap();
        for (stack, payload) in stacks.iter().flat_map(|stack| [(stack, 700), (stack, 5 * MSS + 7)]) {
            let (batch, packet) = batch(stack, payload);
            for edit in edits {
                let mut expected = stack.clone();
                match edit {
                    Edit::Keep => {}
                    Edit::Untag => drop(expected.drain(..1.min(stack.len()))),
                    Edit::Tag(tag) => expected.insert(0, tag),
                    Edit::Retag(tag) => drop(expected.splice(..1.min(stack.len()), [tag])),
                }
                let picks = [Pick { edit, ..Pick::whole(0) }];
                let frames = Frames::new(&batch, &picks);
                let delivery = world.rig.port.with(world.rig.now, |adapter, cx| adapter.deliver(&frames, cx)).unwrap();
                assert_eq!(delivery.refused(), 0);
                world.beside += 1;
                world.run();
                let mut came = Vec::new();
                for (frame, about) in world.took() {
                    let tags: Vec<Tag> = vlan::stack(&frame).collect();
                    assert_eq!(tags, expected, "{name}: {stack:?}, {edit:?}, {payload} bytes");
                    let frame = [&frame[..12], &frame[12 + 4 * tags.len()..]].concat();
                    assert!(about.frames > 1 || is_right(&frame) || about.checksum_good, "{name}: {edit:?}");
                    came.extend_from_slice(&frame[HEADERS..]);
                }
                assert!(came == packet[HEADERS..], "{name}: {stack:?}, {edit:?}: its payload");
            }
        }
    }
}

#[test]
fn a_frame_that_loses_its_tag_is_padded_to_ethernet_s_shortest() {
    // IEEE 802.3, 3.2.8: 64 bytes with the check sequence. A tagged frame of that size is four bytes shorter without its tag.
    let tag = Tag::customer(Tci(0x6005));
    for name in all() {
        let mut world = World::new(name, true);
        world.guest.join_vlan(tag.tci.id()).unwrap();
        for payload in [2, 4, 5, 6, 7] {
            let (batch, packet) = batch(&[tag], payload);
            let picks = [Pick { edit: Edit::Untag, ..Pick::whole(0) }];
            world
                .rig
                .port
                .with(world.rig.now, |adapter, cx| adapter.deliver(&Frames::new(&batch, &picks), cx))
                .unwrap();
            world.beside += 1;
            world.run();
            let (frame, about) = world.took().remove(0);
            assert_eq!(frame.len(), packet.len().max(60), "{name}");
            assert!(is_right(&frame) || about.checksum_good, "{name}");
            assert_eq!(frame[HEADERS..packet.len()], packet[HEADERS..], "{name}");
            assert!(frame[packet.len()..].iter().all(|byte| *byte == 0), "{name}");
        }
    }
}

#[test]
fn a_queue_for_which_older_frames_wait_refuses_newer_ones() {
    for name in all() {
        let mut world = World::new(name, true);
        let (batch, _) = batch(&[], 700);
        let picks = [Pick::whole(0), Pick { from: 0, ..Pick::whole(0) }];
        let mut frames = Frames::new(&batch, &picks);
        frames.held.insert(0);
        let delivery = world.rig.port.with(world.rig.now, |adapter, cx| adapter.deliver(&frames, cx)).unwrap();
        assert_eq!(delivery.again(&picks).collect::<Vec<_>>(), picks, "{name}");
        world.run();
        assert!(world.took().is_empty(), "{name}");
    }
}
