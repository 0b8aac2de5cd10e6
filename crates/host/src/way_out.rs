//! Which networks uplinks carry, and so which ports have a way out of the switch.

use nicety_switch::{Vlan, VlanId};

use super::{Host, UplinkKind};

impl Host {
    /// The VLANs of the ways out: of teams, and of uplinks that are in none. A querier carries no traffic.
    pub fn ways_out(&self) -> impl Iterator<Item = &Vlan> {
        let is_way_out = |uplink: &&super::UplinkConfig| uplink.kind != UplinkKind::Querier && uplink.team.is_none();
        let uplinks = self.uplinks.iter().filter(is_way_out).map(|uplink| &uplink.vlan);
        uplinks.chain(self.teams.iter().map(|team| &team.vlan))
    }

    /// Whether frames of a port with these VLANs leave by an uplink. One without VLANs also carries, with their tags, those that no other
    /// uplink has.
    pub fn has_way_out(&self, vlan: &Vlan) -> bool {
        self.ways_out().any(|way| match vlan {
            Vlan::Flat => *way == Vlan::Flat,
            _ if *way == Vlan::Flat => true,
            Vlan::Access(id) => carries(way, *id),
            Vlan::Service(id) => serves(way, *id),
            Vlan::Trunk { allowed, native } => {
                allowed.iter().chain(*native).any(|id| carries(way, id) || serves(way, id))
            }
        })
    }
}

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
