//! Uplinks that carry a group's VLAN: the network outside the fabric, and loops through it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nicety_adapter::{Batch, Budget, Counters, Frames, Pick, PortId, Time, Uplink};
use nicety_daemon::report::Condition;
use nicety_memory::Map;
use nicety_uplink::Pair;
use serde_json::json;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::etcd_servers::addresses;
use crate::{GROUPS, Host, carried, until};

/// Longest frame on the network outside.
const FRAME_MAX: usize = 1514;
/// ARP (RFC 826), behind two addresses.
const ARP: [u8; 2] = [8, 6];

/// A port of a physical bridge: the other end of a host's uplink.
struct End {
    uplink: Pair,
    map: Arc<Map>,
    counters: Counters,
}

impl End {
    fn of(host: &Host) -> Self {
        let map = Arc::new(Map::private(2048).unwrap());
        Self { uplink: Pair::connect(host.dir.join("outside.sock")).unwrap(), map, counters: Counters::default() }
    }

    /// The frames that the host has sent.
    fn take(&mut self) -> Vec<Vec<u8>> {
        let (mut batch, mut frames) = (Batch::new(), Vec::new());
        loop {
            let progress = self.uplink.fetch(PortId(9), Budget::TURN, &mut batch, &mut self.counters, Time::ZERO);
            frames.extend(batch.packets().iter().map(|packet| {
                let mut frame = vec![0; FRAME_MAX];
                let len = batch.copy(packet, &mut frame);
                frame.truncate(len);
                frame
            }));
            self.uplink.complete(&batch);
            if !progress.more {
                return frames;
            }
        }
    }

    fn send(&mut self, frame: &[u8]) {
        self.map.write(0, frame).unwrap();
        let mut batch = Batch::new();
        batch.start(&self.map, PortId(9), 0);
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        draft.finish_plain(0);
        let _full = self.uplink.deliver(&Frames::new(&batch, &[Pick::whole(0)]), &mut self.counters, Time::ZERO);
    }
}

/// Adds an uplink into VLAN 10, the network outside, to a host that does not serve yet.
fn with_uplink(host: Host) -> Host {
    let file = host.dir.join("host.toml");
    let uplink = "\n[[uplink]]\nkind = \"pair\"\nname = \"outside\"\nsocket = \"outside.sock\"\nvlan = 10\n";
    std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + uplink).unwrap();
    host
}

fn gateway(place: &Path, name: &str, address: &str, cluster: &Cluster, ports: &[(&str, &str, u8)]) -> Host {
    let mut host = with_uplink(Host::new(place, name, address, cluster, ports));
    host.serve();
    host
}

/// A guest asks for an address that nobody has, by broadcasts.
fn asks(guest: &mut crate::Station) {
    let answer = guest.asked(&json!({ "send": { "to": [10, 0, 0, 250], "seconds": 0.05 } }));
    assert_eq!(answer, json!({ "sent": { "bytes": 0 } }));
}

#[test]
fn a_group_reaches_a_network_outside_by_a_host_that_has_no_port_in_it() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let [one, edge] = addresses();
    let one = Host::start(place.path(), "one", &one, &cluster, &[("e1000", "web", 1)]);
    let edge = gateway(place.path(), "edge", &edge, &cluster, &[]);
    let mut outside = End::of(&edge);
    let mut guest = one.guest("e1000", 1);
    let claim = |cluster: &Cluster| cluster.keys().iter().any(|(key, _)| key.ends_with("/at/web/edge/uplink"));
    until("the uplink is known", || claim(&cluster) && one.report().groups[0].hosts == 1);
    let heard = |outside: &mut End, guest: &mut crate::Station| {
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            asks(guest);
            if outside.take().iter().any(|frame| frame[12..14] == ARP && frame[..6] == [0xff; 6]) {
                return true;
            }
        }
        false
    };
    assert!(heard(&mut outside, &mut guest), "{}{}", one.report(), edge.log());
    // The network outside asks for the guest, and it answers.
    let [a, b, c, last] = guest.address;
    let station = [2, 0, 0, 0, 0, 0x99];
    let (head, asked) = ([0, 1, 8, 0, 6, 4, 0, 1], [a, b, c, last]);
    let mut ask = [&[0xff; 6], &station[..], &ARP, &head, &station, &[10, 0, 0, 99], &[0; 6], &asked].concat();
    ask.resize(60, 0);
    until("the guest answers", || {
        outside.send(&ask);
        outside.take().iter().any(|frame| frame[..6] == station && frame[12..14] == ARP)
    });
    // Its port list says so to an administrator.
    let listed = edge.says(&["fabric", "port", "list", "--etcd", &cluster.endpoints(), "--fabric", "prod"]);
    assert!(listed.lines().any(|line| line.split_whitespace().eq(["web", "outside", "uplink", "edge"])), "{listed}");
    // Without the VLAN there is nothing to be had.
    edge.says(&["uplink", "set", "outside", "vlan=30"]);
    until("the claim has gone", || !claim(&cluster) && one.report().groups[0].hosts == 0);
}

#[test]
fn of_two_hosts_with_uplinks_into_one_bridge_one_loses_its_uplink_and_its_tunnel_goes_on() {
    let (place, cluster) = (TempDir::new().unwrap(), Cluster::start::<1>());
    cluster.put("config", GROUPS);
    let [one, other] = addresses();
    let one = gateway(place.path(), "one", &one, &cluster, &[("e1000", "web", 1)]);
    let other = gateway(place.path(), "other", &other, &cluster, &[("e1000", "web", 2)]);
    let (mut a, mut b) = (one.guest("e1000", 1), other.guest("e1000", 2));
    until("they know each other", || one.place(2).is_some() && other.place(1).is_some());
    let (mut ends, is_over) = ([End::of(&one), End::of(&other)], Arc::new(AtomicBool::new(false)));
    let ended = Arc::clone(&is_over);
    // The physical bridge.
    let bridge = std::thread::spawn(move || {
        let mut passed = 0;
        while !ended.load(Ordering::Relaxed) {
            for (from, to) in [(0, 1), (1, 0)] {
                let frames = ends[from].take();
                passed += frames.len();
                frames.iter().for_each(|frame| ends[to].send(frame));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        passed
    });
    let blocked = || {
        let hosts = [&one, &other].into_iter();
        hosts.filter(|host| host.port("outside").condition == Condition::Blocked).collect::<Vec<_>>()
    };
    until("the loop is found", || {
        asks(&mut a);
        asks(&mut b);
        !blocked().is_empty()
    });
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        asks(&mut a);
        asks(&mut b);
    }
    let [host] = blocked()[..] else { panic!("{}{}", one.log(), other.log()) };
    let sentence = host.port("outside").sentence;
    let start = "it leads into a network that the fabric's tunnel tunnel carries, and frames went round, for another host has an uplink \
                 there, too: keep one of these uplinks, and take the VLAN away from the others";
    assert!(sentence.starts_with(start), "{sentence}");
    assert!(host.log().contains("outside, for the other one is the fabric's tunnel, is blocked"), "{}", host.log());
    for host in [&one, &other] {
        let tunnel = host.port("tunnel");
        assert_eq!(tunnel.condition, Condition::Up, "{}: {}", host.name, tunnel.sentence);
    }
    assert!(carried(&mut a, &mut b) > 100_000 && carried(&mut b, &mut a) > 100_000);
    is_over.store(true, Ordering::Relaxed);
    let passed = bridge.join().unwrap();
    println!("{passed} frames passed the bridge");
    // A host that has lost its uplink claims nothing by it.
    let gone = format!("/at/web/{}/uplink", host.name);
    until("its claim has gone", || !cluster.keys().iter().any(|(key, _)| key.ends_with(&gone)));
}
