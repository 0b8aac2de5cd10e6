//! An AF_XDP uplink between guests and the host's own TCP: a veth, one end of which is the daemon's, the other the kernel's. The tests
//! run themselves again in a network namespace of their own. They need rights in the initial user namespace (CAP_BPF), and without
//! them print a note and judge nothing.

#[path = "../../daemon/tests/namespace/again.rs"]
mod again;
mod station;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nicety_uplink::{Xdp, XdpError};
use serde_json::json;
use station::{Station, keep};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
/// The kernel's address at the far end, and the ports of its services.
const FAR: [u8; 4] = [10, 0, 0, 9];
const ECHO: u16 = 7;
const DISCARD: u16 = 9;

/// Runs the named test of this file again, in its own network namespace. True inside of it.
fn inside(test: &str) -> bool {
    again::inside(test, "-n", || {
        let veth = ["-n", "ip", "link", "add", "a0", "type", "veth", "peer", "b0"];
        again::refusal(&veth, "a veth in a network namespace").or_else(|| match Xdp::check("lo", 1) {
            Err(error @ (XdpError::Rights { .. } | XdpError::NoSockets)) => Some(error.to_string()),
            _ => None,
        })
    })
}

/// Runs `ip` as the administrator does.
fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A veth with these queues: `wire0` for AF_XDP; at `far0` the kernel has the address 10.0.0.9, and computes checksums itself, as a
/// card would: AF_XDP shows a frame as it is, and that of a veth is not complete otherwise.
fn veth(queues: u32) {
    let many = format!("numtxqueues {queues} numrxqueues {queues}");
    ip(&format!("link add wire0 {many} type veth peer name far0 {many}"));
    for name in ["wire0", "far0"] {
        let _no_ipv6_here = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    }
    checksums_in_software("far0");
    ip("address add 10.0.0.9/24 dev far0");
    ip("link set far0 up");
    ip("link set wire0 up");
    ip("link set lo up");
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
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap();
    // SAFETY: SIOCETHTOOL reads a `struct ifreq`, which `request` is, and the `struct ethtool_value` at which it points; both live.
    let done = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCETHTOOL, &raw mut request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Answers at the far end: what comes to one port goes back, what comes to the other is read.
fn far_services() {
    for (port, echoes) in [(ECHO, true), (DISCARD, false)] {
        let listener = TcpListener::bind(("10.0.0.9", port)).unwrap();
        std::thread::spawn(move || {
            for peer in listener.incoming() {
                let mut peer: TcpStream = peer.unwrap();
                std::thread::spawn(move || {
                    let mut bytes = vec![0; 64 << 10];
                    while let Ok(len @ 1..) = peer.read(&mut bytes) {
                        if echoes && peer.write_all(&bytes[..len]).is_err() {
                            break;
                        }
                    }
                });
            }
        });
    }
}

fn host_file(dir: &Path, keys: &str, guests: &[(&str, u8)]) {
    let ports = guests.iter().map(|(adapter, number)| {
        format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:0{number}\"\nsocket = \"vm{number}.sock\"\n"
        )
    });
    let ports: String = ports.collect();
    let text = format!("[daemon]\nworkers = 2\n[uplink]\nkind = \"xdp\"\ninterface = \"wire0\"\n{keys}\n{ports}");
    std::fs::write(dir.join("host.toml"), text).unwrap();
}

fn guest(dir: &Path, adapter: &str, number: u8) -> Station {
    let socket = dir.join(format!("vm{number}.sock")).display().to_string();
    Station::start(&json!({ "vfio-user": { "driver": adapter, "socket": socket } }), number)
}

fn nicety(dir: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nicety"))
        .args(words)
        .current_dir(dir)
        .env_remove("XDG_RUNTIME_DIR")
        .output()
        .unwrap()
}

/// Has a guest send to the kernel's echo service and compare what comes back. Returns the number of bytes.
fn compared(guest: &mut Station, seconds: f64) -> u64 {
    let answer = guest.asked(&json!({ "compare": { "to": FAR, "seconds": seconds } }));
    let number = |key: &str| answer["compared"][key].as_u64().unwrap_or_else(|| panic!("{answer}"));
    println!("guest {:?}: {answer}", guest.address);
    assert_eq!((number("different"), number("sent")), (0, number("received")));
    number("received")
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn shown(dir: &Path, name: &str) -> String {
    let output = nicety(dir, &["ports", name]);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

/// The daemons of a keeper: proc(5), `/proc/PID/task/TID/children`.
fn daemons(pid: u32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let all = lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<i32>>());
    all.filter(|pid| station::is_daemon(pid.unsigned_abs().into())).collect()
}

/// The number of the XDP program at an interface.
fn program(interface: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", interface]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let (_, number) = shown.split_once("prog/xdp id ").unwrap_or_else(|| panic!("no program: {shown}"));
    number.split_whitespace().next().unwrap().to_owned()
}

/// Kills the daemon of this keeper, does this meanwhile, and waits for the next one.
fn kill_daemon(dir: &Path, keeper: u32, meanwhile: impl Fn()) {
    let ready = || std::fs::read_to_string(dir.join("log")).unwrap().matches("all sockets are ready").count();
    let before = ready();
    for pid in daemons(keeper) {
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
    }
    meanwhile();
    until("the next daemon", || ready() > before);
}

#[test]
fn guests_reach_the_kernel_s_tcp_by_two_queues_until_the_interface_vanishes() {
    if !inside("guests_reach_the_kernel_s_tcp_by_two_queues_until_the_interface_vanishes") {
        return;
    }
    veth(2);
    far_services();
    let dir = TempDir::new().unwrap();
    let guests = [("vmxnet3", 1), ("e1000", 2)];
    host_file(dir.path(), "queues = 2", &guests);
    let keeper = keep(dir.path());
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    let mut stations = guests.map(|(adapter, number)| guest(dir.path(), adapter, number));
    for (station, queue) in stations.iter_mut().zip(["xdp/0", "xdp/1"]) {
        assert!(compared(station, 0.5) > 100_000);
        let shown = shown(dir.path(), queue);
        assert!(shown.contains("AF_XDP, copy"), "{shown}");
        until("the log says which it got", || log().contains("of wire0 is up, with a copy by the kernel"));
    }
    // While the daemon serves, none is added.
    let refused = nicety(dir.path(), &["uplink", "add", "more", "kind=xdp", "interface=far0"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("are opened when the daemon starts"), "{said}");
    // The queues go on in the next daemon, under a connection.
    stations[0].order(&json!({ "compare": { "to": FAR, "seconds": 3.0 } }));
    for _ in 0..2 {
        let upgraded = nicety(dir.path(), &["upgrade"]);
        assert!(upgraded.status.success(), "{upgraded:?}");
    }
    let answer = stations[0].answer();
    println!("upgraded twice: {answer}");
    assert_eq!(answer["compared"]["different"], json!(0), "{answer}");
    assert_eq!(answer["compared"]["sent"], answer["compared"]["received"], "{answer}");
    // They go on after a kill too: no other program is attached meanwhile.
    drop(stations);
    let attached = program("wire0");
    for round in 0..2 {
        kill_daemon(dir.path(), keeper.0.id(), || {});
        assert_eq!(program("wire0"), attached, "kill {round}: {}", log());
    }
    assert!(!log().contains("opened anew"), "{}", log());
    let mut station = guest(dir.path(), "e1000", 2);
    assert!(compared(&mut station, 0.5) > 100_000, "{}", log());
    ip("link del wire0");
    until("the uplink is down", || shown(dir.path(), "xdp/1").contains("wire0 was deleted"));
    station.asked(&json!({ "trickle": { "bytes": 60, "a_second": 100, "seconds": 0.2 } }));
    let all = nicety(dir.path(), &["ports", "--long"]).stdout;
    let all = String::from_utf8_lossy(&all);
    println!("{all}{}", log());
    assert!(all.contains("link-down"), "{all}");
}

#[test]
fn one_queue_with_a_rate_carries_tcp_to_the_kernel_and_is_taken_for_others() {
    if !inside("one_queue_with_a_rate_carries_tcp_to_the_kernel_and_is_taken_for_others") {
        return;
    }
    veth(1);
    far_services();
    let dir = TempDir::new().unwrap();
    host_file(dir.path(), "rate = \"1Gbit/s\"", &[("vmxnet3", 1)]);
    let _keeper = keep(dir.path());
    let mut station = guest(dir.path(), "vmxnet3", 1);
    assert!(compared(&mut station, 0.3) > 100_000);
    let sent = station.asked(&json!({ "send": { "to": FAR, "seconds": 0.5 } }));
    println!("to the kernel, by {DISCARD}: {sent}");
    assert!(sent["sent"]["bytes"].as_u64().unwrap() > 1_000_000, "{sent}");
    let refused = Xdp::open("wire0", 1).unwrap_err();
    assert!(refused.to_string().contains("taken by another process"), "{refused}");
}

#[test]
fn a_killed_daemon_leaves_the_program_at_its_interface_and_frames_wait_for_the_next_one() {
    if !inside("a_killed_daemon_leaves_the_program_at_its_interface_and_frames_wait_for_the_next_one") {
        return;
    }
    const FRAMES: u64 = 50;
    veth(1);
    ip("neighbour add 10.0.0.2 lladdr 02:00:00:00:00:02 dev far0");
    let dir = TempDir::new().unwrap();
    host_file(dir.path(), "", &[]);
    let mut keeper = keep(dir.path());
    let log = || std::fs::read_to_string(dir.path().join("log")).unwrap();
    until("it serves", || log().contains("all sockets are ready"));
    let socket = std::net::UdpSocket::bind("10.0.0.9:0").unwrap();
    let attached = program("wire0");
    for kill in 0..3 {
        kill_daemon(dir.path(), keeper.0.id(), || {
            (0..FRAMES).for_each(|_| assert_eq!(socket.send_to(b"soon", "10.0.0.2:9").unwrap(), 4));
        });
        assert_eq!(program("wire0"), attached, "kill {kill}: {}", log());
        let taken = || {
            let output = nicety(dir.path(), &["ports", "xdp", "--json"]);
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            report["ports"][0]["transmit"][0]["frames"].as_u64().unwrap()
        };
        until("frames that came after the kill are there", || taken() >= FRAMES);
    }
    // The memory is too small for what the interface carries now: the queues are opened anew, and the log says why.
    ip("link set wire0 mtu 3000");
    kill_daemon(dir.path(), keeper.0.id(), || {});
    assert!(log().contains("opened anew") && program("wire0") != attached, "{}", log());
    // A normal end leaves nothing.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(keeper.0.id().cast_signed()).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(keeper.0.wait().unwrap().success(), "{}", log());
    let shown = Command::new("ip").args(["link", "show", "wire0"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("prog/xdp"), "{shown:?}");
}
