//! Causes, mask, throttle and the line (manual, 3.2.7.2 and 13.4.17 to 13.4.21).
//!
//! A cause is never lost: it stays in ICR until that is read. What waits for the throttle (ITR), for the receive
//! delay (RDTR, RADV) or for the transmit delay has its deadline in the outbox.
//!
//! A completion whose descriptor asks for a delay (IDE) waits for company, a quarter of the ring at most: see
//! `patience.rs`. The chip's own delays (TIDV, TADV) are of tens of microseconds, less than the interrupts that they
//! save cost a virtual machine.
//!
//! The throttle runs from an interrupt, as in the chip, and anew from the reading of its cause and from the end of
//! the driver's poll (IMS). Between these a driver makes accesses that are nothing on a bus and a whole pause over a
//! socket: without that, frames that a poll has just taken interrupt once more, for nothing.

use nicety_adapter::{Context, Time};

use super::E1000;
use super::registers::{self as r, cause};

/// Unit of the throttle, in nanoseconds.
const THROTTLE_NS: u64 = 256;
/// Unit of the delay timers, in nanoseconds.
const DELAY_NS: u64 = 1024;

impl E1000 {
    /// Something happened.
    pub(super) fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        self.registers[r::ICR] |= bits;
        self.settle_line(cx);
    }

    /// Brings the line in step with causes, mask and throttle.
    pub(super) fn settle_line(&mut self, cx: &mut Context<'_>) {
        let pending = self.registers[r::ICR] & self.registers[r::IMS] != 0;
        if pending && !self.asserted && cx.now < self.quiet_until {
            self.rearm(cx);
            return;
        }
        if pending != self.asserted {
            self.asserted = pending;
            if pending {
                self.join_completions();
                cx.counters.interrupts += 1;
                self.pause(cx.now);
            }
            self.announce = true;
        }
        self.show_line(cx);
    }

    /// From now on the line stays down for the driver's ITR.
    pub(super) fn pause(&mut self, now: Time) {
        let pause = u64::from(self.registers[r::ITR]) * THROTTLE_NS;
        self.quiet_until = self.quiet_until.max(now.after_ns(pause));
    }

    /// Tells the transport the line's level if it may not know.
    pub(super) fn show_line(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.announce) {
            cx.out.line = Some(self.function.set_intx(self.asserted));
        }
    }

    /// Frames have arrived: now, or when the delay is over.
    pub(super) fn received(&mut self, small: bool, other: u32, cx: &mut Context<'_>) {
        self.completions.answered(cx.now);
        let (packet, absolute) = (u64::from(self.registers[r::RDTR]), u64::from(self.registers[r::RADV]));
        let mut bits = other;
        if packet == 0 {
            bits |= cause::RXT0;
        } else {
            let mut due = cx.now.after_ns(packet * DELAY_NS);
            if absolute != 0 {
                let last = *self.receive_last.get_or_insert(cx.now.after_ns(absolute * DELAY_NS));
                due = due.min(last);
            }
            self.receive_due = Some(due);
            if small {
                bits |= cause::SRPD;
            }
            self.rearm(cx);
        }
        self.cause(bits, cx);
    }

    /// So many descriptors were completed. `delayed`: all of them may wait for company.
    pub(super) fn transmitted(&mut self, descriptors: u32, delayed: bool, empty: bool, cx: &mut Context<'_>) {
        if empty {
            self.registers[r::ICR] |= cause::TXQE;
        }
        let least_ns = u64::from(self.registers[r::TADV]) * DELAY_NS;
        self.completions.wait(descriptors, self.transmit_ring().0 / 4, least_ns, cx.now);
        if !delayed {
            self.completions.hurry(cx.now);
        }
        self.time_passed(cx);
    }

    /// Completions that wait are told with whatever is told now.
    pub(super) fn join_completions(&mut self) {
        if self.completions.join() {
            self.registers[r::ICR] |= cause::TXDW;
        }
    }

    /// Ends the receive delay at once (RDTR.FPD, or the time has come).
    pub(super) fn flush_delay(&mut self, cx: &mut Context<'_>) {
        self.receive_last = None;
        if self.receive_due.take().is_some() {
            self.cause(cause::RXT0, cx);
        }
    }

    /// Asks for the earliest tick that is needed.
    fn rearm(&self, cx: &mut Context<'_>) {
        let waits = self.registers[r::ICR] & self.registers[r::IMS] != 0 && !self.asserted;
        let throttle = (waits && cx.now < self.quiet_until).then_some(self.quiet_until);
        let next: Option<Time> = [throttle, self.receive_due, self.completions.due()].into_iter().flatten().min();
        if next.is_some() {
            cx.out.wake = next;
        }
    }

    /// A deadline has come, or none: both are fine.
    pub(super) fn time_passed(&mut self, cx: &mut Context<'_>) {
        if self.receive_due.is_some_and(|due| due <= cx.now) {
            self.flush_delay(cx);
        }
        if self.completions.over(cx.now) {
            self.registers[r::ICR] |= cause::TXDW;
        }
        self.settle_line(cx);
        self.rearm(cx);
    }
}
