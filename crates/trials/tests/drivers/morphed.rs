//! The flexible adapter: a pcnet under one driver, a vmxnet under another, without a restart in between.

use nicety_adapter::{Offload, Reset};
use nicety_adapters::find;
use nicety_drivers::vmxnet::Settings;
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::rig::{MAC, Rig};

use crate::packets::{PARTIAL, is_right, partial, whole};
use crate::{PEER, World};

/// Checks that frames pass in both directions.
fn passes(world: &mut World, who: &str) {
    for number in 0..300 {
        let payload = number * 37 % 1461;
        world.send(&whole(PEER, MAC.0, payload, number as u8), &Offload::default());
        world.arrive(whole(MAC.0, PEER, payload, number as u8 ^ 0xff), Offload::default());
        world.run();
        let (out, took) = (world.out(), world.took());
        assert_eq!((out.len(), took.len()), (1, 1), "{who}: {number}");
        assert!(out[0].0.starts_with(&whole(PEER, MAC.0, payload, number as u8)), "{who}: sent {number}");
        assert!(took[0].0.starts_with(&whole(MAC.0, PEER, payload, number as u8 ^ 0xff)), "{who}: received {number}");
    }
}

/// Another driver takes over the device.
fn driven_by(world: &mut World, net: Net) {
    world.guest.close().unwrap();
    world.guest = Guest::new(PortBus::of(&world.rig), net);
    world.guest.bus.now = world.rig.now;
    world.open();
}

#[test]
fn a_flexible_adapter_is_a_pcnet_then_a_vmxnet_then_a_pcnet_again() {
    let mut world = World::with("flexible", false, Net::named("flexible"));
    passes(&mut world, "a pcnet");
    for _ in 0..2 {
        driven_by(&mut world, Net::vmxnet(Settings::default()));
        assert!(world.guest.features().checksum, "no pcnet makes checksums");
        passes(&mut world, "a vmxnet");
        world.send(&partial(PEER, MAC.0, 900, 1), &Offload { checksum: PARTIAL, segment: None });
        world.run();
        assert!(world.out().iter().all(|(frame, _)| is_right(frame)));
        driven_by(&mut world, Net::named("flexible"));
        passes(&mut world, "a pcnet again");
    }
}

#[test]
fn a_reset_under_a_vmxnet_driver_leaves_a_pcnet() {
    let mut world = World::with("flexible", false, Net::vmxnet(Settings::default()));
    passes(&mut world, "a vmxnet");
    world.rig.port.reset(Reset::Bus, world.rig.now);
    world.guest = Guest::new(PortBus::of(&world.rig), Net::named("flexible"));
    world.guest.bus.now = world.rig.now;
    world.open();
    passes(&mut world, "a pcnet");
}

#[test]
fn a_morphed_adapter_moves_as_a_vmxnet() {
    let mut world = World::with("flexible", false, Net::vmxnet(Settings::default()));
    passes(&mut world, "a vmxnet");
    let saved = world.rig.port.save(world.rig.now).unwrap();
    let mut new = Rig::around(find("flexible").unwrap(), std::sync::Arc::clone(&world.rig.memory), false);
    new.now = world.rig.now;
    assert_eq!(new.port.restore(&saved, new.now), Some(Ok(())));
    world.guest.bus = PortBus::of(&new);
    world.guest.bus.now = new.now;
    world.rig = new;
    passes(&mut world, "a vmxnet that moved");
}

#[test]
fn a_pcnet_that_is_none_but_a_pcnet_is_no_vmxnet() {
    let rig = Rig::new(find("vlance").unwrap(), MEMORY, false);
    let mut guest = Guest::new(PortBus::of(&rig), Net::vmxnet(Settings::default()));
    let refused = guest.open().unwrap_err().to_string();
    assert_eq!(refused, "the device is a lance that becomes nothing else");
}
