//! EICR with its masks, three vectors (82576 datasheet, 7.3 and 8.8). A bit of EICR is a vector, and MSI-X is the only way to
//! interrupt. The physical function's GPIE has Multiple_MSIX and EIAME set: EIAC and EIAM act when a message is sent.
//!
//! ```text
//! queue ──────── IVAR ───► EICR & EIMS ── EITR ──► vector
//! mailbox ── IVAR_MISC ──►┘
//! ```

use nicety_adapter::Context;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};

use super::VirtualFunction;
use super::registers::{self as r};
use crate::intel::mac::Interrupting;
use crate::intel::mac::receive::Arrived;
use crate::intel::transmit::Completed;

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

impl Interrupting for VirtualFunction {
    fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        self.interrupts.raise(bits.into());
        self.settle(cx);
    }

    /// A read of EICR: ends its causes.
    fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        let shown = self.interrupts.take() as u32;
        self.settle(cx);
        shown
    }

    fn peek_causes(&self) -> u32 {
        self.interrupts.pending() as u32
    }

    fn clear_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        self.interrupts.clear(value.into());
        self.settle(cx);
    }

    fn enable_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        self.interrupts.enable(value.into());
        self.settle(cx);
    }

    fn received(&mut self, arrived: Arrived, cx: &mut Context<'_>) {
        self.count_received();
        let arrived = (0..self.queues).filter(|queue| arrived.queues >> queue & 1 != 0);
        let bits = arrived.fold(0, |bits, queue| bits | self.bit(RECEIVE, queue));
        for queue in 0..self.queues {
            if self.bit(TRANSMIT, queue) & bits != 0 {
                let Some(completions) = self.completions.get_mut(queue) else { continue };
                completions.answered(cx.now);
                completions.join();
            }
        }
        self.interrupts.raise(bits.into());
        self.settle(cx);
    }

    fn sent(&mut self, queue: usize, done: Completed, cx: &mut Context<'_>) {
        self.sent_advanced(queue, done, cx);
    }

    fn signal_completions(&mut self, queue: usize) {
        self.interrupts.raise(self.bit(TRANSMIT, queue).into());
    }

    fn settle(&mut self, cx: &mut Context<'_>) {
        if self.function.msix_enabled() {
            self.interrupts.update(&mut self.function, cx);
        }
        self.rearm(cx);
    }

    fn rearm(&self, cx: &mut Context<'_>) {
        self.rearm_for(self.interrupts.due(&self.function, cx.now), cx);
    }

    fn time_passed(&mut self, cx: &mut Context<'_>) {
        self.deadlines_passed(cx);
        self.settle(cx);
    }

    fn mode_changed(&mut self, cx: &mut Context<'_>) {
        self.interrupts.mode_changed(&mut self.function, cx);
        self.settle(cx);
    }
}

impl VirtualFunction {
    fn bit(&self, direction: usize, queue: usize) -> u32 {
        entry(self.registers.of(r::IVAR).get(queue / 2).copied().unwrap_or(0), 2 * (queue & 1) + direction)
    }

    /// EIAC or EIAM was written.
    pub(super) fn modes_written(&mut self, cx: &mut Context<'_>) {
        self.interrupts.set_auto_clear(self.registers[r::EIAC].into());
        self.interrupts.set_auto_mask(self.registers[r::EIAM].into());
        self.settle(cx);
    }

    /// The mailbox has something new.
    pub(super) fn other_cause(&mut self, cx: &mut Context<'_>) {
        self.cause(entry(self.registers[r::IVAR_MISC], 0), cx);
    }

    /// A write to EITR: the minimum interval between two messages of a vector.
    pub(super) fn set_throttle(&mut self, vector: usize, value: u32, cx: &mut Context<'_>) {
        let interval_ns = (self.own.model.interval_ns)(value);
        if let Some(throttle) = self.interrupts.throttle(vector as u16) {
            throttle.set_interval(interval_ns);
            if interval_ns == 0 && value & KEEP == 0 {
                throttle.stop();
            }
        }
        self.settle(cx);
    }
}
