//! `[[port_group]]`: a policy that several ports share.

use super::errors::did_you_mean;
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
}

impl Groups {
    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|(name, _)| name.as_str())
    }

    /// Reads a group.
    pub(super) fn read(&mut self, walk: &mut Walk, section: Section<'_>) {
        let parts = Parts::read(walk, section);
        parts.check(walk, section);
        let Some(Found { value: name, line }) = name(walk, section) else { return };
        if self.names().any(|known| known == name) {
            walk.wrong(section, "name", line, format!("there is a port group {name:?} already: choose another name"));
            return;
        }
        self.list.push((name, parts));
    }

    /// A port's policy: its own values, then its group's.
    pub(super) fn policy_of(&self, walk: &mut Walk, section: Section<'_>, mtu: Option<u16>) -> Parts {
        let mut parts = Parts::read(walk, section);
        if let Some(Found { value: wanted, line }) = walk.string(section, "port_group") {
            match self.list.iter().find(|(name, _)| name == wanted) {
                Some((_, group)) => parts = parts.or(group),
                None => {
                    let what = format!("there is no port group {wanted:?}{}", did_you_mean(wanted, self.names()));
                    walk.wrong(section, "port_group", line, what);
                }
            }
        }
        parts.check(walk, section);
        parts.check_port(walk, section, mtu);
        parts
    }
}
