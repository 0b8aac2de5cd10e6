//! The uplinks, teams, ports and groups of a host file, as far as its classes, its mirrors and its exports of flows name them.

use nicety_uplink::Rate;

use super::errors::did_you_mean;
use super::port::PortConfig;
use super::team::TeamConfig;
use super::uplink::UplinkConfig;
use super::walk::{Found, Section, Walk};

/// Most names in a list.
pub(super) const NAMES_MAX: usize = 64;

/// The rest of the file, as far as classes depend on it.
pub(super) struct Around<'a> {
    pub uplinks: &'a [UplinkConfig],
    pub teams: &'a [TeamConfig],
    pub ports: &'a [PortConfig],
    pub groups: Vec<&'a str>,
    /// Whether there may be more groups, which become known later.
    pub has_more_groups: bool,
}

impl Around<'_> {
    /// The ports and the members of the groups that a section names by `ports` and `groups`. `None`: it has neither key.
    pub(super) fn named_ports(&self, walk: &mut Walk, section: Section<'_>) -> Option<Vec<String>> {
        let named = walk.place(section, "ports").or_else(|| walk.place(section, "groups")).is_some();
        let mut ports = Vec::new();
        for Found { value: wanted, line } in walk.list::<String>(section, "ports", NAMES_MAX) {
            let names = || self.ports.iter().map(|port| port.name.as_str());
            if !names().any(|name| name == wanted) {
                let what = format!("there is no port {wanted:?}{}", did_you_mean(&wanted, names()));
                walk.wrong(section, "ports", line, what);
            }
            ports.push(wanted);
        }
        for Found { value: wanted, line } in walk.list::<String>(section, "groups", NAMES_MAX) {
            if !self.has_more_groups && !self.groups.contains(&wanted.as_str()) {
                let what =
                    format!("there is no port group {wanted:?}{}", did_you_mean(&wanted, self.groups.iter().copied()));
                walk.wrong(section, "groups", line, what);
            }
            let members = self.ports.iter().filter(|port| port.group.as_ref() == Some(&wanted));
            ports.extend(members.map(|port| port.name.clone()));
        }
        ports.sort_unstable();
        ports.dedup();
        named.then_some(ports)
    }

    /// The uplinks that are in no team, and the teams, that a section names by `uplinks`.
    pub(super) fn named_uplinks(&self, walk: &mut Walk, section: Section<'_>) -> Vec<String> {
        let mut uplinks = Vec::new();
        for Found { value: wanted, line } in walk.list::<String>(section, "uplinks", NAMES_MAX) {
            let names = self.uplinks.iter().map(|uplink| uplink.name.as_str());
            let names = || names.clone().chain(self.teams.iter().map(|team| team.name.as_str()));
            let member = self.uplinks.iter().find(|uplink| uplink.name == wanted);
            if let Some(team) = member.and_then(|uplink| uplink.team.as_ref()) {
                let what = format!("uplink {wanted} is a member of team {team}: name the team");
                walk.wrong(section, "uplinks", line, what);
            } else if !names().any(|name| name == wanted) {
                let what = format!("there is no uplink and no team {wanted:?}{}", did_you_mean(&wanted, names()));
                walk.wrong(section, "uplinks", line, what);
            }
            uplinks.push(wanted);
        }
        uplinks.sort_unstable();
        uplinks.dedup();
        uplinks
    }

    /// Whether the marks of any port, or of what comes in by any uplink, are trusted.
    pub(super) fn trusts_any(&self, by_dscp: bool) -> bool {
        self.ports.iter().any(|port| trusts_marks(port, by_dscp))
            || self.uplinks.iter().any(|uplink| uplink.trust_marks)
    }

    /// The slowest link of an uplink or team: its name and its rate, or the name of one without a rate.
    pub(super) fn slowest(&self, name: &str) -> Result<(&str, Rate), String> {
        let mut slowest = None;
        for link in self.links(name) {
            let Some(rate) = link.rate else { return Err(link.name.clone()) };
            if slowest.is_none_or(|(_, least)| rate < least) {
                slowest = Some((link.name.as_str(), rate));
            }
        }
        slowest.ok_or_else(|| name.to_owned())
    }

    /// The link of an uplink or team with the least `inward_rate`, if any has one.
    pub(super) fn slowest_inward(&self, name: &str) -> Option<(&str, Rate)> {
        self.links(name).filter_map(|link| Some((link.name.as_str(), link.inward?.rate))).min_by_key(|(_, rate)| *rate)
    }

    fn links(&self, name: &str) -> impl Iterator<Item = &UplinkConfig> {
        let team = self.teams.iter().find(|team| team.name == name);
        let is_its = move |uplink: &&UplinkConfig| match team {
            Some(team) => team.members.contains(&uplink.name),
            None => uplink.name == name,
        };
        self.uplinks.iter().filter(is_its)
    }
}

/// Whether the host trusts a port's marks. A trusted function's priority counts, as in the tags of what leaves; its code point does not.
pub(super) fn trusts_marks(port: &PortConfig, by_dscp: bool) -> bool {
    port.policy.trust_marks || (!by_dscp && port.function.as_ref().is_some_and(|own| own.trusted))
}
