//! The same driver on PCI (virtio 1.2, section 4.1), through the modern interface of a transitional or modern function.
//! Capabilities locate its structures, and MSI-X has a vector for each ring.

use std::sync::Arc;

use nicety_adapter::{Bus, BusError, Offload, RingPlace};
use nicety_frame::Mac;
use nicety_memory::Map;

use super::{RECEIVE, RingBus, TRANSMIT, VirtioNet};
use crate::{Arena, Driver, DriverError, Features, Sink, config};

/// Transitional (4.1.2.1). A modern one, 1af4:1041, is driven on its bare rings here.
pub const DEVICES: [(u16, u16); 1] = [(0x1af4, 0x1000)];
/// The ID of vendor-specific capabilities, and the offset of the list's head.
const VENDOR: u8 = 9;
const CAPABILITIES: u16 = 0x34;
/// Capabilities that the driver follows: a longer list is a loop.
const CAPABILITIES_MAX: usize = 48;
/// `cfg_type` (4.1.4).
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;
/// Fields of the common structure (4.1.4.3).
const DEVICE_FEATURE_SELECT: u64 = 0x00;
const DEVICE_FEATURE: u64 = 0x04;
const DRIVER_FEATURE_SELECT: u64 = 0x08;
const DRIVER_FEATURE: u64 = 0x0c;
const CONFIG_VECTOR: u64 = 0x10;
const DEVICE_STATUS: u64 = 0x14;
const QUEUE_SELECT: u64 = 0x16;
const QUEUE_SIZE: u64 = 0x18;
const QUEUE_VECTOR: u64 = 0x1a;
const QUEUE_ENABLE: u64 = 0x1c;
const QUEUE_NOTIFY_OFF: u64 = 0x1e;
const QUEUE_AREAS: [u64; 3] = [0x20, 0x28, 0x30];
/// Bits of the device status (2.1).
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
/// Vector of configuration changes: the link.
const LINK_VECTOR: u16 = TRANSMIT + 1;
/// Reads of a status before the driver gives up waiting for a change.
const TIMEOUT: u32 = 1_000;

/// A structure's BAR and offset.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    bar: u8,
    offset: u64,
}

/// The function's structures.
#[derive(Clone, Copy, Debug, Default)]
struct Function {
    common: Place,
    device: Place,
    notify: Place,
    /// Bytes from one doorbell to the next, multiplied by a queue's notify offset.
    multiplier: u64,
    doorbells: [u64; 2],
    started: u16,
}

/// The driver.
#[derive(Debug)]
pub struct VirtioPci {
    net: VirtioNet,
    function: Function,
}

/// A function's rings, during one call.
struct Rings<'a> {
    bus: &'a mut dyn Bus,
    function: &'a mut Function,
}

impl Function {
    fn find(bus: &mut dyn Bus) -> Result<Self, DriverError> {
        let mut this = Self::default();
        let (mut found, mut at) = (0, config::read16(bus, CAPABILITIES)? & 0xfc);
        for _ in 0..CAPABILITIES_MAX {
            if at == 0 {
                break;
            }
            let mut bytes = [0; 20];
            bus.config_read(at, &mut bytes)?;
            let [id, next, _, kind, bar, ..] = bytes;
            let dword =
                |from: usize| bytes[from..from + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            let place = Place { bar, offset: dword(8).into() };
            let structure = match kind {
                COMMON => Some(&mut this.common),
                DEVICE => Some(&mut this.device),
                NOTIFY => {
                    this.multiplier = dword(16).into();
                    Some(&mut this.notify)
                }
                _ => None,
            };
            if id == VENDOR
                && let Some(structure) = structure
            {
                *structure = place;
                found |= 1 << kind;
            }
            at = u16::from(next) & 0xfc;
        }
        let all = 1 << COMMON | 1 << NOTIFY | 1 << DEVICE;
        if found & all == all { Ok(this) } else { Err(DriverError::Device("does not say where its structures are")) }
    }
}

impl Rings<'_> {
    fn write(&mut self, field: u64, data: &[u8]) -> Result<(), BusError> {
        let Place { bar, offset } = self.function.common;
        self.bus.write(bar, offset + field, data)
    }

    fn read<const N: usize>(&mut self, field: u64) -> Result<[u8; N], BusError> {
        let Place { bar, offset } = self.function.common;
        let mut data = [0; N];
        self.bus.read(bar, offset + field, &mut data)?;
        Ok(data)
    }

    fn read16(&mut self, field: u64) -> Result<u16, BusError> {
        Ok(u16::from_le_bytes(self.read(field)?))
    }

    fn status(&mut self, bits: u8) -> Result<u8, BusError> {
        let [old] = self.read(DEVICE_STATUS)?;
        self.write(DEVICE_STATUS, &[old | bits])?;
        let [now] = self.read(DEVICE_STATUS)?;
        Ok(now)
    }

    /// Section 3.1.1, steps 1 to 3.
    fn reset(&mut self) -> Result<(), BusError> {
        self.write(DEVICE_STATUS, &[0])?;
        for _ in 0..TIMEOUT {
            if self.read(DEVICE_STATUS)? == [0] {
                self.function.started = 0;
                return Ok(());
            }
        }
        Err(BusError("it is never reset".to_owned()))
    }
}

impl RingBus for Rings<'_> {
    fn negotiate(&mut self, wanted: u64) -> Result<u64, BusError> {
        self.status(ACKNOWLEDGE | DRIVER)?;
        let mut taken = 0;
        for select in 0..2u32 {
            self.write(DEVICE_FEATURE_SELECT, &select.to_le_bytes())?;
            let offered = u32::from_le_bytes(self.read(DEVICE_FEATURE)?);
            let some = offered & (wanted >> (32 * select)) as u32;
            self.write(DRIVER_FEATURE_SELECT, &select.to_le_bytes())?;
            self.write(DRIVER_FEATURE, &some.to_le_bytes())?;
            taken |= u64::from(some) << (32 * select);
        }
        if self.status(FEATURES_OK)? & FEATURES_OK == 0 {
            return Err(BusError("it refuses features that it offers".to_owned()));
        }
        Ok(taken)
    }

    fn config(&mut self, offset: u32, data: &mut [u8]) -> Result<(), BusError> {
        let Place { bar, offset: base } = self.function.device;
        self.bus.read(bar, base + u64::from(offset), data)
    }

    fn memory(&self) -> &Arc<Map> {
        self.bus.memory()
    }

    fn start(&mut self, ring: u16, place: RingPlace) -> Result<(), BusError> {
        self.write(QUEUE_SELECT, &ring.to_le_bytes())?;
        if self.read16(QUEUE_SIZE)? < place.size {
            return Err(BusError(format!("its queue {ring} is shorter than {}", place.size)));
        }
        self.write(QUEUE_SIZE, &place.size.to_le_bytes())?;
        self.write(QUEUE_VECTOR, &ring.to_le_bytes())?;
        for (field, address) in QUEUE_AREAS.into_iter().zip([place.descriptors, place.driver, place.device]) {
            self.write(field, &(address as u32).to_le_bytes())?;
            self.write(field + 4, &((address >> 32) as u32).to_le_bytes())?;
        }
        let notify = u64::from(self.read16(QUEUE_NOTIFY_OFF)?);
        if let Some(doorbell) = self.function.doorbells.get_mut(usize::from(ring)) {
            *doorbell = notify * self.function.multiplier;
        }
        self.write(QUEUE_ENABLE, &1u16.to_le_bytes())?;
        self.function.started += 1;
        if self.function.started == 2 {
            self.write(CONFIG_VECTOR, &LINK_VECTOR.to_le_bytes())?;
            self.status(DRIVER_OK)?;
        }
        Ok(())
    }

    /// Resets the device and so stops all rings: this driver does not negotiate the reset of a single queue.
    fn stop(&mut self, _ring: u16) -> Result<(), BusError> {
        self.reset()
    }

    fn kick(&mut self, ring: u16) -> Result<(), BusError> {
        let Place { bar, offset } = self.function.notify;
        let doorbell = self.function.doorbells.get(usize::from(ring)).copied().unwrap_or(0);
        self.bus.write(bar, offset + doorbell, &ring.to_le_bytes())
    }
}

impl VirtioPci {
    /// A driver that uses this memory: some 4 MB of it.
    pub fn new(arena: Arena) -> VirtioPci {
        VirtioPci { net: VirtioNet::new(arena), function: Function::default() }
    }

    /// A driver with rings of this many descriptors (32 to 256, else the nearest), and no features but these.
    pub fn with(arena: Arena, size: u16, features: u64) -> VirtioPci {
        VirtioPci { net: VirtioNet::with(arena, size.min(super::SIZE), features), function: Function::default() }
    }

    fn on<R>(
        &mut self,
        bus: &mut dyn Bus,
        act: impl FnOnce(&mut VirtioNet, &mut dyn RingBus) -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        act(&mut self.net, &mut Rings { bus, function: &mut self.function })
    }
}

impl Driver for VirtioPci {
    fn mac(&self) -> Mac {
        self.net.mac()
    }

    fn features(&self) -> Features {
        Features { interrupts: nicety_adapter::InterruptKind::Msix(LINK_VECTOR + 1), ..self.net.features() }
    }

    fn link(&self) -> bool {
        self.net.link()
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        crate::enable(bus, &DEVICES)?;
        self.function = Function::find(bus)?;
        bus.interrupts(nicety_adapter::InterruptKind::Msix(LINK_VECTOR + 1))?;
        self.on(bus, |net, rings| net.open(rings))
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError> {
        match vector {
            RECEIVE | TRANSMIT => self.on(bus, |net, rings| net.interrupt(rings, vector)),
            LINK_VECTOR => self.on(bus, |net, rings| net.read_link(rings).map(|()| false)),
            _ => Ok(false),
        }
    }

    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        self.on(bus, |net, rings| net.receive(rings, budget, sink))
    }

    fn transmit(&mut self, bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        self.on(bus, |net, rings| net.transmit(rings, packet, offload))
    }

    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.on(bus, |net, rings| net.flush(rings))
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        self.on(bus, |net, rings| net.rest(rings))
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.on(bus, |net, rings| net.close(rings))?;
        crate::disable(bus)
    }
}
