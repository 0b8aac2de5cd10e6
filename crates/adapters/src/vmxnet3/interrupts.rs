//! IMR and ICR, and IMR in a page that the guest has mapped, on [`Interrupts`]: cause `n` is vector `n`.
//!
//! A vector that is raised while masked waits, and fires when its mask is lifted: the one message that Linux writes at
//! the end of a poll (`vmxnet3_enable_intr`).
//!
//! Quirk: intrCtrl's VMXNET3_IC_DISABLE_ALL is not looked at. Linux `vmxnet3_enable_all_intrs` lifts the masks first
//! and clears that bit afterwards, in memory and without a message: whatever arrived in between would be told never.
//! The masks say the same, since they are set by every reset.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};
use nicety_memory::Window;

use super::Vmxnet3;
use super::registers::VECTORS;

/// The device's interrupts as new: all masked.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(VECTORS, Line::Latched, InterruptRouter::Direct)
}

fn bit(vector: u16) -> u128 {
    1u128.checked_shl(u32::from(vector)).unwrap_or(0)
}

/// Calls `act` with each vector whose bit is set.
fn each(mut vectors: u128, mut act: impl FnMut(u16)) {
    while vectors != 0 {
        act(vectors.trailing_zeros() as u16);
        vectors &= vectors - 1;
    }
}

fn place(vector: u16) -> usize {
    8 * usize::from(vector)
}

/// A page that the guest has mapped shows the masks.
pub(super) fn show_masks(interrupts: &Interrupts, page: Option<&Window<'_>>) {
    let Some(page) = page else { return };
    for vector in 0..VECTORS {
        page.store_u32(place(vector), u32::from(interrupts.enabled() & bit(vector) == 0));
    }
}

/// Takes all masks as a page that the guest has mapped shows them.
pub(super) fn read_masks(interrupts: &mut Interrupts, page: &Window<'_>) {
    for vector in 0..VECTORS {
        if page.load_u32(place(vector)) & 1 == 0 {
            interrupts.enable(bit(vector));
        } else {
            // What holds the line stays: the page may show a mask that this side has set.
            interrupts.mask(bit(vector));
        }
    }
}

impl Vmxnet3 {
    /// Vectors that wait for their masks to be lifted, a bit each.
    pub(super) fn masked_and_waiting(&self) -> u128 {
        self.interrupts.pending() & !self.interrupts.enabled()
    }

    /// Interrupts for what may be told. Of a mapped page, first takes the masks that the guest has lifted, of vectors that wait for it
    /// (whether the transport has seen the same change does not matter: a word that this side set and the guest cleared in between
    /// looks unchanged), and afterwards shows those that vectors have set themselves.
    pub(super) fn update_interrupts(&mut self, cx: &mut Context<'_>) {
        if let Some(page) = cx.page {
            let mut lifted = 0;
            each(self.masked_and_waiting(), |vector| {
                if page.load_u32(place(vector)) & 1 == 0 {
                    lifted |= bit(vector);
                }
            });
            self.interrupts.enable(lifted);
        }
        let fired = self.interrupts.update(&mut self.function, cx);
        if let Some(page) = cx.page {
            each(fired & !self.interrupts.enabled(), |vector| page.store_u32(place(vector), 1));
        }
    }

    /// Raises a vector: now, or when its mask is lifted.
    pub(super) fn raise_vector(&mut self, vector: u16, cx: &mut Context<'_>) {
        self.interrupts.raise(bit(vector));
        self.update_interrupts(cx);
    }

    /// The mask of a vector, as IMR shows it.
    pub(super) fn is_masked(&self, vector: u16) -> bool {
        self.interrupts.enabled() & bit(vector) == 0
    }

    /// A write to IMR. In a page that the guest has mapped the transport also finds the masks that this side has set, and takes them
    /// for the guest's: those change nothing, or INTx would take its cause back before the guest reads it.
    pub(super) fn set_masked(&mut self, vector: u16, masked: bool, cx: &mut Context<'_>) {
        if masked {
            if cx.page.is_some() && self.is_masked(vector) {
                return;
            }
            self.interrupts.disable(bit(vector));
        } else {
            self.interrupts.enable(bit(vector));
            if let Some(page) = cx.page {
                // A write that was trapped: the page must not mask again what it lifts.
                page.store_u32(place(vector), 0);
            }
        }
        self.update_interrupts(cx);
    }

    /// A read of ICR: the causes, which it takes back.
    pub(super) fn take_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        let causes = self.interrupts.take();
        if causes != 0 {
            self.update_interrupts(cx);
        }
        // Vectors beyond the register's bits share its last one.
        (causes as u32) | if causes >> 32 != 0 { 1 << 31 } else { 0 }
    }

    /// As the driver configures it with ACTIVATE_DEV.
    pub(super) fn configure_interrupts(&mut self, auto_mask: bool, cx: &mut Context<'_>) {
        self.interrupts.set_auto_mask(if auto_mask { u128::MAX } else { 0 });
        show_masks(&self.interrupts, cx.page);
    }

    /// All masked, nothing pending.
    pub(super) fn reset_interrupts(&mut self, cx: &mut Context<'_>) {
        self.interrupts.reset();
        self.masked_at = None;
        show_masks(&self.interrupts, cx.page);
        self.interrupts.update(&mut self.function, cx);
    }
}
