//! A guest with a complete driver of any kind. It takes interrupts and polls as an operating system does.

use nicety_adapter::Offload;
use nicety_drivers::{
    Arena, BUDGET, Driver, DriverError, Features, Made, Received, Sink, VirtioNet, Vmxnet, Vmxnet3, virtio_net, vmxnet,
    vmxnet3,
};
use nicety_frame::Mac;

use crate::bus::PortBus;

/// Bytes of memory that a guest needs.
pub const MEMORY: usize = 16 << 20;
/// Polls in a row that count as an endless loop.
const POLLS: usize = 10_000;

fn arena() -> Arena {
    Arena::new(0x10_0000, MEMORY as u64 - 0x10_0000)
}

/// The driver for an adapter of the registry, by the adapter's name.
///
/// # Panics
/// If there is none.
pub fn driver(adapter: &str) -> &'static nicety_drivers::catalog::Entry {
    let found = nicety_adapters::find(adapter).and_then(|entry| nicety_drivers::find(entry.about.pci));
    found.unwrap_or_else(|| panic!("{adapter} has no driver: write one in crates/drivers"))
}

/// A driver, on PCI or on rings.
pub enum Net {
    /// A driver that accesses registers.
    Pci(Box<dyn Driver>),
    /// A driver that shares rings.
    Rings(Box<VirtioNet>),
}

impl Net {
    /// The driver of the registry's adapter with this name.
    pub fn named(name: &str) -> Net {
        match (driver(name).make)(arena()) {
            Made::Pci(driver) => Net::Pci(driver),
            Made::Rings(driver) => Net::Rings(driver),
        }
    }

    /// A vmxnet3 driver with other settings.
    pub fn vmxnet3(settings: vmxnet3::Settings) -> Net {
        Net::Pci(Box::new(Vmxnet3::with(arena(), settings)))
    }

    /// A vmxnet driver with other settings.
    pub fn vmxnet(settings: vmxnet::Settings) -> Net {
        Net::Pci(Box::new(Vmxnet::with(arena(), settings)))
    }

    /// A virtio-net driver with rings of this size and no features but these.
    pub fn virtio(size: u16, features: u64) -> Net {
        Net::Rings(Box::new(VirtioNet::with(arena(), size, features)))
    }

    /// The same driver on PCI.
    pub fn virtio_pci(size: u16, features: u64) -> Net {
        Net::Pci(Box::new(virtio_net::pci::VirtioPci::with(arena(), size, features)))
    }
}

/// See the module's page.
pub struct Guest {
    /// Its adapter.
    pub bus: PortBus,
    net: Net,
    polling: bool,
}

macro_rules! either {
    ($self:ident, $driver:ident, $bus:ident => $call:expr) => {{
        let $bus = &mut $self.bus;
        match &mut $self.net {
            Net::Pci($driver) => $call,
            Net::Rings($driver) => $call,
        }
    }};
}

impl Guest {
    /// A guest on this bus. Its driver is not open.
    pub fn new(bus: PortBus, net: Net) -> Guest {
        Guest { bus, net, polling: false }
    }

    /// Its driver's address.
    pub fn mac(&self) -> Mac {
        match &self.net {
            Net::Pci(driver) => driver.mac(),
            Net::Rings(driver) => driver.mac(),
        }
    }

    /// Capabilities of its driver with its adapter. Known once open.
    pub fn features(&self) -> Features {
        match &self.net {
            Net::Pci(driver) => driver.features(),
            Net::Rings(driver) => driver.features(),
        }
    }

    /// Whether its driver considers the link up.
    pub fn link(&self) -> bool {
        match &self.net {
            Net::Pci(driver) => driver.link(),
            Net::Rings(driver) => driver.link(),
        }
    }

    /// Opens the driver.
    pub fn open(&mut self) -> Result<(), DriverError> {
        self.polling = false;
        either!(self, driver, bus => driver.open(bus))
    }

    /// Closes the driver.
    pub fn close(&mut self) -> Result<(), DriverError> {
        either!(self, driver, bus => driver.close(bus))
    }

    /// Has its driver receive frames of this VLAN, too.
    pub fn join_vlan(&mut self, id: u16) -> Result<(), DriverError> {
        match &mut self.net {
            Net::Pci(driver) => driver.join_vlan(&mut self.bus, id),
            Net::Rings(_) => Ok(()),
        }
    }

    /// Queues a packet. False if there is no room.
    pub fn queue(&mut self, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        either!(self, driver, bus => driver.transmit(bus, packet, offload))
    }

    /// Notifies the device of queued packets.
    pub fn flush(&mut self) -> Result<(), DriverError> {
        either!(self, driver, bus => driver.flush(bus))
    }

    /// Takes the pending interrupts. True if the driver should poll.
    pub fn interrupt(&mut self) -> Result<bool, DriverError> {
        while let Some(vector) = self.bus.take() {
            self.polling |= either!(self, driver, bus => driver.interrupt(bus, vector))?;
            // Rings have no line.
            if matches!(self.net, Net::Pci(_)) {
                nicety_adapter::Bus::unmask_line(&mut self.bus).map_err(DriverError::from)?;
            }
        }
        Ok(self.polling)
    }

    /// Whether the driver polls: it took an interrupt and has not unmasked since.
    pub fn is_polling(&self) -> bool {
        self.polling
    }

    /// Polls once. Returns the number of received packets.
    pub fn poll(&mut self, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        either!(self, driver, bus => driver.receive(bus, BUDGET, sink))
    }

    /// Ends polling: unmasks interrupts. False if more packets already wait.
    pub fn rest(&mut self) -> Result<bool, DriverError> {
        self.polling = either!(self, driver, bus => driver.rest(bus))?;
        Ok(!self.polling)
    }

    /// Takes pending interrupts, and polls until no packet waits. Returns the number of received packets.
    pub fn attend(&mut self, sink: &mut dyn FnMut(&[u8], Received)) -> Result<usize, DriverError> {
        let mut total = 0;
        if !self.interrupt()? {
            return Ok(0);
        }
        for _ in 0..POLLS {
            let packets = self.poll(&mut |packet, received| sink(packet, received))?;
            total += packets;
            if packets < BUDGET && self.rest()? {
                return Ok(total);
            }
        }
        Err(DriverError::Device("never lets its driver rest"))
    }
}
