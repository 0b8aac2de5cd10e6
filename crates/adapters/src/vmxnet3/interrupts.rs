//! IMR and ICR, also IMR in a page that the guest has mapped, on top of [`Interrupts`]: cause `n` is vector `n`.
//!
//! A vector raised while masked stays pending, and fires when its mask is lifted. That is the one message that Linux writes at the
//! end of a poll (`vmxnet3_enable_intr`).
//!
//! Quirk: intrCtrl's VMXNET3_IC_DISABLE_ALL is ignored. Linux `vmxnet3_enable_all_intrs` lifts the masks first and clears that bit
//! afterwards, in memory and without a message: an interrupt raised in between would be lost. The masks have the same effect,
//! because every reset sets them.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};
use nicety_memory::Window;

use super::Vmxnet3;
use super::registers::VECTORS;

/// Interrupts of a new device: all masked.
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

/// Shows the masks in a page that the guest has mapped.
pub(super) fn show_masks(interrupts: &Interrupts, page: Option<&Window<'_>>) {
    let Some(page) = page else { return };
    for vector in 0..VECTORS {
        page.store_u32(place(vector), u32::from(interrupts.enabled() & bit(vector) == 0));
    }
}

/// Reads all masks from a page that the guest has mapped.
pub(super) fn read_masks(interrupts: &mut Interrupts, page: &Window<'_>) {
    for vector in 0..VECTORS {
        if page.load_u32(place(vector)) & 1 == 0 {
            interrupts.enable(bit(vector));
        } else {
            // Keeps a cause that holds the line: the page may show a mask that this side has set.
            interrupts.mask(bit(vector));
        }
    }
}

impl Vmxnet3 {
    /// Vectors that wait for their masks to be lifted, a bit for each.
    pub(super) fn masked_and_waiting(&self) -> u128 {
        self.interrupts.pending() & !self.interrupts.enabled()
    }

    /// Sends the interrupts that are allowed now. With a mapped page it first reads the masks that the guest has lifted, for
    /// waiting vectors. (The transport may or may not have seen the same change: a word that this side set and the guest cleared in
    /// between looks unchanged.) Afterwards it shows the masks that vectors have set themselves.
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

    /// Raises a vector, now or when its mask is lifted.
    pub(super) fn raise_vector(&mut self, vector: u16, cx: &mut Context<'_>) {
        self.interrupts.raise(bit(vector));
        self.update_interrupts(cx);
    }

    /// The mask of a vector, as IMR shows it.
    pub(super) fn is_masked(&self, vector: u16) -> bool {
        self.interrupts.enabled() & bit(vector) == 0
    }

    /// A write to IMR. In a page that the guest has mapped, the transport also finds masks that this side has set, and takes them
    /// for the guest's. Those change nothing; otherwise INTx would withdraw its cause before the guest reads it.
    pub(super) fn set_masked(&mut self, vector: u16, masked: bool, cx: &mut Context<'_>) {
        if masked {
            if cx.page.is_some() && self.is_masked(vector) {
                return;
            }
            self.interrupts.disable(bit(vector));
        } else {
            self.interrupts.enable(bit(vector));
            if let Some(page) = cx.page {
                // A trapped write: the page must not set again the mask that it lifts.
                page.store_u32(place(vector), 0);
            }
        }
        self.update_interrupts(cx);
    }

    /// A read of ICR: returns the causes and clears them.
    pub(super) fn take_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        let causes = self.interrupts.take();
        if causes != 0 {
            self.update_interrupts(cx);
        }
        // Vectors beyond the register's bits share its last one.
        (causes as u32) | if causes >> 32 != 0 { 1 << 31 } else { 0 }
    }

    /// Applies the driver's configuration from ACTIVATE_DEV.
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
