//! The networks that uplinks carry, and so the ports that have a way out of the switch.

use nicety_switch::{Vlan, VlanId};

/// Whether a port with these VLANs has a customer's VLAN.
pub fn carries(vlan: &Vlan, id: VlanId) -> bool {
    match vlan {
        Vlan::Access(other) => *other == id,
        Vlan::Trunk { allowed, native } => allowed.contains(id) || *native == Some(id),
        Vlan::Flat | Vlan::Service(_) => false,
    }
}

/// Whether a port with these VLANs has a service VLAN.
pub fn serves(vlan: &Vlan, id: VlanId) -> bool {
    match vlan {
        Vlan::Service(other) => *other == id,
        Vlan::Trunk { allowed, .. } => allowed.contains(id),
        Vlan::Flat | Vlan::Access(_) => false,
    }
}
