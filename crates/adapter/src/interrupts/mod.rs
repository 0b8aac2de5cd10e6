//! Interrupts as a value: pending causes, enabled causes, vectors and throttles.
//!
//! ```text
//!            enabled       router             throttle
//! pending ──► & ─────────► cause → vector ──► not before ──► message (MSI, MSI-X)
//!  (ICR)     (IMS)         (IVAR)             (EITR)
//!                      └── all together ─────► not before ──► line (INTx)
//! ```
//! A cause is a bit. It is signalled once: with the line, it holds the line until it is taken, cleared or disabled; with messages,
//! one message is sent, and the cause must end before the next. A cause stays pending, to be signalled later, while it is disabled,
//! while its vector is throttled, and while its message may not be sent (no bus master, D3hot).
//!
//! The adapter keeps the registers: it maps reads and writes to [`take`](Interrupts::take), [`clear`](Interrupts::clear),
//! [`enable`](Interrupts::enable) and so on, and then calls [`update`](Interrupts::update), which alone has effects. The transport
//! handles the masks in the MSI-X table.
//!
//! Timers before a cause are separate values: [`Delay`] (a fixed time), [`CompletionDelay`] and [`ReceiveModeration`] (adaptive,
//! where the device may choose).

mod completions;
mod moderation;
mod router;
mod throttle;

use arrayvec::ArrayVec;
use nicety_pci::{Function, Mode};
use serde::{Deserialize, Serialize};

pub use completions::{COMPLETION_DELAY_MAX_NS, CompletionDelay};
pub use moderation::{MODERATION_BYTES, MODERATION_NS, ReceiveModeration};
pub use router::{InterruptRouter, ROUTES};
pub use throttle::{Delay, Throttle};

use crate::context::Context;
use crate::outbox::Set;
use crate::time::Time;

/// Most vectors that can be throttled.
pub const THROTTLES: usize = 25;

/// Relation between causes and the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Line {
    /// Asserted while any cause is pending and enabled: Intel's, pcnet, NE2000, RTL8139.
    Level,
    /// A cause is no longer pending once it has interrupted. With the line it holds the line until it is [taken](Interrupts::take) or
    /// disabled. With messages it ends when its message is sent. vmxnet3's ICR, virtio's ISR.
    Latched,
}

/// See the module's page. Causes are bits, 128 at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupts {
    /// The causes of the device.
    causes: u128,
    line: Line,
    pending: u128,
    enabled: u128,
    /// Signalled causes: they hold the line, or their message was sent. A subset of pending and enabled, unless the line is
    /// latched.
    signalled: u128,
    auto_mask: u128,
    auto_clear: u128,
    router: InterruptRouter,
    throttles: ArrayVec<Throttle, THROTTLES>,
}

impl Interrupts {
    /// The state of a device with this many causes (at most 128), all disabled.
    pub fn new(causes: u16, line: Line, router: InterruptRouter) -> Self {
        let causes = u128::MAX.checked_shr(128_u32.saturating_sub(u32::from(causes))).unwrap_or(0);
        let throttles = ArrayVec::new();
        Self { causes, line, pending: 0, enabled: 0, signalled: 0, auto_mask: 0, auto_clear: 0, router, throttles }
    }

    /// Adds a throttle for each of the first `vectors` vectors (at most [`THROTTLES`]). The line and MSI use that of vector 0.
    #[must_use]
    pub fn throttled(mut self, vectors: usize) -> Self {
        self.throttles = std::iter::repeat_n(Throttle::default(), vectors.min(THROTTLES)).collect();
        self
    }

    /// Causes that were raised, and not yet taken, cleared, or ended by their message.
    pub fn pending(&self) -> u128 {
        self.pending
    }

    /// Enabled causes.
    pub fn enabled(&self) -> u128 {
        self.enabled
    }

    /// Causes that hold the line, and causes whose message was sent but that have not ended yet.
    pub fn signalled(&self) -> u128 {
        self.signalled
    }

    /// The routes from causes to vectors, mutable.
    pub fn router(&mut self) -> &mut InterruptRouter {
        &mut self.router
    }

    /// The throttle of a vector, if it has one.
    pub fn throttle(&mut self, vector: u16) -> Option<&mut Throttle> {
        self.throttles.get_mut(usize::from(vector))
    }

    /// Sets the causes that are disabled when their message is sent, or when they hold a [latched](Line::Latched) line.
    pub fn set_auto_mask(&mut self, causes: u128) {
        self.auto_mask = causes & self.causes;
    }

    /// Sets the causes that are no longer pending once their message is sent.
    pub fn set_auto_clear(&mut self, causes: u128) {
        self.auto_clear = causes & self.causes;
    }

    /// Raises causes.
    pub fn raise(&mut self, causes: u128) {
        self.pending |= causes & self.causes;
    }

    /// Clears causes.
    pub fn clear(&mut self, causes: u128) {
        self.pending &= !causes;
    }

    /// Enables causes.
    pub fn enable(&mut self, causes: u128) {
        self.enabled |= causes & self.causes;
    }

    /// Disables causes. If they hold a latched line, they release it, and are no longer pending.
    pub fn disable(&mut self, causes: u128) {
        self.enabled &= !causes;
        self.signalled &= !causes;
    }

    /// Like [`Interrupts::disable`], but causes that hold a latched line keep it.
    pub fn mask(&mut self, causes: u128) {
        self.enabled &= !causes;
    }

    /// Returns the causes to the driver, and ends them: the pending ones; for a latched line, the ones that hold it.
    pub fn take(&mut self) -> u128 {
        match self.line {
            Line::Level => std::mem::take(&mut self.pending),
            Line::Latched => std::mem::take(&mut self.signalled),
        }
    }

    /// Resets everything. The line keeps its level until the next [update](Interrupts::update).
    pub fn reset(&mut self) {
        let Self { causes: _, line: _, pending, enabled, signalled, auto_mask, auto_clear, router, throttles } = self;
        (*pending, *enabled, *signalled, *auto_mask, *auto_clear) = (0, 0, 0, 0, 0);
        throttles.iter_mut().for_each(|throttle| *throttle = Throttle::default());
        if let InterruptRouter::Table(table) = router {
            *router = InterruptRouter::table(table.len());
        }
    }

    /// Whether this saved state is valid for the device of `other`.
    pub fn fits(&self, other: &Self) -> bool {
        let known = self.pending | self.enabled | self.signalled | self.auto_mask | self.auto_clear;
        let signalled = match self.line {
            Line::Level => self.signalled & !(self.pending & self.enabled) == 0,
            Line::Latched => true,
        };
        (self.causes, self.line, self.throttles.len()) == (other.causes, other.line, other.throttles.len())
            && known & !self.causes == 0
            && signalled
            && self.router.fits(&other.router)
    }

    /// Whether [`update`](Interrupts::update) would interrupt now. If so, other causes can be raised with it.
    pub fn is_due(&self, function: &Function, now: Time) -> bool {
        let new = self.unsignalled(function.mode());
        new != 0 && self.ready(new, function, now).1 != 0
    }

    /// The next time at which a throttled cause may interrupt; `None` if there is none.
    pub fn due(&self, function: &Function, now: Time) -> Option<Time> {
        let mode = function.mode();
        let mut waiting = self.unsignalled(mode);
        let mut due = None;
        while waiting != 0 {
            let cause = waiting.trailing_zeros() as u16;
            waiting &= waiting - 1;
            if let Some(until) = self.vector(cause, mode, function).and_then(|vector| self.pause(vector, now))
                && (is_message(mode) || self.signalled == 0)
            {
                due = Some(due.map_or(until, |earlier: Time| earlier.min(until)));
            }
        }
        due
    }

    /// Signals all causes that may be signalled now, and deasserts the line when no cause holds it. Returns the causes that
    /// interrupt.
    pub fn update(&mut self, function: &mut Function, cx: &mut Context<'_>) -> u128 {
        self.update_counted(function, cx).0
    }

    /// Like [`Interrupts::update`], and returns the number of interrupts, too.
    pub fn update_counted(&mut self, function: &mut Function, cx: &mut Context<'_>) -> (u128, u32) {
        let mode = function.mode();
        let messages = is_message(mode);
        if messages || self.line == Line::Level {
            self.signalled &= self.pending & self.enabled;
        }
        let new = self.unsignalled(mode);
        let mut sent = 0;
        let (vectors, fired) = if new == 0 { Default::default() } else { self.ready(new, function, cx.now) };
        if fired != 0 {
            let was_up = self.signalled != 0;
            self.signalled |= fired;
            let mut left = vectors;
            while let Some(vector) = left.pop() {
                if messages || !was_up {
                    cx.counters.interrupts += 1;
                    sent += 1;
                    self.throttles.get_mut(usize::from(vector)).into_iter().for_each(|throttle| throttle.begin(cx.now));
                }
            }
            let latched = self.line == Line::Latched;
            if messages || latched {
                self.pending &= !(fired & if latched { u128::MAX } else { self.auto_clear });
                self.enabled &= !(fired & self.auto_mask);
            }
            if messages {
                cx.out.messages.extend(vectors);
                self.signalled &= self.pending & self.enabled;
            }
        }
        let level = !messages && self.signalled != 0;
        if level != function.intx_level() {
            cx.out.line = Some(function.set_intx(level));
        }
        (fired, sent)
    }

    /// The interrupt mode may have changed (Command, MSI, MSI-X, power state): waiting causes, and those that held the line, use
    /// the new mode. If INTx is only disabled, its causes stay (PCI 3.0, 6.2.3): vfio-pci disables it from each interrupt until
    /// the driver has taken them. Call [update](Interrupts::update) afterwards.
    pub fn mode_changed(&mut self, function: &mut Function, cx: &mut Context<'_>) {
        if is_message(function.mode()) {
            if self.line == Line::Latched {
                self.pending |= self.signalled;
            }
            self.signalled = 0;
        }
        self.show(function, cx);
    }

    /// Reports the line's level, which the transport may not know (after a restore).
    pub fn show(&self, function: &mut Function, cx: &mut Context<'_>) {
        cx.out.line = Some(function.set_intx(function.intx_level()));
    }

    /// Causes that should be signalled but were not yet.
    fn unsignalled(&self, mode: Mode) -> u128 {
        let ready = self.pending & self.enabled;
        match (self.line, mode) {
            (Line::Latched, Mode::None) => 0,
            (Line::Latched, Mode::Intx) => ready,
            _ => ready & !self.signalled,
        }
    }

    /// Of the causes to signal, those that may be signalled now, and their vectors.
    fn ready(&self, new: u128, function: &Function, now: Time) -> (Set, u128) {
        let mode = function.mode();
        let (mut vectors, mut fired) = (Set::default(), 0);
        if is_message(mode) && !function.bus_master() {
            return (vectors, fired);
        }
        let is_up = !is_message(mode) && self.signalled != 0;
        let mut left = new;
        while left != 0 {
            let cause = left.trailing_zeros() as u16;
            left &= left - 1;
            let vector = self.vector(cause, mode, function);
            if let Some(vector) = vector.filter(|vector| is_up || self.pause(*vector, now).is_none()) {
                vectors.insert(vector);
                fired |= 1 << cause;
            }
        }
        (vectors, fired)
    }

    /// The vector of a cause. MSI vectors beyond those that software enabled share the enabled ones (PCI 3.0, 6.8.1.3).
    fn vector(&self, cause: u16, mode: Mode, function: &Function) -> Option<u16> {
        match mode {
            Mode::None | Mode::Intx => Some(0),
            Mode::Msi => match function.msi().map_or(1, |msi| u16::from(msi.vectors.max(1))) {
                1 => Some(0),
                enabled => self.router.vector(cause).map(|vector| vector & (enabled - 1)),
            },
            Mode::Msix => self.router.vector(cause),
        }
    }

    fn pause(&self, vector: u16, now: Time) -> Option<Time> {
        self.throttles.get(usize::from(vector))?.until(now)
    }
}

fn is_message(mode: Mode) -> bool {
    matches!(mode, Mode::Msi | Mode::Msix)
}

#[cfg(test)]
mod tests;
