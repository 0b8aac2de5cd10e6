//! The transmit ring, looked at by time ("Polling"; CSR4.DPOLL, CSR47): a frame whose driver writes nothing goes out all the same.
//!
//! The chip polls every two milliseconds as long as it is on. Here a driver that demands polls (CSR0.TDMD) gets no others, so that a guest
//! that is idle costs nothing; one that never does is polled ever more seldom while nothing comes of it, down to every sixty milliseconds.

use std::time::Duration;

use nicety_adapter::{Context, Time};
use serde::{Deserialize, Serialize};

use super::Lance;
use super::registers::{self as r, csr0, csr4};

/// A period of the bus' clock: 33 MHz.
const CLOCK_NS: u64 = 30;
/// The shortest interval, whatever CSR47 says.
const LEAST: Duration = Duration::from_micros(100);
/// As many intervals pass between two polls, at most.
const SELDOM: u32 = 32;
/// The longest time between two polls.
const MOST: Duration = Duration::from_nanos(0x1_0000 * CLOCK_NS * SELDOM as u64);

/// When the transmit ring is polled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polling {
    /// The driver demands polls, and needs no others.
    demanded: bool,
    /// The next poll, and how long after the last.
    next: Option<(Time, Duration)>,
}

impl Polling {
    /// Whether this, which was saved, can be.
    pub fn fits(&self) -> bool {
        self.next.is_none_or(|(_, after)| (LEAST..=MOST).contains(&after))
    }
}

impl Lance {
    /// CSR47: two's complement of so many clocks; zero is 65536.
    fn poll_interval(&self) -> Duration {
        let clocks = 0x1_0000 - u64::from(self.registers[r::TXPOLLINT]);
        Duration::from_nanos(clocks * CLOCK_NS).max(LEAST)
    }

    /// Whether the ring is polled by time.
    fn polls(&self) -> bool {
        !self.polling.demanded
            && self.has(r::CSR0, csr0::TXON)
            && !self.has(r::CSR4, csr4::DPOLL)
            && !self.suspended()
            && self.function.bus_master()
    }

    /// The driver has demanded a poll: no other is needed until it starts the chip anew.
    pub(super) fn poll_demanded(&mut self) {
        self.polling = Polling { demanded: true, next: None };
    }

    /// The chip is started.
    pub(super) fn begin_polling(&mut self) {
        self.polling = Polling::default();
    }

    /// When the ring is polled next.
    pub(super) fn next_poll(&mut self, cx: &Context<'_>) -> Option<Time> {
        if !self.polls() {
            return None;
        }
        let after = self.poll_interval();
        Some(self.polling.next.get_or_insert_with(|| (cx.now.after(after), after)).0)
    }

    /// A frame came or went: one that waits to be sent goes now, and others are expected.
    pub(super) fn poll_soon(&mut self, cx: &mut Context<'_>) {
        if self.polls() {
            self.poll(self.poll_interval(), cx);
        }
    }

    /// Time has passed.
    pub(super) fn poll_if_due(&mut self, cx: &mut Context<'_>) {
        if let Some((due, after)) = self.polling.next
            && due <= cx.now
            && self.polls()
        {
            self.poll(after * 2, cx);
        }
    }

    /// Looks at the ring, and again after a while: the interval if a frame was there.
    fn poll(&mut self, after: Duration, cx: &mut Context<'_>) {
        let memory = std::sync::Arc::clone(cx.memory);
        let waits = self.transmit_ring(&memory).is_ok_and(|ring| ring.owned(self.transmit.next()).is_some());
        let interval = self.poll_interval();
        let after = if waits { interval } else { after.clamp(interval, interval * SELDOM) };
        self.polling.next = Some((cx.now.after(after), after));
        if waits {
            cx.out.work.insert(0);
        }
    }
}
