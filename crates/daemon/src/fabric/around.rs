//! What the fabric asks of the daemon: `daemon/fabric.rs` answers.

use nicety_adapter::PortId;
use nicety_frame::Mac;
use nicety_host::FabricGroups;
use nicety_plane::Presence;
use nicety_switch::{Learned, Vlan};

use crate::spec::PortSpec;

/// The ports, and the switch.
pub(crate) trait Around: Send + Sync {
    /// Each port in a group of the fabric, and who uses it.
    fn each_fabric_port(&self, visit: &mut dyn FnMut(PortId, &PortSpec, Presence));

    /// Each uplink outside teams and each team by which frames leave, but for this one.
    fn each_way_out(&self, without: &str, visit: &mut dyn FnMut(&str, &Vlan));

    /// The addresses that the switch has learned.
    fn learned(&self) -> Vec<Learned>;

    /// An address is at another host: the switch, if it knows it at another port, sends its frames to this uplink.
    fn leads_to_uplink(&self, uplink: &str, mac: Mac, vlan: u16);

    /// An address is at this port: the switch, if it knows it at another one, sends its frames here.
    fn leads_to_port(&self, id: PortId, mac: Mac, vlan: u16);
}

/// Changes of the running configuration.
pub(crate) trait Changes: Send + Sync {
    /// These groups of the fabric are in force from now on.
    fn apply_groups(&self, groups: &FabricGroups) -> Result<InForce, NotNow>;
}

/// Why nothing has changed. A sentence.
pub(crate) enum NotNow {
    /// The groups do not fit this host.
    Refused(String),
    /// They fit once a change of this host is confirmed, or undone.
    Waits(String),
}

/// A configuration that is in force now.
pub(crate) struct InForce {
    /// The changes that were made, a line each.
    pub plan: String,
    /// Why some ports could not be changed.
    pub failed: Vec<String>,
    /// Why the change is lost at a restart.
    pub not_kept: Option<String>,
}

/// A daemon without ports, for tests.
#[cfg(test)]
pub(crate) struct Nobody;

#[cfg(test)]
impl Around for Nobody {
    fn each_fabric_port(&self, _visit: &mut dyn FnMut(PortId, &PortSpec, Presence)) {}

    fn each_way_out(&self, _without: &str, _visit: &mut dyn FnMut(&str, &Vlan)) {}

    fn learned(&self) -> Vec<Learned> {
        Vec::new()
    }

    fn leads_to_uplink(&self, _uplink: &str, _mac: Mac, _vlan: u16) {}

    fn leads_to_port(&self, _id: PortId, _mac: Mac, _vlan: u16) {}
}
