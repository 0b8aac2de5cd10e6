//! How a function interrupts: the line, MSI (PCI 3.0 §6.8.1) or MSI-X (§6.8.2), and what waits for a mask to be lifted.

use crate::function::{Function, PowerState};
use crate::msix::Msix;
use crate::registers as r;

/// A message to send: one write of `data` to `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Which vector it is, for transports that carry vectors rather than writes.
    pub vector: u16,
    /// Where to write.
    pub address: u64,
    /// What to write; MSI uses the low 16 bits.
    pub data: u32,
}

/// What came of raising a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Raise {
    /// Send this now.
    Deliver(Message),
    /// Masked or not enabled: remembered, comes out of `next_due` when it may go.
    Pending,
    /// No message mode is enabled: the line ([`Function::set_intx`]) is what the driver looks at. Nothing was remembered.
    Line,
    /// There is no such vector.
    Absent,
}

/// The way of interrupting that is in effect.
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

/// What MSI is programmed to, while it is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiState {
    /// Where messages are written.
    pub address: u64,
    /// What is written, the vector's bits replaced.
    pub data: u16,
    /// Vectors that software enabled: a power of two, never more than offered.
    pub vectors: u8,
    /// Masked vectors; zero if the function has no masks.
    pub mask: u32,
    /// Pending vectors.
    pub pending: u32,
}

/// Which part of MSI-X an access to a base address register's region falls into, with the offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The table.
    Table(u64),
    /// The pending-bit array.
    Pba(u64),
}

impl Function {
    /// The way of interrupting that is in effect. MSI-X wins over MSI: enabling both is undefined (§6.8).
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

    /// Sets the line to what the device's causes say. The status bit follows; the answer is whether INTx is asserted for the
    /// platform ([`Function::intx_asserted`]).
    pub fn set_intx(&mut self, level: bool) -> bool {
        let bits = if level && self.layout.has_pin { r::STATUS_INTERRUPT } else { 0 };
        let status = self.read16(r::STATUS);
        self.store16(r::STATUS, status & !r::STATUS_INTERRUPT | bits);
        self.intx_asserted()
    }

    /// What [`Function::set_intx`] set last: the causes' level, whatever masks it.
    #[must_use]
    pub fn intx_level(&self) -> bool {
        self.read16(r::STATUS) & r::STATUS_INTERRUPT != 0
    }

    /// Whether INTx is asserted for the platform: the level is high, the line is the mode in effect, and the function is in D0.
    #[must_use]
    pub fn intx_asserted(&self) -> bool {
        self.intx_level() && self.mode() == Mode::Intx && self.power_state() == PowerState::D0
    }

    /// Raises vector `vector` by the way that is in effect.
    #[must_use = "the message must be delivered"]
    pub fn raise(&mut self, vector: u16) -> Raise {
        match self.mode() {
            Mode::Msix => self.msix_raise(vector),
            Mode::Msi => self.msi_raise(vector),
            Mode::Intx | Mode::None => Raise::Line,
        }
    }

    /// Raises an MSI-X vector, also while MSI-X is off: it waits then.
    #[must_use = "the message must be delivered"]
    pub fn msix_raise(&mut self, vector: u16) -> Raise {
        self.msix.as_mut().map_or(Raise::Absent, |msix| msix.raise(vector))
    }

    /// Raises an MSI vector, also while MSI is off: it waits then. If software enabled fewer vectors than the function offers, they share
    /// (§6.8.1.3): the vector counts modulo those enabled.
    #[must_use = "the message must be delivered"]
    pub fn msi_raise(&mut self, vector: u16) -> Raise {
        let Some(place) = self.layout.msi.filter(|place| vector < u16::from(place.vectors)) else {
            return Raise::Absent;
        };
        let Some(state) = self.msi() else {
            self.set_msi_pending(self.msi_pending | 1 << vector);
            return Raise::Pending;
        };
        debug_assert!(state.vectors <= place.vectors);
        let vector = vector & (u16::from(state.vectors) - 1);
        if state.mask >> vector & 1 == 0 && self.bus_master() {
            return Raise::Deliver(state.message(vector));
        }
        self.set_msi_pending(self.msi_pending | 1 << vector);
        Raise::Pending
    }

    /// Takes the next message that was held back and may go now; its pending bit is cleared. Call until `None` whenever a write said
    /// that messages are due.
    #[must_use = "the message must be delivered"]
    pub fn next_due(&mut self) -> Option<Message> {
        match self.mode() {
            Mode::Msix => self.msix.as_mut()?.next_due(),
            Mode::Msi => {
                let state = self.msi()?;
                let ready = self.msi_ready();
                if ready == 0 {
                    return None;
                }
                self.set_msi_pending(self.msi_pending & !(ready & ready.wrapping_neg()));
                Some(state.message(ready.trailing_zeros() as u16))
            }
            Mode::Intx | Mode::None => None,
        }
    }

    /// Whether [`Function::next_due`] would give something.
    #[must_use]
    pub fn has_due(&self) -> bool {
        match self.mode() {
            Mode::Msix => self.msix.as_ref().is_some_and(Msix::has_due),
            Mode::Msi => self.msi_ready() != 0,
            Mode::Intx | Mode::None => false,
        }
    }

    /// How many MSI vectors it can have, whatever the guest has enabled; 0 without the capability.
    pub fn msi_vectors(&self) -> u8 {
        self.layout.msi.map_or(0, |place| place.vectors)
    }

    /// What MSI is programmed to; `None` while it is disabled, or if there is none.
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
            pending: self.msi_pending,
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

    /// The MSI-X table, to write to it. Its `open` state follows configuration space with each write there.
    #[must_use]
    pub fn msix_mut(&mut self) -> Option<&mut Msix> {
        self.msix.as_mut()
    }

    /// Which part of MSI-X lies at `offset` of base address register `bar`.
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

    fn msi_ready(&self) -> u32 {
        self.msi().filter(|_| self.bus_master()).map_or(0, |state| self.msi_pending & !state.mask)
    }

    fn set_msi_pending(&mut self, pending: u32) {
        self.msi_pending = pending;
        if let Some(place) = self.layout.msi.filter(|place| place.maskable) {
            self.store16(place.at + r::MSI_PENDING, pending as u16);
            self.store16(place.at + r::MSI_PENDING + 2, (pending >> 16) as u16);
        }
    }

    /// Brings the interrupt state in line with what configuration space says now.
    pub(crate) fn follow_configuration(&mut self) {
        if let Some(state) = self.msi() {
            // Vectors that are no longer enabled share with those that are, or what waits for them would be lost.
            let (mut folded, count) = (self.msi_pending, u32::from(state.vectors));
            for vector in count..32 {
                if folded >> vector & 1 != 0 {
                    folded = folded & !(1 << vector) | 1 << (vector & (count - 1));
                }
            }
            self.set_msi_pending(folded);
        } else {
            self.set_msi_pending(self.msi_pending);
        }
        let open = self.msix_enabled() && !self.msix_masked() && self.bus_master();
        if let Some(msix) = &mut self.msix {
            // The caller asks `has_due` afterwards.
            let _ = msix.set_open(open);
        }
    }
}

impl MsiState {
    /// The message of `vector`: the low bits of the data carry it (§6.8.1.4).
    #[must_use]
    pub fn message(&self, vector: u16) -> Message {
        let low = u16::from(self.vectors).wrapping_sub(1);
        Message { vector, address: self.address, data: u32::from(self.data & !low | vector & low) }
    }
}
