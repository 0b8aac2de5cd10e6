//! What must hold: which host had which address, which frames reach which ports, and what may be taken back when.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nicety_fabric::{Action, Hop};
use nicety_frame::Vni;

use super::{Host, MS, Tunnel, World};

impl World {
    pub(super) fn tunnel(&mut self, host: usize, action: Action) {
        self.tell(format!("h{host}: {action:?}"));
        let is_away = self.is_away(host);
        // All that have ever had its address: the store may say of another one what has not come here yet.
        let hosts_of = |world: &Self, hop: Hop| -> Vec<usize> {
            let tunnel = &world.hosts[host].daemon.as_ref().unwrap().tunnel;
            let Some(peer) = tunnel.hops.get(&hop) else { world.fail(&format!("h{host}: {hop:?} is not there")) };
            world.hosts_of(peer.address)
        };
        let group_of = |world: &Self, vni: Vni| {
            let tunnel = &world.hosts[host].daemon.as_ref().unwrap().tunnel;
            let name = tunnel.groups.iter().find(|(_, of)| **of == vni).map(|(name, _)| name.clone());
            let Some(name) = name else { world.fail(&format!("h{host}: vni {vni} is no group's")) };
            world.groups.iter().position(|group| *group == name).unwrap()
        };
        let mut is_lost = false;
        match action {
            Action::Hop { hop, peer: Some(peer) } => {
                if self.hosts[host].address == peer.address {
                    self.fail(&format!("h{host}: it is a hop of its own"));
                }
                let tunnel = self.tunnel_of(host);
                let is_double = tunnel.hops.iter().any(|(of, known)| *of != hop && known.address == peer.address);
                let old = tunnel.hops.insert(hop, peer);
                if old.is_some_and(|old| old.address != peer.address) {
                    // What was told is behind an address.
                    tunnel.table.retain(|_, of| *of != hop);
                }
                if is_double {
                    self.fail(&format!("h{host}: two hops have the address {}", peer.address));
                }
                self.hosts_of(peer.address).into_iter().for_each(|other| self.check_groups(host, other));
            }
            Action::Hop { hop, peer: None } => {
                let tunnel = self.tunnel_of(host);
                is_lost = tunnel.hops.remove(&hop).is_some();
                let is_used =
                    tunnel.flood.iter().any(|(_, of)| *of == hop) || tunnel.table.values().any(|of| *of == hop);
                if is_used || !is_lost {
                    self.fail(&format!("h{host}: {hop:?} goes while something is told of it"));
                }
            }
            Action::Flood { vni, hop, is_on } => {
                let others = hosts_of(self, hop);
                let group = if is_on { group_of(self, vni) } else { usize::MAX };
                if is_on && !self.had.iter().any(|(of, _, at)| *of == group && others.contains(at)) {
                    self.fail(&format!("h{host}: h{others:?} never had an address in {:?}", self.groups[group]));
                }
                let flood = &mut self.tunnel_of(host).flood;
                let is_new = if is_on { flood.insert((vni, hop)) } else { flood.remove(&(vni, hop)) };
                assert!(is_new, "told twice");
                is_lost = !is_on && self.is_needed(host, vni);
                others.into_iter().for_each(|other| self.check_groups(host, other));
            }
            Action::Tell { vni, mac, hop } => {
                let (group, others) = (group_of(self, vni), hosts_of(self, hop));
                if !others.iter().any(|other| self.had.contains(&(group, mac, *other))) {
                    self.fail(&format!("h{host}: h{others:?} never had {mac} in {:?}", self.groups[group]));
                }
                let old = self.tunnel_of(host).table.insert((vni, mac), hop);
                assert!(old != Some(hop), "told twice");
                if old.is_some() {
                    self.flaps.push(format!("h{host}: {mac} goes to another host"));
                }
            }
            Action::Forget { vni, mac } => {
                assert!(self.tunnel_of(host).table.remove(&(vni, mac)).is_some(), "forgotten twice");
                let is_here = self.guests.iter().any(|guest| guest.mac == mac && guest.at == Some(host));
                is_lost = !is_here && self.is_needed(host, vni);
            }
            Action::Leave { ref vnis } => self.tunnel_of(host).left.clone_from(vnis),
            _ => {}
        }
        if is_lost {
            self.flaps.push(format!("h{host}: {action:?}"));
            self.taken_back += 1;
            if is_away {
                self.fail(&format!("h{host}: {action:?} while the store is away"));
            }
        }
    }

    /// The hosts whose tunnel has, or had, an address.
    fn hosts_of(&self, address: IpAddr) -> Vec<usize> {
        (0..self.hosts.len()).filter(|host| self.hosts[*host].addresses.contains(&address)).collect()
    }

    /// Whether the host still has ports in the group.
    fn is_needed(&self, host: usize, vni: Vni) -> bool {
        let Some(daemon) = &self.hosts[host].daemon else { return false };
        let name = daemon.tunnel.groups.iter().find(|(_, of)| **of == vni).map(|(name, _)| name);
        name.is_none_or(|name| self.groups_at(host).contains(name))
    }

    /// Whether the host has not reached the store for longer than anything can be on its way.
    fn is_away(&self, host: usize) -> bool {
        let is_cut = self.hosts[host].is_cut || !self.store.has_majority;
        let since = self.hosts[host].daemon.as_ref().and_then(|daemon| daemon.away_since);
        is_cut && since.is_some_and(|since| self.now > since + 700 * MS)
    }

    /// Whether a host can know neither that another one has taken its address nor that a number is another group's: it does not reach the
    /// store, or not for as long as an answer takes. Nobody can tell its frames from those of the other one, and it gets those for the other one.
    pub(super) fn is_mistaken(&self, host: usize) -> bool {
        let Host { address, is_cut, heard_from, .. } = &self.hosts[host];
        let is_same = |(n, other): (usize, &Host)| n != host && other.is_on && other.address == *address;
        let hears = !is_cut && self.store.has_majority && self.now > heard_from + 1_000 * MS;
        !hears && self.hosts.iter().enumerate().any(is_same)
    }

    fn tunnel_of(&mut self, host: usize) -> &mut Tunnel {
        &mut self.hosts[host].daemon.as_mut().unwrap().tunnel
    }

    /// A frame of a group reaches no port of another one: from one host to the other, and back.
    pub(super) fn check_groups(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            let (Some(from_daemon), Some(to_daemon)) = (&self.hosts[from].daemon, &self.hosts[to].daemon) else {
                return;
            };
            let (from_tunnel, to_tunnel) = (&from_daemon.tunnel, &to_daemon.tunnel);
            // The receiver takes frames of its hops only.
            let is_taken = to_tunnel.hops.values().any(|peer| peer.address == self.hosts[from].address);
            let hop = from_tunnel.hops.iter().find(|(_, peer)| peer.address == self.hosts[to].address);
            let (true, Some((hop, _))) = (is_taken, hop) else { continue };
            for (name, vni) in &from_tunnel.groups {
                let is_sent = from_tunnel.flood.contains(&(*vni, *hop)) && !from_tunnel.left.contains(vni);
                let received = to_tunnel.group(*vni);
                if is_sent
                    && received.is_some_and(|received| received != name)
                    && ![from, to].iter().any(|n| self.is_mistaken(*n))
                {
                    self.fail(&format!(
                        "h{from} sends frames of {name} with vni {vni}, which h{to} has for {received:?}"
                    ));
                }
            }
        }
    }

    /// What differs from the truth at hosts whose daemon runs: every guest's address is known at every other host with its group.
    pub fn differences(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (n, host) in self.hosts.iter().enumerate() {
            let Some(daemon) = &host.daemon else { continue };
            let tunnel = &daemon.tunnel;
            let needed = self.groups_at(n);
            let mut expected = BTreeMap::new();
            for guest in &self.guests {
                let (Some(at), group) = (guest.at, &self.groups[guest.group]) else { continue };
                let Some(vni) = tunnel.groups.get(group) else { continue };
                if at != n && needed.contains(group) && self.hosts[at].daemon.is_some() {
                    expected.insert((*vni, guest.mac), self.hosts[at].address);
                }
            }
            let address = |hop: &Hop| tunnel.hops.get(hop).map(|peer| peer.address);
            for (key, to) in &expected {
                let told = tunnel.table.get(key).and_then(address);
                if told != Some(*to) {
                    found.push(format!("h{n}: {key:?} is at {to}, and its tunnel was told {told:?}"));
                }
            }
            for key in tunnel.table.keys().filter(|key| !expected.contains_key(*key)) {
                found.push(format!(
                    "h{n}: {key:?} is nowhere, and its tunnel was told {:?}",
                    address(&tunnel.table[key])
                ));
            }
            let flood: BTreeSet<_> = expected.iter().map(|((vni, _), to)| (*vni, *to)).collect();
            let told: BTreeSet<_> = tunnel.flood.iter().filter_map(|(vni, hop)| Some((*vni, address(hop)?))).collect();
            if flood != told {
                found.push(format!("h{n}: floods to {told:?}, which should be {flood:?}"));
            }
        }
        found
    }
}
