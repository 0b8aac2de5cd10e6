//! Interrupts for frames and completions, on [`Interrupts`]: one cause, and no cause register.
//!
//! Bulk frames interrupt once in a while ([`ReceiveModeration`]), or at once when half of a ring is used. If the driver has already
//! reclaimed their buffers at the deadline, there is no interrupt. Completions wait for an interrupt that is due anyway
//! ([`CompletionDelay`](nicety_adapter::interrupts::CompletionDelay)).
//!
//! INTR_ACK lowers the line, and acknowledges the interrupt's frames and completions. Linux's driver writes it before it checks its
//! rings, OpenBSD's vic afterwards. So frames that arrived while the line was up, perhaps after vic's check, are not acknowledged
//! by it. A little later the rings are checked, and such a frame or completion interrupts once, if the driver has not taken it.

use nicety_adapter::Context;
use nicety_adapter::Time;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line, ReceiveModeration};
use serde::{Deserialize, Serialize};

use super::Vmxnet;

/// Delay after an acknowledgement in which the driver can take frames that arrived while the line was up, in nanoseconds.
const AGAIN_NS: u64 = 100_000;
/// The cause.
const CAUSE: u128 = 1;

/// Interrupts of a new device.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(1, Line::Level, InterruptRouter::Direct)
}

/// Interrupts to be sent, and their deadlines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tidings {
    /// Bytes both ways.
    carried: u64,
    /// Entries of each receive ring filled since the last interrupt.
    unsignalled: [u32; 2],
    /// Frames or completions arrived while the line was up.
    owed: bool,
    /// The check for them.
    again: Option<Again>,
    moderation: ReceiveModeration,
}

/// A check against the driver's state at its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Again {
    at: Time,
    /// The next entry of the first receive ring at that time.
    received: u32,
    /// The next transmit entry to complete at that time.
    sent: u32,
}

impl Tidings {
    /// Counts bytes carried.
    pub fn carried(&mut self, bytes: u64) {
        self.carried = self.carried.wrapping_add(bytes);
    }

    /// Filled entries that no interrupt has reported.
    pub fn unsignalled(&self) -> [u32; 2] {
        self.unsignalled
    }

    /// Counts filled entries.
    pub fn filled(&mut self, entries: [u32; 2]) {
        for (unsignalled, filled) in self.unsignalled.iter_mut().zip(entries) {
            *unsignalled = unsignalled.saturating_add(filled);
        }
    }
}

impl Vmxnet {
    /// Updates the line from cause and mask.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.is_due(&self.function, cx.now) && self.interrupts.signalled() == 0 {
            self.join(cx);
        }
        self.interrupts.update(&mut self.function, cx);
    }

    /// Deferred reports join the interrupt that is sent now.
    fn join(&mut self, cx: &Context<'_>) {
        self.transmit.completions.join();
        if self.tidings.moderation.due().is_some() {
            self.tidings.moderation.note_interrupt(self.tidings.carried, cx.now);
        }
        self.tidings.unsignalled = [0; 2];
    }

    /// Raises the cause even if interrupts are off: a pending cause needs no other deadline.
    fn signal(&mut self, cx: &mut Context<'_>) {
        self.tidings.owed |= self.interrupts.signalled() != 0;
        self.tidings.moderation.note_interrupt(self.tidings.carried, cx.now);
        self.join(cx);
        self.interrupts.raise(CAUSE);
        self.settle(cx);
    }

    /// Frames have arrived. `urgent`: no room is left for a delay.
    pub(super) fn received(&mut self, urgent: bool, cx: &mut Context<'_>) {
        self.transmit.completions.answered(cx.now);
        self.tidings.owed |= self.interrupts.signalled() != 0;
        let pending = self.interrupts.pending() & CAUSE != 0;
        if !pending
            && (self.tidings.moderation.may_interrupt(self.tidings.carried, cx.now) || urgent || self.is_short())
        {
            self.signal(cx);
        }
        self.schedule(cx);
    }

    /// Whether half of a receive ring is used.
    fn is_short(&self) -> bool {
        let rings = self.setup.map(|setup| setup.receive).unwrap_or_default();
        rings
            .iter()
            .zip(self.tidings.unsignalled)
            .any(|(ring, unsignalled)| unsignalled > 0 && unsignalled >= ring.len / 2)
    }

    /// INTR_ACK.
    pub(super) fn acknowledge(&mut self, cx: &mut Context<'_>) {
        self.interrupts.clear(CAUSE);
        self.settle(cx);
        self.expect_room(cx);
        if self.tidings.owed {
            let (received, sent) = (self.receive.next[0], self.transmit.position());
            self.tidings.again = Some(Again { at: cx.now.after_ns(AGAIN_NS), received, sent });
        }
        self.schedule(cx);
    }

    /// INTR_ENABLE, or INTR_DISABLE.
    pub(super) fn enable_interrupts(&mut self, on: bool, cx: &mut Context<'_>) {
        if on {
            self.interrupts.enable(CAUSE);
        } else {
            self.interrupts.disable(CAUSE);
        }
        self.settle(cx);
        self.schedule(cx);
    }

    /// Cancels all pending interrupts and lowers the line.
    pub(super) fn silence(&mut self, cx: &mut Context<'_>) {
        self.interrupts.reset();
        self.tidings = Tidings { carried: self.tidings.carried, ..Tidings::default() };
        self.interrupts.update(&mut self.function, cx);
    }

    /// Handles a tick, whether or not a deadline has passed.
    pub(super) fn time_passed(&mut self, cx: &mut Context<'_>) {
        let (received, sent) = (self.receive.next[0], self.transmit.position());
        let mut must_signal = self.transmit.completions.over(cx.now) && self.has_completions(sent, cx);
        if self.tidings.moderation.over(cx.now) {
            if self.has_frames(received, cx) {
                must_signal = true;
            } else {
                self.tidings.moderation.seen();
            }
        }
        if let Some(Again { at, received, sent }) = self.tidings.again
            && at <= cx.now
        {
            self.tidings.again = None;
            let owed = std::mem::take(&mut self.tidings.owed) && self.interrupts.pending() == 0;
            if owed && (self.has_frames(received, cx) || self.has_completions(sent, cx)) {
                // Once only, so that a driver that ignores it is not interrupted repeatedly.
                self.signal(cx);
                self.tidings.owed = false;
            }
        }
        if must_signal {
            self.signal(cx);
        }
        self.settle(cx);
        self.schedule(cx);
    }

    /// Requests the earliest tick needed.
    pub(super) fn schedule(&self, cx: &mut Context<'_>) {
        if self.setup.is_none() {
            return;
        }
        let times = [
            self.transmit.completions.due(),
            self.transmit.recheck,
            self.tidings.moderation.due(),
            self.tidings.again.map(|again| again.at),
            self.next_look(),
        ];
        if let Some(next) = times.into_iter().flatten().min() {
            cx.out.wake_by(next);
        }
    }

    /// Whether saved state is valid.
    pub(super) fn tidings_fit(tidings: &Tidings, interrupts: &Interrupts) -> bool {
        let Tidings { carried: _, unsignalled: _, owed: _, again: _, moderation: _ } = tidings;
        interrupts.fits(&self::interrupts())
    }
}
