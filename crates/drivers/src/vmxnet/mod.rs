//! vmxnet and enhanced vmxnet, driven as VMware's driver for Linux does (open-vm-tools, modules/linux/vmxnet): all but commands in
//! shared memory, and an interrupt that the driver acknowledges before its work. A lance with a morph port is morphed into a vmxnet
//! first.
//!
//! ```text
//! arena:  Vmxnet2_DriverData ─ receive ring ─ second receive ring ─ transmit ring, then buffers, pages, headers, pages
//! ```
//! The driver notifies the device when as many packets wait as the device asks for (`txClusterLength`), or when the ring is nearly
//! full; never of receive buffers. Not driven: wake-up patterns, power states, MAC addresses other than the device's own.

mod layout;
mod receive;
mod shared;
mod transmit;

use std::sync::Arc;

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::Mac;
use nicety_memory::Map;

pub use self::layout::DEVICES;
use self::layout::*;
use self::receive::Receive;
use self::shared::Shared;
use self::transmit::Transmit;
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// Most entries of the rings, and pages of an enhanced device: the arena holds as many. Linux uses the device's numbers.
const RECEIVE_MAX: u32 = 256;
const PAGES: u32 = 256;
const TRANSMIT_MAX: u32 = 128;
/// Entries if the device suggests no usable number.
const DEFAULT: u32 = 100;
/// Bytes of the longest packet that the device segments.
const SEGMENT_BYTES: u32 = 65_535;
/// Times that the driver asks before a close whether all packets are sent.
const TIMEOUT: u32 = 200;

/// The driver's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Packets may arrive uncut, if the device supports it.
    pub lpd: bool,
    /// Most pages of a received packet. Linux's `MAX_SKB_FRAGS`.
    pub frags: u16,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { lpd: true, frags: 17 }
    }
}

/// The driver.
#[derive(Debug)]
pub struct Vmxnet {
    arena: Arena,
    settings: Settings,
    memory: Arc<Map>,
    ports: Ports,
    mac: Mac,
    link: bool,
    features: u32,
    capabilities: u32,
    shared: Shared,
    receive: Receive,
    transmit: Transmit,
    open: bool,
}

impl Vmxnet {
    /// A driver with Linux's settings that uses this memory: some 4 MB of it.
    pub fn new(arena: Arena) -> Vmxnet {
        Vmxnet::with(arena, Settings::default())
    }

    /// A driver with other settings.
    pub fn with(arena: Arena, settings: Settings) -> Vmxnet {
        Vmxnet {
            arena,
            settings,
            memory: Map::empty(),
            ports: Ports::default(),
            mac: Mac([0; 6]),
            link: false,
            features: 0,
            capabilities: 0,
            shared: Shared::default(),
            receive: Receive::default(),
            transmit: Transmit::default(),
            open: false,
        }
    }

    fn has(&self, feature: u32, capabilities: u32) -> bool {
        self.features & feature == feature && self.capabilities & capabilities == capabilities
    }

    /// Selects the features to use: those that the device has, with everything that they depend on.
    fn choose(&mut self) {
        let jumbo = self.has(FEATURE_JUMBO, CAP_TX_CHAIN | CAP_RX_CHAIN);
        let tso = self.has(FEATURE_TSO, CAP_TSO | CAP_TX_CHAIN) && self.capabilities & CAP_CHECKSUM != 0;
        let large = jumbo && self.settings.lpd && self.has(FEATURE_LPD, CAP_LPD);
        let on = [(jumbo, FEATURE_JUMBO), (tso, FEATURE_TSO), (large, FEATURE_LPD)];
        self.features = on.into_iter().filter(|&(on, _)| on).map(|(_, bit)| bit).sum();
    }

    fn make_rings(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let count = |advice: u32, most: u32| if advice == 0 { DEFAULT.min(most) } else { advice.min(most) };
        let receive = count(self.ports.ask(bus, GET_RX_BUFFERS)?, RECEIVE_MAX);
        let transmit = count(self.ports.ask(bus, GET_TX_BUFFERS)?, TRANSMIT_MAX);
        let jumbo = self.features & FEATURE_JUMBO != 0;
        // Each open allocates the driver's memory from the beginning.
        let (memory, mut arena) = (Arc::clone(&self.memory), self.arena);
        let rings = [receive, if jumbo { PAGES } else { 1 }];
        self.shared = Shared::new(&memory, &mut arena, rings, transmit)?;
        self.shared.enable(&memory, self.features, self.settings.frags)?;
        self.receive = Receive::new(&memory, &mut arena, &self.shared, jumbo)?;
        let chain = self.capabilities & CAP_TX_CHAIN != 0;
        self.transmit = Transmit::new(&memory, &mut arena, &self.shared, chain)?;
        Ok(())
    }
}

impl Driver for Vmxnet {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        let segment_bytes = if self.features & FEATURE_TSO != 0 { SEGMENT_BYTES } else { 0 };
        let checksum = self.capabilities & CAP_CHECKSUM != 0;
        Features { checksum, segment_bytes, interrupts: InterruptKind::Intx }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        let device = crate::enable(bus, &[DEVICES[0], LANCE])?;
        let ports = Ports::find(bus, device)?;
        self.ports = ports;
        ports.agree(bus)?;
        self.features = ports.ask(bus, GET_FEATURES)?;
        self.capabilities = ports.ask(bus, GET_CAPABILITIES)?;
        self.choose();
        self.mac = Mac(ports.address(bus, self.capabilities)?);
        ports.write(bus, INIT_ADDR, 0)?;
        self.make_rings(bus)?;
        bus.interrupts(InterruptKind::Intx)?;
        ports.write(bus, INIT_ADDR, self.shared.at as u32)?;
        ports.write(bus, INIT_LENGTH, self.shared.bytes)?;
        if ports.read(bus, INIT_LENGTH)? == 0 {
            return Err(DriverError::Device("does not take its configuration"));
        }
        if self.capabilities & CAP_HEADER_COPY != 0 {
            ports.command(bus, PIN_TX_BUFFERS)?;
        }
        ports.command(bus, UPDATE_LADRF)?;
        ports.command(bus, UPDATE_IFF)?;
        self.link = ports.read(bus, STATUS)? & STATUS_CONNECTED != 0;
        self.open = true;
        Ok(())
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, _vector: u16) -> Result<bool, DriverError> {
        if self.open {
            self.ports.command(bus, INTR_ACK)?;
        }
        Ok(self.open)
    }

    fn receive(&mut self, _bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        if !self.open {
            return Ok(0);
        }
        self.transmit.reclaim(&self.memory, &self.shared)?;
        let mut packets = 0;
        while packets < budget {
            let received: Received = match self.receive.next(&self.memory, &self.shared)? {
                Some(received) => received,
                None => break,
            };
            packets += 1;
            sink(self.receive.packet(), received);
        }
        Ok(packets)
    }

    fn transmit(&mut self, _bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        if !self.open {
            return Ok(false);
        }
        if offload.segment.is_some() && self.features & FEATURE_TSO == 0 {
            return Err(DriverError::Device("does not segment"));
        }
        self.transmit.queue(&self.memory, &self.shared, packet, offload)
    }

    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if self.transmit.doorbell() {
            self.ports.read(bus, TX)?;
        }
        Ok(())
    }

    fn rest(&mut self, _bus: &mut dyn Bus) -> Result<bool, DriverError> {
        // No interrupt is masked: events of the meantime interrupt.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if !self.open {
            return crate::disable(bus);
        }
        self.ports.command(bus, INTR_DISABLE)?;
        for _ in 0..TIMEOUT {
            if self.transmit.reclaim(&self.memory, &self.shared)? == 0 {
                break;
            }
            self.ports.command(bus, CHECK_TX_DONE)?;
        }
        self.ports.write(bus, INIT_ADDR, 0)?;
        self.ports.morph_back(bus)?;
        (self.open, self.link) = (false, false);
        crate::disable(bus)
    }
}
