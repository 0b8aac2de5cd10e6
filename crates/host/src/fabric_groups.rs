//! The port groups of a fabric, and its classes of I/O control: a text that all its hosts have (docs/fabric.md). A host file has them beside
//! its own. The classes are on the host's tunnel.

use std::path::Path;

use nicety_fabric::Config;
use nicety_frame::Vni;
use nicety_switch::{Vlan, VlanId, VlanSet};
use nicety_uplink::Network;
use toml::de::DeTable;
use toml::{Table, Value};

use super::document::{Document, List};
use super::errors::{HostError, HostErrors};
use super::fabric::FABRIC;
use super::form::Form;
use super::io_classes::{FABRIC_CLASS, IO_CLASS, fabric_classes};
use super::names;
use super::policy::{self, Parts};
use super::walk::{Found, Key, Kind, Section, Walk};
use super::way_out::carries;

/// The text before each mistake, in place of a file's name.
const PLACE: &str = "the fabric's configuration";

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
struct Group {
    name: String,
    parts: Parts,
    network: Network,
}

/// The groups and the classes of a fabric's configuration.
#[derive(Clone, Debug)]
pub struct FabricGroups {
    groups: Vec<Group>,
    document: Document,
}

impl FabricGroups {
    /// Reads a configuration: what [`nicety_fabric::Config`] checks, and each group's policy.
    ///
    /// # Errors
    /// Its mistakes.
    pub fn parse(text: &str) -> Result<Self, HostErrors> {
        let malformed = |what: String| {
            let (of, key) = (String::new(), String::new());
            HostErrors::new(Path::new(PLACE), vec![HostError { line: 0, of, key, what, allowed: String::new() }])
        };
        Config::parse(text.as_bytes()).map_err(malformed)?;
        let root = DeTable::parse(text).map_err(|error| malformed(error.to_string()))?;
        let mut walk = Walk::new(text);
        walk.name_tables(root.get_ref());
        walk.unknown_sections(root.get_ref(), &[&FABRIC_GROUP, &FABRIC_CLASS], &["format"]);
        let mut groups: Vec<Group> = Vec::new();
        for section in walk.sections(root.get_ref(), &FABRIC_GROUP) {
            groups.extend(group(&mut walk, section, &groups));
        }
        let sections = walk.sections(root.get_ref(), &FABRIC_CLASS);
        fabric_classes(&mut walk, sections, groups.iter().map(|group| group.name.as_str()).collect());
        let document = Document::parse(text, Path::new("")).unwrap_or_default();
        if walk.errors.is_empty() {
            Ok(Self { groups, document })
        } else {
            Err(HostErrors::new(Path::new(PLACE), walk.into_errors()))
        }
    }

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

    /// A host file's text with the classes before its own, on the tunnel of its `[fabric]`, and their number. `None`: there are none, or it has
    /// no `[fabric]`.
    pub(super) fn with_classes(&self, text: &str) -> Option<(String, usize)> {
        let classes = self.document.list_of(List::Classes);
        let mut root: Table = text.parse().ok().filter(|_| !classes.is_empty())?;
        let tunnel = root.get(FABRIC.name)?.get("tunnel")?.as_str()?.to_owned();
        let on_tunnel = |class: &Value| {
            let mut class = class.clone();
            if let Value::Table(table) = &mut class {
                table.insert("uplink".to_owned(), Value::from(tunnel.as_str()));
            }
            class
        };
        let own = root.entry(IO_CLASS.name).or_insert_with(|| Value::Array(Vec::new())).as_array_mut()?;
        drop(own.splice(0..0, classes.iter().map(on_tunnel)));
        Some((toml::to_string(&root).ok()?, classes.len()))
    }

    /// The table of a group. Empty if there is none.
    pub(super) fn table(&self, name: &str) -> Table {
        self.document.entry(List::Groups, name)
    }

    /// Names of the groups whose VLANs an uplink with these VLANs carries, too.
    pub fn carried_by(&self, vlan: &Vlan) -> Vec<&str> {
        let carries = |group: &&Group| {
            let id = group.network.vlan.and_then(VlanId::new);
            id.is_some_and(|id| *vlan == Vlan::Flat || carries(vlan, id))
        };
        self.groups.iter().filter(carries).map(|group| group.name.as_str()).collect()
    }
}

fn group(walk: &mut Walk, section: Section<'_>, before: &[Group]) -> Option<Group> {
    let parts = Parts::read(walk, section);
    parts.check(walk, section);
    let name = names::name(walk, section)?.value;
    for key in ["trunk", "native", "qinq"] {
        if let Some(line) = walk.place(section, key) {
            walk.wrong(section, key, line, "a group of a fabric is one network, and has one VLAN: write vlan = NUMBER");
        }
    }
    if walk.place(section, "vlan").is_none() {
        walk.missing(section, "vlan");
    }
    let Found { value: vni, .. } = walk.integer(section, "vni")?;
    let Found { value: vlan, line } = walk.integer(section, "vlan")?;
    let network = Network { vlan: u16::try_from(vlan).ok(), vni: Vni::new(vni)? };
    if let Some(other) = before.iter().find(|other| other.network.vlan == network.vlan) {
        let what = format!("VLAN {vlan} is that of group {:?} already: each group of a fabric has its own", other.name);
        walk.wrong(section, "vlan", line, what);
        return None;
    }
    Some(Group { name, parts, network })
}
