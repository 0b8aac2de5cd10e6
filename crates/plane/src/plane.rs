//! All ports of one switch.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::{ArcSwap, Guard};
use nicety_adapter::{PortId, Time};
use nicety_switch::{Full, Limits, Policy, Switch};

use crate::lldp::{Neighbour, Neighbours};
use crate::port::Port;
use crate::times::{Histogram, Times};
use crate::watch::Watcher;

/// Why a port could not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneError {
    /// The switch has its maximum of ports.
    Full(Full),
    /// That number is taken.
    Taken(PortId),
}

impl std::fmt::Display for PlaneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(full) => full.fmt(f),
            Self::Taken(port) => write!(f, "port number {} is taken", port.0),
        }
    }
}

impl std::error::Error for PlaneError {}

type Ports = Vec<Option<Arc<Port>>>;

/// A switch and its ports. Workers read the list without a lock; a join or leave replaces the whole list.
#[derive(Debug)]
pub struct Plane {
    switch: Switch,
    ports: ArcSwap<Ports>,
    /// Whether there are watchers: read once per batch and receiver.
    pub(crate) watched: AtomicBool,
    pub(crate) watchers: ArcSwap<Vec<Arc<dyn Watcher>>>,
    pub(crate) times: Times,
    pub(crate) neighbours: Neighbours,
}

impl Plane {
    /// A switch without ports.
    pub fn new(limits: Limits) -> Self {
        Self {
            switch: Switch::new(limits),
            ports: ArcSwap::default(),
            watched: AtomicBool::new(false),
            watchers: ArcSwap::default(),
            times: Times::default(),
            neighbours: Neighbours::default(),
        }
    }

    /// The switch.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    pub(crate) fn ports(&self) -> Guard<Arc<Ports>> {
        self.ports.load()
    }

    /// A port joins.
    pub fn join(&self, port: Arc<Port>) -> Result<(), PlaneError> {
        let index = usize::from(port.id().0);
        if self.port(port.id()).is_some() {
            return Err(PlaneError::Taken(port.id()));
        }
        self.switch.join(port.id()).map_err(PlaneError::Full)?;
        self.ports.rcu(|old| {
            let mut new = Ports::clone(old);
            if new.len() <= index {
                new.resize(index + 1, None);
            }
            new[index] = Some(Arc::clone(&port));
            new
        });
        Ok(())
    }

    /// Sets what a port may do: its VLANs, what it may send and receive, how fast. The port need not have joined. No frame is lost
    /// or delayed by the change, of this port or any other.
    pub fn set_policy(&self, port: &Port, policy: &Policy) {
        self.switch.set_policy(port.id(), policy);
        self.neighbours.listen(port.id(), policy.lldp);
        port.set_shapes(policy.transmit, policy.receive, policy.log);
    }

    /// Who has said by LLDP to be at the other end of a port, if that listens.
    pub fn neighbour(&self, port: PortId, now: Time) -> Option<Neighbour> {
        self.neighbours.of(port, now)
    }

    /// A port leaves.
    pub fn leave(&self, id: PortId) -> Option<Arc<Port>> {
        self.switch.leave(id);
        self.neighbours.listen(id, false);
        let port = self.port(id);
        self.ports.rcu(|old| {
            let mut new = Ports::clone(old);
            if let Some(slot) = new.get_mut(usize::from(id.0)) {
                *slot = None;
            }
            new
        });
        let list = self.ports();
        if let Some(port) = &port {
            // Release the senders that the port held.
            for held in port.retire() {
                if let Some(held) = list.get(usize::from(held.0)).and_then(Option::as_ref) {
                    held.let_go();
                }
            }
        }
        list.iter().flatten().for_each(|other| other.forget(id));
        drop(list);
        port
    }

    /// How long frames stayed in the switch, sampled from one batch in [`SAMPLE_EVERY`](crate::SAMPLE_EVERY).
    pub fn times(&self) -> Histogram {
        self.times.histogram()
    }

    /// A port by its number.
    pub fn port(&self, id: PortId) -> Option<Arc<Port>> {
        self.ports.load().get(usize::from(id.0)).cloned().flatten()
    }
}
