//! When the driver is told of frames and completions, on [`Interrupts`]: one cause, and no register that says what it was.
//!
//! Frames that arrive in bulk are told of once in a while ([`ReceiveModeration`]), or at once when half of a ring is used up; when their
//! time comes and the driver has given their buffers back already, it is not told. Completions wait for an interrupt that is due anyway
//! ([`CompletionDelay`](nicety_adapter::interrupts::CompletionDelay)).
//!
//! INTR_ACK takes the line down, and ends what the interrupt told of. Linux's driver writes it before it looks at its rings, OpenBSD's vic
//! afterwards: what came while the line was up, perhaps behind vic's look, is not ended by it. A little later the rings are looked at, and
//! such a frame or completion is told, once, if the driver has not taken it.

use nicety_adapter::Context;
use nicety_adapter::Time;
use nicety_adapter::interrupts::{InterruptRouter, Interrupts, Line, ReceiveModeration};
use serde::{Deserialize, Serialize};

use super::Vmxnet;

/// How long the driver has after it has acknowledged, in nanoseconds, for what came while the line was up.
const AGAIN_NS: u64 = 100_000;
/// The cause.
const CAUSE: u128 = 1;

/// The device's interrupts as new.
pub(super) fn interrupts() -> Interrupts {
    Interrupts::new(1, Line::Level, InterruptRouter::Direct)
}

/// What is to be told, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tidings {
    /// Bytes both ways.
    carried: u64,
    /// Entries of each receive ring that were filled since the driver was last told.
    untold: [u32; 2],
    /// Something came while the line was up.
    owed: bool,
    /// When that is looked at.
    again: Option<Again>,
    moderation: ReceiveModeration,
}

/// A look at what the driver had when it acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Again {
    at: Time,
    /// The next entry of the first receive ring then.
    received: u32,
    /// The next of the transmit ring to be given back.
    sent: u32,
}

impl Tidings {
    /// Bytes went through.
    pub fn carried(&mut self, bytes: u64) {
        self.carried = self.carried.wrapping_add(bytes);
    }

    /// Entries that the driver was not told of.
    pub fn untold(&self) -> [u32; 2] {
        self.untold
    }

    /// Entries were filled.
    pub fn filled(&mut self, entries: [u32; 2]) {
        for (untold, filled) in self.untold.iter_mut().zip(entries) {
            *untold = untold.saturating_add(filled);
        }
    }
}

impl Vmxnet {
    /// Brings the line in step with cause and mask.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.interrupts.is_due(&self.function, cx.now) && self.interrupts.told() == 0 {
            self.join(cx);
        }
        self.interrupts.update(&mut self.function, cx);
    }

    /// What waits is told with what is told now.
    fn join(&mut self, cx: &Context<'_>) {
        self.transmit.completions.join();
        if self.tidings.moderation.due().is_some() {
            self.tidings.moderation.told(self.tidings.carried, cx.now);
        }
        self.tidings.untold = [0; 2];
    }

    /// Also if it may not interrupt now: what is pending needs no other deadline.
    fn tell(&mut self, cx: &mut Context<'_>) {
        self.tidings.owed |= self.interrupts.told() != 0;
        self.tidings.moderation.told(self.tidings.carried, cx.now);
        self.join(cx);
        self.interrupts.raise(CAUSE);
        self.settle(cx);
    }

    /// Frames have arrived. `urgent`: no room is left to wait in.
    pub(super) fn received(&mut self, urgent: bool, cx: &mut Context<'_>) {
        self.transmit.completions.answered(cx.now);
        self.tidings.owed |= self.interrupts.told() != 0;
        let told = self.interrupts.pending() & CAUSE != 0;
        if !told && (self.tidings.moderation.may_tell(self.tidings.carried, cx.now) || urgent || self.is_short()) {
            self.tell(cx);
        }
        self.schedule(cx);
    }

    /// Whether half of a receive ring is used up.
    fn is_short(&self) -> bool {
        let rings = self.setup.map(|setup| setup.receive).unwrap_or_default();
        rings.iter().zip(self.tidings.untold).any(|(ring, untold)| untold > 0 && untold >= ring.len / 2)
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

    /// Nothing is to be told any more, and the line goes down.
    pub(super) fn silence(&mut self, cx: &mut Context<'_>) {
        self.interrupts.reset();
        self.tidings = Tidings { carried: self.tidings.carried, ..Tidings::default() };
        self.interrupts.update(&mut self.function, cx);
    }

    /// A deadline has come, or none: both are fine.
    pub(super) fn time_passed(&mut self, cx: &mut Context<'_>) {
        let (received, sent) = (self.receive.next[0], self.transmit.position());
        let mut tell = self.transmit.completions.over(cx.now) && self.has_completions(sent, cx);
        if self.tidings.moderation.over(cx.now) {
            if self.has_frames(received, cx) {
                tell = true;
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
                // Once: not again and again to a driver that does not care.
                self.tell(cx);
                self.tidings.owed = false;
            }
        }
        if tell {
            self.tell(cx);
        }
        self.settle(cx);
        self.schedule(cx);
    }

    /// Asks for the earliest tick that is needed.
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

    /// Whether what was saved can be.
    pub(super) fn tidings_fit(tidings: &Tidings, interrupts: &Interrupts) -> bool {
        let Tidings { carried: _, untold: _, owed: _, again: _, moderation: _ } = tidings;
        interrupts.fits(&self::interrupts())
    }
}
