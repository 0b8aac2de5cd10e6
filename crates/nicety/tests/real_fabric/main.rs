//! Hosts of one fabric: daemons whose switches are one by a real etcd and by tunnels, with guests of our own drivers.

#[path = "../../../daemon/tests/namespace/again.rs"]
mod again;
mod beside;
mod certificates;
mod classes;
mod clocks;
mod cluster;
mod cut;
#[path = "../etcd_lines/mod.rs"]
mod etcd_lines;
#[path = "../etcd_servers/mod.rs"]
mod etcd_servers;
#[path = "../far/mod.rs"]
mod far;
mod kept;
mod outside;
#[path = "../../../daemon/tests/played/mod.rs"]
mod played;
mod protected;
#[path = "../../../daemon/tests/rings_guest/mod.rs"]
mod rings_guest;
mod seen;
#[path = "../station/mod.rs"]
mod station;
mod strange;
mod streams;
mod three;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::Cluster;
use etcd_servers::{SOON, addresses};
use nicety_control::api::PlaceList;
use nicety_control::{Ask, Reply};
use nicety_daemon::fabric::{Connection, FabricReport, PlaceReport};
use nicety_daemon::report::PortReport;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use station::{Process, Station};
use tempfile::TempDir;

/// What leaves 1500 bytes for guests: their drivers have no other MTU.
const MTU: u16 = 1550;

const GROUPS: &str = "format = 1\n[[port_group]]\nname = \"web\"\nvni = 5010\nvlan = 10\n\
                      [[port_group]]\nname = \"db\"\nvni = 5020\nvlan = 20\n";

fn until(what: &str, done: impl FnMut() -> bool) {
    until_or(what, done, String::new);
}

/// The same. `describe`: what a person should know if it is in vain.
fn until_or(what: &str, mut done: impl FnMut() -> bool, describe: impl Fn() -> String) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}\n{}", describe());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The time within which a guest that has moved is known at the other hosts.
const KNOWN: Duration = Duration::from_millis(100);
/// A move takes a look at the ports, a write by a daemon and its way to another one. A key that this test writes takes the same way. On a
/// machine that does other work both take longer: a move at most so many times as long.
const MOVE_FACTOR: u32 = 3;

/// How long keys take from this test to a host, while guests move.
struct Heard<'a> {
    host: &'a Host,
    cluster: &'a Cluster,
    times: Vec<Duration>,
}

impl<'a> Heard<'a> {
    fn new(host: &'a Host, cluster: &'a Cluster) -> Self {
        Self { host, cluster, times: Vec::new() }
    }

    /// Writes a key, and waits until the host names it.
    fn measure(&mut self) {
        const KEY: &str = "host/stranger";
        let is_named = || self.host.report().refused.iter().any(|sentence| sentence.contains(KEY));
        let begun = Instant::now();
        self.cluster.put(KEY, "{}");
        until("the key is heard of", is_named);
        self.times.push(begun.elapsed());
        self.cluster.delete(KEY);
        until("the key has gone", || !is_named());
    }

    /// Half of the moves took no longer than they may.
    fn judge(mut self, mut moves: Vec<Duration>) {
        moves.sort();
        self.times.sort();
        println!("moves: {moves:?}, keys: {:?}", self.times);
        let [moved, heard] = [&moves, &self.times].map(|times| times[times.len() / 2]);
        assert!(moved < KNOWN.max(heard * MOVE_FACTOR), "{moves:?}, and keys {:?}", self.times);
    }
}

/// A host: its folder, and its daemon or the keeper of that.
struct Host {
    dir: PathBuf,
    name: String,
    has_keeper: bool,
    /// A command that starts its daemon, before the daemon's own words.
    before: Vec<String>,
    daemon: Option<Process>,
}

impl Host {
    /// Starts a host with these ports: an adapter, a group, and the last byte of an address.
    fn start(place: &Path, name: &str, address: &str, cluster: &Cluster, ports: &[(&str, &str, u8)]) -> Self {
        let mut this = Self::new(place, name, address, cluster, ports);
        this.serve();
        this
    }

    /// The same with a keeper.
    fn keep(place: &Path, name: &str, address: &str, cluster: &Cluster, ports: &[(&str, &str, u8)]) -> Self {
        let mut this = Self::new(place, name, address, cluster, ports);
        this.has_keeper = true;
        this.serve();
        this
    }

    /// It does not serve yet.
    fn new(place: &Path, name: &str, address: &str, cluster: &Cluster, ports: &[(&str, &str, u8)]) -> Self {
        let dir = place.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let etcd = cluster.endpoints();
        let mut text = format!(
            "[fabric]\nname = \"prod\"\nhost = \"{name}\"\ntunnel = \"tunnel\"\netcd = \"{etcd}\"\n\n\
             [[uplink]]\nkind = \"vxlan\"\nname = \"tunnel\"\naddress = \"{address}\"\nmtu = {MTU}\n"
        );
        for (adapter, group, number) in ports {
            text += &format!(
                "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nport_group = \"{group}\"\n\
                 mac = \"{}\"\nsocket = \"vm{number}.sock\"\n",
                mac(*number)
            );
        }
        std::fs::write(dir.join("host.toml"), text).unwrap();
        Self { dir, name: name.to_owned(), has_keeper: false, before: Vec::new(), daemon: None }
    }

    /// Adds lines to its `[fabric]`.
    fn add(&self, lines: &str) {
        let file = self.dir.join("host.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, text.replacen("[fabric]\n", &format!("[fabric]\n{lines}"), 1)).unwrap();
    }

    fn serve(&mut self) {
        let words = [&self.before[..], &[env!("CARGO_BIN_EXE_nicety").to_owned()]].concat();
        let mut serve = Command::new(&words[0]);
        serve
            .args(&words[1..])
            .arg("serve")
            .args(self.has_keeper.then_some("--keeper"))
            .current_dir(&self.dir)
            .env_remove("XDG_RUNTIME_DIR");
        let log = std::fs::File::options().append(true).create(true).open(self.dir.join("log")).unwrap();
        self.daemon = Some(Process(serve.stderr(log).spawn().unwrap()));
        until("the daemon serves", || self.ask(Ask::Fabric).is_some());
    }

    fn child(&mut self) -> &mut Child {
        &mut self.daemon.as_mut().unwrap().0
    }

    fn end(&mut self, signal: Signal) {
        let child = self.child();
        kill_process(Pid::from_child(child), signal).unwrap();
        child.wait().unwrap();
        self.daemon = None;
    }

    fn ask(&self, ask: Ask) -> Option<Reply> {
        nicety_control::ask(&self.dir.join("nicety-switch0.sock"), ask).ok()
    }

    fn report(&self) -> FabricReport {
        match self.ask(Ask::Fabric) {
            Some(Reply::Fabric(report)) => *report,
            other => panic!("{}: {other:?}\n{}", self.name, self.log()),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap()
    }

    /// The host at which an address is, as this one knows it.
    fn place(&self, number: u8) -> Option<String> {
        self.claim(number).map(|place| place.host)
    }

    /// The claim that counts for an address, as this host knows it.
    fn claim(&self, number: u8) -> Option<PlaceReport> {
        let Some(Reply::Places(PlaceList { places })) = self.ask(Ask::Places { mac: mac(number).parse().unwrap() })
        else {
            panic!("{}", self.log())
        };
        places.into_iter().find(|place| place.is_current)
    }

    fn port(&self, name: &str) -> PortReport {
        match self.ask(Ask::Port { name: name.to_owned() }) {
            Some(Reply::Port(report)) => *report,
            other => panic!("{other:?}\n{}", self.log()),
        }
    }

    /// A command in the host's folder. Its code, and what it said.
    fn run(&self, words: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        let ended = command.args(words).current_dir(&self.dir).env_remove("XDG_RUNTIME_DIR").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    }

    /// The same of a command that succeeds: what it said to stdout.
    #[track_caller]
    fn says(&self, words: &[&str]) -> String {
        let (code, out, err) = self.run(words);
        assert_eq!(code, Some(0), "{words:?}: {out}{err}{}", self.log());
        out
    }

    fn is_connected(&self) -> bool {
        self.report().connection == Connection::Connected
    }

    /// Starts a command of this program in the host's folder.
    fn command(&self, words: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(words).current_dir(&self.dir).env_remove("XDG_RUNTIME_DIR");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The file of its last known state.
    fn kept(&self) -> PathBuf {
        self.dir.join("host.toml.state.fabric")
    }

    /// The socket of a port.
    fn socket(&self, number: u8) -> PathBuf {
        self.dir.join(format!("vm{number}.sock"))
    }

    fn guest(&self, adapter: &str, number: u8) -> Station {
        let socket = self.socket(number).display().to_string();
        Station::start(&json!({ "vfio-user": { "driver": adapter, "socket": socket } }), number)
    }

    /// Frames from and to other hosts.
    fn tunnelled(&self) -> u64 {
        let report = serde_json::to_value(self.port("tunnel")).unwrap();
        let frames = |way: &str| report[way][0]["frames"].as_u64().unwrap_or(0);
        frames("transmit") + frames("receive")
    }
}

fn mac(number: u8) -> String {
    format!("52:54:00:12:34:{number:02x}")
}

/// Sends TCP from one guest to the other. Returns the bytes that arrived.
fn carried(from: &mut Station, to: &mut Station) -> u64 {
    let answer = from.asked(&json!({ "send": { "to": to.address, "seconds": 0.3 } }));
    assert!(answer.get("failed").is_none(), "{answer}");
    to.asked(&json!("report"))["counts"]["discarded_bytes"].as_u64().unwrap()
}

#[test]
fn guests_in_a_group_of_three_hosts_reach_each_other_and_a_host_without_the_group_sees_nothing() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    let [one, other, third] = addresses();
    let one = Host::start(place.path(), "one", &one, &cluster, &[("e1000", "web", 1)]);
    let other = Host::start(place.path(), "other", &other, &cluster, &[("vmxnet3", "web", 2)]);
    let third = Host::start(place.path(), "third", &third, &cluster, &[("e1000e", "db", 3)]);
    // Without a configuration nobody knows the groups: ports carry nothing.
    until("they have met", || [&one, &other, &third].iter().all(|host| host.report().hosts.len() == 2));
    assert_eq!(one.report().config, None);
    let waits = |host: &Host, port: &str| host.port(port).policy.get("blocked").is_some_and(|word| word == "true");
    assert!(waits(&one, "vm1") && waits(&other, "vm2") && waits(&third, "vm3"));
    let shown = one.port("vm1").sentence;
    assert!(shown.contains("its port group web is not known yet"), "{shown}");

    cluster.put("config", GROUPS);
    until("the groups are in force", || [&one, &other, &third].iter().all(|host| host.report().config.is_some()));
    assert!(!waits(&one, "vm1") && !waits(&other, "vm2") && !waits(&third, "vm3"));
    let (mut a, mut b, c) = (one.guest("e1000", 1), other.guest("vmxnet3", 2), third.guest("e1000e", 3));
    until("the guests are known", || {
        one.place(2).as_deref() == Some("other") && other.place(1).as_deref() == Some("one")
    });
    let bytes = [carried(&mut a, &mut b), carried(&mut b, &mut a)];
    println!("{bytes:?} bytes");
    assert!(bytes.iter().all(|bytes| *bytes > 100_000), "{bytes:?} {} {}", one.log(), other.log());
    // Neither broadcasts nor frames for addresses that nobody has go to a host without the group.
    let answer = a.asked(&json!({ "send": { "to": c.address, "seconds": 0.1 } }));
    assert_eq!(answer, json!({ "sent": { "bytes": 0 } }));
    assert_eq!(third.tunnelled(), 0, "{}", third.log());
    assert_eq!(third.place(1), None, "it watches no group that it has no port in");

    // A group that changes is changed on all hosts, while guests use it.
    cluster.put("config", GROUPS.replace("vlan = 10", "vlan = 11"));
    let is_changed = |host: &Host, port: &str| host.port(port).policy.get("vlan").is_some_and(|vlan| vlan == "11");
    until("the group has another VLAN", || is_changed(&one, "vm1") && is_changed(&other, "vm2"));
    assert!(carried(&mut a, &mut b) > 100_000);
    // A version that cannot be is refused everywhere, and the last one stays.
    let before = one.report();
    cluster.put("config", GROUPS.replace("vlan = 20", "trunk = \"20\""));
    until("it is refused", || [&one, &other, &third].iter().all(|host| host.report().refused.len() == 1));
    let after = one.report();
    assert_eq!(after.config, before.config);
    assert!(after.refused[0].contains("a group of a fabric is one network"), "{after}");
    assert!(carried(&mut a, &mut b) > 100_000);
    // Keys of strangers are left out, and are named.
    cluster.put("host/stranger", "{}");
    cluster.put("config", GROUPS);
    until("it is named", || {
        let refused = one.report().refused;
        refused.len() == 1 && refused[0].contains("host/stranger")
    });
    assert!(carried(&mut a, &mut b) > 100_000, "{}", one.report());
    // A port that leaves takes its address along.
    drop(b);
    let describe = || format!("{}{}{}\n{:?}", one.report(), other.report(), other.log(), cluster.keys());
    until_or("it has gone", || one.place(2).is_none() && other.place(2).is_none(), describe);
    assert!(cluster.keys().iter().all(|(key, _)| !key.ends_with(&mac(2))), "{:?}", cluster.keys());
}

#[test]
fn a_guest_that_moves_to_another_host_is_reached_there_within_a_tenth_of_a_second() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let ends = addresses::<3>();
    let hosts: Vec<Host> = ["one", "other"]
        .iter()
        .zip(&ends)
        .map(|(name, address)| Host::start(place.path(), name, address, &cluster, &[("vmxnet3", "web", 1)]))
        .collect();
    let third = Host::start(place.path(), "third", &ends[2], &cluster, &[("vmxnet3", "web", 3)]);
    let mut far = third.guest("vmxnet3", 3);
    until("all are there", || {
        hosts.iter().chain([&third]).all(|host| host.is_connected() && host.report().hosts.len() == 2)
    });
    let mut guest = Some(hosts[0].guest("vmxnet3", 1));
    until("it is known", || third.place(1).as_deref() == Some("one"));
    let (mut times, mut heard) = (Vec::new(), Heard::new(&third, &cluster));
    for round in 1..=6 {
        assert!(carried(&mut far, guest.as_mut().unwrap()) > 100_000);
        heard.measure();
        let to = &hosts[round % 2];
        // Its old place is still there when its new one begins, as in a live migration.
        let new = to.guest("vmxnet3", 1);
        let began = Instant::now();
        let from = &hosts[(round + 1) % 2];
        until("its new place is known", || third.place(1).as_deref() == Some(to.name.as_str()));
        times.push(began.elapsed());
        // The old host still has a port of that name. Its claim has gone with the move, so the new host hears of none.
        let words = format!(
            "port vm1 is also on host {}, with the same address: its guest moves, or a twin stands by",
            to.name
        );
        until("the old host names the new one", || from.says(&["fabric", "status"]).lines().any(|line| line == words));
        assert_eq!(from.place(1).as_deref(), Some(to.name.as_str()));
        drop(guest.replace(new));
        heard.measure();
    }
    heard.judge(times);
    assert!(carried(guest.as_mut().unwrap(), &mut far) > 100_000);
}

#[test]
fn what_is_known_stays_while_etcd_is_away_over_a_restart_and_a_kill_and_nothing_flaps_afterwards() {
    let (place, mut cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let ends = addresses::<2>();
    let one = Host::start(place.path(), "one", &ends[0], &cluster, &[("vmxnet3", "web", 1)]);
    let mut other = Host::start(place.path(), "other", &ends[1], &cluster, &[("vmxnet3", "web", 2)]);
    let (mut a, mut b) = (one.guest("vmxnet3", 1), other.guest("vmxnet3", 2));
    let know =
        |one: &Host, other: &Host| one.place(2).as_deref() == Some("other") && other.place(1).as_deref() == Some("one");
    until("they know each other", || know(&one, &other));
    assert!(carried(&mut a, &mut b) > 100_000);
    cluster.kill(0);
    until("both say so", || [&one, &other].iter().all(|host| host.report().connection != Connection::Connected));
    until("one says why", || one.report().why_not.is_some_and(|why| why.contains("is etcd running there")));
    println!("{}", one.report());
    assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut b, &mut a) > 100_000);
    // Longer than a lease.
    let forgotten = |host: &Host| host.report().connection == Connection::Forgotten;
    until("the leases have ended", || forgotten(&one) && forgotten(&other));
    assert!(know(&one, &other) && carried(&mut a, &mut b) > 100_000);
    for signal in [Signal::TERM, Signal::KILL] {
        drop(b);
        other.end(signal);
        other.serve();
        b = other.guest("vmxnet3", 2);
        assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut b, &mut a) > 100_000, "{signal:?} {}", other.log());
        assert!(know(&one, &other));
    }
    cluster.run(0);
    let (begun, mut least) = (Instant::now(), u64::MAX);
    until("they are back", || one.is_connected() && other.is_connected());
    // Past the grace of one lease.
    while begun.elapsed() < Duration::from_secs(15) {
        assert!(know(&one, &other), "{}{}", one.report(), other.report());
        least = least.min(carried(&mut a, &mut b));
    }
    println!("at least {least} bytes in each 0.3 s");
    assert!(least > 100_000);
    assert!(one.report().refused.is_empty() && other.report().refused.is_empty(), "{}{}", one.report(), other.report());
    // A host that dies is forgotten with its lease.
    drop(b);
    other.end(Signal::KILL);
    until("the dead host has gone", || one.report().hosts.is_empty() && one.place(2).is_none());
}

#[test]
fn of_three_etcd_servers_one_may_die_and_with_two_dead_nothing_is_lost() {
    let (place, mut cluster) = (TempDir::new().unwrap(), Cluster::start::<3>());
    cluster.put("config", GROUPS);
    let ends = addresses::<2>();
    let one = Host::start(place.path(), "one", &ends[0], &cluster, &[("vmxnet3", "web", 1)]);
    let other = Host::start(place.path(), "other", &ends[1], &cluster, &[("vmxnet3", "web", 2)]);
    let (mut a, mut b) = (one.guest("vmxnet3", 1), other.guest("vmxnet3", 2));
    let both = |is: &dyn Fn(&Host) -> bool| is(&one) && is(&other);
    until("they know each other", || one.place(2).is_some() && other.place(1).is_some());
    for member in 0..3 {
        cluster.kill(member);
        assert!(carried(&mut a, &mut b) > 100_000);
        // A change is made by the two that are left, and reaches all hosts.
        cluster.put("config", format!("{GROUPS}# {member}\n"));
        let version = one.report().config;
        until("the change is there", || both(&|host| host.is_connected() && host.report().config >= version));
        cluster.run(member);
        cluster.ready();
    }
    cluster.kill(0);
    cluster.kill(1);
    until("they say that there is no majority", || both(&|host| !host.is_connected()));
    assert!(one.place(2).is_some() && carried(&mut a, &mut b) > 100_000 && carried(&mut b, &mut a) > 100_000);
    cluster.run(0);
    until("they are back", || both(&Host::is_connected));
    assert!(one.place(2).is_some() && carried(&mut a, &mut b) > 100_000);
}

#[test]
fn a_second_host_with_a_name_or_an_address_that_is_taken_is_refused_with_both() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let ends = addresses::<3>();
    let one = Host::start(place.path(), "one", &ends[0], &cluster, &[("e1000", "web", 1)]);
    until("it is there", || one.is_connected());
    // The same name in another folder.
    let twin = Host::start(&place.path().join("twin"), "one", &ends[1], &cluster, &[("e1000", "web", 2)]);
    until("it is refused", || twin.report().connection == Connection::Refused);
    let why = twin.report().why_not.unwrap();
    assert!(why.contains(&ends[0]) && why.contains(&ends[1]), "{why}");
    until("the log says so", || twin.log().contains("this host is refused"));
    assert!(one.is_connected());
    // A copy of the machine, with all that its daemon has kept, and an address of its own.
    until("its last known state is kept", || one.kept().exists());
    let copy = Host::new(&place.path().join("copy"), "one", &ends[2], &cluster, &[("e1000", "web", 3)]);
    std::fs::copy(one.kept(), copy.kept()).unwrap();
    let mut copy = copy;
    copy.serve();
    until("the copy is refused", || copy.report().connection == Connection::Refused);
    let why = copy.report().why_not.unwrap();
    assert!(why.contains(&ends[0]) && why.contains(&ends[2]) && why.contains("give it another name"), "{why}");
    let record = cluster.value("host/one").unwrap();
    assert!(one.is_connected() && record.contains(&ends[0]), "{record}");
    // Once the first one has ended, the copy is the host of that name.
    let mut one = one;
    one.end(Signal::TERM);
    drop(twin);
    until("the copy takes its place", || copy.is_connected());
}
