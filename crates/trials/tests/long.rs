//! Rings of the maximum length, and chains that fill them or have the maximum length: of good buffers, of one byte each, or with a
//! wrong one at their end. The work of every turn is bounded, a dropped packet costs its port a minimum, and no frame is lost
//! uncounted.

use nicety_adapter::{Offload, RingPlace};
use nicety_adapters::find;
use nicety_memory::count;
use nicety_plane::Turn;
use nicety_trials::hostile::{WORK, ledger};
use nicety_trials::rig::Rig;

const MEMORY: usize = 4 << 20;
/// The longest ring (virtio 1.2, section 2.7; the 8254x's lengths have 20 bits, its descriptors 16 bytes), and its address.
const SIZE: u16 = 32768;
const TABLE: u64 = 0x10_0000;
const PLACE: RingPlace = RingPlace { size: SIZE, descriptors: TABLE, driver: 0x20_0000, device: 0x22_0000 };
/// Address of the buffers in descriptors.
const BUFFERS: u64 = 0x30_0000;
const WRITE: u16 = 2;
/// virtio 1.2: VIRTIO_F_VERSION_1 and VIRTIO_NET_F_MRG_RXBUF.
const PLAIN: u128 = 1 << 32;
const MERGING: u128 = PLAIN | 1 << 15;
/// Least cost of a dropped packet to its port, in bytes: about a short frame.
const DROP_COST: u64 = 256;
/// Steps of each trial.
const STEPS: u64 = 30;

/// Writes descriptors in chains of `chain`, each of `len` bytes; the last of a chain has the flags `last` in addition.
fn fill(rig: &Rig, chain: u16, len: u32, flags: u16, last: u16) {
    let mut table = Vec::new();
    for index in 0..SIZE {
        let more = (index + 1) % chain != 0 && index + 1 < SIZE;
        let flags = if more { flags | 1 } else { flags | last };
        let next = if more { index + 1 } else { 0 };
        table.extend(BUFFERS.wrapping_add(u64::from(index)).to_le_bytes());
        table.extend(len.to_le_bytes());
        table.extend([flags, next].map(u16::to_le_bytes).concat());
    }
    rig.memory.write(TABLE, &table).unwrap();
    let heads: Vec<u8> = (0..SIZE).flat_map(|entry| (entry / chain * chain).to_le_bytes()).collect();
    rig.memory.write(PLACE.driver + 4, &heads).unwrap();
}

/// A virtio-net driver with the long ring as its first receive ring (0) or transmit ring (1).
fn guest(ring: u16, features: u128) -> Rig {
    let rig = Rig::new(find("virtio-net").unwrap(), MEMORY, false);
    rig.port.with_rings(rig.now, |face, cx| {
        assert!(face.take_features(features) && face.place(ring, PLACE) && face.start(ring, 0, cx));
        face.enable(ring, true, cx);
    });
    rig
}

/// Makes a whole ring of entries available, whether or not earlier ones returned.
fn add(rig: &Rig, ring: u16) {
    let mut used = [0; 2];
    rig.memory.read(PLACE.device + 2, &mut used).unwrap();
    let index = u16::from_le_bytes(used).wrapping_add(SIZE);
    rig.memory.write(PLACE.driver + 2, &index.to_le_bytes()).unwrap();
    rig.port.with_rings(rig.now, |face, cx| face.kick(ring, cx));
}

/// Runs one turn of either port. Checks that its work is bounded and paid for, and its frames are counted. Returns the cost to the
/// adapter's port.
fn step(rig: &mut Rig, what: &str) -> u64 {
    let (mut turn, mut costs) = (Turn::new(), [0; 2]);
    for port in [rig.port.clone(), rig.uplink.clone()] {
        loop {
            let dropped = port.state().counters.transmit_drops.iter().sum::<u64>();
            count::take();
            let outcome = rig.plane.turn(&port, &mut turn, rig.now);
            let work = count::take();
            assert!(work <= WORK, "{what}: {work} accesses in a turn");
            rig.entered[usize::from(port.id().0)] += outcome.packets as u64;
            let dropped = port.state().counters.transmit_drops.iter().sum::<u64>() - dropped;
            costs[usize::from(port.id().0)] += outcome.cost;
            assert!(outcome.cost >= DROP_COST * dropped, "{what}: {dropped} dropped for {}", outcome.cost);
            if !outcome.unfinished {
                break;
            }
        }
    }
    assert_eq!(ledger::imbalance(rig), None, "{what}");
    rig.far.ends().incoming.clear();
    rig.now = rig.now.after_ns(100_000);
    costs[usize::from(rig.port.id().0)]
}

fn broadcast(len: usize) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5]].concat();
    frame.resize(len, 0x5a);
    frame
}

#[test]
fn long_chains_to_send_are_walked_a_few_in_each_turn() {
    for chain in [1, 19, 240, 1000, 1024, 1025, SIZE] {
        for (len, last) in [(1, WRITE), (1, 0), (100, 0), (100, WRITE), (70_000, 0)] {
            let what = format!("chains of {chain}, {len} bytes each, the last with flags {last}");
            let mut rig = guest(1, PLAIN);
            fill(&rig, chain, len, 0, last);
            let mut cost = 0;
            for _ in 0..STEPS {
                add(&rig, 1);
                cost += step(&mut rig, &what);
            }
            let state = rig.port.state();
            let passed = state.counters.transmitted().packets + state.counters.transmit_drops.iter().sum::<u64>();
            match chain {
                // With longer buffers, the packet has too many pieces or bytes before the chain is too long.
                1025.. if len == 1 => {
                    assert_eq!((passed, state.stalls.len()), (0, 1), "{what}");
                }
                // Three of them are walked in a turn, and dropped.
                1000 if (len, last) == (1, WRITE) => {
                    assert_eq!(passed, 3 * STEPS, "{what}");
                    assert!(cost > STEPS * 3000 * 16, "{what}: {cost} bytes charged");
                }
                _ => assert!(passed >= STEPS && state.stalls.is_empty(), "{what}: {passed} chains"),
            }
        }
    }
}

#[test]
fn long_chains_to_receive_into_are_walked_a_few_in_each_turn() {
    for (features, chain, len) in [PLAIN, MERGING]
        .into_iter()
        .flat_map(|features| [1, 19, 240, 1000, 1024, 1025, SIZE].map(|chain| (features, chain)))
        .flat_map(|(features, chain)| [1, 20, 2048].map(|len| (features, chain, len)))
    {
        for frame in [60, 700, 1514] {
            let what = format!("features {features:x}, chains of {chain}, {len} bytes each, frames of {frame}");
            let mut rig = guest(0, features);
            fill(&rig, chain, len, WRITE, 0);
            for _ in 0..STEPS {
                add(&rig, 0);
                let room = 64usize.saturating_sub(rig.far.ends().outgoing.len());
                rig.far.ends().outgoing.extend((0..room).map(|_| (broadcast(frame), Offload::default())));
                rig.uplink.ready();
                step(&mut rig, &what);
            }
            let state = rig.port.state();
            // Buffers that do not join are too many pieces before the chain is too long.
            assert_eq!(state.stalls.len(), usize::from(chain > 1024 && len == 1), "{what}");
        }
    }
}

/// Legacy and data descriptors without an end of packet, or with one in each (8254x manual, sections 3.3.3 and 13.4.33 to 13.4.38;
/// the 82576 has the same registers as aliases). A full ring, and one with two missing descriptors: the rest may still come.
#[test]
fn a_chip_with_a_long_ring_walks_a_part_of_it_in_each_turn() {
    const END: u64 = 1 << 24;
    const DATA: u64 = 3 << 20 | 1 << 29;
    let commands = [0, END, DATA, DATA | END].into_iter().flat_map(|command| [0, 1].map(|len| command | len));
    for (name, command) in
        ["e1000", "e1000e", "igb"].into_iter().flat_map(|name| commands.clone().map(move |c| (name, c)))
    {
        for missing in [1, 3] {
            let what = format!("{name}, command {command:x}, {missing} missing");
            let mut rig = Rig::new(find(name).unwrap(), MEMORY, false);
            rig.port.config_write(4, &[7, 0], rig.now);
            rig.port.set_link(true, rig.now);
            let descriptor = [BUFFERS, command].map(u64::to_le_bytes).concat();
            rig.memory.write(TABLE, &descriptor.repeat(SIZE.into())).unwrap();
            let write = |rig: &Rig, register, value: u32| rig.port.write(0, register, &value.to_le_bytes(), rig.now);
            let registers =
                [(0, 0x40), (0x3800, TABLE as u32), (0x3804, 0), (0x3808, 16 * u32::from(SIZE)), (0x3810, 0)];
            for (register, value) in registers.into_iter().chain([(0x3828, 1 << 25), (0x400, 0x0103_f0fa)]) {
                write(&rig, register, value);
            }
            let mut cost = 0;
            for _ in 0..STEPS {
                write(&rig, 0x3818, u32::from(SIZE) - missing);
                cost += step(&mut rig, &what);
            }
            assert!(cost >= 16 * u64::from(SIZE - 3), "{what}: {cost} bytes charged");
        }
    }
}
