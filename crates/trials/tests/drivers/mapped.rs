//! Behind an IOMMU, consecutive device addresses belong to many mappings, whose memory is anywhere. Linux maps a driver's ring (or
//! a table, or a shared structure) so, page by page.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nicety_adapters::{Entry, REGISTRY};
use nicety_drivers::Arena;
use nicety_memory::{Files, Map, Rights, shared_file};
use nicety_trials::guest::{MEMORY, Net, driver};
use nicety_trials::random::Random;
use nicety_trials::rig::{MAC, Rig};

use crate::packets::{HEADERS, cut, partial, whole};
use crate::traffic::exchange;
use crate::{PEER, World, cuts};

/// A mapping: device address, bytes, and offset in the guest's file.
type Piece = (u64, u64, u64);

/// A guest's memory in pieces.
struct Pieces {
    file: OwnedFd,
    files: Files,
    all: Vec<Piece>,
}

/// Shuffles (Fisher and Yates).
fn shuffle<T>(all: &mut [T], random: &mut Random) {
    for last in (1..all.len()).rev() {
        all.swap(last, random.below(last as u64 + 1) as usize);
    }
}

impl Pieces {
    /// Pieces of these lengths, in device order. Their order in the file is random.
    fn new(lengths: &[u64], random: &mut Random) -> Self {
        let next = |at: &mut u64, len: u64| Some(std::mem::replace(at, *at + len));
        let addresses = lengths.iter().scan(0, |at, len| next(at, *len));
        let mut all: Vec<Piece> = addresses.zip(lengths).map(|(address, len)| (address, *len, 0)).collect();
        shuffle(&mut all, random);
        let mut at = 0;
        for (_, len, offset) in &mut all {
            *offset = at;
            at += *len;
        }
        // The order of mapping is random too.
        shuffle(&mut all, random);
        Self { file: shared_file("guest", MEMORY as u64).unwrap(), files: Files::new(4), all }
    }

    /// Pieces of `len` bytes each.
    fn every(len: u64, random: &mut Random) -> Self {
        Self::new(&vec![len; MEMORY / len as usize], random)
    }

    /// Pieces at odd addresses, 300 bytes to 8 KiB apart.
    fn odd(random: &mut Random) -> Self {
        let (mut lengths, mut left) = (Vec::new(), MEMORY as u64);
        while left > 0 {
            let len = (300 + random.below(7892)).min(left);
            lengths.push(len);
            left -= len;
        }
        Self::new(&lengths, random)
    }

    fn map(&self) -> Arc<Map> {
        let add = |map: Map, (address, len, offset): &Piece| {
            let piece = self.files.piece(self.file.try_clone().unwrap(), *offset, *len, true).unwrap();
            map.with(*address, piece, Rights::BOTH).unwrap()
        };
        Arc::new(self.all.iter().fold(Map::default(), add))
    }
}

/// Kinds of pieces: pages, pieces smaller than any driver's descriptor ring, and odd ones.
fn kinds(random: &mut Random) -> [(&'static str, Pieces); 3] {
    [("pages", Pieces::every(4096, random)), ("512 bytes", Pieces::every(512, random)), ("odd", Pieces::odd(random))]
}

fn world(entry: &Entry, memory: Arc<Map>) -> World {
    World::on(Rig::around(entry, memory, true), Net::named(entry.about.name))
}

#[test]
fn frames_and_long_packets_pass_both_ways_whatever_mappings_consecutive_addresses_lie_in() {
    let mut random = Random::new(12);
    for (what, pieces) in kinds(&mut random) {
        let memory = pieces.map();
        for entry in REGISTRY {
            println!("{}: {what}", entry.about.name);
            let mut world = world(entry, Arc::clone(&memory));
            // The rings wrap around.
            exchange(&mut world, 270);
            if cuts(world.guest.features(), 30_000) {
                let long = partial(PEER, MAC.0, 30_000, 1);
                world.send(&long, &cut(1460));
                world.arrive(partial(MAC.0, PEER, 30_000, 2), cut(1460));
                world.run();
                let (out, took) = (world.out(), world.took());
                assert!(out.len() == 1 && out[0].0[HEADERS..] == long[HEADERS..]);
                let bytes: Vec<u8> = took.iter().flat_map(|(frame, _)| &frame[HEADERS..]).copied().collect();
                assert!(bytes == partial(MAC.0, PEER, 30_000, 2)[HEADERS..]);
            }
        }
    }
}

#[test]
fn a_page_that_is_unmapped_and_mapped_again_is_missed_meanwhile_and_used_afterwards() {
    let mut random = Random::new(34);
    let pieces = Pieces::every(512, &mut random);
    let memory = pieces.map();
    for entry in REGISTRY {
        let (mut first, taken) = Arena::noting(|| world(entry, Arc::clone(&memory)));
        exchange(&mut first, 20);
        drop(first);
        // A LANCE that cannot read a buffer turns its transmitter off (Am79C973, CSR0: TXON, UFLO), until its driver restarts it.
        let is_missed = |(_, len): &&(u64, u64)| *len < 0x8000 || driver(entry.about.name).name != "pcnet";
        // In the middle of each of the driver's allocations.
        for (at, len) in taken.iter().filter(is_missed) {
            let hole = (at + len / 2) & !511;
            println!("{}: {hole:#x}", entry.about.name);
            let mut world = world(entry, Arc::clone(&memory));
            world.rude = true;
            exchange(&mut world, 20);
            let now = world.rig.now;
            world.rig.port.set_memory(Arc::new(memory.without(hole, 512).unwrap()), now);
            for number in 0..8 {
                world.arrive(whole(MAC.0, PEER, 600, number), Default::default());
                world.guest.queue(&whole(PEER, MAC.0, 600, number), &Default::default()).unwrap();
                world.guest.flush().unwrap();
                world.step(1_000_000);
            }
            let now = world.rig.now;
            world.rig.port.set_memory(Arc::clone(&memory), now);
            world.run();
            // Frames that passed or waited meanwhile are not checked.
            world.out();
            world.took();
            exchange(&mut world, 40);
            assert_eq!(world.rig.port.state().stalls, [], "a queue stands still");
        }
    }
}
