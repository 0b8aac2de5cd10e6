//! ICR with its masks, EICR with its own, IVAR and EITR (82576 datasheet, 7.3 and 8.8), on two [`Interrupts`].
//!
//! ```text
//! GPIE.Multiple_MSIX = 1 (MSI-X)                            0 (INTx, MSI, one vector of MSI-X)
//! queue ── IVAR ──► EICR & EIMS ── EITR ──► vector          queue ──► ICR.RXDW, TXDW ┐
//! ICR & IMS ── IVAR_MISC ─►┘                                other ──► ICR ───────────┴─ & IMS ── EITR 0 ──► line, message
//! ```
//! A bit of EICR is a vector. EIAC clears it when its message is sent, and EIAM with GPIE.EIAME masks it: an interrupt costs Linux
//! no register read, and one write at the end of its poll. ICR interrupts as "other" once for each new cause.
//!
//! Linux requests the completion of every packet. Completions wait for an interrupt that their vector has anyway, up to a quarter
//! of the ring: [`CompletionDelay`].

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, InterruptRouter, Interrupts, Line};

use super::Igb;
use super::registers::{self as r, cause, gpie};
use crate::intel::mac::Interrupting;
use crate::intel::mac::receive::Arrived;
use crate::intel::transmit::Completed;

/// Unit of bits 14:2 of EITR, in nanoseconds.
const THROTTLE_NS: u64 = 1000;
/// ICR: an interrupt is asserted.
const ASSERTED: u32 = 1 << 31;
/// Causes of ICR.
const CAUSES: u16 = 31;
/// IVAR: the entry is valid.
const VALID: u32 = 1 << 7;
/// EITR: a write leaves the running pause unchanged (CNT_IGNR).
const KEEP: u32 = 1 << 31;

/// A queue's direction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Receive,
    Transmit,
}

/// ICR of a new chip: all causes in vector 0, which EITR 0 throttles.
pub(super) fn causes() -> Interrupts {
    let mut router = InterruptRouter::table(CAUSES.into());
    (0..CAUSES).for_each(|cause| router.route(cause, Some(0)));
    Interrupts::new(CAUSES, Line::Level, router).throttled(1)
}

/// EICR of a new chip: each bit a vector.
pub(super) fn extended() -> Interrupts {
    Interrupts::new(r::VECTORS, Line::Level, InterruptRouter::Direct).throttled(r::VECTORS.into())
}

impl Interrupting for Igb {
    /// Raises causes that are not a queue's.
    fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        self.interrupts.raise(bits.into());
        self.settle(cx);
    }

    fn settle(&mut self, cx: &mut Context<'_>) {
        let sent = if self.multiple() {
            let active = (self.interrupts.pending() & self.interrupts.enabled()) as u32;
            if active & !self.own.other != 0 {
                let other = self.entry(self.registers[r::IVAR_MISC], 1);
                self.own.extended.raise(other.into());
            }
            self.own.other = active;
            self.own.extended.update_counted(&mut self.function, cx).1
        } else {
            self.own.other = 0;
            self.interrupts.update_counted(&mut self.function, cx).1
        };
        self.registers[r::IAC] = self.registers[r::IAC].saturating_add(sent);
        self.rearm(cx);
    }

    fn mode_changed(&mut self, cx: &mut Context<'_>) {
        if self.multiple() {
            self.own.extended.mode_changed(&mut self.function, cx);
        } else {
            self.interrupts.mode_changed(&mut self.function, cx);
        }
        self.settle(cx);
    }

    fn peek_causes(&self) -> u32 {
        let pending = self.interrupts.pending() as u32;
        let asserted = pending & self.interrupts.enabled() as u32 != 0;
        pending | if asserted { ASSERTED } else { 0 }
    }

    /// A read of ICR (8.8.7): clears its causes if GPIE.NSICR is set, if an interrupt is asserted, or if none is enabled.
    fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        if !self.multiple() {
            self.join_completions_of(!0);
        }
        let shown = self.peek_causes();
        let always = self.registers[r::GPIE] & gpie::NSICR != 0;
        let masks = always || shown & ASSERTED != 0;
        if masks || self.interrupts.enabled() == 0 {
            self.interrupts.take();
        }
        self.acknowledge(masks, cx);
        shown
    }

    fn clear_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        let always = self.registers[r::GPIE] & gpie::NSICR != 0;
        let masks = always || self.peek_causes() & ASSERTED != 0;
        self.interrupts.clear(value.into());
        self.acknowledge(masks, cx);
    }

    fn enable_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        self.interrupts.enable(value.into());
        self.settle(cx);
    }

    fn received(&mut self, arrived: Arrived, cx: &mut Context<'_>) {
        let queues = arrived.queues;
        let mut bits = 0;
        for queue in (0..r::QUEUES).filter(|queue| queues >> queue & 1 != 0) {
            bits |= self.bit(Direction::Receive, queue);
        }
        for queue in 0..r::QUEUES {
            let joined = if self.multiple() { self.bit(Direction::Transmit, queue) & bits } else { u32::MAX };
            if joined != 0
                && let Some(completions) = self.completions.get_mut(queue)
            {
                completions.answered(cx.now);
            }
        }
        self.join_completions_of(bits);
        self.own.extended.raise(bits.into());
        let few = if arrived.few != 0 { cause::RXDMT0 } else { 0 };
        self.cause(cause::RXT0 | few, cx);
    }

    fn signal_completions(&mut self, queue: usize) {
        let bit = self.bit(Direction::Transmit, queue);
        self.own.extended.raise(bit.into());
        self.interrupts.raise(cause::TXDW.into());
    }

    fn sent(&mut self, queue: usize, done: Completed, cx: &mut Context<'_>) {
        self.sent_advanced(queue, done, cx);
    }

    fn rearm(&self, cx: &mut Context<'_>) {
        self.rearm_for(self.active().due(&self.function, cx.now), cx);
    }

    fn time_passed(&mut self, cx: &mut Context<'_>) {
        self.deadlines_passed(cx);
        self.settle(cx);
    }
}

impl Igb {
    /// Whether each bit of EICR has a vector.
    fn multiple(&self) -> bool {
        self.registers[r::GPIE] & gpie::MULTIPLE_MSIX != 0
    }

    /// The vector in an IVAR entry, as a bit of EICR; 0 if it has none.
    fn entry(&self, register: u32, byte: usize) -> u32 {
        let entry = register >> (8 * (byte & 3));
        if entry & VALID == 0 { 0 } else { (1_u32 << (entry & 0x1f)) & ((1 << self.own.vectors) - 1) }
    }

    /// A queue's bit of EICR (8.8.14): rows of two columns, receive and transmit in each.
    pub(super) fn bit(&self, direction: Direction, queue: usize) -> u32 {
        let row = self.registers.of(r::IVAR).get(queue & 7).copied().unwrap_or(0);
        self.entry(row, (queue >> 3 & 1) * 2 + usize::from(direction == Direction::Transmit))
    }

    /// GPIE, EIAC or EIAM was written.
    pub(super) fn mode_written(&mut self, cx: &mut Context<'_>) {
        let on = |mask: u32, condition: bool| u128::from(if condition { mask } else { 0 });
        let control = self.registers[r::GPIE];
        let multiple = self.multiple();
        self.own.extended.set_auto_clear(on(self.registers[r::EIAC], multiple));
        self.own.extended.set_auto_mask(on(self.registers[r::EIAM], multiple && control & gpie::EIAME != 0));
        self.settle(cx);
    }

    /// A row of IVAR was written. Events in a queue while it had no vector are signalled now: Linux's igb_open enables rings before
    /// it routes them. A real link takes seconds to come up and delivers nothing before; this one is up at once.
    pub(super) fn route(&mut self, row: usize, before: u32, cx: &mut Context<'_>) {
        let now = self.registers.of(r::IVAR).get(row).copied().unwrap_or(0);
        let entries = [(row, r::RDH), (row, r::TDH), (row + 8, r::RDH), (row + 8, r::TDH)];
        for (byte, (queue, head)) in entries.into_iter().enumerate() {
            let used = self.registers.of(head).get(queue).is_some_and(|head| *head != 0);
            if used && self.entry(before, byte) == 0 {
                let bit = self.entry(now, byte);
                self.own.extended.raise(bit.into());
            }
        }
        self.settle(cx);
    }

    fn active(&self) -> &Interrupts {
        if self.multiple() { &self.own.extended } else { &self.interrupts }
    }

    /// Masks the causes in IAM (8.8.11), if `masks`.
    fn acknowledge(&mut self, masks: bool, cx: &mut Context<'_>) {
        if masks {
            self.interrupts.disable(self.registers[r::IAM].into());
        }
        self.settle(cx);
    }

    /// A read of EICR: clears its causes, and masks those of EIAM unless their messages do.
    pub(super) fn read_extended(&mut self, cx: &mut Context<'_>) -> u32 {
        let shown = self.own.extended.take() as u32;
        self.mask_extended();
        self.settle(cx);
        shown
    }

    /// A write to EICR: ones clear causes.
    pub(super) fn clear_extended(&mut self, value: u32, cx: &mut Context<'_>) {
        self.own.extended.clear(value.into());
        self.mask_extended();
        self.settle(cx);
    }

    fn mask_extended(&mut self) {
        if self.registers[r::GPIE] & gpie::EIAME == 0 {
            self.own.extended.disable(self.registers[r::EIAM].into());
        }
    }

    /// EICS is written.
    pub(super) fn raise_extended(&mut self, value: u32, cx: &mut Context<'_>) {
        self.own.extended.raise(value.into());
        self.settle(cx);
    }

    /// EIMS is written.
    pub(super) fn enable_extended(&mut self, value: u32, cx: &mut Context<'_>) {
        self.own.extended.enable(value.into());
        self.settle(cx);
    }

    /// A write to EITR (8.8.12): bits 14:2 are the minimum microseconds between two messages of a vector.
    pub(super) fn set_throttle(&mut self, vector: usize, value: u32, cx: &mut Context<'_>) {
        let interval_ns = u64::from(value >> 2 & 0x1fff) * THROTTLE_NS;
        let single = (vector == 0).then(|| self.interrupts.throttle(0)).flatten();
        for throttle in single.into_iter().chain(self.own.extended.throttle(vector as u16)) {
            throttle.set_interval(interval_ns);
            if interval_ns == 0 && value & KEEP == 0 {
                throttle.stop();
            }
        }
        self.settle(cx);
    }

    /// Completions whose vector is in `bits` join its interrupt; without vectors all do.
    fn join_completions_of(&mut self, bits: u32) {
        let multiple = self.multiple();
        for queue in 0..r::QUEUES {
            if multiple && self.bit(Direction::Transmit, queue) & bits == 0 {
                continue;
            }
            if self.completions.get_mut(queue).is_some_and(CompletionDelay::join) {
                self.signal_completions(queue);
            }
        }
    }
}
