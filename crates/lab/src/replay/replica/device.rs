//! An adapter with its driver, and smoltcp's device over it.

use std::collections::VecDeque;

use nicety_adapter::{Bus, Offload};
use nicety_drivers::{BUDGET, Driver, DriverError, Made, VirtioNet};
use nicety_frame::Mac;
use smoltcp::phy::{self, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;

use super::bus::PortBus;

/// The longest frame: an MTU of 1500 and the Ethernet header.
const FRAME: usize = 1514;
/// Polls in a row that count as an endless loop.
const POLLS: usize = 10_000;

/// A driver on PCI or on rings, with its adapter, and the packets between it and smoltcp.
pub struct Adapter {
    /// The driver's way to the adapter.
    pub bus: PortBus,
    driver: Made,
    polling: bool,
    received: VecDeque<Vec<u8>>,
    /// Packets that smoltcp has written. They wait for room in the driver's ring.
    sending: VecDeque<Vec<u8>>,
}

macro_rules! either {
    ($self:ident, $driver:ident, $bus:ident => $call:expr) => {{
        let $bus = &mut $self.bus;
        match &mut $self.driver {
            Made::Pci($driver) => $call,
            Made::Rings($driver) => $call,
        }
    }};
}

impl Adapter {
    /// Opens the driver.
    pub fn open(bus: PortBus, driver: Made) -> Result<Self, DriverError> {
        let (received, sending) = (VecDeque::new(), VecDeque::new());
        let mut adapter = Self { bus, driver, polling: false, received, sending };
        either!(adapter, driver, bus => driver.open(bus))?;
        Ok(adapter)
    }

    /// The driver's address.
    pub fn mac(&self) -> Mac {
        match &self.driver {
            Made::Pci(driver) => Driver::mac(driver.as_ref()),
            Made::Rings(driver) => VirtioNet::mac(driver),
        }
    }

    /// Takes pending interrupts, and polls until no packet waits, as an operating system does. True if there was an interrupt.
    pub fn attend(&mut self) -> Result<bool, DriverError> {
        let mut interrupted = false;
        while let Some(vector) = self.bus.take() {
            interrupted = true;
            self.polling |= either!(self, driver, bus => driver.interrupt(bus, vector))?;
            // Rings have no line.
            if matches!(self.driver, Made::Pci(_)) {
                Bus::unmask_line(&mut self.bus)?;
            }
        }
        for _ in 0..POLLS {
            if !self.polling {
                return Ok(interrupted);
            }
            let received = &mut self.received;
            let mut sink = |packet: &mut Vec<u8>, _| received.push_back(std::mem::take(packet));
            let packets = either!(self, driver, bus => driver.receive(bus, BUDGET, &mut sink))?;
            if packets < BUDGET {
                self.polling = either!(self, driver, bus => driver.rest(bus))?;
            }
        }
        Err(DriverError::Device("never lets its driver rest"))
    }

    /// Gives the driver the waiting packets that it has room for, and rings the doorbell. True if there were any.
    pub fn send(&mut self) -> Result<bool, DriverError> {
        let mut sent = false;
        while let Some(packet) = self.sending.front() {
            if !either!(self, driver, bus => driver.transmit(bus, packet, &Offload::default()))? {
                break;
            }
            sent = true;
            self.sending.pop_front();
        }
        if sent {
            either!(self, driver, bus => driver.flush(bus))?;
        }
        Ok(sent)
    }

    /// Whether packets wait for smoltcp.
    pub fn has_received(&self) -> bool {
        !self.received.is_empty()
    }
}

/// A received packet.
pub struct Received(pub Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

/// Room for a packet.
pub struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}

/// A network of which every frame passes through the caller's hands.
#[derive(Debug, Default)]
pub struct Frames {
    /// Frames for smoltcp.
    pub received: VecDeque<Vec<u8>>,
    /// Frames of smoltcp.
    pub sent: VecDeque<Vec<u8>>,
}

impl Device for Frames {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sending<'_>)> {
        let packet = self.received.pop_front()?;
        Some((Received(packet), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// Packets that may wait for room. More stay in TCP's buffers.
const WAITING: usize = 64;

impl Device for Adapter {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sending<'_>)> {
        let packet = self.received.pop_front()?;
        Some((Received(packet), Sending(&mut self.sending)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        if self.sending.len() < WAITING { Some(Sending(&mut self.sending)) } else { None }
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities()
    }
}

/// The network as smoltcp should take it.
fn capabilities() -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ethernet;
    capabilities.max_transmission_unit = FRAME;
    capabilities
}
