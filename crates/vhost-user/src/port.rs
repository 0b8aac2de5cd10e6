//! What a session needs of its port.

use std::sync::Arc;

use nicety_adapter::{Context, RingFace};
use nicety_bell::Bell;
use nicety_memory::Map;

use crate::ending::Refusal;

/// How a started ring is kicked.
#[derive(Debug)]
pub enum Kick {
    /// It is stopped: nothing is to be watched.
    Stopped,
    /// The descriptor becomes readable; [`Bell::clear`] it, then [`RingFace::kick`].
    Bell(Bell),
}

/// One port, as its front end's session sees it. Called from the session's thread.
pub trait Port: Send + Sync {
    /// Runs `act` on the adapter between turns, when no batch of this port is in flight, and acts on what it leaves in
    /// the outbox.
    fn with(&self, act: &mut dyn FnMut(&mut dyn RingFace, &mut Context<'_>));

    /// Replaces the guest's memory. Returns when no batch of this port refers to the old map any more, so that the
    /// front end may unmap it.
    fn set_memory(&self, map: Arc<Map>);

    /// How a ring is kicked from now on. The old descriptor is closed.
    fn set_kick(&self, ring: u16, kick: Kick);

    /// What to ring for [`Outbox::messages`](nicety_adapter::Outbox) of this ring; `None`: the driver polls.
    fn set_call(&self, ring: u16, call: Option<Bell>);

    /// What to ring when a ring breaks.
    fn set_err(&self, ring: u16, err: Option<Bell>);

    /// The guest, which has this address, has come here from elsewhere, and cannot tell the network itself.
    fn announce(&self, address: [u8; 6]);

    /// A message was refused, and its sender told so: the operator may want to know.
    fn refused(&self, _refusal: &Refusal) {}

    /// The front end has gone: rings are stopped and memory is empty by now.
    fn disconnected(&self);
}
