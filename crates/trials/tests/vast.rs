//! A guest of 64 GiB that has used all of its memory: no operation of a device may take longer because of its size.

use std::sync::Arc;

use nicety_adapter::{Offload, RingPlace};
use nicety_adapters::{REGISTRY, find};
use nicety_memory::{Map, Mapping, Rights, count, shared_file};
use nicety_trials::guest::driver;
use nicety_trials::hostile::WORK;
use nicety_trials::random::Random;
use nicety_trials::rig::{MAC, Rig};
use nicety_trials::working;

const GIB: u64 = 1 << 30;
/// Scans of pages, one by one or 64 at a time, would be visible beside [`WORK`].
const BYTES: u64 = 64 * GIB;
const FRAMES: usize = 64;

fn vast() -> Arc<Map> {
    let mapping = Mapping::of_file(shared_file("vast", BYTES).unwrap(), 0, BYTES, true).unwrap();
    mapping.assume_all();
    Arc::new(Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap())
}

fn broadcast() -> (Vec<u8>, Offload) {
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5]].concat();
    frame.resize(60, 0x5a);
    (frame, Offload::default())
}

/// Frames arrive; returns the most work of a step.
fn bring(rig: &mut Rig) -> u64 {
    rig.far.ends().incoming.clear();
    rig.far.ends().outgoing.extend((0..FRAMES).map(|_| broadcast()));
    rig.uplink.ready();
    (0..4).map(|_| (count::take(), rig.step(), count::take()).2).max().unwrap_or(0)
}

fn allow(rig: &Rig) {
    rig.port.config_write(4, &[7, 0], rig.now);
    rig.port.set_link(true, rig.now);
}

#[test]
fn a_frame_costs_no_more_where_all_of_64_gib_exists_however_the_device_was_left() {
    let memory = vast();
    for entry in REGISTRY {
        let name = entry.about.name;
        let mut rig = Rig::around(entry, Arc::clone(&memory), false);
        allow(&rig);
        let as_reset = bring(&mut rig);
        assert!(as_reset <= WORK, "{name} as a reset leaves it: {as_reset} steps");
        let driver = working::begin(name, &mut rig, &mut Random::new(1));
        let at_work = bring(&mut rig);
        assert!(driver.is_none() || at_work <= WORK, "{name} with its driver: {at_work} steps");
    }
}

/// Base, length, head and tail as a reset leaves them, and the receiver on or off (8254x manual, sections 13.4.22 to 13.4.30; 82576
/// datasheet, 8.10.1 to 8.10.9).
#[test]
fn a_ring_of_no_bytes_at_memorys_first_byte_is_no_work() {
    let memory = vast();
    for entry in REGISTRY.iter().filter(|entry| driver(entry.about.name).name == "e1000") {
        for control in [0u32, 0x0400_8002] {
            let mut rig = Rig::around(entry, Arc::clone(&memory), false);
            allow(&rig);
            for (register, value) in [(0, 0x40), (0x2828, 1 << 25), (0x100, control), (0x2818, 255)] {
                rig.port.write(0, register, &u32::to_le_bytes(value), rig.now);
            }
            let work = bring(&mut rig);
            assert!(work <= 1024, "{}, RCTL {control:#x}: {work} steps", entry.about.name);
            assert_eq!(rig.port.state().counters.taken().packets, 0);
        }
    }
}

/// virtio 1.2 limits a buffer only by its length field.
#[test]
fn a_buffer_of_4_gib_is_no_more_work_than_its_frame() {
    const SIZE: u16 = 256;
    let memory = vast();
    for (ring, flags) in [(0, 2u16), (1, 0)] {
        let mut rig = Rig::around(find("virtio-net").unwrap(), Arc::clone(&memory), false);
        let place = RingPlace { size: SIZE, descriptors: 0x1_0000, driver: 0x2_0000, device: 0x3_0000 };
        for index in 0..SIZE {
            let descriptor = [4 * GIB, u64::from(u32::MAX) | u64::from(flags) << 32];
            let at = place.descriptors + 16 * u64::from(index);
            memory.write(at, &descriptor.map(u64::to_le_bytes).concat()).unwrap();
            memory.write(place.driver + 4 + 2 * u64::from(index), &index.to_le_bytes()).unwrap();
        }
        memory.write(place.driver + 2, &SIZE.to_le_bytes()).unwrap();
        memory.write(place.device, &[0; 8]).unwrap();
        rig.port.with_rings(rig.now, |face, cx| {
            assert!(face.take_features(1 << 32) && face.place(ring, place) && face.start(ring, 0, cx));
            face.enable(ring, true, cx);
        });
        count::take();
        rig.port.with_rings(rig.now, |face, cx| face.kick(ring, cx));
        let work = count::take().max(bring(&mut rig));
        assert!(work <= WORK, "ring {ring}: {work} steps");
        let counters = rig.port.state().counters;
        let (taken, dropped) = (counters.taken().packets, counters.transmit_drops.iter().sum::<u64>());
        if ring == 0 {
            assert_eq!(taken, FRAMES as u64, "they hold a frame each, for {MAC:?}");
        } else {
            assert!(dropped > 0, "no packet is that long");
        }
    }
}

/// A ring may be where no page exists, and each of its descriptors is read there.
#[test]
fn a_number_in_a_hole_is_read_by_one_look_and_one_read_of_the_file() {
    let mapping = Mapping::of_file(shared_file("hole", GIB).unwrap(), 0, GIB, true).unwrap();
    let map = Map::default().with(0, Arc::new(mapping), Rights::BOTH).unwrap();
    let window = map.window(0, 1 << 20, Rights::BOTH).unwrap();
    count::take();
    assert_eq!((window.load_u64(8), count::take()), (0, 2));
    window.store_u64(8, 7);
    count::take();
    assert_eq!((window.load_u64(8), count::take()), (7, 0), "it is there now");
}
