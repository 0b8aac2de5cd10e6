//! CSR0's causes, and those of CSR4 and CSR5, on [`Interrupts`]; and the timing of interrupts for received frames and completions.
//!
//! A cause has the bit of its register: CSR0's are 8 to 14, CSR4's 16 and up, CSR5's 32 and up. RINT and TINT become pending when
//! they interrupt, or when CSR0 is read, which shows all causes. Until then they are in [`Tidings`].

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, InterruptRouter, Interrupts, Line, ReceiveModeration};
use serde::{Deserialize, Serialize};

use super::Lance;
use super::registers::{self as r, csr0, csr4, csr5};
use super::ring::{LTINT, OWN};

/// CSR4.TXSTRT.
pub const TXSTRT: u128 = (csr4::TXSTRT as u128) << CSR4_AT;
/// CSR4.UINT.
pub const UINT: u128 = (csr4::UINT as u128) << CSR4_AT;
/// First bit of CSR4's causes.
pub const CSR4_AT: u32 = 16;
/// First bit of CSR5's causes.
pub const CSR5_AT: u32 = 32;
const RINT: u128 = csr0::RINT as u128;
const TINT: u128 = csr0::TINT as u128;
/// Maximum descriptors of received frames to check whether the driver has taken them.
const CHECKED_MAX: u32 = 64;

/// Part of a ring that may wait before an immediate interrupt. An interrupt costs fourteen accesses, and the smaller ring, Linux's
/// transmit ring, has sixteen descriptors.
fn three_quarters(len: u32) -> u32 {
    len - len / 4
}

/// Interrupts of a new chip.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(48, Line::Level, InterruptRouter::Direct)
}

/// Ring events without an interrupt so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tidings {
    /// RINT and TINT that CSR0 does not show yet.
    unread: u32,
    /// Frames received since the last interrupt for them, at most the number of descriptors.
    waiting: u32,
    /// The descriptor of the last received frame.
    last_received: u32,
    /// The descriptor of the last frame sent, and its buffer.
    last_sent: (u32, u32),
    /// Bytes carried both ways.
    carried: u64,
    moderation: ReceiveModeration,
    completions: CompletionDelay,
}

impl Tidings {
    /// Counts a sent frame.
    pub fn carried(&mut self, bytes: u64) {
        self.carried = self.carried.wrapping_add(bytes);
    }

    /// Counts a received frame, up to this descriptor.
    pub fn received(&mut self, last: u32, bytes: u64) {
        self.carried(bytes);
        self.last_received = last;
        self.waiting = self.waiting.saturating_add(1);
        self.unread |= csr0::RINT;
    }

    /// A delivery has ended.
    pub fn answered(&mut self, cx: &Context<'_>) {
        if self.waiting > 0 {
            self.completions.answered(cx.now);
        }
    }

    /// Discards all waiting events.
    pub fn forget(&mut self) {
        (self.unread, self.waiting) = (0, 0);
        self.moderation.seen();
        self.completions.join();
    }

    /// Whether saved state is valid.
    pub fn fits(&self) -> bool {
        self.completions.fits() && self.unread & !(csr0::RINT | csr0::TINT) == 0
    }
}

impl Lance {
    /// Causes that would interrupt with IENA set.
    fn unmasked(&self) -> u128 {
        let masks = |name| u128::from(self.registers[name]);
        u128::from(csr0::MASKABLE) & !masks(r::CSR3)
            | (u128::from(csr4::MASKS) & !masks(r::CSR4)) << 1 << CSR4_AT
            | UINT
            | (u128::from(csr5::ENABLES) & masks(r::CSR5)) << 1 << CSR5_AT
    }

    /// Causes that interrupt whatever IENA holds.
    fn unmaskable(&self) -> u128 {
        u128::from(csr5::ENABLES_ALONE & self.registers[r::CSR5]) << 1 << CSR5_AT
    }

    /// IENA or a mask may have changed.
    pub(super) fn masks_changed(&mut self, cx: &mut Context<'_>) {
        let iena = if self.has(r::CSR0, csr0::IENA) { self.unmasked() } else { 0 };
        let open = iena | self.unmaskable();
        let lifted = open & !self.interrupts.enabled();
        self.interrupts.disable(!open);
        self.interrupts.enable(open);
        if lifted & (RINT | TINT) != 0 {
            self.forget_what_was_taken(cx);
        }
        self.settle(cx);
    }

    /// A driver that lifts its masks has just polled the rings: frames that it took need no interrupt.
    fn forget_what_was_taken(&mut self, cx: &mut Context<'_>) {
        if !self.function.bus_master() {
            return;
        }
        let memory = std::sync::Arc::clone(cx.memory);
        if self.tidings.waiting > 0
            && let Ok(ring) = self.receive_ring(&memory)
        {
            let (mut at, mut left) = (self.tidings.last_received, 0);
            let most = self.tidings.waiting.min(ring.len).min(CHECKED_MAX);
            while left < most && ring.status(at) & OWN == 0 {
                (left, at) = (left + 1, ring.before(at));
            }
            self.tidings.waiting = left;
            if left == 0 {
                self.tidings.moderation.seen();
            }
        }
        if self.tidings.completions.join()
            && let Ok(ring) = self.transmit_ring(&memory)
        {
            let (last, buffer) = self.tidings.last_sent;
            if ring.status(last) & OWN == 0 && ring.buffer(last) == buffer {
                self.tidings.completions.wait(1, three_quarters(ring.len), 0, cx.now);
            }
        }
    }

    /// Whether a transmit descriptor's completion interrupts: TOKINTD and LTINTEN of CSR5.
    pub(super) fn interrupts_for(&self, status: u32, errors: u32) -> bool {
        let quiet = self.has(r::CSR5, csr5::TOKINTD) && errors == 0;
        !quiet || self.has(r::CSR5, csr5::LTINTEN) && status & LTINT != 0
    }

    /// Frames were completed, up to this descriptor, in a ring of `len`.
    pub(super) fn transmitted(&mut self, frames: u32, last: (u32, u32), len: u32, cx: &mut Context<'_>) {
        if frames > 0 {
            self.tidings.unread |= csr0::TINT;
            self.tidings.last_sent = last;
            self.tidings.completions.wait(frames, three_quarters(len), 0, cx.now);
        }
        self.settle(cx);
    }

    /// A read of CSR0: all causes become pending.
    pub(super) fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        self.interrupts.raise(self.tidings.unread.into());
        self.tidings.forget();
        self.settle(cx);
        let pending = self.interrupts.pending() as u32 & csr0::CAUSES;
        let error = if pending & csr0::ERRORS != 0 { csr0::ERR } else { 0 };
        let unmasked = self.interrupts.pending() & (self.unmasked() | self.unmaskable());
        pending | error | if unmasked != 0 { csr0::INTR } else { 0 }
    }

    /// Updates the line from causes and masks, now and at the next deadline.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        let open = self.interrupts.enabled();
        let most = three_quarters(self.registers[r::RCVRL].wrapping_neg() & 0xffff);
        let tidings = &mut self.tidings;
        let mut must_signal = false;
        if tidings.waiting > 0 && open & RINT != 0 {
            let urgent = self.receive.starved || tidings.waiting >= most;
            must_signal = urgent || tidings.moderation.may_interrupt(tidings.carried, cx.now);
        }
        if open & TINT != 0 && tidings.completions.over(cx.now) {
            self.interrupts.raise(TINT);
            tidings.unread &= !csr0::TINT;
        }
        if must_signal || self.interrupts.signalled() == 0 && self.interrupts.is_due(&self.function, cx.now) {
            tidings.moderation.note_interrupt(tidings.carried, cx.now);
            self.interrupts.raise(tidings.unread.into());
            (tidings.unread, tidings.waiting) = (0, 0);
            tidings.completions.join();
        }
        self.interrupts.update(&mut self.function, cx);
        let due = [
            self.tidings.moderation.due().filter(|_| open & RINT != 0 && self.tidings.waiting > 0),
            self.tidings.completions.due().filter(|_| open & TINT != 0),
            self.next_look(),
            self.next_poll(cx),
        ];
        if let Some(due) = due.into_iter().flatten().min() {
            cx.out.wake = Some(due);
        }
    }
}
