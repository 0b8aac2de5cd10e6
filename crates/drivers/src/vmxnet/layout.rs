//! The device's interface: ports and numbers of vmxnet_def.h and net.h, fields of vmxnet2_def.h (open-vm-tools).

use nicety_adapter::Bus;

use crate::DriverError;

/// PCI vendor and device: vmxnet, of both kinds.
pub const DEVICES: [(u16, u16); 1] = [(0x15ad, 0x0720)];
/// A lance that a driver may morph into a vmxnet.
pub(super) const LANCE: (u16, u16) = (0x1022, 0x2000);
/// The BAR of the ports.
const BAR: u8 = 0;

/// A morphable lance: the morph port, its values, and the offset of the vmxnet's ports.
const MORPH: u64 = 0x20;
const LANCE_CHIP: u16 = 0x2934;
const VMXNET_CHIP: u16 = 0x4392;
const BEHIND_LANCE: u64 = 0x24;

pub(super) const INIT_ADDR: u64 = 0x00;
pub(super) const INIT_LENGTH: u64 = 0x04;
/// A read notifies the device of packets.
pub(super) const TX: u64 = 0x08;
const COMMAND: u64 = 0x0c;
const MAC: u64 = 0x10;
const LOW_VERSION: u64 = 0x18;
const HIGH_VERSION: u64 = 0x1c;
pub(super) const STATUS: u64 = 0x20;
const APROM: u64 = 0x28;

pub(super) const MAGIC: u32 = 0xbabe_864f;
pub(super) const STATUS_CONNECTED: u32 = 1;

pub(super) const INTR_ACK: u32 = 0x0001;
pub(super) const UPDATE_LADRF: u32 = 0x0002;
pub(super) const UPDATE_IFF: u32 = 0x0004;
pub(super) const INTR_DISABLE: u32 = 0x0020;
pub(super) const CHECK_TX_DONE: u32 = 0x0100;
pub(super) const GET_RX_BUFFERS: u32 = 0x0200;
pub(super) const GET_TX_BUFFERS: u32 = 0x0400;
pub(super) const PIN_TX_BUFFERS: u32 = 0x0800;
pub(super) const GET_CAPABILITIES: u32 = 0x1000;
pub(super) const GET_FEATURES: u32 = 0x2000;

pub(super) const FEATURE_TSO: u32 = 1 << 1;
pub(super) const FEATURE_JUMBO: u32 = 1 << 2;
pub(super) const FEATURE_LPD: u32 = 1 << 3;
const CAP_APROM: u32 = 1 << 7;
pub(super) const CAP_CHECKSUM: u32 = 1 << 1 | 1 << 2;
pub(super) const CAP_TSO: u32 = 1 << 5;
pub(super) const CAP_HEADER_COPY: u32 = 1 << 13;
pub(super) const CAP_TX_CHAIN: u32 = 1 << 14;
pub(super) const CAP_RX_CHAIN: u32 = 1 << 15;
pub(super) const CAP_LPD: u32 = 1 << 16;

/// Broadcasts, and multicasts by their hash.
pub(super) const IFFLAGS: u32 = 1 << 1 | 1 << 2;

/// `Vmxnet2_DriverData`: bytes, and offsets of its fields.
pub(super) const DATA_BYTES: u32 = 176;
pub(super) mod data {
    pub const MAGIC: usize = 0x00;
    pub const RX_LENGTH: [usize; 2] = [0x04, 0x0c];
    pub const RX_NEXT: [usize; 2] = [0x08, 0x10];
    pub const IFFLAGS: usize = 0x18;
    pub const LADRF: [usize; 2] = [0x1c, 0x20];
    pub const TX_LENGTH: usize = 0x28;
    pub const TX_CUR: usize = 0x2c;
    pub const TX_NEXT: usize = 0x30;
    pub const TX_STOPPED: usize = 0x34;
    pub const TX_CLUSTER: usize = 0x38;
    pub const TX_DEFERRED: usize = 0x3c;
    pub const MAX_FRAGS: usize = 0x58;
    pub const FEATURE_CTL: usize = 0x5a;
    pub const LENGTH: usize = 0x68;
    pub const RX_OFFSET: [usize; 2] = [0x6c, 0x70];
    pub const TX_OFFSET: usize = 0x74;
    pub const TX_BUFFER: usize = 0x7c;
    pub const TX_BUFFER_LENGTH: usize = 0x80;
    pub const TX_PACKET_MAX: usize = 0x84;
}

/// An entry's owner.
pub(super) const DRIVER: u16 = 0;
pub(super) const NIC: u16 = 2;
pub(super) const NIC_FRAG: u16 = 4;
pub(super) const DRIVER_FRAG: u16 = 5;

/// `Vmxnet2_RxRingEntry`.
pub(super) mod rx {
    pub const BYTES: u32 = 24;
    pub const ADDRESS: usize = 0;
    pub const BUFFER_LENGTH: usize = 8;
    pub const LENGTH: usize = 12;
    pub const OWNER: usize = 16;
    pub const FLAGS: usize = 18;
    pub const CHECKSUM_GOOD: u16 = 1;
    pub const WITH_FRAG: u16 = 1 << 1;
    pub const FRAG_EOP: u16 = 1 << 2;
}

/// `Vmxnet2_TxRingEntry`.
pub(super) mod tx {
    pub const BYTES: u32 = 64;
    pub const FLAGS: usize = 0;
    pub const OWNER: usize = 2;
    pub const MSS: usize = 8;
    pub const KIND: usize = 12;
    pub const PIECES: usize = 14;
    pub const SG: usize = 16;
    /// Pieces per entry.
    pub const PIECES_MAX: usize = 6;
    pub const PHYSICAL: u16 = 1;
    pub const CAN_KEEP: u16 = 1;
    pub const RING_LOW: u16 = 1 << 1;
    pub const CHECKSUM: u16 = 1 << 2;
    pub const TSO: u16 = 1 << 3;
    pub const MORE: u16 = 1 << 5;
}

/// Offset of the ports in their BAR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ports {
    base: u64,
    morphed: bool,
}

impl Ports {
    /// Finds the ports: a lance is morphed into a vmxnet first.
    pub(super) fn find(bus: &mut dyn Bus, device: (u16, u16)) -> Result<Ports, DriverError> {
        if device != LANCE {
            return Ok(Ports::default());
        }
        if !matches!(morph_port(bus)?, LANCE_CHIP | VMXNET_CHIP) {
            return Err(DriverError::Device("is a lance that becomes nothing else"));
        }
        bus.write(BAR, MORPH, &VMXNET_CHIP.to_le_bytes())?;
        if morph_port(bus)? != VMXNET_CHIP {
            return Err(DriverError::Device("does not become a vmxnet"));
        }
        Ok(Ports { base: BEHIND_LANCE, morphed: true })
    }

    /// Morphs the device back into a lance, if it was one.
    pub(super) fn morph_back(self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        if self.morphed {
            bus.write(BAR, MORPH, &LANCE_CHIP.to_le_bytes())?;
            if morph_port(bus)? != LANCE_CHIP {
                return Err(DriverError::Device("does not become a lance again"));
            }
        }
        Ok(())
    }

    pub(super) fn read(self, bus: &mut dyn Bus, port: u64) -> Result<u32, DriverError> {
        Ok(bus.read32(BAR, self.base + port)?)
    }

    pub(super) fn write(self, bus: &mut dyn Bus, port: u64, value: u32) -> Result<(), DriverError> {
        Ok(bus.write32(BAR, self.base + port, value)?)
    }

    pub(super) fn command(self, bus: &mut dyn Bus, command: u32) -> Result<(), DriverError> {
        self.write(bus, COMMAND, command)
    }

    /// A command with an answer.
    pub(super) fn ask(self, bus: &mut dyn Bus, command: u32) -> Result<u32, DriverError> {
        self.command(bus, command)?;
        self.read(bus, COMMAND)
    }

    /// Checks that the device supports this version.
    pub(super) fn agree(self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let (low, high) = (self.read(bus, LOW_VERSION)?, self.read(bus, HIGH_VERSION)?);
        if low >> 16 != MAGIC >> 16 || !(low..=high).contains(&MAGIC) {
            return Err(DriverError::Device("has no version that this driver knows"));
        }
        Ok(())
    }

    /// Reads the address. If the device has it in its PROM, the driver also writes it to the MAC port.
    pub(super) fn address(self, bus: &mut dyn Bus, capabilities: u32) -> Result<[u8; 6], DriverError> {
        let from = if capabilities & CAP_APROM != 0 { APROM } else { MAC };
        let mut address = [0; 6];
        for (byte, offset) in address.iter_mut().zip(0..) {
            bus.read(BAR, self.base + from + offset, std::slice::from_mut(byte))?;
        }
        if from == APROM {
            for (byte, offset) in address.iter().zip(0..) {
                bus.write(BAR, self.base + MAC + offset, std::slice::from_ref(byte))?;
            }
        }
        Ok(address)
    }
}

fn morph_port(bus: &mut dyn Bus) -> Result<u16, DriverError> {
    let mut data = [0; 2];
    bus.read(BAR, MORPH, &mut data)?;
    Ok(u16::from_le_bytes(data))
}
