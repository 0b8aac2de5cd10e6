//! Timed polling of the transmit ring ("Polling"; CSR4.DPOLL, CSR47): a frame is sent even if its driver writes no register.
//!
//! The chip polls every two milliseconds while it is on. Here a driver that demands polls (CSR0.TDMD) gets no timed ones, so an
//! idle guest costs nothing. A driver that never demands polls is polled less and less often while the ring stays empty, down to
//! every sixty milliseconds.

use std::time::Duration;

use nicety_adapter::{Context, Time};
use serde::{Deserialize, Serialize};

use super::Lance;
use super::registers::{self as r, csr0, csr4};

/// Period of the bus clock: 33 MHz.
const CLOCK_NS: u64 = 30;
/// Minimum interval, whatever CSR47 holds.
const MIN: Duration = Duration::from_micros(100);
/// Maximum number of intervals between two polls.
const SELDOM: u32 = 32;
/// Maximum time between two polls.
const MAX: Duration = Duration::from_nanos(0x1_0000 * CLOCK_NS * SELDOM as u64);

/// State of timed polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Polling {
    /// The driver demands polls, and needs no timed ones.
    demanded: bool,
    /// Time of the next poll, and its delay after the last.
    next: Option<(Time, Duration)>,
}

impl Polling {
    /// Whether saved state is valid.
    pub fn fits(&self) -> bool {
        self.next.is_none_or(|(_, after)| (MIN..=MAX).contains(&after))
    }
}

impl Lance {
    /// CSR47: two's complement of the number of clocks; zero is 65536.
    fn poll_interval(&self) -> Duration {
        let clocks = 0x1_0000 - u64::from(self.registers[r::TXPOLLINT]);
        Duration::from_nanos(clocks * CLOCK_NS).max(MIN)
    }

    /// Whether the ring is polled by timer.
    fn polls(&self) -> bool {
        !self.polling.demanded
            && self.has(r::CSR0, csr0::TXON)
            && !self.has(r::CSR4, csr4::DPOLL)
            && !self.suspended()
            && self.function.bus_master()
    }

    /// The driver has demanded a poll: no timed poll is needed until it starts the chip anew.
    pub(super) fn poll_demanded(&mut self) {
        self.polling = Polling { demanded: true, next: None };
    }

    /// Starts with the chip.
    pub(super) fn begin_polling(&mut self) {
        self.polling = Polling::default();
    }

    /// Time of the next poll.
    pub(super) fn next_poll(&mut self, cx: &Context<'_>) -> Option<Time> {
        if !self.polls() {
            return None;
        }
        let after = self.poll_interval();
        Some(self.polling.next.get_or_insert_with(|| (cx.now.after(after), after)).0)
    }

    /// A frame was sent or received: polls soon, because more are expected.
    pub(super) fn poll_soon(&mut self, cx: &mut Context<'_>) {
        if self.polls() {
            self.poll(self.poll_interval(), cx);
        }
    }

    /// Polls if the time has come.
    pub(super) fn poll_if_due(&mut self, cx: &mut Context<'_>) {
        if let Some((due, after)) = self.polling.next
            && due <= cx.now
            && self.polls()
        {
            self.poll(after * 2, cx);
        }
    }

    /// Checks the ring, and schedules the next poll after this delay: the interval if it had a frame.
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
