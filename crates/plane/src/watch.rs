//! Who looks on while frames pass the switch: captures. Nothing here runs while nobody does.

use std::fmt::Debug;

use nicety_adapter::{Batch, Pick, PortId, Reason, Time};
use nicety_switch::Plan;

/// What became of a frame that was offered to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The port's adapter, or the uplink, took it.
    Taken,
    /// It waits in the port's receive buffer.
    Waits,
    /// It was dropped, and counted by the port.
    Dropped(Reason),
}

/// Somebody who looks on. Called by workers: it must not block, nor call the plane back.
pub trait Watcher: Send + Sync + Debug {
    /// Whether it looks at what is offered to this port: each frame is then offered alone, so that its fate is known.
    fn watches_egress(&self, port: PortId) -> bool;

    /// A batch came in from [`Batch::origin`], and this was decided.
    fn ingress(&self, batch: &Batch, plan: &Plan, now: Time);

    /// Frames were offered to a port, and this became of them.
    fn egress(&self, port: PortId, batch: &Batch, offered: &[(Pick, Fate)], now: Time);
}
