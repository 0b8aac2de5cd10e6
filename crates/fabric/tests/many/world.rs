//! Hosts, their daemons and guests, a store, and everything between them that can be late, cut or killed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nicety_adapter::Time;
use nicety_fabric::{
    Action, Call, Event, Fabric, Hop, Kept, Me, Name, Peer, Scope, Settings, Terms, Transaction, Trouble, Waiting,
    WatchId,
};
use nicety_frame::{Mac, Vni};

use crate::store::{Change, Store};

mod faults;
mod frames;
mod truth;

pub const MS: u64 = 1_000_000;
/// The hosts' lease in these histories: etcd's own would only make them longer.
pub const LEASE: u64 = 2_000 * MS;
/// A call without an answer ends after this.
const LIMIT: u64 = 400 * MS;
/// Usual delay of a message, at most.
pub const DELAY: u64 = 10 * MS;

/// A random number generator (SplitMix64): the same seed gives the same history.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

enum Request {
    Read(Scope),
    Grant,
    Renew(i64),
    Revoke(i64),
    Transact(Transaction),
}

enum What {
    ToStore { host: usize, number: u32, call: Call, request: Request },
    Answer { host: usize, number: u32, call: Call, event: Event },
    Late { host: usize, number: u32, call: Call },
    Wake { host: usize, number: u32 },
    Pump { host: usize, number: u32, watch: WatchId, stream: u64, upto: i64 },
    Reopen { host: usize, number: u32, watch: WatchId },
    Broken { host: usize, number: u32, watch: WatchId },
    Expire,
    Apply { host: usize, number: u32, revision: i64, text: String },
    Save { host: usize, number: u32 },
    Begin { host: usize },
    Arrive { guest: usize, host: usize, move_number: u64 },
    Sends { guest: usize, host: usize },
    Zombie { guest: usize, host: usize },
}

/// A watch of a daemon: the revision that it is to tell next, and the stream, if there is one.
struct Stream {
    prefix: Vec<u8>,
    due: i64,
    stream: Option<u64>,
}

/// What a host's tunnel was told.
#[derive(Default)]
pub struct Tunnel {
    pub hops: BTreeMap<Hop, Peer>,
    pub flood: BTreeSet<(Vni, Hop)>,
    pub table: BTreeMap<(Vni, Mac), Hop>,
    pub groups: BTreeMap<Name, Vni>,
    /// Networks that it leaves.
    pub left: BTreeSet<Vni>,
}

impl Tunnel {
    /// The group of a network, if it takes frames from there.
    fn group(&self, vni: Vni) -> Option<&Name> {
        self.groups.iter().find(|(_, of)| **of == vni && !self.left.contains(&vni)).map(|(name, _)| name)
    }
}

pub struct Daemon {
    number: u32,
    pub fabric: Fabric,
    pub tunnel: Tunnel,
    watches: BTreeMap<WatchId, Stream>,
    pending: BTreeMap<Call, &'static str>,
    woken_at: Option<u64>,
    /// Since when it has reached the store without a break.
    away_since: Option<u64>,
}

pub struct Host {
    pub name: Name,
    pub address: IpAddr,
    /// All addresses that its tunnel has ever had.
    addresses: BTreeSet<IpAddr>,
    pub daemon: Option<Daemon>,
    kept: Option<Kept>,
    pub is_cut: bool,
    /// When its daemon began, or it reached the store again.
    heard_from: u64,
    /// Its clock: an origin of its own, and so many millionths too fast.
    origin: u64,
    ppm: i64,
    /// Groups in which it has ports, whatever guests it has.
    ports: BTreeSet<usize>,
    is_on: bool,
}

pub struct Guest {
    pub group: usize,
    pub mac: Mac,
    pub at: Option<usize>,
    /// The host whose VMM waits for it, while it moves.
    expected_at: Option<usize>,
    moves: u64,
}

pub struct World {
    pub seed: u64,
    pub now: u64,
    pub random: Random,
    pub store: Store,
    pub hosts: Vec<Host>,
    pub guests: Vec<Guest>,
    pub groups: Vec<Name>,
    events: BTreeMap<(u64, u64), What>,
    order: u64,
    last_number: u32,
    /// Hosts that have ever had an address.
    had: BTreeSet<(usize, Mac, usize)>,
    /// Whether something that was told has been taken back, since this was cleared.
    pub flaps: Vec<String>,
    story: Vec<String>,
    /// Counts: entries that were told and taken back, addresses that were overtaken, changes of the configuration.
    pub taken_back: u64,
    pub overtaken: u64,
    pub changes: u64,
    /// Tunnel addresses that were given to hosts, and those of them that another host had.
    pub readdressed: u64,
    pub collisions: u64,
    /// Frames that were sent, and arrivals of them at ports.
    pub sent: u64,
    pub arrived: u64,
    /// No message is lost or late.
    pub is_punctual: bool,
}

pub fn terms() -> Terms {
    Terms {
        lease: Duration::from_nanos(LEASE),
        damping_min: Duration::from_millis(200),
        damping_max: Duration::from_secs(2),
        learn: Duration::from_millis(20),
        pause_max: Duration::from_millis(200),
        ..Terms::default()
    }
}

pub fn text(groups: &BTreeMap<Name, Vni>) -> String {
    let entry = |(name, vni): (&Name, &Vni)| format!("[[port_group]]\nname = \"{name}\"\nvni = {vni}\n");
    format!("format = 1\n{}", groups.iter().map(entry).collect::<String>())
}

fn fabric() -> Name {
    Name::new("lab").unwrap()
}

impl World {
    pub fn new(seed: u64, hosts: usize) -> Self {
        let mut random = Random(seed);
        let groups: Vec<Name> = (0..2 + random.below(3)).map(|n| Name::new(&format!("g{n}")).unwrap()).collect();
        let host = |n: usize, random: &mut Random| Host {
            name: Name::new(&format!("h{n}")).unwrap(),
            address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, n as u8 + 1)),
            addresses: BTreeSet::from([IpAddr::V4(Ipv4Addr::new(192, 0, 2, n as u8 + 1))]),
            daemon: None,
            kept: None,
            is_cut: false,
            heard_from: 0,
            origin: random.below(1 << 40),
            ppm: random.below(20_001) as i64 - 10_000,
            ports: (0..groups.len()).filter(|_| random.one_in(2)).collect(),
            is_on: true,
        };
        let hosts: Vec<Host> = (0..hosts).map(|n| host(n, &mut random)).collect();
        let guest = |n: usize, random: &mut Random| Guest {
            group: random.below(groups.len() as u64) as usize,
            mac: Mac([2, 0, 0, 0, (n >> 8) as u8, n as u8]),
            at: None,
            expected_at: None,
            moves: 0,
        };
        let guests = (0..hosts.len() * 2).map(|n| guest(n, &mut random)).collect();
        let mut world = Self {
            seed,
            now: 0,
            random,
            store: Store::new(LEASE),
            hosts,
            guests,
            groups,
            events: BTreeMap::new(),
            order: 0,
            last_number: 0,
            had: BTreeSet::new(),
            flaps: Vec::new(),
            story: Vec::new(),
            taken_back: 0,
            overtaken: 0,
            changes: 0,
            readdressed: 0,
            collisions: 0,
            sent: 0,
            arrived: 0,
            is_punctual: false,
        };
        let groups =
            world.groups.iter().enumerate().map(|(n, name)| (name.clone(), Vni::new(n as u32 + 1).unwrap())).collect();
        world.write("config", &text(&groups));
        for host in 0..world.hosts.len() {
            let late = world.random.below(300) * MS;
            world.at(late, What::Begin { host });
        }
        for guest in 0..world.guests.len() {
            let host = world.random.below(world.hosts.len() as u64) as usize;
            world.start(guest, host, 0);
        }
        world
    }

    pub fn carry_out(&mut self, transaction: &Transaction) -> bool {
        let before = self.store.revision;
        let outcome = self.store.transact(transaction);
        self.committed(before);
        outcome.is_ok_and(|outcome| outcome.is_done)
    }

    pub fn tell(&mut self, what: String) {
        self.story.push(format!("{:>9.3} ms  {what}", self.now as f64 / MS as f64));
    }

    #[track_caller]
    pub fn fail(&self, why: &str) -> ! {
        let from = self.story.len().saturating_sub(80);
        panic!("seed {}: {why}\n{}", self.seed, self.story[from..].join("\n"));
    }

    fn at(&mut self, when: u64, what: What) {
        self.order += 1;
        self.events.insert((when, self.order), what);
    }

    fn delay(&mut self) -> u64 {
        if !self.is_punctual && self.random.one_in(50) {
            self.random.below(600) * MS
        } else {
            1 + self.random.below(DELAY)
        }
    }

    /// Somebody writes a key.
    pub fn write(&mut self, key: &str, value: &str) {
        let key = format!("/nicety/fabrics/{}/{key}", fabric());
        let put = nicety_fabric::Op::Put { key, value: value.to_owned(), lease: 0 };
        self.carry_out(&Transaction { compares: Vec::new(), ops: vec![put], otherwise: None });
    }

    /// A host's clock.
    pub fn local(&self, host: usize) -> Time {
        let Host { origin, ppm, .. } = &self.hosts[host];
        Time((*origin as i128 + self.now as i128 + self.now as i128 * i128::from(*ppm) / 1_000_000) as u64)
    }

    /// A host's instant by the world's clock, rounded up.
    fn global(&self, host: usize, at: Time) -> u64 {
        let Host { origin, ppm, .. } = &self.hosts[host];
        let local = (at.0.saturating_sub(*origin)) as i128;
        ((local * 1_000_000) / (1_000_000 + i128::from(*ppm)) + 2) as u64
    }

    pub fn run(&mut self, until: u64) {
        while let Some((&(when, order), _)) = self.events.first_key_value() {
            if when > until {
                break;
            }
            let what = self.events.remove(&(when, order)).unwrap();
            self.now = self.now.max(when);
            self.happen(what);
        }
        self.now = until;
    }

    fn daemon(&mut self, host: usize, number: u32) -> Option<&mut Daemon> {
        self.hosts[host].daemon.as_mut().filter(|daemon| daemon.number == number)
    }

    fn happen(&mut self, what: What) {
        match what {
            What::ToStore { host, number, call, request } => self.serve(host, number, call, request),
            What::Answer { host, number, call, event } => {
                let is_cut = self.hosts[host].is_cut;
                if let Some(daemon) = self.daemon(host, number)
                    && !is_cut
                    && daemon.pending.remove(&call).is_some()
                {
                    self.event(host, event);
                }
            }
            What::Late { host, number, call } => {
                let Some(kind) = self.daemon(host, number).and_then(|daemon| daemon.pending.remove(&call)) else {
                    return;
                };
                let late = || Trouble::Failed("no answer in time".to_owned());
                let event = match kind {
                    "read" => Event::Read { call, result: Err(late()) },
                    "grant" => Event::Granted { call, result: Err(late()) },
                    "renew" => Event::Renewed { call, result: Err(late()) },
                    _ => Event::Transacted { call, result: Err(late()) },
                };
                self.event(host, event);
            }
            What::Wake { host, number } => {
                let now = self.local(host);
                let Some(daemon) = self.daemon(host, number) else { return };
                daemon.woken_at = None;
                daemon.fabric.tick(now);
                self.actions(host);
            }
            What::Pump { host, number, watch, stream, upto } => self.pump(host, number, watch, stream, upto),
            What::Reopen { host, number, watch } => self.reopen(host, number, watch),
            What::Broken { host, number, watch } => {
                let Some(daemon) = self.daemon(host, number) else { return };
                if daemon.watches.get(&watch).is_some_and(|watch| watch.stream.is_none()) {
                    self.event(host, Event::Broken { watch, why: "the stream has ended".to_owned() });
                }
            }
            What::Expire => self.expire(),
            What::Apply { host, number, revision, text } => self.apply(host, number, revision, &text),
            What::Save { host, number } => {
                if let Some(daemon) = self.daemon(host, number) {
                    self.hosts[host].kept = Some(daemon.fabric.keep());
                    let later = self.now + 300 * MS;
                    self.at(later, What::Save { host, number });
                }
            }
            What::Begin { host } => self.begin(host),
            What::Arrive { guest, host, move_number } => {
                if self.guests[guest].moves == move_number {
                    self.appear(guest, host);
                }
            }
            What::Sends { guest, host } => {
                let now = self.local(host);
                let Guest { group, mac, at, .. } = self.guests[guest];
                let group = self.groups[group].clone();
                if let Some(daemon) = self.hosts[host].daemon.as_mut().filter(|_| at == Some(host)) {
                    daemon.fabric.learned(&group, mac, &port(guest), now);
                    self.actions(host);
                }
            }
            // It may be back by now.
            What::Zombie { guest, host } => {
                if self.guests[guest].at != Some(host) {
                    self.stopped(guest, host);
                }
            }
        }
    }

    fn event(&mut self, host: usize, event: Event) {
        let now = self.local(host);
        if let Some(daemon) = &mut self.hosts[host].daemon {
            daemon.fabric.event(event, now);
            self.actions(host);
        }
    }

    /// A request arrives at the store.
    fn serve(&mut self, host: usize, number: u32, call: Call, request: Request) {
        if self.hosts[host].is_cut || !self.store.has_majority {
            return;
        }
        let before = self.store.revision;
        let now = self.now;
        let event = match request {
            Request::Read(scope) => {
                let prefix = prefix(&scope);
                Event::Read { call, result: Ok(self.store.read(&prefix)) }
            }
            Request::Grant => {
                let lease = self.store.grant(now);
                self.at(now + LEASE, What::Expire);
                Event::Granted { call, result: Ok(lease) }
            }
            Request::Renew(lease) => Event::Renewed { call, result: self.store.renew(lease, now) },
            Request::Revoke(lease) => {
                self.store.revoke(lease);
                return self.committed(before);
            }
            Request::Transact(transaction) => Event::Transacted { call, result: self.store.transact(&transaction) },
        };
        self.committed(before);
        let late = now + self.delay();
        if self.is_punctual || !self.random.one_in(100) {
            self.at(late, What::Answer { host, number, call, event });
        }
    }

    /// Changes go out to the watches.
    fn committed(&mut self, before: i64) {
        let upto = self.store.revision;
        if before == upto || !self.store.has_majority {
            return;
        }
        let changes: Vec<Change> = self.store.changes(before + 1, upto).to_vec();
        for host in 0..self.hosts.len() {
            let Some(daemon) = &self.hosts[host].daemon else { continue };
            let number = daemon.number;
            let concerned = |watch: &Stream| changes.iter().any(|change| change.key().starts_with(&watch.prefix));
            let open = daemon.watches.iter().filter(|(_, watch)| concerned(watch));
            let open: Vec<_> = open.filter_map(|(id, watch)| Some((*id, watch.stream?))).collect();
            for (watch, stream) in open {
                let late = self.now + self.delay();
                self.at(late, What::Pump { host, number, watch, stream, upto });
            }
        }
    }

    fn pump(&mut self, host: usize, number: u32, watch: WatchId, stream: u64, upto: i64) {
        if self.hosts[host].is_cut || !self.store.has_majority {
            return;
        }
        let Some(daemon) = self.hosts[host].daemon.as_mut().filter(|daemon| daemon.number == number) else { return };
        let Some(known) = daemon.watches.get_mut(&watch).filter(|watch| watch.stream == Some(stream)) else { return };
        let changes = self.store.changes(known.due, upto);
        let changes: Vec<Change> =
            changes.iter().filter(|change| change.key().starts_with(&known.prefix)).cloned().collect();
        known.due = known.due.max(upto + 1);
        for change in changes {
            let event = match change {
                Change::Put(entry) => Event::Put { watch, entry },
                Change::Delete { key, revision } => Event::Delete { watch, key, revision },
            };
            self.event(host, event);
        }
    }

    fn reopen(&mut self, host: usize, number: u32, watch: WatchId) {
        if self.hosts[host].is_cut || !self.store.has_majority {
            // It does not open in time. The next attempt is due when the store is reached.
            return self.at(self.now + LIMIT, What::Broken { host, number, watch });
        }
        let (revision, compacted) = (self.store.revision, self.store.compacted);
        self.order += 1;
        let stream = self.order;
        let Some(daemon) = self.daemon(host, number) else { return };
        let Some(known) = daemon.watches.get_mut(&watch).filter(|watch| watch.stream.is_none()) else { return };
        if known.due <= compacted {
            daemon.watches.remove(&watch);
            return self.event(host, Event::Compacted { watch });
        }
        known.stream = Some(stream);
        self.event(host, Event::InTouch { watch, revision });
        let late = self.now + self.delay();
        self.at(late, What::Pump { host, number, watch, stream, upto: revision });
    }

    fn expire(&mut self) {
        let before = self.store.revision;
        let next = self.store.expire(self.now);
        self.committed(before);
        if let Some(at) = next.filter(|at| *at > self.now) {
            self.at(at, What::Expire);
        }
    }

    // What the daemon does.

    fn begin(&mut self, host: usize) {
        if self.hosts[host].daemon.is_some() || !self.hosts[host].is_on {
            return;
        }
        self.last_number += 1;
        let number = self.last_number;
        let now = self.local(host);
        let run = self.random.next();
        let Host { name, address, .. } = &self.hosts[host];
        let me = Me { host: name.clone(), address: *address, mtu: 1500, version: "1.0.0".to_owned() };
        let settings = Settings { fabric: fabric(), me, run, seed: run, terms: terms() };
        let kept = self.hosts[host].kept.take();
        self.tell(format!("h{host}: the daemon begins, {}", if kept.is_some() { "with its state" } else { "anew" }));
        let mut tunnel = Tunnel::default();
        let fabric = match kept {
            // It is kept as bytes.
            Some(kept) => {
                let bytes = serde_json::to_vec(&kept).unwrap();
                // A daemon that replaces another one has the groups from the start.
                let in_force = kept.config().filter(|_| self.random.below(2) == 0);
                if let Some(text) = in_force {
                    tunnel.groups = nicety_fabric::Config::parse(text.as_bytes()).unwrap().groups;
                }
                Fabric::resume(settings, serde_json::from_slice(&bytes).unwrap(), in_force.is_some(), now)
            }
            None => Fabric::new(settings, now),
        };
        let away_since = Some(self.now);
        self.hosts[host].heard_from = self.now;
        self.hosts[host].daemon = Some(Daemon {
            number,
            fabric,
            tunnel,
            watches: BTreeMap::new(),
            pending: BTreeMap::new(),
            woken_at: None,
            away_since,
        });
        self.needs(host);
        for guest in 0..self.guests.len() {
            if self.guests[guest].at == Some(host) {
                self.started(guest, host);
            } else if self.guests[guest].expected_at == Some(host) {
                self.expects(guest, host);
            }
        }
        self.at(self.now + 300 * MS, What::Save { host, number });
        self.actions(host);
    }

    /// The groups in which a host has ports.
    fn groups_at(&self, host: usize) -> BTreeSet<Name> {
        let has = |guest: &&Guest| guest.at == Some(host) || guest.expected_at == Some(host);
        let of_guests = self.guests.iter().filter(has).map(|guest| guest.group);
        let groups = self.hosts[host].ports.iter().copied().chain(of_guests);
        groups.map(|group| self.groups[group].clone()).collect()
    }

    fn needs(&mut self, host: usize) {
        let now = self.local(host);
        let groups = self.groups_at(host);
        if let Some(daemon) = &mut self.hosts[host].daemon {
            daemon.fabric.needs(&groups, now);
        }
    }

    fn started(&mut self, guest: usize, host: usize) {
        let now = self.local(host);
        let Guest { group, mac, .. } = self.guests[guest];
        let group = self.groups[group].clone();
        if let Some(daemon) = &mut self.hosts[host].daemon {
            daemon.fabric.started(&group, mac, &port(guest), now);
        }
    }

    /// A VMM waits for the guest.
    fn expects(&mut self, guest: usize, host: usize) {
        let now = self.local(host);
        let Guest { group, mac, .. } = self.guests[guest];
        let group = self.groups[group].clone();
        if let Some(daemon) = &mut self.hosts[host].daemon {
            daemon.fabric.waits(&group, mac, &port(guest), Waiting::Expected, now);
        }
    }

    fn stopped(&mut self, guest: usize, host: usize) {
        let now = self.local(host);
        let Guest { group, mac, .. } = self.guests[guest];
        let group = self.groups[group].clone();
        if let Some(daemon) = &mut self.hosts[host].daemon {
            daemon.fabric.stopped(&group, mac, now);
            self.needs(host);
            self.actions(host);
        }
    }

    fn ask(&mut self, host: usize, call: Call, kind: &'static str, request: Request) {
        let Some(daemon) = &mut self.hosts[host].daemon else { return };
        let number = daemon.number;
        if kind != "revoke" {
            assert!(daemon.pending.insert(call, kind).is_none(), "a call's number is used twice");
        }
        let late = self.now + self.delay();
        if self.is_punctual || !self.random.one_in(100) {
            self.at(late, What::ToStore { host, number, call, request });
        }
        self.at(self.now + LIMIT, What::Late { host, number, call });
    }

    fn actions(&mut self, host: usize) {
        while let Some(action) = self.hosts[host].daemon.as_mut().and_then(|daemon| daemon.fabric.action()) {
            self.act(host, action);
        }
        let Some(daemon) = &self.hosts[host].daemon else { return };
        let (number, woken_at) = (daemon.number, daemon.woken_at);
        let Some(at) = daemon.fabric.wake_at() else { return };
        let at = self.global(host, at).max(self.now + 1);
        if woken_at.is_none_or(|woken| at < woken) {
            if let Some(daemon) = &mut self.hosts[host].daemon {
                daemon.woken_at = Some(at);
            }
            self.at(at, What::Wake { host, number });
        }
    }

    fn act(&mut self, host: usize, action: Action) {
        match action {
            Action::Read { call, scope } => self.ask(host, call, "read", Request::Read(scope)),
            Action::Grant { call, .. } => self.ask(host, call, "grant", Request::Grant),
            Action::Renew { call, lease } => self.ask(host, call, "renew", Request::Renew(lease)),
            Action::Revoke { lease } => self.ask(host, 0, "revoke", Request::Revoke(lease)),
            Action::Transact { call, transaction } => {
                self.ask(host, call, "transact", Request::Transact(transaction));
            }
            Action::Watch { watch, scope, from } => {
                let Some(daemon) = &mut self.hosts[host].daemon else { return };
                let number = daemon.number;
                let prefix = prefix(&scope);
                daemon.watches.insert(watch, Stream { prefix, due: from, stream: None });
                let late = self.now + self.delay();
                self.at(late, What::Reopen { host, number, watch });
            }
            Action::Unwatch { watch } => {
                if let Some(daemon) = &mut self.hosts[host].daemon {
                    daemon.watches.remove(&watch);
                }
            }
            Action::Config { revision, text } => {
                let number = self.hosts[host].daemon.as_ref().map_or(0, |daemon| daemon.number);
                let late = self.now + self.random.below(100) * MS;
                self.at(late, What::Apply { host, number, revision, text });
            }
            Action::Moved { group, mac, to } => {
                self.tell(format!("h{host}: {mac} of {group} has moved to {to}"));
                self.overtaken += 1;
                if let Some(guest) = self.guests.iter().position(|guest| guest.mac == mac) {
                    let late = self.now + (1 + self.random.below(50)) * MS;
                    self.at(late, What::Sends { guest, host });
                }
            }
            tunnel => self.tunnel(host, tunnel),
        }
    }

    fn apply(&mut self, host: usize, number: u32, revision: i64, text: &str) {
        let now = self.local(host);
        let Some(daemon) = self.daemon(host, number) else { return };
        daemon.tunnel.groups = nicety_fabric::Config::parse(text.as_bytes()).unwrap().groups;
        daemon.fabric.applied(revision, Ok(()), now);
        self.tell(format!("h{host}: configuration {revision}"));
        self.actions(host);
        (0..self.hosts.len()).for_each(|other| self.check_groups(host, other));
    }
}

fn prefix(scope: &Scope) -> Vec<u8> {
    let keys = nicety_fabric::Keys::new(&fabric());
    match scope {
        Scope::Config => keys.text(&nicety_fabric::Key::Config),
        Scope::Hosts => keys.hosts(),
        Scope::Group(group) => keys.group(group),
    }
    .into_bytes()
}

fn port(guest: usize) -> Name {
    Name::new(&format!("vm{guest}")).unwrap()
}
