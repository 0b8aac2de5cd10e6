//! Interrupt vectors: masks (IMR), masking by firing (intrConf.autoMask), the cause register of INTx (ICR).
//!
//! A vector that is raised while masked waits, and fires when its mask is lifted: the one message that Linux writes at
//! the end of a poll (`vmxnet3_enable_intr`).
//!
//! Quirk: intrCtrl's VMXNET3_IC_DISABLE_ALL is not looked at. Linux `vmxnet3_enable_all_intrs` lifts the masks first
//! and clears that bit afterwards, in memory and without a message: whatever arrived in between would be told never.
//! The masks say the same, since they are set by every reset.

use nicety_adapter::Context;
use nicety_memory::Window;
use nicety_pci::{Function, Mode};
use serde::{Deserialize, Serialize};

use super::registers::VECTORS;

const ALL: u128 = (1 << VECTORS) - 1;

/// The state of all vectors, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupts {
    masked: u128,
    pending: u128,
    /// INTx: vectors that hold the line until ICR is read.
    asserted: u128,
    auto_mask: bool,
}

impl Default for Interrupts {
    /// All masked.
    fn default() -> Self {
        Self { masked: ALL, pending: 0, asserted: 0, auto_mask: false }
    }
}

fn bit(vector: u16) -> u128 {
    1u128.checked_shl(u32::from(vector)).unwrap_or(0) & ALL
}

impl Interrupts {
    /// Whether the bits can be.
    pub fn valid(&self) -> bool {
        (self.masked | self.pending | self.asserted) & !ALL == 0
    }

    /// As the driver configures it with ACTIVATE_DEV.
    pub fn configure(&mut self, auto_mask: bool, page: Option<&Window<'_>>) {
        self.auto_mask = auto_mask;
        self.show_masks(page);
    }

    /// A page that the guest has mapped shows the masks.
    pub fn show_masks(&self, page: Option<&Window<'_>>) {
        let Some(page) = page else { return };
        for vector in 0..VECTORS {
            page.store_u32(8 * usize::from(vector), u32::from(self.is_masked(vector)));
        }
    }

    /// Takes all masks as a page that the guest has mapped shows them.
    pub fn read_masks(&mut self, page: Option<&Window<'_>>) {
        let Some(page) = page else { return };
        self.masked = (0..VECTORS).filter(|vector| page.load_u32(8 * usize::from(*vector)) & 1 != 0).map(bit).sum();
    }

    /// Goes on from a restored state: nobody outside knows of it yet.
    pub fn resume_restored(&mut self, function: &mut Function, cx: &mut Context<'_>) {
        self.show_masks(cx.page);
        self.drive(function, cx);
        self.fire(function, cx);
    }

    /// Raises a vector: now, or when its mask is lifted.
    pub fn raise(&mut self, vector: u16, function: &mut Function, cx: &mut Context<'_>) {
        self.pending |= bit(vector);
        self.fire(function, cx);
    }

    /// Notes a vector as raised, for a state that is saved: it fires when the adapter is next called.
    pub fn hold(&mut self, vector: u8) {
        self.pending |= bit(u16::from(vector));
    }

    /// The mask of a vector, as IMR shows it.
    pub fn is_masked(&self, vector: u16) -> bool {
        self.masked & bit(vector) != 0
    }

    /// A write to IMR. In a page that the guest has mapped the transport also finds the masks that this side has set, and takes them
    /// for the guest's: those change nothing, or INTx would take its cause back before the guest reads it.
    pub fn set_masked(&mut self, vector: u16, masked: bool, function: &mut Function, cx: &mut Context<'_>) {
        if masked {
            if cx.page.is_some() && self.is_masked(vector) {
                return;
            }
            self.masked |= bit(vector);
            if self.asserted & bit(vector) != 0 {
                self.asserted &= !bit(vector);
                self.drive(function, cx);
            }
        } else {
            self.masked &= !bit(vector);
            if let Some(page) = cx.page {
                // A write that was trapped: the page must not mask again what it lifts.
                page.store_u32(8 * usize::from(vector), 0);
            }
            self.fire(function, cx);
        }
    }

    /// Vectors that wait for their masks to be lifted, a bit each.
    pub fn waiting(&self) -> u128 {
        self.pending & self.masked
    }

    /// With a mapped BAR 0 the guest lifts masks without a message: looks whether it has.
    pub fn look(&mut self, function: &mut Function, cx: &mut Context<'_>) {
        if self.waiting() != 0 {
            self.fire(function, cx);
        }
    }

    /// Takes masks that the guest has lifted in its page, of vectors that wait for it. Whether the transport has seen
    /// the same change does not matter: a word that this side set and the guest cleared in between looks unchanged.
    fn read_page(&mut self, page: &Window<'_>) {
        let mut waiting = self.waiting();
        while waiting != 0 {
            let vector = waiting.trailing_zeros();
            waiting &= waiting - 1;
            if page.load_u32(8 * vector as usize) & 1 == 0 {
                self.masked &= !(1 << vector);
            }
        }
    }

    /// A read of ICR: the causes, which it takes back.
    pub fn take_causes(&mut self, function: &mut Function, cx: &mut Context<'_>) -> u32 {
        let causes = self.asserted;
        if causes != 0 {
            self.asserted = 0;
            self.drive(function, cx);
            self.fire(function, cx);
        }
        // Vectors beyond the register's bits share its last one.
        (causes as u32) | if causes >> 32 != 0 { 1 << 31 } else { 0 }
    }

    /// The way of interrupting has changed: what waited goes the new way. INTx that is only disabled keeps its causes (PCI 3.0,
    /// 6.2.3): vfio-pci disables it from each interrupt until the driver above has read ICR.
    pub fn reroute(&mut self, function: &mut Function, cx: &mut Context<'_>) {
        if matches!(function.mode(), Mode::Msi | Mode::Msix) {
            self.pending |= self.asserted;
            self.asserted = 0;
        }
        self.drive(function, cx);
        self.fire(function, cx);
    }

    /// All masked, nothing pending.
    pub fn reset(&mut self, function: &mut Function, cx: &mut Context<'_>) {
        let held = self.asserted != 0;
        *self = Self::default();
        if let Some(page) = cx.page {
            for vector in 0..usize::from(VECTORS) {
                page.store_u32(8 * vector, 1);
            }
        }
        if held {
            self.drive(function, cx);
        }
    }

    /// Sets the line to what the causes say.
    fn drive(&mut self, function: &mut Function, cx: &mut Context<'_>) {
        cx.out.line = Some(function.set_intx(self.asserted != 0));
    }

    fn fire(&mut self, function: &mut Function, cx: &mut Context<'_>) {
        if let Some(page) = cx.page {
            self.read_page(page);
        }
        let ready = self.pending & !self.masked;
        if ready == 0 {
            return;
        }
        match function.mode() {
            Mode::None => return,
            Mode::Intx => {
                let held = self.asserted != 0;
                self.asserted |= ready;
                if !held {
                    cx.counters.interrupts += 1;
                    self.drive(function, cx);
                }
            }
            _ if !function.bus_master() => return,
            Mode::Msi => {
                cx.out.messages.insert(0);
                cx.counters.interrupts += 1;
            }
            Mode::Msix => {
                let mut left = ready;
                while left != 0 {
                    cx.out.messages.insert(left.trailing_zeros() as u16);
                    cx.counters.interrupts += 1;
                    left &= left - 1;
                }
            }
        }
        self.pending &= !ready;
        if self.auto_mask {
            self.mask_fired(ready, cx);
        }
    }

    fn mask_fired(&mut self, fired: u128, cx: &mut Context<'_>) {
        self.masked |= fired;
        let Some(page) = cx.page else { return };
        let mut left = fired;
        while left != 0 {
            page.store_u32(8 * left.trailing_zeros() as usize, 1);
            left &= left - 1;
        }
    }
}
