//! A guest whose adapter is saved in the middle of its work and restored elsewhere: its driver continues and loses nothing.
//!
//! Elsewhere means another adapter, port and switch, at another time of the clock. The restore carries what a real host would
//! carry: the guest with its memory and its driver's state, the messages that were sent and not yet taken, and the bytes of the
//! saved state. It carries neither the line, nor timers, nor pending work of the host.

use nicety_adapter::{InterruptKind, Offload, Reason, Time};
use nicety_adapters::{Entry, find};
use nicety_drivers::{BUDGET, Received};
use nicety_trials::bus::PortBus;
use nicety_trials::guest::Net;
use nicety_trials::hostile::ledger;
use nicety_trials::random::Random;
use nicety_trials::rig::{MAC, Rig, adapter};
use nicety_trials::scope::entries;

use crate::packets::{HEADERS, PARTIAL, bytes, cut, partial, whole};
use crate::{PEER, World, cuts};

/// Runs of a guest per adapter, and events in each.
const LIVES: u64 = 12;
const EVENTS: u64 = 120;

/// Counts how often work of each kind was in progress when the state was saved.
#[derive(Debug, Default)]
struct Middles {
    timers: u32,
    turns: u32,
    polls: u32,
    starved: u32,
    lines: u32,
}

/// Packets sent in one direction: payload bytes and seed, in order.
#[derive(Default)]
struct Sent(Vec<(usize, u8)>);

impl Sent {
    fn next(&mut self, payload: usize) -> (usize, u8) {
        let next = (payload, self.0.len() as u8);
        self.0.push(next);
        next
    }

    /// The number of these packets that arrived. They must be in order and complete.
    fn arrived<'a>(&self, packets: impl Iterator<Item = &'a [u8]>) -> usize {
        let mut left = self.0.iter();
        let mut count = 0;
        for packet in packets {
            let is = |(payload, seed): &&(usize, u8)| {
                packet[HEADERS..].len() >= *payload && packet[HEADERS..HEADERS + payload] == *bytes(*payload, *seed)
            };
            assert!(left.any(|sent| is(&sent)), "packet {count} was not sent, or not so late");
            count += 1;
        }
        count
    }
}

struct Life {
    entry: &'static Entry,
    world: World,
    mapped: bool,
    out: Sent,
    into: Sent,
    /// Frames that waited for the guest when it moved, or found no room to wait: they stay in the old switch.
    left_behind: usize,
    came_out: Vec<Vec<u8>>,
}

/// Frames that did not fit into the port's buffer.
fn full(rig: &Rig) -> usize {
    rig.port.state().counters.receive_drops[Reason::BufferFull as usize] as usize
}

impl Life {
    fn new(entry: &'static Entry, mapped: bool) -> Self {
        let name = entry.about.name;
        let mut world = World::with(name, true, Net::named(name));
        let mapped = mapped && world.guest.bus.map_doorbells();
        world.run();
        let (out, into, came_out) = (Sent::default(), Sent::default(), Vec::new());
        Self { entry, world, mapped, out, into, left_behind: 0, came_out }
    }

    /// Saves, restores elsewhere, and lets the guest continue there.
    fn move_on(&mut self, random: &mut Random, middles: &mut Middles) {
        self.world.guest.bus.scan();
        let old = &self.world.rig;
        assert_eq!(ledger::imbalance(old), None);
        let saved = old.port.save(old.now).unwrap();
        let mut same = adapter(self.entry);
        same.restore(&saved.state).unwrap();
        assert_eq!(same.save(), saved.state, "{}", self.entry.about.name);

        let asked = old.memo.asked().clone();
        let waiting = old.port.state().backlog_frames;
        middles.timers += u32::from(asked.wake.is_some_and(|at| at > old.now));
        middles.turns += u32::from(asked.scheduled);
        middles.polls += u32::from(self.world.guest.is_polling());
        middles.starved += u32::from(waiting > 0);
        middles.lines += u32::from(asked.line);
        self.left_behind += waiting + full(old);

        let mut rig = Rig::around(self.entry, std::sync::Arc::clone(&old.memory), true);
        rig.now = Time(random.below(1 << 40));
        std::mem::swap(&mut *rig.far.ends(), &mut *old.far.ends());
        rig.memo.asked().messages = asked.messages;
        let mut bus = PortBus::of(&rig);
        bus.now = rig.now;
        if self.mapped {
            assert!(bus.map_doorbells());
        }
        assert_eq!(rig.port.restore(&saved, rig.now), Some(Ok(())));
        (self.world.rig, self.world.guest.bus) = (rig, bus);
    }

    fn send(&mut self, random: &mut Random) {
        for _ in 0..=random.below(20) {
            let payload = random.below(1400) as usize;
            let features = self.world.guest.features();
            let (payload, offload) = match random.below(4) {
                0 if cuts(features, payload + 20_000) => (payload + 20_000, cut(1448)),
                1 if features.checksum => (payload, Offload { checksum: PARTIAL, segment: None }),
                _ => (payload, Offload::default()),
            };
            let seed = self.out.0.len() as u8;
            let make = if offload == Offload::default() { whole } else { partial };
            if !self.world.guest.queue(&make(PEER, MAC.0, payload, seed), &offload).unwrap() {
                return self.world.guest.flush().unwrap();
            }
            self.out.next(payload);
        }
    }

    fn arrive(&mut self, random: &mut Random) {
        // Seldom more frames than any ring holds: those cost most of the time.
        let most = random.pick(&[3, 30, 30, 30, 1200]);
        for _ in 0..=random.below(most) {
            let (payload, seed) = self.into.next(random.below(1400) as usize);
            self.world.arrive(whole(MAC.0, PEER, payload, seed), Offload::default());
        }
        self.world.rig.uplink.ready();
    }

    fn event(&mut self, random: &mut Random) {
        match random.below(10) {
            0 | 1 => self.send(random),
            2 => self.world.guest.flush().unwrap(),
            3 | 4 => self.arrive(random),
            5 => {
                self.world.rig.step();
            }
            6 => self.world.rig.pass(random.below(60_000)),
            7 => {
                self.world.guest.interrupt().unwrap();
            }
            8 if self.world.guest.is_polling() => {
                let World { guest, received, frames, packets, .. } = &mut self.world;
                let mut sink = |packet: &mut Vec<u8>, about: Received| {
                    *frames += u64::from(about.frames);
                    *packets += 1;
                    received.push((packet.to_vec(), about));
                };
                let packets = guest.poll(&mut sink).unwrap();
                if packets < BUDGET && random.one_in(2) {
                    guest.rest().unwrap();
                }
            }
            _ => self.world.step(0),
        }
        self.world.guest.bus.now = self.world.rig.now;
        self.came_out.extend(self.world.out().into_iter().map(|(packet, _)| packet));
    }

    /// Nobody sends any more: frames in flight arrive as time passes.
    fn finish_traffic(&mut self, what: &str) {
        self.world.run();
        self.came_out.extend(self.world.out().into_iter().map(|(packet, _)| packet));
        let out = self.out.arrived(self.came_out.iter().map(Vec::as_slice));
        assert_eq!(out, self.out.0.len(), "{}, {what}: frames from the guest", self.entry.about.name);
        let into = self.into.arrived(self.world.received.iter().map(|(packet, _)| packet.as_slice()));
        let expected = self.into.0.len() - self.left_behind - full(&self.world.rig);
        assert_eq!(into, expected, "{}, {what}: frames to the guest", self.entry.about.name);
    }
}

/// Whether the adapter requests a wake-up after many frames have arrived: after the first round, and after each later one.
fn wakes(entry: &Entry) -> [bool; 8] {
    let mut world = World::new(entry.about.name, true);
    std::array::from_fn(|_| {
        world.arrive_whole(40, 1400);
        let wakes = world.rig.memo.asked().wake.is_some_and(|at| at > world.rig.now);
        world.step(10_000);
        wakes
    })
}

/// Whether it has timers.
fn has_timers(entry: &Entry) -> bool {
    wakes(entry).contains(&true)
}

/// Whether it delays an interrupt because one has just occurred.
fn throttles(entry: &Entry) -> bool {
    let wakes = wakes(entry);
    wakes[4..] == [true; 4]
}

fn lives(entry: &'static Entry, mapped: bool) -> Middles {
    let mut middles = Middles::default();
    for seed in 0..LIVES {
        let mut random = Random::new(seed);
        let mut life = Life::new(entry, mapped);
        for _ in 0..EVENTS {
            life.event(&mut random);
            if random.one_in(5) {
                life.move_on(&mut random, &mut middles);
            }
        }
        // The driver notifies the device once of queued packets; the restored adapter finds everything else by itself.
        life.world.guest.flush().unwrap();
        life.move_on(&mut random, &mut middles);
        life.finish_traffic(&format!("life {seed}"));
        life.send(&mut random);
        life.world.guest.flush().unwrap();
        life.arrive(&mut random);
        life.finish_traffic(&format!("afterlife {seed}"));
    }
    middles
}

#[test]
fn traffic_goes_on_both_ways_wherever_it_was_when_the_adapter_was_saved() {
    for entry in entries() {
        let middles = lives(entry, false);
        println!("{}: {middles:?}", entry.about.name);
        let Middles { timers, turns, polls, starved, lines } = middles;
        let least = [turns, polls, starved].into_iter().min();
        assert!(least > Some(1), "{}: too seldom in the middle of something: {middles:?}", entry.about.name);
        let world = World::new(entry.about.name, true);
        assert!(timers > 1 || !has_timers(entry), "{}: {middles:?}", entry.about.name);
        let has_line = world.guest.features().interrupts == InterruptKind::Intx;
        assert!(lines > 1 || !has_line, "{}: {middles:?}", entry.about.name);
    }
}

#[test]
fn traffic_goes_on_where_doorbells_are_mapped() {
    for name in ["vmxnet3", "ixgbevf"] {
        let middles = lives(find(name).unwrap(), true);
        println!("{name}: {middles:?}");
        assert!(middles.timers > 10 && middles.starved > 1, "{name}: {middles:?}");
    }
}

#[test]
fn an_interrupt_that_waited_for_its_time_when_the_adapter_was_saved_comes_all_the_same() {
    for entry in entries() {
        let (mut middles, mut random) = (Middles::default(), Random::new(1));
        let mut life = Life::new(entry, false);
        for round in 0..20 {
            // Many frames, which are signalled, the last batch in one hold of the port's lock; then a few more, which wait.
            for count in [40, 40, 40, 3] {
                for _ in 0..count {
                    let (payload, seed) = life.into.next(1400);
                    life.world.arrive(whole(MAC.0, PEER, payload, seed), Offload::default());
                }
                life.world.rig.settle();
                if count == 40 {
                    life.world.step(0);
                }
            }
            life.move_on(&mut random, &mut middles);
            life.finish_traffic(&format!("round {round}"));
        }
        assert!(middles.timers > 10 || !throttles(entry), "{}: {middles:?}", entry.about.name);
    }
}

#[test]
fn frames_that_waited_for_what_the_adapter_was_before_are_dropped_and_counted_when_it_is_restored() {
    for entry in entries() {
        let name = entry.about.name;
        let mut world = World::new(name, true);
        let frame = |seed| whole(MAC.0, PEER, 1000, seed);
        let mut sent = 0;
        let mut arrive = |world: &mut World, most_waiting: usize| {
            while world.waiting() < most_waiting {
                world.arrive(frame(sent as u8), Offload::default());
                world.rig.settle();
                sent += 1;
            }
            sent
        };
        let removed = |world: &World| world.rig.port.state().counters.receive_drops[Reason::Removed as usize];
        // Its rings are full, and its memory does not change between the two.
        let taken = arrive(&mut world, 1) - 1;
        let saved = world.rig.port.save(world.rig.now).unwrap();
        arrive(&mut world, 20);
        let before = removed(&world);
        assert_eq!(world.rig.port.restore(&saved, world.rig.now), Some(Ok(())));
        assert_eq!(removed(&world) - before, 20, "{name}");
        assert_eq!(world.waiting(), 0, "{name}");
        world.run();
        world.arrive(frame(99), Offload::default());
        world.run();
        let came: Vec<Vec<u8>> = world.took().into_iter().map(|(packet, _)| packet).collect();
        let expected: Vec<Vec<u8>> = (0..taken).map(|seed| frame(seed as u8)).chain([frame(99)]).collect();
        assert!(came == expected, "{name}: {} frames came, not {}", came.len(), expected.len());

        // A state that does not fit leaves waiting frames in place.
        arrive(&mut world, 3);
        let mut cut = saved.clone();
        cut.state.pop();
        assert!(world.rig.port.restore(&cut, world.rig.now).unwrap().is_err());
        assert_eq!((world.waiting(), removed(&world) - before), (3, 20), "{name}");
    }
}
