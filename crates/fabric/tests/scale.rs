//! What one host's machine costs in a fabric of 1,000 hosts and 10,000 ports: bytes, time for a change, watches. Figures:
//! `cargo test --release -p nicety-fabric --test scale -- --nocapture`.

use std::collections::BTreeSet;
use std::time::Instant;

use nicety_adapter::Time;
use nicety_fabric::{
    Action, ClaimRecord, Entry, Event, Fabric, Found, HostRecord, Key, Keys, Me, Name, Outcome, Scope, Settings, Terms,
    WatchId,
};
use nicety_frame::Mac;

const HOSTS: u16 = 1_000;
const PORTS: u32 = 10_000;
/// Each group has a tenth of the ports.
const GROUPS: u32 = 10;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn mac(port: u32) -> Mac {
    let [_, a, b, c] = port.to_be_bytes();
    Mac([2, 0, 0, a, b, c])
}

/// This process's memory, in bytes (proc(5), `VmRSS`).
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

struct Bench {
    keys: Keys,
    fabric: Fabric,
    revision: i64,
    watches: Vec<(WatchId, Scope)>,
    told: usize,
}

impl Bench {
    fn entry(&self, key: &Key, value: String, modified: i64) -> Entry {
        Entry {
            key: self.keys.text(key).into_bytes(),
            value: value.into_bytes(),
            created: modified,
            modified,
            lease: 7,
        }
    }

    fn claim(&self, port: u32, host: u16, sequence: u64, modified: i64) -> Entry {
        let key = Key::At {
            group: name(&format!("g{}", port % GROUPS)),
            host: name(&format!("node-{host:04}")),
            mac: mac(port),
        };
        let record = ClaimRecord { port: name(&format!("vm-{port:05}")), sequence };
        self.entry(&key, record.text(), modified)
    }

    fn read(&self, scope: &Scope) -> Vec<Entry> {
        match scope {
            Scope::Config => {
                let groups = (0..GROUPS).map(|n| format!("[[port_group]]\nname = \"g{n}\"\nvni = {}\n", n + 1));
                vec![self.entry(&Key::Config, format!("format = 1\n{}", groups.collect::<String>()), 2)]
            }
            Scope::Hosts => (1..HOSTS)
                .flat_map(|n| {
                    let [high, low] = n.to_be_bytes();
                    let address = [10, 0, high, low].into();
                    let host = name(&format!("node-{n:04}"));
                    let record = HostRecord { address, mtu: 1500, run: u64::from(n), version: "0.1.0".to_owned() };
                    [
                        self.entry(&Key::Tunnel { host: host.clone(), address }, "{}".to_owned(), 3),
                        self.entry(&Key::Host(host), record.text(), 3),
                    ]
                })
                .collect(),
            Scope::Group(group) => (0..PORTS)
                .filter(|port| *group == name(&format!("g{}", port % GROUPS)))
                .map(|port| self.claim(port, 1 + (port % u32::from(HOSTS - 1)) as u16, 4, 4))
                .collect(),
        }
    }

    /// A store that answers at once.
    fn settle(&mut self) {
        while let Some(action) = self.fabric.action() {
            let now = Time(1);
            self.revision += 1;
            let event = match action {
                Action::Read { call, scope } => {
                    let entries = self.read(&scope);
                    Event::Read { call, result: Ok(Found { revision: self.revision, entries }) }
                }
                Action::Watch { watch, scope, .. } => {
                    self.watches.push((watch, scope));
                    continue;
                }
                Action::Grant { call, .. } => Event::Granted { call, result: Ok(9) },
                Action::Transact { call, .. } => {
                    let outcome = Outcome { is_done: true, revision: self.revision, found: None };
                    Event::Transacted { call, result: Ok(outcome) }
                }
                Action::Config { revision, .. } => {
                    self.fabric.applied(revision, Ok(()), now);
                    continue;
                }
                Action::Tell { .. } => {
                    self.told += 1;
                    continue;
                }
                _ => continue,
            };
            self.fabric.event(event, now);
        }
    }
}

#[test]
fn a_thousand_hosts_and_ten_thousand_ports_are_little_work_for_each_host() {
    let before = resident();
    let me = Me { host: name("node-0000"), address: [10, 0, 0, 0].into(), mtu: 1500, version: "0.1.0".to_owned() };
    let settings = Settings { fabric: name("lab"), me, run: 1, seed: 1, terms: Terms::default() };
    let fabric = Fabric::new(settings, Time(0));
    let keys = Keys::new(&name("lab"));
    let mut bench = Bench { keys, fabric, revision: 10, watches: Vec::new(), told: 0 };
    let groups: BTreeSet<Name> = (0..GROUPS).map(|n| name(&format!("g{n}"))).collect();
    bench.fabric.needs(&groups, Time(0));
    let begun = Instant::now();
    bench.settle();
    let read = begun.elapsed();
    assert_eq!((bench.told, bench.watches.len()), (PORTS as usize, 2 + GROUPS as usize));
    let bytes = resident().saturating_sub(before);

    // Every port moves to the next host: its new claim, and the end of the old one.
    let begun = Instant::now();
    for port in 0..PORTS {
        let old = 1 + (port % u32::from(HOSTS - 1)) as u16;
        let new = 1 + old % (HOSTS - 1);
        bench.revision += 2;
        let entry = bench.claim(port, new, 5, bench.revision - 1);
        let gone = bench.claim(port, old, 5, bench.revision).key;
        let group = Scope::Group(name(&format!("g{}", port % GROUPS)));
        let watch = bench.watches.iter().find(|(_, scope)| *scope == group).unwrap().0;
        bench.fabric.event(Event::Put { watch, entry }, Time(2));
        bench.fabric.event(Event::Delete { watch, key: gone, revision: bench.revision }, Time(2));
        bench.settle();
    }
    let moves = begun.elapsed();
    assert_eq!(bench.told, 2 * PORTS as usize, "each move is told once");

    // A host dies with its ten ports: one revision, which each watch tells.
    let begun = Instant::now();
    let watch = bench.watches.iter().find(|(_, scope)| *scope == Scope::Hosts).unwrap().0;
    for n in 1..=100_u16 {
        let key = bench.keys.text(&Key::Host(name(&format!("node-{n:04}")))).into_bytes();
        bench.revision += 1;
        bench.fabric.event(Event::Delete { watch, key, revision: bench.revision }, Time(3));
        bench.settle();
    }
    let deaths = begun.elapsed() / 100;
    let per_second = f64::from(2 * PORTS) / moves.as_secs_f64();
    println!(
        "{} KiB resident; all read in {read:.1?}; {per_second:.0} changes/s; a host's death {deaths:.1?}; {} watches",
        bytes / 1024,
        bench.watches.len()
    );
    // Bounds that a slow machine's debug build keeps too.
    assert!(bytes < 32 << 20, "{bytes} bytes");
    assert!(per_second > 2_000.0, "{per_second} changes a second");
}
