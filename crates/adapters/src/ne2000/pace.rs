//! Limit on frames given to a driver before it has taken them: as many as it takes in twenty milliseconds, at most nine.
//!
//! ei_interrupt in Linux's lib8390.c takes the frames in the ring, up to nine, before it checks whether its own frame has been
//! sent, and its watchdog allows 200 ms for that. A wire of 10 Mbit/s brings a frame each millisecond. A ring that is filled at
//! once holds up to fifty, and where an access takes a millisecond, as under a translating VMM, they take longer than 200 ms. After
//! nine frames the driver clears the cause of all: the others would stay in the ring until the next frame arrives.
//!
//! Frames without room wait in the port's receive buffer, in order. If a driver takes ten milliseconds for a frame, a hundred
//! broadcasts a second would fill that buffer, and an answer that the driver waits for would arrive a minute later. So broadcasts
//! and multicasts may start to wait only rarely, and are dropped otherwise, as a chip on a wire drops any frame without room.

use nicety_adapter::Time;

/// Maximum frames that Linux's ei_receive takes (`rx_pkt_count`).
const AT_ONCE: u64 = 9;
/// Maximum time in which a driver takes frames and checks nothing else.
const ROUND_NS: u64 = 20_000_000;
/// A driver that has found frames is assumed to take them for this long after it last looked for the next one, or for twice its
/// usual time for a frame.
const TAKING_NS: u64 = 2_000_000;
/// A driver that has found no more is assumed to end its routine within this time, or within its usual time for a frame.
const ENDING_NS: u64 = 500_000;
/// A broadcast or multicast may start to wait once in the time that the driver takes for this many frames.
const GROUP_EVERY: u64 = 4;
/// Upper limit of a measured time for a frame.
const SLOWEST_NS: u64 = 100_000_000;

/// Estimates about the driver, measured anew after a reset or a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// The last time when it looked for a frame and found one.
    looked: Option<Time>,
    /// Its mean time for a frame.
    took_ns: u64,
    /// Frames delivered since it had taken all.
    given: u64,
    /// The last time when a broadcast or multicast started to wait.
    group: Option<Time>,
}

impl Pace {
    /// The driver has looked for frames, and there is one (`unread`) or none.
    pub fn looks(&mut self, unread: bool, now: Time) {
        if let Some(before) = self.looked {
            let took = now.0.saturating_sub(before.0).min(SLOWEST_NS);
            // Adapts quickly to slower, slowly to faster: a host that was busy may be busy again.
            let part = if took > self.took_ns { 2 } else { 8 };
            self.took_ns = self.took_ns - self.took_ns / part + took / part;
        }
        self.looked = unread.then_some(now);
        self.allows(unread);
    }

    /// Time for which it may be in its receive routine after it has found a frame.
    pub fn taking_ns(&self) -> u64 {
        (2 * self.took_ns).clamp(TAKING_NS, SLOWEST_NS)
    }

    /// The same after it has found none.
    pub fn ending_ns(&self) -> u64 {
        self.took_ns.clamp(ENDING_NS, SLOWEST_NS)
    }

    /// The driver's receive routine has ended.
    pub fn ends(&mut self) {
        self.looked = None;
    }

    /// Whether a frame may be delivered, with or without unread ones in the ring.
    pub fn allows(&mut self, unread: bool) -> bool {
        if !unread {
            self.given = 0;
        }
        self.given < (ROUND_NS / self.took_ns.max(1)).clamp(1, AT_ONCE)
    }

    /// Whether a broadcast or multicast may start to wait for room.
    pub fn lets_group_wait(&mut self, now: Time) -> bool {
        let pause_ns = GROUP_EVERY * self.took_ns;
        let waits = self.group.is_none_or(|at| now.0.saturating_sub(at.0) >= pause_ns);
        if waits {
            self.group = Some(now);
        }
        waits
    }

    /// The driver has acknowledged its frames, although it leaves some in the ring.
    pub fn leaves(&mut self) {
        self.given = 0;
    }

    /// Counts a delivered frame.
    pub fn gives(&mut self) {
        self.given += 1;
    }
}
