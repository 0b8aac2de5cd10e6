//! MSI and MSI-X are memory writes of the function, so that none may go while bus mastering is off (PCI 3.0, sections
//! 6.2.2 and 6.8.1); what was to be told meanwhile is told when it is on again.

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_adapters::Entry;

use crate::bus::PortBus;
use crate::guest::{Guest, MEMORY, Net};
use crate::random::Random;
use crate::rig::{MAC, Rig};

/// PCI 3.0, sections 6.2.2, 6.7, 6.8.1 and 6.8.2.
const COMMAND: u16 = 0x04;
const COMMAND_MASTER: u16 = 1 << 2;
const CAPABILITIES: u16 = 0x34;
const MSI: u8 = 0x05;
const MSI_ENABLE: u16 = 1;
const MSIX: u8 = 0x11;
const MSIX_ENABLE: u16 = 1 << 15;
/// Longer than any timer of an adapter or of its moderation.
const LONG_NS: u64 = 20_000_000;

/// A working driver whose interrupts are messages.
struct World {
    rig: Rig,
    guest: Guest,
    name: String,
    msix: bool,
    /// Packets that the driver took.
    took: u64,
}

impl World {
    /// `None` of an adapter that has no such messages.
    fn new(entry: &Entry, msix: bool) -> Option<World> {
        let rig = Rig::new(entry, MEMORY, true);
        let has = rig.port.with_pci(rig.now, |pci, _| match msix {
            true => pci.function().msix().is_some(),
            false => pci.function().msi_vectors() > 0,
        });
        has.filter(|has| *has)?;
        let guest = Guest::new(PortBus::of(&rig), Net::named(entry.about.name));
        let name = format!("{} by {}", entry.about.name, if msix { "MSI-X" } else { "MSI" });
        let mut world = World { rig, guest, name, msix, took: 0 };
        world.guest.open().expect("a new adapter can be opened");
        let vectors = InterruptKind::Msix(1);
        world.guest.bus.interrupts(vectors).expect("it has MSI-X, as all that have MSI here");
        if !msix {
            let (at, other) = (world.capability(MSI), world.capability(MSIX));
            world.set(other + 2, MSIX_ENABLE, false);
            world.rig.port.config_write(at + 4, &0xfee0_0000u32.to_le_bytes(), world.rig.now);
            world.set(at + 2, MSI_ENABLE, true);
        }
        world.pass(LONG_NS);
        world.attend();
        Some(world)
    }

    fn get(&self, at: u16) -> u16 {
        let mut data = [0; 2];
        self.rig.port.config_read(at.into(), &mut data, self.rig.now);
        u16::from_le_bytes(data)
    }

    fn set(&self, at: u16, bits: u16, on: bool) {
        let value = if on { self.get(at) | bits } else { self.get(at) & !bits };
        self.rig.port.config_write(at, &value.to_le_bytes(), self.rig.now);
    }

    fn capability(&self, kind: u8) -> u16 {
        let mut at = self.get(CAPABILITIES) & 0xfc;
        while at != 0 && self.get(at).to_le_bytes()[0] != kind {
            at = u16::from(self.get(at).to_le_bytes()[1] & 0xfc);
        }
        assert_ne!(at, 0, "{}: capability {kind:#x}", self.name);
        at
    }

    fn master(&mut self, on: bool) {
        self.set(COMMAND, COMMAND_MASTER, on);
        self.rig.settle();
    }

    fn is_master(&self) -> bool {
        self.get(COMMAND) & COMMAND_MASTER != 0
    }

    fn raised(&self) -> u64 {
        self.rig.memo.asked().raised
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

    /// What lies in the driver's rings reaches it, and what it should know it does.
    fn nothing_is_lost(&mut self, link: bool) {
        for _ in 0..4 {
            self.pass(LONG_NS);
            self.attend();
        }
        let taken = self.rig.port.state().counters.taken().packets;
        assert_eq!(self.took, taken, "{}: packets that the driver was told of", self.name);
        assert_eq!(self.guest.link(), link, "{}: the link, as the driver knows it", self.name);
    }
}

/// Without bus mastering no message goes, whatever there would be to tell; with it again nothing is lost. Returns in how many ways the
/// adapter sends messages.
pub fn no_message_without_bus_mastering(entry: &Entry) -> usize {
    let mut ways = 0;
    for msix in [true, false] {
        ways += usize::from(World::new(entry, msix).is_some());
        World::new(entry, msix).into_iter().for_each(|world| a_lifted_mask(world, false));
        World::new(entry, msix).into_iter().for_each(|world| a_lifted_mask(world, true));
        World::new(entry, msix).into_iter().for_each(a_link);
        for seed in 0..6 {
            World::new(entry, msix).into_iter().for_each(|world| anything(world, seed));
        }
    }
    ways
}

/// A frame comes while the driver polls, and bus mastering goes before the driver unmasks. `moved`: the state is saved and
/// restored in between.
fn a_lifted_mask(mut world: World, moved: bool) {
    world.arrive();
    world.pass(LONG_NS);
    assert_eq!(world.guest.interrupt().ok(), Some(true), "{}: a frame interrupts", world.name);
    world.arrive();
    world.pass(LONG_NS);
    world.master(false);
    let before = world.raised();
    world.rest();
    if moved {
        let saved = world.rig.port.save(world.rig.now).expect("an adapter can be saved");
        assert_eq!(world.rig.port.restore(&saved, world.rig.now), Some(Ok(())), "{}", world.name);
    }
    world.pass(LONG_NS);
    assert_eq!(world.raised(), before, "{}: messages without bus mastering", world.name);
    world.master(true);
    assert!(world.raised() > before, "{}: a message with bus mastering again", world.name);
    world.nothing_is_lost(true);
}

/// The link goes down.
fn a_link(mut world: World) {
    world.master(false);
    let before = world.raised();
    world.rig.port.set_link(false, world.rig.now);
    world.pass(LONG_NS);
    assert_eq!(world.raised(), before, "{}: messages without bus mastering", world.name);
    world.master(true);
    assert!(world.raised() > before, "{}: a message with bus mastering again", world.name);
    if world.msix {
        world.nothing_is_lost(false);
    }
}

/// Everything that makes an adapter interrupt, in any order.
fn anything(mut world: World, seed: u64) {
    let mut random = Random::new(seed);
    let (mut link, mut silent) = (true, 0);
    for step in 0..600 {
        let (without, before) = (!world.is_master(), world.raised());
        match random.below(12) {
            0..3 => world.arrive(),
            3 | 4 => world.send(),
            5 => world.attend(),
            6 => _ = world.guest.interrupt().expect("a driver that works"),
            7 => world.rest(),
            8 => world.master(false),
            // Drivers know the link's vector with MSI-X alone.
            9 if world.msix => {
                link = !link;
                world.rig.port.set_link(link, world.rig.now);
            }
            10 if random.one_in(2) => world.master(true),
            _ => world.pass(random.below(400_000)),
        }
        if without && !world.is_master() {
            assert_eq!(world.raised(), before, "{}: seed {seed}, step {step}: a message", world.name);
            silent += 1;
        }
    }
    assert!(silent > 50, "{}: bus mastering was hardly ever off", world.name);
    world.master(true);
    world.nothing_is_lost(link);
    assert!(world.took > 20, "{}: {} frames try little", world.name, world.took);
}
