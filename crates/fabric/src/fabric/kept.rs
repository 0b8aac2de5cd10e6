//! The last known state, for the next start of the daemon: it forwards by that while etcd is out of reach.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nicety_adapter::Time;
use nicety_frame::{Mac, Vni};
use serde::{Deserialize, Serialize};

use crate::Me;
use crate::fabric::config::Config;
use crate::fabric::course::Course;
use crate::fabric::group::Claim;
use crate::fabric::{Fabric, Settings};
use crate::hosts::{Known, Tenure};
use crate::record::{HostRecord, Name};
use crate::store::Scope;

/// The last known state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    fabric: String,
    host: Name,
    /// Its tunnel's address.
    address: IpAddr,
    run: u64,
    is_admitted: bool,
    newest: i64,
    config: Option<(i64, String)>,
    /// Its network identifiers that a newer version has taken away from their groups.
    #[serde(default)]
    left: BTreeSet<u32>,
    hosts: Vec<KeptHost>,
    groups: Vec<KeptGroup>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptHost {
    name: Name,
    record: HostRecord,
    modified: i64,
    /// The tunnel addresses that it claims, and the revisions at which the keys were made.
    addresses: Vec<(IpAddr, i64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptGroup {
    name: Name,
    claims: Vec<KeptClaim>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptClaim {
    mac: [u8; 6],
    host: Name,
    port: Name,
    sequence: u64,
    modified: i64,
}

impl Kept {
    /// Whether it is of this host of this fabric.
    pub fn is_of(&self, fabric: &Name, host: &Name) -> bool {
        self.fabric == crate::Keys::new(fabric).prefix() && self.host == *host
    }

    /// Network identifiers that the tunnel leaves: see [`Action::Leave`](crate::Action::Leave).
    pub fn left(&self) -> BTreeSet<Vni> {
        self.left.iter().filter_map(|number| Vni::new(*number)).collect()
    }

    /// The text of the configuration that was in force.
    pub fn config(&self) -> Option<&str> {
        self.config.as_ref().map(|(_, text)| text.as_str())
    }
}

impl Fabric {
    /// The state to keep.
    pub fn keep(&self) -> Kept {
        let host = |(_, host): (_, &crate::hosts::Host)| {
            let Known { record, modified, .. } = host.known()?.clone();
            let addresses = host.tenures().map(|(address, tenure)| (address, tenure.created)).collect();
            Some(KeptHost { name: host.name.clone(), record, modified, addresses })
        };
        let claims = |group: &crate::fabric::group::Group| {
            let claim = |(&(mac, hop), claim): (&(Mac, _), &Claim)| {
                let host = self.hosts.get(hop)?.name.clone();
                let Claim { sequence, modified, ref port, .. } = *claim;
                Some(KeptClaim { mac: mac.0, host, port: port.clone(), sequence, modified })
            };
            group.claims.iter().filter_map(claim).collect()
        };
        let groups = self.groups.iter().filter(|(_, group)| group.is_needed);
        // A daemon may be killed again before it has applied what it had known.
        let config = self.configs.in_force.as_ref().or(self.configs.last_known.as_ref());
        Kept {
            fabric: self.keys.prefix().to_owned(),
            host: self.me.host.clone(),
            address: self.me.address,
            run: self.run,
            is_admitted: self.is_admitted,
            newest: self.newest,
            config: config.map(|(revision, config)| (*revision, config.text.clone())),
            left: self.configs.left.iter().map(|vni| vni.number()).collect(),
            hosts: self.hosts.all().filter_map(host).collect(),
            groups: groups.map(|(name, group)| KeptGroup { name: name.clone(), claims: claims(group) }).collect(),
        }
    }

    /// Of a host that goes on where the last run of its daemon has stopped: with its run. `settings.run` is for a state of another host or
    /// fabric, of which nothing is taken. It is also for one of another tunnel address: this may be a copy of the machine, so it waits until
    /// the lease of that run has ended. It takes a new lease: keys of ports that are gone end with the old one.
    /// `is_in_force`: the daemon has applied the configuration that was kept, so all addresses are told at once.
    pub fn resume(settings: Settings, kept: Kept, is_in_force: bool, now: Time) -> Self {
        if !kept.is_of(&settings.fabric, &settings.me.host) {
            return Self::new(settings, now);
        }
        let Me { host: me, address, .. } = settings.me.clone();
        let is_same = kept.address == address;
        let settings = Settings { run: if is_same { kept.run } else { settings.run }, ..settings };
        let (lease, left) = (settings.terms.lease, kept.left());
        let mut fabric = Self::empty(settings, now);
        // No other host knows it at another address.
        fabric.is_admitted = kept.is_admitted && is_same;
        fabric.newest = kept.newest;
        fabric.adopt_at = Some(now.after(lease));
        let hosts = kept.hosts.into_iter().filter(|host| host.name != me);
        for KeptHost { name, record, modified, addresses } in hosts {
            let Some(hop) = fabric.hosts.intern(&name) else { continue };
            fabric.hosts.set(hop, Some(Known { record, modified, since: now, gone_at: None }));
            for (address, created) in addresses {
                // One that is left out here is left out again when it is read.
                let _left_out = fabric.hosts.claim(hop, address, Some(Tenure { created, gone_at: None }));
            }
        }
        for KeptGroup { name, claims } in kept.groups {
            fabric.need(&name, now);
            for KeptClaim { mac, host, port, sequence, modified } in claims {
                let claim = Claim { sequence, modified, gone_at: None, port };
                fabric.put_back(&name, Mac(mac), &host, claim);
            }
            fabric.courses.insert(Scope::Group(name.clone()), Course::kept(now));
        }
        for scope in [Scope::Config, Scope::Hosts] {
            fabric.follow(scope.clone(), now);
            fabric.courses.insert(scope, Course::kept(now));
        }
        fabric.show_all_hosts();
        fabric.leave_networks(left);
        if let Some((revision, text)) = kept.config
            && let Ok(config) = Config::parse(text.as_bytes())
        {
            fabric.configs.revision = revision;
            if is_in_force {
                fabric.put_in_force(revision, config);
            } else {
                fabric.configs.last_known = Some((revision, config.clone()));
                fabric.configs.next = Some((revision, config));
                fabric.offer(now);
            }
        }
        fabric.tick(now);
        fabric
    }
}
