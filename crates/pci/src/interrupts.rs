//! Interrupts of a function: the line, MSI (PCI 3.0 §6.8.1) or MSI-X (§6.8.2). Messages that wait because their
//! vector is masked are the transport's, or [`Pending`](crate::Pending)'s.

use crate::function::{Function, PowerState};
use crate::msix::Msix;
use crate::registers as r;

/// The interrupt mode in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// None: no pin, or INTx is disabled and no messages are enabled.
    None,
    /// The line.
    Intx,
    /// MSI.
    Msi,
    /// MSI-X.
    Msix,
}

/// Settings of MSI while it is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiState {
    /// Address of the messages.
    pub address: u64,
    /// Data of the messages; the vector's bits are replaced.
    pub data: u16,
    /// Vectors that software enabled: a power of two, at most the offered number.
    pub vectors: u8,
    /// Masked vectors; zero if the function has no masks.
    pub mask: u32,
}

/// The part of MSI-X that an access to a BAR's region hits, with the offset in that part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The table.
    Table(u64),
    /// The pending-bit array.
    Pba(u64),
}

impl Function {
    /// The interrupt mode in effect. MSI-X takes precedence over MSI: enabling both is undefined (§6.8).
    #[must_use]
    pub fn mode(&self) -> Mode {
        if self.msix_enabled() {
            Mode::Msix
        } else if self.msi_enabled() {
            Mode::Msi
        } else if self.layout.has_pin && !self.intx_disabled() {
            Mode::Intx
        } else {
            Mode::None
        }
    }

    /// Sets the line to the level of the device's causes. The status bit follows; the result is whether INTx is asserted for the
    /// platform ([`Function::intx_asserted`]).
    pub fn set_intx(&mut self, level: bool) -> bool {
        let bits = if level && self.layout.has_pin { r::STATUS_INTERRUPT } else { 0 };
        let status = self.read16(r::STATUS);
        self.store16(r::STATUS, status & !r::STATUS_INTERRUPT | bits);
        self.intx_asserted()
    }

    /// The last level from [`Function::set_intx`]: that of the causes, masked or not.
    #[must_use]
    pub fn intx_level(&self) -> bool {
        self.read16(r::STATUS) & r::STATUS_INTERRUPT != 0
    }

    /// Whether INTx is asserted for the platform: the level is high, the line is the mode in effect, and the function is in D0.
    #[must_use]
    pub fn intx_asserted(&self) -> bool {
        self.intx_level() && self.mode() == Mode::Intx && self.power_state() == PowerState::D0
    }

    /// Number of MSI vectors offered, whatever the guest has enabled; 0 without the capability.
    pub fn msi_vectors(&self) -> u8 {
        self.layout.msi.map_or(0, |place| place.vectors)
    }

    /// Settings of MSI; `None` while it is disabled, or if there is none.
    #[must_use]
    pub fn msi(&self) -> Option<MsiState> {
        let place = self.layout.msi?;
        let control = self.read16(place.at + r::MSI_CONTROL);
        if control & r::MSI_ENABLE == 0 {
            return None;
        }
        let asked = 1_u8 << ((control & r::MSI_MULTIPLE) >> 4);
        Some(MsiState {
            address: self.read64(place.at + r::MSI_ADDRESS),
            data: self.read16(place.at + r::MSI_DATA),
            vectors: asked.min(place.vectors),
            mask: if place.maskable { self.read32(place.at + r::MSI_MASK) } else { 0 },
        })
    }

    /// Whether MSI is enabled.
    #[must_use]
    pub fn msi_enabled(&self) -> bool {
        self.layout.msi.is_some_and(|place| self.read16(place.at + r::MSI_CONTROL) & r::MSI_ENABLE != 0)
    }

    /// Whether MSI-X is enabled.
    #[must_use]
    pub fn msix_enabled(&self) -> bool {
        self.msix_control() & r::MSIX_ENABLE != 0
    }

    /// Whether MSI-X is masked as a whole.
    #[must_use]
    pub fn msix_masked(&self) -> bool {
        self.msix_control() & r::MSIX_MASK_ALL != 0
    }

    /// The MSI-X table, if the function has one.
    #[must_use]
    pub fn msix(&self) -> Option<&Msix> {
        self.msix.as_ref()
    }

    /// The MSI-X table, mutable.
    #[must_use]
    pub fn msix_mut(&mut self) -> Option<&mut Msix> {
        self.msix.as_mut()
    }

    /// The part of MSI-X at `offset` of base address register `bar`.
    #[must_use]
    pub fn window(&self, bar: usize, offset: u64) -> Option<Window> {
        let (_, msix) = self.layout.msix?;
        let inside = |at: u8, start: u32, size: u64| {
            let from = offset.checked_sub(u64::from(start))?;
            (usize::from(at) == bar && from < size).then_some(from)
        };
        inside(msix.table_bar, msix.table_offset, msix.table_size())
            .map(Window::Table)
            .or_else(|| inside(msix.pba_bar, msix.pba_offset, msix.pba_size()).map(Window::Pba))
    }

    fn msix_control(&self) -> u16 {
        self.layout.msix.map_or(0, |(at, _)| self.read16(at + r::MSIX_CONTROL))
    }

    /// Software may enable at most the offered number of vectors (§6.8.1.3). If it requests more, it reads back the offered number.
    /// QEMU's devices do the same (hw/pci/msi.c, msi_write_config).
    pub(crate) fn clamp_vectors(&mut self) {
        let Some(place) = self.layout.msi else { return };
        let control = self.read16(place.at + r::MSI_CONTROL);
        let offered = (place.vectors.trailing_zeros() as u16) << 4;
        if control & r::MSI_MULTIPLE > offered {
            self.store16(place.at + r::MSI_CONTROL, control & !r::MSI_MULTIPLE | offered);
        }
    }
}
