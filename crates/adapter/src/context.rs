//! What a call of an adapter is given.

use std::sync::Arc;

use nicety_memory::{Map, Window};

use crate::counters::Counters;
use crate::outbox::Outbox;
use crate::time::Time;

/// All that an adapter can see and touch during one call.
#[derive(Debug)]
pub struct Context<'a> {
    /// The guest's memory as it is now.
    pub memory: &'a Arc<Map>,
    /// The register page that the guest has mapped, if its doorbells are mapped.
    pub page: Option<&'a Window<'a>>,
    /// What it wants of the world.
    pub out: &'a mut Outbox,
    /// What it did.
    pub counters: &'a mut Counters,
    /// What time it is.
    pub now: Time,
}
