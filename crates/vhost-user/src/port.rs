//! What a session needs of its port.

use std::sync::Arc;

use nicety_adapter::{Context, RingFace};
use nicety_bell::Bell;
use nicety_memory::Map;

use crate::ending::Refusal;

/// Bytes of a [record](Port::record) for each ring.
pub const RECORD_RING_BYTES: u64 = 4096;

/// The kick of a started ring.
#[derive(Debug)]
pub enum Kick {
    /// The ring is stopped: nothing to watch.
    Stopped,
    /// When the descriptor is readable, call [`Bell::clear`], then [`RingFace::kick`].
    Bell(Bell),
}

/// One port, as its front end's session sees it. Called from the session's thread.
pub trait Port: Send + Sync {
    /// Runs `act` on the adapter between turns, when no batch of this port is in flight, and carries out the requests in the
    /// outbox.
    fn with(&self, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>));

    /// Replaces the guest's memory. When it returns, no batch of this port uses the old map, so the front end may unmap it.
    fn set_memory(&self, map: Arc<Map>);

    /// Sets a ring's kick. The old descriptor is closed.
    fn set_kick(&self, ring: u16, kick: Kick);

    /// Sets what to signal for [`Outbox::messages`](nicety_adapter::Outbox) of this ring; `None`: the driver polls.
    fn set_call(&self, ring: u16, call: Option<Bell>);

    /// Sets what to signal when a ring breaks.
    fn set_err(&self, ring: u16, err: Option<Bell>);

    /// The guest with this address was migrated here, and cannot announce itself to the network.
    fn announce(&self, address: [u8; 6]);

    /// Memory that outlives this process, [`RECORD_RING_BYTES`] for each ring and zeroed at first: where packed rings stand, for the
    /// next back end if this one is killed. Asked for when a front end that keeps no such memory itself starts packed rings. `None`:
    /// they do not survive.
    fn record(&self) -> Option<Arc<Map>> {
        None
    }

    /// A message has been handled, and answered if that was asked for. The next one is read when this returns: a front end that sends
    /// without end can be made to wait here.
    fn handled(&self) {}

    /// A message was refused, and its sender knows: the operator may want to know too.
    fn refused(&self, _refusal: &Refusal) {}

    /// The front end has gone: rings are stopped and memory is empty by now.
    fn disconnected(&self);
}
