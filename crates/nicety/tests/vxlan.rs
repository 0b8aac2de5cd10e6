//! Daemons whose switches are one network by tunnels: guests of three of them reach each other, and the kernel's `vxlan` device. The tests
//! with the kernel run themselves again in a user and network namespace of their own, and print a note and judge nothing without one.

#[path = "../../daemon/tests/namespace/again.rs"]
mod again;
mod far;
mod station;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use far::{Far, HERE, THERE, sh};
use serde_json::{Value, json};
use station::{Process, Station, is_daemon, keep, serve};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
/// What leaves 1500 bytes for guests: their drivers have no other MTU.
const MTU: u16 = 1550;

fn nicety(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
    command.args(words).current_dir(dir).env_remove("XDG_RUNTIME_DIR").output().unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A host file with a tunnel, whose address and peers these are, and a guest's port in VLAN 10.
fn host_file(dir: &Path, address: &str, peers: &str, adapter: &str, number: u8) {
    std::fs::create_dir_all(dir).unwrap();
    let text = format!(
        "[[uplink]]\nkind = \"vxlan\"\nname = \"tunnel\"\naddress = \"{address}\"\npeers = \"{peers}\"\ntrunk = \"10,20\"\n\
         vnis = \"10=5010,20=5020\"\nmtu = {MTU}\n\n[[port]]\nname = \"vm\"\nadapter = \"{adapter}\"\nvlan = 10\n\
         mac = \"52:54:00:12:34:0{number}\"\nsocket = \"vm.sock\"\n"
    );
    std::fs::write(dir.join("host.toml"), text).unwrap();
}

fn guest(dir: &Path, adapter: &str, number: u8) -> Station {
    let socket = dir.join("vm.sock").display().to_string();
    Station::start(&json!({ "vfio-user": { "driver": adapter, "socket": socket } }), number)
}

/// The report of a daemon's tunnel.
fn tunnel(dir: &Path) -> Value {
    let output = nicety(dir, &["ports", "tunnel", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    report["ports"][0].clone()
}

fn frames(dir: &Path, way: &str) -> u64 {
    tunnel(dir)[way][0]["frames"].as_u64().unwrap_or(0)
}

/// Sends TCP from one guest to the other. Returns the bytes that arrived.
fn carried(from: &mut Station, to: &mut Station) -> u64 {
    let answer = from.asked(&json!({ "send": { "to": to.address, "seconds": 0.3 } }));
    assert!(answer.get("failed").is_none(), "{answer}");
    to.asked(&json!("report"))["counts"]["discarded_bytes"].as_u64().unwrap()
}

#[test]
fn guests_of_three_daemons_reach_each_other_and_the_third_sees_only_what_is_for_it() {
    let place = TempDir::new().unwrap();
    let [.., high, low] = std::process::id().to_be_bytes();
    let addresses = [1, 2, 3].map(|last| format!("127.{}.{low}.{last}", high | 1));
    let adapters = ["e1000", "vmxnet3", "e1000e"];
    let dirs = ["one", "other", "third"].map(|name| place.path().join(name));
    let (mut daemons, mut guests): (Vec<Process>, Vec<Station>) = (Vec::new(), Vec::new());
    for (number, (dir, adapter)) in (0..).zip(dirs.iter().zip(adapters)) {
        let others = addresses.iter().enumerate().filter(|(at, _)| *at != number);
        let peers = others.map(|(_, address)| address.as_str()).collect::<Vec<_>>().join(",");
        host_file(dir, &addresses[number], &peers, adapter, number as u8 + 1);
        daemons.push(serve(dir));
        guests.push(guest(dir, adapter, number as u8 + 1));
    }
    let [one, other, third] = guests.get_disjoint_mut([0, 1, 2]).unwrap();
    let bytes = [carried(one, other), carried(other, one), carried(third, one), carried(other, third)];
    println!("{bytes:?} bytes");
    assert!(bytes.iter().all(|bytes| *bytes > 100_000), "{bytes:?}");
    // Where the guests are is known now: between two of them nothing goes to the third.
    let [came, left] = ["transmit", "receive"].map(|way| frames(&dirs[2], way));
    assert!(carried(one, other) > 100_000);
    let more = [frames(&dirs[2], "transmit") - came, frames(&dirs[2], "receive") - left];
    assert!(more.iter().all(|more| *more < 10), "{more:?} frames at a host that they are not for");
    for dir in &dirs {
        let report = tunnel(dir);
        assert_eq!(report["transmit_drops"], json!({}), "{report}");
    }
    // A host that is no peer any more is a stranger.
    let set = nicety(&dirs[0], &["uplink", "set", "tunnel", &format!("peers={}", addresses[2])]);
    assert!(set.status.success(), "{set:?}");
    let answer = other.asked(&json!({ "send": { "to": one.address, "seconds": 0.3 } }));
    println!("after that: {answer}");
    until("it is refused", || {
        tunnel(&dirs[0])["transmit_drops"]["unknown-peer"].as_u64().is_some_and(|count| count > 0)
    });
    assert!(carried(third, one) > 100_000, "the other one is still a peer");
}

/// Runs the named test of this file again, in namespaces of its own. True inside of them.
fn inside(test: &str) -> bool {
    let vxlan = "ip link add va type veth peer name vb && ip link add vx type vxlan id 1 dstport 4789";
    again::inside(test, "-Urn", || {
        again::refusal(&["-Urn", "sh", "-c", vxlan], "a vxlan device in a network namespace")
    })
}

/// The kernel's end of the tunnel has 10.0.0.9 in network 5010. It computes checksums itself, as for a card that cannot: a veth passes on
/// frames that are not complete, and a user's socket shows them as they are.
fn kernel() -> Far {
    let far = Far::new(MTU);
    far.run(|| {
        sh(&format!(
            "ip link add vx10 type vxlan id 5010 dstport 4789 local {THERE} remote {HERE} dev far0 && \
             ip address add 10.0.0.9/24 dev vx10 && ip link set vx10 mtu 1500"
        ));
        checksums_in_software("vx10");
        sh("ip link set vx10 up");
    });
    far
}

/// `ethtool -K NAME tx off` (ETHTOOL_STXCSUM of linux/ethtool.h).
fn checksums_in_software(name: &str) {
    #[repr(C)]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        value: *mut [u32; 2],
        rest: [u8; 16],
    }
    let mut value = [0x17u32, 0];
    let mut request = Request { name: [0; libc::IFNAMSIZ], value: &raw mut value, rest: [0; 16] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: SIOCETHTOOL reads a `struct ifreq`, which `request` is, and the `struct ethtool_value` at which it points; both live.
    let done = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCETHTOOL, &raw mut request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// What comes to the kernel's port 7 goes back.
fn echoes(listener: TcpListener) {
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let mut peer: TcpStream = peer.unwrap();
            std::thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(len @ 1..) = peer.read(&mut bytes) {
                    if peer.write_all(&bytes[..len]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// The number of bytes that came back the same.
fn compared(answer: &Value) -> u64 {
    let number = |key: &str| answer["compared"][key].as_u64().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!((number("different"), number("sent")), (0, number("received")), "{answer}");
    number("received")
}

#[test]
fn a_guest_keeps_its_connection_to_linux_s_vxlan_device_while_its_daemon_is_replaced() {
    if !inside("a_guest_keeps_its_connection_to_linux_s_vxlan_device_while_its_daemon_is_replaced") {
        return;
    }
    let far = kernel();
    echoes(far.run(|| TcpListener::bind("10.0.0.9:7").unwrap()));
    let dir = TempDir::new().unwrap();
    host_file(dir.path(), "192.0.2.1", "192.0.2.2", "vmxnet3", 1);
    let keeper = keep(dir.path());
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    let mut station = guest(dir.path(), "vmxnet3", 1);
    let compare = |seconds: f64| json!({ "compare": { "to": [10, 0, 0, 9], "seconds": seconds } });
    let bytes = compared(&station.asked(&compare(0.5)));
    println!("{bytes} bytes there and back");
    assert!(bytes > 100_000, "{}", log());
    assert!(log().contains("an MTU of 1550 leaves guests one of 1500"), "{}", log());
    // No thread may open sockets any more, and a person is told so.
    for (key, says) in
        [("mtu=1500", "are opened when the daemon starts"), ("peers=192.0.2.1", "this host's own address")]
    {
        let refused = nicety(dir.path(), &["uplink", "set", "tunnel", key, "--yes"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(says), "{said}");
    }
    station.order(&compare(3.0));
    for _ in 0..2 {
        let upgraded = nicety(dir.path(), &["upgrade"]);
        assert!(upgraded.status.success(), "{upgraded:?} {}", log());
    }
    let bytes = compared(&station.answer());
    println!("{bytes} bytes over two upgrades");
    assert!(bytes > 100_000);
    // After a kill the sockets are opened anew.
    drop(station);
    let ready = || log().matches("all sockets are ready").count();
    let before = ready();
    for pid in daemons(keeper.0.id()) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    until("the next daemon", || ready() > before);
    let mut station = guest(dir.path(), "vmxnet3", 1);
    assert!(compared(&station.asked(&compare(0.5))) > 100_000, "{}", log());
    let shown = String::from_utf8(nicety(dir.path(), &["ports", "tunnel", "--long"]).stdout).unwrap();
    println!("{shown}{}", log());
    assert!(shown.contains("VXLAN"), "{shown}");
}

/// The daemons of a keeper: proc(5), `/proc/PID/task/TID/children`.
fn daemons(pid: u32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let all = lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>());
    all.filter(|pid| is_daemon(pid.unsigned_abs().into())).collect()
}
