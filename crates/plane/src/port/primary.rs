//! A port that stands by for another one, the primary. Both are adapters of one VM, and have one address.
//!
//! Linux pairs them (drivers/net/net_failover.c). As soon as the primary is open, Linux takes frames from it, and drops those that the
//! standby receives (`net_failover_handle_frame`). It still sends by the standby until the primary has a carrier. If the switch learned
//! the address from these frames, it would send the VM's frames where they are dropped.

use std::sync::{Arc, Weak};

use nicety_adapter::PortId;
use nicety_frame::Mac;
use nicety_switch::Primary;

use super::{Port, Presence, STANDS_BY};

/// The port that another one stands by for.
#[derive(Debug)]
pub(super) struct PrimaryPort {
    /// The address of both.
    address: Mac,
    id: PortId,
    parts: Vec<Weak<Port>>,
}

impl PrimaryPort {
    fn is(&self, address: Mac, parts: &[Weak<Port>]) -> bool {
        let is_same = |(one, other): (&Weak<Port>, &Weak<Port>)| one.ptr_eq(other);
        self.address == address && self.parts.len() == parts.len() && self.parts.iter().zip(parts).all(is_same)
    }

    /// Whether its guest's driver has started it. This takes the primary's lock, once for each batch of the standby, as a delivery to it
    /// does. Nobody else wants it then: Linux uses one of the two at a time.
    fn runs(&self) -> bool {
        self.parts.iter().filter_map(Weak::upgrade).any(|part| part.presence() == Presence::Running)
    }
}

impl Port {
    /// From now on it stands by for the port of these parts, which has this address too. No part: for none.
    pub fn stand_by<'a>(&self, address: Mac, parts: impl IntoIterator<Item = &'a Arc<Port>>) {
        let mut id = None;
        let weak = |part: &Arc<Port>| {
            id.get_or_insert(part.id());
            Arc::downgrade(part)
        };
        let parts: Vec<Weak<Port>> = parts.into_iter().map(weak).collect();
        let before = self.primary.load();
        if before.as_ref().map_or(parts.is_empty(), |before| before.is(address, &parts)) {
            return;
        }
        let primary = id.map(|id| Arc::new(PrimaryPort { address, id, parts }));
        let _held = self.lock();
        self.mark(STANDS_BY, primary.is_some());
        self.primary.store(primary);
    }

    /// The port that it stands by for, while that is driven: then the address of both is learned there.
    pub(crate) fn primary(&self) -> Option<Primary> {
        let primary = self.primary.load();
        let PrimaryPort { address, id, .. } = primary.as_deref().filter(|primary| primary.runs())?;
        Some(Primary { address: *address, port: *id })
    }
}
