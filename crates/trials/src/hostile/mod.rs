//! A hostile guest. Half of its runs begin with a working driver, so that frames flow. Then the guest writes harmful values to
//! registers and rings in use, resets the device in mid-frame, and removes memory.
//!
//! Assertions: no panic (the test would end); the work of each step is bounded, measured in accesses to guest memory and in page
//! lookups, and in an instrumented build in executed basic blocks; and no frame is lost uncounted ([`ledger`]). Time is never
//! asserted.

pub mod ledger;
pub mod packets;

use std::sync::Arc;

use nicety_adapter::{Face, Reset, RingPlace, Time};
use nicety_adapters::Entry;
use nicety_memory::{Files, Map, Rights, count, shared_file};

use crate::random::Random;
use crate::rig::{Rig, Tape};
use crate::working::{self, Working};

/// Bytes of guest memory.
const MEMORY: usize = working::MEMORY;
/// The high memory's first address, and the bytes of all memory. Its pages, scanned 64 at a time, exceed [`WORK`].
const HIGH: u64 = 4 << 30;
const FILE: u64 = 8 << 30;
/// Address of a working driver's rings: the device reads what is written there.
const BUSY: u64 = 0x2_0000;
/// Most accesses to guest memory by one register access or one step of a turn: one pass over a ring of 4096 descriptors, each with
/// a buffer, and some margin.
pub const WORK: u64 = 16_384;
/// Most basic blocks of one such access or step, in a build that counts them (`cargo xtask test --only blocks`).
pub const BLOCKS: u64 = 1 << 20;
/// Most frames on the wire, as a switch in front of it would limit them.
const ON_THE_WIRE: usize = 64;

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Steps taken.
    pub steps: u64,
    /// Most accesses of one step.
    pub worst: u64,
    /// Most basic blocks of one step; 0 in a build that does not count them.
    pub blocks: u64,
    /// Packets that the adapter sent. A run without any proves little.
    pub sent: u64,
    /// Packets that the adapter received.
    pub received: u64,
    /// Number of drivers that were set up.
    pub begun: u64,
}

/// Runs `steps` steps of a seeded hostile guest.
pub fn run(entry: &'static Entry, seed: u64, steps: u64) -> Outcome {
    let whole = seed.is_multiple_of(2);
    life(entry, Random::new(seed), whole, seed % 4 < 2, steps, &format!("seed {seed}"))
}

/// Runs a guest that takes its choices from a fuzzer's bytes, until these are used up.
pub fn run_bytes(entry: &'static Entry, data: &[u8]) -> Outcome {
    let Some((first, rest)) = data.split_first() else { return Outcome::default() };
    life(entry, Random::of_bytes(rest), first & 1 != 0, first & 2 != 0, rest.len() as u64, "these bytes")
}

/// Like [`run_bytes`], but first restores this saved state, if the adapter accepts it.
pub fn run_restored(entry: &'static Entry, saved: &[u8], data: &[u8]) -> Outcome {
    let guest = Guest::new(entry, Random::of_bytes(data), true);
    let taken = guest.rig.port.with(guest.rig.now, |adapter, _| adapter.restore(saved).is_ok());
    if taken == Some(true) {
        let again = guest.rig.port.with(guest.rig.now, |adapter, _| adapter.save()).unwrap_or_default();
        let restored = guest.rig.port.with(guest.rig.now, |adapter, _| adapter.restore(&again));
        assert_eq!(restored, Some(Ok(())), "{}: what was restored can be saved and restored", entry.about.name);
    }
    guest.steps(data.len() as u64, "restored state")
}

/// Runs a hostile guest whose adapter is recorded, and returns its rig and the tape.
pub fn record(entry: &'static Entry, seed: u64, steps: u64) -> (Rig, Tape) {
    let (rig, tape) = Rig::recorded(entry, memory(), seed.is_multiple_of(2));
    let mut guest = Guest::on(entry, rig, Random::new(seed));
    if seed % 4 < 2 {
        guest.begin();
    }
    (0..steps).for_each(|_| guest.step());
    (guest.rig, tape)
}

fn life(entry: &'static Entry, random: Random, whole: bool, working: bool, steps: u64, name: &str) -> Outcome {
    let mut guest = Guest::new(entry, random, whole);
    if working {
        guest.begin();
    }
    guest.steps(steps, name)
}

/// The hostile guest's memory: low, and high above 4 GiB. All of its pages exist, as in a guest that has run for a while, so that a
/// scan of its pages has many to visit.
fn memory() -> Arc<Map> {
    let made = shared_file("hostile", FILE).and_then(|file| Files::new(1).piece(file, 0, FILE, true));
    let whole = made.expect("a memory file");
    whole.assume_all();
    let low = Map::default().with(0, whole.part(0, MEMORY as u64), Rights::BOTH);
    let both = low.and_then(|low| low.with(HIGH, whole.part(MEMORY as u64, FILE - MEMORY as u64), Rights::BOTH));
    Arc::new(both.expect("they do not overlap"))
}

struct Guest {
    entry: &'static Entry,
    rig: Rig,
    random: Random,
    /// The driver, until its device is reset under it.
    working: Option<Box<dyn Working>>,
    begun: u64,
    /// Addresses of earlier writes: a hostile guest uses them again.
    hot: Vec<(u8, u64)>,
}

impl Guest {
    fn new(entry: &'static Entry, random: Random, whole: bool) -> Self {
        Self::on(entry, Rig::around(entry, memory(), whole), random)
    }

    fn on(entry: &'static Entry, rig: Rig, random: Random) -> Self {
        let guest = Self { entry, rig, random, working: None, begun: 0, hot: Vec::new() };
        guest.allow();
        guest
    }

    fn begin(&mut self) {
        self.rig.port.set_link(true, self.rig.now);
        self.working = working::begin(self.entry.about.name, &mut self.rig, &mut self.random);
        self.begun += u64::from(self.working.is_some());
    }

    fn steps(mut self, steps: u64, name: &str) -> Outcome {
        let mut outcome = Outcome::default();
        while outcome.steps < steps && !self.random.spent() {
            count::take();
            count::take_blocks();
            self.step();
            let (work, blocks) = (count::take(), count::take_blocks());
            outcome.steps += 1;
            outcome.worst = outcome.worst.max(work);
            outcome.blocks = outcome.blocks.max(blocks);
            let at = format_args!("{}, {name}, step {}", self.entry.about.name, outcome.steps);
            assert!(work <= WORK, "{at}: {work} accesses");
            assert!(blocks <= BLOCKS, "{at}: {blocks} basic blocks");
            if let Some(what) = ledger::imbalance(&self.rig) {
                panic!("{at}: {what}");
            }
        }
        let counters = self.rig.port.state().counters;
        (outcome.sent, outcome.received) = (counters.transmitted().packets, counters.taken().packets);
        outcome.begun = self.begun;
        outcome
    }

    /// Enables memory and I/O decoding, and bus mastering.
    fn allow(&self) {
        self.rig.port.config_write(4, &7u16.to_le_bytes(), self.rig.now);
    }

    fn step(&mut self) {
        match self.random.below(32) {
            0..6 => self.register(),
            6 => self.config(),
            7..10 => self.scribble(),
            10..14 => self.damage(),
            14..17 => self.frame(),
            17..21 => self.send(),
            21..24 => self.attend(),
            24 => self.upheaval(),
            25 if self.working.is_none() => self.begin(),
            _ => {
                let ns = self.random.below(2_000_000);
                self.rig.now = self.rig.now.after_ns(ns);
                self.rig.uplink.ready();
                self.rig.step();
            }
        }
    }

    fn register(&mut self) {
        let rings = self.rig.port.with(self.rig.now, |adapter, _| matches!(adapter.face(), Face::Rings(_)));
        if rings == Some(true) {
            return self.ring();
        }
        let bar = self.random.below(6) as u8;
        let size = self.rig.port.with_pci(self.rig.now, |pci, _| pci.function().bar_kind(usize::from(bar)));
        let Some(size) = size.flatten().map(|bar| bar.size) else { return };
        // Registers are dense at the beginning of a BAR, and at multiples of four.
        let mut place = match self.random.below(4) {
            0 => self.random.below(size),
            1 => self.random.below(size.min(256)) & !3,
            _ => self.random.below(size.min(0x6000)) & !3,
        };
        let mut bar = bar;
        if !self.hot.is_empty() && self.random.one_in(2) {
            (bar, place) = self.random.pick(&self.hot);
        }
        let width = self.random.pick(&[1usize, 2, 4, 4, 4, 8, 3, 16]);
        if self.random.one_in(3) {
            let mut data = [0; 16];
            self.rig.port.read(bar, place, &mut data[..width], self.rig.now);
        } else {
            let value = self.random.nasty(MEMORY as u64).to_le_bytes();
            let data = [value, value].concat();
            self.rig.port.write(bar, place, &data[..width], self.rig.now);
            if self.hot.len() < 32 {
                self.hot.push((bar, place));
            } else {
                let slot = self.random.below(32) as usize;
                self.hot[slot] = (bar, place);
            }
        }
    }

    fn ring(&mut self) {
        let Self { rig, random, .. } = self;
        rig.port.with_rings(rig.now, |rings, cx| {
            let ring = random.below(u64::from(rings.rings()) + 1) as u16;
            match random.below(8) {
                0 => {
                    let offer = rings.features();
                    let wanted = u128::from(random.bits()) & offer | (u128::from(random.below(2)) << 32);
                    rings.take_features(wanted);
                }
                1 => {
                    let size = random.pick(&[0u16, 1, 2, 3, 64, 256, 1024, 32768, 65535]);
                    let memory = MEMORY as u64;
                    let (descriptors, driver, device) =
                        (random.nasty(memory), random.nasty(memory), random.nasty(memory));
                    rings.place(ring, RingPlace { size, descriptors, driver, device });
                }
                2 => {
                    let base = random.nasty(MEMORY as u64) as u32;
                    rings.start(ring, base, cx);
                }
                3 if random.one_in(4) => {
                    rings.stop(ring, cx);
                }
                4 => rings.enable(ring, !random.one_in(4), cx),
                5 => {
                    rings.config(random.nasty(64) as u32, &mut [0; 16]);
                }
                _ => rings.kick(ring, cx),
            }
        });
    }

    fn config(&mut self) {
        let offset = self.random.below(260);
        let width = self.random.pick(&[1usize, 2, 4]);
        if self.random.one_in(2) {
            self.rig.port.config_read(offset, &mut [0; 4][..width], self.rig.now);
        } else {
            let data = self.random.nasty(MEMORY as u64).to_le_bytes();
            self.rig.port.config_write(offset as u16, &data[..width], self.rig.now);
            self.allow();
        }
    }

    /// Writes many copies of a plausible descriptor, to fill rings.
    fn scribble(&mut self) {
        let mut descriptor = [0u8; 16];
        for half in descriptor.chunks_mut(8) {
            half.copy_from_slice(&self.random.nasty(MEMORY as u64).to_le_bytes());
        }
        if self.random.one_in(2) {
            self.random.fill(&mut descriptor[8..]);
        }
        let most = if self.random.one_in(2) { BUSY } else { MEMORY as u64 };
        let at = self.random.below(most - 4096) & !0xf;
        for slot in 0..self.random.below(128) {
            // In bounds, by the computation above.
            let _ = self.rig.memory.write(at + slot * 16, &descriptor);
        }
    }

    /// Changes one place in a ring or another structure shared with the device: copies a field of another descriptor, writes a
    /// harmful number, or flips a bit.
    fn damage(&mut self) {
        let Self { rig, random, working, .. } = self;
        let Some(working) = working else { return };
        let (base, bytes) = random.pick(working.shared());
        let at = base + random.below(bytes.min(1 << 16));
        let mut field = [0; 16];
        // A range at the end of memory cannot be damaged.
        match random.below(4) {
            0 => {
                let _ = rig.memory.read(at, &mut field[..1]);
                field[0] ^= 1 << random.below(8);
                let _ = rig.memory.write(at, &field[..1]);
            }
            1 => {
                let other = (base + random.below(bytes.min(1 << 16))) & !0xf;
                let _ = rig.memory.read(other, &mut field);
                let _ = rig.memory.write(at & !0xf, &field);
            }
            _ => {
                let width = random.pick(&[2usize, 4, 8]);
                let value = random.nasty(MEMORY as u64).to_le_bytes();
                let _ = rig.memory.write(at & !(width as u64 - 1), &value[..width]);
            }
        }
    }

    fn frame(&mut self) {
        if self.rig.far.ends().outgoing.len() < ON_THE_WIRE {
            let packet = packets::any(&mut self.random, true);
            self.rig.far.ends().outgoing.push_back(packet);
        }
        // Nobody reads these frames: without the clear they would accumulate.
        self.rig.far.ends().incoming.clear();
    }

    fn send(&mut self) {
        let (packet, offload) = packets::any(&mut self.random, false);
        let Self { rig, working, .. } = self;
        if let Some(working) = working {
            working.send(rig, &packet, &offload);
        }
    }

    fn attend(&mut self) {
        let Self { rig, working, .. } = self;
        if let Some(working) = working {
            working.attend(rig);
        }
    }

    fn upheaval(&mut self) {
        let (port, now) = (Arc::clone(&self.rig.port), self.rig.now);
        match self.random.below(12) {
            0 => {
                port.reset(Reset::Bus, now);
                self.working = None;
            }
            1 => {
                port.reset(Reset::Function, now);
                self.working = None;
            }
            2 => {
                self.working = None;
                port.detach(now);
                port.attach();
                port.set_memory(Arc::clone(&self.rig.memory), now);
            }
            3 => {
                // Memory is removed while frames are in flight, and comes back.
                port.set_memory(Map::empty(), now);
                self.rig.step();
                port.set_memory(Arc::clone(&self.rig.memory), now);
            }
            4 => port.set_link(self.random.one_in(2), now),
            5 => {
                let Some(saved) = port.save(now) else { return };
                let mut damaged = saved.state.clone();
                if !damaged.is_empty() {
                    let at = self.random.below(damaged.len() as u64) as usize;
                    damaged[at] ^= 1 << self.random.below(8);
                    port.with(now, |adapter, _| adapter.restore(&damaged).is_ok());
                }
                let restored = port.restore(&saved, now);
                assert_eq!(restored, Some(Ok(())), "an adapter takes its own state back");
            }
            _ => self.rig.now = Time(self.rig.now.0 + self.random.below(1 << 30)),
        }
        self.allow();
    }
}
