//! `[[port_group]]`: a policy that several ports share.

use super::errors::did_you_mean;
use super::fabric_groups::FabricGroups;
use super::form::Form;
use super::names::name;
use super::policy::{self, Parts};
use super::walk::{Found, Key, Kind, Section, Walk};

const GROUP_KEYS: [Key; 1] =
    [Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other group's")
        .required()];

pub(super) static PORT_GROUP: Kind = Kind {
    heading: "[[port_group]]",
    name: "port_group",
    keys: &policy::with::<{ GROUP_KEYS.len() + policy::KEYS.len() }>(&GROUP_KEYS, &policy::KEYS),
    several: false,
};

/// The port groups of a file.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The name and the policy of each.
    list: Vec<(String, Parts)>,
    /// The host is in a fabric, whose groups may become known later.
    is_open: bool,
    /// The groups of the fabric, as far as they are known.
    fabric: Option<FabricGroups>,
}

/// A port's policy.
pub(super) struct PortParts {
    pub parts: Parts,
    /// Its group is the fabric's.
    pub in_fabric: bool,
    /// And that one is not known yet.
    pub waits: bool,
}

impl Groups {
    /// Of a host in a fabric.
    pub(super) fn of_fabric(fabric: Option<FabricGroups>) -> Self {
        Self { list: Vec::new(), is_open: true, fabric }
    }

    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.policies().map(|(name, _)| name)
    }

    fn policies(&self) -> impl Iterator<Item = (&str, &Parts)> {
        let own = self.list.iter().map(|(name, parts)| (name.as_str(), parts));
        own.chain(self.fabric.iter().flat_map(FabricGroups::policies))
    }

    /// Whether a group may become known later.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Reads a group.
    pub(super) fn read(&mut self, walk: &mut Walk, section: Section<'_>) {
        let parts = Parts::read(walk, section);
        parts.check(walk, section);
        let Some(Found { value: name, line }) = name(walk, section) else { return };
        if self.fabric.as_ref().is_some_and(|fabric| fabric.has(&name)) {
            let what = format!("the fabric has a port group {name:?}, too: choose another name for one of them");
            walk.wrong(section, "name", line, what);
            return;
        }
        if self.names().any(|known| known == name) {
            walk.wrong(section, "name", line, format!("there is a port group {name:?} already: choose another name"));
            return;
        }
        self.list.push((name, parts));
    }

    /// A port's policy: its own values, then its group's.
    pub(super) fn policy_of(&self, walk: &mut Walk, section: Section<'_>, mtu: Option<u16>) -> PortParts {
        let (mut in_fabric, mut waits, mut parts) = (false, false, Parts::read(walk, section));
        if let Some(Found { value: wanted, line }) = walk.string(section, "port_group") {
            match self.policies().find(|(name, _)| *name == wanted) {
                Some((name, group)) => {
                    in_fabric = self.fabric.as_ref().is_some_and(|fabric| fabric.has(name));
                    parts = parts.or(group);
                }
                None if self.is_open => (in_fabric, waits) = (true, true),
                None => {
                    let what = format!("there is no port group {wanted:?}{}", did_you_mean(wanted, self.names()));
                    walk.wrong(section, "port_group", line, what);
                }
            }
        }
        for key in ["vlan", "trunk", "native", "qinq"] {
            if let Some(line) = walk.place(section, key).filter(|_| in_fabric) {
                let what =
                    "its port group is the fabric's, and has the VLAN: leave this out, or choose a group of this file";
                walk.wrong(section, key, line, what);
            }
        }
        parts.check(walk, section);
        parts.check_port(walk, section, mtu);
        PortParts { parts, in_fabric, waits }
    }
}
