//! The port groups of a fabric, and its classes of I/O control: a text that all its hosts have (docs/fabric.md). A host file has them beside
//! its own. The classes are on the host's tunnel.

use std::path::Path;

use nicety_frame::Vni;
use nicety_switch::{Vlan, VlanId, VlanSet};
use nicety_uplink::Network;
use toml::Table;

use super::document::{Document, List};
use super::form::Form;
use super::policy::{self, Parts};
use super::walk::{Key, Kind};
use super::way_out::carries;

const GROUP_KEYS: [Key; 2] = [
    Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other group's")
        .required(),
    Key::new("vni", Form::Number(1, Vni::MAX), "a VXLAN network identifier of its own: 1 to 16777215").required(),
];

/// A group of a fabric.
pub static FABRIC_GROUP: Kind = Kind {
    heading: "[[port_group]]",
    name: "port_group",
    keys: &policy::with::<{ GROUP_KEYS.len() + policy::KEYS.len() }>(&GROUP_KEYS, &policy::KEYS),
    several: false,
};

/// A group: its policy, and its network.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub name: String,
    pub parts: Parts,
    pub network: Network,
}

/// The groups and the classes of a fabric's configuration.
#[derive(Clone, Debug)]
pub struct FabricGroups {
    pub(super) groups: Vec<Group>,
    pub(super) document: Document,
}

impl FabricGroups {
    /// The step before these groups are in force in place of others, if there must be one: without the groups that take another one's VLAN.
    /// Ports change one after the other, and those of two groups must never be in one VLAN.
    #[must_use]
    pub fn step_from(&self, old: &Self) -> Option<Self> {
        let takes = |group: &&Group| {
            let of = |other: &&Group| other.name != group.name && other.network.vlan == group.network.vlan;
            old.groups.iter().any(|other| of(&other))
        };
        let taking: Vec<&str> = self.groups.iter().filter(takes).map(|group| group.name.as_str()).collect();
        if taking.is_empty() {
            return None;
        }
        let groups = self.groups.iter().filter(|group| !taking.contains(&group.name.as_str())).cloned().collect();
        let document = taking.iter().fold(self.document.clone(), |all, name| all.without(List::Groups, name));
        Some(Self { groups, document })
    }

    /// Their text. Comments are left out.
    pub fn text(&self) -> String {
        self.document.text()
    }

    /// Whether this text says the same.
    pub fn is(&self, text: &str) -> bool {
        Document::parse(text, Path::new("")).is_some_and(|document| document == self.document)
    }

    /// Whether it has a group of this name.
    pub fn has(&self, name: &str) -> bool {
        self.groups.iter().any(|group| group.name == name)
    }

    /// The names of the groups, each with its policy.
    pub(super) fn policies(&self) -> impl Iterator<Item = (&str, &Parts)> {
        self.groups.iter().map(|group| (group.name.as_str(), &group.parts))
    }

    /// The VLANs of the switch that go through the tunnel.
    pub fn networks(&self) -> impl Iterator<Item = Network> + '_ {
        self.groups.iter().map(|group| group.network)
    }

    /// The VLANs of an uplink that carries these networks, and nothing else.
    pub(super) fn vlan(networks: &[Network]) -> Vlan {
        let mut allowed = VlanSet::default();
        allowed.extend(networks.iter().filter_map(|network| VlanId::new(network.vlan?)));
        Vlan::Trunk { allowed, native: None }
    }

    /// The tables of the groups and of the classes, by their names.
    pub(super) fn tables(&self) -> Vec<(String, Table)> {
        let is_table = |name: &str| ["port_group.", "io_class."].iter().any(|list| name.starts_with(list));
        self.document.tables().into_iter().filter(|(name, _)| is_table(name)).collect()
    }

    /// The table of a group. Empty if there is none.
    pub(super) fn table(&self, name: &str) -> Table {
        self.document.entry(List::Groups, name)
    }

    /// Names of the groups whose VLANs an uplink with these VLANs carries, too. One without VLANs carries none: the tunnel has them.
    pub fn carried_by(&self, vlan: &Vlan) -> impl Iterator<Item = &str> {
        let carries =
            move |group: &&Group| group.network.vlan.and_then(VlanId::new).is_some_and(|id| carries(vlan, id));
        self.groups.iter().filter(carries).map(|group| group.name.as_str())
    }
}
