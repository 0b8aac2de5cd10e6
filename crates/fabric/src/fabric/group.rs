//! A group of the fabric: who claims which address, and what the tunnel was told of that.

pub(crate) mod own;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use nicety_adapter::Time;
use nicety_frame::{Mac, Vni};

use crate::fabric::Fabric;
use crate::fabric::course::Course;
use crate::hosts::{Hop, Host, Hosts, Known, Peer};
use crate::record::{CARRIED, ClaimRecord, HostRecord, Name};
use crate::store::{Entry, Scope};
use crate::{Action, CLAIMS_MAX, earlier};
use own::{Own, WAITING_MAX, Waiting};

/// Another host's claim.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) sequence: u64,
    pub(crate) modified: i64,
    /// The key has vanished while the store was out of reach. It is believed gone then.
    pub(crate) gone_at: Option<Time>,
    pub(crate) port: Name,
}

/// See the file's page.
#[derive(Debug, Default)]
pub(crate) struct Group {
    vni: Option<Vni>,
    /// Ports of this host are in it, or an uplink carries its VLAN.
    pub(crate) is_needed: bool,
    pub(crate) claims: BTreeMap<(Mac, Hop), Claim>,
    /// The claims of each host.
    counts: BTreeMap<Hop, u32>,
    /// The addresses and hosts that were told to the tunnel.
    pub(crate) told: BTreeMap<Mac, Hop>,
    pub(crate) flooded: BTreeSet<Hop>,
    /// Addresses of this host.
    pub(crate) own: BTreeMap<Mac, Own>,
    /// Own keys that differ from what they should be: of ports, and of what guests can make up.
    pub(crate) urgent: BTreeSet<Mac>,
    pub(crate) slow: BTreeSet<Mac>,
    /// Addresses that are claimed once the group is read.
    pub(crate) unread: BTreeSet<Mac>,
}

impl Group {
    pub(crate) fn vni(&self) -> Option<Vni> {
        self.vni
    }

    /// All claims of an address.
    pub(crate) fn of(&self, mac: Mac) -> impl Iterator<Item = (Hop, &Claim)> {
        self.claims.range((mac, Hop(0))..=(mac, Hop(u16::MAX))).map(|(&(_, hop), claim)| (hop, claim))
    }

    /// The claim of another host that counts: one of a guest that runs before one that waits. Of these, one whose key is there before one
    /// that has vanished.
    pub(crate) fn best(&self, mac: Mac, hosts: &Hosts) -> Option<(Hop, &Claim)> {
        let reachable = self.of(mac).filter(|(hop, _)| hosts.get(*hop).is_some_and(|host| host.peer.is_some()));
        let runs = |claim: &Claim| claim.sequence > WAITING_MAX;
        reachable.max_by_key(|(_, claim)| (runs(claim), claim.gone_at.is_none(), claim.sequence, claim.modified))
    }

    /// Changes the number. Nothing is told of the old one any more.
    pub(crate) fn set_vni(&mut self, vni: Option<Vni>, actions: &mut VecDeque<Action>) {
        if let Some(vni) = self.vni {
            actions.extend(std::mem::take(&mut self.told).into_keys().map(|mac| Action::Forget { vni, mac }));
            let flooded = std::mem::take(&mut self.flooded);
            actions.extend(flooded.into_iter().map(|hop| Action::Flood { vni, hop, is_on: false }));
        }
        self.vni = vni;
    }

    /// Tells the tunnel where an address is, if that has changed.
    pub(crate) fn show(&mut self, mac: Mac, hosts: &Hosts, is_admitted: bool, actions: &mut VecDeque<Action>) {
        let Some(vni) = self.vni.filter(|_| mac != CARRIED) else { return };
        let is_here = self.own.get(&mac).is_some_and(Own::is_here);
        let hop = if is_here || !is_admitted { None } else { self.best(mac, hosts).map(|(hop, _)| hop) };
        match hop {
            Some(hop) if self.told.insert(mac, hop) != Some(hop) => actions.push_back(Action::Tell { vni, mac, hop }),
            None if self.told.remove(&mac).is_some() => actions.push_back(Action::Forget { vni, mac }),
            Some(_) | None => {}
        }
    }

    /// Tells the tunnel whether a host has the group, if that has changed.
    pub(crate) fn show_host(&mut self, hop: Hop, hosts: &Hosts, is_admitted: bool, actions: &mut VecDeque<Action>) {
        let Some(vni) = self.vni else { return };
        let is_reachable = hosts.get(hop).is_some_and(|host| host.peer.is_some());
        let is_on = is_admitted && is_reachable && self.counts.contains_key(&hop);
        let is_new = if is_on { self.flooded.insert(hop) } else { self.flooded.remove(&hop) };
        if is_new {
            actions.push_back(Action::Flood { vni, hop, is_on });
        }
    }

    /// All that concerns one host.
    fn show_all_of(&mut self, of: Hop, hosts: &Hosts, is_admitted: bool, actions: &mut VecDeque<Action>) {
        self.show_host(of, hosts, is_admitted, actions);
        let macs: Vec<Mac> = self.claims.keys().filter(|(_, hop)| *hop == of).map(|(mac, _)| *mac).collect();
        for mac in macs {
            self.show(mac, hosts, is_admitted, actions);
        }
    }

    /// All.
    pub(crate) fn show_all(&mut self, hosts: &Hosts, is_admitted: bool, actions: &mut VecDeque<Action>) {
        let hops: BTreeSet<Hop> = self.counts.keys().chain(&self.flooded).copied().collect();
        let macs: BTreeSet<Mac> = self.claims.keys().map(|(mac, _)| *mac).chain(self.told.keys().copied()).collect();
        for hop in hops {
            self.show_host(hop, hosts, is_admitted, actions);
        }
        for mac in macs {
            self.show(mac, hosts, is_admitted, actions);
        }
    }

    /// Whether nothing is to be kept of it.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_needed && self.own.is_empty()
    }
}

impl Fabric {
    /// The groups in which this host has ports, or whose VLAN an uplink carries. Only these are watched.
    pub fn needs(&mut self, groups: &BTreeSet<Name>, now: Time) {
        let known: Vec<Name> = self.groups.keys().cloned().collect();
        for name in known.iter().filter(|name| !groups.contains(*name)) {
            self.leave_group(name, now);
        }
        for name in groups {
            self.need(name, now);
        }
        self.tick(now);
    }

    /// An uplink of this host carries the VLAN of a group that it [needs](Self::needs): frames for all of the group go here also if no guest of
    /// it is here. `None`: no uplink carries it any more.
    pub fn carried(&mut self, group: &Name, uplink: Option<&Name>, now: Time) {
        match uplink {
            // Several hosts may have such a claim, and none overtakes another one.
            Some(uplink) => self.waits(group, CARRIED, uplink, Waiting::Expected, now),
            None => self.stopped(group, CARRIED, now),
        }
    }

    pub(crate) fn need(&mut self, name: &Name, now: Time) {
        let group = self.groups.entry(name.clone()).or_default();
        if std::mem::replace(&mut group.is_needed, true) {
            return;
        }
        group.vni = self.configs.in_force.as_ref().and_then(|(_, config)| config.groups.get(name).copied());
        self.follow(Scope::Group(name.clone()), now);
    }

    fn leave_group(&mut self, name: &Name, now: Time) {
        let Some(group) = self.groups.get_mut(name).filter(|group| group.is_needed) else { return };
        group.is_needed = false;
        group.set_vni(None, &mut self.actions);
        let claims = std::mem::take(&mut group.claims);
        group.counts.clear();
        let wanted: Vec<Mac> = group.own.keys().copied().collect();
        self.claims -= claims.len();
        let mut hops = BTreeSet::new();
        for (_, hop) in claims.into_keys() {
            if let Some(host) = self.hosts.get_mut(hop) {
                host.claims -= 1;
                hops.insert(hop);
            }
        }
        hops.into_iter().for_each(|hop| self.hosts.release(hop));
        self.unfollow(&Scope::Group(name.clone()));
        for mac in wanted {
            self.give_up(name, mac, now);
        }
        self.groups.retain(|_, group| !group.is_empty());
    }

    /// A claim's key is there.
    pub(crate) fn claim_is(
        &mut self,
        group: &Name,
        host: &Name,
        mac: Mac,
        entry: &Entry,
        now: Time,
    ) -> Result<(), String> {
        let record = ClaimRecord::parse(&entry.value);
        if *host == self.me.host {
            match &record {
                Ok(record) => self.own_key_is(group, mac, record, entry, now),
                // Somebody has damaged it: it is written again.
                Err(_) => self.own_key_is_gone(group, mac, entry.modified),
            }
            return record.map(drop);
        }
        let record = record?;
        let Some(of) = self.groups.get_mut(group).filter(|group| group.is_needed) else { return Ok(()) };
        let known = self.hosts.find(host).filter(|&hop| of.claims.contains_key(&(mac, hop)));
        if known.is_none() && self.claims >= CLAIMS_MAX {
            self.crowded.insert(Scope::Group(group.clone()));
            return Err(format!("there are more than {CLAIMS_MAX} claims: this one is left out"));
        }
        let scope = Scope::Group(group.clone());
        let hop = known.map_or_else(|| self.intern(host, &scope), Ok)?;
        let ClaimRecord { port, sequence } = record;
        let claim = Claim { sequence, modified: entry.modified, gone_at: None, port };
        self.put_claim(group, mac, hop, claim);
        self.overtake(group, mac, now);
        self.show(group, mac);
        Ok(())
    }

    /// A claim of the state that was kept.
    pub(crate) fn put_back(&mut self, group: &Name, mac: Mac, host: &Name, claim: Claim) {
        if let Some(hop) = self.hosts.intern(host) {
            self.put_claim(group, mac, hop, claim);
        }
    }

    fn put_claim(&mut self, group: &Name, mac: Mac, hop: Hop, claim: Claim) {
        let Some(of) = self.groups.get_mut(group) else { return };
        if of.claims.insert((mac, hop), claim).is_none() {
            self.claims += 1;
            *of.counts.entry(hop).or_default() += 1;
            if let Some(host) = self.hosts.get_mut(hop) {
                host.claims += 1;
            }
            of.show_host(hop, &self.hosts, self.is_admitted, &mut self.actions);
        }
    }

    /// A claim's key was deleted at a revision, and is believed gone then.
    pub(crate) fn claim_is_gone(
        &mut self,
        group: &Name,
        host: &Name,
        mac: Mac,
        (revision, gone_at): (i64, Option<Time>),
        now: Time,
    ) {
        if *host == self.me.host {
            return self.own_key_is_gone(group, mac, revision);
        }
        let Some(hop) = self.hosts.find(host) else { return };
        match gone_at {
            None => self.drop_claim(group, mac, hop),
            Some(at) => self.claim_vanishes(group, mac, hop, at),
        }
        self.overtake(group, mac, now);
        self.show(group, mac);
    }

    fn claim_vanishes(&mut self, group: &Name, mac: Mac, hop: Hop, at: Time) {
        let claim = self.groups.get_mut(group).and_then(|group| group.claims.get_mut(&(mac, hop)));
        if let Some(claim) = claim.filter(|claim| claim.gone_at.is_none()) {
            claim.gone_at = Some(at);
            self.vanish_at = earlier(self.vanish_at, Some(at));
        }
    }

    fn drop_claim(&mut self, name: &Name, mac: Mac, hop: Hop) {
        let Some(group) = self.groups.get_mut(name) else { return };
        if group.claims.remove(&(mac, hop)).is_none() {
            return;
        }
        self.claims -= 1;
        if let Some(count) = group.counts.get_mut(&hop) {
            *count -= 1;
            if *count == 0 {
                group.counts.remove(&hop);
                group.show_host(hop, &self.hosts, self.is_admitted, &mut self.actions);
            }
        }
        if let Some(host) = self.hosts.get_mut(hop) {
            host.claims -= 1;
        }
        self.hosts.release(hop);
    }

    /// Claims of a group that are known and not there any more.
    pub(crate) fn claims_vanished(&mut self, name: &Name, is_there: impl Fn(&crate::Key) -> bool, at: Time, now: Time) {
        let Some(group) = self.groups.get(name) else { return };
        let key = |host: &Name, mac| crate::Key::At { group: name.clone(), host: host.clone(), mac };
        let is_lost = |(mac, hop): &(Mac, Hop)| match self.hosts.get(*hop) {
            Some(host) => !is_there(&key(&host.name, *mac)),
            None => true,
        };
        let lost: Vec<(Mac, Hop)> = group.claims.keys().filter(|claim| is_lost(claim)).copied().collect();
        let own: Vec<Mac> = group.own.keys().filter(|mac| !is_there(&key(&self.me.host, **mac))).copied().collect();
        let revision = self.courses.get(&Scope::Group(name.clone())).map_or(0, |course| course.revision);
        for (mac, hop) in lost {
            self.claim_vanishes(name, mac, hop, at);
            self.overtake(name, mac, now);
            self.show(name, mac);
        }
        for mac in own {
            self.own_key_is_gone(name, mac, revision);
        }
    }

    /// A host's key is there.
    pub(crate) fn host_is(&mut self, name: &Name, entry: &Entry, now: Time) -> Result<(), String> {
        let modified = entry.modified;
        self.standing.are_hosts_new = true;
        if *name == self.me.host && self.is_spoiled(entry) {
            return self.own_host_key_is_spoiled(entry, now);
        }
        let record = HostRecord::parse(&entry.value)?;
        if *name == self.me.host {
            if self.standing.registered() == Some(entry.lease) {
                self.standing.registered_at = self.standing.registered_at.max(modified);
            }
            self.hosts.mine = Some(Known { record, modified, since: now, gone_at: None });
            return Ok(());
        }
        let hop = self.intern(name, &Scope::Hosts)?;
        let old = self.hosts.get(hop).and_then(Host::known).filter(|old| old.record.run == record.run);
        let since = old.map_or(now, |old| old.since);
        self.hosts.set(hop, Some(Known { record, modified, since, gone_at: None }));
        self.show_hosts(BTreeSet::from([hop]));
        Ok(())
    }

    /// A host's key was deleted, and is believed gone then.
    pub(crate) fn host_is_gone(&mut self, name: &Name, gone_at: Option<Time>, now: Time) {
        self.standing.are_hosts_new = true;
        if *name == self.me.host {
            self.hosts.mine = None;
            self.register_again(now);
            return;
        }
        let Some(known) = self.hosts.find(name).and_then(|hop| self.hosts.gone_at(hop)) else { return };
        let at = *known.get_or_insert(gone_at.unwrap_or(now));
        self.vanish_at = earlier(self.vanish_at, Some(at));
        if gone_at.is_none() {
            self.vanish(now);
        }
    }

    /// Hosts that are known and not there any more.
    pub(crate) fn hosts_vanished(&mut self, is_there: impl Fn(&crate::Key) -> bool, at: Time, now: Time) {
        let known = self.hosts.all().filter(|(_, host)| host.known().is_some()).map(|(_, host)| host.name.clone());
        let mine = self.hosts.mine.is_some().then(|| self.me.host.clone());
        let lost = known.chain(mine).filter(|name| !is_there(&crate::Key::Host(name.clone())));
        for name in lost.collect::<Vec<_>>() {
            self.host_is_gone(&name, Some(at), now);
        }
        self.tenures_vanished(is_there, at);
        self.vanish(now);
    }

    /// The scope is heard again: what has vanished in it is there for another while.
    pub(crate) fn prolong(&mut self, scope: &Scope, until: Time) {
        match scope {
            Scope::Config => {}
            Scope::Hosts => {
                let all: Vec<Hop> = self.hosts.all().map(|(hop, _)| hop).collect();
                for hop in all {
                    prolong(self.hosts.gone_at(hop), until);
                }
                for (hop, address, _) in self.hosts.tenures().collect::<Vec<_>>() {
                    prolong(self.hosts.tenure_gone_at(hop, address), until);
                }
            }
            Scope::Group(name) => {
                let claims = self.groups.get_mut(name).into_iter().flat_map(|group| group.claims.values_mut());
                claims.for_each(|claim| prolong(Some(&mut claim.gone_at), until));
            }
        }
        self.vanish_at = earlier(self.vanish_at, Some(until));
    }

    fn is_in_touch(&self, scope: &Scope) -> bool {
        self.courses.get(scope).is_some_and(Course::is_in_touch)
    }

    /// Removes the hosts and addresses that are believed gone now. A scope that is not heard keeps all of its own: [`Fabric::prolong`] follows.
    pub(crate) fn vanish(&mut self, now: Time) {
        if self.vanish_at.is_none_or(|at| now < at) {
            return;
        }
        self.vanish_at = None;
        if self.is_in_touch(&Scope::Hosts) {
            self.vanish_hosts(now);
        }
        let names: Vec<Name> = self.groups.keys().cloned().collect();
        for name in names.into_iter().filter(|name| self.is_in_touch(&Scope::Group(name.clone()))).collect::<Vec<_>>() {
            self.vanish_claims(&name, now);
        }
    }

    fn vanish_hosts(&mut self, now: Time) {
        let gone_at = |(hop, host): (Hop, &Host)| Some((hop, host.known()?.gone_at?));
        let missing: Vec<(Hop, Time)> = self.hosts.all().filter_map(gone_at).collect();
        for (hop, at) in missing {
            if now < at {
                self.vanish_at = earlier(self.vanish_at, Some(at));
            } else {
                self.hosts.set(hop, None);
                self.standing.are_hosts_new = true;
                self.show_hosts(BTreeSet::from([hop]));
                self.hosts.release(hop);
            }
        }
        self.vanish_tenures(now);
    }

    fn vanish_claims(&mut self, name: &Name, now: Time) {
        let Some(group) = self.groups.get(name) else { return };
        let missing = group.claims.iter().filter_map(|(&key, claim)| Some((key, claim.gone_at?)));
        for ((mac, hop), at) in missing.collect::<Vec<_>>() {
            if now < at {
                self.vanish_at = earlier(self.vanish_at, Some(at));
            } else {
                self.drop_claim(name, mac, hop);
                self.show(name, mac);
            }
        }
    }

    pub(crate) fn show_all_hosts(&mut self) {
        let all = self.hosts.all().map(|(hop, _)| hop).collect();
        self.show_hosts(all);
    }

    /// These hosts may have changed. The tunnel is told once it is known whether this host may be in the fabric itself: [`Fabric::judge`].
    pub(crate) fn show_hosts(&mut self, mut concerned: BTreeSet<Hop>) {
        self.concerned.append(&mut concerned);
    }

    /// Tells the tunnel whether it may reach other hosts, if that has changed.
    pub(crate) fn tell_hosts(&mut self) {
        let concerned = std::mem::take(&mut self.concerned);
        let mine = self.me.address;
        let of = |hop| self.hosts.peer_of(hop, mine).filter(|_| self.is_admitted);
        let all = concerned.into_iter().filter_map(|hop| Some((hop, self.hosts.get(hop)?.peer, of(hop))));
        let changed: Vec<_> = all.filter(|(_, old, new)| old != new).collect();
        let taken: BTreeSet<IpAddr> = changed.iter().filter_map(|(.., new)| Some(new.as_ref()?.address)).collect();
        // An address is free before another host has it: never are two hosts told with one address.
        let leaves = |old: &Option<Peer>, new: &Option<Peer>| match (old, new) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(old), Some(new)) => old.address != new.address && taken.contains(&old.address),
        };
        for (hop, ..) in changed.iter().filter(|(_, old, new)| leaves(old, new)) {
            self.tell_host(*hop, None);
        }
        for (hop, _, new) in changed.iter().filter(|(.., new)| new.is_some()) {
            self.tell_host(*hop, *new);
        }
        changed.into_iter().for_each(|(hop, ..)| self.hosts.release(hop));
    }

    /// Tells the tunnel where a host is, or that it reaches it no more, and what follows from that.
    fn tell_host(&mut self, hop: Hop, new: Option<Peer>) {
        let Some(host) = self.hosts.get_mut(hop) else { return };
        let old = std::mem::replace(&mut host.peer, new);
        if new.is_some() {
            self.actions.push_back(Action::Hop { hop, peer: new });
        }
        let has_moved = old.zip(new).is_some_and(|(old, new)| old.address != new.address);
        if has_moved || old.is_some() != new.is_some() {
            for group in self.groups.values_mut() {
                if has_moved {
                    // The tunnel forgets what is behind an address that is no host's any more.
                    group.told.retain(|_, told| *told != hop);
                }
                group.show_all_of(hop, &self.hosts, self.is_admitted, &mut self.actions);
            }
        }
        if new.is_none() {
            self.actions.push_back(Action::Hop { hop, peer: None });
        }
    }

    pub(crate) fn show(&mut self, name: &Name, mac: Mac) {
        if let Some(group) = self.groups.get_mut(name) {
            group.show(mac, &self.hosts, self.is_admitted, &mut self.actions);
        }
    }
}

fn prolong(gone_at: Option<&mut Option<Time>>, until: Time) {
    if let Some(Some(at)) = gone_at {
        *at = until;
    }
}
