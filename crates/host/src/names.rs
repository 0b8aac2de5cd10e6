//! Names in a host file: which are allowed, and which uplinks and teams have.

use std::collections::{HashMap, hash_map};
use std::hash::Hash;

use super::form::{INTERFACE_MAX, NAME_MAX};
use super::walk::{Found, Section, Walk};

/// The names of the ways out of the switch, each with its line. They must differ from each other and from the ports' names because of
/// `nicety ports NAME`.
#[derive(Debug, Default)]
pub(super) struct Ways {
    pub(super) uplinks: Vec<Found<String>>,
    pub(super) teams: Vec<Found<String>>,
    /// The uplinks that are in a team.
    pub(super) members: Vec<String>,
}

impl Ways {
    /// The uplink or the team that has this name: which of the two it is, and its line.
    pub(super) fn whose(&self, name: &str) -> Option<(&'static str, usize)> {
        let line = |all: &[Found<String>]| all.iter().find(|found| found.value == name).map(|found| found.line);
        line(&self.uplinks).map(|line| ("uplink", line)).or(line(&self.teams).map(|line| ("team", line)))
    }
}

/// The line of an earlier equal value. Notes this line if there is none.
pub(super) fn earlier<K: Eq + Hash>(seen: &mut HashMap<K, usize>, key: K, line: usize) -> Option<usize> {
    // One line may hold several values.
    match seen.entry(key) {
        hash_map::Entry::Occupied(first) => Some(*first.get()),
        hash_map::Entry::Vacant(none) => {
            none.insert(line);
            None
        }
    }
}

/// Reads the name of a table.
pub(super) fn name(walk: &mut Walk, section: Section<'_>) -> Option<Found<String>> {
    of_key(walk, section, "name")
}

/// Reads a name by this key.
pub(super) fn of_key(walk: &mut Walk, section: Section<'_>, key: &str) -> Option<Found<String>> {
    let Found { value: name, line } = walk.string(section, key)?;
    match mistake(name) {
        None => Some(Found { value: name.to_owned(), line }),
        Some(what) => {
            walk.wrong(section, key, line, what);
            None
        }
    }
}

/// The reason why this is no name.
pub(super) fn mistake(name: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() {
        Some("it is empty".to_owned())
    } else if let Some(odd) = name.chars().find(|&c| !plain(c)) {
        Some(format!("{name:?} has a {odd:?}"))
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        Some(format!("{name:?} does not begin with a letter or digit"))
    } else if name.len() > NAME_MAX {
        Some(format!("it has {} characters", name.len()))
    } else {
        None
    }
}

/// A valid interface name on Linux (dev_valid_name in net/core/dev.c).
pub(super) fn interface(walk: &mut Walk, section: Section<'_>, key: &str) -> Option<String> {
    let Found { value: name, line } = walk.string(section, key)?;
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
    if name.is_empty() || name.len() > INTERFACE_MAX || matches!(name, "." | "..") || name.contains(bad) {
        walk.wrong(section, key, line, format!("{name:?} cannot be an interface's name"));
        return None;
    }
    Some(name.to_owned())
}
