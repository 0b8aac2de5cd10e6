//! Builds a function: header (PCI 3.0 §6.1), capability list (§6.7) and extended capabilities (PCIe 4.0 §7.6.3).

use crate::bar::{Bar, Space};
use crate::capability::{Capability, MsixCapability};
use crate::cells::{Byte, Cells};
use crate::function::Function;
use crate::layout::{Layout, MsiPlace};
use crate::registers as r;

/// Identity of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Class code, 24 bits: 0x020000 is an Ethernet controller.
    pub class: u32,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
}

/// The interrupt pin that a function uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// No INTx.
    #[default]
    None,
    /// INTA#: the pin of a single-function device.
    A,
    /// INTB#.
    B,
    /// INTC#.
    C,
    /// INTD#.
    D,
}

/// Reasons why a function cannot be built from its description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The class code has more than 24 bits.
    #[error("class code {0:#x} has more than 24 bits")]
    Class(u32),
    /// A function has only six base address registers, and each can be used once.
    #[error("base address register {0} does not exist, or is taken already")]
    BarIndex(usize),
    /// The size cannot be encoded in a register of that kind.
    #[error("base address register {0}: a size of {1:#x} cannot be coded")]
    BarSize(usize, u64),
    /// The ROM's size is not a power of two from 2 KiB to 16 MiB.
    #[error("option ROM size {0:#x} is no power of two from 2 KiB to 16 MiB")]
    RomSize(u32),
    /// No room for the capability, or its offset is in use or not dword-aligned.
    #[error("capability {id:#04x} does not fit at {at:#x}")]
    CapabilityPlace {
        /// The capability's ID.
        id: u16,
        /// The requested offset.
        at: usize,
    },
    /// The function has this capability already.
    #[error("capability {0:#04x} is there twice")]
    CapabilityTwice(u8),
    /// The number of MSI vectors is not 1, 2, 4, 8, 16 or 32.
    #[error("{0} MSI vectors: must be a power of two up to 32")]
    MsiVectors(u8),
    /// The number of MSI-X vectors is not 1 to 2048.
    #[error("{0} MSI-X vectors: must be 1 to 2048")]
    MsixVectors(u16),
    /// The MSI-X table or pending-bit array lies outside a memory register's region, or the two overlap.
    #[error("the MSI-X table or pending-bit array does not fit at base address register {bar}, offset {offset:#x}")]
    MsixPlace {
        /// The register.
        bar: u8,
        /// The offset in its region.
        offset: u32,
    },
    /// Extended capabilities need a PCI Express capability.
    #[error("extended capability {0:#06x} without a PCI Express capability")]
    NotExpress(u16),
}

#[derive(Clone, Debug)]
struct Extended {
    id: u16,
    version: u8,
    at: Option<usize>,
    body: Vec<u8>,
    /// Bits that software may write; bytes beyond its end are read-only.
    writable: Vec<u8>,
}

/// Describes a function; [`Builder::build`] checks it.
#[derive(Clone, Debug)]
pub struct Builder {
    identity: Identity,
    pin: Pin,
    bars: Vec<(usize, Bar)>,
    rom: Option<u32>,
    status: u16,
    timing: (u8, u8),
    capabilities: Vec<(Option<usize>, Capability)>,
    extended: Vec<Extended>,
}

impl Function {
    /// Starts the description of a function.
    #[must_use]
    pub fn builder(identity: Identity) -> Builder {
        Builder::new(identity)
    }
}

impl Builder {
    /// Starts with only an identity.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            pin: Pin::None,
            bars: Vec::new(),
            rom: None,
            status: 0,
            timing: (0, 0),
            capabilities: Vec::new(),
            extended: Vec::new(),
        }
    }

    /// The interrupt pin.
    #[must_use]
    pub fn interrupt_pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// Base address register `index`, 0 to 5; a 64-bit one takes `index + 1` too.
    #[must_use]
    pub fn bar(mut self, index: usize, bar: Bar) -> Self {
        self.bars.push((index, bar));
        self
    }

    /// An option ROM of `size` bytes: a power of two from 2 KiB on ([`crate::Rom::size`]).
    #[must_use]
    pub fn rom(mut self, size: u32) -> Self {
        self.rom = Some(size);
        self
    }

    /// Fixed bits of the status register: 66 MHz (0x20), fast back-to-back (0x80), DEVSEL timing (0x600).
    #[must_use]
    pub fn status(mut self, bits: u16) -> Self {
        self.status = bits & r::STATUS_FIXED;
        self
    }

    /// Minimum grant and maximum latency, in quarters of a microsecond.
    #[must_use]
    pub fn timing(mut self, minimum_grant: u8, maximum_latency: u8) -> Self {
        self.timing = (minimum_grant, maximum_latency);
        self
    }

    /// The next capability of the list, at the next free dword.
    #[must_use]
    pub fn capability(mut self, capability: Capability) -> Self {
        self.capabilities.push((None, capability));
        self
    }

    /// The next capability of the list, at `offset`, for the layout of a real device.
    #[must_use]
    pub fn capability_at(mut self, offset: u8, capability: Capability) -> Self {
        self.capabilities.push((Some(usize::from(offset)), capability));
        self
    }

    /// The next extended capability (read-only), at the next free dword: `body` follows its four header bytes.
    #[must_use]
    pub fn extended(mut self, id: u16, version: u8, body: Vec<u8>) -> Self {
        self.extended.push(Extended { id, version, at: None, body, writable: Vec::new() });
        self
    }

    /// The next extended capability (read-only), at `offset`; the first must lie at 0x100.
    #[must_use]
    pub fn extended_at(self, offset: u16, id: u16, version: u8, body: Vec<u8>) -> Self {
        self.extended_writable_at(offset, id, version, (body, Vec::new()))
    }

    /// Like `extended_at`, with the bits of the body that software may write.
    #[must_use]
    pub fn extended_writable_at(mut self, offset: u16, id: u16, version: u8, body: (Vec<u8>, Vec<u8>)) -> Self {
        let (body, writable) = body;
        self.extended.push(Extended { id, version, at: Some(usize::from(offset)), body, writable });
        self
    }

    /// Checks the description and makes the function in its state after reset.
    ///
    /// # Errors
    /// A part cannot be encoded, does not fit, or is there twice.
    pub fn build(self) -> Result<Function, BuildError> {
        let express = self.capabilities.iter().any(|(_, c)| matches!(c, Capability::Express(_)));
        if let (false, Some(first)) = (express, self.extended.first()) {
            return Err(BuildError::NotExpress(first.id));
        }
        let mut cells = self.header(express)?;
        let bars = self.place_bars(&mut cells)?;
        let mut layout = Layout {
            bytes: Box::default(),
            bars,
            rom_size: self.rom,
            has_pin: self.pin != Pin::None,
            capabilities: Vec::new(),
            bodies: Vec::new(),
            power: None,
            msi: None,
            msix: None,
            flr: None,
        };
        self.place_capabilities(&mut cells, &mut layout)?;
        self.place_extended(&mut cells)?;
        layout.bytes = cells.into_bytes();
        Ok(Function::from_layout(layout))
    }

    fn header(&self, express: bool) -> Result<Cells, BuildError> {
        let Identity { vendor, device, revision, class, subsystem_vendor, subsystem } = self.identity;
        if class > 0xff_ffff {
            return Err(BuildError::Class(class));
        }
        let mut cells = Cells::of_len(if express { r::EXPRESS_SPACE } else { r::SPACE });
        cells.set16(r::VENDOR, vendor, 0);
        cells.set16(r::DEVICE, device, 0);
        let mut command = r::COMMAND_IO
            | r::COMMAND_MEMORY
            | r::COMMAND_MASTER
            | r::COMMAND_PARITY
            | r::COMMAND_SERR
            | r::COMMAND_INTX_DISABLE;
        if !express {
            command |= r::COMMAND_INVALIDATE;
            cells.set8(r::LATENCY, 0, 0xff);
        }
        cells.set16(r::COMMAND, 0, command);
        let list = if self.capabilities.is_empty() { 0 } else { r::STATUS_CAPABILITIES };
        cells.set16(r::STATUS, self.status | list, 0);
        cells.clear16(r::STATUS, r::STATUS_ERRORS);
        if self.pin != Pin::None {
            cells.device16(r::STATUS, r::STATUS_INTERRUPT);
            cells.set8(r::INTERRUPT_LINE, 0, 0xff);
        }
        cells.set32(r::REVISION, u32::from(revision) | class << 8, 0);
        cells.set8(r::CACHE_LINE, 0, 0xff);
        cells.set16(r::SUBSYSTEM, subsystem_vendor, 0);
        cells.set16(r::SUBSYSTEM + 2, subsystem, 0);
        cells.set8(r::INTERRUPT_PIN, self.pin as u8, 0);
        cells.set8(r::MIN_GRANT, self.timing.0, 0);
        cells.set8(r::MAX_LATENCY, self.timing.1, 0);
        if let Some(size) = self.rom {
            if !size.is_power_of_two() || !(2048..=16 << 20).contains(&size) {
                return Err(BuildError::RomSize(size));
            }
            cells.set32(r::ROM, 0, !size.wrapping_sub(1) | 1);
        }
        Ok(cells)
    }

    fn place_bars(&self, cells: &mut Cells) -> Result<[Option<Bar>; 6], BuildError> {
        let mut bars = [None; 6];
        let mut taken = [false; 6];
        for &(index, bar) in &self.bars {
            let last = if bar.is_wide() { index.saturating_add(1) } else { index };
            let Some(used) = taken.get_mut(index..=last).filter(|used| !used.contains(&true)) else {
                return Err(BuildError::BarIndex(index));
            };
            if !bar.is_valid() {
                return Err(BuildError::BarSize(index, bar.size));
            }
            used.fill(true);
            let (flags, write) = (bar.flags(), bar.writable());
            cells.set32(r::BAR + 4 * index, flags as u32, write as u32);
            if bar.is_wide() {
                cells.set32(r::BAR + 4 * last, 0, (write >> 32) as u32);
            }
            bars[index] = Some(bar);
        }
        Ok(bars)
    }

    fn place_capabilities(&self, cells: &mut Cells, layout: &mut Layout) -> Result<(), BuildError> {
        let mut next_free = r::FIRST_CAPABILITY;
        let mut link = r::CAPABILITIES;
        let mut taken = [false; r::SPACE];
        for (fixed, capability) in &self.capabilities {
            let id = capability.id();
            check(capability, layout)?;
            let mut part = capability.cells();
            let at = fixed.unwrap_or(next_free);
            let wrong = BuildError::CapabilityPlace { id: u16::from(id), at };
            let end = at.saturating_add(part.len());
            let free = at >= r::FIRST_CAPABILITY && at.is_multiple_of(4);
            let Some(used) = taken.get_mut(at..end).filter(|used| free && !used.contains(&true)) else {
                return Err(wrong);
            };
            used.fill(true);
            part.set8(0, id, 0);
            if !cells.place(at, &part) {
                return Err(wrong);
            }
            // `at` is below 256: `taken` has only that many bytes.
            cells.set8(link, at as u8, 0);
            link = at + 1;
            next_free = end.next_multiple_of(4).max(next_free);
            layout.capabilities.push((id, at as u8));
            match capability {
                Capability::Power(_) => layout.power = Some(at),
                Capability::Msi(msi) => {
                    layout.msi = Some(MsiPlace { at, vectors: msi.vectors, maskable: msi.maskable });
                }
                Capability::Msix(msix) => layout.msix = Some((at, *msix)),
                Capability::Express(express) => {
                    layout.flr = (express.device_capabilities & r::EXPRESS_FLR != 0).then_some(at);
                }
                Capability::Vendor { .. } | Capability::Raw { .. } => layout.bodies.push((at, part.len())),
            }
        }
        Ok(())
    }

    fn place_extended(&self, cells: &mut Cells) -> Result<(), BuildError> {
        let mut next_free = r::FIRST_EXTENDED;
        let mut previous: Option<(usize, u32)> = None;
        for Extended { id, version, at, body, writable } in &self.extended {
            let at = at.unwrap_or(next_free);
            let wrong = BuildError::CapabilityPlace { id: *id, at };
            let first_is_first = previous.is_some() || at == r::FIRST_EXTENDED;
            if at < next_free || !at.is_multiple_of(4) || !first_is_first {
                return Err(wrong);
            }
            let header = u32::from(*id) | u32::from(version & 0xf) << 16;
            let mut part = Cells::of_len(4);
            part.set32(0, header, 0);
            for (index, &reset) in body.iter().enumerate() {
                let write = writable.get(index).copied().unwrap_or(0);
                // A body with bits that software writes has no bits that the device changes.
                let device = if writable.is_empty() { 0xff } else { 0 };
                part.push(Byte { reset, write, clear: 0, device });
            }
            if !cells.place(at, &part) {
                return Err(wrong);
            }
            if let Some((before, header)) = previous {
                // An extended capability lies below 4096: twelve bits hold its offset.
                cells.set32(before, header | (at as u32) << 20, 0);
            }
            previous = Some((at, header));
            next_free = (at + part.len()).next_multiple_of(4);
        }
        Ok(())
    }
}

/// Checks a capability against the others and against the base address registers.
fn check(capability: &Capability, layout: &Layout) -> Result<(), BuildError> {
    let repeatable = matches!(capability, Capability::Vendor { .. } | Capability::Raw { .. });
    if !repeatable && layout.capabilities.iter().any(|&(id, _)| id == capability.id()) {
        return Err(BuildError::CapabilityTwice(capability.id()));
    }
    match capability {
        Capability::Msi(msi) if !msi.vectors.is_power_of_two() || msi.vectors > 32 => {
            Err(BuildError::MsiVectors(msi.vectors))
        }
        Capability::Msix(msix) => check_msix(msix, &layout.bars),
        _ => Ok(()),
    }
}

fn check_msix(msix: &MsixCapability, bars: &[Option<Bar>; 6]) -> Result<(), BuildError> {
    if msix.vectors == 0 || msix.vectors > r::MSIX_VECTORS {
        return Err(BuildError::MsixVectors(msix.vectors));
    }
    let table = (msix.table_bar, msix.table_offset, msix.table_size());
    let pba = (msix.pba_bar, msix.pba_offset, msix.pba_size());
    for (bar, offset, size) in [table, pba] {
        let room = bars.get(usize::from(bar)).copied().flatten().filter(|b| b.space() == Space::Memory);
        let fits = room.is_some_and(|room| u64::from(offset) + size <= room.size);
        if !fits || !offset.is_multiple_of(8) {
            return Err(BuildError::MsixPlace { bar, offset });
        }
    }
    let apart = u64::from(table.1) + table.2 <= u64::from(pba.1) || u64::from(pba.1) + pba.2 <= u64::from(table.1);
    if table.0 == pba.0 && !apart {
        return Err(BuildError::MsixPlace { bar: pba.0, offset: pba.1 });
    }
    Ok(())
}
