//! The registers and structures of the Am79C970A, as its driver needs them (AMD 19436: "I/O Resources", "Control and Status
//! Registers", "Initialization Block", "Receive Descriptors", "Transmit Descriptors").

use nicety_adapter::Bus;

use crate::DriverError;

/// PCI vendor and device.
pub const DEVICES: [(u16, u16); 1] = [(0x1022, 0x2000)];
/// The BAR of I/O ports.
const BAR: u8 = 0;
/// First port of the address PROM.
const APROM: u64 = 0x00;
/// The data port of the CSRs, in either mode.
const RDP: u64 = 0x10;

pub(super) const CSR0: u16 = 0;
pub(super) const CSR1: u16 = 1;
pub(super) const CSR2: u16 = 2;
pub(super) const CSR3: u16 = 3;
pub(super) const CSR4: u16 = 4;
pub(super) const CSR88: u16 = 88;
pub(super) const CSR89: u16 = 89;
pub(super) const BCR2: u16 = 2;
pub(super) const BCR4: u16 = 4;
pub(super) const BCR9: u16 = 9;
pub(super) const BCR20: u16 = 20;

pub(super) const CSR0_INIT: u16 = 0x0001;
pub(super) const CSR0_STRT: u16 = 0x0002;
pub(super) const CSR0_STOP: u16 = 0x0004;
pub(super) const CSR0_TDMD: u16 = 0x0008;
pub(super) const CSR0_IENA: u16 = 0x0040;
pub(super) const CSR0_INTR: u16 = 0x0080;
pub(super) const CSR0_IDON: u16 = 0x0100;
/// BABL, CERR, MISS, MERR, RINT, TINT, IDON: a one clears the bit.
pub(super) const CSR0_CAUSES: u16 = 0x7f00;
/// BABLM, MISSM, MERRM, RINTM, TINTM, IDONM.
pub(super) const CSR3_MASKS: u16 = 0x5f00;
/// APAD_XMT, and MFCOM, RCVCCOM, TXSTRTM, JABM.
pub(super) const CSR4_LINUX: u16 = 0x0915;
/// Part 0x2621 in bits 27:12, manufacturer AMD in 11:1, bit 0 is one.
pub(super) const CHIP: u32 = 0x0262_1003;
/// The chip's identity without the version.
pub(super) const CHIP_MASK: u32 = 0x0fff_ffff;
/// ASEL: the chip selects the port.
pub(super) const BCR2_ASEL: u16 = 0x0002;
/// LEDOUT of a LED that is lit while the link is up.
pub(super) const BCR4_LIT: u16 = 0x8000;
/// FDEN.
pub(super) const BCR9_FULL: u16 = 0x0001;
/// SWSTYLE 2: 32-bit structures.
pub(super) const STYLE_PCI: u16 = 2;
/// MODE: PORTSEL 01, 10BASE-T.
pub(super) const MODE_TWISTED: u16 = 0x0080;

/// Bytes of the initialization block, and of a descriptor.
pub(super) const BLOCK: usize = 28;
pub(super) const DESCRIPTOR: usize = 16;
/// Most bytes of a descriptor's 12-bit count.
pub(super) const BUFFER_MAX: u32 = 4096;

/// The second dword of a descriptor.
pub(super) const OWN: u32 = 1 << 31;
pub(super) const ERR: u32 = 1 << 30;
pub(super) const STP: u32 = 1 << 25;
pub(super) const ENP: u32 = 1 << 24;
/// The byte count as two's complement; bits 15:12 are ones.
pub(super) fn count(len: u32) -> u32 {
    0xf000 | len.wrapping_neg() & 0x0fff
}
/// TMD2: an underflow turns the transmitter off.
pub(super) const TX_UFLO: u32 = 1 << 30;

/// The width of the ports: words after a hardware reset, double words after the first double-word write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ports {
    #[default]
    Words,
    Doubles,
}

impl Ports {
    fn read(self, bus: &mut dyn Bus, port: u64) -> Result<u16, DriverError> {
        let mut data = [0; 4];
        match self {
            Self::Words => bus.read(BAR, RDP + 2 * port, &mut data[..2])?,
            Self::Doubles => bus.read(BAR, RDP + 4 * port, &mut data)?,
        }
        Ok(u16::from_le_bytes([data[0], data[1]]))
    }

    fn write(self, bus: &mut dyn Bus, port: u64, value: u16) -> Result<(), DriverError> {
        match self {
            Self::Words => bus.write(BAR, RDP + 2 * port, &value.to_le_bytes())?,
            Self::Doubles => bus.write(BAR, RDP + 4 * port, &u32::from(value).to_le_bytes())?,
        }
        Ok(())
    }

    /// Resets the chip by reading its reset port.
    pub(super) fn reset(self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.read(bus, 2).map(drop)
    }

    pub(super) fn csr(self, bus: &mut dyn Bus, number: u16) -> Result<u16, DriverError> {
        self.write(bus, 1, number)?;
        self.read(bus, 0)
    }

    pub(super) fn set_csr(self, bus: &mut dyn Bus, number: u16, value: u16) -> Result<(), DriverError> {
        self.write(bus, 1, number)?;
        self.write(bus, 0, value)
    }

    pub(super) fn bcr(self, bus: &mut dyn Bus, number: u16) -> Result<u16, DriverError> {
        self.write(bus, 1, number)?;
        self.read(bus, 3)
    }

    pub(super) fn set_bcr(self, bus: &mut dyn Bus, number: u16, value: u16) -> Result<(), DriverError> {
        self.write(bus, 1, number)?;
        self.write(bus, 3, value)
    }
}

/// The station's address, from the address PROM.
pub(super) fn address(bus: &mut dyn Bus) -> Result<[u8; 6], DriverError> {
    let mut address = [0; 6];
    for (byte, offset) in address.iter_mut().zip(APROM..) {
        bus.read(BAR, offset, std::slice::from_mut(byte))?;
    }
    Ok(address)
}
