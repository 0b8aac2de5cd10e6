//! ICR, ICS, IMS, IMC, IAM, EIAC, IVAR, ITR, EITR and the delay timers (datasheet, 7.4 and 10.2.4), on [`Interrupts`].
//!
//! ```text
//! line, MSI   every cause ─► ITR ─► one interrupt; the driver reads ICR
//! MSI-X       RXQ0, RXQ1, TXQ0, TXQ1, OTHER ─► IVAR ─► EITR of the vector ─► message; EIAC ends the cause, nothing is read
//! ```
//! A received frame raises RXT0 and its queue's cause, a completion TXDW and its queue's. Other events raise their own cause and
//! OTHER. A driver enables the causes that it uses.
//!
//! ICR clears on reading if no cause is enabled, or if the chip interrupts (INT_ASSERTED), so a driver that shares the line loses
//! nothing.
//!
//! Throttle: like the e1000's, from an interrupt, and restarted at the end of a poll (IMS), which has probably taken the frames
//! that arrived meanwhile. RDTR and RADV apply only without a throttle: Linux sets both, and the throttle saves as many interrupts.
//! Completions with a delay (IDE) wait like the e1000's. With MSI-X they have a message of their own, because the driver checks
//! them only in that interrupt: it is sent within 100 µs, or when a quarter of the ring is complete.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};
use nicety_pci::Mode;

use super::E1000e;
use super::registers::{self as r, cause, ctrl_ext};
use crate::intel::mac::Interrupting;
use crate::intel::mac::receive::Arrived;
use crate::intel::statistics::Statistics;
use crate::intel::transmit::Completed;

/// Unit of the throttles, in nanoseconds.
const THROTTLE_NS: u64 = 256;
/// Unit of the delay timers, in nanoseconds.
const DELAY_NS: u64 = 1024;
/// Causes that have vectors: IVAR has four bits for each, in this order.
const ROUTED: [u16; 5] = [20, 21, 22, 23, 24];
/// Causes that OTHER summarises: LSC, RXO, MDAC, SRPD, ACK, MNG.
const OTHERS: u32 = cause::LSC | cause::RXO | cause::MDAC | cause::SRPD | 1 << 17 | 1 << 18;

/// Interrupts of a new chip: 31 causes, the line, five vectors with a throttle each.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(31, Line::Level, InterruptRouter::table(25)).throttled(usize::from(r::VECTORS))
}

impl Interrupting for E1000e {
    fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        let other = if bits & OTHERS != 0 { cause::OTHER } else { 0 };
        self.interrupts.raise((bits | other).into());
        self.settle(cx);
    }

    fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        if !self.has_vectors() {
            self.join_completions();
        }
        let causes = self.peek_causes();
        if causes & cause::ASSERTED != 0 || self.interrupts.enabled() == 0 {
            if !self.has_vectors() && self.interrupts.signalled() != 0 {
                self.begin_throttle(0, cx);
            }
            self.interrupts.take();
            self.acknowledge(causes);
        }
        self.settle(cx);
        causes
    }

    /// ICS is as ICR.
    fn peek_causes(&self) -> u32 {
        let pending = self.interrupts.pending();
        let asserted = if pending & self.interrupts.enabled() != 0 { cause::ASSERTED } else { 0 };
        pending as u32 | asserted
    }

    /// OTHER also clears the causes that it summarises, as Windows' driver expects (according to QEMU's e1000e_core.c).
    fn clear_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        let causes = self.peek_causes();
        let others = if value & cause::OTHER != 0 { OTHERS } else { 0 };
        self.interrupts.clear((value | others).into());
        self.acknowledge(causes);
        self.settle(cx);
    }

    fn enable_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        if self.has_vectors() {
            let polled = self.interrupts.pending() & !self.interrupts.enabled() & u128::from(value);
            for cause in ROUTED.into_iter().filter(|cause| polled >> cause & 1 != 0) {
                if let Some(vector) = self.interrupts.router().vector(cause) {
                    self.begin_throttle(vector, cx);
                }
            }
        } else if self.interrupts.enabled() == 0 {
            self.begin_throttle(0, cx);
        }
        self.interrupts.enable(value.into());
        self.settle(cx);
    }

    fn received(&mut self, arrived: Arrived, cx: &mut Context<'_>) {
        for queue in (0..r::QUEUES).filter(|queue| arrived.queues >> queue & 1 != 0) {
            self.received_in(queue, arrived.small >> queue & 1 != 0, arrived.few >> queue & 1 != 0, cx);
        }
    }

    fn sent(&mut self, queue: usize, done: Completed, cx: &mut Context<'_>) {
        self.sent_classic(queue, done, done.descriptors, cx);
    }

    fn signal_completions(&mut self, queue: usize) {
        self.interrupts.raise((cause::TXDW | cause::TXQ0 << queue).into());
    }

    fn settle(&mut self, cx: &mut Context<'_>) {
        if !self.has_vectors() && self.interrupts.is_due(&self.function, cx.now) && self.interrupts.signalled() == 0 {
            self.join_completions();
        }
        let sent = self.interrupts.update(&mut self.function, cx);
        if sent != 0 {
            self.registers.count(r::IAC, 1);
        }
        if self.interrupts.due(&self.function, cx.now).is_some() {
            self.rearm(cx);
        }
    }

    fn rearm(&self, cx: &mut Context<'_>) {
        let throttle = self.interrupts.due(&self.function, cx.now);
        self.rearm_for(throttle.into_iter().chain(self.own.receive_delay.due()), cx);
    }

    fn time_passed(&mut self, cx: &mut Context<'_>) {
        if self.own.receive_delay.over(cx.now) {
            let delayed = std::mem::take(&mut self.own.delayed);
            self.cause(delayed, cx);
        }
        self.deadlines_passed(cx);
        self.settle(cx);
        self.rearm(cx);
    }

    fn mode_changed(&mut self, cx: &mut Context<'_>) {
        self.route();
        self.interrupts.mode_changed(&mut self.function, cx);
        self.set_throttles(cx);
    }
}

impl E1000e {
    /// Whether causes are routed to MSI-X vectors.
    pub(super) fn has_vectors(&self) -> bool {
        self.function.mode() == Mode::Msix
    }

    /// ICR was accessed: masks the causes in IAM (7.4.4).
    fn acknowledge(&mut self, causes: u32) {
        if causes & cause::ASSERTED != 0 && self.registers[r::CTRL_EXT] & ctrl_ext::IAME != 0 {
            self.interrupts.disable(self.registers[r::IAM].into());
        }
    }

    /// EIAC, IAM, IVAR, CTRL_EXT or the interrupt mode has changed: updates each cause's vector, and the causes that a message
    /// clears.
    pub(super) fn route(&mut self) {
        let ivar = self.registers[r::IVAR];
        for (n, cause) in (0..).zip(ROUTED) {
            let entry = ivar >> (4 * n) & 0xf;
            let vector = (entry & 8 != 0 && entry & 7 < r::VECTORS.into()).then_some((entry & 7) as u8);
            self.interrupts.router().route(cause, vector);
        }
        let (mut clear, mut mask) = (0, 0);
        if self.has_vectors() {
            let control = self.registers[r::CTRL_EXT];
            clear = self.registers[r::EIAC];
            if control & ctrl_ext::EIAME != 0 {
                mask |= self.registers[r::IAM];
            }
            if control & ctrl_ext::IAME == 0 {
                mask |= clear;
            }
        }
        self.interrupts.set_auto_clear(clear.into());
        self.interrupts.set_auto_mask(mask.into());
    }

    /// ITR, EITR or the interrupt mode has changed: with the line or MSI, ITR is the throttle.
    pub(super) fn set_throttles(&mut self, cx: &mut Context<'_>) {
        let has_vectors = self.has_vectors();
        for vector in 0..r::VECTORS {
            let interval = match vector {
                0 if !has_vectors => self.registers[r::ITR],
                _ => self.registers.of(r::EITR).get(usize::from(vector)).copied().unwrap_or(0),
            };
            if let Some(throttle) = self.interrupts.throttle(vector) {
                throttle.set_interval(u64::from(interval & 0xffff) * THROTTLE_NS);
                if interval == 0 {
                    throttle.stop();
                }
            }
        }
        self.settle(cx);
    }

    /// Whether the throttle for a receive queue's interrupts has an interval.
    fn is_throttled(&mut self, queue: usize) -> bool {
        if !self.has_vectors() {
            return self.registers[r::ITR] != 0;
        }
        let number = (cause::RXQ0 << queue).trailing_zeros() as u16;
        let vector = self.interrupts.router().vector(number);
        vector.is_some_and(|vector| self.registers.of(r::EITR).get(usize::from(vector)) != Some(&0))
    }

    /// Frames have arrived in a queue: interrupts now, or after the delay.
    fn received_in(&mut self, queue: usize, small: bool, few: bool, cx: &mut Context<'_>) {
        // With vectors, an interrupt for frames reports no completion.
        if !self.has_vectors() {
            self.completions.iter_mut().for_each(|queue| queue.answered(cx.now));
        }
        let arrived = cause::RXT0 | cause::RXQ0 << queue;
        let (packet, absolute) = (u64::from(self.registers[r::RDTR]), u64::from(self.registers[r::RADV]));
        // The threshold raises the queue's cause too.
        let few = if few { cause::RXDMT0 | cause::RXQ0 << queue } else { 0 };
        let mut bits = few | if small { cause::SRPD } else { 0 };
        if packet == 0 || self.is_throttled(queue) {
            bits |= arrived;
        } else {
            self.own.delayed |= arrived;
            self.own.receive_delay.extend(packet * DELAY_NS, absolute * DELAY_NS, cx.now);
            self.rearm(cx);
        }
        self.cause(bits, cx);
    }

    /// Ends the receive delay at once (RDTR.FPD).
    pub(super) fn flush_delay(&mut self, cx: &mut Context<'_>) {
        if self.own.receive_delay.end() {
            let delayed = std::mem::take(&mut self.own.delayed);
            self.cause(delayed, cx);
        }
    }
}
