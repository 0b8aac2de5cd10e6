//! Rings at wrong addresses: at no memory, overlapping each other, at the device's own registers, at the far end of memory. Each
//! adapter's memory changes so under a working driver; some families' rings are also placed there by a hostile driver. The work of
//! every step is bounded, no frame is lost uncounted, and after a reset the same device serves a correct driver.

use std::sync::Arc;

use nicety_adapter::{Offload, Reset, RingPlace};
use nicety_adapters::{Entry, REGISTRY};
use nicety_memory::{Files, Map, Rights, count, shared_file};
use nicety_trials::guest::driver;
use nicety_trials::hostile::{WORK, ledger};
use nicety_trials::random::Random;
use nicety_trials::rig::{MAC, Rig};
use nicety_trials::working::{self, MEMORY, Working};

/// Addresses of BAR 0 and BAR 1: outside of RAM, as firmware places them.
const BARS: [u64; 2] = [0xfebc_0000, 0xfebd_0000];
/// An odd address in RAM, for all rings at once.
const SAME: u64 = 0x3_0000;
/// Frames that arrive meanwhile.
const FRAMES: u64 = 40;
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// Descriptions of the wrong places, and addresses of two rings for each.
fn places() -> [(&'static str, [u64; 2]); 6] {
    [
        ("nothing", [1 << 40, 1 << 41]),
        ("each other", [SAME, SAME]),
        ("each other, half way", [SAME, SAME + 64]),
        ("the device's registers", BARS),
        ("the last bytes of memory", [MEMORY as u64 - 16, MEMORY as u64 - 64]),
        ("the end of the address space", [u64::MAX - 15, u64::MAX - 127]),
    ]
}

fn write32(rig: &Rig, bar: u8, offset: u64, value: u32) {
    rig.port.write(bar, offset, &value.to_le_bytes(), rig.now);
}

/// Families whose rings [`misplace`] can place, by their drivers.
const TOLD: [&str; 3] = ["e1000", "vmxnet3", "virtio-net"];

/// Places the device's transmit and receive ring at these addresses, full of work.
fn misplace(adapter: &str, rig: &Rig, [transmit, receive]: [u64; 2]) {
    match driver(adapter).name {
        "e1000" => {
            // RCTL and TCTL as Linux sets them; base, length, head and tail (8254x manual, sections 13.4.22 to 13.4.38).
            for (ring, base, control, on) in
                [(0x2800, receive, 0x100, 0x0400_8002), (0x3800, transmit, 0x400, 0x0103_f0fa)]
            {
                let registers = [(0, base as u32), (4, (base >> 32) as u32), (8, 4096), (0x10, 0)];
                registers.iter().for_each(|(offset, value)| write32(rig, 0, ring + offset, *value));
                write32(rig, 0, control, on);
                write32(rig, 0, ring + 0x18, 255);
            }
        }
        "vmxnet3" => {
            // The queue descriptors of the working driver at 0x2000 (crates/trials/src/working/vmxnet3.rs): rings, completion
            // rings, data ring. Then quiesce, and activate again.
            for (queue, bases) in [(0x2000, [transmit, receive]), (0x2100, [receive, transmit])] {
                for (offset, base) in [(16, bases[0]), (24, bases[0]), (32, bases[1]), (48, bases[0])] {
                    // In bounds.
                    rig.memory.write(queue + offset, &base.to_le_bytes()).unwrap();
                }
            }
            for command in [0xcafe_0001u32, 0xcafe_0000] {
                write32(rig, 1, 0x20, command);
            }
            [(0x600, 32), (0x800, 32), (0xa00, 32)]
                .iter()
                .for_each(|(doorbell, value)| write32(rig, 0, *doorbell, *value));
        }
        _ => {
            rig.port.with_rings(rig.now, |face, cx| {
                for (ring, at, other) in [(0, receive, transmit), (1, transmit, receive)] {
                    face.stop(ring, cx);
                    let place = RingPlace { size: 256, descriptors: at, driver: other, device: at };
                    // The device may refuse or accept it: both must be harmless.
                    let _ = face.place(ring, place) && face.start(ring, 0, cx);
                    face.enable(ring, true, cx);
                    face.kick(ring, cx);
                }
            });
        }
    }
}

fn bring_up(entry: &'static Entry, rig: &mut Rig) -> Box<dyn Working> {
    rig.port.config_write(4, &[7, 0], rig.now);
    rig.port.set_link(true, rig.now);
    let working = working::begin(entry.about.name, rig, &mut Random::new(seed(entry)));
    working.unwrap_or_else(|| panic!("{} comes up", entry.about.name))
}

/// A seed whose features let a plain frame of 300 bytes pass in both directions.
fn seed(entry: &'static Entry) -> u64 {
    let passes = |seed: &u64| {
        let mut rig = Rig::new(entry, MEMORY, false);
        rig.port.config_write(4, &[7, 0], rig.now);
        rig.port.set_link(true, rig.now);
        working::begin(entry.about.name, &mut rig, &mut Random::new(*seed)).is_some_and(|driver| both_ways(rig, driver))
    };
    (0..100).find(passes).unwrap_or_else(|| panic!("{} comes up", entry.about.name))
}

/// Whether a frame passes in each direction.
fn both_ways(mut rig: Rig, mut driver: Box<dyn Working>) -> bool {
    rig.far.ends().incoming.clear();
    let before = rig.port.state().counters.taken().packets;
    let sent = driver.send(&mut rig, &frame(PEER, MAC.0), &Offload::default());
    rig.far.ends().outgoing.push_back((frame(MAC.0, PEER), Offload::default()));
    rig.pass(10_000_000);
    sent && rig.far.ends().incoming.len() == 1 && rig.port.state().counters.taken().packets == before + 1
}

fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut bytes = [&to[..], &from, &[0x88, 0xb5]].concat();
    bytes.resize(300, 0x5a);
    bytes
}

/// Runs one step. Checks that its work is bounded and its frames are counted.
fn step(rig: &mut Rig, what: &str, act: impl FnOnce(&mut Rig)) {
    count::take();
    act(rig);
    let work = count::take();
    assert!(work <= WORK, "{what}: {work} accesses");
    assert_eq!(ledger::imbalance(rig), None, "{what}");
}

/// A guest's memory with the driver's ring at `ring`, and the memories that replace it.
fn memories(ring: u64) -> (Arc<Map>, [(&'static str, Arc<Map>); 3]) {
    let (file, files) = (shared_file("guest", MEMORY as u64).unwrap(), Files::new(4));
    let piece = |offset, len| files.piece(file.try_clone().unwrap(), offset, len, true).unwrap();
    let page = |at: u64| piece(at & !0xfff, 0x1000);
    let pages = (0..MEMORY as u64).step_by(0x1000);
    let folded = pages.fold(Map::default(), |map, base| map.with(base, page(ring), Rights::BOTH).unwrap());
    let cut = Map::default().with(0, piece(0, ring + 24), Rights::BOTH).unwrap();
    let whole = Map::default().with(0, piece(0, MEMORY as u64), Rights::BOTH).unwrap();
    let others = [
        ("is gone", Map::empty()),
        ("ends in a ring", Arc::new(cut)),
        ("is one page again and again", Arc::new(folded)),
    ];
    (Arc::new(whole), others)
}

fn contents(memory: &Map) -> Vec<u8> {
    let mut bytes = vec![0; MEMORY];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn memory_that_goes_under_a_driver_or_is_one_page_again_and_again_harms_nobody_and_a_reset_mends_it() {
    for entry in REGISTRY {
        let mut rig = Rig::new(entry, MEMORY, false);
        let ring = bring_up(entry, &mut rig).shared()[0].0;
        let (whole, others) = memories(ring);
        for (what, memory) in others {
            let name = entry.about.name;
            let what = format!("{name}, whose memory {what}");
            let mut rig = Rig::around(entry, Arc::clone(&whole), false);
            let mut driver = bring_up(entry, &mut rig);
            let original = contents(&whole);
            rig.far.ends().outgoing.push_back((frame(MAC.0, PEER), Offload::default()));
            rig.pass(1_000_000);
            driver.attend(&mut rig);
            // A device that stores frames itself needs no guest memory.
            let reaches_memory = contents(&whole) != original;
            let before = rig.port.state().counters.taken().packets;
            step(&mut rig, &what, |rig| _ = rig.port.set_memory(Arc::clone(&memory), rig.now));
            for _ in 0..FRAMES {
                rig.far.ends().outgoing.push_back((frame(MAC.0, PEER), Offload::default()));
                rig.uplink.ready();
                driver.send(&mut rig, &frame(PEER, MAC.0), &Offload::default());
                step(&mut rig, &what, |rig| _ = rig.step());
                driver.attend(&mut rig);
                rig.now = rig.now.after_ns(1_000_000);
            }
            let taken = rig.port.state().counters.taken().packets - before;
            assert!(taken == 0 || !reaches_memory || memory.regions() > 0, "{what}: {taken} frames found memory");
            step(&mut rig, &what, |rig| {
                rig.port.set_memory(Arc::clone(&whole), rig.now);
                rig.port.reset(Reset::Bus, rig.now);
            });
            rig.pass(1_000_000);
            let driver = bring_up(entry, &mut rig);
            assert!(both_ways(rig, driver), "{what}: after a reset it works");
        }
    }
}

#[test]
fn rings_at_nothing_at_each_other_or_at_registers_harm_nobody_and_a_reset_mends_them() {
    for entry in REGISTRY.iter().filter(|entry| TOLD.contains(&driver(entry.about.name).name)) {
        for (what, bases) in places() {
            let name = entry.about.name;
            let what = format!("{name}, rings at {what}");
            let mut rig = Rig::new(entry, MEMORY, false);
            for (number, bar) in (0..).zip(BARS) {
                rig.port.config_write(0x10 + 4 * number, &(bar as u32).to_le_bytes(), rig.now);
            }
            bring_up(entry, &mut rig);
            // Descriptors that the device owns, and that point at their own ring.
            for slot in 0..512 {
                let descriptor = [SAME + slot * 16, 0x8300_0040_8100_0040 ^ slot << 33];
                rig.memory.write(SAME + slot * 16, &descriptor.map(u64::to_le_bytes).concat()).unwrap();
            }
            step(&mut rig, &what, |rig| misplace(name, rig, bases));
            for _ in 0..FRAMES {
                rig.far.ends().outgoing.push_back((frame(MAC.0, PEER), Offload::default()));
                rig.uplink.ready();
                step(&mut rig, &what, |rig| _ = rig.step());
                rig.now = rig.now.after_ns(1_000_000);
            }
            let counters = rig.port.state().counters;
            if !what.contains("each other") {
                // Outside of memory the device reads and writes nothing: each frame is a drop.
                assert_eq!((counters.transmitted().packets, counters.taken().packets), (0, 0), "{what}");
                assert_eq!(counters.receive_drops.iter().sum::<u64>(), FRAMES, "{what}");
            }
            step(&mut rig, &what, |rig| rig.port.reset(Reset::Bus, rig.now));
            let driver = bring_up(entry, &mut rig);
            assert!(both_ways(rig, driver), "{what}: after a reset it works");
        }
    }
}
