//! What the machine says of other hosts, for the tunnel's table and for the switch's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nicety_fabric::{Action, CLAIMS_MAX, HOSTS_MAX, Hop, Peer};
use nicety_frame::{Mac, Vni};
use nicety_host::FabricGroups;
use nicety_uplink::{HOPS_MAX, Hop as TunnelHop, Hops, TOLD_MAX};
use tracing::warn;

use super::around::Around;

// The tunnel has room for all that the machine tells. The machine names what it leaves out.
const _: () = assert!(HOSTS_MAX <= HOPS_MAX && CLAIMS_MAX <= TOLD_MAX);

/// Another host.
#[derive(Debug, Default)]
struct Host {
    address: Option<IpAddr>,
    /// Frames for all of these networks go there.
    networks: BTreeSet<Vni>,
}

/// See the module's page.
#[derive(Debug)]
pub(super) struct Tunnel {
    /// The uplink's name.
    name: String,
    hops: Hops,
    hosts: BTreeMap<Hop, Host>,
    /// Hosts whose networks have changed, and that the tunnel is to be told.
    changed: BTreeSet<Hop>,
    /// The VLANs of the groups on the switch.
    vlans: BTreeMap<Vni, u16>,
    /// The groups in force. With them the machine knows their numbers, and tells all that it knows.
    groups: Option<FabricGroups>,
    /// An address that could not be told was reported.
    has_warned: bool,
}

impl Tunnel {
    pub(super) fn new(name: String, hops: Hops) -> Self {
        let (hosts, changed, vlans) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { name, hops, hosts, changed, vlans, groups: None, has_warned: false }
    }

    /// These groups are in force.
    pub(super) fn has_groups(&mut self, groups: FabricGroups) {
        let vlan = |network: nicety_uplink::Network| Some((network.vni, network.vlan?));
        self.vlans = groups.networks().filter_map(vlan).collect();
        self.groups = Some(groups);
    }

    /// The groups in force. `None`: nobody knows them yet.
    pub(super) fn groups(&self) -> Option<&FabricGroups> {
        self.groups.as_ref()
    }

    /// The uplink's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The tunnel uses these networks no more, whatever groups are in force.
    pub(super) fn leave(&self, vnis: &BTreeSet<Vni>) {
        self.hops.leave(vnis);
    }

    /// Tells the tunnel. Returns an action that is not for it.
    pub(super) fn carry_out(&mut self, action: Action, daemon: &dyn Around) -> Option<Action> {
        match action {
            Action::Hop { hop, peer } => self.reaches(hop, peer),
            Action::Flood { vni, hop, is_on } => {
                let networks = &mut self.hosts.entry(hop).or_default().networks;
                let is_new = if is_on { networks.insert(vni) } else { networks.remove(&vni) };
                if is_new {
                    self.changed.insert(hop);
                }
            }
            Action::Tell { vni, mac, hop } => {
                self.flush();
                self.tell(vni, mac, hop, daemon);
            }
            Action::Leave { vnis } => self.leave(&vnis),
            Action::Forget { vni, mac } => self.hops.forget(vni, mac),
            other => return Some(other),
        }
        None
    }

    fn reaches(&mut self, hop: Hop, peer: Option<Peer>) {
        let host = self.hosts.entry(hop).or_default();
        let address = peer.map(|peer| peer.address);
        let before = std::mem::replace(&mut host.address, address);
        if let Some(gone) = before.filter(|before| Some(*before) != address) {
            // Another host may have its address now.
            if !self.hosts.values().any(|host| host.address == Some(gone)) {
                self.hops.remove(gone);
            }
        }
        if address.is_some() {
            self.changed.insert(hop);
        } else {
            self.hosts.remove(&hop);
            self.changed.remove(&hop);
        }
    }

    fn tell(&mut self, vni: Vni, mac: Mac, hop: Hop, daemon: &dyn Around) {
        let Some(address) = self.hosts.get(&hop).and_then(|host| host.address) else { return };
        let told = self.hops.tell(vni, mac, address);
        if let Some(why) = told.err().filter(|_| !std::mem::replace(&mut self.has_warned, true)) {
            warn!(uplink = self.name, "an address of the fabric is reached by flooding, as may be others: {why}");
        }
        if let Some(vlan) = self.vlans.get(&vni) {
            daemon.leads_to_uplink(&self.name, mac, *vlan);
        }
    }

    /// All actions were carried out that the machine has for now.
    pub(super) fn told_all(&mut self) {
        self.flush();
        if self.groups.is_some() {
            // Entries that were told to the process before this one alone hold no more.
            self.hops.forget_unconfirmed();
        }
    }

    /// Tells the tunnel which networks hosts have now: once, however many have changed.
    fn flush(&mut self) {
        for hop in std::mem::take(&mut self.changed) {
            let Some(Host { address: Some(address), networks }) = self.hosts.get(&hop) else { continue };
            self.hops.put(TunnelHop { address: *address, networks: Some(networks.iter().copied().collect()) });
        }
    }
}

#[cfg(test)]
#[path = "tunnel_test.rs"]
mod tests;
