//! The addresses behind this host's ports, as far as they are in groups of the fabric.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nicety_adapter::{PortId, Time};
use nicety_fabric::{Fabric, Name, Waiting};
use nicety_frame::Mac;
use nicety_plane::Presence;
use nicety_switch::{Learned, Vlan};

use super::around::Around;
use super::tunnel::Tunnel;
use crate::spec::PortSpec;

/// Between two looks at the addresses that the switch has learned, and at the uplinks.
const SELDOM: Duration = Duration::from_secs(1);

/// An address of a group.
type Address = (Name, Mac);

/// A port of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Port {
    name: Name,
    group: Name,
    /// Its group's VLAN, once that is known.
    vlan: Option<u16>,
    /// Its own addresses.
    addresses: Vec<Mac>,
    presence: Presence,
    /// Its guest has run since its VMM came.
    has_run: bool,
    /// It stands by for the port that has its address too.
    standby: bool,
}

/// What the machine is told of an own address: the higher counts if two ports have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Waits(Waiting),
    Runs,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct Ports {
    ports: BTreeMap<PortId, Port>,
    /// Own addresses of ports that are in use.
    here: BTreeMap<Address, (Use, PortId)>,
    /// Other addresses behind ports.
    learned: BTreeMap<Address, PortId>,
    /// Those of them for which the machine had no room.
    left_out: BTreeSet<Address>,
    /// Addresses that another host has claimed since.
    moved: BTreeSet<Address>,
    /// Groups whose VLAN an uplink or a team carries, with its name.
    carried: BTreeMap<Name, Name>,
    seldom_at: Time,
}

impl Port {
    /// `before`: as it was at the last look.
    fn of(spec: &PortSpec, presence: Presence, before: Option<&Self>) -> Option<Self> {
        let config = &spec.config;
        let vlan = match config.policy.vlan {
            Vlan::Access(id) if !config.waits_for_group => Some(id.number()),
            _ => None,
        };
        Some(Self {
            // A host file's names are names of a fabric.
            name: Name::new(&config.name).ok()?,
            group: Name::new(config.group.as_deref()?).ok()?,
            vlan,
            addresses: config.policy.addresses.clone(),
            presence,
            has_run: match presence {
                Presence::Nobody => false,
                Presence::Waiting => before.is_some_and(|before| before.has_run),
                Presence::Running => true,
            },
            standby: config.standby,
        })
    }

    fn used(&self) -> Option<Use> {
        match (self.presence, self.has_run) {
            _ if self.vlan.is_none() => None,
            (Presence::Nobody, _) => None,
            (Presence::Waiting, false) => Some(Use::Waits(Waiting::Expected)),
            (Presence::Waiting, true) => Some(Use::Waits(Waiting::Stopped)),
            (Presence::Running, _) => Some(Use::Runs),
        }
    }

    fn is(&self, spec: &PortSpec, presence: Presence) -> bool {
        let config = &spec.config;
        self.presence == presence
            && self.standby == config.standby
            && self.vlan.is_none() == config.waits_for_group
            && self.name.as_str() == config.name
            && config.group.as_deref() == Some(self.group.as_str())
            && self.addresses == config.policy.addresses
            && self.vlan.is_none_or(|vlan| matches!(config.policy.vlan, Vlan::Access(id) if id.number() == vlan))
    }
}

/// The groups whose VLAN an uplink or a team carries, with its name: the first one's.
fn carried(daemon: &dyn Around, tunnel: &Tunnel) -> BTreeMap<Name, Name> {
    let mut all = BTreeMap::new();
    let Some(groups) = tunnel.groups() else { return all };
    daemon.each_way_out(tunnel.name(), &mut |uplink, vlan| {
        for group in groups.carried_by(vlan) {
            // A host file's names are names of a fabric.
            if let (Ok(group), Ok(uplink)) = (Name::new(group), Name::new(uplink)) {
                all.entry(group).or_insert(uplink);
            }
        }
    });
    all
}

impl Ports {
    /// Looks at the ports and the uplinks, and tells the machine what has changed. `tunnel` knows the groups in force.
    pub(super) fn look(&mut self, daemon: &dyn Around, tunnel: &Tunnel, fabric: &mut Fabric, now: Time) {
        let is_due = now >= self.seldom_at;
        let carried = is_due.then(|| carried(daemon, tunnel)).filter(|carried| *carried != self.carried);
        let (mut seen, mut is_changed) = (0, carried.is_some());
        daemon.each_fabric_port(&mut |id, spec, presence| {
            seen += 1;
            let before = self.ports.get(&id);
            if before.is_some_and(|port| port.is(spec, presence)) {
                return;
            }
            is_changed = true;
            match Port::of(spec, presence, before) {
                Some(port) => drop(self.ports.insert(id, port)),
                None => drop(self.ports.remove(&id)),
            }
        });
        if seen != self.ports.len() {
            is_changed = true;
            let mut there = BTreeSet::new();
            daemon.each_fabric_port(&mut |id, _, _| {
                there.insert(id);
            });
            self.ports.retain(|id, _| there.contains(id));
        }
        if is_changed {
            let before = std::mem::take(&mut self.carried);
            self.carried = carried.unwrap_or_else(|| before.clone());
            let groups = self.ports.values().map(|port| &port.group).chain(self.carried.keys());
            fabric.needs(&groups.cloned().collect(), now);
            self.tell_carried(&before, fabric, now);
            self.tell(daemon, fabric, now);
        }
        if is_due {
            self.seldom_at = now.after(SELDOM);
            self.tell_learned(daemon, fabric, now);
        }
    }

    fn tell_carried(&self, before: &BTreeMap<Name, Name>, fabric: &mut Fabric, now: Time) {
        for group in before.keys().filter(|group| !self.carried.contains_key(*group)) {
            fabric.carried(group, None, now);
        }
        for (group, uplink) in self.carried.iter().filter(|(group, uplink)| before.get(*group) != Some(*uplink)) {
            fabric.carried(group, Some(uplink), now);
        }
    }

    fn tell(&mut self, daemon: &dyn Around, fabric: &mut Fabric, now: Time) {
        let mut here: BTreeMap<Address, (Use, PortId)> = BTreeMap::new();
        let mut ports: Vec<_> = self.ports.iter().collect();
        // Of two ports with one address one stands by: it counts only if it is used more.
        ports.sort_by_key(|(_, port)| port.standby);
        for (id, port) in ports {
            let Some(used) = port.used() else { continue };
            for mac in &port.addresses {
                let first = here.entry((port.group.clone(), *mac)).or_insert((used, *id));
                if used > first.0 {
                    *first = (used, *id);
                }
            }
        }
        let before = std::mem::replace(&mut self.here, here);
        for (address, _) in before.iter().filter(|(address, _)| !self.here.contains_key(*address)) {
            self.moved.remove(address);
            fabric.stopped(&address.0, address.1, now);
        }
        for (address, (used, id)) in self.here.iter().filter(|(address, now)| before.get(*address) != Some(now)) {
            let Some(port) = self.ports.get(id) else { continue };
            self.moved.remove(address);
            match used {
                Use::Waits(waiting) => fabric.waits(&address.0, address.1, &port.name, *waiting, now),
                Use::Runs => {
                    // The switch may know it behind the tunnel, from when it was at another host.
                    port.vlan.iter().for_each(|vlan| daemon.leads_to_port(*id, address.1, *vlan));
                    fabric.started(&address.0, address.1, &port.name, now);
                }
            }
        }
    }

    fn tell_learned(&mut self, daemon: &dyn Around, fabric: &mut Fabric, now: Time) {
        let mut learned = BTreeMap::new();
        for Learned { address, fid, port: id, .. } in daemon.learned() {
            // The switch knows the addresses of a VM that has gone until they age.
            let is_here = |port: &&Port| port.vlan == Some(fid) && port.presence != Presence::Nobody;
            let Some(port) = self.ports.get(&id).filter(is_here) else { continue };
            let key = (port.group.clone(), address);
            let is_back = self.moved.remove(&key);
            if self.here.contains_key(&key) {
                if is_back {
                    fabric.learned(&key.0, address, &port.name, now);
                }
                continue;
            }
            let is_retried = self.left_out.contains(&key) && fabric.has_room(&port.name);
            if is_back || is_retried || !self.learned.contains_key(&key) {
                if fabric.learned(&key.0, address, &port.name, now) {
                    self.left_out.remove(&key);
                } else {
                    self.left_out.insert(key.clone());
                }
            }
            learned.insert(key, id);
        }
        for (address, _) in self.learned.iter().filter(|(address, _)| !learned.contains_key(*address)) {
            self.left_out.remove(address);
            if !self.here.contains_key(address) {
                self.moved.remove(address);
                fabric.stopped(&address.0, address.1, now);
            }
        }
        self.learned = learned;
    }

    /// Another host has claimed an address of this one.
    pub(super) fn moved(&mut self, group: Name, mac: Mac) {
        self.moved.insert((group, mac));
    }
}

#[cfg(test)]
#[path = "ports_test.rs"]
mod tests;
