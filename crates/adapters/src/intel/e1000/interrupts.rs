//! ICR, ICS, IMS, IMC, ITR and the delay timers (manual, 3.2.7.2 and 13.4.17 to 13.4.21), on [`Interrupts`].
//!
//! A cause is never lost: it stays in ICR until a read. Deadlines of the throttle (ITR), the receive delay (RDTR, RADV) and the
//! transmit delay are in the outbox.
//!
//! A completion whose descriptor requests a delay (IDE) waits for an interrupt that is due anyway, up to a quarter of the ring: see
//! [`CompletionDelay`](nicety_adapter::interrupts::CompletionDelay). The chip's own delays (TIDV, TADV) are tens of microseconds,
//! less than the cost, in a virtual machine, of the interrupts that they save.
//!
//! The throttle runs from an interrupt, as in the chip, and restarts at the read of its cause and at the end of the driver's poll
//! (IMS). Over a socket the accesses between these take as long as the whole pause: without the restart, frames that a poll has
//! just taken would interrupt once more.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};

use super::E1000;
use super::registers::{self as r, cause};
use crate::intel::transmit;

/// Unit of the throttle, in nanoseconds.
pub(super) const THROTTLE_NS: u64 = 256;
/// Unit of the delay timers, in nanoseconds.
const DELAY_NS: u64 = 1024;

/// Interrupts of a new chip: 32 causes, the line, one throttle.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(32, Line::Level, InterruptRouter::Direct).throttled(1)
}

impl E1000 {
    /// Raises causes.
    pub(super) fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        self.interrupts.raise(bits.into());
        self.settle_line(cx);
    }

    /// Updates the line from causes, mask and throttle.
    pub(super) fn settle_line(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.is_due(&self.function, cx.now) && self.interrupts.signalled() == 0 {
            self.join_completions();
        }
        self.interrupts.update(&mut self.function, cx);
        if self.interrupts.due(&self.function, cx.now).is_some() {
            self.rearm(cx);
        }
    }

    /// A read of ICR: returns the causes and clears them.
    pub(super) fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        self.join_completions();
        if self.interrupts.signalled() != 0 {
            self.pause(cx);
        }
        let causes = self.interrupts.take() as u32;
        self.read_lone(causes, cx);
        self.settle_line(cx);
        causes
    }

    /// ICR is written: clears these causes.
    pub(super) fn clear_causes(&mut self, causes: u32, cx: &mut Context<'_>) {
        let cleared = self.interrupts.pending() as u32 & causes;
        self.interrupts.clear(causes.into());
        self.read_lone(cleared, cx);
        self.settle_line(cx);
    }

    /// IMS is written.
    pub(super) fn enable_causes(&mut self, causes: u32, cx: &mut Context<'_>) {
        if self.interrupts.enabled() == 0 {
            self.pause(cx);
        }
        self.interrupts.enable(causes.into());
        self.settle_line(cx);
    }

    /// ITR is written.
    pub(super) fn set_throttle(&mut self, cx: &mut Context<'_>) {
        let interval = self.registers[r::ITR] & 0xffff;
        let Some(throttle) = self.interrupts.throttle(0) else { return };
        throttle.set_interval(u64::from(interval) * THROTTLE_NS);
        if interval == 0 {
            throttle.stop();
            self.settle_line(cx);
        }
    }

    /// Starts the pause of the driver's ITR, in which the line stays low.
    fn pause(&mut self, cx: &mut Context<'_>) {
        if let Some(throttle) = self.interrupts.throttle(0) {
            throttle.begin(cx.now);
        }
    }

    /// Frames have arrived: interrupts now, or after the delay.
    pub(super) fn received(&mut self, small: bool, other: u32, cx: &mut Context<'_>) {
        self.completions.answered(cx.now);
        let (packet, absolute) = (u64::from(self.registers[r::RDTR]), u64::from(self.registers[r::RADV]));
        let mut bits = other;
        if packet == 0 {
            bits |= cause::RXT0;
        } else {
            self.receive_delay.extend(packet * DELAY_NS, absolute * DELAY_NS, cx.now);
            if small {
                bits |= cause::SRPD;
            }
            self.rearm(cx);
        }
        self.cause(bits, cx);
    }

    /// Descriptors were completed. `delayed`: all of them may wait for another interrupt.
    pub(super) fn transmitted(&mut self, descriptors: u32, delayed: bool, empty: bool, cx: &mut Context<'_>) {
        if empty {
            self.interrupts.raise(cause::TXQE.into());
        }
        let least_ns = u64::from(self.registers[r::TADV]) * DELAY_NS;
        self.completions.wait(descriptors, transmit::ring(&self.registers, 0).0 / 4, least_ns, cx.now);
        if !delayed {
            self.completions.hurry(cx.now);
        }
        self.time_passed(cx);
    }

    /// An interrupt is sent: deferred completions join it.
    fn join_completions(&mut self) {
        if self.completions.join() {
            self.interrupts.raise(cause::TXDW.into());
        }
    }

    /// Ends the receive delay at once (RDTR.FPD).
    pub(super) fn flush_delay(&mut self, cx: &mut Context<'_>) {
        if self.receive_delay.end() {
            self.cause(cause::RXT0, cx);
        }
    }

    /// Requests the earliest tick needed.
    pub(super) fn rearm(&self, cx: &mut Context<'_>) {
        let throttle = self.interrupts.due(&self.function, cx.now);
        let due = [throttle, self.receive_delay.due(), self.completions.due(), self.pause.due(), self.lone_read_by];
        let next = due.into_iter().flatten().min();
        if next.is_some() {
            cx.out.wake = next;
        }
    }

    /// Handles a tick, whether or not a deadline has passed.
    pub(super) fn time_passed(&mut self, cx: &mut Context<'_>) {
        if self.receive_delay.over(cx.now) {
            self.cause(cause::RXT0, cx);
        }
        if self.completions.over(cx.now) {
            self.interrupts.raise(cause::TXDW.into());
        }
        if self.pause.over(cx.now) {
            cx.out.work.insert(0);
        }
        self.free_lone(cx);
        self.settle_line(cx);
        self.rearm(cx);
    }
}
