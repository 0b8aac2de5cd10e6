//! What etcd has to do for a fabric: watches, keys, bytes, calls and changes, counted by playing all hosts against a store with etcd's
//! semantics. 100 hosts and 1,000 ports; with `NICETY_FULL=1` 1,000 hosts and 10,000 ports. Figures:
//! `NICETY_FULL=1 cargo test --release -p nicety-fabric --test load -- --nocapture`.

#[allow(dead_code, reason = "it plays faults too, which this test does not need")]
#[path = "many/store.rs"]
mod store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Sub;

use nicety_adapter::Time;
use nicety_fabric::{Action, Event, Fabric, Key, Keys, Me, Name, Op, Scope, Settings, Terms, Transaction, WatchId};
use nicety_frame::Mac;
use store::{Change, Store};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
const LEASE: u64 = 10 * SECOND;
/// Ports of a host, each in another group.
const PORTS: usize = 10;
/// Ports of a group, each at another host.
const GROUP: usize = 100;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// The calls that the store has had, and the changes that it has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    reads: u64,
    read_keys: u64,
    read_bytes: u64,
    grants: u64,
    renewals: u64,
    transactions: u64,
    written: u64,
    /// Changes that watches have told, each as often as it was told.
    told: u64,
    told_bytes: u64,
}

impl Sub for Load {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            read_keys: self.read_keys - before.read_keys,
            read_bytes: self.read_bytes - before.read_bytes,
            grants: self.grants - before.grants,
            renewals: self.renewals - before.renewals,
            transactions: self.transactions - before.transactions,
            written: self.written - before.written,
            told: self.told - before.told,
            told_bytes: self.told_bytes - before.told_bytes,
        }
    }
}

struct Watcher {
    host: usize,
    watch: WatchId,
    from: i64,
}

/// All hosts, and a store that answers at once.
struct Net {
    keys: Keys,
    store: Store,
    hosts: Vec<Fabric>,
    watchers: BTreeMap<Scope, Vec<Watcher>>,
    /// Hosts that may have something to do.
    todo: VecDeque<usize>,
    /// All changes up to this revision were told.
    told: i64,
    now: u64,
    load: Load,
}

/// The place of a port: its group, and its host.
fn place(hosts: usize, port: usize) -> (usize, usize) {
    let groups = hosts * PORTS / GROUP;
    (port % groups, port / PORTS)
}

fn group(number: usize) -> Name {
    name(&format!("group-{number:03}"))
}

fn port_name(number: usize) -> Name {
    name(&format!("vm-{number:05}"))
}

fn mac(port: usize) -> Mac {
    let [.., a, b, c] = port.to_be_bytes();
    Mac([2, 0, 0, a, b, c])
}

impl Net {
    fn new(hosts: usize) -> Self {
        let fabric = name("prod");
        let keys = Keys::new(&fabric);
        let mut store = Store::new(LEASE);
        let groups = (0..hosts * PORTS / GROUP)
            .map(|n| format!("[[port_group]]\nname = \"{}\"\nvni = {}\nvlan = {}\n", group(n), n + 5000, n + 1));
        let value = format!("format = 1\n{}", groups.collect::<String>());
        let ops = vec![Op::Put { key: keys.text(&Key::Config), value, lease: 0 }];
        store.transact(&Transaction { compares: Vec::new(), ops, otherwise: None }).unwrap();
        let told = store.revision;
        let all = (0..hosts).map(|n| {
            let [.., high, low] = n.to_be_bytes();
            let (host, address) = (name(&format!("node-{n:04}")), [10, 0, high, low].into());
            let me = Me { host, address, mtu: 9000, version: "0.1.0".to_owned() };
            let settings =
                Settings { fabric: fabric.clone(), me, run: n as u64, seed: n as u64, terms: Terms::default() };
            Fabric::new(settings, Time(SECOND))
        });
        let (hosts, todo) = (all.collect(), (0..hosts).collect());
        Self { keys, store, hosts, watchers: BTreeMap::new(), todo, told, now: SECOND, load: Load::default() }
    }

    fn prefix(&self, scope: &Scope) -> Vec<u8> {
        match scope {
            Scope::Config => self.keys.text(&Key::Config),
            Scope::Hosts => self.keys.hosts(),
            Scope::Group(group) => self.keys.group(group),
        }
        .into_bytes()
    }

    fn scope_of(&self, key: &[u8]) -> Scope {
        match self.keys.parse(key).unwrap() {
            Key::Config => Scope::Config,
            Key::Host(_) | Key::Tunnel { .. } => Scope::Hosts,
            Key::At { group, .. } => Scope::Group(group),
        }
    }

    fn tell(&mut self, host: usize, watch: WatchId, change: &Change) {
        self.load.told += 1;
        let event = match change.clone() {
            Change::Put(entry) => {
                self.load.told_bytes += (entry.key.len() + entry.value.len()) as u64;
                Event::Put { watch, entry }
            }
            Change::Delete { key, revision } => {
                self.load.told_bytes += key.len() as u64;
                Event::Delete { watch, key, revision }
            }
        };
        self.hosts[host].event(event, Time(self.now));
        self.todo.push_back(host);
    }

    /// Plays until nobody has anything to do.
    fn settle(&mut self) {
        loop {
            while let Some(host) = self.todo.pop_front() {
                while let Some(action) = self.hosts[host].action() {
                    self.act(host, action);
                }
            }
            let changes = self.store.changes(self.told + 1, self.store.revision).to_vec();
            self.told = self.store.revision;
            if changes.is_empty() {
                return;
            }
            for change in changes {
                let watchers = self.watchers.remove(&self.scope_of(change.key())).unwrap_or_default();
                for Watcher { host, watch, .. } in watchers.iter().filter(|watcher| watcher.from <= change.revision()) {
                    self.tell(*host, *watch, &change);
                }
                self.watchers.insert(self.scope_of(change.key()), watchers);
            }
        }
    }

    fn act(&mut self, host: usize, action: Action) {
        let now = self.now;
        let event = match action {
            Action::Read { call, scope } => {
                let found = self.store.read(&self.prefix(&scope));
                self.load.reads += 1;
                self.load.read_keys += found.entries.len() as u64;
                let bytes = found.entries.iter().map(|entry| entry.key.len() + entry.value.len());
                self.load.read_bytes += bytes.sum::<usize>() as u64;
                Event::Read { call, result: Ok(found) }
            }
            Action::Watch { watch, scope, from } => {
                let prefix = self.prefix(&scope);
                let missed = self.store.changes(from, self.told).to_vec();
                self.watchers.entry(scope).or_default().push(Watcher { host, watch, from });
                for change in missed.iter().filter(|change| change.key().starts_with(&prefix)) {
                    self.tell(host, watch, change);
                }
                return;
            }
            Action::Unwatch { watch } => {
                for watchers in self.watchers.values_mut() {
                    watchers.retain(|watcher| (watcher.host, watcher.watch) != (host, watch));
                }
                return;
            }
            Action::Grant { call, .. } => {
                self.load.grants += 1;
                Event::Granted { call, result: Ok(self.store.grant(now)) }
            }
            Action::Renew { call, lease } => {
                self.load.renewals += 1;
                Event::Renewed { call, result: self.store.renew(lease, now) }
            }
            Action::Revoke { lease } => return self.store.revoke(lease),
            Action::Transact { call, transaction } => {
                self.load.transactions += 1;
                self.load.written += transaction.ops.len() as u64;
                Event::Transacted { call, result: self.store.transact(&transaction) }
            }
            Action::Config { revision, .. } => return self.hosts[host].applied(revision, Ok(()), Time(now)),
            Action::Hop { .. } | Action::Flood { .. } | Action::Leave { .. } | Action::Tell { .. } => return,
            Action::Forget { .. } | Action::Moved { .. } => return,
        };
        self.hosts[host].event(event, Time(now));
    }

    /// Lets time pass. `gone`: a host that does nothing any more.
    fn wait(&mut self, time: u64, gone: Option<usize>) -> Load {
        let before = self.load;
        let end = self.now + time;
        while self.now < end {
            self.now += 100 * MS;
            self.store.expire(self.now);
            for host in (0..self.hosts.len()).filter(|host| Some(*host) != gone) {
                if self.hosts[host].wake_at().is_some_and(|at| at.0 <= self.now) {
                    self.hosts[host].tick(Time(self.now));
                    self.todo.push_back(host);
                }
            }
            self.settle();
        }
        self.load - before
    }

    fn watches(&self) -> usize {
        self.watchers.values().map(Vec::len).sum()
    }

    /// A port's guest begins at a host, with groups that the host needs then.
    fn start(&mut self, port: usize, host: usize, needed: &BTreeSet<Name>) {
        let (number, _) = place(self.hosts.len(), port);
        self.hosts[host].needs(needed, Time(self.now));
        self.hosts[host].started(&group(number), mac(port), &port_name(port), Time(self.now));
        self.todo.push_back(host);
    }
}

#[test]
fn etcd_has_a_watch_for_each_group_of_a_host_and_a_call_for_each_change() {
    let is_full = std::env::var_os("NICETY_FULL").is_some_and(|value| value == "1");
    let hosts = if is_full { 1_000 } else { 100 };
    let ports = hosts * PORTS;
    let per_second = |count: u64, time: u64| count as f64 * SECOND as f64 / time as f64;
    let mut net = Net::new(hosts);
    let mut needed: Vec<BTreeSet<Name>> = vec![BTreeSet::new(); hosts];
    for port in 0..ports {
        let (number, host) = place(hosts, port);
        needed[host].insert(group(number));
    }
    assert!(needed.iter().all(|groups| groups.len() == PORTS), "each port of a host is in another group");

    // All hosts begin at once.
    for port in 0..ports {
        let (_, host) = place(hosts, port);
        net.start(port, host, &needed[host]);
    }
    net.settle();
    net.wait(5 * SECOND, None);
    let begun = net.load;
    let found = net.store.read(net.keys.prefix().as_bytes());
    let bytes: usize = found.entries.iter().map(|entry| entry.key.len() + entry.value.len()).sum();
    println!("{hosts} hosts, {ports} ports: {} watches, {} keys of {bytes} bytes", net.watches(), found.entries.len());
    println!("all begin at once: {begun:?}");
    assert_eq!(net.watches(), hosts * (2 + PORTS), "for the configuration, the hosts and each group; none for a port");
    assert_eq!(found.entries.len(), 1 + hosts * (2 + PORTS));
    // The address's key and the host's, and then all ports at once.
    assert!(begun.transactions <= 3 * hosts as u64 && begun.grants == hosts as u64, "{begun:?}");

    // Nothing happens.
    let minute = net.wait(60 * SECOND, None);
    println!("a quiet minute: {:.1} renewals/s, {minute:?}", per_second(minute.renewals, 60 * SECOND));
    let quiet = Load { renewals: minute.renewals, ..Load::default() };
    assert_eq!(minute, quiet, "nothing but renewals");
    assert!((17 * hosts as u64..=19 * hosts as u64).contains(&minute.renewals), "one each 3.3 s: {minute:?}");

    // A guest moves within its group each 10 ms: to the host of the group's next port.
    let before = net.load;
    let moves = ports / 20;
    for moved in 0..moves {
        let port = moved * 7 % ports;
        let (number, from) = place(hosts, port);
        let (_, to) = place(hosts, (port + hosts * PORTS / GROUP) % ports);
        net.hosts[from].stopped(&group(number), mac(port), Time(net.now));
        net.todo.push_back(from);
        net.settle();
        net.start(port, to, &needed[to]);
        net.settle();
        if moved % 10 == 9 {
            net.wait(100 * MS, None);
        }
    }
    let moving = net.load - before;
    let each = |count: u64| count as f64 / moves as f64;
    println!(
        "{moves} moves, 100 a second: each {:.2} transactions, and {:.1} changes of {:.0} bytes told; {moving:?}",
        each(moving.transactions),
        each(moving.told),
        each(moving.told_bytes),
    );
    assert_eq!(moving.reads, 0);
    assert!(moving.transactions <= 2 * moves as u64, "one where it stops, and one where it starts: {moving:?}");
    assert!(moving.told <= 2 * (GROUP * moves) as u64, "to the hosts of its group alone: {moving:?}");

    // A host dies with its ten ports.
    net.wait(SECOND, None);
    net.watchers.values_mut().for_each(|watchers| watchers.retain(|watcher| watcher.host != 7));
    let death = net.wait(LEASE + SECOND, Some(7));
    println!("a host dies: {death:?}");
    assert_eq!((death.transactions, death.reads), (0, 0));
    let told = (2 * hosts + (PORTS + 2) * GROUP) as u64;
    assert!(
        death.told >= hosts as u64 && death.told <= told,
        "its own keys to all, those of its ports to their groups: {death:?}"
    );

    // etcd has compacted what all watches need next: all is read anew.
    let before = net.load;
    for watchers in std::mem::take(&mut net.watchers).into_values() {
        for Watcher { host, watch, .. } in watchers {
            net.hosts[host].event(Event::Compacted { watch }, Time(net.now));
            net.todo.push_back(host);
        }
    }
    net.settle();
    let read = net.load - before;
    println!("all is read anew: {read:?}");
    assert_eq!(read.reads as usize, (hosts - 1) * (2 + PORTS));
}
