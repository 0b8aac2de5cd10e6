//! The state of a fabric, for a person.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_frame::{Mac, Vni};
use serde::Serialize;

use crate::fabric::Fabric;
use crate::fabric::standing::Stage;
use crate::hosts::Hop;
use crate::record::{CARRIED, Name};

/// This host's connection to the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Connection {
    /// It is registered, and hears all changes.
    Connected,
    /// The last known state is in force, and nothing can be changed.
    Away {
        /// For how long.
        since: Duration,
        /// Why.
        why: String,
        /// The lease of this host has ended, so other hosts take it for gone.
        is_forgotten: bool,
    },
    /// Another host has its name or its tunnel address.
    Refused {
        /// The cause, and what to do.
        why: String,
    },
    /// It was taken out.
    Left,
}

/// Another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostReport {
    /// Its name.
    pub name: Name,
    /// Its tunnel's address.
    pub address: IpAddr,
    /// Its underlay's MTU.
    pub mtu: u16,
    /// The version of its program.
    pub version: String,
    /// The time since this host has known this run of it.
    pub known_for: Duration,
    /// Its key has vanished while the store was out of reach: it is believed gone after so long.
    pub gone_in: Option<Duration>,
    /// Its addresses in the groups that this host follows.
    pub addresses: u32,
    /// Whether frames are sent to it. If not, another host had its tunnel address first, or it has not claimed that address.
    pub is_reached: bool,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupReport {
    /// Its name.
    pub name: Name,
    /// Its network identifier. `None`: the configuration in force does not have it.
    pub vni: Option<u32>,
    /// Addresses at this host.
    pub own: usize,
    /// Addresses at other hosts.
    pub told: usize,
    /// Other hosts with an address in it, or with an uplink that carries its VLAN.
    pub hosts: usize,
    /// All changes up to this revision are known.
    pub revision: i64,
    /// Whether this host hears its changes.
    pub is_in_touch: bool,
}

/// The place of an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The group.
    pub group: Name,
    /// The host.
    pub host: Name,
    /// The port.
    pub port: Name,
    /// The number of its claim. 0: not claimed yet.
    pub sequence: u64,
    /// Whether frames go there. If not, a newer claim counts.
    pub is_current: bool,
}

/// A port of another host that has the name of one of this host's ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Namesake {
    /// The name.
    pub port: Name,
    /// The other host.
    pub host: Name,
    /// All addresses of the other port are this one's, too: their guest moves, or a twin stands by.
    pub has_same_address: bool,
}

/// The whole report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// This host's connection to the store.
    pub connection: Connection,
    /// The version of the configuration in force. `None`: there is none yet.
    pub config: Option<i64>,
    /// A newer version that is not in force yet, and why. A sentence.
    pub waits: Option<String>,
    /// The highest revision of the store that was heard of.
    pub revision: i64,
    /// All other hosts.
    pub hosts: Vec<HostReport>,
    /// The groups that this host has ports in.
    pub groups: Vec<GroupReport>,
    /// Watches that are open.
    pub watches: usize,
    /// Claims of other hosts.
    pub claims: usize,
    /// The refusals and their reasons, a sentence each.
    pub refused: Vec<String>,
}

impl Fabric {
    /// This host's connection to the store.
    pub fn connection(&self, now: Time) -> Connection {
        match &self.standing.stage {
            Stage::Refused(why) => return Connection::Refused { why: why.clone() },
            Stage::Left => return Connection::Left,
            _ => {}
        }
        let is_forgotten = self.standing.lease.is_none_or(|lease| now >= lease.until);
        let silent = self.courses.values().filter(|course| !course.is_in_touch()).min_by_key(|course| course.since);
        if let Some(course) = silent {
            return Connection::Away { since: now.since(course.since), why: reason(&course.why), is_forgotten };
        }
        if self.standing.stage != Stage::Registered || is_forgotten {
            let since = self.standing.lease.map_or(Duration::ZERO, |lease| now.since(lease.until));
            return Connection::Away { since, why: reason(&self.standing.why), is_forgotten };
        }
        Connection::Connected
    }

    /// All that a person wants to know.
    pub fn report(&self, now: Time) -> Report {
        let host = |(hop, host): (Hop, &crate::hosts::Host)| {
            let known = host.known()?;
            let carried = self.groups.values().filter(|group| group.claims.contains_key(&(CARRIED, hop))).count();
            Some(HostReport {
                name: host.name.clone(),
                address: known.record.address,
                mtu: known.record.mtu,
                version: known.record.version.clone(),
                known_for: now.since(known.since),
                gone_in: known.gone_at.map(|at| at.since(now)),
                addresses: host.claims.saturating_sub(u32::try_from(carried).unwrap_or(u32::MAX)),
                is_reached: host.peer.is_some(),
            })
        };
        let groups = self.groups.iter().filter(|(_, group)| group.is_needed).map(|(name, group)| {
            let course = self.courses.get(&crate::Scope::Group(name.clone()));
            GroupReport {
                name: name.clone(),
                vni: group.vni().map(Vni::number),
                own: group.own.values().filter(|own| own.is_here()).count(),
                told: group.told.len(),
                hosts: group.flooded.len(),
                revision: course.map_or(0, |course| course.revision),
                is_in_touch: course.is_some_and(|course| course.is_in_touch()),
            }
        });
        Report {
            connection: self.connection(now),
            config: self.configs.in_force.as_ref().map(|(revision, _)| *revision),
            waits: self.configs.delayed.as_ref().map(|delayed| delayed.sentence.clone()),
            revision: self.newest,
            hosts: self.hosts.all().filter_map(host).collect(),
            groups: groups.collect(),
            watches: self.watches.len(),
            claims: self.claims,
            refused: self.refused(),
        }
    }

    /// The log has each sentence once while it stays the same: so none has a number that a guest can raise.
    fn refused(&self) -> Vec<String> {
        let mut sentences: Vec<String> =
            self.configs.refused.iter().cloned().chain(self.refusals.sentences()).collect();
        if self.refusals.more > 0 {
            sentences.push("and more keys than these".to_owned());
        }
        if self.is_admitted {
            let me = (&self.me.host, self.me.address);
            sentences.extend(self.hosts.all().filter_map(|(_, host)| self.hosts.why_not_reached(host, me)));
        }
        sentences.extend(self.left_out.iter().map(|port| {
            format!(
                "port {:?}: not all addresses that were learned behind it are claimed, because there are too many: other hosts reach \
                 those by flooding",
                port.as_str()
            )
        }));
        sentences.extend(self.defeated());
        sentences
    }

    /// A sentence for each port of which an address is in two places: its first such address.
    fn defeated(&self) -> Vec<String> {
        let mut ports = BTreeMap::new();
        for (name, group) in &self.groups {
            let often = group.own.iter().filter(|(_, own)| own.defeats >= DEFEATS_MANY);
            for (mac, wanted) in often.filter_map(|(mac, own)| Some((mac, own.wanted.as_ref()?))) {
                ports.entry(&wanted.port).or_insert_with(|| {
                    format!(
                        "port {:?}: its address {mac} of group {:?} was claimed by another host {DEFEATS_MANY} times in a row or more: two \
                         guests may have one address",
                        wanted.port.as_str(),
                        name.as_str()
                    )
                });
            }
        }
        ports.into_values().collect()
    }

    /// The number of ports of each other host that have an address in the groups that this host follows. It looks at all claims.
    pub fn ports_of_hosts(&self) -> BTreeMap<Name, usize> {
        let mut ports: BTreeSet<(Hop, &Name)> = BTreeSet::new();
        let groups = self.groups.values().filter(|group| group.is_needed);
        let claims = groups.flat_map(|group| &group.claims).filter(|((mac, _), _)| *mac != CARRIED);
        ports.extend(claims.map(|((_, hop), claim)| (*hop, &claim.port)));
        let mut counts = BTreeMap::new();
        for host in ports.into_iter().filter_map(|(hop, _)| self.hosts.get(hop)) {
            *counts.entry(host.name.clone()).or_default() += 1;
        }
        counts
    }

    /// The ports of other hosts with a name of this host's ports, as far as both have an address in the groups that this host follows. It looks
    /// at all claims.
    pub fn namesakes(&self) -> Vec<Namesake> {
        let groups = || self.groups.values().filter(|group| group.is_needed);
        let mut own: BTreeMap<&Name, BTreeSet<Mac>> = BTreeMap::new();
        for (mac, wanted) in
            groups().flat_map(|group| &group.own).filter_map(|(mac, own)| Some((mac, own.wanted.as_ref()?)))
        {
            own.entry(&wanted.port).or_default().insert(*mac);
        }
        let mut found: BTreeMap<(&Name, Hop), bool> = BTreeMap::new();
        for ((mac, hop), claim) in groups().flat_map(|group| &group.claims).filter(|((mac, _), _)| *mac != CARRIED) {
            if let Some(addresses) = own.get(&claim.port) {
                *found.entry((&claim.port, *hop)).or_insert(true) &= addresses.contains(mac);
            }
        }
        let namesake = |((port, hop), has_same_address): ((&Name, Hop), bool)| {
            Some(Namesake { port: port.clone(), host: self.hosts.get(hop)?.name.clone(), has_same_address })
        };
        found.into_iter().filter_map(namesake).collect()
    }

    /// The places of an address in all groups that this host follows.
    pub fn places(&self, mac: Mac) -> Vec<Place> {
        let mut places = Vec::new();
        for (name, group) in &self.groups {
            let own = group.own.get(&mac);
            let is_here = own.is_some_and(|own| own.is_here());
            let best = group.best(mac, &self.hosts).map(|(hop, _)| hop).filter(|_| !is_here);
            if let Some(wanted) = own.and_then(|own| own.wanted.as_ref()) {
                places.push(Place {
                    group: name.clone(),
                    host: self.me.host.clone(),
                    port: wanted.port.clone(),
                    sequence: wanted.sequence,
                    is_current: is_here || (wanted.waits && best.is_none()),
                });
            }
            for (hop, claim) in group.of(mac) {
                let Some(host) = self.hosts.get(hop) else { continue };
                places.push(Place {
                    group: name.clone(),
                    host: host.name.clone(),
                    port: claim.port.clone(),
                    sequence: claim.sequence,
                    is_current: best == Some(hop),
                });
            }
        }
        places
    }
}

/// Why a host is not connected, if the last call had an answer.
fn reason(why: &str) -> String {
    if why.is_empty() { "it answers again, and this host is not registered yet".to_owned() } else { why.to_owned() }
}

/// An address that was overtaken so often in a row is in two places.
const DEFEATS_MANY: u32 = 5;
