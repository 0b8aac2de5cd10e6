//! IMR, ISR and what waits for company, on [`Interrupts`].
//!
//! Frames that arrive in bulk are told of once in a while ([`ReceiveModeration`](nicety_adapter::interrupts::ReceiveModeration)),
//! or at once when half of the ring is used up. When their time comes and the driver has given their buffers back already, it
//! is not told again. Completions wait for an interrupt that is due anyway, half of the ring at most
//! ([`CompletionDelay`](nicety_adapter::interrupts::CompletionDelay)). A read of ISR shows both: the driver looks now.

//!
//! A driver clears causes by writes that nobody waits for, and reads its rings meanwhile: what was told between the two is cleared
//! unseen. The bus of the chip is too fast for that; a socket is not. So what a driver may not have seen when it clears its cause, or
//! when it lifts the mask at the end of its poll, is told again: frames whose buffers it has not given back, once, and completions
//! since it last read ISR.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line};

use super::Rtl8139;
use super::registers::{self as r, cause};

/// How long a driver that does not mask interrupts has for its frames, in nanoseconds, before it is told of them again.
const AGAIN_NS: u64 = 100_000;

/// The chip's interrupts as new: 16 causes, the line.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(16, Line::Level, InterruptRouter::Direct)
}

impl Rtl8139 {
    /// Something happened.
    pub(super) fn cause(&mut self, bits: u32, cx: &mut Context<'_>) {
        self.interrupts.raise(bits.into());
        self.settle_line(cx);
    }

    /// Brings the line in step with causes and mask.
    pub(super) fn settle_line(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.is_due(&self.function, cx.now) && self.interrupts.told() == 0 {
            self.join(cx);
        }
        self.interrupts.update(&mut self.function, cx);
    }

    /// What waits is told with what is told now.
    fn join(&mut self, cx: &mut Context<'_>) {
        if self.completions.join() {
            self.interrupts.raise(cause::TOK.into());
        }
        if self.moderation.due().is_some() {
            self.moderation.told(self.carried, cx.now);
            self.interrupts.raise(cause::ROK.into());
        }
    }

    /// ISR is read.
    pub(super) fn read_causes(&mut self, cx: &mut Context<'_>) -> u32 {
        if self.timer.over(self.registers[r::TIMERINT], cx.now) {
            self.interrupts.raise(cause::TIMEOUT.into());
        }
        self.join(cx);
        self.settle_line(cx);
        self.unread = 0;
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
        let enabled = self.interrupts.enabled();
        let lifts_mask = enabled != 0 && enabled & u128::from(cause::ROK) == 0;
        if causes & cause::ROK != 0 && self.owed && !lifts_mask {
            self.again = Some(cx.now.after_ns(AGAIN_NS));
            self.rearm(cx);
        }
    }

    /// IMR is written.
    pub(super) fn set_mask(&mut self, mask: u32, cx: &mut Context<'_>) {
        let mask = u128::from(mask & cause::ALL);
        self.interrupts.disable(!mask);
        self.interrupts.enable(mask);
        self.settle_line(cx);
        self.look_for_room(cx);
        if mask & u128::from(cause::ROK) != 0 && self.has_untold(cx) {
            if self.moderation.may_tell(self.carried, cx.now) {
                self.tell_again(cx);
            } else {
                self.rearm(cx);
            }
        }
    }

    /// Whether there are frames that the driver may not have seen, of which it was told and will not be told.
    fn has_untold(&mut self, cx: &Context<'_>) -> bool {
        self.owed = self.owed && !self.driver_has_taken_all(cx);
        self.owed && self.interrupts.pending() & u128::from(cause::ROK) == 0
    }

    /// Frames wait for room that the driver does not make. The chip would say RXOVW with each that comes: so a driver hears of those that it
    /// was told of and left. Linux's 8139too takes 64 at most, having cleared their cause.
    pub(super) fn remind(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.pending() & u128::from(cause::ROK) == 0 && !self.driver_has_taken_all(cx) {
            self.tell_again(cx);
        }
    }

    fn tell_again(&mut self, cx: &mut Context<'_>) {
        self.owed = false;
        self.moderation.told(self.carried, cx.now);
        self.cause(cause::ROK, cx);
    }

    /// Frames have arrived. `urgent`: no room is left to wait in.
    pub(super) fn received(&mut self, urgent: bool, cx: &mut Context<'_>) {
        self.owed = true;
        self.completions.answered(cx.now);
        // What was told and not acknowledged yet tells of these too.
        let told = self.interrupts.pending() & u128::from(cause::ROK) != 0;
        if !told && (self.moderation.may_tell(self.carried, cx.now) || urgent) {
            self.moderation.told(self.carried, cx.now);
            self.cause(cause::ROK, cx);
        }
        self.rearm(cx);
    }

    /// So many descriptors, or slots, were completed; at most `enough` may wait.
    pub(super) fn transmitted(&mut self, completed: u32, enough: u32, cx: &mut Context<'_>) {
        self.unread = self.unread.saturating_add(completed);
        self.completions.wait(completed, enough, 0, cx.now);
        self.time_passed(cx);
    }

    /// Asks for the earliest tick that is needed.
    pub(super) fn rearm(&self, cx: &mut Context<'_>) {
        let times = [self.completions.due(), self.moderation.due(), self.timer.due(), self.starved, self.again];
        if let Some(next) = times.into_iter().flatten().min() {
            cx.out.wake = Some(next);
        }
    }

    /// A deadline has come, or none: both are fine.
    pub(super) fn time_passed(&mut self, cx: &mut Context<'_>) {
        if self.completions.over(cx.now) {
            self.interrupts.raise(cause::TOK.into());
        }
        if self.moderation.over(cx.now) {
            if self.driver_has_taken_all(cx) {
                self.moderation.seen();
            } else {
                self.moderation.told(self.carried, cx.now);
                self.interrupts.raise(cause::ROK.into());
            }
        }
        if self.timer.over(self.registers[r::TIMERINT], cx.now) {
            self.interrupts.raise(cause::TIMEOUT.into());
        }
        if self.again.is_some_and(|at| at <= cx.now) {
            self.again = None;
            if self.has_untold(cx) {
                self.tell_again(cx);
            }
        }
        self.settle_line(cx);
        if self.starved.is_some_and(|at| at <= cx.now) {
            self.look_again(cx);
        }
        self.rearm(cx);
    }
}
