//! EICR with its masks, three vectors (82576 datasheet, 7.3 and 8.8). A bit of EICR is a vector, and MSI-X is the only way to
//! interrupt. The physical function's GPIE has Multiple_MSIX and EIAME set: EIAC and EIAM act when a message is sent.
//!
//! ```text
//! queue ──────── IVAR ───► EICR & EIMS ── EITR ──► vector
//! mailbox ── IVAR_MISC ──►┘
//! ```

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, InterruptRouter, Interrupts, Line};

use super::VirtualFunction;
use super::registers::{self as r};

/// IVAR: the entry is valid.
const VALID: u32 = 1 << 7;
/// EITR: a write leaves the running pause unchanged (CNT_IGNR).
const KEEP: u32 = 1 << 31;

/// Byte of a queue's direction in its half of IVAR.
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;

/// EICR of a new function.
pub(super) fn causes() -> Interrupts {
    Interrupts::new(r::VECTORS, Line::Level, InterruptRouter::Direct).throttled(r::VECTORS.into())
}

/// The vector in an IVAR entry, as a bit of EICR; 0 if it has none.
fn entry(register: u32, byte: usize) -> u32 {
    let entry = register >> (8 * (byte & 3));
    if entry & VALID == 0 { 0 } else { (1_u32 << (entry & 3)) & ((1 << r::VECTORS) - 1) }
}

impl VirtualFunction {
    fn bit(&self, direction: usize, queue: usize) -> u32 {
        entry(self.registers.of(r::IVAR).get(queue / 2).copied().unwrap_or(0), 2 * (queue & 1) + direction)
    }

    /// The state after power-on.
    pub(super) fn clear_interrupts(&mut self) {
        self.causes = causes();
        self.completions = Default::default();
    }

    /// EIAC or EIAM was written.
    pub(super) fn modes_written(&mut self, cx: &mut Context<'_>) {
        self.causes.set_auto_clear(self.registers[r::EIAC].into());
        self.causes.set_auto_mask(self.registers[r::EIAM].into());
        self.settle(cx);
    }

    /// The mailbox has something new.
    pub(super) fn other_cause(&mut self, cx: &mut Context<'_>) {
        self.causes.raise(entry(self.registers[r::IVAR_MISC], 0).into());
        self.settle(cx);
    }

    /// Signals what causes, masks and throttles allow now.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.function.msix_enabled() {
            self.causes.update(&mut self.function, cx);
        }
        let throttle = self.causes.due(&self.function, cx.now);
        let completions = self.completions.iter().filter_map(CompletionDelay::due);
        if let Some(next) = throttle.into_iter().chain(completions).min() {
            cx.out.wake = Some(next);
        }
    }

    /// A read of EICR: ends its causes.
    pub(super) fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        let shown = self.causes.take() as u32;
        self.settle(cx);
        shown
    }

    /// A write to EITR: the minimum interval between two messages of a vector.
    pub(super) fn set_throttle(&mut self, vector: usize, value: u32, cx: &mut Context<'_>) {
        let interval_ns = (self.model.interval_ns)(value);
        if let Some(throttle) = self.causes.throttle(vector as u16) {
            throttle.set_interval(interval_ns);
            if interval_ns == 0 && value & KEEP == 0 {
                throttle.stop();
            }
        }
        self.settle(cx);
    }

    /// Frames have arrived in these queues, a bit for each.
    pub(super) fn received(&mut self, queues: u32, cx: &mut Context<'_>) {
        let arrived = (0..self.model.queues).filter(|queue| queues >> queue & 1 != 0);
        let bits = arrived.fold(0, |bits, queue| bits | self.bit(RECEIVE, queue));
        for queue in 0..self.model.queues {
            if self.bit(TRANSMIT, queue) & bits != 0 {
                let Some(completions) = self.completions.get_mut(queue) else { continue };
                completions.answered(cx.now);
                completions.join();
            }
        }
        self.causes.raise(bits.into());
        self.settle(cx);
    }

    /// Descriptors of a queue were completed.
    pub(super) fn transmitted(&mut self, queue: usize, descriptors: u32, cx: &mut Context<'_>) {
        let enough = self.transmit_ring(queue).0 / 4;
        if let Some(completions) = self.completions.get_mut(queue) {
            completions.wait(descriptors, enough, 0, cx.now);
        }
        self.time_passed(cx);
    }

    /// Handles a tick, whether or not a deadline has passed.
    pub(super) fn time_passed(&mut self, cx: &mut Context<'_>) {
        for queue in 0..self.model.queues {
            if self.completions.get_mut(queue).is_some_and(|completions| completions.over(cx.now)) {
                self.causes.raise(self.bit(TRANSMIT, queue).into());
            }
        }
        self.settle(cx);
    }
}
