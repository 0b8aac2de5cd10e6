//! Mirrors under real drivers: embedded guests exchange TCP, and a third one's port gets the copies, also in the next daemon. Or a tap gets
//! them, in a network namespace of the test's own, which needs no root rights.

#[path = "../../daemon/tests/namespace/mod.rs"]
mod namespace;
mod station;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use namespace::{inside, ip, ip_with};
use serde_json::{Value, json};
use station::{Process, Station, keep};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
/// Locally administered addresses of the ports.
const MAC: &str = "52:54:00:12:34:0";

struct Host {
    dir: TempDir,
    _keeper: Process,
}

impl Host {
    /// A kept daemon with three ports and these uplinks, and copies of the first port's frames at `to`.
    fn start(uplinks: &str, to: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut host = "[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n".to_owned();
        for (adapter, number) in ["e1000", "virtio-net", "virtio-net"].iter().zip(1..) {
            host += &format!("[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"{MAC}{number}\"\n");
            host += &format!("socket = \"vm{number}.sock\"\nbuffer = \"64MiB\"\n");
        }
        host += uplinks;
        host += &format!("[[mirror]]\nname = \"watch\"\nports = \"vm1\"\nto = \"{to}\"\nrate = \"100Gbit/s\"\n");
        std::fs::write(dir.path().join("host.toml"), host).unwrap();
        let host = Self { _keeper: keep(dir.path()), dir };
        let end = Instant::now() + SOON;
        while host.asked(&["ports"]).status.code() != Some(0) {
            assert!(Instant::now() < end, "{}", host.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        host
    }

    fn guest(&self, number: u8) -> Station {
        let socket = self.path(&format!("vm{number}.sock"));
        let attach = match number {
            1 => json!({ "vfio-user": { "driver": "e1000", "socket": socket } }),
            _ => json!({ "vhost-user": { "socket": socket } }),
        };
        Station::start(&attach, number)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn asked(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(words).arg("--control").arg(self.path("control.sock")).output().unwrap()
    }

    fn told(&self, words: &[&str]) -> String {
        let output = self.asked(words);
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The plan that was shown, and the refusal.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.asked(words);
        assert!(!output.status.success(), "{output:?}\n{}", self.log());
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    fn port(&self, name: &str) -> Value {
        let ports: Value = serde_json::from_str(&self.told(&["ports", "--json"])).unwrap();
        ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == name).unwrap().clone()
    }

    /// Frames of a port in this direction.
    fn frames(&self, name: &str, way: &str) -> u64 {
        let port = self.port(name);
        port[way].as_array().unwrap().iter().filter_map(|queue| queue["frames"].as_u64()).sum()
    }

    /// Frames that the first port has sent and got, and those that are at the mirror's port, or were not taken there.
    fn mirrored(&self, to: &str) -> (u64, u64) {
        let watch = self.port(to);
        let drops: u64 = watch["receive_drops"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        let copies = self.frames(to, "receive") + drops + watch["backlog_frames"].as_u64().unwrap();
        (self.frames("vm1", "transmit") + self.frames("vm1", "receive"), copies)
    }
}

/// Stops a process, or lets it go on.
fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// A guest sends to another, and hears that all has arrived.
fn exchange(from: &mut Station, to: &Station) {
    let done = from.asked(&json!({ "transact": { "to": to.address, "seconds": 0.2 } }));
    assert!(done.get("failed").is_none(), "{done}");
}

#[test]
fn copies_of_a_guests_tcp_reach_another_guests_port_and_later_a_file_and_go_on_after_an_upgrade() {
    let host = Host::start("", "vm3");
    let (mut one, two, mut three) = (host.guest(1), host.guest(2), host.guest(3));
    let before = host.mirrored("vm3");
    exchange(&mut one, &two);
    let (own, copies) = host.mirrored("vm3");
    assert!(own > before.0, "{own}");
    assert_eq!(copies - before.1, own - before.0, "each frame of the guest is at the mirror's port once");
    assert_eq!(host.port("vm1")["mirrored_to"], json!(["vm3"]));
    let mirror = json!({ "name": "watch", "of": ["vm1"], "direction": "both", "rate": "100Gbit/s" });
    assert_eq!(host.port("vm3")["mirror"], mirror);
    let line = "watch: copies of vm1 (both), at most 100Gbit/s; nothing else comes here, or goes out from here";
    assert!(host.told(&["ports", "vm3"]).contains(line));

    // One that takes nothing delays nobody: its copies wait.
    signal(three.process(), "-STOP");
    let before = host.mirrored("vm3");
    let end = Instant::now() + SOON;
    // Its ring takes as many as it has buffers.
    while host.port("vm3")["backlog_frames"] == 0 {
        assert!(Instant::now() < end, "{}", host.port("vm3"));
        exchange(&mut one, &two);
    }
    let (own, copies) = host.mirrored("vm3");
    assert_eq!(copies - before.1, own - before.0);
    signal(three.process(), "-CONT");

    // The guest at the mirror's port reaches nobody.
    three.order(&json!({ "transact": { "to": two.address, "seconds": 0.2 } }));
    let end = Instant::now() + SOON;
    while host.port("vm3")["transmit_drops"]["mirror-port"].as_u64().unwrap_or(0) == 0 {
        assert!(Instant::now() < end, "{}", host.port("vm3"));
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(three);

    // The next daemon copies too.
    host.told(&["upgrade"]);
    let three = host.guest(3);
    let before = host.mirrored("vm3");
    exchange(&mut one, &two);
    let (own, copies) = host.mirrored("vm3");
    assert_eq!(copies - before.1, own - before.0);
    assert!(own > before.0, "{own}");

    // One direction; then to a file, too.
    assert_eq!(
        host.told(&["mirror", "set", "watch", "direction=egress"]),
        "~ mirror watch: direction (not set) → egress\n"
    );
    host.told(&["uplink", "add", "file", "kind=capture", "file=copies.pcapng"]);
    let agreed = host.refused(&["mirror", "add", "second", "ports=vm2", "direction=ingress", "to=file"]);
    assert!(agreed.contains("+ mirror second (its port loses its networks)"), "{agreed}");
    let added = host.told(&["mirror", "add", "second", "ports=vm2", "direction=ingress", "to=file", "--yes"]);
    assert_eq!(added, "+ mirror second (its port loses its networks)\n");
    let before = (
        host.mirrored("vm3").1,
        host.frames("vm1", "receive"),
        host.frames("file", "receive"),
        host.frames("vm2", "transmit"),
    );
    exchange(&mut one, &two);
    let after = (
        host.mirrored("vm3").1,
        host.frames("vm1", "receive"),
        host.frames("file", "receive"),
        host.frames("vm2", "transmit"),
    );
    assert_eq!(after.0 - before.0, after.1 - before.1);
    assert_eq!(after.2 - before.2, after.3 - before.3);
    assert!(after.2 > before.2, "{after:?}");

    // What cannot be is refused with a sentence.
    for (words, why) in [
        (&["mirror", "add", "third", "ports=vm3", "to=vm2"][..], "mirror watch"),
        (&["mirror", "set", "watch", "to=vm1"], "vm1 would get copies of what it gets: a loop"),
        (&["mirror", "set", "watch", "to=vm9"], "there is no port and no uplink \"vm9\""),
        (&["mirror", "remove", "third"], "there is no mirror \"third\""),
    ] {
        let refused = host.refused(words);
        assert!(refused.contains(why), "{refused}");
    }

    // Without the mirror its port belongs to the network again.
    assert_eq!(host.told(&["mirror", "remove", "watch"]), "- mirror watch\n");
    exchange(&mut one, &three);
    assert_eq!(host.port("vm3")["mirror"], Value::Null);
}

/// Packets that the kernel has taken from the tap's other end.
fn taken() -> u64 {
    let links: Value = serde_json::from_str(&ip_with(&["-j", "-s"], "link show watch")).unwrap();
    links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
}

#[test]
fn copies_of_a_guests_tcp_leave_by_a_tap_once_and_what_comes_in_by_it_reaches_nobody() {
    if !inside("copies_of_a_guests_tcp_leave_by_a_tap_once_and_what_comes_in_by_it_reaches_nobody") {
        return;
    }
    for interfaces in ["all", "default"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/disable_ipv6"), "1").unwrap();
    }
    ip("tuntap add dev watch mode tap\naddress add 10.0.0.99/24 dev watch\nlink set watch up");
    let host = Host::start("[[uplink]]\nkind = \"tap\"\nname = \"watch\"\n", "watch");
    let (mut one, two) = (host.guest(1), host.guest(2));
    let exchanged = |one: &mut Station| {
        let (before, kernel) = (host.mirrored("watch"), taken());
        exchange(one, &two);
        let (after, drops) = (host.mirrored("watch"), host.port("watch")["receive_drops"].clone());
        assert!(after.0 > before.0, "{after:?}");
        assert_eq!(after.1 - before.1, after.0 - before.0, "each frame of the guest once: {drops}");
        taken() - kernel
    };
    let packets = |name: &str, way: &str| -> u64 {
        let port = host.port(name);
        port[way].as_array().unwrap().iter().filter_map(|queue| queue["packets"].as_u64()).sum()
    };
    assert!(exchanged(&mut one) > 0);
    let end = Instant::now() + SOON;
    while taken() != packets("watch", "receive") {
        assert!(Instant::now() < end, "the kernel has each copy once: {} {}", taken(), host.port("watch"));
    }

    // The host's own frames by that tap reach no guest, and are no copies.
    // Broadcasts reach the third port, too, and are dropped there: it has no VM.
    let third = || host.port("vm3")["receive_drops"].clone();
    let before = (host.mirrored("watch"), third());
    let socket = UdpSocket::bind("10.0.0.99:0").unwrap();
    socket.set_broadcast(true).unwrap();
    let dropped = || host.port("watch")["transmit_drops"]["mirror-port"].as_u64().unwrap_or(0);
    let (sent, end) = (dropped() + 20, end + SOON);
    (0..20).for_each(|_| _ = socket.send_to(b"hello", "10.0.0.255:9").unwrap());
    while dropped() < sent {
        assert!(Instant::now() < end, "{}", host.port("watch"));
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = host.mirrored("watch");
    assert_eq!((after.1 - before.0.1, third()), (after.0 - before.0.0, before.1));

    // A tap that is down delays nobody.
    ip("link set watch down");
    assert_eq!(exchanged(&mut one), 0);
    assert!(host.port("watch")["receive_drops"]["link-down"].as_u64() > Some(0), "{}", host.port("watch"));
    ip("link set watch up");
    while exchanged(&mut one) == 0 {
        assert!(Instant::now() < end + SOON, "{}", host.port("watch"));
    }
}
