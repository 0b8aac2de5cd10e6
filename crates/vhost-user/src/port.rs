//! The interface of a port to its session.

use std::sync::Arc;

use nicety_adapter::{Context, RingFace};
use nicety_memory::Map;
use nicety_peer::Bell;

use crate::ending::Refusal;

/// Bytes of a [record](Port::record) for each ring.
pub const RECORD_RING_BYTES: u64 = 4096;

/// Most bytes of a port's [state](Port::save_state): a pipe of the front end's takes them at once (pipe(7): 64 KiB, one page of which may be
/// begun).
pub const STATE_BYTES_MAX: usize = 48 << 10;

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
    /// Runs `act` on the adapter between turns, when no batch of this port is in flight. Then carries out the requests in the
    /// outbox. If several adapters serve the rings, on each of them, one after the other: they offer and take the same.
    fn with(&self, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>));

    /// Like [`Port::with`], on the adapter that serves this ring.
    fn with_ring(&self, _ring: u16, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>)) {
        self.with(act);
    }

    /// Replaces the guest's memory. On return no batch of this port uses the old map, so the front end may unmap it.
    fn set_memory(&self, map: Arc<Map>);

    /// Sets a ring's kick. The old descriptor is closed.
    fn set_kick(&self, ring: u16, kick: Kick);

    /// Sets the descriptor to signal for [`Outbox::messages`](nicety_adapter::Outbox) of this ring. `None`: the driver polls.
    fn set_call(&self, ring: u16, call: Option<Bell>);

    /// Sets the descriptor to signal when a ring breaks.
    fn set_err(&self, ring: u16, err: Option<Bell>);

    /// Announces a migrated guest with this address to the network, because the guest cannot do so itself.
    fn announce(&self, address: [u8; 6]);

    /// Memory that outlives this process: [`RECORD_RING_BYTES`] for each ring, zeroed at first. It holds the positions of packed
    /// rings, for the next back end if this one is killed. The session asks for it when a front end without such memory starts
    /// packed rings. `None`: the positions are lost.
    fn record(&self) -> Option<Arc<Map>> {
        None
    }

    /// Whether a VMM that moves its guest takes the port's state along. A VMM whose destination does not offer that cannot move the guest.
    fn offers_state(&self) -> bool {
        false
    }

    /// The port's state, at most [`STATE_BYTES_MAX`] bytes, in a form of the port's own. No ring runs; `ran`: some did until the front end
    /// stopped them.
    fn save_state(&self, _ran: bool) -> Vec<u8> {
        Vec::new()
    }

    /// A state of another host's port, or why none has come. A VMM has passed it: it may be anything. No ring runs.
    fn load_state(&self, _state: Result<Vec<u8>, String>) {}

    /// A ring runs.
    fn started(&self, _ring: u16) {}

    /// Called after a message was handled, and answered if that was requested. The session reads the next message when this
    /// returns. So an implementation can slow down a front end that floods it.
    fn handled(&self) {}

    /// Reports a refused message. The front end knows of it already; this is for the operator.
    fn refused(&self, _refusal: &Refusal) {}

    /// The front end has disconnected: the rings are stopped and the memory is empty.
    fn disconnected(&self);
}
