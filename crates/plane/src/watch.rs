//! Watchers see the frames that pass the switch: captures. Without a watcher nothing here runs.

use std::fmt::Debug;

use nicety_adapter::{Batch, Pick, PortId, Reason, Time};
use nicety_switch::Plan;

/// Fate of a frame that was offered to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The port's adapter, or the uplink, took it.
    Taken,
    /// It waits in the port's receive buffer.
    Waits,
    /// It was dropped, and counted by the port.
    Dropped(Reason),
}

/// A watcher of frames. Workers call it: it must not block, nor call back into the plane.
pub trait Watcher: Send + Sync + Debug {
    /// Whether it watches frames that are offered to this port. Each frame is then offered alone, so that its fate is known.
    fn watches_egress(&self, port: PortId) -> bool;

    /// A batch came in from [`Batch::origin`]; `plan` is the switch's decision.
    fn ingress(&self, batch: &Batch, plan: &Plan, now: Time);

    /// Frames were offered to a port, with the fate of each.
    fn egress(&self, port: PortId, batch: &Batch, offered: &[(Pick, Fate)], now: Time);
}
