//! A worker's wait. With other work it only checks for events. Otherwise it busy polls for a while, then sleeps.

use std::cmp::Reverse;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nicety_adapter::Time;
use rustix::event::epoll;
use rustix::time::Timespec;
use tracing::warn;

use super::{SESSION, Worker};

/// A worker that polls its ports all the time looks for events only this often: each look is a system call. While it finds no frames it looks
/// more often, because an uplink's frames, a VMM's messages and kicks are events.
const LOOK_EACH: Duration = Duration::from_micros(20);
const LOOK_IDLE: Duration = Duration::from_micros(2);

/// Waits for events, precise to microseconds: by Linux 5.11's epoll_pwait2, with a timer slack of 1 µs for this thread.
pub(super) fn sleep(
    epoll: &OwnedFd,
    events: &mut Vec<epoll::Event>,
    timeout: Option<Duration>,
) -> rustix::io::Result<usize> {
    let timeout =
        timeout.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) });
    epoll::wait(epoll, rustix::buffer::spare_capacity(events), timeout.as_ref())
}

impl Worker {
    /// Waits until there is work.
    pub(super) fn wait(&mut self, events: &mut Vec<epoll::Event>) {
        let idle = self.ready.is_empty() && self.unread_sessions.is_empty() && self.inbox.is_empty();
        if !idle || self.stop {
            // Its ports' turns and messages have read the clock.
            if self.inbox.always_polls() {
                let each = if self.count_polls() { LOOK_EACH } else { LOOK_IDLE };
                if self.read_at.since(self.looks.last()) < each {
                    return;
                }
            }
            self.look(self.read_at, events, Some(Duration::ZERO));
            if !events.is_empty() {
                self.waited(false, events);
            }
            return;
        }
        let now = self.clock.now();
        self.read_at = now;
        self.inbox.rests(now);
        let until = if self.inbox.always_polls() { Time(u64::MAX) } else { self.busy_poll.begin(now) };
        if self.watch(until, events) {
            self.waited(false, events);
            return;
        }
        if !self.inbox.sleep() {
            self.look(self.clock.now(), events, Some(Duration::ZERO));
            self.waited(false, events);
            return;
        }
        #[cfg(test)]
        {
            self.slept += 1;
        }
        let now = self.clock.now();
        let timeout = self.timers.peek().map(|Reverse((at, _))| at.since(now));
        self.look(now, events, self.limit(timeout));
        self.inbox.awake();
        self.waited(true, events);
    }

    /// Returns whether a round of polls found something. One that found nothing was a wait.
    fn count_polls(&mut self) -> bool {
        let found = std::mem::take(&mut self.round_cost) > 0;
        match found {
            false => self.inbox.rests(self.read_at),
            true => self.inbox.works(self.read_at),
        }
        found
    }

    fn waited(&mut self, slept: bool, events: &[epoll::Event]) {
        let now = self.clock.now();
        self.inbox.works(now);
        if events.is_empty() && self.inbox.is_empty() {
            self.busy_poll.timer(now, slept);
        } else {
            let message = events.iter().any(|event| event.data.u64() & 0xffff_ffff == SESSION);
            self.busy_poll.ended(now, slept, message);
        }
    }

    /// Polls until this time, and longer for a timer that is due soon. Returns true if an event has come.
    fn watch(&mut self, until: Time, events: &mut Vec<epoll::Event>) -> bool {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        loop {
            let now = self.clock.now();
            if now >= until && !timer.is_some_and(|at| self.busy_poll.is_short(at.since(now))) {
                return false;
            }
            self.look(now, events, Some(Duration::ZERO));
            if !events.is_empty() || !self.inbox.is_empty() || timer.is_some_and(|at| at <= now) {
                return true;
            }
            if until == Time(u64::MAX) {
                std::hint::spin_loop();
            } else {
                // The awaited thread may need this CPU.
                std::thread::yield_now();
            }
        }
    }

    /// `now`: a time not long ago.
    fn look(&mut self, now: Time, events: &mut Vec<epoll::Event>, timeout: Option<Duration>) {
        self.looks(now);
        if let Err(error) = sleep(&self.epoll, events, timeout)
            && error != rustix::io::Errno::INTR
        {
            warn!("waiting for events: {error}");
        }
        self.looks.found(events.len());
    }
}
