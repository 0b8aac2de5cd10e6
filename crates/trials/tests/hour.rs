//! An hour of simulated time, or some minutes of it by default, run twice side by side: the same inputs give the same outputs and
//! the same state, byte for byte. The second run is saved again and again, which changes nothing.

use nicety_adapter::{Offload, Time};
use nicety_adapters::{Entry, REGISTRY};
use nicety_frame::Mac;
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::random::Random;
use nicety_trials::rig::{MAC, Rig};
use nicety_trials::scope::is_full;

const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const SECOND_NS: u64 = 1_000_000_000;
/// Time of a few frames at 10 Mbit/s.
const SHORTLY_NS: u64 = 2_000_000;
/// The beginning of the hour: late in the day.
const BEGIN: Time = Time(20 * 3600 * SECOND_NS);
/// Minutes between two comparisons of the guest's whole memory.
const LOOK: u64 = 5;

/// Number of minutes to simulate.
fn minutes() -> u64 {
    if is_full() { 60 } else { 10 }
}

/// A guest's run: a seed chooses its actions, and the results are recorded.
struct Life {
    rig: Rig,
    guest: Guest,
    random: Random,
    saving: bool,
    /// Frames, interrupts and requests, in order, with their times.
    log: Vec<u8>,
    frames: [u64; 2],
}

impl Life {
    fn new(entry: &'static Entry, saving: bool) -> Self {
        let mut rig = Rig::new(entry, MEMORY, true);
        rig.now = BEGIN;
        let mut bus = PortBus::of(&rig);
        bus.now = rig.now;
        let mut guest = Guest::new(bus, Net::named(entry.about.name));
        guest.open().unwrap();
        let mut life = Self { rig, guest, random: Random::new(2026), saving, log: Vec::new(), frames: [0; 2] };
        life.pass(1);
        life
    }

    fn frame(&mut self, to: Mac, from: Mac) -> Vec<u8> {
        let mut frame = vec![0; 60 + self.random.below(400) as usize];
        self.random.fill(&mut frame);
        frame[..14].copy_from_slice(&[&to.0[..], &from.0, &[0x88, 0xb5]].concat());
        frame
    }

    fn second(&mut self) {
        let end = self.rig.now.after_ns(SECOND_NS);
        for _ in 0..self.random.below(3) {
            let count = self.random.below(20);
            if self.random.one_in(2) {
                for _ in 0..count {
                    let frame = self.frame(MAC, PEER);
                    self.rig.far.ends().outgoing.push_back((frame, Offload::default()));
                }
            } else {
                for _ in 0..count {
                    let frame = self.frame(PEER, MAC);
                    if !self.guest.queue(&frame, &Offload::default()).unwrap() {
                        // Some devices have only one or two slots: queued packets go first.
                        self.guest.flush().unwrap();
                        self.pass(SHORTLY_NS);
                        self.guest.queue(&frame, &Offload::default()).unwrap();
                    }
                }
                self.guest.flush().unwrap();
            }
            let soon = self.random.below(2_000_000);
            self.pass(soon);
            // In the middle of work: timers run, frames wait.
            self.save();
        }
        self.pass(u64::try_from(end.since(self.rig.now).as_nanos()).unwrap());
    }

    fn pass(&mut self, ns: u64) {
        self.rig.settle();
        self.note();
        self.rig.pass(ns);
        self.guest.bus.now = self.rig.now;
        self.note();
        let Self { guest, log, frames, .. } = self;
        guest
            .attend(&mut |packet, _| {
                frames[0] += 1;
                log.extend(packet);
            })
            .unwrap();
        self.rig.settle();
        self.note();
    }

    fn save(&mut self) {
        if self.saving {
            let saved = self.rig.port.save(self.rig.now).unwrap();
            assert_eq!(saved.at, self.rig.now);
        }
    }

    /// The adapter's requests, and the frames that arrived at the wire's far end.
    fn note(&mut self) {
        let asked = self.rig.memo.asked().clone();
        self.log.extend(format!("{:?} {asked:?}", self.rig.now).into_bytes());
        for (frame, offload) in self.rig.far.ends().incoming.drain(..) {
            self.frames[1] += 1;
            self.log.extend(frame);
            self.log.extend(format!("{offload:?}").into_bytes());
        }
    }

    fn state(&self) -> Vec<u8> {
        self.rig.port.save(self.rig.now).unwrap().state
    }

    fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY];
        self.rig.memory.read(0, &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn time_lived_twice_is_the_same_to_the_byte_and_saving_changes_nothing() {
    for entry in REGISTRY {
        let name = entry.about.name;
        let (mut once, mut again) = (Life::new(entry, false), Life::new(entry, true));
        let mut bytes = 0;
        for minute in 1..=minutes() {
            for life in [&mut once, &mut again] {
                (0..60).for_each(|_| life.second());
            }
            assert!(once.log == again.log, "{name}, minute {minute}: outputs");
            assert_eq!(once.state(), again.state(), "{name}, minute {minute}: state");
            assert_eq!(once.rig.port.state().counters, again.rig.port.state().counters, "{name}, minute {minute}");
            assert!(minute % LOOK != 0 || once.memory() == again.memory(), "{name}, minute {minute}: memory");
            bytes += once.log.len();
            once.log.clear();
            again.log.clear();
        }
        println!("{name}: {:?} frames in and out, {bytes} bytes of output", once.frames);
        assert!(once.frames.into_iter().min() > Some(160 * minutes()), "{name}: {:?} frames are little", once.frames);
        assert_eq!(once.rig.now, BEGIN.after_ns(minutes() * 60 * SECOND_NS + 1));
    }
}
