//! Working drivers. A hostile guest begins with one, so that frames flow while it does harm.
//!
//! A device without a driver refuses everything at the first check. Here each adapter gets rings, buffers and traffic according to
//! its specification, and reports the addresses of its rings. The catalogue's driver does so for most adapters. A family may have a
//! second driver here, which chooses among more features than the catalogue's.

mod function;
mod virtio_net;
mod vmxnet3;

use nicety_adapter::Offload;

use crate::guest::driver;
use crate::random::Random;
use crate::rig::Rig;

/// Guest memory that a working driver needs, from address 0.
pub const MEMORY: usize = 4 << 20;

/// A working driver. It must survive any content of its memory: the hostile guest changes it.
pub trait Working {
    /// Queues a packet and notifies the device. False if there is no room, or the device has failed.
    fn send(&mut self, rig: &mut Rig, packet: &[u8], offload: &Offload) -> bool;

    /// Handles an interrupt: takes received packets, gives buffers back, unmasks.
    fn attend(&mut self, rig: &mut Rig);

    /// Its rings and other shared structures: address and bytes.
    fn shared(&self) -> &[(u64, u64)];
}

type Begin = fn(&mut Rig, &mut Random) -> Option<Box<dyn Working>>;

/// This crate's own drivers, by the catalogue's driver that each replaces.
const OWN: &[(&str, Begin)] = &[("vmxnet3", vmxnet3::begin), ("virtio-net", virtio_net::begin)];

/// Sets up the adapter with this name. `random` chooses its features. `None` if the device cannot be set up in its present state.
pub fn begin(name: &str, rig: &mut Rig, random: &mut Random) -> Option<Box<dyn Working>> {
    let driver = driver(name);
    match OWN.iter().find(|(name, _)| *name == driver.name) {
        Some((_, begin)) => begin(rig, random),
        None => function::begin(driver, rig),
    }
}

fn get<const N: usize>(rig: &Rig, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    // Addresses are this side's own and in bounds.
    let _ = rig.memory.read(at, &mut bytes);
    bytes
}

fn put(rig: &Rig, at: u64, bytes: &[u8]) {
    let _ = rig.memory.write(at, bytes);
}
