//! How many frames a driver is given before it has taken them: as many as it takes in twenty milliseconds, and nine at most.
//!
//! ei_interrupt in Linux's lib8390.c takes what lies in the ring, up to nine frames, before it looks whether its own frame has been sent,
//! and its watchdog gives that 200 ms. A wire of 10 Mbit/s brings a frame a millisecond; a ring that is filled at once holds up to fifty,
//! and where an access takes a millisecond, as under a translating VMM, they last for longer than that. Having taken nine, it clears the
//! cause of all: those that it left would lie there until another comes.
//!
//! Frames for which there is no room wait in the port's receive buffer, in their order. Where a driver takes ten milliseconds for a frame, a
//! hundred broadcasts a second would fill that, and an answer that it waits for would come a minute later. So broadcasts and multicasts
//! begin to wait seldom, and are missed otherwise, as all frames are that a chip on a wire has no room for.

use nicety_adapter::Time;

/// Frames that Linux's ei_receive takes at most (`rx_pkt_count`).
const AT_ONCE: u64 = 9;
/// How long a driver may take frames until it hears of anything else.
const ROUND_NS: u64 = 20_000_000;
/// A driver that has found frames is thought to take them for so long after it last looked for the next one, or twice as long as it usually
/// takes for one.
const TAKING_NS: u64 = 2_000_000;
/// One that has found no more is thought to come to its end within this time, or what it takes for a frame.
const ENDING_NS: u64 = 500_000;
/// A broadcast or multicast begins to wait once in the time that the driver takes for so many frames.
const GROUP_EVERY: u64 = 4;
/// However slow it is.
const SLOWEST_NS: u64 = 100_000_000;

/// What is known of the driver, found out anew after a reset or a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// When it last looked for a frame, and found one.
    looked: Option<Time>,
    /// What it takes for a frame, in the mean.
    took_ns: u64,
    /// Frames that came since it had taken all.
    given: u64,
    /// When a broadcast or multicast last began to wait.
    group: Option<Time>,
}

impl Pace {
    /// The driver has looked for frames, and there is one or none.
    pub fn looks(&mut self, unread: bool, now: Time) {
        if let Some(before) = self.looked {
            let took = now.0.saturating_sub(before.0).min(SLOWEST_NS);
            // Up quickly, down slowly: a host that was busy may be so again.
            let part = if took > self.took_ns { 2 } else { 8 };
            self.took_ns = self.took_ns - self.took_ns / part + took / part;
        }
        self.looked = unread.then_some(now);
        self.allows(unread);
    }

    /// How long it may be in its receive routine after it has found a frame.
    pub fn taking_ns(&self) -> u64 {
        (2 * self.took_ns).clamp(TAKING_NS, SLOWEST_NS)
    }

    /// And after it has found none.
    pub fn ending_ns(&self) -> u64 {
        self.took_ns.clamp(ENDING_NS, SLOWEST_NS)
    }

    /// It has come to its end.
    pub fn ends(&mut self) {
        self.looked = None;
    }

    /// Whether a frame may come, now that some are unread, or none.
    pub fn allows(&mut self, unread: bool) -> bool {
        if !unread {
            self.given = 0;
        }
        self.given < (ROUND_NS / self.took_ns.max(1)).clamp(1, AT_ONCE)
    }

    /// Whether a broadcast or multicast may wait for room from now on.
    pub fn lets_group_wait(&mut self, now: Time) -> bool {
        let pause_ns = GROUP_EVERY * self.took_ns;
        let waits = self.group.is_none_or(|at| now.0.saturating_sub(at.0) >= pause_ns);
        if waits {
            self.group = Some(now);
        }
        waits
    }

    /// The driver has acknowledged, and leaves frames where they are.
    pub fn leaves(&mut self) {
        self.given = 0;
    }

    /// A frame has come.
    pub fn gives(&mut self) {
        self.given += 1;
    }
}
