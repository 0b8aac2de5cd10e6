//! The text of a fabric's groups and classes: how it is read, and how a host file has its classes.

use std::path::Path;

use nicety_fabric::Config;
use nicety_frame::Vni;
use nicety_uplink::Network;
use toml::de::DeTable;
use toml::{Table, Value};

use super::document::{Document, List};
use super::errors::{HostError, HostErrors};
use super::fabric::FABRIC;
use super::fabric_groups::{FABRIC_GROUP, FabricGroups, Group};
use super::io_classes::{FABRIC_CLASS, IO_CLASS, fabric_classes};
use super::names;
use super::policy::Parts;
use super::walk::{Found, Section, Walk};

/// The text before each mistake, in place of a file's name.
const PLACE: &str = "the fabric's configuration";

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
