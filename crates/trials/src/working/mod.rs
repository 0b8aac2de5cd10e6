//! Guests whose driver works: the state from which a hostile guest begins, so that frames flow while it does harm.
//!
//! A device that nobody has set up refuses everything at the first check. Here each adapter gets rings, buffers and
//! traffic as its specification asks for, and tells where in memory its rings lie. Its driver in the catalogue does for
//! that. A family may have a driver of its own here besides, which chooses among features of which the other has a few.

mod function;
mod virtio_net;
mod vmxnet3;

use nicety_adapter::Offload;

use crate::guest::driver;
use crate::random::Random;
use crate::rig::Rig;

/// Bytes of guest memory that a working driver needs, from address 0 on.
pub const MEMORY: usize = 4 << 20;

/// A driver at work. It must stand anything that its own memory may hold: the hostile guest changes it.
pub trait Working {
    /// Queues a packet and tells the device. False if there was no room, or nothing works any more.
    fn send(&mut self, rig: &mut Rig, packet: &[u8], offload: &Offload) -> bool;

    /// Does what an interrupt asks for: takes what came, gives buffers back, unmasks.
    fn attend(&mut self, rig: &mut Rig);

    /// Where its rings and other shared structures lie: address and bytes.
    fn shared(&self) -> &[(u64, u64)];
}

type Begin = fn(&mut Rig, &mut Random) -> Option<Box<dyn Working>>;

/// Drivers that are of this crate, by the catalogue's driver in whose place they are.
const OWN: &[(&str, Begin)] = &[("vmxnet3", vmxnet3::begin), ("virtio-net", virtio_net::begin)];

/// Sets the adapter of this name up, with features as `random` chooses. `None` if the device does not let itself be
/// set up in the state that it is in.
pub fn begin(name: &str, rig: &mut Rig, random: &mut Random) -> Option<Box<dyn Working>> {
    let driver = driver(name);
    match OWN.iter().find(|(name, _)| *name == driver.name) {
        Some((_, begin)) => begin(rig, random),
        None => function::begin(driver, rig),
    }
}

fn get<const N: usize>(rig: &Rig, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    // Addresses are this side's own, and in bounds.
    let _ = rig.memory.read(at, &mut bytes);
    bytes
}

fn put(rig: &Rig, at: u64, bytes: &[u8]) {
    let _ = rig.memory.write(at, bytes);
}
