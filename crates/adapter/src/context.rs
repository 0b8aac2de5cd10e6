//! The context of a call to an adapter.

use std::sync::Arc;

use nicety_memory::{Map, Window};

use crate::access::{Access, Region};
use crate::counters::{Counters, Reason};
use crate::guest_error::{ErrorPlace, GuestError};
use crate::outbox::Outbox;
use crate::progress::Progress;
use crate::time::Time;

/// The expectation of an access that reached a hole.
const REGISTER: &str = "a register there, and this width";

/// Everything that an adapter can access during one call.
#[derive(Debug)]
pub struct Context<'a> {
    /// The guest's memory as it is now.
    pub memory: &'a Arc<Map>,
    /// The register page that the guest has mapped, if its doorbells are mapped.
    pub page: Option<&'a Window<'a>>,
    /// The port's worker looks at the adapter's queues in each round. So the adapter need not ask its driver for notifications.
    pub polls: bool,
    /// Its requests to the port.
    pub out: &'a mut Outbox,
    /// Its counters.
    pub counters: &'a mut Counters,
    /// The current time.
    pub now: Time,
}

impl<'a> Context<'a> {
    /// A call to an adapter whose doorbells are not mapped, and which nobody polls.
    pub fn new(memory: &'a Arc<Map>, out: &'a mut Outbox, counters: &'a mut Counters, now: Time) -> Self {
        Self { memory, page: None, polls: false, out, counters, now }
    }

    /// The result of a fetch from an enabled queue. With mapped doorbells the queue is polled: the guest's next doorbell causes no event.
    pub fn fetched(&self, progress: Progress) -> Progress {
        Progress { armed: progress.armed && self.page.is_none(), ..progress }
    }

    /// Counts and notes a protocol violation by the guest's driver: its place, the value found there, and what was expected.
    #[cold]
    #[inline(never)]
    pub fn guest_error(&mut self, place: ErrorPlace, value: u64, expected: &'static str) {
        self.counters.guest_error(GuestError { place, value, expected }, self.now);
        self.out.stalled.insert(Outbox::GUEST_ERROR);
    }

    /// Counts an access that hit so many holes, and notes it, if there are any. Reads have no value.
    #[inline]
    pub fn holes(&mut self, holes: u64, write: bool, region: Region, offset: u64, data: &[u8]) {
        if holes > 0 {
            self.bad_access(holes, Access::of(write, region, offset, data), REGISTER);
        }
    }

    /// Counts an access that reached nothing, `holes` times, and notes it.
    #[cold]
    #[inline(never)]
    pub fn bad_access(&mut self, holes: u64, access: Access, expected: &'static str) {
        let Access { write, region, offset, width, value } = access;
        let place = ErrorPlace::Access { write, region, offset, width };
        let value = if write { value } else { 0 };
        self.counters.bad_access(holes, GuestError { place, value, expected }, self.now);
        self.out.stalled.insert(Outbox::GUEST_ERROR);
    }

    /// Counts a dropped packet from this port's guest. If the guest's driver caused the drop, a guest error at `place` is noted. Its
    /// expectation is `expected`, or else [`Reason::sender_expected`].
    #[cold]
    pub fn drop_transmit(&mut self, reason: Reason, place: ErrorPlace, value: u64, expected: Option<&'static str>) {
        self.counters.transmit_drop(reason);
        if let Some(usual) = reason.sender_expected() {
            self.guest_error(place, value, expected.unwrap_or(usual));
        }
    }

    /// Counts a dropped packet for this port's guest. If the guest's driver caused the drop, a guest error is noted, and `found` is called
    /// for its place and the value there. Its expectation is `expected`, or else [`Reason::receiver_expected`].
    #[cold]
    #[inline(never)]
    pub fn drop_receive(
        &mut self,
        reason: Reason,
        found: impl FnOnce() -> (ErrorPlace, u64),
        expected: Option<&'static str>,
    ) {
        self.counters.receive_drop(reason);
        if let Some(usual) = reason.receiver_expected() {
            let (place, value) = found();
            self.guest_error(place, value, expected.unwrap_or(usual));
        }
    }
}
