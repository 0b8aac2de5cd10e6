//! Three hosts of a fabric, each a network namespace with a daemon, joined by a bridge on which etcd runs: unmodified drivers of three
//! chips reach each other through the tunnels, with jumbo frames, groups, guards and I/O control across hosts.

mod moved;
pub mod requests;
pub mod sender;

use std::path::Path;
use std::time::Instant;

use nicety_guests::{Etcd, Folder, Guest, Layer, Namespace, Port, Root, Served, Setup};
use nicety_lab::real::veth::Veth;

use crate::{
    stage::{LATER, SOON, address, mac, ping, port, quiet, send, send_blocks, sh, usual, well},
    user_mode::{machine, take},
};

/// MTU of the network between the hosts, and what VXLAN over IPv4 leaves of it.
const UNDER: u32 = 9000;
const INNER: u32 = UNDER - 50;
/// etcd's address there, and for hosts that have one network.
const ETCD: &str = "192.0.2.254";
pub const LOOPBACK: &str = "127.0.0.1";
/// The ports of each host: adapter, group, number.
const HOSTS: [&[(&str, &str, u8)]; 3] = [
    &[("e1000", "web", 1), ("e1000e", "db", 4)],
    &[("vmxnet3", "web", 2)],
    &[("virtio-net", "web", 3), ("igb", "db", 5)],
];
/// Numbers of the guests in group `web`, and in `db`.
const WEB: [u8; 3] = [1, 2, 3];
const DB: [u8; 2] = [4, 5];
/// The rate of group `web` on each tunnel, once it has one.
const LIMIT: &str = "20Mbit/s";
const LIMIT_BYTES: f64 = 20e6 / 8.0;
/// Blocks of 64 KiB that are sent while it has one.
const LIMITED_BLOCKS: u32 = 64;

/// Three hosts, and the guests at their ports.
struct Fabric {
    hosts: Vec<Served>,
    namespace: Namespace,
    guests: Vec<Guest>,
    _etcd: Folder,
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_nicety"))
}

/// The lines of a host's file that make it a host of the fabric: its name, its tunnel's address, and etcd's.
pub fn host_tables(host: &str, address: &str, etcd: &str) -> String {
    format!(
        "\n[fabric]\nname = \"prod\"\nhost = \"{host}\"\ntunnel = \"tunnel\"\netcd = \"http://{etcd}:2379\"\n\n\
         [[uplink]]\nkind = \"vxlan\"\nname = \"tunnel\"\naddress = \"{address}\"\nmtu = {UNDER}\n"
    )
}

impl Fabric {
    fn new() -> Fabric {
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let mut namespace = well(Namespace::open(&root));
        let bridge = format!(
            "ip link add under type bridge && ip link set under mtu {UNDER} && ip addr add {ETCD}/24 dev under && ip link set under up"
        );
        well(namespace.run(&bridge, SOON));
        let folder = start_etcd(&mut namespace, ETCD);
        let mut hosts = Vec::new();
        for (number, ports) in (1..).zip(HOSTS) {
            let near = format!("near{number}");
            let veth = well(Veth::named(&mut namespace, &root, &near, &format!("192.0.2.{number}/24")));
            let entrance = veth.entrance();
            let inside: Vec<String> = entrance.iter().map(|word| format!("'{word}'")).collect();
            let joined = format!(
                "ip link set {near} mtu {UNDER} && ip link set {near} master under && {} \"$busybox\" ip link set veth0 mtu {UNDER}",
                inside.join(" ")
            );
            well(namespace.run(&joined, SOON));
            well(veth.wait(&mut namespace));
            let of_group = |(adapter, group, number): &(&str, &str, u8)| Port {
                more: format!("port_group = \"{group}\"\n"),
                ..port(adapter, *number)
            };
            let daemon_more = host_tables(&format!("host{number}"), &format!("192.0.2.{number}"), ETCD);
            let setup = Setup { before: entrance, daemon_more, ..Setup::default() };
            hosts.push(well(Served::start_as(program(), &mut namespace, ports.iter().map(of_group).collect(), setup)));
        }
        let guests = HOSTS.iter().zip(&hosts).flat_map(|(ports, served)| {
            ports.iter().map(|(_, _, number)| {
                let guest = machine(1);
                let guest = nicety_guests::Machine::address(guest, "eth0", &format!("{}/24", address(*number)));
                (*number, well(Guest::start(&root, served.attach(guest, &format!("vm{number}")))))
            })
        });
        let mut guests: Vec<(u8, Guest)> = guests.collect();
        guests.iter_mut().for_each(|(_, guest)| well(guest.wait_ready()));
        guests.sort_by_key(|(number, _)| *number);
        let guests = guests.into_iter().map(|(_, guest)| guest).collect();
        Fabric { hosts, namespace, guests, _etcd: folder }
    }

    /// Two guests by their numbers.
    fn both(&mut self, numbers: [u8; 2]) -> [&mut Guest; 2] {
        well(self.guests.get_disjoint_mut(numbers.map(|number| usize::from(number) - 1)).map_err(|_| "two guests"))
    }

    fn guest(&mut self, number: u8) -> &mut Guest {
        &mut self.guests[usize::from(number) - 1]
    }

    /// A command of the program in the network of etcd.
    fn command(&mut self, words: &str) -> String {
        well(self.namespace.run(&format!("'{}' {words}", program().display()), LATER))
    }

    /// A command for the daemon of a host.
    fn on_host(&mut self, host: usize, words: &str) -> String {
        let control = self.hosts[host].socket("control.sock");
        self.command(&format!("{words} --control '{}'", control.display()))
    }

    fn report(&self, host: usize, port: &str) -> serde_json::Value {
        let text = self.hosts[host].get(&format!("/v1/ports/{port}")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{}", self.hosts[host].log()))
    }

    fn drops(&self, host: usize, port: &str, direction: &str, reason: &str) -> u64 {
        self.report(host, port)[direction][reason].as_u64().unwrap_or(0)
    }

    /// Waits until each host knows the addresses of all guests in its groups.
    fn meet(&self) {
        // web: two others on each host; db: one on the first and on the third host.
        let wanted = [3, 2, 3];
        let end = Instant::now() + SOON;
        let claims = |host: &Served| -> u64 {
            let report = host.get("/v1/fabric").and_then(|text| serde_json::from_str(&text).ok());
            report.and_then(|report: serde_json::Value| report["claims"].as_u64()).unwrap_or(0)
        };
        while self.hosts.iter().zip(wanted).any(|(host, wanted)| claims(host) < wanted) {
            let all: Vec<u64> = self.hosts.iter().map(claims).collect();
            assert!(Instant::now() < end, "{all:?} addresses of {wanted:?} are known\n{}", self.hosts[0].log());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// Starts etcd at this address, and makes the fabric.
pub fn start_etcd(namespace: &mut Namespace, address: &str) -> Folder {
    let etcd = well(Etcd::lay(&mut |line| eprintln!("{line}")));
    let folder = well(Folder::new());
    let mut command = etcd.command();
    let client = format!("http://{address}:2379");
    command.arg(format!("--data-dir={}", folder.join("data")));
    command.args([format!("--listen-client-urls={client}"), format!("--advertise-client-urls={client}")]);
    command.args(["--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync"]);
    well(namespace.start(&command, &folder.path().join("log")));
    let at = format!("--fabric prod --etcd {client}");
    let (nicety, end) = (program().display(), Instant::now() + SOON);
    while let Err(error) = namespace.run(&format!("'{nicety}' fabric init {at} 2>&1"), LATER) {
        let log = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        assert!(Instant::now() < end, "{error}\n{}", log());
    }
    for group in ["web vni=5010 vlan=10 forged_transmits=reject", "db vni=5020 vlan=20"] {
        well(namespace.run(&format!("'{nicety}' fabric group add {group} {at} 2>&1"), LATER));
    }
    folder
}

fn set_mtu(guest: &mut Guest, mtu: u32) {
    sh(guest, &format!("ip link set eth0 mtu {mtu}; until has_carrier eth0; do rest; done"));
}

/// Jumbo frames that fill the tunnel, and TCP each way with compared bytes, between guests of each two hosts.
fn carry_jumbo_frames(fabric: &mut Fabric) {
    for number in WEB {
        set_mtu(fabric.guest(number), INNER);
    }
    for [one, other] in [[1, 2], [2, 3], [3, 1]] {
        let [from, to] = fabric.both([one, other]);
        ping(from, &format!("-M do -s {}", INNER - 28), &address(other));
        send(from, to, &address(other), usual(8));
        send(to, from, &address(one), usual(8));
    }
    for host in 0..3 {
        assert_eq!(fabric.drops(host, "tunnel", "receive_drops", "too-long"), 0, "host {host}");
    }
}

/// Guests whose MTU is larger than what the tunnel leaves are told so, and their TCP goes on.
fn tell_the_mtu(fabric: &mut Fabric, ip: &Layer) {
    for number in [1, 2] {
        set_mtu(fabric.guest(number), UNDER);
    }
    let [one, other] = fabric.both([1, 2]);
    take(one, ip, &["usr/sbin/ip"]);
    // One learns it from its own packets, which its adapter has uncut, the other one from a request.
    send(other, one, &address(1), usual(8));
    let request = format!("/usr/bin/ping -n -c 3 -i 0.2 -W 1 -M do -s {} {}", UNDER - 28, address(2));
    let asked = sh(one, &format!("{request} 2>&1 || true"));
    assert!(asked.contains(&format!("mtu = {INNER}")) && !asked.contains("bytes from"), "{asked}");
    let way = sh(one, &format!("/usr/sbin/ip route get {}", address(2)));
    assert!(way.contains(&format!("mtu {INNER}")), "{way}");
    send(one, other, &address(2), usual(8));
    for host in [0, 1] {
        assert!(fabric.drops(host, "tunnel", "receive_drops", "too-long") > 0, "host {host}");
        let says = format!("an MTU of {UNDER} leaves guests one of {INNER}");
        let sentence = fabric.report(host, "tunnel")["sentence"].to_string();
        assert!(sentence.contains(&says), "{sentence}");
        let status = fabric.on_host(host, "fabric status");
        assert!(status.contains(&format!("guests have an MTU of at most {INNER}")), "{status}");
    }
}

/// A group's guests reach each other on two hosts, and none of another group, on this host or another.
fn keep_groups_apart(fabric: &mut Fabric) {
    ping(fabric.guest(DB[0]), "", &address(DB[1]));
    for (from, to) in [(4, 1), (4, 2), (5, 3), (1, 4), (2, 5)] {
        let guest = fabric.guest(from);
        sh(guest, &format!("! /usr/bin/ping -n -q -c 1 -W 1 {}", address(to)));
        let neighbours = sh(guest, "cat /proc/net/arp");
        assert!(!neighbours.contains(&mac(to)), "{from} has heard {to}: {neighbours}");
    }
}

/// A guest that sends from another address than its own reaches nobody, on whichever host it is.
fn refuse_forged_addresses(fabric: &mut Fabric) {
    for (host, number, peer) in [(0, 1, 2), (1, 2, 3), (2, 3, 1)] {
        let port = format!("vm{number}");
        let before = fabric.drops(host, &port, "transmit_drops", "forged-transmit");
        let change = |to: &str| {
            format!(
                "ip link set eth0 down; ip link set eth0 address {to}; ip link set eth0 up; until has_carrier eth0; do rest; done"
            )
        };
        let guest = fabric.guest(number);
        sh(guest, &change("52:54:00:66:66:66"));
        sh(guest, &format!("! /usr/bin/ping -n -q -c 1 -W 1 {}", address(peer)));
        sh(guest, &change(&mac(number)));
        ping(guest, "", &address(peer));
        assert!(
            fabric.drops(host, &port, "transmit_drops", "forged-transmit") > before,
            "{}",
            fabric.report(host, &port)
        );
    }
}

/// A class of the group on each host's tunnel has a limit, and the other group has none.
fn limit_a_group(fabric: &mut Fabric) {
    for host in 0..3 {
        fabric.on_host(host, &format!("class add tunnel/web groups=web limit={LIMIT} --yes"));
    }
    let least = f64::from(LIMITED_BLOCKS) * 65_536.0 / LIMIT_BYTES;
    let mut timed = |from: u8, to: u8| {
        let [guest, other] = fabric.both([from, to]);
        let begin = Instant::now();
        send_blocks(guest, other, &address(to), LIMITED_BLOCKS);
        begin.elapsed().as_secs_f64()
    };
    let limited = [timed(1, 2), timed(3, 1)];
    println!("limited to {LIMIT}: {limited:.2?} s of at least {least:.2}");
    assert!(limited.iter().all(|seconds| *seconds > least * 0.95), "{limited:?} of {least}");
    let classes = fabric.report(0, "tunnel")["io_classes"].to_string();
    assert!(classes.contains("\"web\""), "{classes}");
    let free = timed_db(fabric);
    println!("the other group: {free:.2} s");
    assert!(free < limited[0].min(limited[1]), "{free} of {limited:?}");
}

fn timed_db(fabric: &mut Fabric) -> f64 {
    let [guest, other] = fabric.both(DB);
    let begin = Instant::now();
    send_blocks(guest, other, &address(DB[1]), LIMITED_BLOCKS);
    begin.elapsed().as_secs_f64()
}

/// A part of the test.
type Step<'a> = &'a dyn Fn(&mut Fabric);

#[test]
fn guests_of_three_hosts_with_three_chips_are_one_network_with_its_groups_guards_and_limits() {
    let ip = well(Layer::lay("iproute2", &["iproute2"], &mut |line| eprintln!("{line}")));
    let mut fabric = Fabric::new();
    fabric.meet();
    let steps: [(&str, Step<'_>); 5] = [
        ("groups", &keep_groups_apart),
        ("jumbo frames", &carry_jumbo_frames),
        ("too long", &|fabric| tell_the_mtu(fabric, &ip)),
        ("forged", &refuse_forged_addresses),
        ("limits", &limit_a_group),
    ];
    for (what, step) in steps {
        let begin = Instant::now();
        step(&mut fabric);
        println!("{what}: {:.1?}", begin.elapsed());
    }
    fabric.guests.iter_mut().for_each(quiet);
    for (host, ports) in HOSTS.iter().enumerate() {
        for (_, _, number) in *ports {
            let report = fabric.report(host, &format!("vm{number}"));
            assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
        }
    }
}
