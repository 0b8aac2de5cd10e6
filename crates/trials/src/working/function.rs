//! Adapters for which there is a whole driver: the driver, on a [`Bus`] that is the rig.

use std::sync::Arc;

use nicety_adapter::{Bus, BusError, InterruptKind, Offload};
use nicety_drivers::{Arena, BUDGET, Driver, E1000};
use nicety_memory::Map;

use super::{MEMORY, Working};
use crate::rig::Rig;

/// A rig's function, seen by its driver.
struct Wires<'a>(&'a mut Rig);

impl Bus for Wires<'_> {
    fn config_read(&mut self, offset: u16, data: &mut [u8]) -> Result<(), BusError> {
        self.0.port.config_read(u64::from(offset), data, self.0.now);
        Ok(())
    }

    fn config_write(&mut self, offset: u16, data: &[u8]) -> Result<(), BusError> {
        self.0.port.config_write(offset, data, self.0.now);
        Ok(())
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        self.0.port.read(bar, offset, data, self.0.now);
        Ok(())
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8]) -> Result<(), BusError> {
        self.0.port.write(bar, offset, data, self.0.now);
        Ok(())
    }

    fn memory(&self) -> &Arc<Map> {
        &self.0.memory
    }

    /// The rig records whatever is raised.
    fn interrupts(&mut self, _: InterruptKind) -> Result<(), BusError> {
        Ok(())
    }

    fn unmask_line(&mut self) -> Result<(), BusError> {
        Ok(())
    }
}

struct Driven<D> {
    driver: D,
    shared: Vec<(u64, u64)>,
}

impl<D: Driver> Working for Driven<D> {
    fn send(&mut self, rig: &mut Rig, packet: &[u8], offload: &Offload) -> bool {
        let mut bus = Wires(rig);
        // A packet that the driver finds impossible is not sent.
        let queued = self.driver.transmit(&mut bus, packet, offload).unwrap_or(false);
        queued && self.driver.flush(&mut bus).is_ok()
    }

    fn attend(&mut self, rig: &mut Rig) {
        let mut bus = Wires(rig);
        // The driver may stumble over what was done to its rings; the device must not.
        let _ = self.driver.interrupt(&mut bus, 0);
        let _ = self.driver.receive(&mut bus, BUDGET, &mut |_, _| ());
        let _ = self.driver.rest(&mut bus);
    }

    fn shared(&self) -> &[(u64, u64)] {
        &self.shared
    }
}

/// The 82540EM. Its rings are where its registers say: RDBAL, RDLEN, TDBAL, TDLEN (8254x manual, sections 13.4.25, 27,
/// 38 and 40).
pub fn e1000(rig: &mut Rig) -> Option<Box<dyn Working>> {
    let mut driver = E1000::new(Arena::new(0x1000, MEMORY as u64 - 0x1000));
    let mut bus = Wires(rig);
    driver.open(&mut bus).ok()?;
    let mut shared = Vec::new();
    for (base, length) in [(0x2800, 0x2808), (0x3800, 0x3808)] {
        shared.push((u64::from(bus.read32(0, base).ok()?), u64::from(bus.read32(0, length).ok()?)));
    }
    Some(Box::new(Driven { driver, shared }))
}
