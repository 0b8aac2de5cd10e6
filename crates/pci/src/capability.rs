//! Capabilities as input of a builder, and as bytes with masks (PCI 3.0 §6.7–6.8, PCI PM 1.2 §3.2, PCIe 4.0 §7.5.3).

use crate::cells::{Byte, Cells};
use crate::registers as r;

/// Power management (PCI PM 1.2 §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Power {
    /// PMC: version in bits 0–2, D1 and D2 in 9 and 10, PME states in 11–15.
    pub capabilities: u16,
    /// PMCSR after reset: No_Soft_Reset in bit 3, data scale in 13–14.
    pub control: u16,
    /// The data register.
    pub data: u8,
}

impl Default for Power {
    /// Version 3, D0 and D3hot, no PME, state kept over D3hot.
    fn default() -> Self {
        Self { capabilities: 3, control: r::POWER_NO_SOFT_RESET, data: 0 }
    }
}

/// Message signalled interrupts with a 64-bit address (PCI 3.0 §6.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msi {
    /// Vectors that the function can use: 1, 2, 4, 8, 16 or 32.
    pub vectors: u8,
    /// Whether each vector has a mask and a pending bit.
    pub maskable: bool,
}

/// MSI-X: the number of vectors, and the offsets of the table and the pending bits (PCI 3.0 §6.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixCapability {
    /// Vectors, 1 to 2048.
    pub vectors: u16,
    /// The memory BAR that contains the table.
    pub table_bar: u8,
    /// Offset of the table in that BAR, a multiple of 8.
    pub table_offset: u32,
    /// The memory BAR that contains the pending-bit array.
    pub pba_bar: u8,
    /// Offset of the pending-bit array in that BAR, a multiple of 8.
    pub pba_offset: u32,
}

impl MsixCapability {
    /// Bytes of the table.
    #[must_use]
    pub const fn table_size(&self) -> u64 {
        self.vectors as u64 * r::MSIX_ENTRY as u64
    }

    /// Bytes of the pending-bit array: whole quadwords.
    #[must_use]
    pub const fn pba_size(&self) -> u64 {
        self.vectors.div_ceil(64) as u64 * 8
    }
}

/// Kind of endpoint that a PCI Express function reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpressKind {
    /// An endpoint.
    Endpoint,
    /// A legacy endpoint, which may need I/O ports.
    LegacyEndpoint,
    /// An endpoint inside the root complex: no link.
    IntegratedEndpoint,
}

/// A PCI Express endpoint (PCIe 4.0 §7.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Express {
    /// Version of the structure, 1 (20 bytes) or 2 (60 bytes).
    pub version: u8,
    /// Kind of endpoint.
    pub kind: ExpressKind,
    /// Device Capabilities; bit 28 offers function level reset.
    pub device_capabilities: u32,
    /// Device Control after reset.
    pub device_control: u16,
    /// Device Status after reset; bit 4 is auxiliary power.
    pub device_status: u16,
    /// Link Capabilities.
    pub link_capabilities: u32,
    /// Link Status.
    pub link_status: u16,
    /// Device Capabilities 2, in version 2.
    pub device_capabilities_2: u32,
}

impl Default for Express {
    /// Version 2, role-based errors, function level reset, one lane of 2.5 GT/s.
    fn default() -> Self {
        Self {
            version: 2,
            kind: ExpressKind::Endpoint,
            device_capabilities: 0x8000 | r::EXPRESS_FLR,
            device_control: 0x2810,
            device_status: 0,
            link_capabilities: 0x11,
            link_status: 0x11,
            device_capabilities_2: 0,
        }
    }
}

/// A capability to put into a function's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Power management.
    Power(Power),
    /// Message signalled interrupts.
    Msi(Msi),
    /// MSI-X.
    Msix(MsixCapability),
    /// PCI Express; makes the space 4096 bytes.
    Express(Express),
    /// Vendor-specific. The builder adds the length byte before the body.
    Vendor {
        /// The bytes from offset 3 on.
        body: Vec<u8>,
        /// Bits of them that software may write; bytes beyond its end are read-only.
        writable: Vec<u8>,
    },
    /// Any other capability, byte for byte.
    Raw {
        /// Its ID.
        id: u8,
        /// The bytes from offset 2 on.
        body: Vec<u8>,
        /// Bits of them that software may write; bytes beyond its end are read-only.
        writable: Vec<u8>,
    },
}

impl Capability {
    /// Its ID.
    #[must_use]
    pub const fn id(&self) -> u8 {
        match self {
            Self::Power(_) => r::ID_POWER,
            Self::Msi(_) => r::ID_MSI,
            Self::Msix(_) => r::ID_MSIX,
            Self::Express(_) => r::ID_EXPRESS,
            Self::Vendor { .. } => r::ID_VENDOR,
            Self::Raw { id, .. } => *id,
        }
    }

    /// The capability as bytes with masks, its two header bytes (ID, next) still zero.
    pub(crate) fn cells(&self) -> Cells {
        match self {
            Self::Power(power) => power_cells(power),
            Self::Msi(msi) => msi_cells(msi),
            Self::Msix(msix) => msix_cells(msix),
            Self::Express(express) => express_cells(express),
            Self::Vendor { body, writable } => {
                let length = u8::try_from(body.len() + 3).unwrap_or(u8::MAX);
                let mut cells = Cells::of_len(3);
                cells.set8(2, length, 0);
                cells.extend_raw(body, writable);
                cells
            }
            Self::Raw { body, writable, .. } => {
                let mut cells = Cells::of_len(2);
                cells.extend_raw(body, writable);
                cells
            }
        }
    }
}

fn power_cells(power: &Power) -> Cells {
    let pme = power.capabilities & r::POWER_PME != 0;
    let mut write = r::POWER_STATE;
    if pme {
        write |= r::POWER_PME_ENABLE | r::POWER_DATA_SELECT;
    }
    let mut cells = Cells::of_len(8);
    cells.set16(2, power.capabilities, 0);
    cells.set16(r::POWER_CONTROL, power.control & !r::POWER_STATE, write);
    if pme {
        cells.clear16(r::POWER_CONTROL, r::POWER_PME_STATUS);
    }
    cells.set8(7, power.data, 0);
    cells
}

fn msi_cells(msi: &Msi) -> Cells {
    // The builder has checked that the count is a power of two up to 32.
    let log2 = msi.vectors.trailing_zeros() as u16;
    let maskable = if msi.maskable { r::MSI_MASKABLE } else { 0 };
    let mut cells = Cells::of_len(if msi.maskable { 24 } else { 14 });
    cells.set16(r::MSI_CONTROL, log2 << 1 | r::MSI_64 | maskable, r::MSI_ENABLE | r::MSI_MULTIPLE);
    cells.set32(r::MSI_ADDRESS, 0, !3);
    cells.set32(r::MSI_ADDRESS + 4, 0, !0);
    cells.set16(r::MSI_DATA, 0, !0);
    if msi.maskable {
        let bits = u32::MAX >> (32 - u32::from(msi.vectors.clamp(1, 32)));
        cells.set32(r::MSI_MASK, 0, bits);
        cells.device32(r::MSI_PENDING, bits);
    }
    cells
}

fn msix_cells(msix: &MsixCapability) -> Cells {
    let mut cells = Cells::of_len(12);
    let control = msix.vectors.saturating_sub(1);
    cells.set16(r::MSIX_CONTROL, control, r::MSIX_ENABLE | r::MSIX_MASK_ALL);
    cells.set32(4, msix.table_offset | u32::from(msix.table_bar), 0);
    cells.set32(8, msix.pba_offset | u32::from(msix.pba_bar), 0);
    cells
}

fn express_cells(express: &Express) -> Cells {
    let kind = match express.kind {
        ExpressKind::Endpoint => 0,
        ExpressKind::LegacyEndpoint => 1,
        ExpressKind::IntegratedEndpoint => 9,
    };
    let mut cells = Cells::of_len(if express.version >= 2 { 60 } else { 20 });
    cells.set16(2, u16::from(express.version & 0xf) | kind << 4, 0);
    cells.set32(4, express.device_capabilities, 0);
    let control = express.device_control & !r::EXPRESS_START_FLR;
    cells.set16(r::EXPRESS_DEVICE_CONTROL, control, !r::EXPRESS_START_FLR);
    cells.set16(10, express.device_status, 0);
    cells.clear16(10, 0x000f);
    cells.set32(12, express.link_capabilities, 0);
    // Active state power management, read completion boundary, common clock, extended synch, clock power management.
    cells.set16(16, 0, 0x01cb);
    cells.set16(18, express.link_status, 0);
    if express.version >= 2 {
        cells.set32(36, express.device_capabilities_2, 0);
        // Completion timeout, its disabling, ID-based ordering, latency tolerance reporting.
        cells.set16(40, 0, 0x071f);
        cells.set16(48, 0, 0x000f);
    }
    cells
}

impl Cells {
    fn extend_raw(&mut self, body: &[u8], writable: &[u8]) {
        for (index, &reset) in body.iter().enumerate() {
            let write = writable.get(index).copied().unwrap_or(0);
            // The device itself may change every bit: virtio's access window, PCI-X status.
            self.push(Byte { reset, write, clear: 0, device: 0xff });
        }
    }
}
