//! The configuration: one text for all hosts. This crate reads which groups it has, with which network identifiers, and leaves all other
//! keys to the host file.

use std::collections::{BTreeMap, BTreeSet};

use nicety_adapter::Time;
use nicety_frame::Vni;

use crate::Action;
use crate::fabric::Fabric;
use crate::record::Name;
use crate::store::Scope;

/// Groups of a fabric, at most.
pub const GROUPS_MAX: usize = 1024;
/// Longest text, in bytes. etcd takes requests of 1.5 MiB.
pub const TEXT_MAX: usize = 256 * 1024;
/// The format of the text that this version reads.
const FORMAT: i64 = 1;

/// A version of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The text.
    pub text: String,
    /// The groups and their network identifiers.
    pub groups: BTreeMap<Name, Vni>,
}

impl Config {
    /// Reads a text.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > TEXT_MAX {
            return Err(format!("the text has {} bytes, at most {TEXT_MAX} are allowed", text.len()));
        }
        let text = std::str::from_utf8(text).map_err(|error| format!("the text is not UTF-8: {error}"))?;
        let table: toml::Table = text.parse().map_err(|error| format!("the text is not TOML: {error}"))?;
        match table.get("format").map(toml::Value::as_integer) {
            Some(Some(FORMAT)) => {}
            Some(Some(newer)) if newer > FORMAT => {
                return Err(format!(
                    "format = {newer} is of a newer version of this program, which reads format = {FORMAT}: upgrade it on this host"
                ));
            }
            Some(_) => return Err(format!("format must be {FORMAT}")),
            None => return Err(format!("format = {FORMAT} is missing")),
        }
        let none = Vec::new();
        let list = match table.get("port_group") {
            None => &none,
            Some(value) => value.as_array().ok_or("port_group must be a list of tables: [[port_group]]")?,
        };
        if list.len() > GROUPS_MAX {
            return Err(format!("it has {} groups, at most {GROUPS_MAX} are allowed", list.len()));
        }
        let mut groups = BTreeMap::new();
        let mut names = BTreeMap::new();
        for (index, entry) in list.iter().enumerate() {
            let (name, vni) = group(entry).map_err(|why| format!("[[port_group]] number {}: {why}", index + 1))?;
            if let Some(other) = names.insert(vni, name.clone()) {
                return Err(format!("the groups {other:?} and {name:?} have one vni, {vni}: each needs its own"));
            }
            if groups.insert(name.clone(), vni).is_some() {
                return Err(format!("there are two groups with the name {name:?}"));
            }
        }
        Ok(Self { text: text.to_owned(), groups })
    }

    /// Whether a group has another network identifier than in an older version.
    fn renumbers(&self, older: &Self) -> bool {
        self.groups.iter().any(|(name, vni)| older.groups.get(name) != Some(vni))
    }

    /// The network identifiers that are not their groups' any more in a newer version.
    fn lost(&self, newer: &Self) -> BTreeSet<Vni> {
        let lost = self.groups.iter().filter(|(name, vni)| newer.groups.get(*name) != Some(*vni));
        lost.map(|(_, vni)| *vni).collect()
    }

    /// The first network identifier that another group had in an older version.
    pub(crate) fn reassigns(&self, older: &Self) -> Option<(Vni, &Name, Name)> {
        let of: BTreeMap<Vni, &Name> = older.groups.iter().map(|(name, &vni)| (vni, name)).collect();
        let mut taken = self.groups.iter().filter_map(|(name, vni)| Some((*vni, name, *of.get(vni)?)));
        taken.find(|(_, new, old)| new != old).map(|(vni, new, old)| (vni, new, old.clone()))
    }
}

fn group(entry: &toml::Value) -> Result<(Name, Vni), String> {
    let table = entry.as_table().ok_or("it is not a table")?;
    let name = table.get("name").and_then(toml::Value::as_str).ok_or("its name is missing")?;
    let name = Name::new(name)?;
    let Some(vni) = table.get("vni") else {
        return Err(format!("the group {name:?} has no vni, which all groups of a fabric need"));
    };
    let number = vni.as_integer().and_then(|vni| u32::try_from(vni).ok()).and_then(Vni::new);
    let wrong = || format!("the vni {vni} of the group {name:?} is not a number from 1 to {}", Vni::MAX);
    Ok((name.clone(), number.ok_or_else(wrong)?))
}

/// A version that the daemon cannot apply yet. It tries again by itself.
#[derive(Debug)]
pub(crate) struct Delayed {
    revision: i64,
    config: Config,
    /// For a person.
    pub(crate) sentence: String,
}

/// The versions on their way into the daemon.
#[derive(Debug, Default)]
pub(crate) struct Configs {
    /// The version that the daemon has applied.
    pub(crate) in_force: Option<(i64, Config)>,
    /// The version that was in force when the state was kept from which this machine has begun.
    pub(crate) last_known: Option<(i64, Config)>,
    /// The version that the daemon is applying.
    pub(crate) applying: Option<(i64, Config)>,
    /// A version before that one. Its result comes before that one's.
    pub(crate) delayed: Option<Delayed>,
    /// A newer one, which is next.
    pub(crate) next: Option<(i64, Config)>,
    /// The revision of the key.
    pub(crate) revision: i64,
    /// Why the key's newest version is not in force.
    pub(crate) refused: Option<String>,
    /// Identifiers of the version in force that are not their groups' any more. The tunnel was told to leave them.
    pub(crate) left: BTreeSet<Vni>,
    /// Whether a version waits until the hosts are read anew.
    pub(crate) waits_for_hosts: bool,
}

impl Configs {
    /// The text of the key's revision, unless it was refused.
    fn newest(&self) -> Option<&str> {
        let mut known = [&self.next, &self.applying, &self.in_force].into_iter().flatten();
        known.find(|(revision, _)| *revision == self.revision).map(|(_, config)| config.text.as_str())
    }
}

impl Fabric {
    /// The key was read, or written.
    pub(crate) fn config_is(&mut self, value: &[u8], revision: i64, now: Time) {
        // A new etcd may have another text at the same revision.
        if revision == self.configs.revision && self.configs.newest().is_some_and(|text| text.as_bytes() == value) {
            return;
        }
        self.configs.revision = revision;
        (self.configs.next, self.configs.refused) = (None, None);
        match Config::parse(value) {
            Ok(config) => {
                self.configs.next = Some((revision, config));
                self.offer(now);
            }
            Err(why) => self.config_refused(revision, &why),
        }
    }

    /// The key is not there.
    pub(crate) fn config_is_gone(&mut self) {
        self.configs.revision = 0;
        self.configs.next = None;
        let gone = "its key is not there: the last known configuration stays".to_owned();
        self.configs.refused = self.configs.in_force.is_some().then_some(gone);
    }

    fn config_refused(&mut self, revision: i64, why: &str) {
        let stays = self.stays();
        self.configs.refused = Some(format!("version {revision} of the configuration is refused: {why}; {stays}"));
    }

    /// The version in force in place of a newer one, as a part of a sentence.
    fn stays(&self) -> String {
        let Some((old, config)) = &self.configs.in_force else { return "there is no earlier one".to_owned() };
        let has_left = |(_, vni): &(&Name, &Vni)| self.configs.left.contains(vni);
        let without: Vec<&str> = config.groups.iter().filter(has_left).map(|(name, _)| name.as_str()).collect();
        match &without[..] {
            [] => format!("version {old} stays in force"),
            names => format!(
                "version {old} stays in force, but nothing goes to other hosts or comes from them in {}, whose VNI may be another group's",
                names.join(", ")
            ),
        }
    }

    /// A newer version is not in force here, and is elsewhere. So identifiers may soon be other groups' that are these groups' here.
    fn leave_lost(&mut self, newer: &Config) {
        let in_force = self.configs.in_force.as_ref().or(self.configs.last_known.as_ref());
        let lost = in_force.map(|(_, config)| config.lost(newer)).unwrap_or_default();
        self.leave_networks(lost);
    }

    /// The tunnel leaves these identifiers, and takes up all others again.
    pub(crate) fn leave_networks(&mut self, vnis: BTreeSet<Vni>) {
        if self.configs.left != vnis {
            self.configs.left.clone_from(&vnis);
            self.act(Action::Leave { vnis });
        }
    }

    /// Identifiers that the next version takes from groups of this one. Without a lease this host may hear of that late, and they may be other
    /// groups' by now. Nobody takes frames from a host that is gone, unless another one has its address: so the tunnel leaves them at once.
    fn lost_without_lease(&self, config: &Config) -> BTreeSet<Vni> {
        let next = self.configs.next.as_ref().filter(|_| self.standing.registered().is_none());
        next.map(|(_, next)| config.lost(next)).unwrap_or_default()
    }

    /// Has the daemon apply the next version. One version at a time.
    pub(crate) fn offer(&mut self, now: Time) {
        let in_force = self.configs.in_force.as_ref().or(self.configs.last_known.as_ref());
        let lost = in_force.map(|(_, config)| self.lost_without_lease(config)).unwrap_or_default();
        self.leave_networks(&self.configs.left | &lost);
        if self.configs.applying.is_some() || self.configs.waits_for_hosts {
            return;
        }
        let Some((_, next)) = &self.configs.next else { return };
        // A host that was cut off for long may still have another group at such a number. It has lost its lease, so its key is gone. Once
        // the hosts are read, this host neither sends to it nor takes anything from it.
        let is_renumbered = self.configs.in_force.as_ref().is_some_and(|(_, old)| next.renumbers(old));
        if is_renumbered && !self.is_read_for_config {
            self.configs.waits_for_hosts = true;
            self.read_again(&Scope::Hosts, now);
            return;
        }
        self.is_read_for_config = false;
        self.configs.applying = self.configs.next.take();
        if let Some((revision, config)) = &self.configs.applying {
            let (revision, text) = (*revision, config.text.clone());
            self.act(Action::Config { revision, text });
        }
    }

    /// The daemon has applied a version, or refuses it.
    pub fn applied(&mut self, revision: i64, result: Result<(), String>, now: Time) {
        let config = if let Some((_, config)) = self.take_applying(revision) {
            // The daemon tries an older version no more.
            self.configs.delayed = None;
            config
        } else if let Some(delayed) = self.configs.delayed.take_if(|delayed| delayed.revision == revision) {
            delayed.config
        } else {
            return;
        };
        match result {
            Ok(()) => {
                // The state that was kept may say that a newer version has taken identifiers away from it.
                if self.configs.last_known.as_ref().is_none_or(|(known, _)| *known != revision) {
                    self.leave_networks(self.lost_without_lease(&config));
                }
                self.put_in_force(revision, config);
            }
            Err(why) => {
                self.leave_lost(&config);
                self.config_refused(revision, &why);
            }
        }
        self.offer(now);
        self.tick(now);
    }

    /// The daemon cannot apply a version yet. It tries again by itself, until there is a newer one, and then calls [`Fabric::applied`]. `why`
    /// is a sentence.
    pub fn delayed(&mut self, revision: i64, why: &str, now: Time) {
        let Some((_, config)) = self.take_applying(revision) else { return };
        self.leave_lost(&config);
        let sentence = format!("version {revision} waits: {why}; {}", self.stays());
        self.configs.delayed = Some(Delayed { revision, config, sentence });
        self.offer(now);
        self.tick(now);
    }

    fn take_applying(&mut self, revision: i64) -> Option<(i64, Config)> {
        self.configs.applying.take_if(|(applying, _)| *applying == revision)
    }

    pub(crate) fn put_in_force(&mut self, revision: i64, config: Config) {
        self.configs.in_force = Some((revision, config.clone()));
        // First all numbers are given up, then they are taken: two groups may have changed places.
        for (name, group) in &mut self.groups {
            if group.vni() != config.groups.get(name).copied() {
                group.set_vni(None, &mut self.actions);
            }
        }
        let is_admitted = self.is_admitted;
        for (name, group) in &mut self.groups {
            if group.vni() != config.groups.get(name).copied() {
                group.set_vni(config.groups.get(name).copied(), &mut self.actions);
                group.show_all(&self.hosts, is_admitted, &mut self.actions);
            }
        }
    }
}

#[cfg(test)]
#[path = "config_test.rs"]
mod tests;
