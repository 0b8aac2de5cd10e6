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
use crate::intel::mac::Interrupting;
use crate::intel::mac::receive::Arrived;
use crate::intel::transmit::Completed;

/// Unit of the throttle, in nanoseconds.
const THROTTLE_NS: u64 = 256;
/// Unit of the delay timers, in nanoseconds.
const DELAY_NS: u64 = 1024;

/// Interrupts of a new chip: 32 causes, the line, one throttle.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(32, Line::Level, InterruptRouter::Direct).throttled(1)
}

impl Interrupting for E1000 {
    fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        self.interrupts.raise(bits.into());
        self.settle(cx);
    }

    fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        self.join_completions();
        if self.interrupts.signalled() != 0 {
            self.begin_throttle(0, cx);
        }
        let causes = self.interrupts.take() as u32;
        self.read_lone(causes, cx);
        self.settle(cx);
        causes
    }

    fn peek_causes(&self) -> u32 {
        self.interrupts.pending() as u32
    }

    fn clear_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        let cleared = self.interrupts.pending() as u32 & value;
        self.interrupts.clear(value.into());
        self.read_lone(cleared, cx);
        self.settle(cx);
    }

    fn enable_causes(&mut self, value: u32, cx: &mut Context<'_>) {
        if self.interrupts.enabled() == 0 {
            self.begin_throttle(0, cx);
        }
        self.interrupts.enable(value.into());
        self.settle(cx);
    }

    /// Frames interrupt now, or after the delay.
    fn received(&mut self, arrived: Arrived, cx: &mut Context<'_>) {
        self.completions[0].answered(cx.now);
        let (packet, absolute) = (u64::from(self.registers[r::RDTR]), u64::from(self.registers[r::RADV]));
        let mut bits = if arrived.few != 0 { cause::RXDMT0 } else { 0 };
        if packet == 0 {
            bits |= cause::RXT0;
        } else {
            self.own.receive_delay.extend(packet * DELAY_NS, absolute * DELAY_NS, cx.now);
            if arrived.small != 0 {
                bits |= cause::SRPD;
            }
            self.rearm(cx);
        }
        self.cause(bits, cx);
    }

    fn sent(&mut self, queue: usize, done: Completed, cx: &mut Context<'_>) {
        self.sent_classic(queue, done, done.reported, cx);
    }

    fn signal_completions(&mut self, _queue: usize) {
        self.interrupts.raise(cause::TXDW.into());
    }

    fn settle(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.is_due(&self.function, cx.now) && self.interrupts.signalled() == 0 {
            self.join_completions();
        }
        self.interrupts.update(&mut self.function, cx);
        if self.interrupts.due(&self.function, cx.now).is_some() {
            self.rearm(cx);
        }
    }

    fn rearm(&self, cx: &mut Context<'_>) {
        let throttle = self.interrupts.due(&self.function, cx.now);
        self.rearm_for([throttle, self.own.receive_delay.due(), self.own.lone_read_by].into_iter().flatten(), cx);
    }

    fn time_passed(&mut self, cx: &mut Context<'_>) {
        if self.own.receive_delay.over(cx.now) {
            self.cause(cause::RXT0, cx);
        }
        self.deadlines_passed(cx);
        self.free_lone(cx);
        self.settle(cx);
        self.rearm(cx);
    }

    fn mode_changed(&mut self, cx: &mut Context<'_>) {
        self.interrupts.mode_changed(&mut self.function, cx);
        self.settle(cx);
    }
}

impl E1000 {
    /// ITR is written.
    pub(super) fn set_throttle(&mut self, cx: &mut Context<'_>) {
        let interval = self.registers[r::ITR] & 0xffff;
        let Some(throttle) = self.interrupts.throttle(0) else { return };
        throttle.set_interval(u64::from(interval) * THROTTLE_NS);
        if interval == 0 {
            throttle.stop();
            self.settle(cx);
        }
    }

    /// Ends the receive delay at once (RDTR.FPD).
    pub(super) fn flush_delay(&mut self, cx: &mut Context<'_>) {
        if self.own.receive_delay.end() {
            self.cause(cause::RXT0, cx);
        }
    }
}
