//! IMR, ISR and deferred interrupts, on [`Interrupts`].
//!
//! Bulk frames interrupt once in a while ([`ReceiveModeration`](nicety_adapter::interrupts::ReceiveModeration)), or at once when
//! half of the ring is used. If the driver has already reclaimed their buffers at the deadline, there is no interrupt. Completions
//! wait for an interrupt that is due anyway, up to half of the ring
//! ([`CompletionDelay`](nicety_adapter::interrupts::CompletionDelay)). A read of ISR shows both, because the driver checks now.
//!
//! An event raises a cause once. A write that clears the cause acknowledges every event that a read of ISR has shown, but no event
//! after that read: drivers clear causes by posted writes and check their rings meanwhile, so such an event would stay unseen. It
//! interrupts when the driver lifts its mask, reads ISR again or has had [100 µs](UNSHOWN_NS), unless it has taken the frame by
//! then.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};

use super::Rtl8139;
use super::registers::{self as r, cause};

/// Delay before an interrupt for frames that arrived between a driver's read of ISR and its write, if it lifts no mask, in
/// nanoseconds.
const UNSHOWN_NS: u64 = 100_000;

/// Interrupts of a new chip: 16 causes, the line.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(16, Line::Level, InterruptRouter::Direct)
}

impl Rtl8139 {
    /// Raises causes.
    pub(super) fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        self.interrupts.raise(bits.into());
        self.settle_line(cx);
    }

    /// Updates the line from causes and mask.
    pub(super) fn settle_line(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.is_due(&self.function, cx.now) && self.interrupts.signalled() == 0 {
            self.join(cx);
        }
        self.interrupts.update(&mut self.function, cx);
    }

    /// Deferred reports join the interrupt that is sent now.
    fn join(&mut self, cx: &mut Context<'_>) {
        if self.completions.join() {
            self.interrupts.raise(cause::TOK.into());
        }
        if self.moderation.due().is_some() {
            self.moderation.note_interrupt(self.carried, cx.now);
            self.interrupts.raise(cause::ROK.into());
        }
    }

    /// ISR is read.
    pub(super) fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        if self.timer.over(self.registers[r::TIMERINT], cx.now) {
            self.interrupts.raise(cause::TIMEOUT.into());
        }
        self.join(cx);
        if self.has_unshown(cx) {
            self.signal(cx);
        }
        self.settle_line(cx);
        (self.unread, self.unshown) = (0, false);
        self.interrupts.pending() as u32
    }

    /// ISR is written.
    pub(super) fn acknowledge(&mut self, causes: u32, cx: &mut Context<'_>) {
        self.interrupts.clear(causes.into());
        self.settle_line(cx);
        self.look_for_room(cx);
        if causes & cause::TOK != 0 && self.unread > 0 {
            self.completions.wait(self.unread, self.transmit_size / 2, 0, cx.now);
            self.rearm(cx);
        }
        if causes & cause::ROK != 0 {
            self.tell_unshown_later(cx);
            self.rearm(cx);
        }
    }

    /// Signals unshown frames after a while, unless the driver lifts its mask at the end of its poll.
    pub(super) fn tell_unshown_later(&mut self, cx: &Context<'_>) {
        if self.unshown && !self.is_in_poll() {
            self.tell_unshown = Some(cx.now.after_ns(UNSHOWN_NS));
        }
    }

    /// IMR is written.
    pub(super) fn set_mask(&mut self, mask: u32, cx: &mut Context<'_>) {
        let mask = u128::from(mask & cause::ALL);
        self.interrupts.disable(!mask);
        self.interrupts.enable(mask);
        self.settle_line(cx);
        self.meet(mask & u128::from(cause::ROK) != 0, cx);
        self.look_for_any_room(cx);
        if mask & u128::from(cause::ROK) != 0 && self.has_unshown(cx) {
            if self.moderation.may_interrupt(self.carried, cx.now) {
                self.signal(cx);
            } else {
                self.rearm(cx);
            }
        }
    }

    /// Whether frames arrived that no read of ISR has shown, no pending cause reports, and the driver has not taken.
    fn has_unshown(&mut self, cx: &Context<'_>) -> bool {
        if !self.unshown || self.interrupts.pending() & u128::from(cause::ROK) != 0 {
            return false;
        }
        self.unshown = !self.driver_has_taken_all(cx);
        self.unshown
    }

    /// The driver polls (NAPI): it takes frames with their cause masked, and lifts the mask at the end.
    fn is_in_poll(&self) -> bool {
        let enabled = self.interrupts.enabled();
        enabled != 0 && enabled & u128::from(cause::ROK) == 0
    }

    /// A waiting frame has found no room again, and the driver has no other reason to make some.
    pub(super) fn overflow(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.pending() & u128::from(cause::ROK) == 0 && !self.is_in_poll() {
            self.cause(cause::RXOVW, cx);
        }
    }

    /// Raises ROK.
    fn signal(&mut self, cx: &mut Context<'_>) {
        self.unshown = false;
        self.moderation.note_interrupt(self.carried, cx.now);
        self.cause(cause::ROK, cx);
    }

    /// Frames have arrived. `urgent`: no room is left for a delay.
    pub(super) fn received(&mut self, urgent: bool, cx: &mut Context<'_>) {
        self.unshown = true;
        self.completions.answered(cx.now);
        // A cause that is pending reports these frames too.
        let pending = self.interrupts.pending() & u128::from(cause::ROK) != 0;
        if !pending && (self.moderation.may_interrupt(self.carried, cx.now) || urgent) {
            self.moderation.note_interrupt(self.carried, cx.now);
            self.cause(cause::ROK, cx);
        }
        self.rearm(cx);
    }

    /// Descriptors or slots were completed; at most `enough` may wait for an interrupt.
    pub(super) fn transmitted(&mut self, completed: u32, enough: u32, cx: &mut Context<'_>) {
        self.unread = self.unread.saturating_add(completed);
        self.completions.wait(completed, enough, 0, cx.now);
        self.time_passed(cx);
    }

    /// Requests the earliest tick needed.
    pub(super) fn rearm(&self, cx: &mut Context<'_>) {
        let times = [self.completions.due(), self.moderation.due(), self.timer.due()];
        let times = times.into_iter().chain([self.starved, self.tell_unshown, self.next_look]);
        if let Some(next) = times.flatten().min() {
            cx.out.wake = Some(next);
        }
    }

    /// Handles a tick, whether or not a deadline has passed.
    pub(super) fn time_passed(&mut self, cx: &mut Context<'_>) {
        if self.completions.over(cx.now) {
            self.interrupts.raise(cause::TOK.into());
        }
        if self.moderation.over(cx.now) {
            if self.driver_has_taken_all(cx) {
                self.moderation.seen();
            } else {
                self.moderation.note_interrupt(self.carried, cx.now);
                self.interrupts.raise(cause::ROK.into());
            }
        }
        if self.timer.over(self.registers[r::TIMERINT], cx.now) {
            self.interrupts.raise(cause::TIMEOUT.into());
        }
        if self.tell_unshown.is_some_and(|at| at <= cx.now) {
            self.tell_unshown = None;
            if self.has_unshown(cx) {
                self.signal(cx);
            }
        }
        self.settle_line(cx);
        if self.starved.is_some_and(|at| at <= cx.now) {
            self.look_again(cx);
        }
        self.rearm(cx);
    }
}
