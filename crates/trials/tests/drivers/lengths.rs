//! Frames of every length at which the treatment changes, and of impossible lengths. Each arrives unchanged or is counted once with
//! a reason, and the next one passes.

use nicety_adapter::{Offload, Reason};
use nicety_trials::rig::MAC;

use crate::{PEER, World, all};

/// Nothing, half a header, a header, around Ethernet's minimum and maximum with and without a tag, jumbo, 16 KB, the maximum of
/// IP's length field, and one byte more.
const LENGTHS: [usize; 13] = [0, 13, 14, 59, 60, 1514, 1515, 1518, 1522, 9018, 16 << 10, 65_535, 64 << 10];
/// Lengths that every adapter carries with an MTU of 1500.
const ALWAYS: std::ops::RangeInclusive<usize> = 14..=1514;

/// A frame of an experimental protocol (IEEE 802, "local experimental"), cut to this length.
fn frame(to: [u8; 6], from: [u8; 6], len: usize, mark: u8) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5]].concat();
    bytes.extend((14..).map(|at: usize| (at as u8).wrapping_mul(7) ^ mark).take(len.max(14) - 14));
    bytes.truncate(len);
    bytes
}

/// Whether this is that frame, perhaps padded to Ethernet's minimum.
fn same(came: &[u8], sent: &[u8]) -> bool {
    came.len() <= sent.len().max(60) && came.starts_with(sent) && came[sent.len()..].iter().all(|byte| *byte == 0)
}

fn sum(drops: &[u64; Reason::ALL.len()]) -> u64 {
    drops.iter().sum()
}

/// Dropped frames in both directions, at both ports.
fn dropped(world: &World) -> u64 {
    let counters = [world.rig.port.state().counters, world.rig.uplink.state().counters];
    counters.iter().map(|counters| sum(&counters.transmit_drops) + sum(&counters.receive_drops)).sum()
}

/// Sends a frame; `None` if the driver refuses it, as Linux's would. No driver makes a descriptor for zero bytes.
fn sent(world: &mut World, packet: &[u8]) -> Option<Vec<Vec<u8>>> {
    if packet.is_empty() {
        return None;
    }
    let queued = world.guest.queue(packet, &Offload::default());
    queued.ok().filter(|queued| *queued)?;
    world.guest.flush().unwrap();
    world.run();
    Some(world.out().into_iter().map(|(bytes, _)| bytes).collect())
}

fn arrived(world: &mut World, packet: &[u8]) -> Vec<Vec<u8>> {
    world.arrive(packet.to_vec(), Offload::default());
    world.run();
    world.took().into_iter().map(|(bytes, _)| bytes).collect()
}

/// The frame arrived once and unchanged, or was dropped once.
fn judge(what: &str, len: usize, packet: &[u8], came: &[Vec<u8>], drops: u64) {
    let must = ALWAYS.contains(&len);
    match came {
        [one] => assert!(same(one, packet) && drops == 0, "{what}: {} bytes came of {len}, {drops} drops", one.len()),
        [] => assert!(drops == 1 && !must, "{what}: {len} bytes went nowhere, {drops} drops"),
        more => panic!("{what}: {len} bytes came {} times", more.len()),
    }
}

#[test]
fn a_frame_of_any_length_arrives_whole_or_is_counted_and_the_next_one_passes() {
    for name in all() {
        for whole in [false, true] {
            let mut world = World::new(name, whole);
            world.rude = true;
            for (number, len) in LENGTHS.into_iter().enumerate() {
                let mark = number as u8;
                let (away, back) = (frame(PEER, MAC.0, len, mark), frame(MAC.0, PEER, len, mark));
                let before = dropped(&world);
                match sent(&mut world, &away) {
                    Some(came) => judge(&format!("{name} sends"), len, &away, &came, dropped(&world) - before),
                    None => assert!(!ALWAYS.contains(&len), "{name}: the driver refuses {len} bytes"),
                }
                let before = dropped(&world);
                let came = arrived(&mut world, &back);
                judge(&format!("{name} receives"), len, &back, &came, dropped(&world) - before);
                let (away, back) = (frame(PEER, MAC.0, 60, mark), frame(MAC.0, PEER, 60, mark));
                assert_eq!(sent(&mut world, &away), Some(vec![away]), "{name}, after {len} bytes");
                assert_eq!(arrived(&mut world, &back), [back], "{name}, after {len} bytes");
            }
        }
    }
}
