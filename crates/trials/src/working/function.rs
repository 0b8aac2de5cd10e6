//! The catalogue's driver of a PCI function, on the rig as its [`Bus`].

use std::sync::Arc;

use nicety_adapter::{Bus, BusError, InterruptKind, Offload};
use nicety_drivers::catalog::Entry;
use nicety_drivers::{Arena, BUDGET, Driver, Made};
use nicety_memory::Map;

use super::{MEMORY, Working};
use crate::rig::Rig;

/// Begin of the driver's memory.
const BASE: u64 = 0x1000;
/// Longer allocations of the driver hold buffers.
const RING_MAX: u64 = 128 << 10;

/// A rig's function, as its driver sees it.
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

    /// The rig records every interrupt.
    fn interrupts(&mut self, _: InterruptKind) -> Result<(), BusError> {
        Ok(())
    }

    fn unmask_line(&mut self) -> Result<(), BusError> {
        Ok(())
    }
}

struct Driven {
    driver: Box<dyn Driver>,
    shared: Vec<(u64, u64)>,
}

impl Working for Driven {
    fn send(&mut self, rig: &mut Rig, packet: &[u8], offload: &Offload) -> bool {
        let mut bus = Wires(rig);
        // A packet that the driver refuses is not sent.
        let queued = self.driver.transmit(&mut bus, packet, offload).unwrap_or(false);
        queued && self.driver.flush(&mut bus).is_ok()
    }

    fn attend(&mut self, rig: &mut Rig) {
        let mut bus = Wires(rig);
        // The driver may fail on its damaged rings; the device must not.
        let _ = self.driver.interrupt(&mut bus, 0);
        let _ = self.driver.receive(&mut bus, BUDGET, &mut |_, _| ());
        let _ = self.driver.rest(&mut bus);
    }

    fn shared(&self) -> &[(u64, u64)] {
        &self.shared
    }
}

/// Opens the driver. It shares the allocations for its rings, or, if it allocates nothing, the beginning of its memory.
pub fn begin(driver: &Entry, rig: &mut Rig) -> Option<Box<dyn Working>> {
    let Made::Pci(mut driver) = (driver.make)(Arena::new(BASE, MEMORY as u64 - BASE)) else { return None };
    let (opened, mut shared) = Arena::noting(|| driver.open(&mut Wires(rig)));
    opened.ok()?;
    shared.retain(|(_, bytes)| *bytes <= RING_MAX);
    if shared.is_empty() {
        shared.push((BASE, RING_MAX));
    }
    Some(Box::new(Driven { driver, shared }))
}
