//! Three hosts of a fabric, each in a network namespace of its own, and three servers of etcd: one bridge joins all. Daemons and servers are
//! killed, and stand still; the wire between two hosts is cut. Meanwhile guests send to each other, and each frame is accounted for.
//!
//! ```text
//!   one: guests 1, 4       other: guests 2, 5       third: guest 3
//!      │ veth0                │ veth0                  │ veth0
//!      └──────────────────── bridge ───────────────────┘
//!                     three servers of etcd
//! ```
//! Guests 1, 2 and 3 are in group `web`, guests 4 and 5 in group `db`.

mod daemons;
mod servers;
mod traffic;
mod wire;

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use self::traffic::Traffic;
use super::far::{elsewhere::Elsewhere, sh};
use super::*;

/// The time to live of a host's lease.
const LEASE: Duration = Duration::from_secs(10);
/// Hosts that can reach etcd and each other know each other's guests within this time, on a busy machine.
const MEET: Duration = LEASE;
/// etcd ends a lease up to half a second late (`expiredLeaseRetryInterval` and `lease/lessor.go`), and a busy machine needs a while.
const LATE: Duration = Duration::from_secs(4);
const NAMES: [&str; 3] = ["one", "other", "third"];
/// The ports of each host: group, number.
const PORTS: [&[(&str, u8)]; 3] = [&[("web", 1), ("db", 4)], &[("web", 2), ("db", 5)], &[("web", 3)]];

/// Runs the named test of this file again, in namespaces of its own. True inside of them.
fn inside(test: &str) -> bool {
    let bridge = "ip link add under type bridge && ip link add va type veth peer name vb";
    again::inside(test, "-Urn", || again::refusal(&["-Urn", "sh", "-c", bridge], "a bridge in a network namespace"))
}

/// Whether all that takes long is tried.
fn is_full() -> bool {
    std::env::var_os("NICETY_FULL").is_some_and(|value| value == "1")
}

/// The tunnel's address of a host.
fn address(host: usize) -> String {
    format!("192.0.2.{}", host + 1)
}

/// See the module's page.
struct Three {
    cluster: Cluster,
    hosts: [Host; 3],
    spaces: [Elsewhere; 3],
    traffic: Traffic,
    _place: TempDir,
}

impl Three {
    /// All is well: each guest reaches all others of its group.
    fn start() -> Self {
        let place = TempDir::new().unwrap();
        let servers = [101, 102, 103].map(|last| format!("192.0.2.{last}"));
        sh(&format!("ip link set lo up && ip link add under type bridge && ip link set under mtu {MTU} up"));
        servers.iter().for_each(|server| sh(&format!("ip address add {server}/24 dev under")));
        let spaces = [0, 1, 2].map(|host| {
            let space = Elsewhere::new();
            sh(&format!(
                "ip link add near{host} type veth peer name veth0 netns {} && ip link set near{host} mtu {MTU} master under up",
                space.id()
            ));
            space.run(|| {
                let own = address(host);
                sh(&format!("ip link set lo up && ip address add {own}/24 dev veth0 && ip link set veth0 mtu {MTU} up"));
            });
            space
        });
        let cluster = Cluster::start_at(servers.into(), &[]);
        cluster.ready();
        cluster.put("config", GROUPS);
        let hosts = [0, 1, 2].map(|host| {
            let ports: Vec<_> = PORTS[host].iter().map(|(group, number)| ("virtio-net", *group, *number)).collect();
            Host::new(place.path(), NAMES[host], &address(host), &cluster, &ports)
        });
        let mut this = Self { cluster, hosts, spaces, traffic: Traffic::default(), _place: place };
        (0..3).for_each(|host| this.serve(host));
        this.meet("at first");
        this.until("their last known state is kept", |this| this.hosts.iter().all(|host| host.kept().exists()));
        this.during(Duration::from_secs(2));
        this
    }

    /// Starts a host's daemon, and connects its guests.
    fn serve(&mut self, host: usize) {
        self.spaces[host].run(|| self.hosts[host].serve());
        for (group, number) in PORTS[host] {
            self.traffic.join(*number, group, self.hosts[host].socket(*number));
        }
    }

    /// Kills a host's daemon. Its guests have lost their adapters.
    fn kill(&mut self, host: usize) {
        self.hosts[host].end(Signal::KILL);
        PORTS[host].iter().for_each(|(_, number)| self.traffic.leave(*number));
    }

    fn signal(&mut self, host: usize, signal: Signal) {
        kill_process(Pid::from_child(self.hosts[host].child()), signal).unwrap();
    }

    /// Guests of all hosts but this one.
    fn guests_but(&self, host: usize) -> Vec<u8> {
        (0..3).filter(|other| *other != host).flat_map(|other| PORTS[other].iter().map(|(_, number)| *number)).collect()
    }

    /// Sends until this is done, and looks at each frame that comes.
    fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + SOON;
        while !done(self) {
            assert!(Instant::now() < end, "{what}: not within {SOON:?}\n{}", self.logs());
            self.traffic.step();
        }
    }

    /// Sends for so long, and looks at each frame that comes.
    fn during(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.traffic.step();
        }
    }

    /// All guests reach each other within [`MEET`], and all hosts and etcd agree on where they are.
    fn meet(&mut self, when: &str) {
        let begun = Instant::now();
        self.traffic.mark();
        let mut missing = self.traffic.unheard();
        while !missing.is_empty() {
            assert!(
                begun.elapsed() < MEET,
                "{when}: no frame has passed within {MEET:?}: {missing:?}, {:?}\n{}",
                self.disagreement(),
                self.logs()
            );
            self.traffic.step();
            missing = self.traffic.unheard();
        }
        println!("{when}: all guests reach each other after {:?}", begun.elapsed());
        self.until("all hosts are connected", |this| this.hosts.iter().all(Host::is_connected));
        self.until("they agree", |this| this.disagreement().is_none());
    }

    /// The first thing on which the hosts and etcd differ, or that is in etcd twice.
    fn disagreement(&self) -> Option<String> {
        let keys = self.cluster.keys();
        let claims: Vec<&str> =
            keys.iter().filter_map(|(key, _)| key.split_once("/at/")).map(|(_, rest)| rest).collect();
        let mut expected = Vec::new();
        for (host, ports) in PORTS.iter().enumerate() {
            expected.extend(ports.iter().map(|(group, number)| format!("{group}/{}/{}", NAMES[host], mac(*number))));
        }
        expected.sort();
        if claims != expected {
            return Some(format!("etcd has {claims:?}"));
        }
        for (host, ports) in PORTS.iter().enumerate() {
            let has_group = |from: usize, group: &str| PORTS[from].iter().any(|(of, _)| *of == group);
            for (group, number) in *ports {
                for from in (0..3).filter(|from| has_group(*from, group)) {
                    let place = self.hosts[from].place(*number);
                    if place.as_deref() != Some(NAMES[host]) {
                        return Some(format!("host {} has guest {number} at {place:?}", NAMES[from]));
                    }
                }
            }
        }
        None
    }

    /// The revisions at which the keys of this host were made.
    fn keys_of(&self, host: usize) -> Vec<(String, i64)> {
        let is_own =
            |key: &str| key.ends_with(&format!("/host/{}", NAMES[host])) || key.contains(&format!("/{}/", NAMES[host]));
        self.cluster.keys().into_iter().filter(|(key, _)| is_own(key)).collect()
    }

    fn logs(&self) -> String {
        let log = |host: &Host| {
            let tunnel = serde_json::to_string(&host.port("tunnel")).unwrap();
            format!("{}: {tunnel}\n{}{}", host.name, host.report(), host.log())
        };
        self.hosts.iter().map(log).collect::<Vec<_>>().join("\n")
    }
}
