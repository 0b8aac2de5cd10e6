//! Frames of guests, by the tables that the tunnels have at this instant: each arrives at most once at each port, and at none of another
//! group.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nicety_frame::Mac;

use super::{Tunnel, World};

/// A guest's port at a host: where the guest is, or where a VMM waits for it.
type Port = (usize, usize);

impl World {
    /// Each guest sends a frame to all, and one to a guest of its group. `is_quiet`: nothing is on its way, so each frame to all arrives at
    /// each guest of its group.
    pub fn frames(&mut self, is_quiet: bool) {
        let hosts = self.hosts_by_address();
        for from in 0..self.guests.len() {
            let (Some(at), group) = (self.guests[from].at, self.guests[from].group) else { continue };
            let same: Vec<Mac> = self.guests.iter().filter(|to| to.group == group).map(|to| to.mac).collect();
            let to = same[self.random.below(same.len() as u64) as usize];
            let Some(daemon) = &self.hosts[at].daemon else { continue };
            let all = self.arrivals((from, at), None, &daemon.tunnel, &hosts);
            if is_quiet {
                self.check_all((from, at), &all);
            }
            let one = self.arrivals((from, at), Some(to), &daemon.tunnel, &hosts);
            for (port, count) in all.iter().chain(&one) {
                if *count > 1 {
                    self.fail(&format!("a frame of guest {from} at h{at} comes {count} times to port {port:?}"));
                }
            }
            self.sent += 2;
            self.arrived += (all.len() + one.len()) as u64;
        }
    }

    fn hosts_by_address(&self) -> BTreeMap<IpAddr, Vec<usize>> {
        let mut hosts: BTreeMap<IpAddr, Vec<usize>> = BTreeMap::new();
        for (n, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.daemon.is_some()) {
            hosts.entry(host.address).or_default().push(n);
        }
        hosts
    }

    /// How often a frame of a guest comes to each port. `None`: it is for all.
    fn arrivals(
        &self,
        (from, at): Port,
        to: Option<Mac>,
        tunnel: &Tunnel,
        hosts: &BTreeMap<IpAddr, Vec<usize>>,
    ) -> BTreeMap<Port, u32> {
        let mut arrivals = BTreeMap::new();
        let group = self.guests[from].group;
        let mut come = |host: usize| {
            for port in self.ports(host, group, to).filter(|port| *port != (at, from)) {
                *arrivals.entry(port).or_default() += 1;
            }
        };
        come(at);
        let vni = tunnel.groups.get(&self.groups[group]).filter(|vni| !tunnel.left.contains(vni));
        let Some(vni) = vni else { return arrivals };
        let told = to.and_then(|mac| tunnel.table.get(&(*vni, mac)));
        let is_here = to.is_some_and(|mac| self.guests.iter().any(|guest| guest.mac == mac && guest.at == Some(at)));
        let flood = tunnel.flood.iter().filter(|(of, _)| of == vni).map(|(_, hop)| hop);
        let hops: Vec<_> = match told {
            _ if is_here => Vec::new(),
            Some(hop) => vec![hop],
            None => flood.collect(),
        };
        for hop in hops {
            let address = tunnel.hops[hop].address;
            for &other in hosts.get(&address).into_iter().flatten() {
                let other_tunnel = &self.hosts[other].daemon.as_ref().unwrap().tunnel;
                // It takes frames of its hops only.
                if !other_tunnel.hops.values().any(|peer| peer.address == self.hosts[at].address) {
                    continue;
                }
                let Some(name) = other_tunnel.group(*vni) else { continue };
                if *name != self.groups[group] {
                    if self.is_mistaken(at) || self.is_mistaken(other) {
                        continue;
                    }
                    self.fail(&format!("a frame of guest {from} at h{at} reaches the group {name} of h{other}"));
                }
                come(other);
            }
        }
        arrivals
    }

    /// The ports at a host to which its switch sends a frame: that of the guest if it knows it, else all of the group.
    fn ports(&self, host: usize, group: usize, to: Option<Mac>) -> impl Iterator<Item = Port> {
        let is_port = move |guest: &super::Guest| {
            guest.group == group && (guest.at == Some(host) || guest.expected_at == Some(host))
        };
        let known = to.filter(|mac| self.guests.iter().any(|guest| guest.mac == *mac && is_port(guest)));
        let guests = self.guests.iter().enumerate().filter(move |(_, guest)| is_port(guest));
        guests.filter(move |(_, guest)| known.is_none_or(|mac| guest.mac == mac)).map(move |(n, _)| (host, n))
    }

    fn check_all(&self, (from, at): Port, arrivals: &BTreeMap<Port, u32>) {
        let group = self.guests[from].group;
        for (n, guest) in self.guests.iter().enumerate().filter(|(n, guest)| *n != from && guest.group == group) {
            let Some(host) = guest.at.filter(|host| self.hosts[*host].daemon.is_some()) else { continue };
            if !arrivals.contains_key(&(host, n)) {
                self.fail(&format!("a frame for all of guest {from} at h{at} does not come to guest {n} at h{host}"));
            }
        }
    }
}
