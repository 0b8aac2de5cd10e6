//! MSI and MSI-X are memory writes of the function. So none may go while bus mastering is off (PCI 3.0, sections 6.2.2 and 6.8.1). None may
//! go in D3hot either: a function starts no transaction there, and its line is low (PCI PM 1.2, section 5.4.1; PCIe 4.0, section 5.3.1.4).
//! Interrupts that became due meanwhile are signalled afterwards. A function that D3hot resets (No_Soft_Reset of PCI PM 1.2,
//! section 3.2.4, is clear) has none to signal.

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_adapters::Entry;
use nicety_drivers::config;

use crate::bus::PortBus;
use crate::guest::{Guest, MEMORY, Net};
use crate::random::Random;
use crate::rig::{MAC, Rig, adapter};

/// Longer than any timer of an adapter or of its moderation.
const LONG_NS: u64 = 20_000_000;

/// Kinds of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Line,
    Msi,
    Msix,
}

/// States in which the adapter cannot interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    NoBusMaster,
    D3hot,
}

/// An adapter with a working driver.
struct World {
    rig: Rig,
    guest: Guest,
    name: String,
    kind: Kind,
    silence: Silence,
    /// Packets that the driver received.
    took: u64,
}

impl World {
    /// `None` if the adapter does not interrupt in this way, or does not support this silence. The line is tried
    /// only without MSI and MSI-X.
    fn new(entry: &Entry, kind: Kind, silence: Silence) -> Option<World> {
        let rig = Rig::new(entry, MEMORY, true);
        let (msi, msix, power) = rig.port.with_pci(rig.now, |pci, _| {
            let function = pci.function();
            (function.msi_vectors() > 0, function.msix().is_some(), function.capability(config::POWER).is_some())
        })?;
        let has = match kind {
            Kind::Line => !msi && !msix,
            Kind::Msi => msi,
            Kind::Msix => msix,
        };
        if !has || (silence == Silence::D3hot && !power) {
            return None;
        }
        let guest = Guest::new(PortBus::of(&rig), Net::named(entry.about.name));
        let name = format!("{}, {kind:?}, {silence:?}", entry.about.name);
        let mut world = World { rig, guest, name, kind, silence, took: 0 };
        world.guest.bus.past_port = silence == Silence::D3hot;
        world.guest.open().expect("a new adapter can be opened");
        if kind != Kind::Line {
            let vectors = InterruptKind::Msix(1);
            world.guest.bus.interrupts(vectors).expect("it has MSI-X, as all that have MSI here");
        }
        if kind == Kind::Msi {
            let (at, other) = (world.capability(config::MSI), world.capability(config::MSIX));
            world.set(other + config::MESSAGE_CONTROL, config::MSIX_ENABLE, false);
            world.set(at + config::MSI_ADDRESS + 2, 0xfee0, true);
            world.set(at + config::MESSAGE_CONTROL, config::MSI_ENABLE, true);
        }
        world.pass(LONG_NS);
        world.attend();
        Some(world)
    }

    fn get(&mut self, at: u16) -> u16 {
        config::read16(&mut self.guest.bus, at).expect("it is in this process")
    }

    fn set(&mut self, at: u16, bits: u16, on: bool) {
        config::set(&mut self.guest.bus, at, bits, on).expect("it is in this process");
    }

    fn capability(&mut self, id: u8) -> u16 {
        let at = config::capability(&mut self.guest.bus, id).expect("it is in this process");
        at.unwrap_or_else(|| panic!("{}: capability {id:#x}", self.name))
    }

    fn silence(&mut self, on: bool) {
        match self.silence {
            Silence::NoBusMaster => self.set(config::COMMAND, config::COMMAND_MASTER, !on),
            Silence::D3hot => {
                let at = self.power();
                self.set(at, config::POWER_D3HOT, on);
            }
        }
        self.rig.settle();
    }

    fn is_silenced(&mut self) -> bool {
        match self.silence {
            Silence::NoBusMaster => self.get(config::COMMAND) & config::COMMAND_MASTER == 0,
            Silence::D3hot => {
                let at = self.power();
                self.get(at) & config::POWER_D3HOT != 0
            }
        }
    }

    /// Offset of its power control register.
    fn power(&mut self) -> u16 {
        self.capability(config::POWER) + config::POWER_CONTROL
    }

    /// Whether the function keeps its state through the silence.
    fn keeps(&mut self) -> bool {
        if self.silence == Silence::NoBusMaster {
            return true;
        }
        let at = self.power();
        self.get(at) & config::POWER_NO_SOFT_RESET != 0
    }

    /// Messages sent, or rises of the line.
    fn raised(&self) -> u64 {
        let asked = self.rig.memo.asked();
        asked.raised + asked.edges
    }

    fn pass(&mut self, ns: u64) {
        self.rig.pass(ns);
        self.guest.bus.now = self.rig.now;
    }

    fn arrive(&mut self) {
        let frame = [&MAC.0[..], &[2, 0, 0, 0, 0, 9, 0x88, 0xb5], &[0x5a; 46]].concat();
        self.rig.far.ends().outgoing.push_back((frame, Offload::default()));
        self.rig.settle();
    }

    fn send(&mut self) {
        let frame = [&[2, 0, 0, 0, 0, 9][..], &MAC.0, &[0x88, 0xb5], &[0xa5; 46]].concat();
        if self.guest.queue(&frame, &Offload::default()).expect("a driver that works") {
            self.guest.flush().expect("a driver that works");
        }
        self.rig.settle();
    }

    fn attend(&mut self) {
        let took = self.guest.attend(&mut |_, _| ()).expect("a driver that works");
        self.took += took as u64;
        self.rig.settle();
    }

    fn rest(&mut self) {
        if self.guest.is_polling() {
            self.guest.rest().expect("a driver that works");
            self.rig.settle();
        }
    }

    /// Checks that the driver receives all packets in its rings, and learns of the link.
    fn check_delivery(&mut self, link: bool) {
        for _ in 0..4 {
            self.pass(LONG_NS);
            self.attend();
        }
        let taken = self.rig.port.state().counters.taken().packets;
        assert_eq!(self.took, taken, "{}: packets that the driver was told of", self.name);
        assert_eq!(self.guest.link(), link, "{}: the link, as the driver knows it", self.name);
    }
}

/// Without bus mastering no message goes, whatever is due; with it again nothing is lost. Returns the number of message kinds that
/// the adapter has.
pub fn no_message_without_bus_mastering(entry: &Entry) -> usize {
    [Kind::Msix, Kind::Msi].into_iter().filter(|kind| is_silent(entry, *kind, Silence::NoBusMaster)).count()
}

/// In D3hot no message goes and the line is low. Back in D0 nothing is lost, or the function is as new. Returns the number of
/// interrupt kinds that the adapter has.
pub fn no_interrupt_in_d3hot(entry: &Entry) -> usize {
    [Kind::Msix, Kind::Msi, Kind::Line].into_iter().filter(|kind| is_silent(entry, *kind, Silence::D3hot)).count()
}

/// False for an adapter that does not interrupt in this way.
fn is_silent(entry: &Entry, kind: Kind, silence: Silence) -> bool {
    let world = || World::new(entry, kind, silence);
    let Some(mut first) = world() else { return false };
    if !first.keeps() {
        check_reset(first, entry);
        return true;
    }
    check_unmask(first, false);
    world().into_iter().for_each(|world| check_unmask(world, true));
    world().into_iter().for_each(check_link_event);
    let took: u64 = (0..6).filter_map(|seed| Some(check_random_events(world()?, seed))).sum();
    assert!(took > 100, "{}, {kind:?}: {took} frames try little", entry.about.name);
    true
}

/// The silence ends with a reset: pending interrupts are forgotten with all other state.
fn check_reset(mut world: World, entry: &Entry) {
    world.arrive();
    world.pass(LONG_NS);
    assert!(world.rig.memo.asked().line || world.kind != Kind::Line, "{}: a frame interrupts", world.name);
    world.silence(true);
    let before = world.raised();
    for link in [false, true] {
        world.arrive();
        world.rig.port.set_link(link, world.rig.now);
        world.pass(LONG_NS);
        assert!(!world.rig.memo.asked().line, "{}: the line is high", world.name);
    }
    world.silence(false);
    world.pass(LONG_NS);
    let asked = world.rig.memo.asked().clone();
    assert_eq!((asked.raised + asked.edges, asked.line), (before, false), "{}: it interrupts", world.name);
    let state = world.rig.port.with(world.rig.now, |adapter, _| adapter.save());
    assert_eq!(state, Some(adapter(entry).save()), "{}: as new", world.name);
}

/// A frame arrives while the driver polls, and the silence begins before the driver unmasks. `moved`: the state is saved and
/// restored in between.
fn check_unmask(mut world: World, moved: bool) {
    world.arrive();
    world.pass(LONG_NS);
    assert_eq!(world.guest.interrupt().ok(), Some(true), "{}: a frame interrupts", world.name);
    world.arrive();
    world.pass(LONG_NS);
    world.silence(true);
    let before = world.raised();
    world.rest();
    if moved {
        let saved = world.rig.port.save(world.rig.now).expect("an adapter can be saved");
        assert_eq!(world.rig.port.restore(&saved, world.rig.now), Some(Ok(())), "{}", world.name);
    }
    world.pass(LONG_NS);
    assert_eq!(world.raised(), before, "{}: messages", world.name);
    world.silence(false);
    assert!(world.raised() > before, "{}: a message afterwards", world.name);
    world.check_delivery(true);
}

/// The link goes down.
fn check_link_event(mut world: World) {
    world.silence(true);
    let before = world.raised();
    world.rig.port.set_link(false, world.rig.now);
    world.pass(LONG_NS);
    assert_eq!(world.raised(), before, "{}: messages", world.name);
    world.silence(false);
    assert!(world.raised() > before, "{}: a message afterwards", world.name);
    if world.kind == Kind::Msix {
        world.check_delivery(false);
    }
}

/// All events that make an adapter interrupt, in random order. Returns the number of frames that passed: none while the link is
/// down, or without bus mastering.
fn check_random_events(mut world: World, seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let (mut link, mut silent) = (true, 0);
    for step in 0..600 {
        let (silenced, before) = (world.is_silenced(), world.raised());
        match random.below(12) {
            0..3 => world.arrive(),
            3 | 4 => world.send(),
            5 => world.attend(),
            6 => _ = world.guest.interrupt().expect("a driver that works"),
            7 => world.rest(),
            8 => world.silence(true),
            // Drivers use the link's vector with MSI-X only.
            9 if world.kind == Kind::Msix => {
                link = !link;
                world.rig.port.set_link(link, world.rig.now);
            }
            10 if random.one_in(2) => world.silence(false),
            _ => world.pass(random.below(400_000)),
        }
        if silenced && world.is_silenced() {
            assert_eq!(world.raised(), before, "{}: seed {seed}, step {step}: a message", world.name);
            silent += 1;
        }
    }
    assert!(silent > 50, "{}: hardly ever silenced", world.name);
    world.silence(false);
    world.check_delivery(link);
    world.took
}
