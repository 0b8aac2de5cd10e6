//! The addresses behind this host's ports, as far as they are in groups of the fabric.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nicety_adapter::{PortId, Time};
use nicety_fabric::{Fabric, Name, Waiting};
use nicety_frame::Mac;
use nicety_plane::Presence;
use nicety_switch::{Learned, Vlan};

use super::around::Around;
use crate::spec::PortSpec;

/// Between two looks at the addresses that the switch has learned.
const LEARNED: Duration = Duration::from_secs(1);

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
    /// Addresses that another host has claimed since.
    moved: BTreeSet<Address>,
    learned_at: Time,
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
            && self.vlan.is_none() == config.waits_for_group
            && self.name.as_str() == config.name
            && config.group.as_deref() == Some(self.group.as_str())
            && self.addresses == config.policy.addresses
            && self.vlan.is_none_or(|vlan| matches!(config.policy.vlan, Vlan::Access(id) if id.number() == vlan))
    }
}

impl Ports {
    /// Looks at the ports, and tells the machine what has changed.
    pub(super) fn look(&mut self, daemon: &dyn Around, fabric: &mut Fabric, now: Time) {
        let (mut seen, mut is_changed) = (0, false);
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
            fabric.needs(&self.ports.values().map(|port| port.group.clone()).collect(), now);
            self.tell(daemon, fabric, now);
        }
        if now >= self.learned_at {
            self.learned_at = now.after(LEARNED);
            self.tell_learned(daemon, fabric, now);
        }
    }

    fn tell(&mut self, daemon: &dyn Around, fabric: &mut Fabric, now: Time) {
        let mut here: BTreeMap<Address, (Use, PortId)> = BTreeMap::new();
        for (id, port) in &self.ports {
            let Some(used) = port.used() else { continue };
            for mac in &port.addresses {
                // Of two ports with one address the other stands by.
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
            // A frame on its way may have taught the switch an address of a port after its VMM has left.
            let is_used = |port: &&Port| port.vlan == Some(fid) && port.presence != Presence::Nobody;
            let Some(port) = self.ports.get(&id).filter(is_used) else { continue };
            let key = (port.group.clone(), address);
            let is_back = self.moved.remove(&key);
            if self.here.contains_key(&key) {
                if is_back {
                    fabric.learned(&key.0, address, &port.name, now);
                }
                continue;
            }
            if is_back || !self.learned.contains_key(&key) {
                fabric.learned(&key.0, address, &port.name, now);
            }
            learned.insert(key, id);
        }
        for (address, _) in self.learned.iter().filter(|(address, _)| !learned.contains_key(*address)) {
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
