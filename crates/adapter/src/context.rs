//! The context of a call to an adapter.

use std::sync::Arc;

use nicety_memory::{Map, Window};

use crate::adapter::Progress;
use crate::counters::Counters;
use crate::outbox::Outbox;
use crate::time::Time;

/// Everything that an adapter can access during one call.
#[derive(Debug)]
pub struct Context<'a> {
    /// The guest's memory as it is now.
    pub memory: &'a Arc<Map>,
    /// The register page that the guest has mapped, if its doorbells are mapped.
    pub page: Option<&'a Window<'a>>,
    /// Its requests to the port.
    pub out: &'a mut Outbox,
    /// Its counters.
    pub counters: &'a mut Counters,
    /// The current time.
    pub now: Time,
}

impl Context<'_> {
    /// The result of a fetch from an enabled queue. With mapped doorbells the queue is polled: the guest's next doorbell causes no event.
    pub fn fetched(&self, progress: Progress) -> Progress {
        Progress { armed: progress.armed && self.page.is_none(), ..progress }
    }
}
