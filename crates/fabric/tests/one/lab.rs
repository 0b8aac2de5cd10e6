//! A few hosts, and a store that answers at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use nicety_adapter::Time;
use nicety_fabric::{
    Action, Connection, Event, Fabric, Hop, Key, Keys, Me, Name, Op, Peer, Scope, Settings, Terms, Transaction,
    Trouble, Waiting, WatchId,
};
use nicety_frame::{Mac, Vni};

use crate::store::{Change, Store};

pub const SECOND: u64 = 1_000_000_000;
pub const TEXT: &str = "format = 1\n[[port_group]]\nname = \"web\"\nvni = 5\n[[port_group]]\nname = \"db\"\nvni = 6\n";

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

pub struct Host {
    pub fabric: Fabric,
    pub watches: BTreeMap<WatchId, (Vec<u8>, i64)>,
    pub hops: BTreeMap<Hop, Peer>,
    pub table: BTreeMap<(Vni, Mac), Hop>,
    pub flood: BTreeSet<(Vni, Hop)>,
    pub moved: Vec<(Mac, Name)>,
    pub offered: Vec<i64>,
    pub transactions: usize,
    /// Why the daemon refuses each configuration.
    pub refuses: Option<&'static str>,
    /// Why the daemon cannot apply a configuration yet.
    pub delays: Option<&'static str>,
    /// Networks that its tunnel leaves.
    pub left: BTreeSet<Vni>,
    pub is_cut: bool,
    /// Its watches tell later.
    pub is_late: bool,
    /// Only the watch of this scope is in time.
    pub in_time: Option<Scope>,
    /// Its next transaction is carried out, and the answer is lost.
    pub loses_answer: bool,
    /// All addresses that its tunnel was ever told.
    pub told: BTreeSet<IpAddr>,
}

impl Host {
    fn new(fabric: Fabric) -> Self {
        Self {
            fabric,
            watches: BTreeMap::new(),
            hops: BTreeMap::new(),
            table: BTreeMap::new(),
            flood: BTreeSet::new(),
            moved: Vec::new(),
            offered: Vec::new(),
            transactions: 0,
            refuses: None,
            delays: None,
            left: BTreeSet::new(),
            is_cut: false,
            is_late: false,
            in_time: None,
            loses_answer: false,
            told: BTreeSet::new(),
        }
    }
}

/// A host's value.
pub fn record(address: &str, run: u64) -> String {
    format!(r#"{{"address":"{address}","mtu":1500,"run":"{run:016x}","version":"x"}}"#)
}

/// All hosts, and a store that answers at once.
pub struct Lab {
    pub store: Store,
    pub hosts: Vec<Host>,
    pub now: u64,
}

pub fn prefix(scope: &Scope) -> Vec<u8> {
    let keys = Keys::new(&name("lab"));
    match scope {
        Scope::Config => keys.text(&Key::Config),
        Scope::Hosts => keys.hosts(),
        Scope::Group(group) => keys.group(group),
    }
    .into_bytes()
}

impl Lab {
    pub fn new(hosts: &[(&str, &str)]) -> Self {
        let mut lab = Self { store: Store::new(10 * SECOND), hosts: Vec::new(), now: SECOND };
        lab.write("config", TEXT);
        hosts.iter().for_each(|(host, address)| lab.add(host, address));
        lab
    }

    pub fn add(&mut self, host: &str, address: &str) {
        let number = self.hosts.len() as u64;
        let me = Me { host: name(host), address: address.parse().unwrap(), mtu: 1500, version: "0.1.0".to_owned() };
        let settings = Settings { fabric: name("lab"), me, run: 100 + number, seed: number, terms: Terms::default() };
        self.hosts.push(Host::new(Fabric::new(settings, Time(self.now))));
        self.settle();
    }

    pub fn write(&mut self, key: &str, value: &str) {
        let key = format!("/nicety/fabrics/lab/{key}");
        self.carry_out(&Transaction {
            compares: Vec::new(),
            ops: vec![Op::Put { key, value: value.to_owned(), lease: 0 }],
            otherwise: None,
        });
    }

    /// Another host's keys.
    pub fn registers(&mut self, host: &str, address: &str, run: u64) {
        self.write(&format!("host/{host}/{address}"), "{}");
        self.write(&format!("host/{host}"), &record(address, run));
    }

    pub fn delete(&mut self, key: &str) {
        let key = format!("/nicety/fabrics/lab/{key}");
        self.carry_out(&Transaction { compares: Vec::new(), ops: vec![Op::Delete { key }], otherwise: None });
    }

    pub fn carry_out(&mut self, transaction: &Transaction) -> bool {
        let is_done = self.store.transact(transaction).unwrap().is_done;
        self.settle();
        is_done
    }

    /// Plays until nobody has anything to do.
    pub fn settle(&mut self) {
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            self.store.expire(self.now);
            for at in 0..self.hosts.len() {
                while let Some(action) = self.hosts[at].fabric.action() {
                    is_quiet = false;
                    self.act(at, action);
                }
                let upto = self.store.revision;
                let host = &mut self.hosts[at];
                let mut events = Vec::new();
                let in_time = host.in_time.as_ref().map(prefix);
                let is_heard = |of: &[u8]| !host.is_cut && (!host.is_late || in_time.as_deref() == Some(of));
                for (&watch, (prefix, due)) in host.watches.iter_mut().filter(|(_, (of, _))| is_heard(of)) {
                    let changes = self.store.changes(*due, upto);
                    for change in changes.iter().filter(|change| change.key().starts_with(prefix)) {
                        events.push(match change.clone() {
                            Change::Put(entry) => Event::Put { watch, entry },
                            Change::Delete { key, revision } => Event::Delete { watch, key, revision },
                        });
                    }
                    *due = upto + 1;
                }
                is_quiet &= events.is_empty();
                events.into_iter().for_each(|event| host.fabric.event(event, Time(self.now)));
            }
        }
    }

    pub fn act(&mut self, at: usize, action: Action) {
        let now = self.now;
        let is_cut = self.hosts[at].is_cut;
        let host = &mut self.hosts[at];
        let lost = || Trouble::Failed("no answer within 1 s".to_owned());
        let event = match action {
            Action::Read { call, scope } => {
                let found = self.store.read(&prefix(&scope));
                Event::Read { call, result: if is_cut { Err(lost()) } else { Ok(found) } }
            }
            Action::Watch { watch, scope, from } => {
                host.watches.insert(watch, (prefix(&scope), from));
                Event::InTouch { watch, revision: self.store.revision }
            }
            Action::Unwatch { watch } => {
                host.watches.remove(&watch);
                return;
            }
            Action::Grant { call, .. } => {
                Event::Granted { call, result: if is_cut { Err(lost()) } else { Ok(self.store.grant(now)) } }
            }
            Action::Renew { call, lease } => {
                let result = if is_cut { Err(lost()) } else { self.store.renew(lease, now) };
                Event::Renewed { call, result }
            }
            Action::Revoke { lease } => return self.store.revoke(lease),
            Action::Transact { call, transaction } => {
                host.transactions += 1;
                let result = if is_cut { Err(lost()) } else { self.store.transact(&transaction) };
                let is_lost = std::mem::take(&mut host.loses_answer);
                let result = if is_lost { Err(lost()) } else { result };
                Event::Transacted { call, result }
            }
            Action::Config { revision, .. } => {
                host.offered.push(revision);
                if let Some(why) = host.delays {
                    return host.fabric.delayed(revision, why, Time(now));
                }
                let result = host.refuses.map_or(Ok(()), |why| Err(why.to_owned()));
                return host.fabric.applied(revision, result, Time(now));
            }
            Action::Leave { vnis } => {
                host.left = vnis;
                return;
            }
            Action::Hop { hop, peer: Some(peer) } => {
                let is_taken = host.hops.iter().any(|(of, known)| *of != hop && known.address == peer.address);
                assert!(!is_taken, "two hosts are told with the address {}", peer.address);
                host.told.insert(peer.address);
                // The tunnel does the same: told addresses are behind a host's address.
                if host.hops.insert(hop, peer).is_some_and(|before| before.address != peer.address) {
                    host.table.retain(|_, of| *of != hop);
                }
                return;
            }
            Action::Hop { hop, peer: None } => {
                host.hops.remove(&hop);
                return;
            }
            Action::Tell { vni, mac, hop } => {
                host.table.insert((vni, mac), hop);
                return;
            }
            Action::Forget { vni, mac } => {
                host.table.remove(&(vni, mac));
                return;
            }
            Action::Moved { mac, to, .. } => return host.moved.push((mac, to)),
            Action::Flood { vni, hop, is_on } => {
                let is_new = if is_on { host.flood.insert((vni, hop)) } else { host.flood.remove(&(vni, hop)) };
                assert!(is_new, "told twice");
                return;
            }
        };
        host.fabric.event(event, Time(now));
    }

    /// Lets time pass.
    pub fn wait(&mut self, duration: Duration) {
        let end = self.now + duration.as_nanos() as u64;
        loop {
            let at = self.hosts.iter().filter_map(|host| host.fabric.wake_at()).map(|at| at.0).min();
            self.now = at.unwrap_or(end).clamp(self.now + 1, end);
            for host in &mut self.hosts {
                host.fabric.tick(Time(self.now));
            }
            self.settle();
            if self.now >= end {
                return;
            }
        }
    }

    pub fn started(&mut self, at: usize, group: &str, last: u8) {
        let now = Time(self.now);
        self.hosts[at].fabric.started(&name(group), mac(last), &name("vm"), now);
        self.settle();
    }

    pub fn waits(&mut self, at: usize, last: u8, waiting: Waiting) {
        let now = Time(self.now);
        self.hosts[at].fabric.waits(&name("web"), mac(last), &name("vm"), waiting, now);
        self.settle();
    }

    pub fn learned(&mut self, at: usize, last: u8) {
        let now = Time(self.now);
        self.hosts[at].fabric.learned(&name("web"), mac(last), &name("vm"), now);
        self.settle();
    }

    /// A daemon that begins with the last known state of this host, and with this tunnel address.
    fn resumed(&self, at: usize, address: &str) -> Fabric {
        let of = name(["a", "b", "c"][at]);
        let me = Me { host: of, address: address.parse().unwrap(), mtu: 1500, version: "0.1.0".to_owned() };
        let settings = Settings { fabric: name("lab"), me, run: 900, seed: 9, terms: Terms::default() };
        Fabric::resume(settings, self.hosts[at].fabric.keep(), true, Time(self.now))
    }

    /// A machine is copied with the last known state of its daemon, and the copy begins with this tunnel address.
    pub fn copy(&mut self, of: usize, address: &str) {
        self.hosts.push(Host::new(self.resumed(of, address)));
        self.settle();
    }

    /// The daemon of a host ends, and another one begins with this tunnel address.
    pub fn restart(&mut self, at: usize, address: &str) {
        let lease = self.hosts[at].fabric.lease();
        lease.into_iter().for_each(|lease| self.store.revoke(lease));
        self.again(at, address);
    }

    /// The daemon of a host is replaced by another one, or is killed and begins again, with this tunnel address.
    pub fn again(&mut self, at: usize, address: &str) {
        let fabric = self.resumed(at, address);
        let host = &mut self.hosts[at];
        host.fabric = fabric;
        (host.watches, host.hops, host.table, host.flood) = Default::default();
        (host.flood, host.left) = Default::default();
        self.settle();
    }

    /// The other hosts that a host knows, and whether it reaches them.
    pub fn reached(&self, at: usize) -> Vec<(String, String, bool)> {
        let hosts = self.hosts[at].fabric.report(Time(self.now)).hosts;
        hosts.into_iter().map(|host| (host.name.to_string(), host.address.to_string(), host.is_reached)).collect()
    }

    pub fn cut(&mut self, at: usize, is_cut: bool) {
        let now = Time(self.now);
        let host = &mut self.hosts[at];
        host.is_cut = is_cut;
        for watch in host.watches.keys().copied().collect::<Vec<_>>() {
            let event = if is_cut {
                Event::Broken { watch, why: "no answer within 1 s".to_owned() }
            } else {
                Event::InTouch { watch, revision: self.store.revision }
            };
            host.fabric.event(event, now);
        }
        self.settle();
    }

    pub fn connection(&self, at: usize) -> Connection {
        self.hosts[at].fabric.report(Time(self.now)).connection
    }

    pub fn refused(&self, at: usize) -> Vec<String> {
        self.hosts[at].fabric.report(Time(self.now)).refused
    }

    /// Where a host's tunnel sends frames for an address.
    pub fn to(&self, at: usize, vni: u32, last: u8) -> Option<String> {
        let hop = self.hosts[at].table.get(&(Vni::new(vni)?, mac(last)))?;
        Some(self.hosts[at].hops[hop].address.to_string())
    }

    pub fn keys(&self) -> Vec<String> {
        let found = self.store.read(b"/nicety/fabrics/lab/").entries;
        found
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.key)["/nicety/fabrics/lab/".len()..].to_owned())
            .collect()
    }
}

pub fn pair() -> Lab {
    let mut lab = Lab::new(&[("a", "192.0.2.1"), ("b", "192.0.2.2")]);
    let now = Time(lab.now);
    let groups = BTreeSet::from([name("web")]);
    lab.hosts.iter_mut().for_each(|host| host.fabric.needs(&groups, now));
    lab.settle();
    lab
}
